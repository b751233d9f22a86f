"""Clouds through libcloud: nodes, volumes and attachments of any driver that there is a provider for.

What all drivers share stands here, what one of them needs in a folder of its own (`ec2`). libcloud carries
requests and signs them; what is asked for and how answers are read is ours: see `connection` for why.
"""

from __future__ import annotations

from declarative.provider import Config, PermanentError, PermanentKind, Provider

__all__ = ["cloud"]


def cloud(config: Config) -> Provider:
    """The provider for `Config.driver`, which every entry point of a cloud leads to."""
    if config.driver == "ec2":
        from providers.cloud.ec2 import Ec2

        return Ec2(config)
    summary = f"there is no cloud provider for the driver `{config.driver}`"
    raise PermanentError(PermanentKind.INVALID, summary, about="driver")
