"""Repeats refresh, plan and apply in rounds until it is stopped."""
