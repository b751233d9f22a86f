"""The parts of the ssh provider that need no host: words, scripts, GPUs, options, and lazy imports."""

from __future__ import annotations

import hashlib
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.model.schema import BadValueError, decode_part
from declarative.model.spec.fleet import SshConfig
from declarative.model.state import Address, Record
from declarative.model.status import NodeState
from declarative.provider import Config, PermanentError
from providers.runner import RunnerError
from providers.ssh import Ssh, gpus, probe, scripts
from providers.ssh.host import Host, host_of, terminal
from providers.ssh.link import unsent
from providers.ssh.probe import TOOLS
from providers.ssh.transport import command_line
from providers.transport import Finished, LocalTransport
from tests.support.model import of_node

REPOSITORY = Path(__file__).resolve().parents[3]
SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh", "fish", "tcsh") if shutil.which(shell)]


def provider(folder: Path, **options) -> Ssh:
    return Ssh(Config(backend="ssh", project_dir=folder, lineage="l", options=options))


@pytest.mark.parametrize("resources", [{"cpu": 4, "gpu": 1}, ["cpu"]])
def test_declared_resources_that_are_no_shape_are_refused(tmp_path, resources):
    """They are an operator's word for what a host has: a field that is not counted must not be ignored."""
    host = {"hostname": "h", "user": "u", "resources": resources}
    seen = provider(tmp_path).look({"h": host})["h"].readiness
    assert seen.state is NodeState.NOT_READY
    assert f"the declared resources of h cannot be {resources!r}" in str(seen.reason)


