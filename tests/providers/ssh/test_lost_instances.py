"""Lost machines of EC2: tasks go on elsewhere as `retry` says, and nothing that costs money is left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.ssh.transport import background
from tests.providers.ec2.proxy import Line
from tests.providers.ec2.run import REGION, SECRETS, provider
from tests.providers.ssh.test_instances import Account, Cloud, backend, project  # noqa: F401
from tests.support.cli import ended, fleet, release, task, until
from tests.support.rounds import Clock, Here

pytestmark = pytest.mark.slow
SPOT = {"backends": ["aws"], "placement": "cluster", "resources": {"cpu": 2}}
GO = Path("/tmp/go")  # of a machine


@pytest.fixture
def cloud(allowed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """EC2 with six machines."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "cloud"
    folder.mkdir()
    made = Cloud(folder, 6)
    with made:
        yield made
    assert not made.faults


def region(cloud: Cloud, tmp_path: Path):
    """What EC2 is asked by, past the tool."""
    return provider(cloud.port, tmp_path, "any")._account.region(REGION)


def instances(cloud: Cloud, tmp_path: Path) -> list[str]:
    """The ids of instances that live."""
    return sorted(i.id for i in region(cloud, tmp_path).instances({}) if not i.gone)


def go(cloud: Cloud, tmp_path: Path) -> None:
    """Let all ranks end that run now."""
    for made in instances(cloud, tmp_path):
        cloud.of[made].sh(f"touch {GO}")


def run(project: Account, name: str) -> bool:  # noqa: F811
    """Whether all ranks of a task run."""
    return {r["state"] for r in project.ranks(name).values()} == {"running"}


def test_two_nodes_lost_at_once(cloud: Cloud, project: Account, tmp_path: Path) -> None:  # noqa: F811
    """What EC2 itself says to have ended is no reason to stop: the gang runs on others, and is done."""
    job = task("pair", release(GO), nodes=2, retry=True)
    project.declare(backend(cloud.port), fleet("gpu", "0..2", **SPOT), job)
    watcher = project.start("apply", "--auto-approve", "--wait")
    until(lambda: len(instances(cloud, tmp_path)) == 2 and run(project, "pair"))
    first = instances(cloud, tmp_path)
    region(cloud, tmp_path).ask("TerminateInstances", InstanceId=first)
    until(lambda: len(instances(cloud, tmp_path)) == 2 and run(project, "pair"))
    go(cloud, tmp_path)
    done = ended(watcher, 0)
    assert "task/pair: succeeded" in done.out
    assert "rank/pair-0: lost: node/gpu-0 is gone: Client.UserInitiatedShutdown" in done.err
    assert len(instances(cloud, tmp_path)) == 2
    project.no_changes()


