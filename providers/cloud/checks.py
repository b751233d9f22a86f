"""The checks for changes in place, adoptions and plans in every cloud; and existing things that somebody else
made.

An adopted instance is never restarted or ended. An adopted volume is found by its id, and when it goes it is
released, never deleted. On both we write only our tags and those that the user declares; their names stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from declarative.model.inputs import PlacedInputs, inputs_of
from declarative.model.resource import INSTANCE_ID, VOLUME_ID
from declarative.model.state import Address
from declarative.provider import QUOTAS, PermanentError, PermanentKind, TransientError
from declarative.provider.optional import Existing
from providers.cloud import marks
from providers.cloud.account import Account, gibibytes
from providers.cloud.marks import Mark
from providers.cloud.shared_looks import asking


def is_adopted(inputs: Mapping[str, Any]) -> bool:
    """Whether the inputs are of an instance or a volume that is adopted, not made."""
    return VOLUME_ID in inputs or INSTANCE_ID in (inputs.get("host") or {})


def absent(mark: Mark, where: str, hint: str) -> PermanentError:
    """The fault for a volume that does not exist; `hint` says what other name or place it may have."""
    summary = f"{mark.address}: there is no volume `{mark.volume.volume_id}` in {where}"
    return PermanentError(PermanentKind.NOT_FOUND, summary, about=VOLUME_ID, hint=hint)


def is_free(account: Account, mark: Mark, tags: Mapping[str, str], made: str) -> bool:
    """Whether the volume `made` has no owner, by its tags. False if an earlier try adopted it for this
    address. `PermanentError` if it has another owner, or already a tag that is declared.

    A mark without a token comes from a plan: what this state owns now, it may release before.
    """
    owner, token = tags.get(marks.OWNER), tags.get(marks.TOKEN)
    if owner is None:
        check_tags(mark.address, mark.inputs, {}, tags, made)
        return True
    if owner == account.owner and token == (mark.token or token):
        return False
    is_node = mark.address.kind == "node"
    whose, hint = "this state", "take it out of that one first"
    if owner != account.owner:
        whose = f"another state (lineage {owner})"
        hint += ", or, if that is lost, remove fleetform's tags"
    summary = f"{mark.address}: {made} is {tags.get(marks.ADDRESS, 'a thing')} of {whose}"
    about = "instance_ids" if is_node else VOLUME_ID
    raise PermanentError(PermanentKind.CONFLICT, summary, about=about, hint=hint)


def check(
    mark: Mark, made: str, *, size: int, kind: str | None, **places: tuple[str | None, str | None]
) -> None:
    """`PermanentError` if the volume's size (GiB), type or place is not as declared.

    `places`: by YAML field, the declared place and the actual one; None if not known.
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
    """`PermanentError` if a tag of the volume would be overwritten, and be lost when the volume is released.

    `before` are the inputs whose tags are on it already.
    """
    if not is_adopted(inputs):
        return
    added = marks.tags_in(inputs).keys() - marks.tags_in(before).keys()
    for key in sorted(added & tags.keys()):
        summary = f"{address}: {made} has a tag `{key}` of its own, which stays as it is"
        hint = f"leave `{key}` out of `tags`"
        raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)


def tags_left(tags: Mapping[str, str], made: str) -> dict[str, str]:
    """The tags that stay on an adopted volume when it is released: neither ours nor declared."""
    declared = marks.read(tags, made).tags
    return {k: v for k, v in tags.items() if k not in declared and not k.startswith(marks.OURS)}


def sized(address: Address, inputs: Mapping[str, Any], size: int) -> int:
    """The size in GiB in the inputs; the volume's own if an adopted volume has none there."""
    return size if VOLUME_ID in inputs and "size" not in inputs else gibibytes(address, inputs.get("size"))


def gone(address: Address | str) -> PermanentError:
    """The fault for a recorded thing that no longer exists."""
    summary = f"{address} is not there any more"
    return PermanentError(PermanentKind.NOT_FOUND, summary, about=str(address))


