"""The provider `local`: the suite of all providers, and its own behaviour."""

import errno
import fcntl
import importlib.metadata
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from declarative.model.state import Address, Record
from declarative.model.status import NodeState, RankState
from declarative.provider import (
    GROUP,
    OWN,
    Config,
    PermanentError,
    PermanentKind,
    Provider,
    ProviderError,
    StaleError,
    TransientError,
    TransientKind,
)
from providers import faults
from providers.local import Local, files, machine
from providers.local.files import Epoch
from providers.rank_scripts import wrapped
from providers.runner import RunnerError
from providers.testing import NODE, VOLUME, Conformance, Place, launch, until
from providers.transport import ConnectionLost

REPOSITORY = Path(__file__).resolve().parents[3]


class TestLocal(Conformance):
    backend = "local"

    def make(self, folder: Path, lineage: str) -> Provider:
        return local(folder, lineage)


def local(folder: Path, lineage: str = "ours", **settings) -> Local:
    return Local(Config(backend="local", project_dir=folder, lineage=lineage, **settings))


@pytest.fixture
def place(tmp_path) -> Iterator[Place]:
    place = Place(TestLocal(), tmp_path)
    yield place
    place.clear()


def root(place: Place) -> Path:
    return place.folder / ".fleetform" / "local"


@contextmanager
def refused(kind: PermanentKind, text: str = ".") -> Iterator[pytest.ExceptionInfo[PermanentError]]:
    with pytest.raises(PermanentError, match=text) as caught:
        yield caught
    assert caught.value.kind is kind


def broken(*_, **__):
    """A process that ends in the middle of a call."""
    raise KeyboardInterrupt


def test_backends_of_one_folder_do_not_lock_each_other_out(tmp_path):
    """In parallel, whichever is the first to use a new writer's number."""
    for number in range(1, 60):
        folder = tmp_path / str(number)
        (folder / ".fleetform/local").mkdir(parents=True)
        both = [local(folder, fence=lambda: number) for _ in range(8)]  # noqa: B023
        at_once = threading.Barrier(len(both))

        def ask(provider: Local) -> int:
            at_once.wait()  # noqa: B023
            return len(provider.inventory())

        with ThreadPoolExecutor(len(both)) as pool:
            assert list(pool.map(ask, both)) == [0] * len(both)


# ------------------------------------------------------------------------------------- where it all is


def test_the_entry_points_lead_here():
    found = {e.name: e for e in importlib.metadata.entry_points(group=GROUP)}
    assert found["local"].load() is Local
    assert {name: found[name].value for name in OWN} == OWN


def test_the_root_is_in_the_project(tmp_path):
    """By default, or where the option says; nothing is written before the first create."""
    for options, where in (({}, ".fleetform/local"), ({"root": "a/b"}, "a/b")):
        provider = local(tmp_path, options=options)
        assert provider.inventory() == ()
        assert list(tmp_path.iterdir()) == []
        outputs = provider.create(Address("node", "n-0"), "t", NODE, {})
        assert outputs["path"] == str(tmp_path / where / "nodes" / "n-0")
        shutil.rmtree(tmp_path / where.partition("/")[0])


@pytest.mark.parametrize("given", ["..", "../other", "a/../..", ".", "link/x", "", 7, "a\0b"])
def test_a_relative_root_cannot_lead_out_of_the_project(tmp_path, given):
    project = tmp_path / "project"
    project.mkdir()
    (project / "link").symlink_to(tmp_path)
    with refused(PermanentKind.INVALID):
        local(project, options={"root": given})


def test_an_absolute_root_may_be_anywhere(tmp_path):
    provider = local(tmp_path / "project", options={"root": str(tmp_path / "disk")})
    provider.create(Address("volume", "v"), "t", VOLUME, {})
    assert (tmp_path / "disk" / "volumes" / "v" / "data").is_dir()


def test_unknown_options_are_refused(tmp_path):
    with pytest.raises(PermanentError) as caught:
        local(tmp_path, options={"rot": "x"})
    assert caught.value.about == "options.rot"
    assert caught.value.hint == "did you mean `root`?"