def test_the_machine_after_a_silent_one_is_asked_itself(
    cloud: Cloud,
    project: Account,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the same name, but a loop does not apply to it what it knows about the machine before."""
    quick = {"ssh_config": "/dev/null", "connect_timeout": 2}
    project.declare({"type": "project"}, backend(cloud.port, options=quick), fleet("gpu", 1, **SPOT))
    clock = Clock()
    monkeypatch.setattr("time.time", clock)
    here = Here(project.path, clock)

    def seen(seconds: float) -> str:
        cloud.machines.set_clock(clock.at + seconds)
        (node,) = here.seen(seconds).nodes
        return node.state

    def up() -> str:
        (made,) = instances(cloud, tmp_path)
        until(lambda: made in cloud.of and cloud.of[made].answers())
        assert seen(1) == "ready"
        return made

    try:
        here.step()
        first = up()
        cloud.of[first].off()
        background.close()
        assert [seen(60), seen(60)] == ["unreachable"] * 2
        here.step(600)
        until(lambda: here.rounds.outages.list()[0].until > clock.at)
        done = here.step(1)
        assert {result.id for result in done.results} == {"delete:node/gpu-0", "create:node/gpu-0"}
        assert up() != first
    finally:
        here.close()
        background.close()


def test_nodes_that_end_while_they_boot(cloud: Cloud, project: Account, tmp_path: Path) -> None:  # noqa: F811
    """A start that failed is tried again as `retry` says, on nodes that are made anew."""
    job = task("pair", "echo done", nodes=2, retry=True)
    project.declare(backend(cloud.port), fleet("gpu", "0..2", **SPOT), job)
    cloud.power.clear()
    watcher = project.start("apply", "--auto-approve", "--wait")
    until(lambda: project.run("state", "list", "node").out.split() == ["node/gpu-0", "node/gpu-1"])
    region(cloud, tmp_path).ask("TerminateInstances", InstanceId=instances(cloud, tmp_path))
    cloud.power.set()
    done = ended(watcher, 0)
    assert "task/pair is tried again in 15 s: it did not start" in done.err
    assert "task/pair: succeeded" in done.out
    assert len(instances(cloud, tmp_path)) == 2
    project.no_changes()


IMPATIENT = """
import declarative.model.status, providers.cloud.account
declarative.model.status.START_UP_LIMIT, providers.cloud.account.PATIENCE = 3.0, 1.0
"""
"""Seconds in place of minutes: of the start-up limit, and of one look at what starts."""


def impatient(folder: Path) -> dict[str, str]:
    """The environment of a command that waits for no node longer than that."""
    (folder / "sitecustomize.py").write_text(IMPATIENT)
    return {"PYTHONPATH": str(folder)}


class Stuck:
    """The first instances are `pending` for ever in EC2's answers, whatever their state."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.ids: list[str] = []

    def edit(self, asked: dict[str, str], data: bytes) -> bytes:
        """An answer, with what is stuck."""
        text = data.decode()
        if asked.get("Action") == "RunInstances":
            made = re.findall("<instanceId>(i-[0-9a-f]+)", text)
            self.ids += [i for i in made if i not in self.ids and len(self.ids) < self.count]
        if asked.get("Action") != "DescribeInstances":
            return data
        first, *items = text.split("<instanceId>")
        for i, item in enumerate(items):
            if item.partition("<")[0] in self.ids:
                items[i] = re.sub(r"<code>16</code>\s*<name>running", "<code>0</code><name>pending", item)
        return "<instanceId>".join([first, *items]).encode()


def test_nodes_that_are_pending_for_ever(cloud: Cloud, project: Account, tmp_path: Path) -> None:  # noqa: F811
    """They are deleted, and the gang runs on others, wherever these are to be had."""
    stuck = Stuck(2)
    with Line(cloud.port) as line:
        line.edit = stuck.edit
        job = task("pair", "echo done", nodes=2, retry=True)
        project.declare(backend(line.port), fleet("gpu", "0..2", **SPOT), job)
        done = project.apply("--wait", env=impatient(tmp_path))
        have = instances(cloud, tmp_path)
        assert (len(stuck.ids), len(have), {*have} & {*stuck.ids}) == (2, 2, set())
        assert "not up within 0 minutes, and deleted" in done.err
        assert "task/pair: succeeded" in done.out
        project.no_changes()
        project.run("destroy", "--auto-approve")
        assert instances(cloud, tmp_path) == []


def test_nodes_that_nobody_ever_reaches(cloud: Cloud, project: Account, tmp_path: Path) -> None:  # noqa: F811
    """EC2 says that they run, and no SSH answers: they are deleted, and others are made by `retry`."""
    cloud.power.clear()
    job = task("pair", "echo done", nodes=2, retry=True)
    project.declare(backend(cloud.port), fleet("gpu", "0..2", **SPOT), job)
    watcher = project.start("apply", "--auto-approve", "--wait", env=impatient(tmp_path))
    until(lambda: len(instances(cloud, tmp_path)) == 2)
    first = {*instances(cloud, tmp_path)}
    until(lambda: not {*instances(cloud, tmp_path)} & first)
    cloud.power.set()
    done = ended(watcher, 0)
    assert "was not ready within" in done.err
    assert "task/pair is tried again in 15 s: it did not start" in done.err
    assert "task/pair: succeeded" in done.out
    project.no_changes()
    project.run("destroy", "--auto-approve")
    assert instances(cloud, tmp_path) == []
