"""The laws of `fleetform conformance`, for every driver over its stand-in, which counts what there is.

All runs in one process: a command that dies sends nothing more, and the next one remembers nothing. 200 lives
of each kind: `FLEETFORM_LIVES=200 ./dev test tests/providers/cloud/test_every_cloud.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declarative.apply import conformance
from declarative.apply.conformance import BrokenLawError, LawOutcome, Lives, Processes, Trial, checks
from declarative.retry import Policy
from providers.cloud.any import account, json_site
from providers.cloud.any.digitalocean import DigitalOcean
from providers.cloud.any.hyperstack import Hyperstack
from tests.providers.cloud.clouds import CLOUDS, Small
from tests.providers.cloud.stand_in import Pace

LIVES = int(os.environ.get("FLEETFORM_LIVES", "6"))
OWNER = "5e1f0d9c-1d3a-4c57-9a44-0c6e6d2b7a10"


class KilledError(BaseException):
    """The end of a command."""


class InOne(Processes):
    """Commands one after the other, in this process."""

    def apart(self, command: Callable[[Callable[[], object]], dict[str, Any]]) -> dict[str, Any] | None:
        account._UNCERTAIN.clear()
        account._MADE.clear()

        def die() -> object:
            raise KilledError

        try:
            found: dict[str, Any] = json.loads(json.dumps(command(die)))
        except KilledError:
            return None
        return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "PATIENCE", Policy(deadline=60.0, first=0.001, longest=0.01))


@pytest.fixture(params=CLOUDS)
def small(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    with CLOUDS[request.param](tmp_path, monkeypatch) as running:
        yield running


def trial(small: Small, **more: Any) -> Trial:
    given: dict[str, Any] = {"larger": "2GB" if small.grows else None, "lives": LIVES}
    config = replace(small.config, lineage=OWNER)
    about: dict[str, Any] = {"count": small.count, "several": small.several}
    return Trial(config=config, node=small.node, volume=small.volume, **about, **{**given, **more})


@pytest.mark.slow
def test_a_driver_keeps_the_laws(small: Small) -> None:
    some = trial(small)
    found = list(checks(some, InOne(some.config)))
    for check in found:
        print(f"{small.config.driver}: {check.outcome} {check.name}: {check.detail} ({check.seconds:.1f} s)")
    assert [check for check in found if check.outcome is LawOutcome.FAILED] == []
    assert len(found) == (14 if small.volumes and small.grows else 13 if small.volumes else 6)
    assert {kind: n for kind, n in small.count().items() if n} == {}


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["vultr", "hyperstack"])
def test_writers_of_one_machine_are_seen_to_lose_each_others_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    """Without the lock that they have."""
    monkeypatch.setattr(json_site, "_LOCKS", (nullcontext(),))
    with CLOUDS[driver](tmp_path, monkeypatch) as small:
        some = trial(small)
        with pytest.raises(BrokenLawError, match=r"is lost|by somebody else|wrote on it"):
            Lives(some, InOne(some.config)).written_at_once()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["node", "volume"])
@pytest.mark.parametrize(("driver", "site"), [("digitalocean", DigitalOcean), ("hyperstack", Hyperstack)])
def test_pages_that_shift_are_seen_to_lose_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, site: type, kind: str
) -> None:
    """Of a driver that reads each page once, though pages begin after so many things."""
    monkeypatch.setattr(site, "shifts", False)
    with CLOUDS[driver](tmp_path, monkeypatch) as small:
        some = trial(small)
        with pytest.raises(BrokenLawError, match=r"is not listed: another went"):
            Lives(some, InOne(some.config)).listed(kind)


def test_limits_of_requests_are_kept(small: Small) -> None:
    """Of so many requests in so many seconds: what is refused is tried later, and most are not."""
    some = trial(small)
    small.pace = None if small.config.driver == "lambda" else Pace(small.clock, 10, 4.0)
    things = Lives(some, InOne(some.config))
    for kind in ("node", *(["volume"] if small.volumes else [])):
        record = things.create(things.record(kind))
        assert record is not None
        things.check_alone(record)
        things.delete(record)
        things.check_alone()
    print(f"{small.config.driver}: {small.refused} of {small.asked} requests were refused")
    assert small.asked >= 10
    assert small.refused <= small.asked / 2
