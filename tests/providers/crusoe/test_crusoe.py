"""The driver `crusoe` against the small Crusoe Cloud, judged by Crusoe's description where that is there."""

from __future__ import annotations

import base64
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import time as real_time
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from declarative.model.state import Address, token
from declarative.model.status import NodeState
from declarative.provider import (
    Config,
    Ended,
    PermanentError,
    PermanentKind,
    TransientError,
    TransientKind,
)
from providers.cloud import account, cloud
from providers.cloud.any import account as any_account
from providers.cloud.any import crusoe
from providers.cloud.any.crusoe import signed, start_script
from providers.cloud.keys import user_data
from providers.ssh.key_pairs import HostKey
from providers.testing import NODE, VOLUME, Conformance, Spoilt
from tests.providers.cloud import described
from tests.providers.cloud.fleet import Fleet
from tests.providers.cloud.stand_in import Clock, Fault, Pace
from tests.providers.cloud.web import LOST, Answer, Asked, Web
from tests.providers.crusoe.server import CENTRAL, EAST, FABRIC, KEY_ID, PROJECT, SECRET, SUBNET, Crusoe
from tests.providers.crusoe.server import signature as signature_of_the_server
from tests.support.cli import Project

DESCRIPTION = "crusoe-v1.openapi.json"
VMS, DISKS = f"/v1/projects/{PROJECT}/compute/vms/instances", f"/v1/projects/{PROJECT}/storage/disks"
PARTITIONS = f"/v1/projects/{PROJECT}/networking/ib-partitions"
PLACE = {"region": EAST, "backend": "cru"}
TYPE, BIG = "l40s-48gb.1x", "h100-80gb-sxm-ib.8x"
IN_CENTRAL = {"region": CENTRAL, "instance_type": BIG}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Crusoe's keys, and a home without others."""
    monkeypatch.setenv("CRUSOE_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("CRUSOE_SECRET_KEY", SECRET)
    monkeypatch.setenv("CRUSOE_DEFAULT_PROJECT", PROJECT)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of the cloud and of the driver: requests take some, and waiting takes none here."""
    made = Clock(tick=0.1)
    time = SimpleNamespace(monotonic=made.now, sleep=made.advance)
    monkeypatch.setattr(account, "time", time)
    monkeypatch.setattr(any_account, "time", time)
    monkeypatch.setattr("providers.cloud.any.nodes.time", SimpleNamespace(**vars(time), time=real_time))
    monkeypatch.setattr("providers.cloud.any.volumes.time", time)
    return made


def serving(stand_in: Callable[[Asked], Answer]) -> AbstractContextManager[Web]:
    """Crusoe's own clients count on a 404, of which its description does not speak."""
    return described.serving(DESCRIPTION, stand_in, "no answer 404 is described$")


def provider(url: str, folder: Path, lineage: str = "lineage-1", **more: Any) -> Any:
    """A new process, as far as that can be seen: nothing is remembered."""
    any_account._UNCERTAIN.clear()
    any_account._MADE.clear()
    config = Config(
        backend="cru",
        project_dir=folder,
        lineage=lineage,
        driver="crusoe",
        regions=(EAST, CENTRAL),
        endpoint=url,
        image={"*": "ubuntu22.04:latest"},
    )
    found: Any = cloud(replace(config, **more))
    # No host answers behind these machines.
    found.readiness = lambda nodes: {n: s.readiness for n, s in found._nodes.readiness(nodes).items()}
    return found


def fleet_of(url: str, folder: Path, lineage: str = "lineage-1", **more: Any) -> Fleet:
    """That of one state."""
    found = provider(url, folder, lineage, **more)
    return Fleet(found, lineage, {**NODE, **PLACE, "instance_type": TYPE}, {**VOLUME, **PLACE})


@pytest.fixture
def cru(clock: Clock) -> Crusoe:
    return Crusoe(clock)


@pytest.fixture
def web(cru: Crusoe) -> Iterator[Web]:
    with serving(cru) as running:
        yield running


@pytest.fixture
def fleet(web: Web, tmp_path: Path) -> Fleet:
    return fleet_of(web.url, tmp_path)


def made(stand_in: Crusoe) -> list[str]:
    """The ids of the disks that are no VM's own."""
    systems = {
        one["id"] for vm in stand_in.vms.values() for one in vm["disks"] if one["attachment_type"] == "os"
    }
    return [disk for disk in stand_in.disks if disk not in systems]


def nothing_is_left(stand_in: Crusoe) -> bool:
    stand_in.clock.advance(60)
    return not (stand_in.vms or stand_in.disks or stand_in.partitions)


class TestCrusoe(Conformance):
    backend = "cru"
    ranks = False  # there is nothing behind these machines
    crowd = 0
    node_inputs = MappingProxyType({**NODE, **PLACE, "instance_type": TYPE})
    volume_inputs = MappingProxyType({**VOLUME, **PLACE})
    larger = MappingProxyType({**volume_inputs, "size": "2GB"})

    @pytest.fixture(autouse=True)
    def listening(self, clock: Clock) -> Iterator[None]:
        clock.tick = 7.0
        self.server = Crusoe(clock)
        self.server.stock = dict.fromkeys(self.server.stock, 10_000)
        self.server.quota = dict.fromkeys(self.server.quota, 100_000)
        self.faults: list[Callable[[Asked], Answer | None]] = []

        def behind(asked: Asked) -> Answer:
            return next((answer for fault in self.faults if (answer := fault(asked))), None) or self.server(
                asked
            )

        with serving(self.server) as self.web, Web(behind) as self.way:
            yield

    def make(self, folder: Path, lineage: str) -> Any:
        return provider(self.web.url, folder, lineage)

    def test_read_after_create_equals(self, place: Any) -> None:
        """Names say whose things are, and no more: inputs are those of the record."""
        for record in (place.node(), place.volume()):
            found = place.provider.find(record.address, place.token(record))
            assert found in place.provider.inventory()
            assert (found.token, found.known) == (place.token(record), False)
            assert dict(found.outputs) == dict(record.outputs)

    def test_an_update_is_seen_by_all(self, disks: Any) -> None:
        """As far as the cloud knows: a volume's size."""
        record = disks.volume()
        for _ in range(2):
            outputs = disks.provider.update(record, disks.token(record), self.larger)
            assert outputs["id"] == record.outputs["id"]
        (disk,) = self.server.disks.values()
        assert disk["size"] == "2GiB"
        (thing,) = disks.provider.inventory()
        assert thing.token == disks.token(record)

    def test_an_attachment_is_a_thing_as_others(self, disks: Any) -> None:
        """Nothing says for what a disk is attached: it is found by its record, and listed with none."""
        volume, node = disks.volume(), disks.node()
        record = disks.attach("train-0", volume, node)
        assert disks.create(record, volume, node) == record
        found = disks.provider.find(record.address, disks.token(record))
        assert dict(found.outputs) == dict(record.outputs)
        assert list(disks.provider.recall([record])) == [record.address]
        for _ in range(2):
            disks.provider.delete(record)
        assert {thing.address.kind for thing in disks.provider.inventory()} == {"volume", "node"}

    def spoiled(self, folder: Path, lineage: str, how: Spoilt) -> Any:
        if how is Spoilt.NOBODY:
            return provider("http://127.0.0.1:9", folder, lineage)

        def fault(asked: Asked) -> Answer | None:
            if how is Spoilt.SENSELESS:
                return 200, "<html>oops"
            if how is Spoilt.DENIED:
                return 401, {"code": "bad_credential", "message": "no"}
            if asked.line in (f"POST {VMS}", f"POST {DISKS}"):
                self.server(asked)
                return LOST
            return None

        self.faults = [fault]
        return provider(self.way.url, folder, lineage)


del Conformance  # it is no test itself


# ------------------------------------------------------------------------------------------ offers


def test_offers_are_those_with_hardware_free(fleet: Fleet, cru: Crusoe) -> None:
    cru.stock["c1a.2x", CENTRAL] = 0
    cru.types[1]["gpu_type"] = "L40S-48GB"
    offers = {(offer.instance_type, offer.region): offer for offer in fleet.provider.offers()}
    assert sorted(offers) == [("c1a.2x", EAST), (BIG, CENTRAL), (TYPE, EAST)]
    assert {offer.price for offer in offers.values()} == {None}
    assert not any(offer.spot for offer in offers.values())
    shapes = [offers[key].shape for key in ((BIG, CENTRAL), (TYPE, EAST), ("c1a.2x", EAST))]
    assert [(s.gpus, s.gpu_name, s.gpu_memory_mib, s.gpu_vendor) for s in shapes] == [
        (8, "H100", 80 * 1024, "nvidia"),
        (1, "L40S", 48 * 1024, "nvidia"),
        (0, None, None, None),
    ]
    assert (shapes[2].cpu, shapes[2].memory_mib) == (2, 8 * 1024)


@pytest.mark.parametrize(
    ("gpu", "name", "shape"),
    [
        ("A100-PCIe-40GB", "a100.1x", ("A100", 40, "nvidia")),
        ("MI355X_288GB", "mi355x-288gb-roce.8x", ("MI355X", 288, "amd")),
        ("GB200-NVL-186GB", "gb200-186gb-nvl.4x", ("GB200", 186, "nvidia")),
        ("H200-SXM-141GB", "h200-141gb-sxm-ib.8x", ("H200", 141, "nvidia")),
        ("A40", "a40.1x", ("A40", 48, "nvidia")),
        ("NVIDIA A100", "a100-80gb.1x", ("A100", 80, "nvidia")),
    ],
)
def test_gpus_are_known_by_their_many_names(
    fleet: Fleet, cru: Crusoe, gpu: str, name: str, shape: tuple[str, int, str]
) -> None:
    cru.types[1] |= {"gpu_type": gpu, "product_name": name}
    cru.stock[name, EAST] = 1
    (offer,) = (offer for offer in fleet.provider.offers() if offer.instance_type == name)
    assert (offer.shape.gpu_name, offer.shape.gpu_memory_mib, offer.shape.gpu_vendor) == (
        shape[0],
        shape[1] * 1024,
        shape[2],
    )


# ------------------------------------------------------------------------------------------- a life


def test_a_node_and_a_volume_live(fleet: Fleet, cru: Crusoe, web: Web) -> None:
    volume, node = fleet.volume(size="15GB"), fleet.node()
    (body,) = (one.body for one in web.asked if one.line == f"POST {VMS}")
    assert body.pop("startup_script").startswith("#!/bin/sh\nset -- fleetform 47600 ")
    assert body.pop("ssh_public_key").startswith("ssh-ed25519 ")
    assert body.pop("name").endswith("-gpu-0")
    assert body == {
        "type": TYPE,
        "location": EAST,
        "image": "ubuntu22.04:latest",
        "install_crusoe_watch_agent": False,
    }
    assert node.outputs["address"].startswith("172.27.")
    assert node.outputs["public_address"].startswith("198.18.")
    assert node.outputs["host_key"].startswith("ssh-ed25519 ")
    held = fleet.attach(node, volume)
    (disk,) = (cru.disks[one] for one in made(cru))
    assert held.outputs["device"] == f"/dev/disk/by-id/virtio-{disk['serial_number']}"
    assert [thing.address for thing in fleet.provider.inventory()] == [node.address, volume.address]
    with pytest.raises(PermanentError, match="only while it is on none"):
        fleet.provider.update(volume, "t", {**volume.inputs, "size": "20GB"})
    fleet.delete(held)
    fleet.provider.update(volume, "t", {**volume.inputs, "size": "20GB"})
    assert disk["size"] == "20GiB"
    for record in (node, replace(volume, inputs={**volume.inputs, "size": "20GB"})):
        fleet.delete(record)
    assert nothing_is_left(cru)


def test_a_subnet_and_an_image_of_ones_own(web: Web, cru: Crusoe, tmp_path: Path) -> None:
    from declarative.model.spec.backend import Network

    image = next(iter(cru.custom_images))
    network = Network(subnets={EAST: SUBNET})
    fleet_of(web.url, tmp_path, network=network, image={"*": image}).node()
    (body,) = (one.body for one in web.asked if one.line == f"POST {VMS}")
    assert body["custom_image"] == image
    assert body["network_interfaces"][0]["subnet"] == SUBNET
    for odd in (
        Network(security_groups=("g",)),
        Network(public_ip=False),
        Network(subnets={CENTRAL: SUBNET}),
    ):
        with pytest.raises(PermanentError) as raised:
            fleet_of(web.url, tmp_path, network=odd).node("gpu-1")
        assert str(raised.value.about).startswith("network")


def test_what_only_names_cannot_keep_is_refused(fleet: Fleet, cru: Crusoe) -> None:
    for create in (fleet.node, fleet.volume):
        with pytest.raises(PermanentError, match="leave `tags` out"):
            create(tags={"team": "a"})
    with pytest.raises(PermanentError, match="shared volumes are no disks"):
        fleet.volume(volume_type="shared-volume")
    with pytest.raises(PermanentError, match="no spot"):
        fleet.node(spot=True)
    with pytest.raises(PermanentError, match="may have 25 characters"):
        fleet.node("a" * 30)
    assert not cru.vms
    assert not cru.disks


def test_states_share_nothing(fleet: Fleet, cru: Crusoe, web: Web, tmp_path: Path) -> None:
    other = fleet_of(web.url, tmp_path / "other", "lineage-2")
    mine, theirs = fleet.node(), other.node()
    assert [thing.outputs["id"] for thing in fleet.provider.inventory()] == [mine.outputs["id"]]
    fleet.delete(mine)
    cru.clock.advance(60)
    assert list(cru.vms) == [theirs.outputs["id"]]


def test_what_somebody_deleted_is_told(fleet: Fleet, cru: Crusoe) -> None:
    node, other = fleet.node(), fleet.node("gpu-1")
    del cru.vms[node.outputs["id"]]
    (found,) = fleet.provider.recall([node]).values()
    assert isinstance(found, Ended)
    assert "has no VM" in found.reason
    del cru.vms[other.outputs["id"]]
    assert not fleet.provider.recall([node])  # it may be the wrong project


def test_states_of_a_machine(fleet: Fleet, cru: Crusoe) -> None:
    node = fleet.node()
    (vm,) = cru.vms.values()
    for status, state in (
        ("STATE_SHUTOFF", NodeState.NOT_READY),
        ("STOPPED", NodeState.NOT_READY),
        ("STATE_CREATING", NodeState.PROVISIONING),
        ("RUNNING", NodeState.READY),
    ):
        vm["state"] = status
        assert fleet.provider._nodes.readiness([node])["gpu-0"].readiness.state is state


# -------------------------------------------------------------------------------------- InfiniBand


def test_a_cluster_is_in_one_partition_that_goes_with_it(fleet: Fleet, cru: Crusoe) -> None:
    theirs = {"id": "1a2b3c4d-0000-0000-0000-000000000000", "name": "theirs", "ib_network_id": FABRIC}
    cru.partitions[theirs["id"]] = theirs
    nodes = [fleet.node(f"gpu-{number}", **IN_CENTRAL) for number in range(2)]
    (ours,) = (one for one in cru.partitions.values() if one is not theirs)
    adapters = [vm["host_channel_adapters"][0]["ib_partition_id"] for vm in cru.vms.values()]
    assert adapters == [ours["id"]] * 2
    fleet.delete(nodes[0])
    assert len(cru.partitions) == 2
    fleet.delete(nodes[1])
    assert list(cru.partitions.values()) == [theirs]


def test_a_lost_partition_is_found_again(fleet: Fleet, cru: Crusoe) -> None:
    cru.faults = [Fault(line=f"POST {PARTITIONS}")]
    node = fleet.node(**IN_CENTRAL)
    assert len(cru.partitions) == 1
    fleet.delete(node)
    assert nothing_is_left(cru)


def test_a_partition_that_just_went_with_the_last_node_is_made_again(fleet: Fleet, cru: Crusoe) -> None:
    deleted: list[str] = []

    def deleting(asked: Asked) -> Answer:
        if asked.line == f"POST {VMS}" and not deleted:
            deleted.extend(cru.partitions)
            cru.partitions.clear()
        return cru(asked)

    with Web(deleting) as way:
        fleet_of(way.url, fleet.provider._account.config.project_dir).node(**IN_CENTRAL)
    (partition,) = cru.partitions
    assert deleted
    assert deleted != [partition]


def test_a_fabric_without_the_type_is_no_capacity(fleet: Fleet, cru: Crusoe) -> None:
    del cru.stock[BIG, CENTRAL]
    with pytest.raises(PermanentError, match="no InfiniBand network") as raised:
        fleet.node(**IN_CENTRAL)
    assert raised.value.kind is PermanentKind.NO_CAPACITY


# ----------------------------------------------------------------------------------------- refusals


def test_no_capacity_and_quota_are_told_apart(fleet: Fleet, cru: Crusoe) -> None:
    def refused(**more: Any) -> PermanentError:
        with pytest.raises(PermanentError) as raised:
            fleet.node("gpu-1", **more)
        return raised.value

    fleet.node()
    cru.stock[TYPE, EAST] = 0
    error = refused()
    assert (error.kind, error.about) == (PermanentKind.NO_CAPACITY, EAST)
    assert "more `regions`" in str(error.hint)
    cru.quota["l40s-48gb"] = 1
    assert refused().kind is PermanentKind.QUOTA
    assert len(cru.vms) == 1
    with pytest.raises(PermanentError) as raised:
        fleet.volume(size="1000TB")
    assert raised.value.kind is PermanentKind.INVALID
    cru.quota["persistent-ssd"] = 130
    with pytest.raises(PermanentError) as raised:
        fleet.volume(size="10GB")
    assert raised.value.kind is PermanentKind.QUOTA


def test_a_refusal_that_says_nothing_is_looked_into(fleet: Fleet, cru: Crusoe) -> None:
    def refused() -> PermanentKind:
        answer = (400, {"code": "400", "message": "bad_request"})
        cru.faults = [Fault(line=f"POST {VMS}", answer=answer, done=False)]
        with pytest.raises(PermanentError) as raised:
            fleet.node()
        return raised.value.kind

    assert refused() is PermanentKind.INVALID
    cru.stock[TYPE, EAST] = 0
    assert refused() is PermanentKind.NO_CAPACITY
    cru.quota["l40s-48gb"] = 0
    assert refused() is PermanentKind.QUOTA


def test_a_change_that_fails_is_told(fleet: Fleet, cru: Crusoe) -> None:
    """An operation that failed looks like a change that nobody asked for."""
    volume, node, other = fleet.volume(), fleet.node(), fleet.node("gpu-1")
    (disk,) = made(cru)

    def taken(asked: Asked) -> Answer:
        """Somebody attaches it between the request and its end."""
        found = cru(asked)
        if asked.path.endswith("attach-disks") and not cru.disks[disk]["attached_to"]:
            vm = cru.vms[other.outputs["id"]]
            cru._attach(vm, [{"disk_id": disk, "mode": "read-write", "attachment_type": "data"}])
        return found

    with Web(taken) as way:
        there = fleet_of(way.url, fleet.provider._account.config.project_dir)
        with pytest.raises(PermanentError, match="already attached"):
            there.attach(node, volume)


def test_a_disk_that_is_not_deleted_is_no_success(fleet: Fleet, cru: Crusoe) -> None:
    volume = fleet.volume()
    (disk,) = made(cru)

    def held(asked: Asked) -> Answer:
        found = cru(asked)
        if asked.method == "DELETE":
            cru.disks[disk]["attached_to"] = [{"vm_id": "x", "attachment_type": "data", "mode": "read-write"}]
        return found

    with Web(held) as way, pytest.raises(PermanentError, match="is attached"):
        fleet_of(way.url, fleet.provider._account.config.project_dir).delete(volume)
    assert made(cru) == [disk]


def test_a_rate_limit_is_waited_for(fleet: Fleet, cru: Crusoe) -> None:
    cru.pace = Pace(cru.clock, 0, 1)
    with pytest.raises(TransientError) as raised:
        fleet.provider.inventory()
    assert raised.value.kind is TransientKind.THROTTLED
    cru.pace = Pace(cru.clock, 2, 0.3)
    node = fleet.node()
    assert [*cru.vms] == [node.outputs["id"]]


# -------------------------------------------------------------------------------------------- logins


def test_a_request_is_signed_as_crusoe_wants_it() -> None:
    params, when = {"names": "a,b c", "limit": "2", "next_token": "x=~"}, "2026-11-30T00:00:00Z"
    secret = base64.urlsafe_b64decode(SECRET + "==")
    headers = signed(KEY_ID, secret, "GET", "/v1/x", params, when)
    expected = signature_of_the_server("GET", "/v1/x", params, when)
    assert headers["Authorization"] == f"Bearer 1.0:{KEY_ID}:{expected}"


def test_keys_and_project_are_found_as_its_own_tools_find_them(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in crusoe.VARIABLES.values():
        monkeypatch.delenv(name)
    with pytest.raises(PermanentError, match="CRUSOE_ACCESS_KEY_ID is not set") as raised:
        provider(web.url, tmp_path).offers()
    assert raised.value.kind is PermanentKind.AUTH
    assert "export CRUSOE_ACCESS_KEY_ID, or write `credentials: " in str(raised.value.hint)
    file = tmp_path / "home" / ".crusoe" / "config"
    file.parent.mkdir(parents=True)
    keys = f'access_key_id = "{KEY_ID}"\nsecret_key = "{SECRET}"\n'
    file.write_text(f'profile = "work"\n[default]\nsecret_key = "x"\n[work]\n{keys}')
    with pytest.raises(PermanentError, match="default_project") as raised:
        provider(web.url, tmp_path).offers()
    assert raised.value.about == "options.project"
    assert provider(web.url, tmp_path, options={"project": "default"}).offers()
    with pytest.raises(PermanentError, match="0 projects `other`"):
        provider(web.url, tmp_path, options={"project": "other"}).offers()
    file.write_text(f'{file.read_text()}default_project = "default"\n')
    assert provider(web.url, tmp_path).offers()
    monkeypatch.setenv("CRUSOE_PROFILE", "default")
    with pytest.raises(PermanentError, match="access_key_id"):
        provider(web.url, tmp_path).offers()
    monkeypatch.setenv("MY_ID", KEY_ID)
    monkeypatch.setenv("MY_SECRET", "?not base64?")
    credentials = {"key": "MY_ID", "secret": "MY_SECRET"}
    with pytest.raises(PermanentError, match="not base64"):
        provider(web.url, tmp_path, credentials=credentials, options={"project": PROJECT}).offers()
    monkeypatch.setenv("MY_SECRET", f"{SECRET}=")
    assert provider(web.url, tmp_path, credentials=credentials, options={"project": PROJECT}).offers()


def test_a_signature_that_is_quoted_is_not_shown(cru: Crusoe, tmp_path: Path) -> None:
    quoted: list[str] = []

    def quoting(asked: Asked) -> Answer:
        given = next(text for name, text in asked.headers.items() if name.lower() == "authorization")
        quoted.append(given.rpartition(":")[2])
        return 400, {"code": "bad_request", "message": f"no: {given}"}

    with Web(quoting) as way, pytest.raises(PermanentError, match="no: Bearer") as raised:
        provider(way.url, tmp_path).inventory()
    assert len(quoted[0]) == 43
    assert not any(text in str(raised.value) for text in (*quoted, KEY_ID, SECRET))


# ------------------------------------------------------------------------------------- first start


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="it makes users, as root")
@pytest.mark.parametrize("user", ["fleetform", "root"])
def test_the_script_of_the_first_start_does_what_cloud_init_would(tmp_path: Path, user: str) -> None:
    """On a copy of this machine's /etc, in a mount namespace."""
    for name in ("etc", "lib", "home", "sbin", "root"):
        (tmp_path / name).mkdir()
    shutil.copytree(
        "/etc", tmp_path / "etc", symlinks=True, dirs_exist_ok=True, ignore_dangling_symlinks=True
    )
    (tmp_path / "etc" / "ssh").mkdir(exist_ok=True)
    (tmp_path / "etc" / "sudoers.d").mkdir(exist_ok=True)
    (tmp_path / "etc" / "ssh" / "ssh_host_rsa_key").write_text("everybody's")
    key = HostKey(private="-----BEGIN X-----\nit's $HOME `a`\n-----END X-----\n", public="ssh-ed25519 AAAA")
    script = tmp_path / "script"
    script.write_text(start_script(user_data(user, "ssh-ed25519 BBBB a@b", key)))
    places = {"etc": "/etc", "lib": "/var/lib", "home": "/home", "sbin": "/usr/local/sbin", "root": "/root"}
    binds = " && ".join(f"mount --bind {tmp_path / name} {place}" for name, place in places.items())
    # Neither systemd nor a service is there to start again.
    command = f'{binds} && service() {{ echo "$@" >>{tmp_path}/services; }} && set -- && . {script} && exit'
    for _ in range(2):
        subprocess.run(["unshare", "--mount", "sh", "-c", command], check=True, stdin=subprocess.DEVNULL)
        (tmp_path / "etc" / "ssh" / "later").touch()
    home = tmp_path / "root" if user == "root" else tmp_path / "home" / user
    keys = home / ".ssh" / "authorized_keys"
    assert keys.read_text().split("\n")[1:] == ["ssh-ed25519 BBBB a@b", ""]
    assert keys.stat().st_mode & 0o777 == 0o600
    assert keys.stat().st_uid == (0 if user == "root" else 47600)
    host_keys = tmp_path / "etc" / "ssh"
    assert sorted(file.name for file in host_keys.glob("ssh_host*")) == [
        "ssh_host_ed25519_key",
        "ssh_host_ed25519_key.pub",
    ]
    assert (host_keys / "ssh_host_ed25519_key").read_text() == key.private
    assert (host_keys / "ssh_host_ed25519_key").stat().st_mode & 0o777 == 0o600
    rule = tmp_path / "etc" / "sudoers.d" / "90-fleetform"
    program = tmp_path / "sbin" / "fleetform-disk"
    assert rule.exists() is program.exists() is (user != "root")
    if user != "root":
        assert rule.read_text() == "fleetform ALL=(root) NOPASSWD: /usr/local/sbin/fleetform-disk\n"
        assert rule.stat().st_mode & 0o777 == 0o440
        assert program.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "services").read_text() == "ssh restart\n"  # once


