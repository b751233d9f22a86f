"""A look at a host: what it reports, and which state's node the host is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from declarative.model.state import Address
from declarative.model.status import NodeState, Readiness
from declarative.provider import PermanentError, PermanentKind, TransientError
from tests.providers.ssh.machines import Machine, run
from tests.providers.ssh.nodes import TOKEN, Nodes, fields
from tests.support.model import of_node

# No GPU is near: these print what the vendors' tools print.
NVIDIA = """#!/bin/sh
echo '0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 4'
echo '1, GPU-bbbb, NVIDIA H100 80GB HBM3, 81559, 0'"""
BROKEN = """#!/bin/sh
echo 'Unable to determine the device handle for GPU1: 0000:3B:00.0: Unknown Error'
exit 255"""


@pytest.fixture
def nodes(machines, tmp_path) -> Nodes:
    return Nodes(machines, tmp_path)


@pytest.fixture(autouse=True)
def cleared(machines) -> Iterator[None]:
    yield
    for machine in machines:
        machine.sh("rm -rf /var/lib/fleetform/node/[!b]* /usr/local/bin/* /srv/* /mnt/*")


def looked(nodes: Nodes, **more):
    """At the first host."""
    return nodes.provider.look({"x": fields(nodes.machines, 0, **more)})["x"]


@contextmanager
def mounted(machine: Machine, how: str, path: str) -> Iterator[None]:
    machine.sh(f"mkdir -p {path} && mount {how} {path}")
    try:
        yield
    finally:
        machine.sh(f"umount {path}")


# ----------------------------------------------------------------------------------------- what it has


def test_a_look_reads_what_a_host_has(nodes):
    """What is declared counts more; its address is the one by which it was reached."""
    look = looked(nodes, resources={})
    assert look.readiness.state is NodeState.READY
    facts = look.facts
    assert facts
    assert (facts.name, facts.address, facts.addresses) == (
        "h0",
        nodes.machines[0].address,
        (nodes.machines[0].address,),
    )
    assert look.shape == facts.shape
    assert look.shape.cpu == len(facts.cpus) >= 1
    assert look.shape.memory_mib > 100
    assert 48 <= look.shape.disk_mib <= 64
    assert {"flock", "setsid"} <= facts.tools
    assert abs(facts.clock_offset) < 30
    declared = looked(nodes, resources={"cpu": 64, "gpus": 8, "gpu_name": "H100"}, trust=True).shape
    assert (declared.cpu, declared.gpus, declared.gpu_name) == (64, 8, "H100")
    assert declared.memory_mib == look.shape.memory_mib


def test_gpus_are_read(nodes):
    nodes.machines[0].install("nvidia-smi", NVIDIA)
    shape = looked(nodes, resources={}).shape
    assert (shape.gpus, shape.gpu_name, shape.gpu_memory_mib, shape.gpu_vendor) == (
        2,
        "H100",
        81920,
        "nvidia",
    )


def test_gpus_in_error_keep_a_host_from_work(nodes):
    """Unless what it has is declared."""
    node = nodes.make(resources={"cpu": 1})
    nodes.machines[0].install("nvidia-smi", BROKEN)
    seen = nodes.provider.readiness([node])["gpu-0"]
    assert seen.state is NodeState.NOT_READY
    assert "nvidia-smi gave exit code 255: Unable to determine" in (seen.reason or "")
    assert looked(nodes).readiness.state is NodeState.READY


@pytest.mark.slow
def test_a_driver_that_hangs_is_not_waited_for(nodes):
    """The rest of the look is answered."""
    nodes.machines[0].install("nvidia-smi", "#!/bin/sh\nexec sleep 1000")
    look = looked(nodes, resources={})
    assert not_ready(look) == "its GPUs are not known now: nvidia-smi gave no answer within 10 s"
    assert look.facts
    assert look.facts.cpus


def test_no_node_is_made_of_gpus_that_are_not_known(nodes):
    """They would not be recorded, and a rank would get any."""
    nodes.machines[0].install("nvidia-smi", "#!/bin/sh\nexit 124")
    recorded = {"cpu": 1, "memory_mib": 0, "gpus": 2}
    with pytest.raises(TransientError, match="not known now: nvidia-smi gave no answer"):
        nodes.make(resources={}, recorded=recorded)
    nodes.machines[0].install("nvidia-smi", NVIDIA)
    assert nodes.make(resources={}, recorded=recorded).outputs["gpus"] == ["GPU-aaaa", "GPU-bbbb"]


def test_what_a_node_had_it_has_to_have_still(nodes):
    nodes.machines[0].install("nvidia-smi", NVIDIA)
    node = nodes.make(resources={}, recorded={"cpu": 1, "memory_mib": 0, "gpus": 2})
    assert nodes.provider.readiness([node])["gpu-0"].state is NodeState.READY
    nodes.machines[0].install("nvidia-smi", "\n".join(NVIDIA.splitlines()[:2]))
    seen = nodes.provider.readiness([node])["gpu-0"]
    assert seen.state is NodeState.NOT_READY
    assert (seen.reason or "").startswith(
        "it has 1 of the 2 GPUs that are recorded of it (GPU-bbbb missing): "
    )


# ------------------------------------------------------------------------------------------ its fitness


def not_ready(look) -> str:
    readiness: Readiness = look.readiness
    assert readiness.state is NodeState.NOT_READY
    assert readiness.observed_at
    return readiness.reason or ""


def test_missing_tools_are_named(nodes):
    machine = nodes.machines[0]
    machine.sh("mount --bind /dev/null $(command -v flock)")
    try:
        assert not_ready(looked(nodes)) == "not installed: flock"
    finally:
        machine.sh("umount /usr/bin/flock")


def test_a_state_folder_that_cannot_be_used_is_named(machines, tmp_path):
    """Not writable, not executable, or somebody else's."""
    machine = machines[0]
    with mounted(machine, "-t tmpfs -o noexec x", "/mnt"):
        assert "noexec" in not_ready(looked(Nodes(machines, tmp_path, root="/mnt/a/b")))
    with mounted(machine, "-t tmpfs -o ro x", "/mnt"):
        nodes = Nodes(machines, tmp_path, root="/mnt/a")
        assert not_ready(looked(nodes)) == "/mnt cannot be written"
        with pytest.raises(PermanentError, match="cannot be written"):
            nodes.make()
    nodes = Nodes(machines, tmp_path, root="/srv/state")
    assert not_ready(looked(nodes, user="worker")) == "/srv cannot be written"
    machine.sh("mkdir /srv/state; chown worker /srv/state")
    assert "not this user's own folder" in not_ready(looked(nodes))
    assert looked(nodes, user="worker").readiness.state is NodeState.READY


