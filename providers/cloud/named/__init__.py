"""Clouds that take a name once: what is made is named after its token, so that a create that is tried again
meets what the first try made. What such clouds have in common stands here; each says in an `Api` how it is
asked.
"""

from providers.cloud.named.api import Api, Disk, Machine, Phase, Told, Wanted, name_of
from providers.cloud.named.attachments import Attachments
from providers.cloud.named.nodes import Nodes
from providers.cloud.named.volumes import Volumes

__all__ = ["Api", "Attachments", "Disk", "Machine", "Nodes", "Phase", "Told", "Volumes", "Wanted", "name_of"]
