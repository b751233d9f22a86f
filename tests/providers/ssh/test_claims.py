"""Whose node a host is, and the volumes on its disk: the hosts' own scripts, run here, without a connection.

`tests/providers/ssh` runs the same over real ssh.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declarative.model.inputs import VolumeInputs, inputs_of
from declarative.model.state import Address, Record
from declarative.provider import PermanentError, PermanentKind
from providers.ownership import key_of
from providers.runner import RunnerError
from providers.ssh import scripts
from providers.ssh.claims import Claim, Claims, HostClaims, Volume, Volumes, _lost, claims_in
from providers.ssh.host import Host
from providers.ssh.transport import NOT_FOUND
from providers.transport import ConnectionLost, Finished, LocalTransport
from tests.support.model import of_attachment, of_node, of_volume

NODE = Address("node", "gpu-0")
DATA = Address("volume", "data")
HELD = Address("attachment", "train-0-data")


class Here(LocalTransport):
    """A connection to this machine, with what it remembers."""

    host = Host(hostname="here")

    def __init__(self, epoch: int | None = None) -> None:
        self.known: dict[str, Any] = {}
        self.fence = lambda: epoch
        self.ran: list[str] = []
        self.answers: list[bytes] = []

    def run(self, argv: Sequence[str], stdin: Any = b"", timeout: float | None = None) -> Finished:
        self.ran += argv
        done = super().run(argv, stdin, timeout)
        self.answers.append(done.stdout)
        if done.exit_code in NOT_FOUND:
            self.known.clear()
        return done

    def learnt(self, key: str, value: object) -> None:
        self.known.setdefault(key, value)

    def forget(self) -> None:
        self.known.clear()

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state"


def claims(root: Path, owner: str = "me", *, epoch: int | None = None) -> Claims:
    here: Any = Here(epoch)
    return Claims(here, str(root), owner)


def volumes(root: Path, owner: str = "me", *, epoch: int | None = None) -> Volumes:
    here: Any = Here(epoch)
    return Volumes(here, str(root), owner)


def node(token: str = "n1", owner: str = "me", **outputs: Any) -> Claim:
    return Claim(owner=owner, address=NODE, token=token, inputs=of_node(), outputs=outputs)


def sized(size: str = "1MB", **more: Any) -> tuple[dict[str, Any], VolumeInputs]:
    inputs = {**of_volume(backend="ssh", region="ssh", zone="here"), "size": size, **more}
    asked = inputs_of("volume", inputs)
    assert isinstance(asked, VolumeInputs)
    return inputs, asked


def made(at: Volumes, token: str = "v1", size: str = "1MB") -> Record:
    inputs, asked = sized(size)
    outputs = at.create(DATA, token, inputs, asked)
    return Record(address=DATA, backend="ssh", inputs=inputs, outputs=outputs, generation=1)


def attached(at: Volumes, volume: Record, token: str = "a1", on: str | None = None) -> Record:
    inputs = of_attachment("train-0", "gpu-0", "data")
    outputs = at.attach(HELD, token, inputs, volume, on or node().key)
    return Record(address=HELD, backend="ssh", inputs=inputs, outputs=outputs, generation=1)


def refused(kind: PermanentKind, call: Callable[[], object]) -> PermanentError:
    with pytest.raises(PermanentError) as caught:
        call()
    assert caught.value.kind is kind
    return caught.value


def contents(root: Path) -> HostClaims:
    return volumes(root).look()


# ------------------------------------------------------------------------------------------ the host


def test_a_host_is_one_node_at_a_time(root: Path) -> None:
    """Whoever comes second gets the claim that holds, and the words for whose it is."""
    assert claims(root).read() is None
    mine = node(path="/x")
    assert claims(root).take(mine) == mine
    assert claims(root, "other").take(node("n2", "other")) == mine
    assert claims(root).take(node("n3")) == mine
    assert claims(root).read() == mine
    foreign = claims(root, "other").taken(mine)
    assert (foreign.kind, foreign.about) == (PermanentKind.CONFLICT, "node/gpu-0")
    assert foreign.summary == "here is node/gpu-0 of another state (lineage me)"
    assert "options.root" in str(foreign.hint)
    own = claims(root).taken(mine)
    assert (own.summary, "declared under two names" in str(own.hint)) == ("here is node/gpu-0 already", True)


def test_only_its_own_claim_is_replaced(root: Path) -> None:
    """By its own key, or by the one that is given: of the create before."""
    first = node()
    claims(root).take(first)
    claims(root).change(replace(first, outputs={"path": "/y"}))
    assert claims(root).read() == replace(first, outputs={"path": "/y"})
    later = node("n2")
    with pytest.raises(RunnerError, match="not this node any more"):
        claims(root).change(later)
    claims(root).change(later, first.key)
    assert claims(root).read() == later


def test_only_its_own_claim_is_given_back(root: Path) -> None:
    """With the last thing the folder goes, and what the connection knew of it."""
    mine = node()
    at: Any = Here()
    host = Claims(at, str(root), "me")
    host.take(mine)
    host.release(key_of("n2"))
    assert (host.read(), bool(at.known)) == (mine, True)
    host.release(mine.key)
    assert (root.exists(), at.known) == (False, {})


def test_a_claim_that_went_meanwhile_is_no_answer(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "ask", lambda *_: b"FLEETFORM-CLAIM 0\n")
    monkeypatch.setattr(scripts, "enter", lambda *_: scripts.Entered(root=str(root), cpus=(), script="x"))
    with pytest.raises(ConnectionLost, match="here was taken and given back meanwhile"):
        claims(root).take(node())


def test_a_folder_that_another_project_removed_is_a_lost_answer(root: Path) -> None:
    """Its script went with it: the next try puts it there."""
    at: Any = Here()
    host = Claims(at, str(root), "me")
    host.take(node())
    shutil.rmtree(root)
    with pytest.raises(ConnectionLost, match="the state folder of here was taken away"):
        host.read()
    assert host.read() is None


def test_a_writer_of_the_past_changes_nothing(root: Path) -> None:
    """Neither the claim nor a volume, though the folder is there."""
    claims(root, epoch=7).take(node())
    data = made(volumes(root, epoch=7))
    for late in (
        lambda: claims(root, epoch=6).release(node().key),
        lambda: claims(root, epoch=6).take(node("n2")),
        lambda: made(volumes(root, epoch=6), "v2"),
        lambda: volumes(root, epoch=6).delete(data),
    ):
        with pytest.raises(RunnerError) as caught:
            late()
        assert caught.value.code == "stale"
    assert (claims(root).read(), len(contents(root).volumes)) == (node(), 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "no JSON\n",
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: "0123456789abcdef\n" + text.partition("\n")[2],
        lambda text: text.replace('"me"', "null"),
    ],
    ids=["text", "version", "key", "owner"],
)
def test_a_damaged_claim_is_named_with_its_file(root: Path, damage: Callable[[str], str]) -> None:
    claims(root).take(node())
    file = root / "claim"
    file.write_text(damage(file.read_text()))
    error = refused(PermanentKind.INVALID, claims(root).read)
    assert error.summary == "the claim of here cannot be read: damaged, or of another version"
    assert f"the file `claim` in {root} on it" in str(error.hint)


# ----------------------------------------------------------------------------------------- volumes


def test_one_create_makes_one_volume(root: Path) -> None:
    """Asked for again it is found, as it was made; a reader makes no folder."""
    assert (contents(root), root.exists()) == (HostClaims(node=None, volumes=()), False)
    data = made(volumes(root))
    Path(str(data.outputs["path"]), "file").write_text("kept")
    assert made(volumes(root), size="2MB").outputs == data.outputs
    (there,) = contents(root).volumes
    assert (there.claim.address, there.claim.inputs["size"], there.held) == (DATA, "1MB", None)
    assert Path(str(data.outputs["path"]), "file").read_text() == "kept"


def test_the_host_needs_the_space_of_a_volume(root: Path) -> None:
    """When it is made, and for what it grows by. Other refusals are not about space."""
    error = refused(PermanentKind.NO_CAPACITY, lambda: made(volumes(root), size="900TB"))
    assert (error.about, error.summary.endswith("free, volume/data is to have 900TB")) == (
        "volume/data",
        True,
    )
    assert error.summary.startswith("here has ")
    data = made(volumes(root))
    much, grown = sized("900TB"), sized("2MB")
    refused(PermanentKind.NO_CAPACITY, lambda: volumes(root).update(data, *much))
    assert volumes(root).update(data, *grown) == data.outputs
    (there,) = contents(root).volumes
    assert there.claim.inputs["size"] == "2MB"


def test_a_volume_of_another_state_is_not_there(root: Path) -> None:
    """It is neither changed, attached nor deleted, though its record says where it is."""
    data = made(volumes(root))
    claims(root).take(node())
    other = volumes(root, "other")
    for use in (lambda: other.update(data, *sized("2MB")), lambda: attached(other, data)):
        assert refused(PermanentKind.NOT_FOUND, use).summary == "volume/data is not there"
    other.delete(data)
    assert len(contents(root).volumes) == 1
    assert [c.address for c in contents(root).of("me")] == [NODE, DATA]
    assert [*contents(root).of("other")] == []
    assert [thing.address for thing in contents(root).things("me")] == [NODE, DATA]


def test_a_volume_that_is_gone_is_not_there(root: Path) -> None:
    """Also where the whole state folder is gone; to delete it is done then."""
    data = made(volumes(root))
    volumes(root).delete(data)
    for _ in range(2):
        volumes(root).delete(data)
        assert not root.exists()
        refused(PermanentKind.NOT_FOUND, lambda: volumes(root).update(data, *sized()))
        refused(PermanentKind.NOT_FOUND, lambda: volumes(root).ready(node().key, [data]))


def test_a_volume_has_one_holder(root: Path) -> None:
    """It is deleted by nobody as long as it is attached, and attached a second time to nobody."""
    claims(root).take(node())
    data = made(volumes(root))
    held = attached(volumes(root), data)
    assert held.outputs["path"] == data.outputs["path"]
    assert attached(volumes(root), data).outputs == held.outputs
    second = refused(PermanentKind.CONFLICT, lambda: attached(volumes(root), data, "a2"))
    assert second.summary == "volume/data is held by attachment/train-0-data, on node/gpu-0"
    assert "one holder at a time" in str(second.hint)
    mine = refused(PermanentKind.CONFLICT, lambda: volumes(root).delete(data))
    assert (mine.summary, mine.hint) == (second.summary, "detach it first")
    assert [c.address for c in contents(root).of("me")] == [NODE, DATA, HELD]
    later = replace(held, outputs={**held.outputs, "id": f"{HELD}.{key_of('a2')}"})
    volumes(root).detach(later)  # of another attachment
    assert contents(root).volumes[0].held is not None
    volumes(root).detach(held)
    assert contents(root).volumes[0].held is None
    volumes(root).delete(data)
    assert contents(root).volumes == ()


@pytest.mark.parametrize("used", ["v1", "v2"])
def test_each_volume_is_found_by_its_own_key(root: Path, used: str) -> None:
    """Whichever comes first in the folder, and though both have one address."""
    claims(root).take(node())
    both = {token: made(volumes(root), token) for token in ("v1", "v2")}
    held = attached(volumes(root), both.pop(used))
    assert held.outputs["path"] == f"{root}/volumes/{key_of(used)}/data"
    (free,) = both.values()
    volumes(root).update(free, *sized("2MB"))
    assert {v.claim.token: v.claim.inputs["size"] for v in contents(root).volumes}[used] == "1MB"
    volumes(root).delete(free)
    assert [v.claim.token for v in contents(root).volumes] == [used]


@pytest.mark.parametrize("part", ["id", "path"])
def test_a_record_that_names_no_attachment_detaches_nothing(root: Path, part: str) -> None:
    """Its parts are words of a script on the host."""
    claims(root).take(node())
    held = attached(volumes(root), made(volumes(root)))
    at: Any = Here()
    for odd in ("", "../../x", "abcdef012345678!", "abc"):
        value = f"/x/{odd}/data" if part == "path" else f"{HELD}.{odd}"
        Volumes(at, str(root), "me").detach(replace(held, outputs={**held.outputs, part: value}))
    assert at.ran == []


@pytest.mark.parametrize(
    ("address", "id"),
    [(NODE, f"{NODE}.{key_of('v1')}"), (DATA, ""), (DATA, f"{DATA}.short"), (DATA, f"{DATA}.{'!' * 16}")],
)
def test_what_is_no_volume_of_a_host_is_not_deleted(root: Path, address: Address, id: str) -> None:
    data = made(volumes(root))
    odd = replace(data, address=address, outputs={"id": id})
    error = refused(PermanentKind.NOT_FOUND, lambda: volumes(root).delete(odd))
    assert error.summary == f"{address} is not a volume of a host"
    assert len(contents(root).volumes) == 1


def test_a_rank_gets_no_volume_that_lost_its_data_or_is_elsewhere(root: Path) -> None:
    claims(root).take(node())
    data = made(volumes(root))
    volumes(root).ready(node().key, [data])
    elsewhere = refused(PermanentKind.INVALID, lambda: volumes(root).ready(key_of("n2"), [data]))
    assert elsewhere.summary == "volume/data: the host of the volume is not that node"
    Path(str(data.outputs["path"])).rmdir()
    lost = refused(PermanentKind.NOT_FOUND, lambda: volumes(root).ready(node().key, [data]))
    assert lost.summary.startswith("volume/data: it has lost its data")


def test_other_refusals_of_a_host_stay_what_they_are(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for what it understands a provider has words of its own."""
    data = made(volumes(root))

    def refuse(*_: object, **__: object) -> bytes:
        raise RunnerError("unwritable", "the disk")

    monkeypatch.setattr(scripts, "inline", refuse)
    at = volumes(root)
    at._transport.learnt(scripts._known_as(str(root)), scripts.Entered(root=str(root), cpus=(), script="x"))
    for call in (lambda: at.ready(node().key, [data]), lambda: made(at)):
        with pytest.raises(RunnerError, match="the disk"):
            call()


