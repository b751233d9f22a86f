"""Making it so: look, settle what happened, walk the plan, follow the tasks. All writes are below here."""
