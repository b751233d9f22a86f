"""The health, the metrics and a live page of a fleet over HTTP. Read only."""
