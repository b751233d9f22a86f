"""`fleetform undrain`: see `drain`."""

from declarative.cli.drain import undrain as command

__all__ = ["command"]
