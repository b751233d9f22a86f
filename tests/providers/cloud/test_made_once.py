"""Creates whose answers were lost, at a cloud without client tokens or unique names."""

from types import SimpleNamespace
from typing import Any

import pytest

from declarative.model.state import Address
from declarative.model.status import NodeState
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud.any import account
from providers.cloud.any.account import Account
from providers.cloud.any.site import Machine
from providers.cloud.marks import Mark, written

MARK = Mark(owner="lineage-1", address=Address("node", "gpu-0"), token="t" * 32, inputs={})
MADE = Machine(id="m-1", region="r", state=NodeState.READY, labels=written(MARK))
AT: Any = SimpleNamespace(
    lists=False, site=SimpleNamespace(settle=10.0, unique=frozenset(), client_token=False)
)


@pytest.fixture
def clock(monkeypatch):
    """No time passes but what is slept."""
    seconds = [100.0]
    pauses = []

    def sleep(pause):
        pauses.append(pause)
        seconds[0] += pause

    monkeypatch.setattr(account, "time", SimpleNamespace(monotonic=lambda: seconds[0], sleep=sleep))
    monkeypatch.setattr(account, "_UNCERTAIN", {})
    monkeypatch.setattr(account, "_MADE", {})
    return SimpleNamespace(seconds=seconds, pauses=pauses)


@pytest.fixture
def there(tmp_path):
    config = Config(backend="b", project_dir=tmp_path, lineage="lineage-1")
    return Account(config, {}, lambda account, region: AT.site, cloud="Cloud")


def create(there, make, look):
    return there.create_once("machine", AT, MARK, lambda: None, make, look)


def lose(_):
    raise TransientError(TransientKind.AMBIGUOUS, "lost")


def test_what_is_not_there_yet_is_waited_for(there, clock):
    """After a create without an answer nothing is believed to be nothing before the time is over."""
    with pytest.raises(TransientError):
        create(there, lose, list)
    clock.seconds[0] += 3
    late = iter([[MADE]])
    assert create(there, lose, lambda: next(late)) == MADE
    assert clock.pauses == [7.0]


@pytest.mark.parametrize("kind", [TransientKind.BUSY, TransientKind.THROTTLED, TransientKind.NOT_SENT])
def test_nobody_waits_for_what_was_certainly_not_made(there, clock, kind):
    def refuse(_):
        raise TransientError(kind, "not now")

    for _ in range(2):
        with pytest.raises(TransientError):
            create(there, refuse, list)
    assert clock.pauses == []


def test_nothing_is_said_to_have_failed_that_was_made_after_all(there, clock):
    """The first try has filled the quota itself."""
    found: list[Machine] = []

    def refuse(_):
        found.append(MADE)
        raise PermanentError(PermanentKind.QUOTA, "quota exceeded")

    with pytest.raises(PermanentError):
        create(there, refuse, list)
    with pytest.raises(TransientError):
        create(there, lose, list)
    found.clear()
    assert create(there, refuse, lambda: list(found)) == MADE
