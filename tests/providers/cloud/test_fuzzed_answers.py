"""Fuzzed answers of clouds: each read ends, with a result or a fault of the port."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from providers.cloud import cloud
from tests.providers.cloud.clouds import CLOUDS
from tests.providers.cloud.test_invalid_answers import PLACES, pem, provider, secrets, served
from tests.providers.ec2 import run as ec2
from tests.providers.openstack import run as openstack
from tests.support.fuzz_clouds import Replayed, Tried, try_seeds

__all__ = ["pem", "secrets"]

ANSWERS = int(os.environ.get("FLEETFORM_ANSWERS", "3000" if os.environ.get("CI") else "1000"))
FIRST = int(os.environ.get("FLEETFORM_FIRST", "0"))
WHERE = {
    **PLACES,
    "ec2": {"region": ec2.REGION, "zone": f"{ec2.REGION}a", "instance_type": "t3.micro"},
}


@pytest.mark.slow
def test_any_answer_of_nebius_is_read_or_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, of what is bytes by gRPC."""
    replayed, share = Replayed(monkeypatch), ANSWERS // len(WHERE)
    with CLOUDS["nebius"](tmp_path, monkeypatch) as small:
        rpc = importlib.import_module("providers.cloud.rpc")
        monkeypatch.setattr(rpc.Link, "ask", replayed.bytes_of(rpc.Link.ask))
        tried = Tried(lambda: cloud(small.config), dict(small.place), replayed)
        count = try_seeds(tried, range(FIRST, FIRST + share))
    assert sum(count.values()) == share
    assert all(any(word in key for key in count) for word in ("taken", "refused"))


@pytest.mark.slow
@pytest.mark.parametrize("driver", WHERE)
def test_any_answer_is_read_or_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pem: str, driver: str
) -> None:
    """Answers that doubles of the clouds gave, changed by seed. In CI 3,000; `FLEETFORM_ANSWERS=100000` tries
    as many, from seed `FLEETFORM_FIRST` on.
    """
    share = ANSWERS // len(WHERE)
    for name, value in openstack.SECRETS.items() if driver == "openstack" else ():
        monkeypatch.setenv(name, value)
    replayed = Replayed(monkeypatch)
    running: Any
    running, url = (ec2.RunningEc2(), "") if driver == "ec2" else served(driver)
    with running:

        def make() -> Any:
            if driver == "ec2":
                return cloud(ec2.config(running.port, tmp_path))
            if driver == "openstack":
                return cloud(openstack.config(running, tmp_path))
            return provider(driver, url, tmp_path, pem, monkeypatch)

        tried = Tried(make, WHERE[driver], replayed, volumes=driver != "lambda")
        count = try_seeds(tried, range(FIRST, FIRST + share))
    assert sum(count.values()) == share
    assert all(any(word in key for key in count) for word in ("taken", "refused"))
