"""The suite that every provider has to pass, for third parties as for our own. Needs pytest.

Subclass it in a test file, and say how your provider is made:

    import pytest

    pytest.register_assert_rewrite("providers.testing")  # before the import: tells what was compared

    from providers.testing import Conformance

    class TestMine(Conformance):
        def make(self, folder, lineage):
            return Mine(Config(backend="mine", project_dir=folder, lineage=lineage))

`make` is called often, and each provider that it gives stands for one more process of the same project:
what one of them makes, all the others of that lineage have to find. What is not offered is switched off by
`volumes` and `ranks`. Every test works under a lineage of its own, and takes away what it made.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from declarative.provider import Launch, PermanentError, Provider, ProviderError, TransientError, token
from declarative.state import Address, NodeState, RankState, RankStatus, Record

T = TypeVar("T")

NODE: Mapping[str, Any] = {
    "fleet": "gpu",
    "region": "local",
    "instance_type": "local",
    "resources": {"cpu": 2, "memory_mib": 512, "gpus": 0},
    "blocks": 2,
    "placement": "any",
}
VOLUME: Mapping[str, Any] = {"region": "local", "size": "1GB", "prevent_destroy": True}


def until(look: Callable[[], T], seconds: float) -> T:
    """What `look` gives once that is true; the time only ends a test that has failed."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "what the test waits for did not come"
        time.sleep(0.02)
    return found


class Place:
    """One lineage at the provider under test: makes things as the tool does, and takes them away again."""

    def __init__(self, suite: Conformance, folder: Path) -> None:
        self.suite = suite
        self.folder = folder
        self.lineage = str(uuid.uuid4())
        self.made: list[Record] = []
        self.started: list[tuple[Record, str]] = []

    @property
    def provider(self) -> Provider:
        """A new one each time: nothing may depend on what a process remembers."""
        return self.suite.make(self.folder, self.lineage)

    def token(self, record: Record) -> str:
        """The token of the create that made it."""
        return token(self.lineage, record.address, record.generation, record.inputs.get("zone"))

    def wanted(self, kind: str, name: str, inputs: Mapping[str, Any], generation: int = 1) -> Record:
        """What is to be made; it will be taken away at the end, even if its making fails."""
        record = Record(
            address=Address(kind, name), backend=self.suite.backend, inputs=inputs, generation=generation
        )
        self.made.append(record)
        return record

    def create(self, record: Record, *needs: Record) -> Record:
        """Make it, and record what came of it."""
        known = {need.address: need for need in needs}
        outputs = self.provider.create(record.address, self.token(record), record.inputs, known)
        return replace(record, outputs=outputs)

    def node(self, name: str = "gpu-0") -> Record:
        """A node that is ready."""
        record = self.create(self.wanted("node", name, self.suite.node_inputs))
        until(lambda: self.state(record) is NodeState.READY, self.suite.ready_seconds)
        return record

    def volume(self, name: str = "data-0") -> Record:
        """A volume."""
        return self.create(self.wanted("volume", name, self.suite.volume_inputs))

    def attachment(self, rank: str, volume: Record, node: Record) -> Record:
        """An attachment that is yet to be made."""
        inputs = {
            "task": rank.rpartition("-")[0],
            "rank": rank,
            "node": node.address.name,
            "volume": volume.address.name,
            "path": "/data",
        }
        return self.wanted("attachment", f"{rank}.{volume.address.name}", inputs)

    def attach(self, rank: str, volume: Record, node: Record) -> Record:
        """A volume on a node, for a rank."""
        return self.create(self.attachment(rank, volume, node), volume, node)

    def state(self, node: Record) -> NodeState:
        """The node's state by its readiness."""
        return self.provider.readiness([node])[node.address.name].state

    def start(self, node: Record, attempt: str, *commands: str, **options: Any) -> RankStatus:
        """Start commands on a node; `options` are fields of `Launch`."""
        self.started.append((node, attempt))
        return self.provider.start(node, launch(attempt, *commands, **options))

    def poll(self, node: Record, attempt: str) -> RankStatus | None:
        """How one attempt is doing."""
        return self.provider.poll(node, [attempt])[attempt]

    def ended(self, node: Record, attempt: str) -> RankStatus:
        """How one attempt ended."""

        def look() -> RankStatus | None:
            status = self.poll(node, attempt)
            return status if status and status.state.ended else None

        return until(look, self.suite.rank_seconds) or RankStatus(state=RankState.PENDING)

    def log(self, node: Record, attempt: str) -> str:
        """All that an attempt has written."""
        return self.provider.read_log(node, attempt, 0).decode()

    def logged(self, node: Record, attempt: str, text: str) -> None:
        """Wait for a text in the log."""
        until(lambda: text in self.log(node, attempt), self.suite.rank_seconds)

    def clear(self) -> None:
        """End and delete everything, in the order of a `destroy`."""
        for node, attempt in self.started:
            with suppress(ProviderError):
                self.provider.stop(node, attempt, 0)
        order = ("attachment", "node", "volume")
        for record in sorted(self.made, key=lambda r: order.index(r.address.kind)):
            with suppress(ProviderError):
                self.provider.delete(record)