def test_offers_are_this_machine_in_each_place(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    plain = local(tmp_path).offers()
    assert [(o.region, o.zone, o.price, o.spot, o.shaped) for o in plain] == [
        ("local", None, 0.0, False, True)
    ]
    assert plain[0].shape.cpu == 3
    assert plain[0].shape.memory_mib > 100
    assert plain[0].shape.gpus == 0
    offers = local(tmp_path, regions=("a", "b"), zones=("1", "2")).offers()
    assert [(o.region, o.zone) for o in offers] == [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]


def test_offers_read_and_run_nothing(tmp_path):
    """They are asked for in `plan --offline` on a stranger's YAML."""
    script = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from pathlib import Path
from declarative.provider import Config
from providers.local import Local
provider = Local(Config(backend="local", project_dir=Path({str(tmp_path)!r}), lineage="l"))
def hook(event, args):
    if event in ("open", "os.listdir", "os.scandir", "subprocess.Popen", "os.system", "socket.connect"):
        raise SystemExit(f"{{event}} {{args}}")
sys.addaudithook(hook)
provider.offers()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------------------------------------------------ whole or not there


def test_metadata_is_for_its_owner_alone(place):
    node, volume = place.node(), place.volume()
    files = [
        root(place) / "nodes" / "gpu-0" / "fleetform.json",
        root(place) / "volumes" / "data-0" / "fleetform.json",
    ]
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(root(place).stat().st_mode) == 0o700
    body = json.loads(files[0].read_text())
    assert body["owner"] == place.lineage
    assert (body["address"], body["token"], body["inputs"]) == ("node/gpu-0", place.token(node), NODE)
    assert abs(body["created"] - time.time()) < 60
    assert Path(volume.outputs["path"]).is_dir()


def test_the_data_folder_has_the_mode_that_its_user_gives(place):
    before = os.umask(0o027)
    try:
        volume = place.volume()
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(volume.outputs["path"]).stat().st_mode) == 0o750


@pytest.mark.parametrize("kind", ["node", "volume"])
@pytest.mark.parametrize("step", ["mkdir", "write", "fsync", "link"])
def test_a_create_that_broke_off_is_completed_by_the_next(place, kind, step, monkeypatch):
    """What it left is not there for anybody, until a create with that token makes it whole."""
    inputs = NODE if kind == "node" else VOLUME
    record = place.wanted(kind, "thing-0", inputs)
    with monkeypatch.context() as patch:
        patch.setattr(os, step, broken)
        with pytest.raises(KeyboardInterrupt):
            place.create(record)
    assert place.provider.find(record.address, place.token(record)) is None
    assert place.provider.inventory() == ()
    place.provider.delete(record)
    made = place.create(record)
    assert [t.outputs for t in place.provider.inventory()] == [made.outputs]


@pytest.mark.slow
def test_creates_that_are_killed_leave_one_thing(tmp_path):
    """SIGKILL at any instant, then once more in peace: there is one, it is whole, and nothing else."""
    script = f"""
import sys, itertools
sys.path.insert(0, {str(REPOSITORY)!r})
from pathlib import Path
from declarative.provider import Config
from declarative.model.state import Address, Record
from providers.local import Local
provider = Local(Config(backend="local", project_dir=Path({str(tmp_path)!r}), lineage="ours"))
print("up", flush=True)
for i in itertools.count():
    address = Address("volume", f"v-{{i % 3}}")
    outputs = provider.create(address, f"token-{{i}}", {{"size": "1GB"}}, {{}})
    provider.delete(Record(address=address, backend="local", inputs={{}}, outputs=outputs))
"""
    for attempt in range(8):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert process.stdout
        with process.stdout:
            process.stdout.readline()
            time.sleep(0.01 + 0.013 * attempt)
            process.kill()
        assert process.wait() == -signal.SIGKILL
        provider = local(tmp_path)
        for thing in provider.inventory():
            found = provider.find(thing.address, thing.token)
            assert found == thing
            provider.delete(Record(address=thing.address, backend="local", inputs={}, outputs=thing.outputs))
        for i in range(3):
            address = Address("volume", f"v-{i}")
            outputs = provider.create(address, "last", VOLUME, {})
            assert list(Path(outputs["path"]).iterdir()) == []
            provider.delete(Record(address=address, backend="local", inputs={}, outputs=outputs))
        assert provider.inventory() == ()
    top = tmp_path / ".fleetform" / "local"
    assert {p.name: list(p.iterdir()) for p in top.iterdir()} == {"trash": [], "volumes": []}


