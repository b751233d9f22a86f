"""One pure function places all ranks of all tasks on one working copy of the inventory.

Its rules: docs/architecture.md, "Placement".
"""
