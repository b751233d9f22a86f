"""Volumes and attachments, the same in all clouds: `providers.cloud.provider`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from declarative.model.state import Address, Record
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud.any.account import Account
from providers.cloud.bad_answers import Scrub
from providers.cloud.hosts import OnNode, _fault
from providers.cloud.provider import Cloud
from providers.runner import RunnerError
from tests.support.model import of_node, of_volume

NODE = Record(address=Address("node", "gpu-0"), backend="lab", inputs=of_node(), outputs={"id": "i-1"})
VOLUME = Record(address=Address("volume", "data"), backend="lab", inputs=of_volume(), outputs={"id": "vol-1"})
HELD = Record(address=Address("attachment", "a-0.data"), backend="lab", inputs={}, outputs={"id": "held"})


class Parts:
    """A driver, and the node's disks, that say what they were asked for."""

    scrub = Scrub()

    def __init__(self, unmount: Callable[[], None] = lambda: None, **on_node: Any) -> None:
        self.asked: list[str] = []
        self._unmount = unmount
        self.found: OnNode | None = OnNode(id="vol-1", node=NODE, size=2, ours=True, **on_node)

    def on_node(self, have: Record) -> OnNode | None:
        return self.found

    def delete(self, have: Record, *, wait: bool = True) -> None:
        self.asked.append("detach" if wait else "detach, and do not wait")

    def update(self, have: Record, token: str, inputs: Any) -> dict[str, Any]:
        self.asked.append("update")
        return dict(have.outputs)

    def check(self) -> None:
        """As keys that can be used."""

    def unmount(self, disk: OnNode, about: str) -> None:
        self.asked.append("unmount")
        self._unmount()

    def grow(self, volume: Record, disk: OnNode) -> None:
        self.asked.append("grow")


def cloud(parts: Any) -> Cloud:
    config = Config(backend="lab", project_dir=Path(), lineage="us")
    account: Any = Account(config, {}, lambda account, region: parts, cloud="Lab")
    found = Cloud(account)
    found._mounts = found._keys = found._nodes = found._volumes = found._attachments = parts
    return found


def away() -> None:
    raise TransientError(TransientKind.NOT_SENT, "it is silent", away=True)


def busy() -> None:
    raise TransientError(TransientKind.BUSY, "somebody is in it")


def test_it_is_unmounted_before_it_is_detached():
    parts = Parts()
    cloud(parts).delete(HELD)
    assert parts.asked == ["unmount", "detach"]


def test_where_nobody_has_mounted_anything_nobody_is_asked():
    """The node was never ready, or no node runs."""
    parts = Parts(taken=False)
    cloud(parts).delete(HELD)
    parts.found = None
    cloud(parts).delete(HELD)
    assert parts.asked == ["detach", "detach"]


def test_what_is_in_use_is_not_detached():
    parts = Parts(busy)
    for _ in range(3):
        with pytest.raises(TransientError):
            cloud(parts).delete(HELD)
    assert parts.asked == ["unmount"] * 3


def test_a_node_that_is_silent_again_is_not_waited_for():
    """Its end is that of its attachments: nothing would ever be deleted if that had to wait for it."""
    parts = Parts(away)
    found = cloud(parts)
    with pytest.raises(TransientError):
        found.delete(HELD)
    found.delete(HELD)
    assert parts.asked == ["unmount", "unmount", "detach, and do not wait"]


@pytest.mark.parametrize(("size", "asked"), [("2GB", ["update", "grow"]), ("1GB", ["update"])])
def test_a_filesystem_grows_with_its_volume(size, asked):
    parts = Parts()
    cloud(parts).update(VOLUME, "t", of_volume(size=size))
    assert parts.asked == asked


def test_a_cloud_that_cannot_adopt_says_so():
    with pytest.raises(PermanentError, match="cannot adopt volumes") as caught:
        cloud(Parts()).create(VOLUME.address, "t", {"volume_id": "vol-2"}, {})
    assert (caught.value.kind, caught.value.about) == (PermanentKind.INVALID, "volume_id")


def test_what_a_cloud_has_not_the_plan_says():
    """Of a fleet's reservation once."""
    nodes = {Address("node", f"gpu-{i}"): of_node(reservation="cr-1") for i in range(3)}
    theirs = {VOLUME.address: of_volume(volume_id="vol-2")}
    wanted = {**nodes, Address("node", "cpu-0"): of_node("cpu"), **theirs}
    found = cloud(Parts()).check(wanted)
    assert [(f.summary.split(":")[0], f.about) for f in found] == [
        ("node/gpu-0", "reservation"),
        (str(VOLUME.address), "volume_id"),
    ]
    able = cloud(Parts())
    able.ADOPTS, able.CAN = True, frozenset({"reservation"})
    assert able._unsupported(wanted) == []


@pytest.mark.parametrize(
    ("code", "sudo", "kind", "hint"),
    [
        ("absent", True, TransientKind.BUSY, None),
        ("busy", True, TransientKind.BUSY, None),
        ("failed", False, TransientKind.AMBIGUOUS, None),
        ("failed", True, PermanentKind.INVALID, "`ssh_user: root`"),
        ("data", True, PermanentKind.CONFLICT, "is not formatted"),
        ("stranger", True, PermanentKind.CONFLICT, "lsblk"),
        ("kind", True, PermanentKind.INVALID, "ext4 or xfs"),
        ("tools", True, PermanentKind.INVALID, "image"),
        ("fault", True, PermanentKind.INVALID, None),
    ],
)
def test_what_the_node_refuses_is_said(code, sudo, kind, hint):
    """Where, what, and what to do; a node without sudo is one that cannot mount."""
    disk = OnNode(id="vol-1", node=NODE, size=1, ours=True)
    found = _fault(RunnerError(code, "its words"), disk, "volume/data", sudo=sudo)
    assert isinstance(found, TransientError | PermanentError)
    assert (found.kind, found.about) == (kind, "volume/data")
    assert "node/gpu-0" in found.summary
    assert found.summary.endswith("its words")
    assert (hint or "") in (found.hint or "")


def test_a_disk_is_looked_for_by_words_alone():
    """A short one would be the end of many links; an id of any form has a folder."""
    disk = OnNode(id="zone/a b", node=NODE, size=1, ours=True, serials=("vol01234567", "a", "a*b", ""))
    assert (disk.words, disk.folder) == (["serial:vol01234567"], "zone-a-b")
