"""Commands on hosts: words, answers, lost connections, and who is trusted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declarative.model.status import NodeState
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from providers.ssh import probe, scripts
from providers.ssh.host import Host, host_of
from providers.ssh.probe import Declared
from providers.ssh.transport import SshTransport, background
from providers.transport import ConnectionLost
from tests.providers.ssh.machines import Machine, Machines, run, until
from tests.providers.ssh.nodes import QUICK, fields, transport, way

ODD = [" b", "it's", '"', "$HOME `id`", "two\nlines\n", "\\", "\\'", "é\t*", "", "-n", "!x", "~", "%d;"]


@contextmanager
def refused(kind: PermanentKind | TransientKind, text: str):
    """A fault of that kind, before anything was sent."""
    with pytest.raises((PermanentError, TransientError), match=text) as caught:
        yield caught
    assert getattr(caught.value, "kind", None) is kind


def client_of(answer: bytes) -> list[str]:
    """Address and port by which a host was reached, from its `$SSH_CONNECTION`."""
    return answer.decode().split()[:2]


WAIT = "touch /tmp/up; until [ -e /tmp/go ]; do sleep 0.1; done"
WHO = ["sh", "-c", "echo $SSH_CONNECTION"]

# ------------------------------------------------------------------------------------------- commands


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_words_and_input_arrive_as_they_are(machines, shell):
    """Whatever the user's shell is, and whatever the bytes are."""
    machines[1].sh(f"sed -i 's|^\\(worker:.*:\\)[^:]*$|\\1{shell}|' /etc/passwd")
    host = transport(machines, 1, user="worker")
    done = host.run(["printf", "%s|", *ODD])
    assert done.stdout.decode() == "".join(f"{word}|" for word in ODD)
    sent = bytes(range(256)) * 2000
    assert host.run(["cat"], sent).stdout == sent


@contextmanager
def answered_by(machine: Machine, what: str):
    """The user `worker`, whose logins are answered by another shell, or by a forced command."""
    keys, before = (
        "/home/worker/.ssh/authorized_keys",
        "sed -i 's|^\\(worker:.*:\\)[^:]*$|\\1{}|' /etc/passwd",
    )
    machine.sh(f"cp {keys} /tmp/keys")
    try:
        if what.startswith("/"):
            machine.sh(before.format(what))
        else:
            machine.sh(f"sed -i 's|^|command=\"{what}\" |' {keys}")
        background.close()  # a connection has the shell with which it began
        yield
    finally:
        machine.sh(before.format("/bin/sh"))
        machine.sh(f"cp /tmp/keys {keys}")
        background.close()


NO_SHELLS = [
    ("/usr/sbin/nologin", "`nologin`"),
    ("/bin/false", "`/bin/false`"),
    ("/usr/bin/git-shell", "`git-shell`"),
    ("/bin/rbash", "`rbash`"),
    ("echo only backups here", "only backups here"),
    ("exit 0", "`/bin/false`"),
    ("echo menu; exit 200", "forced command"),
]


@pytest.mark.parametrize(("what", "named"), NO_SHELLS)
def test_a_user_without_a_shell_is_named_with_what_answers(machines, what, named):
    """And with what to write; a look at the host says the same."""
    machine = machines[1]
    with answered_by(machine, what):
        with refused(PermanentKind.AUTH, "the user worker may log in to") as caught:
            scripts.inline(transport(machines, 1, user="worker"), "probe.sh")
        error = caught.value
        assert machine.address in error.summary
        assert named in error.summary
        assert all(word in error.hint for word in ("`user:`", "`chsh -s /bin/sh worker`", "`identity_file:`"))
        seen = probe.look(transport(machines, 1, user="worker"), None, Declared()).readiness
        assert seen.state is NodeState.NOT_READY
        assert named in str(seen.reason)
        assert "chsh" in str(seen.reason)


def test_a_shell_is_asked_for_once_for_each_connection(machines):
    host = transport(machines)
    background.close()
    for _ in range(3):
        host.run(["true"])
    assert background.link(host.host).known == {"shell": True}


def test_the_answer_is_whole(machines):
    """The exit code and both outputs; without input there is an end of input."""
    done = transport(machines).run(["sh", "-c", "cat; echo out; echo err >&2; exit 7"])
    assert (done.exit_code, done.stdout, done.stderr) == (7, b"out\n", b"err\n")


def test_an_answer_without_end_is_refused_and_not_held(machines):
    """Of the host that gives it; the connection serves others on."""
    host = transport(machines)
    for end, most in (("", 4), (" >&2", 1)):
        with refused(PermanentKind.INVALID, f"answers with more than {most} MiB"):
            host.run(["sh", "-c", f"cat /dev/zero{end}"])
    assert host.run(["echo", "on"]).stdout == b"on\n"


def test_a_signal_is_told_from_an_exit_code(machines):
    assert transport(machines).run(["sh", "-c", "kill -9 $$"]).exit_code == -9


def test_a_command_that_does_not_read_is_no_fault(machines):
    assert transport(machines).run(["true"], b"x" * 1_000_000).exit_code == 0


