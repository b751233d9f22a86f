"""Reads the YAML files of a project into `Desired`, or reports everything that is wrong with them.

`source` reads YAML text with positions, `template` fills in `${{ … }}`, and `loader` finds the files and
combines both.
"""
