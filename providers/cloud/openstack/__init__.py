"""The driver `openstack`: clouds whose keystone is at `endpoint`.

They know no tokens of creates, and names are nobody's: what is made once is looked for before it is made, by
what its metadata say, and a second one that came after all is taken away.
"""

from providers.cloud.openstack.provider import OpenStack

__all__ = ["OpenStack"]
