"""The planner: desired, recorded, observed and now → what to do, in which order, and why. Pure."""