def test_the_state_folder_is_its_users_alone(machines, tmp_path):
    """Whatever was there before; and an ordinary user is enough."""
    machines[0].sh("mkdir -m 777 /srv/state; chown worker /srv/state")
    nodes = Nodes(machines, tmp_path, root="/srv/state")
    node = nodes.make(user="worker")
    assert machines[0].sh("stat -c %a:%U /srv/state /srv/state/bin").split() == ["700:worker"] * 2
    nodes.start(node, "train-0.1", "id -un")
    nodes.ended(node, "train-0.1")
    assert nodes.log(node, "train-0.1") == "worker\n"


@pytest.mark.slow
def test_who_refuses_us_is_not_ready_and_who_is_silent_unreachable(nodes, tmp_path):
    """With the reason, and for a host key the line to add. One of them keeps no other from being seen."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other"))
    (tmp_path / "known").write_text("")
    machines = nodes.machines
    looks = nodes.provider.look(
        {
            "good": fields(machines, 0),
            "login": fields(machines, 0, identity_file="other"),
            "key": fields(machines, 0, host_keys=[], known_hosts="known"),
            "silent": fields(machines, 0, hostname=f"{machines.prefix}.250"),
            "nonsense": fields(machines, 0, port="x"),
            "resources": fields(machines, 0, resources={"cpus": 3}),
        }
    )
    states = {name: look.readiness.state for name, look in looks.items()}
    assert states.pop("good") is NodeState.READY
    assert states.pop("silent") is NodeState.UNREACHABLE
    assert set(states.values()) == {NodeState.NOT_READY}
    assert "refused the login" in not_ready(looks["login"])
    line = f"add this line to {tmp_path / 'known'}: {machines[0].address} {machines[0].public_key}"
    assert not_ready(looks["key"]).endswith(line)


# ---------------------------------------------------------------------------------------- whose it is


def test_a_host_is_one_node_at_a_time(nodes, machines, tmp_path):
    """Not that of two states, and not twice of one; a state folder of one's own is the way out."""
    nodes.make()
    with pytest.raises(PermanentError, match="another state") as caught:
        Nodes(machines, tmp_path, "theirs").make()
    assert caught.value.kind is PermanentKind.CONFLICT
    with pytest.raises(PermanentError, match="is node/gpu-0 already"):
        nodes.provider.create(Address("node", "twin"), TOKEN, of_node(host=nodes.hosts["gpu-0"]), {})
    assert sorted(machines[0].sh("ls /var/lib/fleetform/node").split())[1:] == ["bin", "claim"]
    assert Nodes(machines, tmp_path, "theirs", root="/srv/theirs").make().outputs["path"].startswith("/srv/")


