"""Clouds that take a name once: what is made is named after its token, so that a create that is tried again
meets what the first try made. What such clouds have in common stands here; each says in an `Api` how it is
asked.
"""

from providers.cloud.named.api import Api, Device, Disk, Machine, Phase, Reserved, Told, Wanted
from providers.cloud.named.provider import Named

__all__ = ["Api", "Device", "Disk", "Machine", "Named", "Phase", "Reserved", "Told", "Wanted"]