def test_a_strangers_name_is_a_conflict(place):
    place.node()
    with refused(PermanentKind.CONFLICT, "belongs to another state") as caught:
        local(place.folder, "another").create(Address("node", "gpu-0"), "t", NODE, {})
    assert "options.root" in (caught.value.hint or "")


def test_an_earlier_create_is_a_conflict(place):
    place.node()
    with refused(PermanentKind.CONFLICT, "made by an earlier create") as caught:
        place.create(place.wanted("node", "gpu-0", NODE, generation=2))
    assert "`fleetform state adopt node/gpu-0` records it" in (caught.value.hint or "")


DAMAGES = {
    "empty": lambda f: f.write_text(""),
    "torn": lambda f: f.write_text(f.read_text()[:-20]),
    "another form": lambda f: f.write_text("[]"),
    "another version": lambda f: f.write_text(f.read_text().replace('"format": 1', '"format": 2')),
    "binary": lambda f: f.write_bytes(b"\xff\x00"),
    "deep": lambda f: f.write_text("[" * 100_000),
    "gone": lambda f: f.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_not_taken_for_gone(place, damage):
    """Not listed with made-up inputs, not deleted, not made anew: every call says what is the matter."""
    volume, node = place.volume(), place.node()
    Path(volume.outputs["path"], "file").write_text("precious")
    (root(place) / "nodes" / "gpu-0" / "work").mkdir()
    for kind, name in (("nodes", "gpu-0"), ("volumes", "data-0")):
        DAMAGES[damage](root(place) / kind / name / "fleetform.json")
    with refused(PermanentKind.INVALID, "node/gpu-0.*volume/data-0"):
        place.provider.inventory()
    for call in (
        lambda: place.provider.find(volume.address, place.token(volume)),
        lambda: place.create(volume),
        lambda: place.provider.delete(volume),
        lambda: place.provider.delete(node),
        lambda: place.provider.update(volume, place.token(volume), VOLUME),
    ):
        with refused(PermanentKind.INVALID):
            call()
    seen = place.provider.readiness([node])["gpu-0"]
    assert seen.state is NodeState.NOT_READY
    assert "fleetform.json" in (seen.reason or "")
    assert Path(volume.outputs["path"], "file").read_text() == "precious"


def test_a_copy_by_hand_is_no_second_thing(place):
    place.node()
    shutil.copytree(root(place) / "nodes" / "gpu-0", root(place) / "nodes" / "gpu-1")
    with refused(PermanentKind.INVALID, "a copy by hand"):
        place.provider.inventory()


def test_a_listing_that_cannot_be_read_is_an_error(place):
    place.volume()
    shutil.rmtree(root(place) / "volumes")
    (root(place) / "volumes").write_text("")
    with refused(PermanentKind.INVALID):
        place.provider.inventory()


@pytest.mark.parametrize("of", ["thing", "kind"])
def test_a_link_is_no_thing(place, tmp_path_factory, of):
    """Whatever it leads to: who deleted it would delete somewhere else."""
    place.node()
    folder = root(place) / "nodes" / ("gpu-0" if of == "thing" else "")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "moved"
    shutil.move(folder, elsewhere)
    folder.symlink_to(elsewhere)
    with refused(PermanentKind.INVALID, "node/gpu-0.*is not a folder"):
        place.provider.inventory()


def test_a_long_description_is_read_whole(place):
    inputs = {**NODE, "tags": {f"tag-{i}": "x" * 100 for i in range(200)}}
    made = place.create(place.wanted("node", "gpu-0", inputs))
    assert [inputs] == [thing.inputs for thing in place.provider.inventory()]
    assert made


def test_what_cannot_be_read_is_named(place):
    """Whichever call of the system it was that failed."""
    place.node()
    meta = root(place) / "nodes" / "gpu-0" / "fleetform.json"
    meta.unlink()
    meta.mkdir()
    with refused(PermanentKind.INVALID, f"{meta}: Is a directory"):
        place.provider.inventory()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "A", "x" * 300, "a\0b", "a\n"])
def test_names_cannot_lead_out_of_the_root(place, name):
    for kind in ("node", "volume"):
        with refused(PermanentKind.INVALID):
            place.provider.create(Address(kind, name), "t", {}, {})


