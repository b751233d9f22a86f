"""Explains a finished plan: why a task has no place, what makes it fit, and where else a rank could be."""
