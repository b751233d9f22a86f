"""Machines die: some schedules of `benchmarks/machines`, and that the checks find faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.providers.ssh import journal
from tests.providers.ssh.losing import HOSTS, PHASES, draw


def lines(machine: str, *told: str) -> list[journal.Line]:
    """`start 0 a.1 10.0`: what, rank, attempt and time."""
    full = (f"{w} gang {rank} {a} 7 {time}00000000" for w, rank, a, time in (t.split() for t in told))
    return journal.read(machine, "\n".join(full))


ONE = ("start 0 a.1 10.0", "beat 0 a.1 12.0")


@pytest.mark.parametrize(
    ("later", "faults"),
    [
        (("start 0 b.2 12.5", "end 0 b.2 14.0"), []),
        (("start 1 b.1 11.0", "end 1 b.1 14.0"), []),
        (("start 0 b.2 11.0", "end 0 b.2 14.0"), ["a.1 on h0 and b.2 on h1 ran at once for 1.0 s"]),
        (("start 0 a.1 13.0",), ["a.1 began on h0 and again on h1"]),
    ],
    ids=["after", "sibling", "at once", "attempt"],
)
def test_who_runs_twice_at_once_is_found(later, faults) -> None:
    assert journal.twice(journal.runs([*lines("h0", *ONE), *lines("h1", *later)])) == faults


def test_a_line_that_is_cut_is_not_read() -> None:
    assert journal.read("h0", "start gang 0 a.1 7 10.000000000\nbeat gang 0 a.1 7 11.0") == lines(
        "h0", ONE[0]
    )


def test_a_seed_is_a_schedule() -> None:
    """Always the same; together they have every phase, and only what was asked for."""
    assert [draw(i) for i in range(300)] == [draw(i) for i in range(300)]
    assert {loss.phase for i in range(300) for loss in draw(i).losses} == set(PHASES)
    some = [draw(i, "hosts", ("reboot",), ("running",)) for i in range(50)]
    assert {(s.where, x.how, x.phase) for s in some for x in s.losses} == {("hosts", "reboot", "running")}
    assert {x.how for i in range(300) for x in draw(i, "hosts").losses} == set(HOSTS)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "how", "seed"), [("hosts", "reboot", 107), ("ec2", "listing", 108)])
def test_machines_die(allowed: None, tmp_path: Path, where: str, how: str, seed: int) -> None:
    from tests.providers.ssh.played import play

    schedule = draw(seed, where, (how,))
    assert play(schedule, tmp_path, {}).faults == []
