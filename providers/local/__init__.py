"""The provider `local`: nodes and volumes are folders of this machine, ranks are its processes.

Nothing has to be installed or configured for it, and it asks for no more rights than its user has.
"""

from providers.local.provider import Local

__all__ = ["Local"]
