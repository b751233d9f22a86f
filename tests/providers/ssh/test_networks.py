"""Which addresses of a host can be its address for others; in real network namespaces."""

from __future__ import annotations

import subprocess

import pytest

from providers.ssh import scripts
from providers.ssh.probe import parse

REAL = (
    *(
        "eth1",
        "bond7",
        "ib0",
        "br0",
        "br-ex",
        "br-mgmt",
        "br-lan",
        "br-storage",
        "br-vlan",
        "br-dead",
        "br0.12",
    ),
    *("br-lan-office-1", "br-abcdefabcdeg", "br-ABCDEFABCDEF", "vmbr0", "bridge0", "brq12345", "cnic0"),
    *("dockernet", "podmannet", "flannel.1", "virbridge"),
)
"""Names of networks that hosts share. `flannel.1` is an overlay, which reaches the others as well."""
INNER = (
    *("docker0", "docker_gwbridge", "br-0123456789ab", "br-deadbeefcafe", "podman0", "podman12", "cni0"),
    *(
        "cni-podman0",
        "virbr0",
        "virbr1",
        "lxcbr0",
        "lxdbr0",
        "incusbr0",
        "kube-ipvs0",
        "nodelocaldns",
        "vmnet8",
    ),
    "vboxnet0",
)
NO_BRIDGES = ("kube-ipvs0", "nodelocaldns", "vmnet8", "vboxnet0")

pytestmark = pytest.mark.usefixtures("allowed")


def addresses(setup: list[str], folder: object, *, sysfs: bool = True) -> list[str]:
    """The addresses of a host whose network was set up so; `sysfs`: whether it shows that network."""
    mount = ["mount -t sysfs sysfs /sys"] if sysfs else ["mount -t tmpfs none /sys"]
    text = "\n".join(["set -e", *mount, *setup, 'exec sh -c "$1" sh "$2"'])
    argv = ["unshare", "--net", "--mount", "sh", "-c", text, "sh", scripts.text("probe.sh"), str(folder)]
    done = subprocess.run(argv, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return list(parse(scripts.lines(done.stdout, "FLEETFORM-PROBE"), 0.0).addresses)


def add(name: str, kind: str, address: str) -> list[str]:
    return [f"ip link add {name} type {kind}", f"ip addr add {address}/24 dev {name}"]


@pytest.mark.parametrize("sysfs", [True, False])
@pytest.mark.parametrize("kind", ["bridge", "veth"])
def test_a_real_network_counts_whatever_it_is_called(tmp_path, kind, sysfs):
    """As Open vSwitch's `br-ex`, or the bridge of a router."""
    given = {name: f"10.9.{i}.7" for i, name in enumerate(REAL)}
    setup = [line for name, address in given.items() for line in add(name, kind, address)]
    assert addresses(setup, tmp_path / "root", sysfs=sysfs) == [*given.values()]


@pytest.mark.parametrize("sysfs", [True, False])
def test_a_network_within_the_host_does_not_count(tmp_path, sysfs):
    """With the port of a container, of a virtual machine, or without any."""
    setup = [*add("eth1", "veth", "10.9.0.7"), "ip addr add fd00::7/64 dev eth1"]
    for i, name in enumerate(INNER):
        setup += add(name, "veth" if name in NO_BRIDGES else "bridge", f"10.8.{i}.1")
    setup += ["ip link add port0 type veth peer name c0", "ip link set port0 master docker0"]
    setup += ["ip -6 addr add fd01::1/64 dev docker0"]
    assert addresses(setup, tmp_path / "root", sysfs=sysfs) == ["10.9.0.7", "fd00::7"]


@pytest.mark.parametrize("name", ["docker0", "br-0123456789ab", "virbr0", "podman0"])
def test_a_bridge_with_a_way_out_is_a_real_network(tmp_path, name):
    """Somebody gave it a port that is built on a card, so other hosts are there."""
    out = ["ip link add eth1 type veth", "ip link add link eth1 name out type macvlan"]
    setup = [*add(name, "bridge", "10.9.0.7"), *out, f"ip link set out master {name}"]
    assert addresses(setup, tmp_path / "root") == ["10.9.0.7"]


def test_what_only_has_the_name_of_a_bridge_is_a_real_network(tmp_path):
    assert addresses(add("br-0123456789ab", "veth", "10.9.0.7"), tmp_path / "root") == ["10.9.0.7"]
