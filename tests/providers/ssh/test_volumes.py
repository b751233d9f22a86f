"""Volumes on hosts' own disks, and folders of the hosts themselves: the installed command, real hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from declarative.model.state import Address, Record, token
from declarative.provider import Config, PermanentError, PermanentKind
from declarative.store import open_store
from providers.ssh import Ssh
from providers.testing import launch
from tests.providers.ssh.machines import Machines
from tests.providers.ssh.nodes import Nodes, fields
from tests.providers.ssh.rack import OPTIONS, SSH, Rack, wipe
from tests.support.cli import task, volume
from tests.support.model import of_node, of_volume

pytestmark = pytest.mark.slow

ROOT = "/var/lib/fleetform/node"


@pytest.fixture
def project(machines: Machines, tmp_path: Path) -> Iterator[Rack]:
    made = Rack(tmp_path, machines)
    yield made
    made.run("destroy", "--auto-approve", code=None)
    wipe(machines)


def disk(name: str = "data", **more: Any) -> dict[str, Any]:
    return volume(name, **{"backend": "ssh", "size": "1MB", "prevent_destroy": False, **more})


def folders(machines: Machines, index: int) -> list[str]:
    """The volumes on a host's disk."""
    said: str = machines[index].sh(f"ls {ROOT}/volumes 2>/dev/null || :")
    return said.split()


def database(project: Rack) -> Any:
    return open_store("sqlite:///.fleetform/state.db", root=project.path)


def zones(project: Rack) -> dict[str, str]:
    """Volume → host."""
    with database(project) as store:
        return {r.address.name: r.inputs["zone"] for r in store.read().of("volume")}


def test_what_one_task_wrote_the_next_one_reads_on_the_same_host(project, machines):
    """At its path and by its variable; and it outlives the nodes."""
    address = machines[1].address
    data, rack = disk(host=address, prevent_destroy=True), project.rack()
    write = task("write", "echo kept > /data/file", "df . > /dev/null; hostname", volumes=["data:/data"])
    project.bring(rack, data, write, args=("--wait",))
    assert project.logs("write") == "h1\n"
    assert (len(folders(machines, 0)), len(folders(machines, 1))) == (0, 1)
    read = task("read", 'cat /data/file "$FLEETFORM_VOLUME_DATA/file"; hostname', volumes=["data:/data"])
    project.bring(rack, data, read, args=("--wait",))
    assert project.logs("read") == "kept\nkept\nh1\n"
    project.no_changes()
    done = project.run("destroy", "--auto-approve")
    assert "volume/data" in done.out + done.err
    status = project.status()
    assert (status["nodes"], [v["name"] for v in status["volumes"]]) == ([], ["data"])
    again = task("again", "cat /data/file", volumes=["data:/data"])
    project.bring(rack, data, again, args=("--wait",))
    assert project.logs("again") == "kept\n"


def test_ranks_are_bound_to_the_hosts_of_their_own_volumes(project, machines):
    """Those are made where the ranks go, and hold these there from then on."""
    rack = project.rack()
    scratch = disk("s-${{ node_rank }}", path="/s")
    del scratch["type"]
    say = "cat /s/rank 2>/dev/null; echo $FLEETFORM_NODE_RANK > /s/rank; hostname > /s/host"
    project.bring(rack, task("train", say, nodes=2, volumes=[scratch]), args=("--wait",))
    first = zones(project)
    assert sorted(first) == ["s-0", "s-1"]
    # The other way around the ranks would go, if nothing held them.
    other = task("other", "true", nodes=1, exclusive=True, priority=9)
    train = task("train", say, "hostname | diff - /s/host", nodes=2, volumes=[scratch])
    project.bring(rack, other, train, args=("--wait",))
    assert [project.logs("train", "--rank", str(rank)) for rank in (0, 1)] == ["0\n", "1\n"]
    assert zones(project) == first


