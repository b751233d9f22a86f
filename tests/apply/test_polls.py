"""Polls of many hosts: a slow one delays no other, and hosts are polled rarely while nothing changes."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, cast

import pytest

from declarative.apply.backends import Backends
from declarative.apply.parallel import prompt_answers
from declarative.apply.ranks import OFTEN, SELDOM, PollRounds
from declarative.model.state import Address, Record, State
from declarative.model.status import RankState, RankStatus
from declarative.provider import TransientError, TransientKind
from tests.support.model import of_node, of_reservation

RUNNING = RankStatus(state=RankState.RUNNING)
DONE = RankStatus(state=RankState.SUCCEEDED, exit_code=0)


def test_the_others_answers_do_not_wait_for_a_slow_host():
    over = threading.Event()
    found = prompt_answers({"a": 0, "slow": 1, "b": 0}, lambda slow: slow and over.wait(60), patience=0.0)
    over.set()
    assert found == {"a": 0, "b": 0}


def test_as_long_as_most_have_not_answered_nobody_is_slow():
    over, late = threading.Event(), {"a", "b", "c"}

    def ask(name: str) -> str:
        if name in late:
            over.wait(60)
        else:
            threading.Timer(0.05, over.set).start()
        return name

    assert prompt_answers({name: name for name in "abcd"}, ask, patience=5.0).keys() == {*"abcd"}


def test_what_a_host_raises_is_raised():
    def ask(_: int) -> int:
        raise LookupError("x")

    with pytest.raises(LookupError):
        prompt_answers({"a": 1}, ask)


class Hosts:
    """A backend with two nodes, each with a rank of a task of its own, or of one gang."""

    def __init__(self, *, gang: bool = False) -> None:
        self.now = 0.0
        self.limits: dict[str, float | None] = {"f": None}
        self.asked = {"n0": 0, "n1": 0}
        self.says: dict[str, RankStatus] = {"n0": RUNNING, "n1": RUNNING}
        self.slow: dict[str, threading.Event] = {}
        self.away: set[str] = set()
        records: list[Record] = []
        for i in range(2):
            node, rank = Address("node", f"n{i}"), Address("rank", f"{'t' if gang else f't{i}'}-{i}")
            task = {"task": rank.name.rpartition("-")[0], "rank": i, "nodes": 2, "commands": []}
            records += [
                Record(address=node, backend="ssh", inputs=of_node("f"), outputs={}),
                Record(address=rank, backend="ssh", inputs=task, outputs={}),
                Record(
                    address=Address("reservation", rank.name),
                    backend=None,
                    inputs=of_reservation(rank.name, node.name, 0),
                    outputs={},
                ),
            ]
        self.ranks = [r.address.name for r in records if r.address.kind == "rank"]
        self.state = State(records={r.address: r for r in records}, ranks=dict.fromkeys(self.ranks, RUNNING))
        self.rounds = PollRounds(cast("Backends", self), clock=lambda: self.now)

    def get(self, _: str) -> Any:
        return self

    def poll(self, node: Record, attempts: list[str]) -> dict[str, RankStatus]:
        name = node.address.name
        self.asked[name] += 1
        if name in self.slow:
            self.slow[name].wait(60)
        if name in self.away:
            raise TransientError(TransientKind.NOT_SENT, "away", away=True, about=name)
        return dict.fromkeys(attempts, self.says[name])

    def minute(self) -> dict[str, int]:
        """So often each is asked in a minute."""
        before = dict(self.asked)
        for _ in range(120):
            self.now += 0.5
            self.rounds.poll(self.state)
        return {name: count - before[name] for name, count in self.asked.items()}


def test_nodes_are_asked_less_and_less_often():
    hosts = Hosts()
    assert max(hosts.minute().values()) <= 20
    assert hosts.minute() == {"n0": 60 / SELDOM, "n1": 60 / SELDOM}


def test_a_node_that_is_given_up_early_is_asked_more_often():
    hosts = Hosts()
    hosts.limits["f"] = 60.0
    hosts.minute()
    assert hosts.minute() == {"n0": 20, "n1": 20}


def test_where_something_changes_it_is_asked_often_again():
    """On that node, and on those of its task; the others keep their pace."""
    for gang in (False, True):
        hosts = Hosts(gang=gang)
        hosts.minute()
        hosts.says["n0"] = RankStatus(state=RankState.RUNNING, cause="new")
        while hosts.rounds.poll(hosts.state)[hosts.ranks[0]] == RUNNING:
            hosts.now += 0.5
        before = dict(hosts.asked)
        hosts.state = replace(hosts.state, ranks={**hosts.state.ranks, hosts.ranks[0]: hosts.says["n0"]})
        for _ in range(4):
            hosts.now += OFTEN
            hosts.rounds.poll(hosts.state)
        assert hosts.asked["n0"] - before["n0"] >= 2
        assert (hosts.asked["n1"] - before["n1"] >= 2) is gang


def test_a_slow_node_is_waited_for_alone():
    """It is not asked twice at once, and until it answers what is recorded holds."""
    hosts = Hosts()
    hosts.slow["n0"] = threading.Event()
    hosts.says["n1"] = DONE
    assert hosts.rounds.poll(hosts.state) == {hosts.ranks[0]: RUNNING, hosts.ranks[1]: DONE}
    for _ in range(3):
        hosts.now += SELDOM
        assert hosts.rounds.poll(hosts.state)[hosts.ranks[0]] == RUNNING
    assert hosts.asked["n0"] == 1
    hosts.says["n0"] = DONE
    hosts.slow.pop("n0").set()
    for _ in range(1000):
        hosts.now += SELDOM
        if hosts.rounds.poll(hosts.state)[hosts.ranks[0]] == DONE:
            return
    raise AssertionError("its answer did not come")


def test_ranks_of_a_node_that_cannot_be_asked_are_left_out(monkeypatch):
    monkeypatch.setattr("declarative.apply.ranks.call", lambda ask, **_: ask())
    hosts = Hosts()
    hosts.away.add("n0")
    assert hosts.rounds.poll(hosts.state) == {hosts.ranks[1]: RUNNING}
