"""The places where things are made: one adapter for each kind of backend, all behind one port.

A provider sees the port and the values that pass through it (`declarative.provider`), and nothing else of
the tool; the tool finds it by the entry point group `fleetform.providers`. `providers.testing` holds the
suite that every provider has to pass, ours and other people's.
"""