def test_two_tasks_do_not_hold_one_volume_at_a_time(project, machines):
    data, rack = disk(host=machines[0].address), project.rack()
    hold = task("hold", "while :; do sleep 0.1; done", volumes=["data:/data"], stop_duration="1s")
    project.bring(rack, data, hold)
    both = (hold, task("more", "true", volumes=["data:/data"]))
    project.declare(SSH, rack, data, *both)
    plan = project.plan(code=3)
    assert [u["task"] for u in plan["unplaced"]] == ["more"]
    assert "volume/data is held by rank/hold-0" in str(plan["unplaced"])
    project.run("stop", "hold")
    project.apply("--wait", code=None)
    assert project.ranks("more")[0]["state"] == "succeeded"


def test_a_rank_whose_volume_is_on_a_host_that_is_off_is_refused(project, machines):
    data, rack = disk(host=machines[2].address), project.rack()
    project.bring(rack, data, disk("lost", host=machines[0].address))
    machines[0].sh(f"rm -r {ROOT}/volumes")
    machines[2].off()
    try:
        project.declare(SSH, rack, data, task("read", "true", volumes=["data:/data"]))
        plan = project.plan(code=3)
        assert f"volume/data is in ssh/{machines[2].address}" in str(plan["unplaced"])
        # What is on the one that is silent is not gone; what another one says is gone is.
        assert [d["address"] for d in plan["drift"]] == ["volume/lost"]
        assert "data" in {v["name"] for v in project.status()["volumes"]}
    finally:
        machines[2].on()
    project.apply("--wait")
    assert project.ranks("read")[0]["state"] == "succeeded"


def test_a_folder_of_each_host_is_there_or_left_out_or_missed(project, machines):
    rack = project.rack(project.host(0), project.host(1))
    machines[0].sh("mkdir -p /tmp/own && echo own >/tmp/own/file")
    machines[1].sh("mkdir -p /tmp/own && echo too >/tmp/own/file")
    nosuch = {"instance_path": "/tmp/nosuch", "path": "/nosuch", "optional": True}
    show = "cat /own/file; test ! -e /nosuch"
    project.bring(rack, task("show", show, nodes=2, volumes=["/tmp/own:/own", nosuch]), args=("--wait",))
    assert project.logs("show", "--rank", "0").endswith("own\n")
    assert project.logs("show", "--rank", "1").endswith("too\n")
    machines[1].sh("rm -r /tmp/own")
    done = project.bring(
        rack, task("show", "cat /own/file", nodes=2, volumes=["/tmp/own:/own"]), args=("--wait",), code=4
    )
    assert "rank/show-1 failed: its host has no /tmp/own (`instance_path`)" in done.out


def test_a_volume_that_was_begun_is_found_by_its_token(project, machines):
    """A crash between the call and its record: the next apply takes up what was made, and makes no second."""
    rack = project.rack(project.host(0))
    project.bring(rack)
    way = {"hostname": machines[0].address, "user": "root"}
    way |= {"identity_file": machines.login, "known_hosts": "known_hosts"}
    inputs = {
        "backend": "ssh",
        "region": "ssh",
        "zone": machines[0].address,
        "size": "1MB",
        "prevent_destroy": False,
        "host": way,
    }
    address = Address("volume", "data")
    with database(project) as store, store.lock("apply") as writer:
        lineage = writer.ensure_lineage()
        intent = writer.begin("create", address, "ssh", inputs)
    config = Config(backend="ssh", project_dir=project.path, lineage=lineage, options=OPTIONS)
    made = Ssh(config).create(address, intent.token, inputs, {})
    assert intent.token == token(lineage, address, 1, machines[0].address)
    data = disk(host=machines[0].address)
    project.bring(rack, data)
    assert len(folders(machines, 0)) == 1
    with database(project) as store:
        assert store.read().records[address].outputs == made
    project.no_changes()


def test_a_size_has_to_be_free(project, machines):
    data = disk(host=machines[0].address, size="900TB")
    done = project.bring(project.rack(project.host(0)), data, code=4)
    assert "volume/data is to have 900TB" in done.out
    assert project.status()["volumes"] == []


