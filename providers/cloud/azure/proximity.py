"""Placement groups of Azure: proximity placement groups. The first machine in one decides where it is; those
in one are in one zone, or in none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from declarative.inputs import NodeInputs
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud.azure import answers
from providers.cloud.azure.account import COMPUTE, Account
from providers.cloud.groups import OPTION
from providers.cloud.named import Machine, Phase
from providers.cloud.rest import missing

_NAME = re.compile(r"[\w.-]{1,80}")


class Proximity:
    """See `named.api.Sites`. Ids are `group/name`, as those of all of Azure's things."""

    called = "proximity placement group"
    most = None

    def __init__(self, account: Account, machines: Callable[[], list[Machine]]) -> None:
        """`machines` are all of the owner's."""
        self._account = account
        self._machines = machines

    def takes(self, inputs: NodeInputs) -> bool:
        """See `Sites`: they all can."""
        return True

    def id_of(self, name: str, inputs: NodeInputs) -> str:
        """See `Sites`."""
        whole = name.startswith("/")
        made = answers.place(name) if whole else f"{self._account.group}/{name}".lower()
        known = not whole or path_of(self._account, made).lower() == name.lower()
        if not known or not _NAME.fullmatch(made.partition("/")[2]):
            summary = f"`{name}` is no proximity placement group of Azure"
            hint = "write its name in the backend's resource group, or its whole id: `/subscriptions/…`"
            raise PermanentError(PermanentKind.INVALID, summary, about=f"options.{OPTION}", hint=hint)
        return made

    def _ask(self, what: str, method: str, made: str, **more: Any) -> dict[str, Any]:
        return self._account.ask(what, method, path_of(self._account, made), COMPUTE, **more)

    def tags(self, made: str) -> dict[str, str] | None:
        """See `Sites`."""
        what = f"look at {made.rpartition('/')[2]}"
        found = missing(partial(self._ask, what, "GET", made))
        return None if found is None else {str(k): str(v) for k, v in (found.get("tags") or {}).items()}

    def make(self, made: str, inputs: NodeInputs, tags: Mapping[str, str]) -> None:
        """See `Sites`. A PUT changes what is there, so that is looked at before."""
        name = made.rpartition("/")[2]
        if self.tags(made) is not None:
            raise PermanentError(PermanentKind.CONFLICT, f"there is a {self.called} {name}", about=OPTION)
        body = {
            "location": inputs.region,
            "tags": dict(tags),
            "properties": {"proximityPlacementGroupType": "Standard"},
        }
        self._ask(f"create of the {self.called} {name}", "PUT", made, about=OPTION, body=body)

    def used(self, made: str) -> bool:
        """See `Sites`."""
        return any(m.phase is not Phase.ENDING and _group(m) == made for m in self._machines())

    def remove(self, made: str) -> None:
        """See `Sites`."""
        name = made.rpartition("/")[2]
        try:
            missing(partial(self._ask, f"end of the {self.called} {name}", "DELETE", made))
        except PermanentError as error:
            if error.kind not in (PermanentKind.CONFLICT, PermanentKind.INVALID):
                raise
            raise TransientError(TransientKind.BUSY, error.summary, about=name) from None


def path_of(account: Account, made: str) -> str:
    """The whole id of a group."""
    group, _, name = made.partition("/")
    return f"{account.root(group)}/providers/Microsoft.Compute/proximityPlacementGroups/{name}"


def _group(machine: Machine) -> str:
    inner = machine.raw.get("properties") or {}
    return answers.place((inner.get("proximityPlacementGroup") or {}).get("id"))