# ------------------------------------------------------------------------------------ nothing twice


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize(
    "line", [f"POST {VMS}$", f"POST {DISKS}", "/attach-disks", "/detach-disks", "DELETE"]
)
def test_a_lost_request_makes_nothing_twice(fleet: Fleet, cru: Crusoe, line: str, done: bool) -> None:
    cru.faults = [Fault(line=line, done=done)]
    volume, node = fleet.volume(), fleet.node()
    held = fleet.attach(node, volume)
    assert list(cru.vms) == [node.outputs["id"]]
    assert made(cru) == [volume.outputs["id"]]
    for record in (held, volume, node):
        fleet.delete(record)
    assert not cru.faults
    assert nothing_is_left(cru)


@pytest.mark.parametrize("unique", [True, False])
def test_what_is_listed_late_is_left_once(fleet: Fleet, cru: Crusoe, unique: bool) -> None:
    """Longer than the driver waits: where names are not unique there are two for a moment."""
    cru.late, cru.unique = 30.0, unique
    cru.faults = [Fault(line=f"POST {VMS}$"), Fault(line=f"POST {DISKS}$")]
    node, volume = fleet.node(), fleet.volume()
    cru.clock.advance(60)
    assert list(cru.vms) == [node.outputs["id"]]
    assert made(cru) == [volume.outputs["id"]]


