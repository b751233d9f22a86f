"""A stranger's project, as the command meets it: a clear error, soon, in little memory, and nothing done.

test_source and test_loader test the reader and the loader; this file tests the whole command.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cli import COMMAND, clean_env

COMMANDS = (("validate",), ("plan", "--offline"))
TIMES = 7
"""So many times the CPU time of a small project may be added: about 1 s where that takes 0.14. The most is
5 times, for as many values as a file may have. A ratio, since machines differ, and so do their hours.
"""
MEGABYTES = 200
FLEET = "type: fleet\nname: gpu\nnodes: 1\n"
LIMIT = 4 << 20


def backend(driver: str, more: str = "", name: str = "aws", regions: str = "[us-east-1]") -> str:
    """A document with a `---` at its end."""
    return f"type: backend\nname: {name}\ndriver: {driver}\nregions: {regions}\nimage: ami-1\n{more}\n---\n"


def names(form: str, count: int) -> str:
    return "[" + ", ".join(form.format(i) for i in range(count)) + "]"


def text(content: str | bytes) -> Callable[[Path], None]:
    """A project of one file."""
    data = content.encode() if isinstance(content, str) else content

    def make(folder: Path) -> None:
        (folder / "main.yaml").write_bytes(data)

    return make


def bomb() -> str:
    lines = ["a0: &a0 [lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    return FLEET + "\n".join(lines)


def link_outside(folder: Path) -> None:
    (folder / "main.yaml").symlink_to("/etc/passwd")


def link_to_device(folder: Path) -> None:
    (folder / "main.yaml").symlink_to("/dev/zero")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "main.yaml")


def include_through_link(folder: Path) -> None:
    (folder / "main.yaml").write_text("type: project\ninclude: ['sub/*.yaml']\n")
    (folder / "sub").symlink_to("/etc")


def many_files(folder: Path) -> None:
    for i in range(2_000):
        (folder / f"{i}.yaml").write_text("a: 'b\n")


def templates(*expressions: str) -> str:
    lines = [f"- '{expression}'" for expression in expressions]
    return "type: project\nvariables: {x: aaaaaaaaaa, n: 9}\n---\n" + FLEET + "regions:\n" + "\n".join(lines)


def files(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """A task with a folder of files, and what is in it."""

    def project(folder: Path) -> None:
        (folder / "main.yaml").write_text("type: task\nname: train\ncommands: [x]\nfiles: [src]\n")
        (folder / "src").mkdir()
        make(folder / "src")

    return project


def touch(number: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for i in range(number):
            os.close(os.open(folder / f"{i}", os.O_CREAT))

    return make


def sparse(folder: Path) -> None:
    with (folder / "large").open("wb") as file:
        file.truncate(1 << 40)


def slow_rules(folder: Path) -> None:
    """As one expression each, they would take years."""
    (folder / ".gitignore").write_text("*a*a*a*a*a*a*a*a*b\n" * 5_000)
    for i in range(1_500):
        (folder / f"{'a' * 240}{i}").touch()


def many_tasks(folder: Path) -> None:
    (folder / "src").mkdir()
    touch(1_000)(folder / "src")
    tasks = (f"type: task\nname: t{i}\ncommands: [x]\nfiles: ['src:{i}']\n" for i in range(300))
    (folder / "main.yaml").write_text("---\n".join(tasks))


CASES: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "alias bomb": (text(bomb()), {"too-large"}),
    "deep nesting": (text(FLEET + "tags: " + "[" * (LIMIT - 100)), {"too-deep"}),
    "huge file": (text(FLEET + "# " + "x" * LIMIT), {"too-large"}),
    "many values": (text(FLEET + "regions:\n" + "- \n" * (LIMIT // 4)), {"too-large"}),
    "many documents": (text("---\n" * (LIMIT // 4 - 1)), {"too-large"}),
    "many lists": (text(FLEET + "regions: [" + "[], " * (LIMIT // 5) + "]"), {"too-large"}),
    "many empty mappings": (text("{}\n---\n" * (LIMIT // 8)), {"too-large"}),
    "many keys": (text(FLEET + "tags:\n" + "".join(f" a{i}: b\n" for i in range(300_000))), {"too-large"}),
    "one long list": (text(FLEET + "regions:\n" + "- aaa\n" * 200_000), {"too-large"}),
    "one large mapping": (
        text(FLEET + "tags:\n" + "".join(f" a{i}: b\n" for i in range(100_000))),
        {"too-large"},
    ),
    "documents of nothing": (text("---\n" * 200_000), {"too-large"}),
    "as many values as may be": (
        text("".join(f"a{i}:\n" + "- a\n" * 49_990 for i in range(11))),
        {"too-large"},
    ),
    "many findings": (
        text("---\n".join(FLEET.replace("gpu", f"g{i}") + "nods: 1\nregions: 1\n" for i in range(9_000))),
        {"unknown-field", "wrong-type", "too-many-errors"},
    ),
    "many wrong fields": (
        text(FLEET + "".join(f"f{i}: 1\n" for i in range(40_000))),
        {"unknown-field", "too-many-errors"},
    ),
    "many mounts": (
        text(
            "type: task\nname: train\nnodes: 99999\ncommands: [x]\nvolumes:\n"
            + "".join(f"- v{i}-${{{{ node_rank }}}}:/{i}\n" for i in range(2))
        ),
        {"dangling-reference"},
    ),
    "many ranks": (
        text(
            "---\n".join(
                f"type: task\nname: t{i}\nnodes: 50000\ncommands: [x]\nfleets: [none]\n" for i in range(2)
            )
        ),
        {"dangling-reference"},
    ),
    "many volumes": (
        text(
            "---\n".join(f"type: volume\nname: v{i}\ncount: 50000\nsize: 1GB\n" for i in range(2))
            + "---\n"
            + FLEET
            + "backends: [none]\n"
        ),
        {"dangling-reference"},
    ),
    "many offers": (
        text(
            backend(
                "gce",
                f"availability_zones: {names('z{}', 900)}\ncatalog:\n"
                + "".join(f"- {{instance_type: t{i}, cpu: 4, memory: 8GB, price: 1}}\n" for i in range(900)),
                regions=names("r{}", 900),
            )
            + FLEET
        ),
        {"too-large"},
    ),
    "many regions": (text(backend("ec2", regions=names("us-east-1", 20_000)) + FLEET), {"too-large"}),
    "one long region": (text(backend("ec2", regions=f"[{'x' * (LIMIT - 200)}]") + FLEET), {"too-large"}),
    "many GPUs": (
        text(backend("ec2") + FLEET + f"resources: {{gpu: '{names('H{}', 90_000)[1:-1]}'}}\n"),
        {"bad-gpu"},
    ),
    "one long GPU": (text(backend("ec2") + FLEET + f"resources: {{gpu: {'H100' * 900_000}}}\n"), {"bad-gpu"}),
    "many CPUs": (
        text(
            backend("gce", "catalog: [{instance_type: a, cpu: 1000000000000, memory: 8GB, price: 1}]")
            + FLEET
            + "blocks: 7\n---\ntype: fleet\nname: cpus\nnodes: 1\nblocks: auto\nresources: {cpu: 999999999..}"
        ),
        {"out-of-range"},
    ),
    "many tags of many nodes": (
        text("type: fleet\nname: gpu\nnodes: 50000\ntags:\n" + "".join(f" k{i}: v\n" for i in range(10_000))),
        {"too-large"},
    ),
    "many hosts": (
        text(
            "type: fleet\nname: gpu\nssh_config:\n  hosts:\n" + "".join(f"  - h{i}\n" for i in range(40_000))
        ),
        {"too-large"},
    ),
    "many files": (many_files, {"yaml-syntax", "too-many-errors"}),
    "one long line": (text(FLEET + "placement: " + "x" * (LIMIT - 100)), {"bad-value"}),
    "one long key": (text(FLEET + "x" * (LIMIT - 100) + ": 1"), {"yaml-syntax"}),
    "binary": (text(bytes(range(256)) * 1000), {"bad-encoding"}),
    "UTF-16": (text(FLEET.encode("utf-16")), {"bad-encoding"}),
    "Python objects": (
        text(FLEET + "tags: !!python/object/apply:os.system ['touch owned']"),
        {"unsupported-yaml"},
    ),
    "classes of Python": (
        text(
            templates('${{ "".__class__.__mro__ }}', "${{ var.__init__.__globals__ }}", "${{ x.__class__ }}")
        ),
        {"template-error", "undefined-variable"},
    ),
    "large numbers": (
        text(
            templates(
                "${{ var.x * 10**9 }}", "${{ 9**9**9 }}", "${{ var.x * 1000000000 }}", "${{ var.n * 1e308 }}"
            )
        ),
        {"template-error"},
    ),
    "loops": (
        text(templates("${{ range(10**9) }}", "${{ lipsum(99) }}", "${{ cycler(1) }}")),
        {"template-error"},
    ),
    "link to a file outside": (link_outside, {"outside-project"}),
    "link to a device": (link_to_device, {"outside-project"}),
    "pipe": (pipe, {"not-a-file"}),
    "include outside": (text("type: project\ninclude: ['../*.yaml', '/etc/*.yaml']\n"), {"outside-project"}),
    "files: a link to a file outside": (
        files(lambda src: (src / "a").symlink_to("/etc/passwd")),
        {"outside-project"},
    ),
    "files: a pipe": (files(lambda src: os.mkfifo(src / "a")), {"not-a-file"}),
    "files: a huge one": (files(sparse), {"too-large"}),
    "files: many": (files(touch(20_001)), {"too-large"}),
    "files: slow rules": (files(slow_rules), {"too-large"}),
    "files: many tasks": (many_tasks, {"too-large"}),
    "include through a link": (include_through_link, {"outside-project"}),
}


MEASURED = """
import json, resource, subprocess, sys
limits = {resource.RLIMIT_CPU: 20, resource.RLIMIT_AS: 1 << 30}
def bounded():
    for limit, most in limits.items():
        resource.setrlimit(limit, (most, most))
