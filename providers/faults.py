"""What a host's runner refuses, as the two kinds of fault that the port knows."""

from __future__ import annotations

import re

from declarative.inputs import BadDataError
from declarative.provider import (
    PermanentError,
    PermanentKind,
    ProviderError,
    StaleError,
    TransientError,
    TransientKind,
)
from providers.runner import RunnerError

RUNNING = "stop their tasks first; `fleetform stop TASK` also stops what runs and is not recorded"
"""What to do about a node that cannot go because of its ranks."""

_REFUSED = {
    "missing": (PermanentKind.NOT_FOUND, None),
    "tools": (PermanentKind.INVALID, "install flock and setsid (util-linux)"),
    "unwritable": (PermanentKind.AUTH, "let the calling user write there"),
    "isolation": (PermanentKind.INVALID, "leave out `isolation`, or let the host's user make control groups"),
    "nospace": (PermanentKind.NO_CAPACITY, "free some space on the disk of the node's folder"),
}
"""Codes of the runner, all of which say that nothing was changed; `usage` is left for the default."""

_OPEN = {
    "busy": TransientKind.BUSY,
    "truncated": TransientKind.NOT_SENT,
    "failed": TransientKind.AMBIGUOUS,  # nobody foresaw it, so nobody knows what was done
}


def from_data(error: BadDataError) -> ProviderError:
    """The port's fault for inputs that are none of their kind."""
    return PermanentError(PermanentKind.INVALID, f"its inputs cannot be used: {error}")


def from_runner(error: RunnerError) -> ProviderError:
    """The port's fault for a refusal of the runner."""
    summary = f"the runner refused: {error.text or error.code}"
    if error.code == "stale" and (told := re.search(r"\((\d{1,15}),", error.text)):
        return StaleError(int(told[1]), summary)
    if error.code in _OPEN:
        return TransientError(_OPEN[error.code], summary)
    lasting, hint = _REFUSED.get(error.code, (PermanentKind.INVALID, None))
    return PermanentError(lasting, summary, hint=hint)