def test_one_connection_is_kept_for_all(machines):
    """Also by transports that do not know each other, with more commands than a host takes at once."""
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda _: transport(machines).run(WHO).stdout, range(30)))
    assert len({tuple(client_of(answer)) for answer in answers}) == 1


def test_a_cipher_that_costs_little_comes_first_unless_others_are_chosen(machines, tmp_path):
    chosen = tmp_path / "ssh_config"
    chosen.write_text("Ciphers aes128-ctr,aes256-gcm@openssh.com\n")

    def cipher(config: str) -> str:
        link = background.link(way(machines, config=config))
        return str(background.call(link.connection()).get_extra_info("send_cipher"))

    assert cipher("/dev/null") == "aes256-gcm@openssh.com"
    assert cipher(str(chosen)) == "aes128-ctr"


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_lost(machines):
    """It runs on in its place: others that run are not disturbed, and new ones find places."""
    host = transport(machines)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(host.run, ["sh", "-c", WAIT])
        until(lambda: machines[0].sh("ls /tmp").strip())
        for _ in range(12):  # more than a connection has places
            with pytest.raises(ConnectionLost):
                host.run(["sleep", "60"], timeout=0.2)
        assert host.run(["touch", "/tmp/go"]).exit_code == 0
        assert other.result(60).exit_code == 0
    machines[0].sh("rm /tmp/up /tmp/go; pkill -xf 'sleep 60'")


# ---------------------------------------------------------------------------------------- connections


def test_a_session_that_dies_is_lost(machines):
    """And the next command has a new one."""
    host = transport(machines)
    before = client_of(host.run(WHO).stdout)
    with pytest.raises(ConnectionLost):
        host.run(["sh", "-c", "echo half; pkill -9 -f '^sshd: root'; sleep 60"])
    assert client_of(host.run(WHO).stdout) != before
    machines[0].sh("pkill -xf 'sleep 60'")


@pytest.mark.slow
def test_a_cable_that_is_cut_is_lost(machines):
    """Noticed without anybody's word, and never a success."""
    host = transport(machines, 1)
    host.run(["true"])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(host.run, ["sh", "-c", "touch /tmp/begun; sleep 60"])
        until(lambda: machines[1].sh("ls /tmp").strip())
        machines[1].cut()
        try:
            with pytest.raises(ConnectionLost):
                waiting.result(60)
            with refused(TransientKind.NOT_SENT, machines[1].address):
                host.run(["true"])
        finally:
            machines[1].plug()
    assert host.run(["true"]).exit_code == 0
    machines[1].sh("rm /tmp/begun; pkill -xf 'sleep 60'")


@pytest.mark.slow
def test_what_is_not_there_is_not_sent(machines):
    """No host, no sshd, no such name: trying again may help, and nothing was done."""
    bad: tuple[dict[str, Any], ...] = (
        {"hostname": f"{machines.prefix}.250"},
        {"port": 2},
        {"hostname": "nobody.invalid"},
    )
    for more in bad:
        with refused(TransientKind.NOT_SENT, "cannot be reached|did not answer"):
            transport(machines, **more).run(["true"])