def check_fixed(
    address: Address, made: Mapping[str, Any], inputs: Mapping[str, Any], fixed: Iterable[str]
) -> None:
    """`PermanentError` if a `fixed` input differs from what the thing was `made` with."""
    for key in fixed:
        if made.get(key) != inputs.get(key):
            summary = f"{address}: `{key}` cannot be changed in place"
            raise PermanentError(PermanentKind.INVALID, summary, about=key)


def size_of(address: Address, made: Mapping[str, Any], inputs: Mapping[str, Any], has: int) -> int:
    """The size in GiB in the inputs; `PermanentError` if it is less than what the disk was `made` with.

    `has`: its size now.
    """
    size, before = (sized(address, found, has) for found in (inputs, made))
    if size < before:
        was = made.get("size", f"{has}GB")
        summary = f"{address}: its size cannot go down from {was} to {inputs['size']}"
        raise PermanentError(PermanentKind.INVALID, summary, about="size")
    return size


AT_ONCE = 8
"""Questions that are asked at the same time."""
CHANGING = (PermanentKind.NO_CAPACITY, *QUOTAS)

Look = Callable[[], object]
Seen = Callable[[Address, str, Mapping[str, Any]], object]
"""Looks at a volume to adopt, given its address, an empty token and its inputs."""


def by_region(
    wanted: Mapping[Address, Mapping[str, Any]],
) -> list[tuple[str, dict[Address, Mapping[str, Any]]]]:
    """The wanted things of each region, by the region's name."""
    found: dict[str, dict[Address, Mapping[str, Any]]] = {}
    for address, inputs in wanted.items():
        place: PlacedInputs = inputs_of("node" if address.kind == "node" else "volume", inputs)
        found.setdefault(place.region, {})[address] = inputs
    return sorted(found.items())


def faults_of(
    probes: Iterable[Look], looks: Iterable[Look], passes: str | None = None
) -> list[PermanentError]:
    """The permanent faults of `looks`, each once. If there are none, the first transient one is raised.

    A fault of a probe (credentials, clock, connection) is raised: nothing else can be checked then. `passes`
    marks the fault of a look that the user may not take: the right to make a thing does not imply the right
    to look.
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
    """The permanent faults of running looks, and the first transient one."""
    found: list[PermanentError] = []
    passing: TransientError | None = None
    for look in looks:
        if passing and look.cancel():
            continue  # not started yet, and likely to fail in the same way
        try:
            look.result()
        except PermanentError as error:
            found.append(error)
        except TransientError as error:
            passing = passing or error
    return found, passing


def unfit_volumes(seen: Seen, wanted: Mapping[Address, Mapping[str, Any]]) -> list[PermanentError]:
    """Why volumes cannot be adopted."""
    theirs = ((a, inputs) for a, inputs in wanted.items() if a.kind == "volume" and VOLUME_ID in inputs)
    return faults_of((), [partial(seen, address, "", inputs) for address, inputs in theirs])


TOGETHER = 0.05
"""Seconds for which a look at one thing waits for others to join."""


def existing(tags: Mapping[str, str], **facts: Any) -> Existing:
    """An existing instance or volume with these tags; `facts` are its other fields."""
    owner = tags.get(marks.OWNER)
    try:
        address = Address.parse(tags[marks.ADDRESS]) if owner else None
    except (KeyError, ValueError):
        address = None
    users = {key: value for key, value in tags.items() if not key.startswith(marks.OURS)}
    project = tags.get(marks.PROJECT)
    return Existing(tags=users, lineage=owner, address=address, project=project, **facts)


def others(found: Iterable[Existing], owner: str, addresses: Collection[Address]) -> list[Existing]:
    """The things with one of these addresses that another state made, by address and id."""
    theirs = [e for e in found if e.lineage not in (None, owner) and e.address in addresses]
    return sorted(theirs, key=lambda e: (str(e.address), e.id))
