"""Placement groups of GCE: compact placement policies. They are of a region; what is in one is in one zone.

A policy has no labels: whose it is stands in its description.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial

from declarative.inputs import NodeInputs
from declarative.provider import PermanentError, PermanentKind
from providers.cloud.gce import answers
from providers.cloud.gce.account import Account
from providers.cloud.groups import OPTION
from providers.cloud.named import Machine, Phase
from providers.cloud.rest import missing

FAMILIES = frozenset(
    ("a2", "a3", "a4", "a4x", "c2", "c2d", "c3", "c3d", "c4", "c4d", "g2", "g4", "h3", "h4d", "n2", "n2d")
)
"""Families of types that Google names for compact placement. A machine of another is made without."""
_PATH = re.compile(r"(?:.*/)?projects/([^/]+)/regions/([^/]+)/resourcePolicies/([^/]+)")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


class Policies:
    """See `named.api.Sites`. Ids are `project/region/name`."""

    called = "compact placement policy"
    most = 1500

    def __init__(
        self, account: Account, do: Callable[..., None], machines: Callable[[], list[Machine]]
    ) -> None:
        """`do` sees a change through to its end; `machines` are all of the owner's."""
        self._account = account
        self._do = do
        self._machines = machines

    def takes(self, inputs: NodeInputs) -> bool:
        """See `Sites`."""
        return inputs.instance_type.partition("-")[0] in FAMILIES

    def id_of(self, name: str, inputs: NodeInputs) -> str:
        """See `Sites`. One of another project or region takes no machine."""
        project, region = self._account.project, inputs.region
        path = _PATH.fullmatch(name)
        where = path.groups() if path else (project, region, name)
        if not _NAME.fullmatch(where[2]) or where[:2] != (project, region):
            summary = f"`{name}` is no placement policy of {project} in {region}"
            hint = "write its name, or `projects/P/regions/R/resourcePolicies/NAME`"
            raise PermanentError(PermanentKind.INVALID, summary, about=f"options.{OPTION}", hint=hint)
        return "/".join(where)

    def tags(self, made: str) -> dict[str, str] | None:
        """See `Sites`."""
        what = f"look at {made.rpartition('/')[2]}"
        found = missing(partial(self._account.ask, what, "GET", path_of(made)))
        if found is None:
            return None
        try:
            told = json.loads(str(found.get("description") or "{}"))
        except ValueError:
            told = {}  # another's, in his own words
        return {str(k): str(v) for k, v in told.items()} if isinstance(told, dict) else {}

    def make(self, made: str, inputs: NodeInputs, tags: Mapping[str, str]) -> None:
        """See `Sites`."""
        project, region, name = made.split("/")
        body = {
            "name": name,
            "description": json.dumps(dict(tags), sort_keys=True),
            "groupPlacementPolicy": {"collocation": "COLLOCATED"},
        }
        path = f"{project}/regions/{region}/resourcePolicies"
        self._do(f"create of the {self.called} {name}", "POST", path, OPTION, body=body)

    def used(self, made: str) -> bool:
        """See `Sites`."""
        return any(_is_in(machine, made) for machine in self._machines())

    def remove(self, made: str) -> None:
        """See `Sites`."""
        try:
            self._do(f"end of the {self.called} {made.rpartition('/')[2]}", "DELETE", path_of(made))
        except PermanentError as error:
            if error.kind is not PermanentKind.NOT_FOUND:
                raise


def path_of(made: str) -> str:
    """The path of a policy, below `projects/`."""
    project, region, name = made.split("/")
    return f"{project}/regions/{region}/resourcePolicies/{name}"


def _is_in(machine: Machine, made: str) -> bool:
    urls = machine.raw.get("resourcePolicies") or ()
    return machine.phase is not Phase.ENDING and any(answers.place(url, "regions") == made for url in urls)
