"""fleetform: Terraform for GPU fleets. The tool; it knows no cloud."""

__version__ = "0.1.0"
