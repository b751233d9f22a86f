"""The integer program of a placement: its solver, its model, how nodes are cut, and what a solution says."""
