"""Explains a plan: why tasks, ranks and nodes are where they are, and where else they could be."""
