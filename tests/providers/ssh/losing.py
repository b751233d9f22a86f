"""Schedules of machines that die while gangs run: what is lost, when, how, and whether it comes back.

A schedule follows from a seed. `grounds` has the machines, `played` plays a schedule there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

PHASES = ("booting", "probing", "mounting", "starting", "running", "stopping")
CLOUD = ("terminate", "spot", "off", "cut", "reboot", "cut-back", "listing")
HOSTS = ("off", "cut", "reboot", "off-back", "cut-back")
AWAY = frozenset({"off", "cut"})
"""Hosts that are lost so are not there again; clouds make others."""
BACK = (2.0, 6.0, 14.0)
"""Seconds until a cable is in again, or power is there: before and after a node is given up."""
SPARES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Machines that are lost at once."""

    phase: str
    how: str
    share: str
    """`one`, `two` or `half` of those in use."""
    back: float

    def count(self, ranks: int) -> int:
        """How many that are."""
        return {"one": 1, "two": min(2, ranks), "half": max(1, ranks // 2)}[self.share]

    def __str__(self) -> str:
        back = f" for {self.back:g} s" if self.how.endswith("-back") else ""
        return f"{self.share} {self.how}{back} while {self.phase}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One project, and what befalls it."""

    seed: int
    where: str
    """`ec2` or `hosts`."""
    gangs: tuple[int, ...]
    """How many ranks each has."""
    volumes: bool
    """Each rank has one."""
    master: bool
    """A gang has ended with its rank 0; the others are stopped then."""
    losses: tuple[Loss, ...]

    def __str__(self) -> str:
        gangs = "+".join(map(str, self.gangs))
        more = ("volumes " if self.volumes else "") + ("master-done " if self.master else "")
        return f"{self.where} {gangs} ranks {more}| " + ", then ".join(map(str, self.losses))

    @property
    def listing(self) -> bool:
        """Whether a listing is empty meanwhile: a run has to stop then, and make nothing anew."""
        return any(loss.how == "listing" for loss in self.losses)


def draw(
    seed: int, where: str | None = None, hows: Sequence[str] = (), phases: Sequence[str] = ()
) -> Schedule:
    """The schedule of a seed; of `where`, `hows` and `phases` alone, if they are given."""
    chance = random.Random(f"machines {seed}")
    place = chance.choices(("ec2", "hosts"), (3, 2))[0]
    place = where or place
    gangs = chance.choice(((2,), (3,), (4,), (2, 2), (3, 2), (3, 3)))
    volumes = place == "ec2" and chance.random() < 0.4
    master = chance.random() < 0.35
    every = [p for p in PHASES if _may_be(p, place, volumes=volumes, master=master)]
    losses: list[Loss] = []
    for number in range(chance.choice((1, 1, 2))):
        known = [h for h in (CLOUD if place == "ec2" else HOSTS) if not hows or h in hows]
        if number:  # hosts run out, and a listing stops the run
            known = [h for h in known if h != "listing" and not (place == "hosts" and h in AWAY)]
        how = chance.choice(known or ["reboot"])
        phase = chance.choice([p for p in every if not phases or p in phases] or ["running"])
        share = chance.choice(("one", "two", "half"))
        losses.append(Loss(phase=phase, how=how, share=share, back=chance.choice(BACK)))
        if how == "listing":
            losses = [Loss(phase="running", how=how, share=share, back=0.0)]
            break
    return Schedule(seed=seed, where=place, gangs=gangs, volumes=volumes, master=master, losses=tuple(losses))


def _may_be(phase: str, place: str, *, volumes: bool, master: bool) -> bool:
    if phase == "booting":
        return place == "ec2"
    return {"mounting": volumes, "stopping": master}.get(phase, True)