done = subprocess.run(
    sys.argv[1:], stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=bounded
)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
seconds = used.ru_utime + used.ru_stime
print(json.dumps([done.returncode, done.stdout, done.stderr, seconds, used.ru_maxrss / 1024]))
"""


@dataclass(frozen=True)
class Used:
    """The output of a command, and the resources that it used."""

    code: int
    out: str
    err: str
    seconds: float
    megabytes: float


def run(folder: Path, *args: str) -> Used:
    """Run the command alone in a process, so that what it used is all that is measured."""
    command = [sys.executable, "-c", MEASURED, COMMAND, *args]
    done = subprocess.run(
        command, cwd=folder, env=clean_env(), capture_output=True, text=True, timeout=120, check=True
    )
    return Used(*json.loads(done.stdout))


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """What each command takes for a project of one small fleet."""
    folder = tmp_path_factory.mktemp("usual")
    (folder / "main.yaml").write_text(FLEET)
    return {command: run(folder, *command) for command in COMMANDS}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_hostile_project_is_refused_soon(tmp_path, usual, command, name):
    make, codes = CASES[name]
    make(tmp_path)
    made = {path.name for path in tmp_path.iterdir()}
    used = run(tmp_path, *command)
    assert (usual[command].code, used.code, used.out) == (0, 1, "")
    assert set(re.findall(r"^error\[(.*?)\]: ", used.err, re.MULTILINE)) == codes
    assert "Traceback" not in used.err
    assert "= hint: " in used.err
    assert len(used.err) < (400_000 if "too-many-errors" in codes else 2_000)
    most = (1 + TIMES) * usual[command].seconds
    if used.seconds >= most:
        used = run(tmp_path, *command)  # CPU time grows a little with what else runs: it takes two to tell
    assert used.seconds < most
    assert used.megabytes < MEGABYTES
    assert [path.name for path in tmp_path.iterdir() if path.name not in made] == []


PLANS = {
    "what many nodes are told": "type: fleet\nname: gpu\nnodes: 50000\nenv:\n"
    + "".join(f" E{i}: v\n" for i in range(10_000)),
    "what many ranks are told": FLEET
    + f"---\ntype: task\nname: train\nnodes: 50000\nplacement: any\ncommands: [{'x' * 1_000_000}]\n",
    "many backends": "".join(backend("ec2", name=f"b{i}") for i in range(200)) + FLEET,
}
"""Projects that are valid, and too large for a plan."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_what_is_too_large_for_a_plan_is_refused_soon(tmp_path, usual, name):
    text(PLANS[name])(tmp_path)
    used = run(tmp_path, "plan", "--offline")
    assert (used.code, used.out) == (1, "")
    assert re.findall(r"^error\[(.*?)\]: ", used.err, re.MULTILINE) == ["too-large"]
    assert used.seconds < (1 + 3 * TIMES) * usual["plan", "--offline"].seconds
    assert used.megabytes < MEGABYTES