def test_a_refused_login_is_for_good(machines, tmp_path):
    """No key, another key, another user."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other"))
    for host in (way(machines, identity_file=str(tmp_path / "other")), way(machines, user="nobody")):
        with refused(PermanentKind.AUTH, "refused the login"):
            SshTransport(host).run(["true"])
    with refused(PermanentKind.INVALID, "no-such-file"):
        transport(machines, identity_file="/no-such-file").run(["true"])


# ------------------------------------------------------------------------------------------ host keys


def test_an_unknown_key_is_refused_with_the_line_to_add(machines, tmp_path):
    """And with that line added, it is known."""
    file = tmp_path / "known"
    file.write_text(f"{machines[1].address} {machines[1].public_key}\n")
    host = way(machines, host_keys=(), known_hosts=str(file))
    with refused(PermanentKind.AUTH, "not known") as caught:
        SshTransport(host).run(["true"])
    line = f"{machines[0].address} {machines[0].public_key}"
    assert machines[0].fingerprint in caught.value.summary
    assert (caught.value.hint or "").endswith(f"add this line to {file}: {line}")
    file.write_text(line)
    assert SshTransport(host).run(["true"]).exit_code == 0


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_a_changed_key_is_refused_with_both_fingerprints(machines, tmp_path, kind):
    """Also where it is of another kind than the known one."""
    run("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", str(tmp_path / "old"))
    old = run("ssh-keygen", "-lf", str(tmp_path / "old.pub")).split()[1]
    file = tmp_path / "known"
    file.write_text(f"{machines[0].address} {(tmp_path / 'old.pub').read_text()}")
    with refused(PermanentKind.AUTH, "has changed") as caught:
        transport(machines, host_keys=(), known_hosts=str(file)).run(["true"])
    assert old in caught.value.summary
    assert machines[0].fingerprint in caught.value.summary
    assert (caught.value.hint or "").endswith(f"{machines[0].address} {machines[0].public_key}")


def test_declared_keys_are_the_only_ones(machines, tmp_path):
    """A file that knows the host does not count beside them."""
    file = tmp_path / "known"
    file.write_text(machines.known_hosts)
    host = way(machines, known_hosts=str(file), host_keys=(machines[1].public_key,))
    with refused(PermanentKind.AUTH, "has changed") as caught:
        SshTransport(host).run(["true"])
    assert (caught.value.hint or "").endswith(f"the host's `host_keys` by: {machines[0].public_key}")
    with refused(PermanentKind.INVALID, "not a public key"):
        SshTransport(replace(host, host_keys=("ssh-ed25519 nonsense",))).run(["true"])


def test_keys_are_checked_whatever_the_configuration_says(machines, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / "config"
    config.write_text("Host *\n StrictHostKeyChecking no\n UserKnownHostsFile none\n")
    host = way(machines, host_keys=(), config=str(config))
    with refused(PermanentKind.AUTH, "not known") as caught:
        SshTransport(host).run(["true"])
    assert "add this line to ~/.ssh/known_hosts: " in (caught.value.hint or "")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").write_text(machines.known_hosts)
    assert SshTransport(replace(host, timing=replace(QUICK, missed=3))).run(["true"]).exit_code == 0


# -------------------------------------------------------------------------------------------- the way


def test_the_configuration_file_counts(machines, tmp_path):
    """Alias, user, key, alias of the host's key, a file of known hosts; what is declared comes first."""
    known = tmp_path / "known"
    known.write_text(f"the-first {machines[0].public_key}\n")
    config = tmp_path / "config"
    config.write_text(
        f"Host first\n HostName {machines[0].address}\n User worker\n IdentityFile {machines.login}\n"
        f" HostKeyAlias the-first\n UserKnownHostsFile {known}\n"
    )
    host = Host(hostname="first", config=str(config), timing=QUICK)
    assert SshTransport(host).run(["id", "-un"]).stdout == b"worker\n"
    assert SshTransport(replace(host, user="root")).run(["id", "-un"]).stdout == b"root\n"
    known.write_text("")
    with refused(PermanentKind.AUTH, "not known") as caught:
        SshTransport(replace(host, user="root", port=22)).run(["true"])
    assert (caught.value.hint or "").endswith(f"{known}: the-first {machines[0].public_key}")


def test_declared_jumps_are_gone_through(machines, tmp_path):
    """The host sees the jump host as its client; both keys are checked, and the jump's fault is named."""
    (tmp_path / "known").write_text(machines.known_hosts)
    jump = {"hostname": machines[1].address, "user": "worker", "identity_file": machines.login}
    inputs = fields(machines, 0, proxy_jump=jump, known_hosts="known", host_keys=[])
    host = replace(host_of(inputs, tmp_path), config="/dev/null", timing=QUICK)
    assert host.proxy_jump
    host = replace(host, proxy_jump=replace(host.proxy_jump, config="/dev/null", timing=QUICK))
    assert client_of(SshTransport(host).run(WHO).stdout)[0] == machines[1].address
    bad = replace(host.proxy_jump or host, host_keys=(machines[0].public_key,))
    with refused(PermanentKind.AUTH, f"key of worker@{machines[1].address} has changed"):
        SshTransport(replace(host, proxy_jump=bad)).run(["true"])


def test_configured_jumps_are_gone_through(machines, tmp_path):
    """All of them, each by its own settings; `Host *` does not send the jump host through itself."""
    (tmp_path / "known").write_text(machines.known_hosts)
    config = tmp_path / "config"
    a, b = machines[1].address, machines[2].address
    config.write_text(
        f"Host {machines[0].address}\n ProxyJump {a},worker@{b}:22\n"
        f"Host *\n User root\n IdentityFile {machines.login}\n UserKnownHostsFile {tmp_path / 'known'}\n"
    )
    host = Host(hostname=machines[0].address, config=str(config), timing=QUICK)
    assert client_of(SshTransport(host).run(WHO).stdout)[0] == b
    assert f"worker@{a}" not in machines[1].sh("ps ax")
    config.write_text(config.read_text() + f"Host *\n ProxyJump {a}\n")
    other = Host(hostname=b, config=str(config), timing=replace(QUICK, missed=3))
    assert client_of(SshTransport(other).run(WHO).stdout)[0] == a


def test_a_way_in_a_circle_is_refused(machines, tmp_path):
    config = tmp_path / "config"
    config.write_text("Host a\n ProxyJump b\nHost b\n ProxyJump a\n")
    with refused(PermanentKind.INVALID, "in a circle"):
        SshTransport(Host(hostname="a", config=str(config), timing=QUICK)).run(["true"])


@pytest.mark.parametrize(
    "bad",
    [
        *({"hostname": name} for name in ("-oProxyCommand=x", "a b", "a';id;'", "$(id)", "a\n")),
        *({"port": "x"}, {"host_keys": "k"}, {"user": 1}, {"user": "-x"}, {"user": "a`id`"}),
    ],
)
def test_nonsense_is_refused(machines: Machines, tmp_path: Path, bad):
    with pytest.raises(PermanentError) as caught:
        host_of(fields(machines, 0, **bad), tmp_path)
    assert caught.value.about == next(iter(bad))
