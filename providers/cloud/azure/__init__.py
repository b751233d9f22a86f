"""The driver `azure` (in libcloud `azure_arm`): virtual machines and managed disks of one resource group.

Names are taken once in a resource group, so what is made is named after its token. A PUT makes or changes,
so one that is tried again is preceded by a look, and asks that there be none yet where Azure takes that.
"""

from providers.cloud.azure.provider import Azure

__all__ = ["Azure"]
