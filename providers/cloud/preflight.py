"""What would keep a plan from being carried out, asked for side by side: see `provider.Checks`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from declarative.model.resource import VOLUME_ID
from declarative.model.state import Address
from declarative.provider import PermanentError, PermanentKind, TransientError
from providers.cloud.shared_looks import asking

AT_ONCE = 8
"""Questions under way at a time."""
CHANGING = (PermanentKind.NO_CAPACITY, PermanentKind.QUOTA)

Look = Callable[[], object]
Seen = Callable[[Address, str, Mapping[str, Any]], object]
"""Looks at a volume that is to be adopted, given its address, no token and its inputs."""


def found(probes: Iterable[Look], looks: Iterable[Look], passes: str | None = None) -> list[PermanentError]:
    """The faults of `looks`, each once. One that may pass is raised where there are none that stay.

    One of a probe is raised, as of the credentials, the clock or the way there: nothing else is seen then.
    `passes` is in the fault of a look that the user may not take: who may make a thing need not be let look.
    """
    faults: dict[str, PermanentError] = {}
    passing: TransientError | None = None
    with asking(AT_ONCE, "ahead") as pool:
        let_in, seen = ([pool.submit(look) for look in part] for part in (probes, looks))
        for future in let_in:
            future.result()
        for future in seen:
            if passing and future.cancel():
                continue  # it has not begun, and might wait as long in vain
            try:
                future.result()
            except PermanentError as error:
                if error.kind not in CHANGING and not (passes and passes in error.summary):
                    faults.setdefault(error.summary, error)
            except TransientError as error:
                passing = passing or error
    if passing and not faults:
        raise passing
    return list(faults.values())


def unfit(seen: Seen, wanted: Mapping[Address, Mapping[str, Any]]) -> list[PermanentError]:
    """What keeps volumes from being adopted."""
    theirs = ((a, inputs) for a, inputs in wanted.items() if a.kind == "volume" and VOLUME_ID in inputs)
    return found((), [partial(seen, address, "", inputs) for address, inputs in theirs])
