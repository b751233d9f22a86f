"""State folders where old files are deleted: who excludes them, and what plans say of the others."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from providers.ssh import probe
from providers.ssh.probe import Declared
from providers.transport import LocalTransport


class Place:
    """A folder in `/var/tmp` of this machine as the state folder of a host, and its folder of rules."""

    def __init__(self, root: Path, rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.rules, self.patch = root, rules, monkeypatch
        self.rule = rules / f"fleetform{str(root).replace('/', '-')}.conf"

    def risk(self, *, writes: bool, **declared: Any) -> Any:
        """What a look by a command says that only reads, or that writes."""
        self.patch.delenv("FLEETFORM_EPOCH", raising=False)
        if writes:
            self.patch.setenv("FLEETFORM_EPOCH", "7")
        transport: Any = SimpleNamespace(host="h", run=LocalTransport().run)
        return probe.look(transport, str(self.root), Declared(**declared)).readiness.risk


@pytest.fixture
def place(tmp_path, monkeypatch):
    rules, tools = tmp_path / "tmpfiles.d", tmp_path / "bin"
    rules.mkdir()
    tools.mkdir()
    (tools / "systemd-tmpfiles").write_text("#!/bin/sh\n")
    (tools / "systemd-tmpfiles").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("FLEETFORM_TMPFILES_DIR", str(rules))
    root = Path("/var/tmp") / f"fleetform-test-{os.getpid()}-{tmp_path.name}"
    yield Place(root, rules, monkeypatch)
    shutil.rmtree(root, ignore_errors=True)


def test_a_folder_that_is_not_there_yet_is_excluded_when_it_is_made(place):
    for writes in (False, True):
        assert place.risk(writes=writes) is None
    assert [*place.rules.iterdir()] == []


def test_a_folder_without_a_rule_is_excluded_by_the_next_command_that_writes(place):
    """A plan before that tells of it, for it is so."""
    place.root.mkdir()
    assert "old files in /var/tmp are deleted" in place.risk(writes=False).what
    assert [*place.rules.iterdir()] == []
    assert place.risk(writes=True) is None
    assert place.rule.read_text().splitlines()[-1] == f"x {place.root}"


@pytest.mark.parametrize("writes", [False, True])
def test_a_rule_that_could_not_be_written_is_told(place, writes):
    """With what to write. The folder of rules may be written, and the disk be full."""
    place.root.mkdir()
    (place.rules / f"{place.rule.name}.new").mkdir()
    risk = place.risk(writes=writes)
    assert "old files in /var/tmp are deleted" in risk.what
    assert f"echo 'x {place.root}' >/etc/tmpfiles.d/{place.rule.name}`" in risk.remedy


def test_the_command_to_exclude_a_folder_spoils_no_other_rule(place, tmp_path):
    """It works where there is no folder of rules yet, and for two folders one after the other."""
    place.patch.setenv("FLEETFORM_TMPFILES_DIR", "/nonexistent")
    etc, found = tmp_path / "etc", []
    for name in ("a", "b"):
        place.root = Path(f"{place.root}{name}")
        place.root.mkdir()
        try:
            command = place.risk(writes=True).remedy.split("`")[-2]
        finally:
            place.root.rmdir()
        subprocess.run(["sh", "-c", command.replace("/etc/", f"{etc}/")], check=True)
        found.append(f"x {place.root}\n")
        assert sorted(p.read_text() for p in (etc / "tmpfiles.d").iterdir()) == found


def test_what_does_not_help_is_not_advised(place):
    """A rule for a tool that is not there, or a name that the rule would have to escape."""
    place.root = Path(f"{place.root} x")
    place.root.mkdir()
    assert place.risk(writes=True).remedy == "name another folder in the backend's `root`"
    place.root.rmdir()
    found = probe._risk(probe.parse(["root=/var/tmp/fleet", "cleaned=/var/tmp"], 0.0), is_node=True)
    assert found
    assert found.remedy == "name another folder in the backend's `root`"


@pytest.mark.parametrize("root", ["/run/fleet", "/dev/shm/fleet"])
def test_a_folder_that_does_not_outlive_a_boot_cannot_be_excluded(root):
    facts = probe.parse([f"root={root}", f"cleaned={root[:4]}", "tool=systemd-tmpfiles"], 0.0)
    found = probe._risk(facts, is_node=False)
    assert found
    assert "/etc/tmpfiles.d" not in found.remedy


@pytest.mark.parametrize("is_node", [True, False])
def test_only_a_node_is_moved_by_a_command(is_node):
    """`fleetform ssh` knows no other hosts."""
    facts = probe.parse(["root=/var/tmp/fleetform-0", "old=/var/lib/fleetform/node"], 0.0)
    found = probe._risk(facts, is_node=is_node)
    assert found
    assert ("fleetform ssh" in found.remedy) is is_node
    assert "declare `root: /var/tmp/fleetform-0`" in found.remedy
