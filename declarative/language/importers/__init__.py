"""Writes documents for what exists elsewhere: files of dstack and SkyPilot, nodes and hosts."""
