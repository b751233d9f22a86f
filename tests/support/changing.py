"""Changes of a running task whose effect shows at its rank: the same on every backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.cli import Project, hold, task, until

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


def resized_at_work(project: Project, declare: Callable[..., object]) -> None:
    """A task whose ranks do not know each other gets more of them, and fewer: those that stay run on."""
    say = 'echo "rank $FLEETFORM_NODE_RANK of $FLEETFORM_NODES_NUM"'

    def bring(nodes: int) -> dict[int, tuple[object, object]]:
        """Rank → its attempt and since when it runs, once all run."""
        declare(task("job", say, "while :; do sleep 0.1; done", nodes=nodes, placement="any"))
        project.apply()
        until(lambda: [r["state"] for r in project.ranks("job").values()] == ["running"] * nodes)
        project.no_changes()
        return {n: (r["attempt"], r["started_at"]) for n, r in project.ranks("job").items()}

    two = bring(2)
    three = bring(3)
    assert {n: three[n] for n in two} == two
    until(lambda: "rank 2 of 3" in project.logs("job", "--rank", "2"))
    assert "rank 0 of 2" in project.logs("job", "--rank", "0")
    one = bring(1)
    assert one == {0: two[0]}
    assert bring(2)[0] == two[0]