def test_with_the_last_volume_goes_what_the_connection_knew(root: Path) -> None:
    at: Any = Here()
    here = Volumes(at, str(root), "me")
    data = made(here)
    made(here, "v2")
    here.delete(data)
    assert at.known
    here.delete(replace(data, outputs={"id": f"{DATA}.{key_of('v2')}"}))
    assert (root.exists(), at.known) == (False, {})


def test_what_was_removed_meanwhile_is_a_lost_answer(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is whole, and names no volume; or the volume is there, and its holder went."""
    claims(root).take(node())
    data, at = made(volumes(root)), volumes(root)
    monkeypatch.setattr(at, "_ask", lambda *_, **__: HostClaims(node=None, volumes=()))
    with pytest.raises(ConnectionLost, match="on here was removed meanwhile"):
        made(at)
    (there,) = contents(root).volumes
    monkeypatch.setattr(at, "_ask", lambda *_, **__: HostClaims(node=None, volumes=(there,)))
    with pytest.raises(ConnectionLost, match="volume/data was taken and given back meanwhile"):
        attached(at, data)


def test_an_answer_that_was_cut_off_is_a_lost_answer(root: Path) -> None:
    """Wherever it ends: what is missing must not count as not there."""
    claims(root).take(node())
    attached(volumes(root), made(volumes(root)))
    at: Any = Here()
    whole = Volumes(at, str(root), "me").look()
    answer = at.answers[-1]
    assert claims_in(answer, at, str(root)) == whole
    assert (whole.node, len(whole.volumes)) == (node(), 1)
    for end in range(len(answer) - len("\n")):
        with pytest.raises((ConnectionLost, PermanentError)):
            claims_in(answer[:end], at, str(root))
    for odd in (b"claim 1\n", b"claim one 0\n"):
        with pytest.raises(ConnectionLost):
            claims_in(b"FLEETFORM-VOLUMES\n" + odd + b"xFLEETFORM-END\n", at, str(root))


def test_a_volume_whose_content_vanished_says_so_to_its_owner() -> None:
    def volume(name: str, owner: str, lost: str | None) -> Volume:
        claim = Claim(
            owner=owner, address=Address("volume", name), token=name, inputs=of_volume(), outputs={}
        )
        return Volume(claim=claim, held=None, lost=lost)

    found = HostClaims(
        node=node(), volumes=(volume("a", "me", "gone"), volume("b", "me", None), volume("c", "you", "gone"))
    )
    for owner, lost in (("me", {"gpu-0": None, "a": "gone", "b": None}), ("you", {"c": "gone"})):
        assert {thing.address.name: thing.lost for thing in found.things(owner)} == lost


@pytest.mark.parametrize(
    ("told", "lost"),
    [
        (["data", "/v"], "its data are gone: /v/data is no folder"),
        (["data"], None),
        (["other", "/v"], None),
        ([], None),
    ],
)
def test_only_what_a_host_knows_of_a_volume_is_taken_from_it(told: list[str], lost: str | None) -> None:
    assert _lost(told) == lost
