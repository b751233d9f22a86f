"""The laws that `fleetform conformance` tries, over drivers that keep them and drivers that break one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declarative.apply import conformance
from declarative.apply.conformance import BrokenLawError, LawOutcome, Processes, Trial, checks
from declarative.provider import Config, load
from providers.testing import NODE, VOLUME


def trial(folder: Path) -> Trial:
    config = Config(backend="local", project_dir=folder, lineage="lineage-1", driver="local")
    return Trial(
        config=config, node={**NODE, "backend": "local"}, volume={**VOLUME, "backend": "local"}, lives=3
    )


def tried(folder: Path) -> dict[str, LawOutcome]:
    return {check.name: check.outcome for check in checks(trial(folder))}


def test_a_driver_that_keeps_the_laws_passes(tmp_path: Path) -> None:
    assert set(tried(tmp_path).values()) == {LawOutcome.PASSED}


class Twice:
    """Makes another one each time."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def create(self, address: Any, token: str, inputs: Any, needs: Any) -> Any:
        other = f"{int(token, 16) ^ int.from_bytes(os.urandom(8), 'big'):032x}"
        return self.real.create(address, other, inputs, needs)


class Forgets(Twice):
    """Deletes nothing."""

    create: Any = None

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self.create = real.create

    def delete(self, record: Any) -> None:
        """Says that it did."""


class Loses(Forgets):
    """Does not list what it made."""

    def delete(self, record: Any) -> None:
        self.real.delete(record)

    def inventory(self) -> tuple[Any, ...]:
        return ()


class Raises(Loses):
    """An error that is not the port's."""

    def inventory(self) -> tuple[Any, ...]:
        raise KeyError("items")


@pytest.fixture
def broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    kind = request.param
    monkeypatch.setattr(conformance, "load", lambda name, config: kind(load(name, config)))
    return kind


@pytest.mark.parametrize("broken", [Twice, Forgets, Loses, Raises], indirect=True)
def test_a_driver_that_breaks_a_law_fails(broken: Any, tmp_path: Path) -> None:
    found = tried(tmp_path)
    assert found["a node is made once"] is LawOutcome.FAILED
    assert found["no node is lost or made twice"] is LawOutcome.FAILED


def test_no_token_is_used_in_two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloud may remember what a token made, though that is gone; the owner may be that of a killed run."""

    class Remembers(Twice):
        def create(self, address: Any, token: str, inputs: Any, needs: Any) -> Any:
            used = tmp_path / f"{token}.{run}"
            assert not [other for other in tmp_path.glob(f"{token}.*") if other != used]
            used.touch()
            return self.real.create(address, token, inputs, needs)

    monkeypatch.setattr(conformance, "load", lambda name, config: Remembers(load(name, config)))
    for run in (1, 2):  # read by the driver
        some = replace(trial(tmp_path / "place"), lives=0, first=run * 1000)
        assert {check.outcome for check in checks(some)} == {LawOutcome.PASSED}


def test_an_interrupted_process_does_not_go_on_as_a_second_command(tmp_path: Path) -> None:
    def interrupted(_provider: Any) -> None:
        raise KeyboardInterrupt

    here = os.getpid()
    with pytest.raises(BrokenLawError, match="exit code 1"):
        Processes(trial(tmp_path).config).run(interrupted)
    assert os.getpid() == here
