"""`declarative.retry`: which calls are tried again, when, and for how long."""

from types import SimpleNamespace

import pytest

from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from declarative.retry import Policy, call


@pytest.fixture
def slept(monkeypatch):
    """The seconds that were waited; none of them pass."""
    waits: list[float] = []
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=waits.append))
    return waits


def failing(*faults):
    """A function that raises these, one after the other, and then gives `done`."""
    left = list(faults)

    def function():
        if left:
            raise left.pop(0)
        return "done"

    return function


@pytest.mark.parametrize("kind", TransientKind)
def test_what_passes_is_tried_again(slept, kind):
    told = []
    fault = TransientError(kind, "later")
    found = call(failing(fault, fault), on_retry=lambda error, wait: told.append((error, wait)))
    assert found == "done"
    assert told == [(fault, wait) for wait in slept]
    assert len(slept) == 2


@pytest.mark.parametrize("kind", PermanentKind)
def test_what_does_not_pass_is_not(slept, kind):
    with pytest.raises(PermanentError):
        call(failing(PermanentError(kind, "no")))
    assert slept == []


def test_waits_grow_and_differ(slept):
    """They grow up to the longest, and differ so that callers do not retry at the same time."""
    policy = Policy(first=1.0, longest=8.0, deadline=1000.0)
    for _ in range(20):
        call(failing(*[TransientError(TransientKind.BUSY, "later")] * 6), policy=policy)
    rounds = [slept[i::6] for i in range(6)]
    for i, waits in enumerate(rounds):
        assert max(waits) <= min(8.0, 2.0**i)
        assert len(set(waits)) > 10
    assert max(rounds[0]) < max(rounds[5])


def test_the_servers_own_wait_is_kept(slept):
    fault = TransientError(TransientKind.THROTTLED, "later", after=20.0)
    call(failing(fault), policy=Policy(first=0.1))
    assert slept == [20.0]


def test_nobody_waits_for_what_comes_after_the_deadline(slept):
    """A server may ask for hours; its fault is reported at once."""
    fault = TransientError(TransientKind.THROTTLED, "come back tomorrow", after=3600.0)
    with pytest.raises(TransientError, match="tomorrow"):
        call(failing(fault), policy=Policy(deadline=300.0))
    assert slept == []