def test_inputs_that_are_no_json_are_refused(place):
    with refused(PermanentKind.INVALID, "JSON"):
        place.provider.create(Address("node", "n"), "t", {"x": object()}, {})
    assert place.provider.inventory() == ()


# ---------------------------------------------------------------------------------------------- deletion


def test_a_delete_follows_no_link(place, tmp_path_factory):
    """Neither one in the data, nor a data folder or a thing that is one."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "file").write_text("precious")
    volume = place.volume()
    Path(volume.outputs["path"], "link").symlink_to(outside)
    place.provider.delete(volume)
    place.create(volume)
    Path(volume.outputs["path"]).rmdir()
    Path(volume.outputs["path"]).symlink_to(outside)
    place.provider.delete(volume)
    folder = root(place) / "volumes" / "data-0"
    place.create(volume)
    shutil.move(folder, outside / "moved")
    folder.symlink_to(outside / "moved")
    with refused(PermanentKind.INVALID, "is not a folder"):
        place.provider.delete(volume)
    assert (outside / "file").read_text() == "precious"
    assert (outside / "moved" / "data").is_dir()
    folder.unlink()


def test_read_only_folders_are_deleted_too(place):
    volume = place.volume()
    inner = Path(volume.outputs["path"], "a", "b")
    inner.mkdir(parents=True)
    (inner / "file").write_text("")
    inner.chmod(0o500)
    inner.parent.chmod(0o500)
    place.provider.delete(volume)
    assert list((root(place) / "trash").iterdir()) == []


def test_a_delete_that_broke_off_brings_nothing_back(place, monkeypatch):
    """It is gone by its name at once; its content goes with the next delete of anything."""
    volume = place.volume()
    Path(volume.outputs["path"], "file").write_text("old")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", broken)
        with pytest.raises(KeyboardInterrupt):
            place.provider.delete(volume)
    assert place.provider.inventory() == ()
    assert list((root(place) / "trash").iterdir())
    again = place.create(volume)
    assert list(Path(again.outputs["path"]).iterdir()) == []
    place.provider.delete(place.node())
    assert list((root(place) / "trash").iterdir()) == []


def test_a_node_with_running_ranks_is_not_deleted(place):
    node = place.node()
    place.start(node, "train-0.1", "sleep 60")
    with refused(PermanentKind.CONFLICT, "running ranks: train-0.1"):
        place.provider.delete(node)
    assert place.poll(node, "train-0.1").state is RankState.RUNNING
    place.provider.stop(node, "train-0.1", 0)
    place.provider.delete(node)
    assert not (root(place) / "nodes" / "gpu-0").exists()


def test_the_holder_of_a_volume_is_named(place):
    volume, first, second = place.volume(), place.node("gpu-0"), place.node("gpu-1")
    held = place.attach("train-0", volume, first)
    text = "held by attachment/train-0.data-0, on node/gpu-0"
    with refused(PermanentKind.CONFLICT, text):
        place.attach("other-0", volume, second)
    with refused(PermanentKind.CONFLICT, text):
        place.provider.delete(volume)
    with refused(PermanentKind.CONFLICT, text):
        place.start(second, "other-0.1", "true", volumes={"/data": volume})
    place.provider.delete(held)


def test_an_attachment_ends_with_its_node_even_if_that_is_made_anew(place):
    volume, node = place.volume(), place.node()
    old = place.attach("train-0", volume, node)
    place.provider.delete(node)
    place.create(place.wanted("node", "gpu-0", NODE, generation=2))
    assert place.provider.find(old.address, place.token(old)) is None
    place.attach("other-0", volume, node)
    place.provider.delete(old)
    assert "attachment/other-0.data-0" in {str(t.address) for t in place.provider.inventory()}


def test_an_attachment_needs_both_ends(place):
    volume, node = place.volume(), place.node()
    nowhere = Record(address=Address("node", "gpu-7"), backend="local", inputs={})
    with refused(PermanentKind.NOT_FOUND, "node/gpu-7"):
        place.attach("train-0", volume, nowhere)
    place.provider.delete(volume)
    with refused(PermanentKind.NOT_FOUND, "volume/data-0"):
        place.attach("train-0", volume, node)
    pair = place.attachment("a-0", volume, node).inputs
    with refused(PermanentKind.INVALID, "cannot be about volume/data-0"):
        place.provider.create(Address("attachment", "a-0.x"), "t", pair, {})


# ------------------------------------------------------------------------------------------------ update


def test_an_update_takes_marks_and_no_identity(place):
    node, volume = place.node(), place.volume()
    place.provider.update(node, place.token(node), {**NODE, "blocks": 1, "tags": {"a": "b"}})
    for key in ("region", "instance_type", "resources", "zone"):
        with refused(PermanentKind.INVALID, key):
            place.provider.update(node, place.token(node), {**NODE, key: "other"})
    with refused(PermanentKind.INVALID, "cannot go down"):
        place.provider.update(volume, place.token(volume), {**VOLUME, "size": "512MB"})
    with refused(PermanentKind.INVALID):
        place.provider.update(volume, place.token(volume), {**VOLUME, "size": "huge"})
    found = place.provider.find(node.address, place.token(node))
    assert dict(found.inputs) == {**NODE, "blocks": 1, "tags": {"a": "b"}}


# --------------------------------------------------------------------------------------------- readiness


def ready(place: Place, node: Record) -> tuple[NodeState, str]:
    seen = place.provider.readiness([node])[node.address.name]
    assert seen.observed_at is not None
    return seen.state, seen.reason or ""


def test_readiness_names_the_reason(place, monkeypatch):
    node = place.node()
    full = os.statvfs_result((4096, 4096, 1000, 1000, 1000, 10, 10, 10, 0, 255))
    full_of_files = os.statvfs_result((4096, 4096, 10**6, 10**6, 10**6, 10, 0, 0, 0, 255))
    cases = [
        (shutil, "which", lambda name: None if name == "flock" else name, NodeState.NOT_READY, "flock"),
        (os, "access", lambda *_: False, NodeState.NOT_READY, "cannot be written"),
        (os, "statvfs", lambda _: full, NodeState.NOT_READY, "only 3 MiB are free"),
        (os, "statvfs", lambda _: full_of_files, NodeState.NOT_READY, "no more files"),
        (os, "statvfs", lambda _: fault(errno.EIO), NodeState.UNKNOWN, os.strerror(errno.EIO)),
    ]

    def fault(code):
        raise OSError(code, os.strerror(code))

    for owner, name, fake, state, text in cases:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fake)
            seen, reason = ready(place, node)
        assert seen is state
        assert text in reason
    assert ready(place, node) == (NodeState.READY, "")
    place.provider.delete(node)
    assert ready(place, node)[0] is NodeState.UNREACHABLE


# ------------------------------------------------------------------------------------------------- ranks


def test_declared_cpus_wrap_around():
    assert wrapped((0, 1), (4, 5, 6, 7)) == (4, 5)
    assert wrapped((6, 7), (4, 5, 6, 7)) == (6, 7)
    assert wrapped((2, 3, 4), (8, 9)) == (8, 9)
    assert wrapped((), (8, 9)) == ()


def test_a_rank_sees_its_cpus_alone(place):
    node = place.node()
    usable = machine.usable_cpus()
    show = "echo $(taskset -cp $$ | sed 's/.*: //') $OMP_NUM_THREADS $MKL_NUM_THREADS"
    place.start(node, "a-0.1", show, cpus=(len(usable),))
    place.start(node, "a-1.1", show, cpus=(1,), env={"OMP_NUM_THREADS": "7"})
    place.ended(node, "a-0.1")
    place.ended(node, "a-1.1")
    assert place.log(node, "a-0.1") == f"{usable[0]} 1 1\n"
    assert place.log(node, "a-1.1") == f"{usable[1 % len(usable)]} 7 1\n"


def test_of_the_caller_a_rank_has_what_programs_need():
    caller = {"PATH": "/p", "HOME": "/h", "LC_TIME": "C", "AWS_SECRET_ACCESS_KEY": "s", "PYTHONPATH": "x"}
    assert machine.inherited(caller) == {"PATH": "/p", "HOME": "/h", "LC_TIME": "C"}
    assert set(machine.inherited({})) == {"PATH", "HOME"}


def test_a_working_folder_on_a_volume_is_found_with_and_without_the_mount(place):
    """At the declared path if the volume could be mounted there, else at its own; never another folder."""
    node, volume = place.node(), place.volume()
    here = root(place).parent / "not-the-volume"
    here.mkdir()
    for target in ("/fleetform-test-data", str(here)):
        attempt = f"a-0.{len(target)}"
        place.start(node, attempt, "echo x > file", volumes={target: volume}, working_dir=target)
        assert place.ended(node, attempt).state is RankState.SUCCEEDED, place.log(node, attempt)
        assert Path(volume.outputs["path"], "file").read_text() == "x\n"
        Path(volume.outputs["path"], "file").unlink()
    assert list(here.iterdir()) == []
    # Where it cannot be mounted at all: the runner lets the kernel's folders be.
    place.start(
        node, "b-0.1", "echo x > file", volumes={"/proc/nowhere": volume}, working_dir="/proc/nowhere"
    )
    assert place.ended(node, "b-0.1").state is RankState.SUCCEEDED, place.log(node, "b-0.1")
    assert Path(volume.outputs["path"], "file").read_text() == "x\n"


def test_a_working_folder_cannot_lead_out_by_dots(place):
    node = place.node()
    with refused(PermanentKind.INVALID, "leads out"):
        place.start(node, "a-0.1", "true", working_dir="../../x")
    place.start(node, "a-0.2", "pwd", working_dir="/")
    place.ended(node, "a-0.2")
    assert place.log(node, "a-0.2") == "/\n"


def test_bad_launches_are_refused(place):
    node = place.node()
    for bad in ({"env": {"a-b": "c"}}, {"env": {"A": "\0"}}):
        with refused(PermanentKind.INVALID):
            place.start(node, "a-0.1", "true", **bad)
    for attempt in ("", ".x", "a/b", "a b", "x" * 201):
        with refused(PermanentKind.INVALID):
            place.start(node, attempt, "true")
    assert place.poll(node, "a-0.1") is None


def test_a_volume_without_its_data_is_not_replaced_by_an_empty_one(place):
    node, volume = place.node(), place.volume()
    Path(volume.outputs["path"]).rmdir()
    with refused(PermanentKind.NOT_FOUND, "has lost its data"):
        place.start(node, "a-0.1", "true", volumes={"/data": volume})


def test_a_volume_whose_content_vanished_says_so(place):
    """It was emptied while nobody held it, or its folder is gone. What its own rank does is its business."""
    node, volume = place.node(), place.volume()
    data = Path(volume.outputs["path"])

    def said() -> str:
        (found,) = (t for t in place.provider.inventory() if t.address == volume.address)
        return found.lost or ""

    (data / "file").touch()
    attached = place.attach("a-0", volume, node)
    (data / "file").unlink()
    assert said() == ""
    (data / "file").touch()
    place.provider.delete(attached)
    assert said() == ""
    (data / "file").unlink()
    assert said().startswith("it held something when it was detached last, and is empty now")
    Path(said().split("`rm ")[1].rstrip("`")).unlink()
    assert said() == ""
    data.rmdir()
    assert said() == f"its data are gone: {data} is no folder"
    place.provider.delete(volume)
    assert not data.parent.exists()


@pytest.mark.slow
def test_a_rank_outlives_the_process_that_started_it(place):
    """Killed with all its group, it leaves a rank that goes on, and that the next process finds."""
    node = place.node()
    script = f"""