def test_a_look_says_what_would_keep_a_host_from_being_a_node(nodes, machines, tmp_path):
    """Before a plan promises it: it is another state's, it is a node under another name, or nobody could
    reach it in the declared network. What is this node's own keeps nobody out, nor what was forgotten.
    """
    nodes.make()
    theirs = Nodes(machines, tmp_path, "theirs")
    found = theirs.provider.look({f"gpu-{i}": theirs.hosts[f"gpu-{i}"] for i in range(2)})
    reason = not_ready(found["gpu-0"])
    assert "is node/gpu-0 of another state (lineage ours)" in reason
    assert "`options.root`" in reason
    assert found["gpu-0"].shape == found["gpu-1"].shape
    assert found["gpu-1"].readiness.state is NodeState.READY
    assert (
        Nodes(machines, tmp_path, "theirs", root="/srv/theirs")
        .provider.look({"gpu-0": theirs.hosts["gpu-0"]})["gpu-0"]
        .readiness.state
        is NodeState.READY
    )

    own = nodes.hosts["gpu-0"]
    found = nodes.provider.look({"gpu-0": own, "moved": own, "twin": {**own, "port": 22}})
    assert (found["gpu-0"].readiness.state, found["moved"].readiness.state) == (NodeState.READY,) * 2
    assert "is node/gpu-0 already" in not_ready(found["twin"])

    found = nodes.provider.look({"gpu-1": fields(machines, 1, network="192.0.2.0/24")})
    assert "has no address in 192.0.2.0/24: " in not_ready(found["gpu-1"])
    machines[0].sh("for f in /var/lib/fleetform/node/claim; do head -c 60 $f >$f.t; mv $f.t $f; done")
    assert "cannot be read: damaged" in not_ready(theirs.provider.look({"gpu-0": own})["gpu-0"])


def test_a_damaged_claim_is_not_taken_for_none(nodes):
    node = nodes.make()
    nodes.machines[0].sh("for f in /var/lib/fleetform/node/claim; do head -c 60 $f >$f.t; mv $f.t $f; done")
    for attempt in (
        nodes.provider.inventory,
        nodes.make,
        lambda: nodes.provider.delete(node),
        lambda: nodes.provider.find(node.address, f"{TOKEN}0"),
    ):
        with pytest.raises(PermanentError, match="cannot be read"):
            attempt()


def test_an_update_changes_the_way_and_not_the_node(nodes):
    node = nodes.make()
    inputs = {**node.inputs, "host": {**node.inputs["host"], "internal_ip": "10.9.8.7"}, "blocks": 2}
    outputs = nodes.provider.update(node, "new", inputs)
    assert outputs == {**node.outputs, "address": "10.9.8.7"}
    [thing] = nodes.provider.inventory()
    assert (dict(thing.inputs), thing.outputs, thing.token) == (inputs, outputs, f"{TOKEN}0")
    moved = {**inputs, "host": nodes.hosts["gpu-1"]}
    with pytest.raises(PermanentError, match=r"is not node/gpu-0"):
        nodes.provider.update(node, "new", moved)


def test_addresses_for_other_hosts(nodes):
    """Declared, in the declared network, or the one that we use."""
    network = f"{nodes.machines.prefix}.0/24"
    assert nodes.make(0).outputs["address"] == nodes.machines[0].address
    assert nodes.make(1, network=network).outputs["address"] == nodes.machines[1].address
    with pytest.raises(PermanentError, match=r"no address in 10\.0\.0\.0/8"):
        nodes.make(2, network="10.0.0.0/8")
