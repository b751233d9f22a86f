"""The driver `nebius`.

Nebius speaks gRPC alone, so it needs the packages `nebius` (its messages) and `grpcio`, which are an extra.
Only `nebius_site` and what that imports need them: it is loaded with the first request.
"""

from __future__ import annotations

from declarative.provider import Config, PermanentError, PermanentKind
from providers.cloud.any.account import Account
from providers.cloud.any.nebius_login import login
from providers.cloud.any.site import Site
from providers.cloud.provider import Cloud

OPTIONS: dict[str, type | tuple[type, ...]] = {
    "project": (str, dict),
    "disk_size": int,
    **dict.fromkeys(("disk_type", "fabric", "placement_group"), str),
}


def nebius(config: Config) -> Cloud:
    """The provider for `driver: nebius`.

    Options: `project`, its id, or one for each region (`{eu-north1: project-…}`); `disk_size` (GiB) and
    `disk_type` of a node's own disk; `placement_group`, a GPU cluster of yours or `off`, and `fabric`, the
    InfiniBand fabric of those made here; and those of all clouds.
    """
    return Cloud(Account(config, OPTIONS, _open, cloud="Nebius", regional=True))


def _open(account: Account, region: str) -> Site:
    try:
        from providers.cloud.any.nebius_site import Nebius
    except ImportError as error:
        summary = f"the driver `nebius` needs the packages `nebius` and `grpcio`: {error}"
        hint = "in a clone: `pipx install --force '.[nebius]'`; else `pip install nebius` in its environment"
        raise PermanentError(PermanentKind.INVALID, summary, about="driver", hint=hint) from None
    who = login(account.config)
    account.scrub.learn(who.secrets)
    return Nebius(account, region, who)
