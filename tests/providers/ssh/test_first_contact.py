"""First contact with hosts: each cause is one message, and `hosts trust` writes the keys into the YAML."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from declarative.cli import cli, hosts
from declarative.cli.errors import Failed
from tests.providers.ssh.machines import run
from tests.providers.ssh.rack import Rack, wipe
from tests.providers.ssh.test_transport import answered_by
from tests.support.smi import KINDS

HEAD = """\
type: backend
name: ssh
options: {{ssh_config: /dev/null, connect_timeout: 5}}
---
# Three of them.
type: fleet
name: rack
placement: any
ssh_config:
  user: root
  identity_file: {login}   # from the vault
  known_hosts: known_hosts
  hosts:
"""


@pytest.fixture
def project(machines, tmp_path) -> Iterator[Rack]:
    made = Rack(tmp_path, machines)
    made.keys("")
    yield made
    made.clean_up()
    wipe(machines)


def declare(project: Rack, *fields: str) -> str:
    """All three hosts, as lines with comments; what more each has."""
    text = HEAD.format(login=project.machines.login)
    for machine, more in zip(project.machines, fields or ("", "", ""), strict=True):
        text += f"    - {{hostname: {machine.address}{more}}}  # {machine.name}\n"
    project.write("rack.yaml", text)
    return text


def found(project: Rack) -> dict[str, str]:
    """Code → summary of what a plan says."""
    return {d["code"]: d["summary"] for d in project.run("plan", "--json").json["diagnostics"]}


def test_unknown_keys_are_one_message_and_are_trusted_with_one_command(project, machines):
    before = declare(project)
    done = project.run("plan")
    assert done.err.count("warning[") == 1
    assert "warning[host-key-unknown]" in done.err
    for machine in machines:
        assert f"- {{hostname: {machine.address}, host_keys: [{machine.public_key}]}}" in done.err
    refused = project.run("hosts", "trust", code=1)
    assert "not-approved" in refused.err
    assert all(machine.fingerprint in refused.out for machine in machines)
    assert (project.path / "rack.yaml").read_text() == before
    project.run("hosts", "trust", "--auto-approve")
    after = before
    for machine in machines:
        after = after.replace(
            f"{machine.address}}}", f"{machine.address}, host_keys: [{machine.public_key}]}}"
        )
    assert (project.path / "rack.yaml").read_text() == after
    assert project.ids() == [f"create:node/rack-{i}" for i in range(3)]
    assert "are known" in project.run("hosts", "trust").out


def test_the_lines_of_the_message_can_be_pasted(project, machines):
    declare(project)
    lines = [line.strip() for line in project.run("plan").err.splitlines() if "host_keys: [" in line]
    text = HEAD.format(login=machines.login) + "".join(f"    {line}\n" for line in lines)
    project.write("rack.yaml", text)
    assert len(project.ids()) == 3


def test_a_host_that_is_off_or_revoked_keeps_no_other_from_being_trusted(project, machines):
    declare(project)
    project.keys(f"@revoked {machines[0].address} {machines[0].public_key}\n")
    machines[1].off()
    try:
        done = project.run("hosts", "trust", "--auto-approve", code=1)
    finally:
        machines[1].on()
    assert done.err.count("error[host-not-ready]") == 2
    assert "is not to be trusted" in done.err
    text = (project.path / "rack.yaml").read_text()
    assert text.count("host_keys: [") == 1
    assert machines[2].public_key in text


def test_a_file_that_changes_while_somebody_compares_is_left_alone(project, machines, monkeypatch):
    declare(project)
    file = project.path / "rack.yaml"

    def confirm(*_: object, **__: object) -> None:
        file.write_text("# mine\n" + file.read_text())

    monkeypatch.setattr(hosts, "confirm", confirm)
    monkeypatch.setenv("FLEETFORM_ALLOW_PATH", "/")
    with pytest.raises(Failed, match="changed meanwhile"):
        cli.main(["-C", str(project.path), "hosts", "trust"], standalone_mode=False)
    assert file.read_text().startswith("# mine\n")
    assert "host_keys" not in file.read_text()


def test_a_host_that_lets_us_in_has_a_key_that_counts_whatever_else_is_wrong(project, machines):
    """Its GPUs are not known, and its user gets no shell."""
    declare(project, "", ", user: worker", "")
    project.keys(machines.known_hosts)
    machines[0].install("nvidia-smi", KINDS["another driver than the kernel's"].script)
    with answered_by(machines[1], "/usr/sbin/nologin"):
        assert "are known" in project.run("hosts", "trust").out


@pytest.mark.parametrize("args", [(), ("--replace",)])
def test_a_host_that_offers_another_key_once_its_own_is_trusted_gets_none(
    project, machines, monkeypatch, args
):
    declare(project)
    project.keys("".join(machines.known_hosts.splitlines(keepends=True)[1:]))
    asked = []

    def confirm(*_: object, **__: object) -> None:
        asked.append(machines[0].fingerprint)
        machines[0].make_key()
        machines[0].reboot()

    monkeypatch.setattr(hosts, "confirm", confirm)
    monkeypatch.setenv("FLEETFORM_ALLOW_PATH", "/")
    before = (project.path / "rack.yaml").read_text()
    files = [machines[0].folder / name for name in ("key", "key.pub")]
    kept = {file: file.read_bytes() for file in files}
    shown: list[Any] = []
    monkeypatch.setattr("declarative.cli.hosts.say", shown.extend)
    try:
        cli.main(["-C", str(project.path), "hosts", "trust", *args], standalone_mode=False)
        (error,) = shown
        assert error.code == "host-key-changed"
        assert asked[0] in error.summary
        assert machines[0].fingerprint in error.summary
        assert len(asked) == 1
        assert (project.path / "rack.yaml").read_text() == before
    finally:
        for file, content in kept.items():
            file.write_bytes(content)
        machines[0].reboot()


def test_a_host_that_is_also_on_the_way_to_itself_gets_its_key_at_both_places(project, machines):
    address, login = machines[0].address, machines.login
    text = HEAD.format(login=login) + f"    - {address}\n"
    jump = f"  proxy_jump: {{hostname: {address}, user: worker, identity_file: {login}"
    project.write("rack.yaml", text.replace("  hosts:\n", f"{jump}}}\n  hosts:\n"))
    assert f"the key of {address}, on the way to it, is not known" in found(project)["host-key-unknown"]
    project.run("hosts", "trust", "--auto-approve")
    after = (project.path / "rack.yaml").read_text()
    assert f"{jump}, host_keys: [{machines[0].public_key}]}}\n" in after
    assert f"    - {{hostname: {address}, host_keys: [{machines[0].public_key}]}}\n" in after
    assert len(project.ids()) == 1


def test_a_changed_key_is_an_error_with_both_fingerprints_until_it_is_replaced(project, machines):
    keys = [
        f", host_keys: [{machines[1].public_key}]",
        *(f", host_keys: [{m.public_key}]" for m in machines[1:]),
    ]
    before = declare(project, *keys)
    assert list(found(project)) == ["host-key-changed"]
    for args in ((), ("--auto-approve",)):
        done = project.run("hosts", "trust", *args, code=1)
        assert "error[host-key-changed]" in done.err
        assert machines[0].fingerprint in done.err
        assert machines[1].fingerprint in done.err
        assert (project.path / "rack.yaml").read_text() == before
    project.run("hosts", "trust", "--replace", "--auto-approve")
    after = before.replace(machines[1].public_key, machines[0].public_key, 1)
    assert (project.path / "rack.yaml").read_text() == after
    assert len(project.ids()) == 3


def test_a_refused_identity_is_one_warning_at_its_line(project, machines, tmp_path):
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other"))
    project.keys(machines.known_hosts)
    text = declare(project)
    project.write("rack.yaml", text.replace(machines.login, "other"))
    done = project.run("plan")
    assert done.err.count("warning[") == 1
    assert "warning[identity-refused]" in done.err
    assert "they refuse the login of root with `other`" in done.err
    assert "  identity_file: other   # from the vault" in done.err
    (item,) = project.run("plan", "--json").json["diagnostics"]
    assert (item["file"], item["line"]) == ("rack.yaml", 11)
    health = project.run("plan", "--json").json["health"]
    assert [h["host"] for h in health] == [m.address for m in machines]  # one entry each, for programs


def test_a_host_on_the_way_is_trusted_first(project, machines):
    text = declare(project).replace(
        "  hosts:\n",
        f"  proxy_jump: {{hostname: {machines[0].address}, user: worker, identity_file: {machines.login}}}\n"
        "  hosts:\n",
    )
    lines = [
        line for line in text.splitlines(keepends=True) if f"- {{hostname: {machines[0].address}" not in line
    ]
    project.write("rack.yaml", "".join(lines))
    assert (
        f"the key of {machines[0].address}, on the way to them, is not known"
        in found(project)["host-key-unknown"]
    )
    project.run("hosts", "trust", "--auto-approve")
    assert (project.path / "rack.yaml").read_text().count("host_keys: [") == 3
    assert len(project.ids()) == 2


def test_hosts_that_cannot_be_edited_are_printed_and_the_file_is_left_alone(project, machines):
    address = machines[0].address
    text = HEAD.format(login=machines.login) + f"    - &first {address}\nenv: {{FIRST: *first}}\n"
    project.write("rack.yaml", text)
    done = project.run("hosts", "trust", "--auto-approve", code=1)
    assert "error[not-edited]" in done.err
    assert f"- {{hostname: {address}, host_keys: [{machines[0].public_key}]}}" in done.err
    assert (project.path / "rack.yaml").read_text() == text