import sys, time
sys.path.insert(0, {str(REPOSITORY)!r})
from pathlib import Path
from declarative.provider import Config
from declarative.model.state import Address, Record
from providers.local import Local
from providers.testing import launch
provider = Local(Config(backend="local", project_dir=Path({str(place.folder)!r}), lineage={place.lineage!r}))
node = Record(address=Address("node", "gpu-0"), backend="local", inputs={{}})
provider.start(node, launch("train-0.1", "sleep 1; echo done"))
print("started", flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout
    with process.stdout:
        assert process.stdout.readline() == b"started\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    place.started.append((node, "train-0.1"))
    assert place.ended(node, "train-0.1").state is RankState.SUCCEEDED
    assert place.log(node, "train-0.1") == "done\n"


def supervisor(place: Place, attempt: str) -> int:
    return int((root(place) / "nodes" / "gpu-0" / "ranks" / attempt / "started").read_text().split()[4])


def test_a_rank_without_its_supervisor_runs_until_it_is_lost(place):
    node = place.node()
    place.start(node, "a-0.1", "echo up; while [ ! -e go ]; do sleep 0.05; done")
    place.logged(node, "a-0.1", "up")
    os.kill(supervisor(place, "a-0.1"), signal.SIGKILL)
    orphan = until(lambda: (s := place.poll(node, "a-0.1")) and s.cause and s, 10)
    assert (orphan.state, orphan.exit_code) == (RankState.RUNNING, None)
    assert "supervisor died" in orphan.cause
    with refused(PermanentKind.CONFLICT):
        place.provider.delete(node)
    (root(place) / "nodes" / "gpu-0" / "work" / "a-0.1" / "go").touch()
    lost = place.ended(node, "a-0.1")
    assert lost.state is RankState.LOST
    assert "how it ended is not known" in lost.cause


def test_a_rank_is_lost_when_the_machine_restarts(place):
    node = place.node()
    place.start(node, "a-0.1", "sleep 60")
    place.provider.stop(node, "a-0.1", 0)
    folder = root(place) / "nodes" / "gpu-0" / "ranks" / "a-0.1"
    started = (folder / "started").read_text().split(" ", 1)[1]
    (folder / "exit").unlink()
    (folder / "started").write_text(f"another-boot {started}")
    status = place.poll(node, "a-0.1")
    assert (status.state, status.cause) == (RankState.LOST, "the machine restarted while it ran")


def test_a_signal_is_named(place):
    node = place.node()
    place.start(node, "a-0.1", "kill -9 $$")
    ended = place.ended(node, "a-0.1")
    assert (ended.state, ended.exit_code, ended.cause) == (RankState.FAILED, 137, "exit code 137 (SIGKILL)")


def test_a_call_that_a_start_left_unfinished_is_no_start(place):
    node = place.node()
    (root(place) / "nodes" / "gpu-0" / "ranks" / "a-0.1").mkdir(parents=True)
    assert place.poll(node, "a-0.1") is None
    place.start(node, "a-0.1", "echo now")
    assert place.ended(node, "a-0.1").state is RankState.SUCCEEDED


def test_logs_of_what_never_started_are_empty(place):
    assert place.provider.read_log(place.node(), "a-0.1", 0) == b""


# ------------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, PermanentKind.NO_CAPACITY),
        (errno.EDQUOT, PermanentKind.QUOTA),
        (errno.EACCES, PermanentKind.AUTH),
        (errno.EROFS, PermanentKind.INVALID),
        (errno.ELOOP, PermanentKind.INVALID),
        (errno.EAGAIN, TransientKind.BUSY),
        (errno.EMFILE, TransientKind.BUSY),
    ],
)
def test_what_the_system_refuses_is_of_a_kind(place, monkeypatch, code, kind):
    def broken(*_, **__):
        raise OSError(code, os.strerror(code), "/some/path")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(ProviderError) as caught:
        place.create(place.wanted("volume", "data-0", VOLUME))
    assert vars(caught.value)["kind"] is kind
    assert caught.value.about == "/some/path"
    assert os.strerror(code) in caught.value.summary


