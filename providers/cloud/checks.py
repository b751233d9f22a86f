"""What a change in place, an adoption and a plan are refused for, in every cloud; and what there is of things
that somebody else made.

An adopted instance is never restarted and never ended. An adopted volume is adopted by its id, let go again,
and never deleted. Ours are our tags on them and those that the user declares; their names stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from declarative.model.inputs import NodeInputs, Placed, inputs_of
from declarative.model.resource import INSTANCE_ID, VOLUME_ID
from declarative.model.state import Address
from declarative.provider import PermanentError, PermanentKind, TransientError
from declarative.provider.optional import Existing
from providers.cloud import marks
from providers.cloud.account import Account, Tagged, gibibytes
from providers.cloud.marks import Mark
from providers.cloud.shared_looks import asking


def theirs(inputs: Mapping[str, Any]) -> bool:
    """Whether these are the inputs of an instance or a volume that is adopted, and not made."""
    return VOLUME_ID in inputs or INSTANCE_ID in (inputs.get("host") or {})


def absent(mark: Mark, where: str, hint: str) -> PermanentError:
    """The fault of a volume that is not there; `hint` says what else it may be called, or where it may be."""
    summary = f"{mark.address}: there is no volume `{mark.volume.volume_id}` in {where}"
    return PermanentError(PermanentKind.NOT_FOUND, summary, about=VOLUME_ID, hint=hint)


def is_free(account: Account, mark: Mark, tags: Mapping[str, str], made: str) -> bool:
    """Whether nobody has the volume `made`, by its tags; False if an earlier try took it for this very
    address, `PermanentError` if it is another's, or has a tag of its own that is declared.

    A mark without a token is that of a plan: what this state has, it may let go of before.
    """
    owner, token = tags.get(marks.OWNER), tags.get(marks.TOKEN)
    if owner is None:
        check_tags(mark.address, mark.inputs, {}, tags, made)
        return True
    if owner == account.owner and token == (mark.token or token):
        return False
    is_node = mark.address.kind == "node"
    whose = "this state" if owner == account.owner else f"another state (lineage {owner})"
    summary = f"{mark.address}: {made} is {tags.get(marks.ADDRESS, 'a thing')} of {whose}"
    hint = "take it out of that one first"
    about = "instance_ids" if is_node else VOLUME_ID
    raise PermanentError(PermanentKind.CONFLICT, summary, about=about, hint=hint)


def check(
    mark: Mark, made: str, *, size: int, kind: str | None, **places: tuple[str | None, str | None]
) -> None:
    """`PermanentError` if the volume is not as large (GiB), of the type, or where it is declared.

    `places`: by their field in the YAML, where it is to be and where it is: None where nobody says it.
    """
    asked = mark.volume
    compared: dict[str, tuple[object, object]] = {
        **places,
        "size": (gibibytes(mark.address, asked.size) if asked.size else size, size),
        "volume_type": (asked.volume_type or kind, kind),
    }
    for field, (wanted, has) in compared.items():
        if wanted == has:
            continue
        unit = "GB" if field == "size" else ""
        word = "zone" if field == "availability_zone" else field
        summary = f"{mark.address}: the `{field}` of {made} is {has}{unit}, and not {wanted}{unit}"
        hint = f"write `{field}: {has}{unit}`"
        if wanted is None:
            summary = f"{mark.address}: {made} is in {has}, and its {word} is not declared"
        elif has is None:
            summary = f"{mark.address}: {made} has no `{field}`, and cannot have {wanted}"
            hint = f"leave `{field}` out"
        raise PermanentError(PermanentKind.INVALID, summary, about=field, hint=hint)


def check_tags(
    address: Address,
    inputs: Mapping[str, Any],
    before: Mapping[str, Any],
    tags: Mapping[str, str],
    made: str,
) -> None:
    """`PermanentError` if a tag of the volume's own would be overwritten, and be gone once it is let go.

    `before` are the inputs whose tags are on it already.
    """
    if not theirs(inputs):
        return
    added = marks.tags_in(inputs).keys() - marks.tags_in(before).keys()
    for key in sorted(added & tags.keys()):
        summary = f"{address}: {made} has a tag `{key}` of its own, which stays as it is"
        hint = f"leave `{key}` out of `tags`"
        raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)


def taken_on(have: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """All tags of a volume once it is ours: what nobody reads of an older mark goes."""
    return {**{key: value for key, value in have.items() if not key.startswith(marks.OURS)}, **ours}


def users(tags: Mapping[str, str], made: str) -> list[str]:
    """The tags on an adopted volume that its own mark says are declared."""
    return [key for key in marks.read(tags, made).tags if key in tags]


def left(tags: Mapping[str, str], made: str) -> dict[str, str]:
    """The tags that stay on an adopted volume when it is let go: those that are neither ours nor declared."""
    gone = set(users(tags, made))
    return {k: v for k, v in tags.items() if k not in gone and not k.startswith(marks.OURS)}


def sized(address: Address, inputs: Mapping[str, Any], size: int) -> int:
    """The size in GiB that inputs ask for; what an adopted volume has, where they say nothing."""
    return size if VOLUME_ID in inputs and "size" not in inputs else gibibytes(address, inputs.get("size"))


def gone(address: Address | str) -> PermanentError:
    """The fault of a thing that is recorded, and was taken away."""
    summary = f"{address} is not there any more"
    return PermanentError(PermanentKind.NOT_FOUND, summary, about=str(address))


def check_fixed(
    address: Address, made: Mapping[str, Any], inputs: Mapping[str, Any], fixed: Iterable[str]
) -> None:
    """`PermanentError` if an input that is `fixed` would be another one than the thing was `made` with."""
    for key in fixed:
        if made.get(key) != inputs.get(key):
            summary = f"{address}: `{key}` cannot be changed in place"
            raise PermanentError(PermanentKind.INVALID, summary, about=key)


def size_of(address: Address, made: Mapping[str, Any], inputs: Mapping[str, Any], has: int) -> int:
    """The size in GiB that inputs ask for; `PermanentError` if it is less than the disk was `made` with.

    `has`: what it has now.
    """
    size, before = (sized(address, found, has) for found in (inputs, made))
    if size < before:
        was = made.get("size", f"{has}GB")
        summary = f"{address}: its size cannot go down from {was} to {inputs['size']}"
        raise PermanentError(PermanentKind.INVALID, summary, about="size")
    return size


AT_ONCE = 8
"""Questions under way at a time."""
CHANGING = (PermanentKind.NO_CAPACITY, PermanentKind.QUOTA)

Look = Callable[[], object]
Seen = Callable[[Address, str, Mapping[str, Any]], object]
"""Looks at a volume that is to be adopted, given its address, no token and its inputs."""


def by_region(
    wanted: Mapping[Address, Mapping[str, Any]],
) -> list[tuple[str, dict[Address, Mapping[str, Any]]]]:
    """What is wanted in each region, by the region's name."""
    found: dict[str, dict[Address, Mapping[str, Any]]] = {}
    for address, inputs in wanted.items():
        place: Placed = inputs_of("node" if address.kind == "node" else "volume", inputs)
        found.setdefault(place.region, {})[address] = inputs
    return sorted(found.items())


