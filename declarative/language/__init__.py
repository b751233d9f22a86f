"""From the YAML files of a project to `Desired`, or to everything that is wrong with them.

`source` reads YAML text with positions, `template` fills in `${{ … }}`, and `loader` finds the files and
brings both together.
"""