def test_a_permanent_fault_says_that_nothing_was_made(place, monkeypatch):
    """What fails after the thing is there is of the other kind, and the next try finds it."""

    def fault(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    record = place.wanted("volume", "data-0", VOLUME)
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync", fault)
        with pytest.raises(TransientError) as caught:
            place.create(record)
    assert caught.value.kind is TransientKind.AMBIGUOUS
    assert place.provider.find(record.address, place.token(record)) is not None
    place.create(record)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RunnerError("usage", "x"), PermanentKind.INVALID),
        (RunnerError("missing", "x"), PermanentKind.NOT_FOUND),
        (RunnerError("tools", "x"), PermanentKind.INVALID),
        (RunnerError("unwritable", "x"), PermanentKind.AUTH),
        (RunnerError("nospace", "x"), PermanentKind.NO_CAPACITY),
        (RunnerError("truncated", "x"), TransientKind.NOT_SENT),
        (RunnerError("busy", "x"), TransientKind.BUSY),
        (RunnerError("failed", "x"), TransientKind.AMBIGUOUS),
        (ConnectionLost("x"), TransientKind.AMBIGUOUS),
    ],
)
def test_what_the_runner_refuses_is_of_a_kind(error, kind):
    @faults.guarded
    def call() -> None:
        raise error

    with pytest.raises(ProviderError) as caught:
        call()
    assert vars(caught.value)["kind"] is kind