# What a process does, by the interpreter's own account of it.
WATCHED = """
import atexit, json, sys
seen = []
def hook(event, args):
    begins = event.partition(".")[0]
    if begins in {"open", "socket", "subprocess", "sqlite3", "urllib"} or event in {
        "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.mkdir",
        "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.truncate"
    }:
        seen.append([event, [str(arg) for arg in args[:2]]])
sys.addaudithook(hook)
atexit.register(lambda: sys.stderr.write("\\nSEEN " + json.dumps(seen)))
sys.argv[0] = "fleetform"
from declarative.cli import main
main()
"""
STRANGER = """\
type: project
name: stranger
state: sqlite:///own/state.db
---
type: backend
name: lab
driver: local
options: {root: /etc}
catalog:
  - {instance_type: a, cpu: 4, memory: 8GB, price: 1}
---
type: fleet
name: gpu
nodes: 2
---
type: volume
name: data
size: 1GB
---
type: task
name: code
commands: [./run]
files: [.]
---
type: task
name: train
commands: [touch owned]
env: [AWS_SECRET_ACCESS_KEY]
working_dir: /etc
volumes: ["data:/data"]
"""


CLOUD = """\
type: project
name: stranger
---
type: backend
name: aws
driver: ec2
regions: [us-east-1]
endpoint: https://127.0.0.1:1
credentials: {key: AWS_ACCESS_KEY_ID, secret: AWS_SECRET_ACCESS_KEY}
image: ami-0123456789abcdef0
ssh_user: ubuntu
options: {identity_file: /etc/passwd}
---
type: fleet
name: gpu
nodes: 2
placement: cluster
resources: {gpu: "H100:8"}
spot_policy: auto
max_price: 200
---
type: volume
name: data
size: 1GB
backend: aws
region: us-east-1
---
type: task
name: train
nodes: 2
placement: cluster
resources: {gpu: "H100:8"}
commands: [touch owned]
env: [AWS_SECRET_ACCESS_KEY]
"""


