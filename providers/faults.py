"""Refusals of hosts, of their scripts and of the operating system, as the two kinds of fault of the port."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

from declarative.model.inputs import BadDataError
from declarative.provider import (
    PermanentError,
    PermanentKind,
    ProviderError,
    StaleError,
    TransientError,
    TransientKind,
)
from providers.runner import RunnerError
from providers.transport import ConnectionLost

P = ParamSpec("P")
T = TypeVar("T")

RUNNING = "stop their tasks first; `fleetform stop TASK` also stops what runs and is not recorded"
"""The hint for a node that cannot be deleted because of its ranks."""

_REFUSED: Mapping[str, tuple[PermanentKind, str | None]] = {
    "missing": (PermanentKind.NOT_FOUND, None),
    "tools": (PermanentKind.INVALID, "install flock and setsid (util-linux)"),
    "unwritable": (PermanentKind.AUTH, "let the calling user write there"),
    "isolation": (PermanentKind.INVALID, "leave out `isolation`, or let the host's user make control groups"),
    "nospace": (PermanentKind.NO_CAPACITY, "free some space on the disk of the node's folder"),
}
"""Codes of the runner that say that nothing was changed; `usage` has the default."""

_REFUSED_BY_SCRIPTS: Mapping[str, tuple[PermanentKind, str | None]] = {
    "gone": (PermanentKind.NOT_FOUND, "somebody removed its claim; `fleetform plan` says what is to be done"),
    "root": (PermanentKind.INVALID, "name a folder on a disk of the host, as the backend's `options.root`"),
    "running": (PermanentKind.CONFLICT, RUNNING),
    "lost": (PermanentKind.NOT_FOUND, "`fleetform plan` says what is to be done"),
    "elsewhere": (PermanentKind.INVALID, "only ranks on the volume's own host can use it"),
    "held": (PermanentKind.CONFLICT, "detach it first"),
    "room": (PermanentKind.NO_CAPACITY, "make room on the host, or ask for a smaller `size`"),
}
"""Codes of `claim.sh` and `volume.sh`, whose texts are messages of their own."""

_OS_PASSING = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.EINTR,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ETXTBSY,
}
"""Shortages that end by themselves, and errors of a network file system that is away."""

_OS_LASTING = {
    errno.ENOSPC: (PermanentKind.NO_CAPACITY, "free some space, or give the backend another `options.root`"),
    errno.EDQUOT: (PermanentKind.QUOTA, "free some space, or give the backend another `options.root`"),
    errno.EACCES: (PermanentKind.AUTH, "let the calling user read and write there"),
    errno.EPERM: (PermanentKind.AUTH, "let the calling user read and write there"),
    errno.EROFS: (PermanentKind.INVALID, "give the backend an `options.root` that can be written"),
}
_OPEN = {
    "busy": TransientKind.BUSY,
    "truncated": TransientKind.NOT_SENT,
    "failed": TransientKind.AMBIGUOUS,  # unforeseen, so nobody knows what was done
}


def from_data(error: BadDataError) -> ProviderError:
    """The port's fault for inputs of the wrong kind."""
    return PermanentError(PermanentKind.INVALID, f"its inputs cannot be used: {error}")


def from_runner(error: RunnerError) -> ProviderError:
    """The port's fault for what the runner, or a script on a host, refused."""
    if error.code in _REFUSED_BY_SCRIPTS:
        kind, hint = _REFUSED_BY_SCRIPTS[error.code]
        text = f"the node has running ranks: {error.text}" if error.code == "running" else error.text
        return PermanentError(kind, text, hint=hint)
    summary = f"the runner refused: {error.text or error.code}"
    if error.code == "stale" and (newest := re.search(r"\((\d{1,15}),", error.text)):
        return StaleError(int(newest[1]), summary)
    if error.code in _OPEN:
        return TransientError(_OPEN[error.code], summary)
    lasting, hint = _REFUSED.get(error.code, (PermanentKind.INVALID, None))
    return PermanentError(lasting, summary, hint=hint)


def from_os(error: OSError) -> ProviderError:
    """The port's fault for one of the operating system."""
    where = error.filename
    about = where if isinstance(where, str) else None
    summary = f"{about}: {error.strerror}" if about else str(error.strerror or error)
    if error.errno in _OS_PASSING:
        return TransientError(TransientKind.BUSY, summary, about=about)
    kind, hint = _OS_LASTING.get(error.errno or 0, (PermanentKind.INVALID, None))
    return PermanentError(kind, summary, about=about, hint=hint)


def guarded(call: Callable[P, T]) -> Callable[P, T]:
    """Let nothing but the port's faults out of a method of the port."""

    @wraps(call)
    def inner(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except OSError as error:
            raise from_os(error) from error
        except RunnerError as error:
            raise from_runner(error) from error
        except BadDataError as error:
            raise from_data(error) from error
        except ConnectionLost as error:
            # Neither done nor failed. Every request to a host may be repeated.
            raise TransientError(TransientKind.AMBIGUOUS, str(error)) from error

    return inner


def raise_all(faults: Sequence[ProviderError]) -> None:
    """Raise one fault that names all, if there are any; a permanent one, if one of them is."""
    if not faults:
        return
    first = next((e for e in faults if isinstance(e, PermanentError)), faults[0])
    summary = "; ".join(sorted(error.summary for error in faults))
    if isinstance(first, PermanentError):
        raise PermanentError(first.kind, summary, about=first.about, hint=first.hint)
    away = isinstance(first, TransientError) and first.away
    raise TransientError(TransientKind.NOT_SENT, summary, about=first.about, hint=first.hint, away=away)