def test_a_folder_that_the_runner_cannot_use_refuses_a_start(place):
    node = place.node()
    (root(place) / "nodes" / "gpu-0" / "ranks").write_text("")
    with refused(PermanentKind.AUTH, "the runner refused"):
        place.start(node, "a-0.1", "true")


def test_of_nodes_that_ran_nothing_no_process_is_asked(place, monkeypatch):
    used, idle = place.node("gpu-0"), place.node("gpu-1")
    place.start(used, "a-0.1", "true")
    gone = place.wanted("node", "gpu-2", NODE)
    monkeypatch.setattr(machine.BareTransport, "run", broken)
    assert place.provider.unused([used, idle, gone]) == ("gpu-1",)


def test_where_a_later_writer_saw_nothing_an_earlier_one_starts_nothing(tmp_path):
    early, late = local(tmp_path, fence=lambda: 9), local(tmp_path, fence=lambda: 10)
    address = Address("node", "gpu-0")
    node = Record(address=address, backend="local", inputs=NODE, outputs=early.create(address, "t", NODE, {}))
    assert early.unused([node]) == late.unused([node]) == ("gpu-0",)
    assert early.unused([node]) == ()
    for call in (lambda: early.start(node, launch("a-0.1", "true")), lambda: early.attempts(node)):
        with pytest.raises(PermanentError, match=r"a later command was here \(10, and this is 9\)"):
            call()
    assert late.unused([node]) == ()  # the refused start left its folder: the runner says what that is
    assert late.attempts(node) == {}


