"""`env` of a host: what its ranks get, and what a change of it does not touch."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from declarative.apply.launch import launch_of, missing_env
from declarative.language.loader import load
from declarative.model.diagnostic import InvalidError, Severity
from declarative.model.state import Address, State
from declarative.planner.inventory import Inventory
from declarative.planner.limits import planned_work
from declarative.planner.unattended import causes_of
from declarative.render.html import plan_html
from declarative.render.markdown import plan_markdown
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from tests.planner.test_host_fleets import plan as planned
from tests.support.model import World, project

CARD = "NCCL_SOCKET_IFNAME"
PAIR = {"name": "pair", "nodes": 2, "resources": {"cpu": 4}}


def desired(*envs: Any, task: dict[str, Any] | None = None, **fleet: Any) -> Any:
    hosts = [{"hostname": f"h{i}", "env": env} for i, env in enumerate(envs)]
    rack = {"name": "rack", "placement": "cluster", "ssh_config": {"user": "me", "hosts": hosts}, **fleet}
    return project(fleets=[rack], tasks=[task or PAIR])


def made(wanted: Any) -> World:
    world = World()
    world.apply(planned(world, wanted), random.Random(1))
    return world


def env(world: World, rank: int, environ: dict[str, str] | None = None) -> dict[str, str]:
    state = world.state()
    found = launch_of(state, state.records[Address("rank", f"pair-{rank}")], environ or {}).env
    return dict(found)


def test_each_rank_gets_the_variables_of_its_host():
    world = made(desired({CARD: "eth0"}, {CARD: "ib0"}))
    assert [env(world, rank)[CARD] for rank in (0, 1)] == ["eth0", "ib0"]


@pytest.mark.parametrize(
    ("fleet", "host", "task", "wins"),
    [
        ("fleet", None, None, "fleet"),
        ("fleet", "host", None, "host"),
        ("fleet", "host", "task", "task"),
        (None, "host", "task", "task"),
    ],
)
def test_a_task_wins_over_a_host_and_a_host_over_its_fleet(fleet, host, task, wins):
    given = [{"A": value} if value else {} for value in (fleet, host, task)]
    world = made(desired(given[1], given[1], task={**PAIR, "env": given[2]}, env=given[0]))
    assert {env(world, rank)["A"] for rank in (0, 1)} == {wins}


def test_no_variable_of_a_host_replaces_one_of_fleetform():
    world = made(desired({"FLEETFORM_NODE_RANK": "7"}, {}))
    assert env(world, 0)["FLEETFORM_NODE_RANK"] == "0"


def test_a_change_ends_no_work_and_the_plan_says_so_in_all_formats():
    """What runs keeps what it was started with. The loop does it as any change in place."""
    world = made(desired({CARD: "eth0", "B": "1"}, {CARD: "eth0"}))
    then = desired({CARD: "eth1", "B": "1"}, {CARD: "eth0"})
    plan = planned(world, then)
    assert [(a.id, a.because, a.ends) for a in plan.actions] == [("update:node/rack-0", ("host",), False)]
    assert {cause.value for cause in causes_of(plan, world.state()).values()} == {"update"}
    line = f'host.env.{CARD}: "eth0" → "eth1"'
    keeps = "running ranks keep the old `env`, ranks that start from now on get the new one"
    text = plan_text(plan, color=False, width=None)
    assert f"~ node/rack-0  # `host` changed; {keeps}\n      {line}\n" in text
    assert "host.env.B" not in text
    assert line in plan_markdown(plan, 60_000)
    assert keeps in plan_markdown(plan, 60_000)
    assert line.replace('"', "&#34;") in plan_html(plan)
    [action] = json.loads(json.dumps(plan_json(plan)))["actions"]
    assert action["after"]["host"]["env"] == {CARD: "eth1", "B": "1"}
    world.apply(plan, random.Random(1))
    assert planned(world, then).actions == ()


@pytest.mark.parametrize(("before", "after"), [({}, {"A": "1"}), ({"A": "1"}, {})])
def test_the_first_and_the_last_variable_of_a_host_are_changes_too(before, after):
    plan = planned(made(desired(before, {})), desired(after, {}))
    was, now = (json.dumps(env["A"]) if env else "(none)" for env in (before, after))
    assert f"host.env.A: {was} → {now}" in plan_text(plan, color=False, width=None)


def test_another_change_of_a_host_says_nothing_of_env():
    rack = {"user": "you", "hosts": [{"hostname": "h0", "env": {"A": "1"}}, {"hostname": "h1"}]}
    plan = planned(made(desired({"A": "1"}, {})), desired({}, {}, ssh_config=rack))
    assert "keep the old" not in plan_text(plan, color=False, width=None)


SECRET = """\
type: fleet
name: rack
ssh_config:
  user: me
  hosts:
    - {hostname: h0, env: [TOKEN]}
    - {hostname: h1, env: {TOKEN: "${{ env.OTHER }}"}}
