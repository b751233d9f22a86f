"""The loop's rounds in this process, by a clock that the test sets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from declarative.cli.run_output import LoopOutput
from declarative.converge.project import CallerPermissions, ProjectSession
from declarative.model.resource import Desired
from declarative.planner.inventory import observed_state
from declarative.planner.limits import with_limit_errors
from declarative.reconcile.loop import Round, Stop
from declarative.reconcile.permission import AllowedPart, Backoff, choose
from declarative.reconcile.rounds import Rounds
from declarative.render.status_view import StatusView
from declarative.store.journal import Permit
from declarative.store.loop_state import Approval
from tests.support.model import World


def chosen(
    world: World,
    desired: Desired,
    approved: Iterable[str] = (),
    *,
    before: Iterable[Permit] = (),
    backoff: Backoff | None = None,
    lacking: Mapping[str, str] | None = None,
) -> AllowedPart:
    """What a round does in a world in memory, once these digests are `approved`."""
    return choose(
        with_limit_errors(world.plan(desired), desired),
        observed_state(world.state(), world.inventory(desired)),
        desired,
        now=world.now,
        approvals=[Approval(digest=d, steps=(), since=0.0, approved_at=0.0) for d in approved],
        before=before,
        backoff=backoff or Backoff(),
        lacking=lacking or {},
    )


class Clock:
    """Seconds since the epoch, as the test says."""

    def __init__(self, at: float | None = None) -> None:
        self.at = time.time() if at is None else at

    def __call__(self) -> float:
        return self.at


class Here:
    """One loop."""

    def __init__(self, directory: Path, clock: Clock, state: str | None = None) -> None:
        self.clock = clock
        allowed = CallerPermissions(paths=("/",), variables=("FLEETFORM_TEST_*",))
        self.session = ProjectSession(directory, state, (), (), allowed=allowed)
        self.session.clock = self.session.state.clock = clock
        self.rounds = Rounds(
            self.session,
            LoopOutput(self.session, as_json=True),
            Stop(),
            accept_vanished=False,
            parallelism=8,
        )

    def step(self, after: float = 0.0) -> Round:
        """A round so many seconds later."""
        self.clock.at += after
        return self.rounds.step()

    def seen(self, after: float = 0.0) -> StatusView:
        """The status after such a round."""
        found = self.step(after).status
        assert found is not None
        return found

    def close(self) -> None:
        """End it."""
        self.rounds.close()
        self.session.close()