def test_a_late_writer_changes_nothing(tmp_path):
    """A look by a later one is enough; and nothing of the count is left once everything is gone."""
    now = [9]
    early = local(tmp_path, fence=lambda: 9)
    late = local(tmp_path, fence=lambda: now[0])
    address, inputs = Address("volume", "data"), dict(VOLUME)
    made = Record(
        address=address, backend="local", inputs=inputs, outputs=early.create(address, "t", inputs, {})
    )
    now[0] = 10
    assert [thing.address for thing in late.inventory()] == [address]
    for call in (
        lambda: early.delete(made),
        lambda: early.create(Address("volume", "more"), "u", inputs, {}),
        lambda: early.update(made, "t", inputs),
        early.inventory,
    ):
        with pytest.raises(PermanentError, match=r"a later command was here \(10, and this is 9\)"):
            call()
    late.delete(made)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_changes_at_the_same_time_share_one_lock(tmp_path, monkeypatch):
    """It holds until the last of them ends: no later writer raises the number before."""
    locks = Mock(wraps=fcntl.flock)
    monkeypatch.setattr("providers.local.files.fcntl.flock", locks)
    early = Epoch(tmp_path / ".epoch", lambda: 9, ())
    late = Epoch(tmp_path / ".epoch", lambda: 10, ())
    with early.as_writer():
        taken = locks.call_count
        with early.as_writer():
            assert locks.call_count == taken
        with pytest.raises(TransientError, match="in the middle of a change"), late.as_writer():
            raise AssertionError
    with late.as_writer():
        pass
    refused = r"a later command was here \(10, and this is 9\)"
    with pytest.raises(StaleError, match=refused), early.as_writer():
        raise AssertionError


def test_a_number_is_not_raised_while_others_share_the_lock(tmp_path):
    """Nor do they lose it by the try."""
    number = [9]
    one = Epoch(tmp_path / ".epoch", lambda: number[0], ())
    later = Epoch(tmp_path / ".epoch", lambda: 11, ())
    with one.as_writer():
        number[0] = 10
        for other in (one, later):
            with pytest.raises(TransientError, match="in the middle of a change"), other.as_writer():
                raise AssertionError
    with one.as_writer():
        pass
    assert (tmp_path / ".epoch").read_text() == "10\n"


def test_a_thing_is_removed_after_one_that_was_gone_already(place):
    """The first delete of this command is of a volume that somebody removed."""
    volume, node, command = place.volume("data-0"), place.node("gpu-0"), place.provider
    shutil.rmtree(root(place) / "volumes" / "data-0")
    command.delete(volume)
    command.delete(node)
    assert not (root(place) / "nodes" / "gpu-0").exists()
