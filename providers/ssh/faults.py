"""What hosts and the way to them refuse, as the two kinds of fault that the port knows."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from declarative.inputs import BadDataError
from declarative.provider import PermanentError, PermanentKind, ProviderError, TransientError, TransientKind
from providers import faults
from providers.runner import RunnerError
from providers.transport import ConnectionLost

P = ParamSpec("P")
T = TypeVar("T")

_OURS = {
    "gone": (PermanentKind.NOT_FOUND, "somebody removed its claim; `fleetform plan` says what is to be done"),
    "running": (PermanentKind.CONFLICT, faults.RUNNING),
    "lost": (PermanentKind.NOT_FOUND, "`fleetform plan` says what is to be done"),
    "elsewhere": (PermanentKind.INVALID, "only ranks on the volume's own host can use it"),
    "held": (PermanentKind.CONFLICT, "detach it first"),
    "room": (PermanentKind.NO_CAPACITY, "make room on the host, or ask for a smaller `size`"),
}
"""Refusals of `claim.sh` and `volume.sh`; the runner's own are as on this machine."""


def from_refusal(error: RunnerError) -> ProviderError:
    """The port's fault for what a script on a host refused."""
    if error.code in _OURS:
        kind, hint = _OURS[error.code]
        text = f"the node has running ranks: {error.text}" if error.code == "running" else error.text
        return PermanentError(kind, text, hint=hint)
    return faults.from_runner(error)


def guarded(call: Callable[P, T]) -> Callable[P, T]:
    """Let nothing but the port's faults out of a method of the port."""

    @wraps(call)
    def inner(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except RunnerError as error:
            raise from_refusal(error) from error
        except BadDataError as error:
            raise faults.from_data(error) from error
        except ConnectionLost as error:
            # Lost, neither done nor failed. Everything that hosts are asked may be asked again.
            raise TransientError(TransientKind.AMBIGUOUS, str(error)) from error

    return inner