@pytest.mark.parametrize("kind", ["node", "volume"])
def test_what_killed_commands_made_is_left_once(web: Web, cru: Crusoe, tmp_path: Path, kind: str) -> None:
    """The first of two things is listed when the third command looks, and the second is not yet."""
    cru.late = 8.0
    for _ in range(2):
        cru.faults = [Fault(line=f"POST ({VMS}|{DISKS})$")]
        there, address = provider(web.url, tmp_path), Address(kind, "one-0")
        inputs = {**NODE, **PLACE, "instance_type": TYPE} if kind == "node" else {**VOLUME, **PLACE}
        with pytest.raises(TransientError):
            there.create(address, token("lineage-1", address, 1, None), inputs, {})
        cru.clock.advance(5)
    record = getattr(fleet_of(web.url, tmp_path), kind)("one-0")
    cru.clock.advance(60)
    assert [*(cru.vms if kind == "node" else made(cru))] == [record.outputs["id"]]


def test_pages_shift_while_they_are_read(fleet: Fleet, cru: Crusoe) -> None:
    """One VM goes, and another comes."""
    cru.page = 2
    nodes = [fleet.node(f"gpu-{number}") for number in range(5)]
    shifted: list[str] = []

    def shift(asked: Asked) -> Answer:
        if asked.line == f"GET {VMS}" and asked.params.get("next_token") and not shifted:
            first = min(cru.vms, key=lambda vm: (cru.vms[vm]["name"], vm))
            cru.vms["ffffffff-0000-0000-0000-000000000000"] = {**cru.vms.pop(first), "name": "a-theirs"}
            shifted.append(first)
        return cru(asked)

    with Web(shift) as way:
        found = provider(way.url, fleet.provider._account.config.project_dir).inventory()
    assert {thing.outputs["id"] for thing in found} >= {node.outputs["id"] for node in nodes} - {*shifted}
    assert shifted


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_nothing_is_lost_or_made_twice(tmp_path: Path, clock: Clock, seed: int) -> None:
    """A command, a request or its answer is lost, where a seed says so; the next command goes on.
    In the end all is there once, and then nothing is.
    """
    luck, stand_in = random.Random(seed), Crusoe(clock)
    stand_in.late, stand_in.boot = luck.choice(((2.0, 5.0), (8.0, 60.0), (0.0, 20.0)))
    stand_in.unique = luck.random() < 0.5
    where = IN_CENTRAL if luck.random() < 0.5 else {}
    state = {"on": True}

    class KilledError(BaseException):
        """The command's end."""

    def behind(asked: Asked) -> Answer:
        chance = luck.random() if state["on"] else 1.0
        if chance < 0.08:
            return LOST
        answer = stand_in(asked)
        return LOST if chance < 0.2 else answer

    def until_done(step: Callable[[Fleet], Any]) -> Any:
        while True:
            fleet = fleet_of(server.url, tmp_path)
            if luck.random() < 0.3:
                dying = luck.randrange(1, 12)
                real = fleet.provider._account.config.fence
                left = iter(range(dying))

                def fence(real: Any = real, left: Iterator[int] = left) -> None:
                    real()
                    if next(left, None) is None:
                        raise KilledError

                fleet = fleet_of(server.url, tmp_path, fence=fence)
            try:
                return step(fleet)
            except KilledError:
                clock.advance(luck.uniform(0.3, 5))  # the next command has to start

    with serving(behind) as server:
        volume = until_done(lambda f: f.volume(region=CENTRAL if where else EAST))
        node = until_done(lambda f: f.node(**where))
        held = until_done(lambda f: f.attach(node, volume))
        stand_in.clock.advance(60)
        assert list(stand_in.vms) == [node.outputs["id"]]
        assert made(stand_in) == [volume.outputs["id"]]
        for record in luck.choice(((held, volume, node), (held, node, volume))):
            until_done(partial(Fleet.delete, record=record))
        assert nothing_is_left(stand_in)
        state["on"] = False
        assert fleet_of(server.url, tmp_path).provider.inventory() == ()


