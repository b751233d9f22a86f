"""Lists of hosts that people have: how they are read, and that the result loads."""

from __future__ import annotations

import pytest

from declarative.language.importers.existing import HostList, login, of_lines, of_ssh, of_tree
from declarative.language.loader import load
from tests.language.test_host_keys import key_of
from tests.providers.ssh.machines import run

LINES = """
# a comment
bastion.example.org
[gpu]
gpu[01:03] ansible_user=ubuntu ; more
10.0.0.9 ansible_host=gpu9.example.org ansible_port=2222

[cpu]
gpu01
c[a:b].example.org ansible_ssh_private_key_file="~/.ssh/c key"
[cpu:vars]
ansible_user=root
ansible_python_interpreter=/usr/bin/python3
[all:children]
gpu
"""


def test_an_inventory_in_lines():
    hosts = HostList()
    of_lines(LINES, hosts)
    assert hosts.groups == {
        "": [{"hostname": "bastion.example.org"}],
        "gpu": [
            *({"hostname": f"gpu0{i}", "user": "ubuntu"} for i in (1, 2, 3)),
            {"hostname": "gpu9.example.org", "port": 2222},
        ],
        "cpu": [
            {"user": "root", "hostname": f"c{x}.example.org", "identity_file": "~/.ssh/c key"} for x in "ab"
        ],
    }
    assert hosts.notes == [
        "left out `[all:children]`: hosts are in the fleet of the first group that lists them"
    ]


def test_an_inventory_as_a_tree():
    hosts = HostList()
    tree = {
        "all": {
            "vars": {"ansible_user": "ubuntu"},
            "hosts": {"lone": None},
            "children": {
                "gpu": {"hosts": {"g[1:2]": {"ansible_port": 22}}, "vars": {"ansible_user": "{{ me }}"}},
            },
        }
    }
    of_tree(tree, hosts)
    assert hosts.groups == {
        "gpu": [{"hostname": "g1", "port": 22}, {"hostname": "g2", "port": 22}],
        "": [{"hostname": "lone", "user": "ubuntu"}],
    }
    assert hosts.notes == ["left out `ansible_user`: it is computed"]


def test_aliases_of_sshs_configuration():
    hosts = HostList()
    of_ssh("Host gpu-1 gpu-2 *.old !x\n  User me\nHost=one\nInclude more\n", hosts)
    assert hosts.groups == {"": [{"hostname": name} for name in ("gpu-1", "gpu-2", "one")]}
    assert hosts.notes == ["left out `Include` of ssh's configuration: name its hosts on the command line"]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("a", {"hostname": "a"}),
        ("me@a:22", {"hostname": "a", "user": "me", "port": 22}),
        ("[::1]:22", {"hostname": "::1", "port": 22}),
        ("a b", None),
        ("me@", None),
    ],
)
def test_a_login(text, fields):
    assert login(text) == fields


def test_what_is_imported_loads(project):
    """Without a look at the hosts: groups become fleets, in normal form; common values are written once."""
    project.write("hosts.ini", LINES)
    text = project.run("import", "ssh", "--inventory", "hosts.ini", "--no-probe", "--out", "rack.yaml").out
    assert text.startswith("Wrote rack.yaml.")
    (project.path / "hosts.ini").unlink()
    found = load(project.path)
    assert found.diagnostics == ()
    configs = {name: fleet.ssh_config for name, fleet in found.desired.fleets.items()}
    counts = {name: len(config.hosts) for name, config in configs.items() if config}
    assert counts == {"hosts": 1, "gpu": 4, "cpu": 2}
    assert configs["cpu"] and configs["cpu"].user == "root"  # noqa: PT018
    project.run("fmt", "--check")
    project.write("ssh.txt", "Host gpu-1 gpu-2\n")
    aliases = project.run("import", "ssh", "--ssh-config", "ssh.txt", "--no-probe", "--name", "*-2").out
    assert "ssh_config: ssh.txt" in aliases
    assert "gpu-1" not in aliases
    assert "name hosts, or a file" in project.run("import", "ssh", code=1).err


def test_keys_that_this_machine_knows_are_imported(project, tmp_path):
    """Of plain and hashed names, with a port or without; not those that were revoked or are another's."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    lines = [
        f"h1 {key_of(1)}\n",
        f"[h2]:2200 {key_of(2)}\n",
        f"h3,10.0.0.3 {key_of(3)}\n",
        f"h4 {key_of(4)}\n@revoked h4 {key_of(4)}\n",
        f"h1 {key_of(6)}\n",
    ]
    known = home / ".ssh" / "known_hosts"
    known.write_text("".join(lines))
    run("ssh-keygen", "-q", "-H", "-f", str(known))
    names = ("h1", "h2:2200", "10.0.0.3", "h4", "h5", "h2")
    text = project.run("import", "ssh", *names, "--no-probe", env={"HOME": str(home)}).out
    (project.path / "rack.yaml").write_text(text)
    config = load(project.path).desired.fleets["hosts"].ssh_config
    assert config
    assert {(h.hostname, h.port): [str(key) for key in h.host_keys] for h in config.hosts} == {
        ("h1", None): [key_of(1), key_of(6)],
        ("h2", 2200): [key_of(2)],
        ("10.0.0.3", None): [key_of(3)],
        ("h4", None): [],
        ("h5", None): [],
        ("h2", None): [],
    }
