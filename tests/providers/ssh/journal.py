"""The journal that ranks write on their machines, and its errors: ranks that ran twice at once.

A line is `WHAT TASK RANK ATTEMPT PID TIME`, with `start`, `beat`, `term` (asked to stop) or `end`. All
machines have this machine's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FILE = "/var/tmp/journal"
SCRIPT = """\
note() { echo "$1 $FLEETFORM_TASK_NAME $FLEETFORM_NODE_RANK ${FLEETFORM_RUN##*/} $$ $(date +%s.%N)" >>FILE; }
trap 'note term; sleep 0.5; note beat; sleep 0.5; note end; exit 143' TERM
note start
beats=BEATS
[ -z "MASTER" ] || [ $FLEETFORM_NODE_RANK = 0 ] || beats=100000
while [ $beats -gt 0 ]; do sleep 0.25; note beat; beats=$((beats - 1)); done
note end
"""


def script(beats: int, *, master: bool) -> str:
    """The command of a rank. With `master` only rank 0 ends by itself."""
    text = SCRIPT.replace("FILE", FILE).replace("BEATS", str(beats))
    return text.replace("MASTER", "yes" if master else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line, and the machine on which it stands."""

    what: str
    task: str
    rank: int
    attempt: str
    pid: int
    time: float
    machine: str


def read(machine: str, text: str) -> list[Line]:
    """The lines of one machine. The last one may be cut, for its machine was."""
    found = []
    for words in (line.split() for line in text.splitlines()):
        if len(words) == 6 and words[5].count(".") == 1 and len(words[5].partition(".")[2]) == 9:
            what, task, rank, attempt, pid, time = words
            found.append(
                Line(
                    what=what,
                    task=task,
                    rank=int(rank),
                    attempt=attempt,
                    pid=int(pid),
                    time=float(time),
                    machine=machine,
                )
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One process of a rank: from its first line to its last."""

    rank: str
    attempt: str
    machine: str
    pid: int
    first: float
    last: float
    ended: bool


def runs(lines: Iterable[Line]) -> list[Run]:
    """The processes, the first one first."""
    by: dict[tuple[str, str, int], list[Line]] = {}
    for line in lines:
        by.setdefault((line.machine, line.attempt, line.pid), []).append(line)
    found = [
        Run(
            rank=f"{each[0].task}-{each[0].rank}",
            attempt=attempt,
            machine=machine,
            pid=pid,
            first=min(x.time for x in each),
            last=max(x.time for x in each),
            ended=any(x.what == "end" for x in each),
        )
        for (machine, attempt, pid), each in by.items()
    ]
    return sorted(found, key=lambda r: r.first)


def twice(found: Sequence[Run]) -> list[str]:
    """Ranks that ran more than once at once, and attempts that began more than once."""
    faults = []
    for i, one in enumerate(found):
        for other in found[i + 1 :]:
            if other.attempt == one.attempt:
                faults.append(f"{one.attempt} began on {one.machine} and again on {other.machine}")
            elif other.rank == one.rank and other.first < one.last:
                both = f"{one.attempt} on {one.machine} and {other.attempt} on {other.machine}"
                faults.append(f"{both} ran at once for {one.last - other.first:.1f} s")
    return faults