def faults_of(
    probes: Iterable[Look], looks: Iterable[Look], passes: str | None = None
) -> list[PermanentError]:
    """The faults of `looks`, each once. One that may pass is raised where there are none that stay.

    One of a probe is raised, as of the credentials, the clock or the way there: nothing else is seen then.
    `passes` is in the fault of a look that the user may not take: who may make a thing need not be let look.
    """
    with asking(AT_ONCE, "ahead") as pool:
        let_in, seen = (list(map(pool.submit, part)) for part in (probes, looks))
        for future in let_in:
            future.result()
        found, passing = _errors(seen)
    faults: dict[str, PermanentError] = {}
    for fault in found:
        if fault.kind not in CHANGING and not (passes and passes in fault.summary):
            faults.setdefault(fault.summary, fault)
    if passing and not faults:
        raise passing
    return list(faults.values())


def _errors(looks: Iterable[Future[object]]) -> tuple[list[PermanentError], TransientError | None]:
    """The faults of looks that are under way, and the first one that may pass."""
    found: list[PermanentError] = []
    passing: TransientError | None = None
    for look in looks:
        if passing and look.cancel():
            continue  # it has not started, and might wait as long in vain
        try:
            look.result()
        except PermanentError as error:
            found.append(error)
        except TransientError as error:
            passing = passing or error
    return found, passing


def unfit_volumes(seen: Seen, wanted: Mapping[Address, Mapping[str, Any]]) -> list[PermanentError]:
    """What keeps volumes from being adopted."""
    theirs = ((a, inputs) for a, inputs in wanted.items() if a.kind == "volume" and VOLUME_ID in inputs)
    return faults_of((), [partial(seen, address, "", inputs) for address, inputs in theirs])


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