def test_a_volume_is_of_one_host(machines, tmp_path):
    """It cannot be attached to a node on another host, nor grow beyond the disk; lost data is reported."""
    hosts = {f"gpu-{i}": fields(machines, i) for i in range(2)}
    provider = Ssh(Config(backend="ssh", project_dir=tmp_path, lineage="ours", hosts=hosts, options=OPTIONS))
    nodes = []
    for name, host in hosts.items():
        inputs = of_node(host=host, resources=host["resources"])
        outputs = provider.create(Address("node", name), f"token of {name}", inputs, {})
        nodes.append(Record(address=Address("node", name), backend="ssh", inputs=inputs, outputs=outputs))
    inputs = of_volume(zone=machines[0].address, size="1MB", host=hosts["gpu-0"])
    address = Address("volume", "data")
    made = Record(
        address=address,
        backend="ssh",
        inputs=inputs,
        outputs=provider.create(address, "token of data", inputs, {}),
    )
    try:
        pair = {"task": "a", "rank": "a-0", "node": "gpu-1", "volume": "data"}
        pair |= {"path": "/data", "variable": "DATA"}
        held = {address: made, nodes[1].address: nodes[1]}
        with pytest.raises(PermanentError, match="not that node") as caught:
            provider.create(Address("attachment", "a-0.data"), "token of a", pair, held)
        assert caught.value.kind is PermanentKind.INVALID
        with pytest.raises(PermanentError, match="is to have 900TB"):
            provider.update(made, "t", {**inputs, "size": "900TB"})
        with pytest.raises(PermanentError, match="`zone` cannot be changed"):
            provider.update(made, "t", {**inputs, "zone": "elsewhere"})
        machines[0].sh(f"rmdir {made.outputs['path']}")
        with pytest.raises(PermanentError, match="volume/data: it has lost its data"):
            provider.start(nodes[0], _launch(made))
    finally:
        for record in (*nodes, made):
            provider.delete(record)
    assert provider.inventory() == ()


def _launch(made: Record) -> Any:
    return launch("a-0.1", "true", volumes={"/data": made})


def left(machine: Any) -> str:
    """What is in a host's folder for such files."""
    found: str = machine.sh("ls -A /var/lib/fleetform 2>/dev/null || :")
    return found


def test_with_the_last_thing_there_goes_all_that_was_put_on_a_host(project, machines):
    """And who only looks afterwards puts nothing there anew."""
    where = task("where", "echo x > /data/x", nodes=3, volumes=["data-${{ node_rank }}:/data"])
    project.bring(project.rack(), disk(count=3), where, args=("--wait",))
    assert [left(m) for m in machines] == ["node\n"] * 3
    project.run("destroy", "--auto-approve")
    assert [left(m) for m in machines] == [""] * 3
    project.run("plan")
    assert [left(m) for m in machines] == [""] * 3


def test_what_another_project_has_on_a_host_keeps_its_folder(machines, tmp_path):
    """Its volume as well. Whichever goes last takes the folder away; the next one finds the host as new."""
    ours, theirs = (Nodes(machines, tmp_path, name, fence=lambda: 7) for name in ("ours", "theirs"))
    data, node = Address("volume", "data"), ours.make()
    inputs = of_volume(size="1MB", host=fields(machines, 0))
    made = theirs.provider.create(data, "a" * 32, inputs, {})
    machines[0].sh(f"echo kept > {made['path']}/file")
    volume = Record(address=data, backend="ssh", inputs=inputs, outputs=made)
    ours.provider.delete(volume)  # as a copy of their state would have it recorded
    ours.provider.delete(node)
    assert machines[0].sh(f"cat {made['path']}/file; ls {ROOT}/bin").split()[0] == "kept"
    assert len(machines[0].sh(f"ls {ROOT}/bin").split()) == 1
    theirs.provider.delete(volume)
    assert left(machines[0]) == ""
    again = ours.make()
    ours.start(again, "train-0.1", "echo again")
    assert ours.ended(again, "train-0.1").exit_code == 0
    ours.provider.delete(again)
    assert left(machines[0]) == ""
    wipe(machines)
