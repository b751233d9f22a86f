"""Why a plan is as it is: what became of tasks, ranks and nodes, and where else they could be."""
