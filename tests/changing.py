"""Changes of a running task whose effect shows at its rank: the same on every backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli import Project, hold, task, until

STUBBORN = "trap '' TERM"


def times_at_work(project: Project, declare: Callable[..., object], up: Path) -> None:
    """A rank gets a new `stop_duration`, then a `max_duration` that is over: it is killed after the new time,
    by its host, while no command runs.
    """
    declare(task("job", STUBBORN, hold(up), stop_duration="10m"))
    project.apply()
    until(lambda: project.ranks("job")[0]["state"] == "running")
    declare(task("job", STUBBORN, hold(up), stop_duration="1s"))
    assert project.ids() == ["update:rank/job-0"]
    project.apply()
    declare(task("job", STUBBORN, hold(up), stop_duration="1s", max_duration="1s"))
    assert project.ids() == ["update:rank/job-0"]
    project.apply()
    until(lambda: project.ranks("job")[0]["state"] == "failed")
    assert [project.ranks("job")[0][k] for k in ("attempt", "exit_code")] == [1, 137]
    assert "max_duration reached" in project.run("status").out
