"""Instances and volumes that somebody else made: what there is of them, and what an instance is refused for.

An adopted instance is never restarted and never ended. Ours are our tags on it and those that the user
declares; its name stays as it is. Volumes are in `volumes` and `checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from declarative.model.inputs import NodeInputs
from declarative.model.state import Address
from declarative.provider import Existing, PermanentError, PermanentKind
from providers.cloud import marks
from providers.cloud.account import Account, Tagged
from providers.cloud.checks import is_free, theirs
from providers.cloud.marks import Mark

TOGETHER = 0.05
"""Seconds for which a look at one thing waits for others that are looked at with it."""
ABOUT = "instance_ids"
"""The field that names instances."""


M = TypeVar("M", bound=Tagged)


class Driver(Protocol[M]):
    """What a cloud is asked about machines that others made. Faults are the port's."""

    def named(self, asked: NodeInputs) -> M | None:
        """The machine that `asked` names. Looks of many at once are shared."""

    def type_of(self, machine: M, made: str) -> str:
        """See `nodes.Driver`."""

    def take(self, machine: M, mark: Mark) -> None:
        """Write the mark on a machine that is nobody's."""

    def let_go(self, machine: M) -> None:
        """Take what we wrote off a machine."""


def take(account: Account, driver: Driver[M], mark: Mark) -> M:
    """The instance that is named, with the mark on it from now on; it is as it was otherwise."""
    machine, free = seen(account, driver, mark)
    if free:
        driver.take(machine, mark)
    return machine


def let_go(account: Account, driver: Driver[M], machine: M) -> bool:
    """Take the mark off an instance of ours, if its own tags say that it was adopted; whether they do."""
    if not theirs(account.read(machine).inputs):
        return False
    driver.let_go(machine)
    return True


def seen(account: Account, driver: Driver[M], mark: Mark) -> tuple[M, bool]:
    """The instance that is named, and whether it is still to be taken; `PermanentError` where it is
    another's, or not what was planned with. There is no token in the mark with a plan.
    """
    asked = mark.node
    machine = driver.named(asked)
    if machine is None or machine.gone:
        summary = f"{mark.address}: there is no instance `{asked.instance_id}` in {asked.region}"
        hint = "it has ended, or is in another region or account: take it out of `instance_ids`"
        raise PermanentError(PermanentKind.NOT_FOUND, summary, about=ABOUT, hint=hint)
    free = is_free(account, mark, machine.tags, machine.id)
    found = {"instance_type": driver.type_of(machine, asked.instance_type), "zone": machine.zone}
    for field, has in found.items():
        wanted, word = getattr(asked, field), field.replace("_", " ")
        if has and wanted != has:
            summary = f"{mark.address}: the {word} of {machine.id} is {has}, and not {wanted}"
            hint = "somebody changed it since it was planned: plan again"
            raise PermanentError(PermanentKind.INVALID, summary, about=ABOUT, hint=hint)
    return machine, free


def existing(tags: Mapping[str, str], **facts: Any) -> Existing:
    """An instance or a volume with these tags; `facts` are the other fields."""
    owner = tags.get(marks.OWNER)
    try:
        address = Address.parse(tags[marks.ADDRESS]) if owner else None
    except (KeyError, ValueError):
        address = None
    users = {key: value for key, value in tags.items() if not key.startswith(marks.OURS)}
    return Existing(tags=users, lineage=owner, address=address, **facts)
