"""What the operating system and the runner refuse, as the two kinds of fault that the port knows."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from declarative.inputs import BadDataError
from declarative.provider import PermanentError, PermanentKind, ProviderError, TransientError, TransientKind
from providers.faults import from_data, from_runner
from providers.runner import RunnerError
from providers.transport import ConnectionLost

P = ParamSpec("P")
T = TypeVar("T")

_PASSING = {
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
"""Shortages that end by themselves, and what a network's file system says while it is away."""

_LASTING = {
    errno.ENOSPC: (PermanentKind.NO_CAPACITY, "free some space, or give the backend another `options.root`"),
    errno.EDQUOT: (PermanentKind.QUOTA, "free some space, or give the backend another `options.root`"),
    errno.EACCES: (PermanentKind.AUTH, "let the calling user read and write there"),
    errno.EPERM: (PermanentKind.AUTH, "let the calling user read and write there"),
    errno.EROFS: (PermanentKind.INVALID, "give the backend an `options.root` that can be written"),
}


def from_os(error: OSError) -> ProviderError:
    """The port's fault for one of the operating system."""
    where = error.filename
    about = where if isinstance(where, str) else None
    summary = f"{about}: {error.strerror}" if about else str(error.strerror or error)
    if error.errno in _PASSING:
        return TransientError(TransientKind.BUSY, summary, about=about)
    kind, hint = _LASTING.get(error.errno or 0, (PermanentKind.INVALID, None))
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
            # Everything that the runner is asked may be asked again.
            raise TransientError(TransientKind.AMBIGUOUS, str(error)) from error

    return inner