def test_asyncssh_is_loaded_with_the_first_host(tmp_path):
    """It costs 0.4 s, which no plan without hosts shall pay."""
    code = f"""
import sys
from pathlib import Path
from declarative.provider import Config
from declarative.provider import load
provider = load("ssh", Config(backend="ssh", project_dir=Path({str(tmp_path)!r}), lineage="l"))
assert provider.offers() == provider.inventory() == ()
assert not provider.readiness([])
assert "asyncssh" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=REPOSITORY
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_known_hosts_of_a_fleet_are_read_into_keys_once(tmp_path):
    """Each of a thousand hosts would read the keys of all of them."""
    from asyncssh import SSHClientConnectionOptions, generate_private_key

    from providers.ssh.known_hosts import Trust

    file = tmp_path / "known_hosts"

    def trust(name: str) -> Trust:
        options = SSHClientConnectionOptions(host=name, config=None, client_keys=None)
        return Trust.of(Host(hostname=name, known_hosts=str(file)), options)

    def write() -> None:
        key = generate_private_key("ssh-ed25519").export_public_key().decode()
        file.write_text(f"a,b {key}")

    write()
    assert trust("a").listed is (old := trust("b").listed)
    write()
    assert trust("a").listed is not old


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("hostname", name) for name in ("x';touch${IFS}pwned;'", "$(id)", "a b", "-oX=y")),
        *(("user", name) for name in ("x;id", "-x", "`id`")),
    ],
)
@pytest.mark.parametrize("where", ["host", "jump", "fleet"])
def test_no_name_runs_anything_here(field, value, where):
    """Hosts and users get into command lines of this machine: what a shell would heed is refused."""
    host = {"hostname": "a"}
    named = {**host, field: value}
    bodies: dict[str, Any] = {
        "host": {"hosts": [named]},
        "jump": {"hosts": [host], "proxy_jump": named},
        "fleet": {"hosts": [host], field: value},
    }
    if where == "fleet" and field == "hostname":
        return
    with pytest.raises(BadValueError) as caught:
        decode_part(SshConfig, bodies[where])
    assert caught.value.code == "bad-value"
    assert caught.value.path[-1] == field
    with pytest.raises(PermanentError):
        host_of(named, Path())


@pytest.mark.parametrize("name", ["10.0.0.1", "fe80::1%eth0", "gpu-1.example", "gpu_1", "münchen.example"])
def test_names_that_hosts_have(name):
    decode_part(SshConfig, {"hosts": [name], "user": "DOM\\me@x"})
    assert host_of({"hostname": name}, Path()).hostname == name


def test_a_way_through_a_host_whose_address_has_a_zone(tmp_path, monkeypatch):
    """What begins with a percent, ssh takes for its own."""
    (tmp_path / "ssh").write_text("")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    host = host_of({"hostname": "b", "proxy_jump": {"hostname": "fe80::1%eth0"}}, tmp_path)
    with terminal(host, None, tty=False) as way:
        [command] = [word for word in way.argv if word.startswith("ProxyCommand=")]
    assert command.endswith(" -W '[%h]:%p' -- fe80::1%%eth0")


# ---------------------------------------------------------------------------------------------- words

words = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4)


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
@given(argv=words)
def test_words_are_the_same_in_every_shell(shell, argv):
    program = "import sys; sys.stdout.write('|'.join(sys.argv[1:]))"
    line = command_line([sys.executable, "-c", program, *argv])
    done = subprocess.run([shell, "-c", line], capture_output=True, check=False)
    assert done.stdout.decode() == "|".join(argv)


def test_plain_words_stay_readable():
    assert command_line(["env", "A=b", "sh", "/x/y.sh", "poll"]) == "exec env A=b sh /x/y.sh poll"
    assert command_line(["sh", "-c", 'eval "$(cat)"', "sh", ""]) == "exec sh -c 'eval \"$(cat)\"' sh ''"


# -------------------------------------------------------------------------------------------- scripts


def put(root: Path, content: bytes, size: int, digest: str) -> subprocess.CompletedProcess[bytes]:
    command = ["sh", "-c", scripts.text("put.sh"), "sh", str(root), "runner.sh", str(size), digest]
    return subprocess.run(command, input=content, capture_output=True, check=False)


def test_half_a_script_is_never_put(tmp_path):
    """Cut off, or damaged on the way: it does not get its name, and what had it before keeps it."""
    whole = b"echo whole\n" * 100
    digest = hashlib.sha256(whole).hexdigest()
    bad = (whole[:50], whole[:-1], whole[:-1] + b"x", b"")
    for old in (None, b"old"):
        if old:
            (tmp_path / "bin" / "runner.sh").write_bytes(old)
        for content in bad:
            done = put(tmp_path, content, len(whole), digest)
            assert done.returncode == 76
            assert done.stdout.startswith(b"FLEETFORM-ERR truncated")
            found = {p.name: p.read_bytes() for p in (tmp_path / "bin").iterdir()}
            assert found == ({"runner.sh": old} if old else {})
    assert put(tmp_path, whole, len(whole), digest).returncode == 0
    assert (tmp_path / "bin" / "runner.sh").read_bytes() == whole


def test_a_script_is_not_put_through_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    done = put(tmp_path / "link", b"", 0, hashlib.sha256(b"").hexdigest())
    assert done.stdout.startswith(b"FLEETFORM-ERR unwritable")


@pytest.mark.skipif(not shutil.which("systemd-tmpfiles"), reason="no systemd-tmpfiles here")
def test_a_new_folder_in_tmp_is_excluded_from_cleaning(tmp_path, monkeypatch):
    """By a rule that names it, where we may write one."""
    rules, root = tmp_path / "tmpfiles.d", Path("/var/tmp") / f"fleetform-test-{os.getpid()}"
    rules.mkdir()
    none = hashlib.sha256(b"").hexdigest()
    argv = ["sh", "-c", scripts.text("put.sh"), "sh", str(root), "x.sh", "0", none]
    try:
        for folder, count in (("/nonexistent", 0), (str(rules), 1)):
            monkeypatch.setenv("FLEETFORM_TMPFILES_DIR", folder)
            subprocess.run([*argv, "own"], capture_output=True, check=True)
            assert [p.read_text().splitlines()[-1] for p in rules.iterdir()] == [f"x {root}"] * count
            shutil.rmtree(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("name", ["enter.sh", "put.sh", "probe.sh", "claim.sh", "epoch.sh"])
def test_scripts_are_posix(name):
    for shell in SHELLS[:3]:
        path = REPOSITORY / "providers" / "ssh" / name
        done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_who_is_no_longer_the_writer_takes_changes_and_gives_back_no_host(tmp_path):
    """A lower number than one that came is refused, and nothing is changed; who only reads has none."""
    script = tmp_path / "runner.sh"
    script.write_bytes(scripts.bundle())
    root = tmp_path / "root"
    root.mkdir()

    def ask(epoch: int | None, verb: str, *arguments: str, claim: str = "") -> str:
        number = [] if epoch is None else [f"FLEETFORM_EPOCH={epoch}", "FLEETFORM_OWNER=me"]
        words = [*arguments, str(len(claim))] if claim else list(arguments)
        argv = ["env", *number, "sh", str(script), verb, str(root), *words]
        done = subprocess.run(argv, input=claim, capture_output=True, text=True, check=False)
        return done.stdout

    assert "a\nfirst" in ask(10, "@claim", "a", claim="a\nfirst")
    stale = "FLEETFORM-ERR stale a later command was here (10, and this is 9)"
    assert ask(9, "@claim", "b", claim="b\nlate").strip() == stale
    assert ask(9, "@change", "a", claim="a\nlate").strip() == stale
    assert ask(9, "@release", "a").strip() == stale
    assert ask(9, "@tidy", "a", "x").strip() == stale
    assert "a\nfirst" in ask(None, "@show")
    assert "a\nagain" in ask(11, "@change", "a", claim="a\nagain")
    assert ask(11, "@release", "a") == ""
    assert ask(10, "@claim", "a", claim="a\nlate").startswith("FLEETFORM-ERR stale")
    assert ask(None, "@show") == "FLEETFORM-CLAIM 0\n"
    # With the folder go the numbers; who was on his way before finds none, and is refused as well.
    (root / "bin").mkdir()
    assert ask(11, "@release", "a") == "FLEETFORM-LEFT\n"
    assert not root.exists()
    assert ask(10, "@claim", "a", claim="a\nlate").startswith("FLEETFORM-ERR unwritable")
    assert not root.exists()


def test_sets_of_cpus():
    assert scripts.cpu_list("0-3,8,10-11") == (0, 1, 2, 3, 8, 10, 11)
    assert scripts.cpu_list("") == ()


# ----------------------------------------------------------------------------------------------- GPUs


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 3080 Ti", "RTX3080Ti"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("NVIDIA RTX A6000", "A6000"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("Radeon RX 7900 XT", "RX7900XT"),
        ("AMD Radeon AI PRO R9700", "R9700"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_models_are_named_as_they_are_asked_for(reported, name):
    assert gpus.model(reported) == name


@pytest.mark.parametrize(
    ("mib", "gib"),
    [(81559, 80), (40960, 40), (15360, 16), (23028, 24), (46068, 48), (24564, 24), (143771, 141)],
)
def test_memory_is_what_it_is_sold_as(mib, gib):
    assert gpus.memory(mib) == gib * 1024
    assert gpus.memory(1000) == 1000


ROCM = (
    "WARNING: AMD GPU device(s) is/are in a low-power state",
    "device,VRAM Total Memory (B),VRAM Total Used Memory (B),Card Series,Card Model,Card Vendor",
    "card1,206141652992,0,AMD Instinct MI300X OAM,0x74a1,x",
    "card0,206141652992,1048576,AMD Instinct MI300X OAM,0x74a1,x",
)


def test_amds_tool_is_read():
    found = gpus.rocm(ROCM, 0)
    assert [(g.index, g.name, g.memory_mib, g.used_mib, g.vendor) for g in found] == [
        (0, "MI300X", 192 * 1024, 1, "amd"),
        (1, "MI300X", 192 * 1024, 0, "amd"),
    ]


@pytest.mark.parametrize(
    ("tool", "rows", "code", "text"),
    [
        (gpus.nvidia, ["0, GPU-a, NVIDIA H100, [Unknown Error], 0"], 0, "Unknown Error"),
        (gpus.nvidia, ["Failed to initialize NVML: Driver/library version mismatch"], 18, "mismatch"),
        (gpus.nvidia, [], 124, "no answer within 10 s"),
        (gpus.rocm, [ROCM[1], "card0,N/A,0,x,y,z"], 0, "N/A"),
        (gpus.rocm, ["ERROR: no driver"], 1, "no driver"),
    ],
)
def test_what_is_no_list_of_gpus_is_an_error(tool, rows, code, text):
    with pytest.raises(gpus.BrokenGpuError, match=text):
        tool(rows, code)


def test_no_devices_are_no_error():
    assert gpus.nvidia(["No devices were found"], 0) == ()
    assert gpus.nvidia([""], 0) == ()


# -------------------------------------------------------------------------------------------- answers


def test_a_probe_is_read_from_whatever_came():
    """Also where much is missing: nothing is made up."""
    facts = probe.parse([], 100.0)
    assert (facts.shape.cpu, facts.shape.memory_mib, facts.boot_id, facts.clock_offset) == (0, 0, None, 0.0)
    lines = [*(f"tool={tool}" for tool in TOOLS), "now=160.5", "block=4096", "free=25600", "total=51200"]
    facts = probe.parse([*lines, "cpus=0-7", "memory_kib=2097152", "files=0", "files_free=0"], 100.0)
    assert (facts.disk_free_mib, facts.disk_mib, facts.files_free) == (100, 200, None)
    assert (facts.shape.cpu, facts.memory_mib, facts.clock_offset) == (8, 2048, 60.5)
    assert probe.parse(["now=100.N"], 100.0).clock_offset == 0  # busybox


def test_addresses_of_bridges_are_none_for_other_hosts(tmp_path, monkeypatch):
    """Each host has the same ones."""
    shown = {
        "eth0": "10.0.0.7",
        "docker0": "172.17.0.1",
        "br-0f1e2d3c4b5a": "172.18.0.1",
        "virbr0": "192.168.122.1",
    }
    shown |= {"br0": "10.0.1.7", "cni-podman0": "10.88.0.1", "ib0": "fd00::7"}
    lines = [
        f"{i}: {name}    inet{'6' * (':' in ip)} {ip}/24 scope global {name}"
        for i, (name, ip) in enumerate(shown.items(), 2)
    ]
    (tmp_path / "ip").write_text("#!/bin/sh\nprintf '%s\\n' " + shlex.join(lines) + "\n")
    (tmp_path / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    host: Any = SimpleNamespace(host="h", run=LocalTransport().run)
    assert probe.probe(host, str(tmp_path / "state")).addresses == ("10.0.0.7", "10.0.1.7", "fd00::7")


def test_a_node_without_a_host_is_not_ready(tmp_path):
    node = Record(address=Address("node", "n"), backend="ssh", inputs=of_node(), outputs={"id": "x"})
    seen = provider(tmp_path).readiness([node])["n"]
    assert seen.state is NodeState.NOT_READY
    assert "`host`" in (seen.reason or "")


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"rot": "x"}, "options.rot"),
        ({"root": "relative"}, "options.root"),
        ({"root": "/"}, "options.root"),
        ({"root": 7}, "options.root"),
        ({"ssh_config": ""}, "options.ssh_config"),
        ({"connect_timeout": 0}, "options.connect_timeout"),
        ({"connect_timeout": "5"}, "options.connect_timeout"),
    ],
)
def test_wrong_options_are_named(tmp_path, options, about):
    with pytest.raises(PermanentError) as caught:
        provider(tmp_path, **options)
    assert caught.value.about == about


def test_a_late_writer_changes_no_volume(tmp_path):
    """A look by a later one is enough; whose volumes they are, is a count of its own."""
    key, root = "0123456789abcdef", tmp_path / "root"
    root.mkdir()

    def ask(verb: str, *more: str, epoch: int | None, owner: str = "ours", text: bytes = b"") -> str:
        env = dict(os.environ)
        if epoch is not None:
            env |= {"FLEETFORM_EPOCH": str(epoch), "FLEETFORM_OWNER": owner}
        argv = ["sh", "-c", scripts.text("volume.sh"), "sh", verb, str(root), *more]
        return subprocess.run(argv, input=text, env=env, capture_output=True, check=False).stdout.decode()

    made = f"{key}\n{{}}\n".encode()
    assert key in ask("make", key, str(len(made)), "0", epoch=9, text=made)
    assert key in ask("show", epoch=10)
    late = ask("remove", key, epoch=9)
    assert late == "FLEETFORM-ERR stale a later command was here (10, and this is 9)\n"
    assert key in ask("show", epoch=None), "who only reads is refused nothing"
    assert key in ask("show", epoch=1, owner="theirs")
    assert key not in ask("remove", key, epoch=10).partition("FLEETFORM-VOLUMES")[2]


def answer(**more: str) -> list[str]:
    """What `probe.sh` prints of a host in order, but for `more`."""
    said = {
        "root": "/r",
        "cpus": "0-3",
        "memory_kib": "4194304",
        "memory_free_kib": "4194304",
        "block": "4096",
    }
    said |= {"total": "1000000", "free": "900000", "files": "99999", "files_free": "99999", "now": "100.5"}
    said |= {"nvidia_code": "0", "nvidia": "0, GPU-1, NVIDIA H100, 81559, 0"} | more
    return [f"{name}={value}" for name, value in said.items()]


ODD_NUMBERS = (
    "1-x",
    "x",
    "9" * 5000,
    "0-99999999999",
    "-1",
    "1e9",
    "inf",
    "nan",
    "\u00b2",
    "\u0663",
    "0-9" * 3000,
    "",
)


@pytest.mark.parametrize("text", ODD_NUMBERS)
@pytest.mark.parametrize("name", ["cpus", "memory_kib", "total", "files", "nvidia_code", "nvidia", "now"])
def test_what_a_hostile_host_says_is_its_own_fault(name, text):
    """Its look ends at once with facts that can be recorded, or with a reason why it is not ready."""
    said = "\n".join(("FLEETFORM-PROBE", *answer(**{name: text}), "FLEETFORM-END", "")).encode()
    host: Any = SimpleNamespace(host="h", run=lambda *_: Finished(0, said, b""))
    found = probe.look(host, None, probe.Declared())
    if found.facts is None:
        assert found.readiness.state is NodeState.NOT_READY
        assert "where" in (found.readiness.reason or "")
    else:
        assert found.facts.shape.cpu <= scripts.MOST_CPUS
        assert abs(found.facts.clock_offset) < 1e12
    assert len(found.readiness.reason or "") < 600


def test_no_answer_of_a_host_makes_a_traceback():
    """Ten thousand answers with parts of them changed, by a fixed seed; `FLEETFORM_FUZZ` is how many."""
    chance = random.Random(15)
    parts = [
        *ODD_NUMBERS,
        "card0,x",
        "device,Card Series",
        "\0",
        "\x1b[2J",
        "=",
        ",",
        "-",
        "\x85",
        "a" * 1000,
    ]
    for _ in range(int(os.environ.get("FLEETFORM_FUZZ", "10000"))):
        lines = answer()
        for _ in range(chance.randint(1, 4)):
            i = chance.randrange(len(lines))
            name, _, value = lines[i].partition("=")
            how = chance.randrange(4)
            cut = chance.randrange(len(value) + 1)
            lines[i] = f"{name}={value[:cut]}{chance.choice(parts)}{value[cut:]}" if how else value
            if how == 2:
                lines[i] = (
                    f"{chance.choice(('rocm', 'rocm_code', 'nvidia', 'addresses'))}={chance.choice(parts)}"
                )
            if how == 3:
                lines.append(lines[i])
        try:
            facts = probe.parse(lines, 100.0)
        except RunnerError:
            continue
        assert facts.shape.cpu <= scripts.MOST_CPUS
        assert max(facts.shape.memory_mib, facts.disk_mib, abs(facts.clock_offset)) < 1 << 100


@pytest.mark.parametrize("left", [0, 1, 2, 3, 40, -12, -2])
def test_a_visit_that_is_cut_off_is_no_answer(left):
    """A part that did not come is not taken for one that tells of nothing: a volume would be gone."""

    def run(argv: Any, *_: Any) -> Finished:
        mark = argv[argv.index("sh", 1) + 1]
        parts = "\n".join(("FLEETFORM-PROBE", *answer(), "FLEETFORM-END", "")), "", ""
        whole = "".join(f"{part}\n{mark} 0\n" for part in parts)
        lines = whole.splitlines(keepends=True)
        return Finished(0, "".join(lines[:left] if left < 9 else whole[:left]).encode(), b"")

    host: Any = SimpleNamespace(host="h", run=run, fence=lambda: None)
    found = probe.visit(host, None, "o", probe.Declared(node="gpu-0"), attempts=dict)
    assert found.readiness.state is NodeState.UNREACHABLE
    assert found.things is None
    assert found.attempts is None


def test_a_name_that_is_unknown_is_told_in_words():
    """Without the number that Python puts before it."""
    error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert unsent(Host(hostname="nohost.invalid"), error).summary == (
        "nohost.invalid cannot be reached: Name or service not known"
    )
