"""Nodes that do not answer: since when, which are given up (`plan.silence`), and the effect on ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from declarative.apply.backend_look import BackendFindings, _go_by_the_record
from declarative.apply.unreachable import note_silences
from declarative.cli.run_output import LoopOutput
from declarative.model.diagnostic import Severity
from declarative.model.state import SILENT, SILENT_LIMIT, Address, Record, State
from declarative.model.status import BOOTING, NodeState, RankState, RankStatus, Readiness, Silence
from declarative.planner.inventory import Inventory, lost_with, observed_state, silence_text, silences
from declarative.store import open_store

NOW = 10_000.0
READY = Readiness(state=NodeState.READY, observed_at=NOW)
SILENCE = Readiness(state=NodeState.UNREACHABLE, reason="timed out", observed_at=NOW)
LIMITS = {"gpu": 600.0}


NODE: Any = {
    "fleet": "gpu",
    "backend": "aws",
    "region": "r",
    "instance_type": "t",
    "blocks": 1,
    "resources": {"cpu": 1, "memory_mib": 1},
}


def node(index: int, since: float | None = None, **inputs: Any) -> Record:
    name, known = f"gpu-{index}", {SILENT: since}
    about = {**NODE, **inputs}
    return Record(address=Address("node", name), backend="aws", inputs=about, outputs=known)


def state(*nodes: Record) -> State:
    return State(records={n.address: n for n in nodes})


def found(nodes, seen, limits=None):
    names = {n.address.name: s for n, s in zip(nodes, seen, strict=True)}
    return silences(state(*nodes), names, LIMITS if limits is None else limits, NOW)


HOST: Any = {"host": {"hostname": "h"}}


def test_it_begins_when_it_is_noticed_and_lasts_from_one_command_to_the_next():
    new, known = found([node(0), node(1, NOW - 60)], [SILENCE, SILENCE]).values()
    assert (new.since, new.until) == (NOW, NOW + 600)
    assert (known.since, known.until) == (NOW - 60, NOW + 540)
    assert not new.given_up
    assert not known.given_up
    assert silence_text(known, NOW) == "has not answered for 1 min (timed out): it is given up in 9 min"


def test_silence_begins_when_it_was_observed():
    """And not when the plan is made; where nobody wrote down when that was, it begins now."""
    observed = [replace(SILENCE, observed_at=at) for at in (NOW - 30, NOW + 5, None)]
    assert [s.since for s in found([node(0), node(1), node(2)], observed).values()] == [NOW - 30, NOW, NOW]


def counted(limit, seconds, since):
    """The silence of an hour, on whose limit another one was recorded."""
    record = node(0, NOW - 3600)
    outputs = {**record.outputs, SILENT_LIMIT: {"seconds": seconds, "since": since}}
    (silence,) = found([replace(record, outputs=outputs), node(1)], [SILENCE, READY], {"gpu": limit}).values()
    return silence


@pytest.mark.parametrize("before", [7200.0, None])
def test_a_shorter_limit_counts_from_its_apply(before):
    """A node that is silent for longer is not given up at once."""
    silence = counted(600.0, before, NOW - 3600)
    assert (silence.until, silence.given_up) == (before and NOW + 3600, False)
    assert (silence.limit, silence.counts_from) == (600.0, NOW), "what the apply records"
    silence = counted(600.0, 600.0, NOW - 599)
    assert (silence.until, silence.counts_from) == (NOW + 1, NOW - 599), "no later apply begins it anew"
    assert counted(600.0, 600.0, NOW - 600).given_up


def test_a_longer_limit_holds_at_once():
    silence = counted(7200.0, 600.0, NOW - 3600)
    assert (silence.until, silence.given_up) == (NOW + 3600, False)
    assert (silence.limit, silence.counts_from) == (7200.0, NOW - 3600)
    assert counted(None, 600.0, NOW - 3600).until is None


def test_the_limit_is_recorded_with_the_silence(tmp_path):
    """And forgotten with it."""
    with open_store(f"sqlite:///{tmp_path}/state.db") as store, store.lock("apply") as writer:
        writer.adopt(node(0))
        for limit, at in ((7200.0, NOW), (600.0, NOW + 60)):
            silent = {"gpu-0": Silence(since=NOW, until=None, limit=limit, counts_from=at)}
            note_silences(writer, {"gpu-0": SILENCE}, silent)
            outputs = writer.state().records[Address("node", "gpu-0")].outputs
            assert outputs[SILENT_LIMIT] == {"seconds": limit, "since": at}
        note_silences(writer, {"gpu-0": READY}, {})
        assert writer.state().records[Address("node", "gpu-0")].outputs[SILENT_LIMIT] is None


def test_a_loop_says_it_once_when_it_begins_is_given_up_and_ends(capsys):
    """However many rounds there are meanwhile, and however little is known in some of them."""
    output = LoopOutput(session=None, as_json=False)  # type: ignore[arg-type]
    said = []
    for now in (NOW, NOW + 60, NOW + 300, NOW + 600, NOW + 660):
        (silent,) = silences(state(node(0, NOW)), {"gpu-0": SILENCE}, LIMITS, now).values()
        silent = replace(silent, kept=None, given_up=now >= NOW + 600)
        output.silences(Inventory(readiness={"gpu-0": SILENCE}, silent={"gpu-0": silent}), now)
        said.append(capsys.readouterr().err)
    for seen in (replace(SILENCE, state=NodeState.UNKNOWN), READY, READY):
        output.silences(Inventory(readiness={"gpu-0": seen}), NOW + 700)
        said.append(capsys.readouterr().err)
    assert said == [
        "node/gpu-0 does not answer (timed out): it is given up in 10 min\n",
        "",
        "",
        "node/gpu-0 has not answered for 10 min (timed out): it is given up\n",
        "",
        "",
        "node/gpu-0 answers again\n",
        "",
    ]


@pytest.mark.parametrize("other", [NodeState.UNKNOWN, NodeState.READY, NodeState.PROVISIONING])
def test_what_is_not_known_is_no_silence(other):
    assert found([node(0, NOW - 999)], [replace(SILENCE, state=other)]) == {}


def test_off_gives_none_up():
    (silence,) = found([node(0, NOW - 9e6)], [SILENCE], {"gpu": None}).values()
    assert (silence.until, silence.given_up) == (None, False)


@pytest.mark.parametrize("inputs", [{}, HOST])
def test_half_of_the_nodes_are_given_up_at_once(inputs):
    nodes = [node(i, NOW - 600 if i < 2 else None, **inputs) for i in range(4)]
    assert [s.given_up for s in found(nodes, [SILENCE, SILENCE, READY, READY]).values()] == [True, True]


LINE = "all nodes of backend aws fell silent at once, so that it may be the line from here"


def kept(nodes) -> list[str | None]:
    return [s.kept for s in found(nodes, [SILENCE] * len(nodes)).values()]


def test_our_own_line_gives_none_up():
    assert kept([node(0, NOW - 600), node(1, NOW - 650)]) == [LINE, LINE]
    assert kept([node(0, NOW - 600), node(1, NOW - 700)]) == [None, None], "one after the other"
    assert kept([node(0, NOW - 600)]) == [None], "its cloud has answered"


def test_all_that_are_silent_at_once_are_given_up_in_the_end_if_their_cloud_answers():
    """They are dead behind its "running", or the line to them alone is down: it is paid for them."""
    early, late = found([node(0, NOW - 1790), node(1, NOW - 1799)], [SILENCE] * 2).values()
    assert (early.kept, late.kept) == (LINE, LINE)
    assert (early.until, early.given_up) == (NOW + 10, False)
    assert silence_text(early, NOW) == (
        f"has not answered for 29 min (timed out): it is not given up: {LINE}; if none answers, it is given "
        "up in 10 s"
    )
    early, late = found([node(0, NOW - 1800), node(1, NOW - 1795)], [SILENCE] * 2).values()
    assert (early.given_up, late.given_up) == (True, False)
    assert "it has not answered for 30 min (`unreachable_duration`)" in lost_with("gpu-0", early)
    unread = replace(SILENCE, state=NodeState.UNKNOWN)
    assert found([node(0, NOW - 9000), node(1, NOW - 9000)], [unread] * 2) == {}, "its API does not answer"
    hosts = [node(i, NOW - 9000, **HOST) for i in range(2)]
    assert [(s.until, s.given_up) for s in found(hosts, [SILENCE] * 2).values()] == [(None, False)] * 2


def test_what_the_cloud_itself_says_is_no_fault_of_our_line():
    nodes = [node(i, NOW - 600) for i in range(2)]
    down = replace(SILENCE, down=True)
    assert [s.given_up for s in found(nodes, [down, down]).values()] == [True, True]


def test_a_host_is_given_up_only_where_another_one_of_its_fleet_answers():
    alone = "no other host of fleet/gpu answers, so that it may be the line from here"
    assert kept([node(0, NOW - 600, **HOST)]) == [alone]
    assert kept([node(0, NOW - 600, **HOST), node(1, NOW - 900, **HOST)]) == [alone, alone]
    others = [node(0, NOW - 600, **HOST), replace(node(1, **HOST), inputs={**NODE, **HOST, "fleet": "other"})]
    assert [s.kept for s in found(others, [SILENCE, READY]).values()] == [alone]


def test_a_protected_machine_is_not_ended():
    nodes = [node(0, NOW - 600, prevent_destroy=True), node(1)]
    (silence,) = found(nodes, [SILENCE, READY]).values()
    assert (silence.given_up, silence.kept) == (False, "its fleet's `prevent_destroy` is true")
    nodes = [node(0, NOW - 600, protected=True), node(1)]
    (silence,) = found(nodes, [SILENCE, READY]).values()
    assert (silence.given_up, silence.kept) == (False, "the project's `limits.protected` names it")


def test_its_ranks_are_lost_and_what_they_held_is_free():
    nodes = [node(0, NOW - 600.3), node(1)]
    rank = Record(
        address=Address("rank", "job-0"), backend="aws", inputs={"task": "job", "rank": 0, "commands": []}
    )
    place = Record(
        address=Address("reservation", "job-0"),
        backend=None,
        inputs={"task": "job", "rank": 0, "node": "gpu-0", "blocks": [0], "total_blocks": 1},
        needs=frozenset({Address("node", "gpu-0")}),
    )
    before = replace(
        state(*nodes, rank, place), ranks={"job-0": RankStatus(state=RankState.RUNNING, started_at=1.0)}
    )
    silent = found(nodes, [SILENCE, READY])
    after = observed_state(before, Inventory(silent=silent))
    assert after.ranks["job-0"].state is RankState.LOST
    assert after.ranks["job-0"].cause == lost_with("gpu-0", silent["gpu-0"])
    assert "it has not answered for 10 min (`unreachable_duration`)" in lost_with("gpu-0", silent["gpu-0"])
    assert after.get("reservation", "job-0") is None


# ----------------------------------------------------------------------------- without the nodes' key


@pytest.mark.parametrize("recorded", [*NodeState, None])
def test_without_the_key_a_plan_takes_a_node_for_what_is_recorded(recorded):
    """A node that was silent then is no place for work now. One that was starting runs, as its cloud says."""
    seen = None if recorded is None else Readiness(state=recorded, reason="so it was", observed_at=NOW)
    nodes = State(
        records={n.address: n for n in (node(0), node(1))}, readiness={"gpu-0": seen} if seen else {}
    )
    unseen = Readiness(state=NodeState.UNREACHABLE, reason="no key", no_key=True)
    looked = BackendFindings(readiness={"gpu-0": unseen, "gpu-1": READY})
    _go_by_the_record(nodes, "aws", looked)
    known = recorded not in (None, NodeState.UNKNOWN, *BOOTING)
    counts = (recorded, "so it was") if known else (NodeState.READY, None)
    assert counts == (looked.readiness["gpu-0"].state, looked.readiness["gpu-0"].reason)
    assert looked.readiness["gpu-1"] == READY
    sick = Readiness(state=NodeState.NOT_READY, reason="sick")
    seen_all = BackendFindings(readiness={"gpu-0": sick, "gpu-1": sick})
    _go_by_the_record(nodes, "aws", seen_all)
    assert seen_all.readiness == {"gpu-0": sick, "gpu-1": sick}
    assert seen_all.diagnostics == []
    asked = seen_all.answering([node(0), node(1), node(2)], (NodeState.NOT_READY,))
    assert [n.address.name for n in asked] == ["gpu-2"]  # of which nothing was seen
    assert len(seen_all.answering([node(0)], (NodeState.READY,))) == 1
    assert [(d.code, d.severity) for d in looked.diagnostics] == [("no-node-key", Severity.WARNING)]