---
type: task
name: pair
nodes: 2
placement: any
commands: [run]
"""


def test_a_secret_of_a_host_stands_nowhere_but_in_the_launch(tmp_path):
    """It is named before anything starts, if it is not set."""
    (tmp_path / "a.yaml").write_text(SECRET)
    wanted = load(tmp_path).desired
    world = World()
    plan = planned(world, wanted)
    assert missing_env(plan, State(), {}) == {"OTHER": ["pair"], "TOKEN": ["pair"]}
    environ = {"TOKEN": "hunter2", "OTHER": "hunter3"}
    assert missing_env(plan, State(), environ) == {}
    world.apply(plan, random.Random(1))
    assert [env(world, rank, environ)["TOKEN"] for rank in (0, 1)] == ["hunter2", "hunter3"]
    text = plan_text(plan, color=False, width=None)
    assert "(from $OTHER)" in text
    assert "hunter" not in text + json.dumps(plan_json(plan)) + repr(world.records)


def checked(tmp_path, line: str) -> list[tuple[str, int, int, Severity]]:
    """The findings about a host with this `env`."""
    (tmp_path / "a.yaml").write_text(
        "type: fleet\nname: rack\nssh_config:\n  user: me\n  hosts:\n    - h0\n"
        f"    - hostname: h1\n      {line}\n"
    )
    try:
        found = load(tmp_path).diagnostics
    except InvalidError as error:
        found = error.diagnostics
    return [(d.code, d.span.line, d.span.column, d.severity) for d in found if d.span]


@pytest.mark.parametrize(
    ("line", "code", "column", "severity"),
    [
        ("env: {A B: 1}", "bad-env", 13, Severity.ERROR),
        ("env: [A=1, A=2]", "duplicate-key", 18, Severity.ERROR),
        ("env: {A: [1]}", "wrong-type", 16, Severity.ERROR),
        ("env: eth0", "wrong-type", 12, Severity.ERROR),
        ("env: {A: 1, CUDA_VISIBLE_DEVICES: 1}", "replaced-variable", 19, Severity.WARNING),
        ("env: [A=1, FLEETFORM_NODE_RANK=1]", "replaced-variable", 18, Severity.WARNING),
        ("envs: {A: 1}", "unknown-field", 7, Severity.ERROR),
    ],
)
def test_a_bad_variable_of_a_host_is_reported_as_a_task_s(tmp_path, line, code, column, severity):
    assert checked(tmp_path, line) == [(code, 8, column, severity)]


def test_a_volume_s_variable_that_hosts_set_is_not_unset(tmp_path):
    (tmp_path / "a.yaml").write_text(
        SECRET.replace("TOKEN", "FLEETFORM_VOLUME_X").replace("[run]", "[ls $FLEETFORM_VOLUME_X]")
    )
    assert [d.code for d in load(tmp_path).diagnostics] == []


def test_what_hosts_are_told_counts_as_work_of_a_plan():
    def units(*envs):
        return planned_work(desired(*envs), State(), Inventory())["fleet/rack"]

    assert units({f"A{i}": "x" * 1000 for i in range(100)}, {}) > units({}, {}) + 10