@pytest.mark.slow
def test_the_command_takes_the_next_offer_and_destroys(cru: Crusoe, web: Web, tmp_path: Path) -> None:
    """The first type is listed with hardware, and out of stock when it is asked for."""
    cru.clock.tick = 7.0  # the command has its own clock
    cru.types.append({**cru.types[1], "product_name": "l40s-48gb.1y"})
    cru.stock["l40s-48gb.1y", EAST] = 5
    taken: list[str] = []

    def behind(asked: Asked) -> Answer:
        if asked.line == f"POST {VMS}" and asked.body["type"] == TYPE:
            cru.stock[TYPE, EAST] = 0
            taken.append(TYPE)
        return cru(asked)

    with Web(behind) as way:
        project = Project(tmp_path)
        env = {name: os.environ[name] for name in crusoe.VARIABLES.values()}
        project.declare(
            {
                "type": "backend",
                "name": "cru",
                "driver": "crusoe",
                "regions": [EAST],
                "endpoint": way.url,
                "image": "ubuntu22.04:latest",
                "catalog": [
                    {
                        "instance_type": name,
                        "cpu": 8,
                        "memory": "147GB",
                        "gpu": "L40S:1",
                        "price": price,
                    }
                    for name, price in ((TYPE, 1), ("l40s-48gb.1y", 2))
                ],
            },
            {
                "type": "fleet",
                "name": "gpu",
                "backends": ["cru"],
                "nodes": 1,
                "fallback": "any",
                "resources": {"gpu": "L40S:1"},
                "prevent_destroy": False,
            },
            {
                "type": "volume",
                "name": "data",
                "backend": "cru",
                "region": EAST,
                "size": "3GB",
                "prevent_destroy": False,
            },
        )
        project.apply(env=env)
        assert taken
        assert [vm["type"] for vm in cru.vms.values()] == ["l40s-48gb.1y"]
        assert [cru.disks[disk]["size"] for disk in made(cru)] == ["3GiB"]
        assert project.plan(env=env)["actions"] == []
        project.run("destroy", "--auto-approve", env=env)
    assert nothing_is_left(cru)
    assert SECRET not in (tmp_path / ".fleetform" / "state.db").read_bytes().decode("latin-1")