DECLARED = 'catalog: [{instance_type: a, cpu: 8, memory: 80GB, gpu: "H100:8", price: 1, spot_price: 1}]\n'
OTHERS = tuple(
    CLOUD.replace("driver: ec2\n", f"driver: {driver}\n{DECLARED}")
    for driver in ("openstack", "gce", "azure")
)


OFFLINE = {"local": STRANGER, "ec2": CLOUD} | dict(zip(("openstack", "gce", "azure"), OTHERS, strict=True))


@pytest.mark.parametrize(
    ("name", "command"), [*((name, "plan") for name in OFFLINE), ("local", "offers"), ("ec2", "offers")]
)
def test_offline_the_project_is_read_and_nothing_else(tmp_path, name, command):
    """No socket, no process, nothing written, no file opened but the project's and Python's own."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "main.yaml").write_text(OFFLINE[name])
    (folder / "run").write_text("touch owned")
    done = subprocess.run(
        [sys.executable, "-B", "-c", WATCHED, command, "--offline"],
        cwd=folder,
        env=clean_env(AWS_SECRET_ACCESS_KEY="hunter2"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {"plan": "Plan: ", "offers": "USD/h"}[command] in done.stdout
    assert "hunter2" not in done.stdout + done.stderr
    seen = json.loads(done.stderr.rpartition("SEEN ")[2])
    assert [event for event in seen if event[0] != "open"] == []
    opened = {Path(args[0]).resolve() for event, args in seen if event == "open" and not args[0].isdigit()}
    own = (folder, Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2])
    assert [path for path in opened if not path.is_relative_to("/proc") and not within(path, own)] == []
    assert folder / "main.yaml" in opened
    written = [args for event, args in seen if event == "open" and set(args[1]) & set("wax+")]
    assert written == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["main.yaml", "project", "run"]


@pytest.mark.parametrize(
    "url", ["sqlite:///../stolen.db", "sqlite:////etc/passwd", "postgresql://127.0.0.1/stolen"]
)
def test_offline_the_project_s_state_is_read_within_the_project_only(tmp_path, url):
    """A stranger's YAML chooses no other file and no server; nothing is planned as if there was no state."""
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "stolen.db").touch()
    (folder / "main.yaml").write_text(STRANGER.replace("sqlite:///own/state.db", url))
    (folder / "run").write_text("")
    done = subprocess.run(
        [sys.executable, "-B", "-c", WATCHED, "plan", "--offline"],
        cwd=folder,
        env=clean_env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    code = "offline-state" if url.startswith("postgresql") else "outside-project"
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error[{code}]" in done.stderr
    assert "--state" in done.stderr
    seen = json.loads(done.stderr.rpartition("SEEN ")[2])
    assert [
        args for event, args in seen if event != "open" or "stolen" in str(args) or "passwd" in str(args)
    ] == []


def within(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder.resolve()) for folder in folders)


