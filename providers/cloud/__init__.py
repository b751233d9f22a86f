"""Clouds through libcloud: nodes, volumes and attachments of any driver with a provider.

This folder has what all drivers share. A driver's own part is in a folder of its own (`ec2`, `openstack`,
`gce`, `azure`) or a file of `any`, which has the port of drivers (`any.site`). libcloud sends and signs
requests; what is asked, and how answers are read, is ours: see `connection` for the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from declarative.provider import Config, Provider

__all__ = ["cloud"]

WIRED: Mapping[str, str] = {
    "ec2": "providers.cloud.ec2:Ec2",
    "openstack": "providers.cloud.openstack:OpenStack",
    "digitalocean": "providers.cloud.any.digitalocean:digital_ocean",
    "vultr": "providers.cloud.any.vultr:vultr",
    "crusoe": "providers.cloud.any.crusoe:crusoe",
    "hyperstack": "providers.cloud.any.hyperstack:hyperstack",
    "lambda": "providers.cloud.any.lambda_cloud:lambda_cloud",
    "nebius": "providers.cloud.any.nebius:nebius",
    "gce": "providers.cloud.gce:Gce",
    "azure": "providers.cloud.azure:Azure",
    "azure_arm": "providers.cloud.azure:Azure",  # libcloud's name for it
}
"""Driver → what makes its provider. `any.libcloud_site` makes that of all other drivers of libcloud's."""


def cloud(config: Config) -> Provider:
    """The provider for `Config.driver`. All entry points of clouds lead here, `*` too.

    `UnknownProviderError` if libcloud has no such driver, `PermanentError` if the driver lacks something
    essential.
    """
    module, _, name = WIRED.get(config.driver, "providers.cloud.any.libcloud_site:by_libcloud").partition(":")
    make: Callable[[Config], Provider] = getattr(import_module(module), name)
    return make(config)


def _names() -> tuple[str, ...]:
    """All names that `cloud` accepts: see `declarative.provider.unknown`."""
    from providers.cloud.any import kinds

    return tuple(sorted({*WIRED, *kinds.names()}))


cloud.names = _names  # type: ignore[attr-defined]