def launch(attempt: str, *commands: str, **options: Any) -> Launch:
    """An attempt without anything special."""
    plain: dict[str, Any] = {
        "env": {},
        "cpus": (0,),
        "gpus": (),
        "working_dir": None,
        "volumes": {},
        "max_seconds": None,
        "stop_seconds": 5,
    }
    return Launch(attempt=attempt, commands=commands, **{**plain, **options})


class Conformance:
    """What holds for every provider. See the module's docstring for how to use it."""

    backend = "under-test"
    """The name that `make` configures."""
    node_inputs: Mapping[str, Any] = NODE
    volume_inputs: Mapping[str, Any] = VOLUME
    larger: Mapping[str, Any] = {**VOLUME, "size": "2GB", "tags": {"team": "a"}}
    """What a volume may become in place."""
    volumes = True
    ranks = True
    many = 12
    """How many things a listing has to be complete for: more than a page holds."""
    ready_seconds = 120.0
    rank_seconds = 30.0

    def make(self, folder: Path, lineage: str) -> Provider:
        """A provider of a project in `folder`, whose things belong to `lineage`."""
        raise NotImplementedError

    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Place]:
        """An empty place, and what was made there is gone afterwards."""
        place = Place(self, tmp_path)
        yield place
        place.clear()

    @pytest.fixture
    def disks(self, place: Place) -> Place:
        """A place that has volumes."""
        if not self.volumes:
            pytest.skip("this provider has no volumes")
        return place

    @pytest.fixture
    def node(self, place: Place) -> Record:
        """A node on which ranks can be started."""
        if not self.ranks:
            pytest.skip("this provider starts no ranks")
        return place.node()

    # ------------------------------------------------------------------------------------- offers

    def test_offers_are_whole_and_always_the_same(self, place: Place) -> None:
        """An offer has what a node needs; an unknown price is None, never below 0."""
        offers = place.provider.offers()
        assert offers == place.provider.offers()
        for offer in offers:
            assert offer.backend == self.backend
            assert offer.region
            assert offer.instance_type
            assert offer.shape.cpu >= 1
            assert offer.shape.memory_mib >= 1
            assert offer.price is None or offer.price >= 0

    # ------------------------------------------------------------------------------------- create

    def test_a_new_lineage_owns_nothing(self, place: Place) -> None:
        """A listing before the first create is empty, and no fault."""
        assert place.provider.inventory() == ()

    def test_read_after_create_equals(self, place: Place) -> None:
        """What was created is found and listed as it was asked for, by its token."""
        made = [place.node(), *([place.volume()] if self.volumes else [])]
        listed = {thing.address: thing for thing in place.provider.inventory()}
        assert set(listed) == {record.address for record in made}
        for record in made:
            found = place.provider.find(record.address, place.token(record))
            assert found is not None
            assert found == listed[record.address]
            assert found.token == place.token(record)
            assert dict(found.inputs) == dict(record.inputs)
            assert dict(found.outputs) == dict(record.outputs)

    def test_outputs_say_what_the_thing_is(self, place: Place) -> None:
        """Every thing has an id that no other thing of the backend has; a node has an address."""
        made = [place.node("gpu-0"), place.node("gpu-1")]
        if self.volumes:
            made += [place.volume("data-0"), place.volume("gpu-0")]
        assert all(record.outputs["address"] for record in made[:2])
        ids = [record.outputs["id"] for record in made]
        assert all(ids)
        assert len(set(ids)) == len(ids)

    def test_create_twice_with_one_token_makes_one(self, place: Place) -> None:
        """A create that is tried again finds what the first try made."""
        record = place.node()
        assert place.create(record) == record
        assert [thing.address for thing in place.provider.inventory()] == [record.address]

    def test_creates_at_once_with_one_token_make_one(self, disks: Place) -> None:
        """A try that was given up may still be under way when the next one begins."""
        record = disks.wanted("volume", "data-0", self.volume_inputs)
        with ThreadPoolExecutor(8) as pool:
            tries = [pool.submit(disks.create, record) for _ in range(8)]
        made = [t.result() for t in tries if not isinstance(t.exception(), TransientError)]
        assert made
        assert len({str(m.outputs["id"]) for m in made}) == 1
        assert len(disks.provider.inventory()) == 1

    def test_a_create_whose_answer_was_lost_is_found(self, place: Place) -> None:
        """After a crash between the call and the record, the token alone leads to what was made."""
        record = place.wanted("node", "gpu-0", self.node_inputs)
        place.provider.create(record.address, place.token(record), record.inputs, {})
        found = place.provider.find(record.address, place.token(record))
        assert found is not None
        assert dict(found.outputs) == dict(place.create(record).outputs)

    def test_nothing_is_found_by_another_token(self, place: Place) -> None:
        """A token stands for one create, the address alone for none."""
        record = place.node()
        assert place.provider.find(record.address, "0" * 32) is None
        assert place.provider.find(Address("node", "gpu-9"), place.token(record)) is None

    def test_a_later_generation_is_another_thing(self, place: Place) -> None:
        """A record of what is gone does not lead to what has its address now."""
        old = place.node()
        place.provider.delete(old)
        new = place.create(place.wanted("node", "gpu-0", self.node_inputs, generation=2))
        assert new.outputs["id"] != old.outputs["id"]
        assert place.provider.find(old.address, place.token(old)) is None
        place.provider.delete(old)
        assert place.provider.find(new.address, place.token(new)) is not None

    # ------------------------------------------------------------------- inventory, update, delete

    def test_the_inventory_is_complete(self, disks: Place) -> None:
        """Every page is read, and each thing carries its token."""
        made = [disks.volume(f"data-{i}") for i in range(self.many)]
        listed = {thing.address: thing.token for thing in disks.provider.inventory()}
        assert listed == {record.address: disks.token(record) for record in made}

    def test_an_update_is_seen_by_all(self, disks: Place) -> None:
        """What was updated is the same thing with new inputs, and an update may be tried again."""
        record = disks.volume()
        for _ in range(2):
            outputs = disks.provider.update(record, disks.token(record), self.larger)
            assert outputs["id"] == record.outputs["id"]
        (thing,) = disks.provider.inventory()
        assert dict(thing.inputs) == dict(self.larger)
        assert thing.token == disks.token(record)

    def test_an_update_of_what_is_gone_is_an_error(self, disks: Place) -> None:
        """An update makes nothing."""
        record = disks.volume()
        disks.provider.delete(record)
        with pytest.raises(PermanentError):
            disks.provider.update(record, disks.token(record), self.larger)
        assert disks.provider.inventory() == ()

    def test_delete_twice_succeeds(self, place: Place) -> None:
        """What is absent is success, and so is what never was."""
        made = [place.node(), *([place.volume()] if self.volumes else [])]
        for record in made:
            place.provider.delete(record)
            place.provider.delete(record)
            assert place.provider.find(record.address, place.token(record)) is None
        assert place.provider.inventory() == ()
        place.provider.delete(place.wanted("node", "never-made", self.node_inputs))

    def test_what_another_owner_made_is_not_ours(self, place: Place) -> None:
        """Another lineage's things are not listed, found or deleted, whatever names they have."""
        record = place.node()
        stranger = Place(self, place.folder)
        try:
            assert stranger.provider.inventory() == ()
            assert stranger.provider.find(record.address, place.token(record)) is None
            with suppress(PermanentError):
                stranger.provider.delete(record)
            with suppress(PermanentError):
                stranger.provider.delete(replace(record, outputs={}))
            with suppress(PermanentError):  # a place may or may not take one name twice
                stranger.create(stranger.wanted("node", "gpu-0", self.node_inputs))
            assert [thing.address for thing in place.provider.inventory()] == [record.address]
            assert place.state(record) is NodeState.READY
        finally:
            stranger.clear()
        assert place.create(record) == record

    def test_errors_are_only_those_of_the_port(self, place: Place) -> None:
        """About what is not there, a provider answers or raises one of the two kinds; nothing else."""
        gone = Record(
            address=Address("node", "gpu-0"),
            backend=self.backend,
            inputs=self.node_inputs,
            outputs={"id": "x"},
        )
        other = replace(gone, address=Address("volume", "data-0"), inputs=self.volume_inputs)
        pair = replace(gone, address=Address("attachment", "a-0.data-0"), inputs={})
        p = place.provider
        calls: list[Callable[[], object]] = [
            lambda: p.create(Address("nonsense", "x"), "1" * 32, {}, {}),
            lambda: p.create(pair.address, "1" * 32, {}, {}),
            lambda: p.find(Address("node", "../../etc"), "1" * 32),
            lambda: p.update(gone, "1" * 32, self.node_inputs),
            lambda: p.update(pair, "1" * 32, {}),
            lambda: p.delete(gone),
            lambda: p.delete(other),
            lambda: p.delete(pair),
            lambda: p.readiness([gone]),
            lambda: p.start(gone, launch("a-0.1", "true")),
            lambda: p.start(gone, launch("../../x", "true")),
            lambda: p.start(gone, launch("a-0.1", "true", volumes={"/data": other})),
            lambda: p.poll(gone, ["a-0.1"]),
            lambda: p.stop(gone, "a-0.1", 0),
            lambda: p.change_limit(gone, "a-0.1", None),
            lambda: p.read_log(gone, "a-0.1", 0),
        ]
        for call in calls:
            try:
                call()
            except ProviderError as error:
                assert isinstance(error, TransientError | PermanentError)  # noqa: PT017  # never the base
                assert error.summary  # noqa: PT017
        assert p.inventory() == ()

    # ---------------------------------------------------------------------------------- readiness

    def test_readiness_says_when_it_was_seen(self, place: Place) -> None:
        """Every node that is asked about is answered, and one that is gone is not ready, with a reason."""
        here, gone = place.node("gpu-0"), place.node("gpu-1")
        place.provider.delete(gone)
        begun = time.time()
        seen = place.provider.readiness([here, gone])
        assert set(seen) == {"gpu-0", "gpu-1"}
        assert seen["gpu-0"].state is NodeState.READY
        assert abs((seen["gpu-0"].observed_at or 0) - begun) < 60
        assert seen["gpu-1"].state is not NodeState.READY
        assert seen["gpu-1"].reason

    # ---------------------------------------------------------------------------------- volumes

    def test_an_attachment_is_a_thing_as_others(self, disks: Place) -> None:
        """It is made once by its token, listed, found, and deleted twice."""
        volume, node = disks.volume(), disks.node()
        record = disks.attach("train-0", volume, node)
        assert disks.create(record, volume, node) == record
        found = disks.provider.find(record.address, disks.token(record))
        assert found is not None
        assert found in disks.provider.inventory()
        assert dict(found.inputs) == dict(record.inputs)
        disks.provider.delete(record)
        disks.provider.delete(record)
        assert {thing.address.kind for thing in disks.provider.inventory()} == {"volume", "node"}

    def test_a_volume_is_on_one_node_at_a_time(self, disks: Place) -> None:
        """The second holder is refused until the first has let go."""
        volume, first, second = disks.volume(), disks.node("gpu-0"), disks.node("gpu-1")
        held = disks.attach("train-0", volume, first)
        with pytest.raises(ProviderError):
            disks.attach("other-0", volume, second)
        disks.provider.delete(held)
        disks.attach("other-0", volume, second)

    def test_a_volume_in_use_is_not_deleted(self, disks: Place) -> None:
        """Nobody loses the disk under a running rank."""
        volume, node = disks.volume(), disks.node()
        disks.attach("train-0", volume, node)
        with pytest.raises(ProviderError):
            disks.provider.delete(volume)
        assert disks.provider.find(volume.address, disks.token(volume)) is not None

    def test_a_volume_survives_its_node(self, disks: Place) -> None:
        """The node's end is the end of its attachments, and of nothing else."""
        volume, node = disks.volume(), disks.node("gpu-0")
        disks.attach("train-0", volume, node)
        disks.provider.delete(node)
        assert [thing.address for thing in disks.provider.inventory()] == [volume.address]
        disks.attach("other-0", volume, disks.node("gpu-1"))

    def test_data_stays_on_a_volume(self, disks: Place, node: Record) -> None:
        """What one rank wrote, the next one reads on another node, at the path that its variable names."""
        volume, second = disks.volume(), disks.node("gpu-1")
        mounts: dict[str, Any] = {"volumes": {"/data": volume}, "env": {"FLEETFORM_VOLUME_DATA": "/data"}}
        held = disks.attach("train-0", volume, node)
        disks.start(node, "train-0.1", 'echo kept > "$FLEETFORM_VOLUME_DATA/file"', **mounts)
        assert disks.ended(node, "train-0.1").state is RankState.SUCCEEDED
        disks.provider.delete(held)
        disks.provider.delete(node)
        disks.attach("other-0", volume, second)
        disks.start(second, "other-0.1", 'cat "$FLEETFORM_VOLUME_DATA/file"', **mounts)
        assert disks.ended(second, "other-0.1").state is RankState.SUCCEEDED
        assert disks.log(second, "other-0.1") == "kept\n"

    # -------------------------------------------------------------------------------------- ranks

    def test_a_rank_runs_to_its_end(self, place: Place, node: Record) -> None:
        """Commands run in one shell, in order; the exit code and both outputs are kept."""
        begun = place.start(node, "train-0.1", "x=seen", "echo $x", "echo err >&2")
        assert begun.state in {RankState.STARTING, RankState.RUNNING, RankState.SUCCEEDED}
        ended = place.ended(node, "train-0.1")
        assert (ended.state, ended.exit_code, ended.cause) == (RankState.SUCCEEDED, 0, None)
        assert ended.started_at is not None
        assert ended.ended_at is not None
        assert ended.started_at <= ended.ended_at
        assert place.log(node, "train-0.1") == "seen\nerr\n"

    def test_a_rank_that_fails_says_so(self, place: Place, node: Record) -> None:
        """The first command that fails ends the rank, with its exit code as the cause."""
        place.start(node, "train-0.1", "echo before", "exit 7", "echo after")
        ended = place.ended(node, "train-0.1")
        assert (ended.state, ended.exit_code, ended.cause) == (RankState.FAILED, 7, "exit code 7")
        assert place.log(node, "train-0.1") == "before\n"

    def test_an_attempt_starts_at_most_once(self, place: Place, node: Record) -> None:
        """However often, and by however many at once, it is asked for."""
        with ThreadPoolExecutor(8) as pool:
            tries = [pool.submit(place.start, node, "train-0.1", "echo begun; sleep 0.3") for _ in range(8)]
        assert not [e for e in (t.exception() for t in tries) if not isinstance(e, TransientError | None)]
        place.ended(node, "train-0.1")
        assert place.start(node, "train-0.1", "echo again").state is RankState.SUCCEEDED
        assert place.log(node, "train-0.1") == "begun\n"

    def test_what_never_started_is_none(self, place: Place, node: Record) -> None:
        """Neither poll nor stop makes an attempt of what is none; its log is empty or not found."""
        place.start(node, "train-0.1", "true")
        polled = place.provider.poll(node, ["train-0.1", "train-0.2"])
        assert set(polled) == {"train-0.1", "train-0.2"}
        assert polled["train-0.1"] is not None
        assert polled["train-0.2"] is None
        assert place.provider.poll(node, []) == {}
        assert place.provider.stop(node, "train-0.2", 0) is None
        assert place.poll(node, "train-0.2") is None

    def test_stop_ends_all_of_it(self, place: Place, node: Record) -> None:
        """TERM first; what ignores it is killed after the grace; stopping twice is the same as once."""
        child = "(trap '' TERM; echo deaf; while :; do sleep 0.1; done) & wait"
        place.start(node, "train-0.1", child)
        place.logged(node, "train-0.1", "deaf")
        begun = time.monotonic()
        stopped = place.provider.stop(node, "train-0.1", 1)
        assert time.monotonic() - begun < 20
        assert stopped is not None
        assert stopped.state is RankState.STOPPED
        assert place.poll(node, "train-0.1") == stopped
        assert place.provider.stop(node, "train-0.1", 1) == stopped

    def test_stop_leaves_time_to_save(self, place: Place, node: Record) -> None:
        """A rank that ends by itself within the grace is not killed."""
        place.start(node, "train-0.1", "trap 'sleep 0.5; echo saved; exit 0' TERM; echo up; sleep 60 & wait")
        place.logged(node, "train-0.1", "up")
        stopped = place.provider.stop(node, "train-0.1", 20)
        assert stopped is not None
        assert stopped.state is RankState.STOPPED
        assert place.log(node, "train-0.1") == "up\nsaved\n"

    def test_a_rank_ends_at_its_limit(self, place: Place, node: Record) -> None:
        """Nobody has to watch for it."""
        place.start(node, "train-0.1", "sleep 60", max_seconds=1, stop_seconds=1)
        ended = place.ended(node, "train-0.1")
        assert (ended.state, ended.cause) == (RankState.FAILED, "max_duration reached")

    def test_a_limit_can_be_changed(self, place: Place, node: Record) -> None:
        """While it runs: taken away, and set."""
        place.start(node, "train-0.1", "sleep 2.5", max_seconds=2, stop_seconds=1)
        place.start(node, "train-1.1", "sleep 60", stop_seconds=1)
        place.provider.change_limit(node, "train-0.1", None)
        place.provider.change_limit(node, "train-1.1", 1)
        assert place.ended(node, "train-1.1").cause == "max_duration reached"
        assert place.ended(node, "train-0.1").state is RankState.SUCCEEDED

    def test_variables_arrive_as_they_are(self, place: Place, node: Record) -> None:
        """Quotes, newlines, dollars and other alphabets included."""
        value = "a 'b' \"c\"\n$HOME `d` \\ ünï 漢"
        place.start(node, "train-0.1", 'printf %s "$ODD"', env={"ODD": value})
        place.ended(node, "train-0.1")
        assert place.log(node, "train-0.1") == value

    def test_the_callers_secrets_stay_with_the_caller(
        self, place: Place, node: Record, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A rank has the variables that it declares; others of the caller only if they are known to be none."""
        monkeypatch.setenv("FLEETFORM_VAR_PASSWORD", "hunter2")
        monkeypatch.setenv("SOME_CLOUD_KEY", "hunter3")
        place.start(node, "train-0.1", "env")
        place.ended(node, "train-0.1")
        assert "hunter" not in place.log(node, "train-0.1")

    def test_a_rank_sees_its_gpus_and_no_others(self, place: Place, node: Record) -> None:
        """Whatever the declaration says, and none if it has none."""
        show = 'echo "[$CUDA_VISIBLE_DEVICES]"'
        place.start(node, "train-0.1", show, gpus=(2, 3), env={"CUDA_VISIBLE_DEVICES": "0,1"})
        place.start(node, "train-1.1", show)
        place.ended(node, "train-0.1")
        place.ended(node, "train-1.1")
        assert place.log(node, "train-0.1") == "[2,3]\n"
        assert place.log(node, "train-1.1") == "[]\n"

    def test_attempts_do_not_share_a_folder(self, place: Place, node: Record) -> None:
        """Each begins in an empty one, or in one below it that the declaration names."""
        place.start(node, "train-0.1", "ls -A; pwd; touch x")
        place.start(node, "train-0.2", "ls -A; pwd; touch x", working_dir="a/b")
        place.ended(node, "train-0.1")
        place.ended(node, "train-0.2")
        first, second = place.log(node, "train-0.1"), place.log(node, "train-0.2")
        assert len(first.splitlines()) == len(second.splitlines()) == 1
        assert second.endswith("/a/b\n")
        assert first != second

    def test_logs_are_read_by_offset(self, place: Place, node: Record) -> None:
        """In bytes, so that a reader goes on where it stopped, without a gap or a repeat."""
        place.start(node, "train-0.1", "printf 'a\\303\\274b\\0c'")
        place.ended(node, "train-0.1")
        read = place.provider.read_log
        assert read(node, "train-0.1", 0) == b"a\xc3\xbcb\0c"
        assert read(node, "train-0.1", 2, 3) == b"\xbcb\0"
        assert read(node, "train-0.1", 6) == b""
        assert read(node, "train-0.1", 60) == b""