# --------------------------------------------------------------------- a state that the project brings along


@pytest.fixture
def another(tmp_path):
    """A state of somebody's own, in which there is a node."""
    folder = tmp_path / "another"
    folder.mkdir()
    (folder / "main.yaml").write_text(FLEET.replace("gpu", "mine"))
    used = run(folder, "apply", "--auto-approve")
    assert used.code == 0, used.err
    return folder / ".fleetform"


def brought(tmp_path: Path) -> Path:
    """A stranger's project with a folder for a state."""
    folder = tmp_path / "project"
    (folder / ".fleetform").mkdir(parents=True)
    (folder / "main.yaml").write_text(FLEET)
    return folder


@pytest.mark.parametrize("link", [".fleetform", ".fleetform/state.db"])
def test_no_link_leads_to_another_state(tmp_path, another, link):
    folder = brought(tmp_path)
    if link == ".fleetform":
        (folder / link).rmdir()
    (folder / link).symlink_to(another / Path(link).relative_to(".fleetform"))
    used = run(folder, "plan", "--offline")
    assert (used.code, used.out) == (1, "")
    assert "error[outside-project]: " in used.err
    assert "mine" not in used.err
    assert run(folder, "plan", "--offline", "--state", f"sqlite:///{another}/state.db").code == 0


def test_a_state_that_computes_is_refused(tmp_path, another):
    """A view in the place of a table has no end."""
    folder = brought(tmp_path)
    file = folder / ".fleetform" / "state.db"
    shutil.copy(another / "state.db", file)
    with closing(sqlite3.connect(file)) as state:
        columns = [row[1] for row in state.execute("PRAGMA table_info(resources)")]
        state.execute("DROP TABLE resources")
        state.execute(
            "CREATE VIEW resources AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
            f"SELECT {', '.join(f'x AS {name}' for name in columns)} FROM c"
        )
    used = run(folder, "plan", "--offline")
    assert (used.code, used.out) == (1, "")
    assert "error[not-a-state]: " in used.err


def test_a_journal_removes_no_file_of_others(tmp_path, another):
    """What SQLite does of a journal that is part of a change of several files, once it is rolled back."""
    folder = brought(tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    file = folder / ".fleetform" / "state.db"
    shutil.copy(another / "state.db", file)
    with closing(sqlite3.connect(file)) as state:
        state.execute("PRAGMA journal_mode=DELETE")
    page, magic, name = 4096, bytes.fromhex("d9d505f920a163d7"), str(victim).encode()
    head = magic + struct.pack(">IIIII", 0, 0, file.stat().st_size // page, 512, page)
    end = struct.pack(">I", (1 << 30) // page + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
    Path(f"{file}-journal").write_bytes(head.ljust(512, b"\0") + end)
    used = run(folder, "plan", "--offline")
    assert victim.exists()
    assert (used.code, used.out) == (1, "")
    assert "error[not-a-state]: " in used.err


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_what_is_beside_a_state_is_no_link(tmp_path, another, suffix):
    folder = brought(tmp_path)
    file = folder / ".fleetform" / "state.db"
    shutil.copy(another / "state.db", file)
    (tmp_path / "victim").write_bytes(b"x" * 5000)
    Path(f"{file}{suffix}").symlink_to(tmp_path / "victim")
    used = run(folder, "plan", "--offline")
    assert used.code == 1
    assert "error[not-a-state]: " in used.err
    assert (tmp_path / "victim").read_bytes() == b"x" * 5000
