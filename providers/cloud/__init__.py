"""Clouds through libcloud: nodes, volumes and attachments of any driver that there is a provider for.

What all drivers share stands here, what one of them needs in a folder of its own (`ec2`, `openstack`, `gce`,
`azure`; the last two share `named`); `any` has those without client tokens. libcloud carries requests and
signs them; what is asked for and how answers are read is ours: see `connection` for why.
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
    "gce": "providers.cloud.gce:Gce",
    "azure": "providers.cloud.azure:Azure",
    "azure_arm": "providers.cloud.azure:Azure",  # libcloud's name for it
}
"""Driver → what makes its provider. Every other driver of libcloud's is `any.libcloud_site`'s."""


def cloud(config: Config) -> Provider:
    """The provider for `Config.driver`, which every entry point of a cloud leads to, `*` among them.

    `UnknownProviderError` for what is no driver of libcloud's either, `PermanentError` for one that lacks
    something that nothing can be made without.
    """
    module, _, name = WIRED.get(config.driver, "providers.cloud.any.libcloud_site:by_libcloud").partition(":")
    make: Callable[[Config], Provider] = getattr(import_module(module), name)
    return make(config)


def _names() -> tuple[str, ...]:
    """All names that `cloud` knows: see `declarative.provider.unknown`."""
    from providers.cloud.any import kinds

    return tuple(sorted({*WIRED, *kinds.names()}))


cloud.names = _names  # type: ignore[attr-defined]
