"""The `files` of a task: what is sent, what never is, and what a stranger's project cannot do."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from declarative.apply.launch import Bundles, Packed, changed_files
from declarative.language.loader import load, sent_files
from declarative.model.diagnostic import Diagnostic, InvalidError
from declarative.model.inputs import RecordedFiles
from declarative.model.resource import Manifest
from declarative.provider import PermanentError

TASK = "type: task\nname: train\ncommands: [run]\nfiles:\n"


def tree(folder: Path, *paths: str, **texts: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


def declared(folder: Path, *items: str, more: str = "") -> Path:
    (folder / "main.yaml").write_text(TASK + "".join(f"- {item}\n" for item in items) + more)
    return folder


def manifest(folder: Path, *items: str, **options) -> Manifest:
    loaded = load(declared(folder, *items), **{"look": "contents", **options})
    found = loaded.desired.tasks["train"].files
    assert found is not None
    return found


def sent(folder: Path, *items: str, **options) -> list[str]:
    return [entry.path for entry in manifest(folder, *items, **options).entries]


def refusal(folder: Path, *items: str, look="contents", more: str = "") -> Diagnostic:
    with pytest.raises(InvalidError) as info:
        load(declared(folder, *items, more=more), look=look)
    (found,) = info.value.diagnostics
    assert found.address == "task/train"
    return found


def test_where_things_are_for_a_rank(tmp_path):
    tree(tmp_path, "train.py", "src/a", "src/deep/b", "conf/x")
    assert sent(tmp_path, "train.py", "src:code", "./conf/:.") == ["code/a", "code/deep/b", "train.py", "x"]
    assert sent(tmp_path, "{local_path: src/deep/b, path: c/d}") == ["c/d"]
    assert sent(tmp_path, "src/a:.", "src/deep/b:c/") == ["a", "c/b"]
    assert sent(tmp_path, ".") == ["conf/x", "src/a", "src/deep/b", "train.py"]
    assert sent(tmp_path, "src", ".") == sent(tmp_path, ".")


def test_the_hash_is_of_what_a_rank_gets(tmp_path):
    """Of names, contents and x-bits; not of times, other modes, or where the files are in the project."""
    tree(tmp_path, "src/a", "src/b")
    first = manifest(tmp_path, "src:x").digest
    (tmp_path / "src").rename(tmp_path / "other")
    (tmp_path / "other/a").chmod(0o600)
    os.utime(tmp_path / "other/a", (1, 1))
    assert manifest(tmp_path, "other:x").digest == first
    seen = {first}
    for change in (
        lambda: (tmp_path / "other/a").write_text("new"),
        lambda: (tmp_path / "other/a").chmod(0o755),
        lambda: (tmp_path / "other/a").rename(tmp_path / "other/c"),
        lambda: (tmp_path / "other/l").symlink_to("b"),
        (tmp_path / "other/b").unlink,
    ):
        change()
        seen.add(manifest(tmp_path, "other:x").digest)
    assert len(seen) == 6


def test_ignore_rules_hold_at_every_level(tmp_path):
    tree(
        tmp_path, "a.log", "a.py", "src/a.log", "src/keep.log", "src/x/a.tmp", "src/x/b.tmp", "out/a", "big/a"
    )
    tree(tmp_path, ".git/config", "src/.git", ".fleetform/x")
    (tmp_path / ".gitignore").write_text("*.log\n/out/\n/big\n.gitignore\n")
    (tmp_path / ".dstackignore").write_text("*.tmp\n!big\n.dstackignore")
    (tmp_path / "src/.gitignore").write_text("!keep.log\n.gitignore\n")
    (tmp_path / "src/x/.fleetformignore").write_text("!/b.tmp\n.fleetformignore\n")
    assert sent(tmp_path, ".") == ["a.py", "big/a", "src/keep.log", "src/x/b.tmp"]
    assert sent(tmp_path, "src/x:y") == ["y/b.tmp"]


def test_what_is_named_is_sent_whatever_the_rules_say(tmp_path):
    tree(tmp_path, "a.log", "out/a", "out/b.log", "out/deep/c")
    (tmp_path / ".gitignore").write_text("*.log\nout/\n")
    assert sent(tmp_path, "a.log") == ["a.log"]
    assert sent(tmp_path, "out") == ["out/a", "out/deep/c"]
    assert sent(tmp_path, "out/deep") == ["out/deep/c"]


def test_fleetforms_own_things_are_never_sent(tmp_path):
    """State, plans, folders of local backends; and its YAML only where it is named."""
    names = [
        "st.db",
        "st.db-wal",
        "st.db.backup-1-2",
        "other.db",
        "fleets/f.yaml",
        "runs/x",
        "a.yml.txt",
        "conf.yaml",
    ]
    tree(tmp_path / "sub", "conf.yaml")
    tree(tmp_path, *names)
    tree(tmp_path, **{"p.plan": '{"kind":"fleetform plan","format_version":1}'})
    (tmp_path / "conf.yaml").write_text("type: backend\nname: mine\ndriver: local\noptions: {root: runs}\n")
    (tmp_path / "fleets/f.yaml").write_text("type: fleet\nname: farm\nnodes: 1\n")
    (tmp_path / "p.yaml").write_text(
        "type: project\nname: demo\nstate: sqlite:///st.db\ninclude: ['fleets/*']\n"
    )
    wanted = ["a.yml.txt", "sub/conf.yaml"]
    assert sent(tmp_path, ".", state="sqlite:///other.db") == wanted
    assert sent(tmp_path, ".", "conf.yaml", state="sqlite:///other.db") == [
        "a.yml.txt",
        "conf.yaml",
        wanted[1],
    ]
    assert refusal(tmp_path, "st.db").code == "never-sent"
    assert refusal(tmp_path, "runs/x").code == "never-sent"
    assert refusal(tmp_path, "sub/../.git").code == "bad-path"


def test_private_keys_of_hosts_are_never_sent(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    tree(tmp_path, "keys/fleet", "keys/fleet.pub", "keys/host", "keys/jump", "keys/other")
    (tmp_path / "fleet.yaml").write_text(
        "type: fleet\nname: rack\nssh_config:\n  identity_file: keys/fleet\n  hosts:\n"
        "  - {hostname: a, identity_file: ~/keys/host}\n"
        "  - {hostname: b, proxy_jump: {hostname: c, identity_file: keys/jump}}\n"
    )
    assert sent(tmp_path, ".") == ["keys/fleet.pub", "keys/other"]
    assert refusal(tmp_path, "keys/jump").code == "never-sent"


def test_links_stay_links_and_lead_nowhere_else(tmp_path):
    tree(tmp_path, "src/a", "src/deep/b", "lib/c")
    (tmp_path / "src/deep/up").symlink_to("../a")
    (tmp_path / "src/lib").symlink_to("../lib")
    (tmp_path / "src/dangling").symlink_to("nothing")
    links = {e.path: e.link for e in manifest(tmp_path, "src", "lib").entries if e.link}
    assert links == {"src/deep/up": "../a", "src/lib": "../lib", "src/dangling": "nothing"}


@pytest.mark.parametrize(
    ("target", "items"),
    [
        ("/etc/passwd", ["src"]),
        ("/etc/passwd", ["src/link"]),
        ("../../../etc", ["src"]),
        ("../lib/c", ["src:."]),
        ("a/../../..", ["src"]),
    ],
)
def test_a_link_that_leads_out_is_refused(tmp_path, target, items):
    tree(tmp_path, "src/a", "lib/c")
    (tmp_path / "src/link").symlink_to(target)
    found = refusal(tmp_path, *items)
    assert (found.code, found.summary) == (
        "outside-project",
        "`src/link` is a link that leads out of what is sent",
    )


def test_nothing_is_read_through_a_link(tmp_path):
    outside = tree(tmp_path / "outside", "secret", "d/e")
    project = tree(tmp_path / "p", "src/a")
    (project / "link").symlink_to(outside)
    for item in ("link/secret", "link/d", "link/d/e"):
        assert refusal(project, item).code == "outside-project"
    # Other people's ignore rules do not apply to the project.
    (outside / ".gitignore").write_text("*")
    (project / ".gitignore").symlink_to(outside / ".gitignore")
    assert sent(project, "src") == ["src/a"]


def test_what_is_no_file_is_refused_unopened(tmp_path):
    tree(tmp_path, "src/a")
    os.mkfifo(tmp_path / "src/pipe")
    found = refusal(tmp_path, "src")
    assert (found.code, found.summary) == ("not-a-file", "`src/pipe` is a pipe, a socket or a device")
    assert refusal(tmp_path, "src/pipe").code == "not-a-file"
    (tmp_path / "src/pipe").unlink()
    os.mkfifo(tmp_path / "src/.gitignore")
    assert refusal(tmp_path, "src").summary == "`src/.gitignore` is a pipe, a socket or a device"
    (tmp_path / "src/.gitignore").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "src/s"))
        assert refusal(tmp_path, "src").code == "not-a-file"
        (tmp_path / "src/.fleetformignore").write_text("/s")
        assert sent(tmp_path, "src") == ["src/.fleetformignore", "src/a"]


def test_every_fault_says_where(tmp_path):
    tree(tmp_path, "a", "b")
    (tmp_path / os.fsdecode(b"odd\xff")).write_text("")
    assert refusal(tmp_path, ".").summary == "the name of `odd�` is not UTF-8"
    found = refusal(tmp_path, "a", "nope/x")
    assert (found.code, found.span and found.span.line) == ("missing-file", 6)
    assert refusal(tmp_path, "a:x", "b:x").code == "same-place"
    assert refusal(tmp_path, "a:x", "b:x/y").summary == "`a` and `b` would both be at `x`"
    assert refusal(tmp_path, "a/b").code == "outside-project"
    assert refusal(tmp_path, "a", more="working_dir: /data\n").code == "files-elsewhere"


def test_validate_looks_at_names_alone(tmp_path, monkeypatch):
    tree(tmp_path, "a")
    monkeypatch.setattr(sent_files, "summed", None)
    load(declared(tmp_path, "a"), look="names")
    assert refusal(tmp_path, "b", look="names").code == "missing-file"
    assert load(declared(tmp_path, "b")).desired.tasks["train"].files is None


def test_a_file_that_changes_while_it_is_read_is_said(tmp_path, monkeypatch):
    tree(tmp_path, "a")

    class Meanwhile:
        def __init__(self) -> None:
            self.update = lambda _: (tmp_path / "a").write_text("another")
            self.hexdigest = lambda: "0" * 64

    monkeypatch.setattr(sent_files, "hashlib", SimpleNamespace(sha256=Meanwhile))
    found = refusal(tmp_path, "a")
    assert (found.code, found.summary) == ("unreadable", "`a` cannot be sent: it changes while it is read")


@pytest.mark.parametrize(
    ("limit", "value", "summary"),
    [
        ("MAX_FILES", 3, "`files` names more than 3 files"),
        ("MAX_TOTAL_BYTES", 10, "`files` names more than 0 GiB"),
        ("MAX_ENTRIES", 3, "`files` looks at more than 3 files"),
        ("MAX_COMPARED", 3, "ignore rules are compared with files more than 3 times"),
        ("MAX_FOLDERS", 1, "`d/e/…` has folders more than 1 deep"),
    ],
)
def test_limits(tmp_path, monkeypatch, limit, value, summary):
    tree(tmp_path, "a", "b", "c", "d/e/f", "d/e/g", "d/e/h")
    (tmp_path / ".gitignore").write_text("*.x\n")
    monkeypatch.setattr(sent_files, limit, value)
    found = refusal(tmp_path, ".")
    assert (found.code, found.summary) == ("too-large", summary)


# ------------------------------------------------------------------------------------------- packed


def packed(folder: Path, found: Manifest) -> Packed:
    return Bundles(folder, {found.digest: found}).of(RecordedFiles(paths=(), digest=found.digest))


def test_an_archive_is_the_same_each_time(tmp_path):
    tree(tmp_path, "src/a", "src/ünï", "src/" + "/".join(["long" * 12] * 4))
    (tmp_path / "src/l").symlink_to("a")
    (tmp_path / "src/a").chmod(0o700)
    found = manifest(tmp_path, "src:.")
    with packed(tmp_path, found).open() as one:
        (tmp_path / "src/a").chmod(0o755)
        os.utime(tmp_path / "src/a", (1, 1))
        bundle = packed(tmp_path, manifest(tmp_path, "src:."))
        with bundle.open() as two, bundle.open() as three:
            first, second, third = (archive.source.read(1 << 20) for archive in (one, two, three))
        assert (one.size, one.sha256) == (len(first), hashlib.sha256(first).hexdigest())
    assert first == second == third
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        members = [(m.name, m.mode, m.mtime, m.uid, m.linkname) for m in archive]
    assert members[0] == ("a", 0o755, 0, 0, "")
    assert members[1] == ("l", 0o644, 0, 0, "a")
    assert [name for name, *_ in members] == [entry.path for entry in found.entries]


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_text("b"),
        lambda file: file.write_text("longer"),
        lambda file: file.chmod(0o755),
        lambda file: file.unlink(),
        lambda file: [file.unlink(), file.symlink_to("/etc/passwd")],
        lambda file: [file.unlink(), file.mkdir()],
        lambda file: file.with_name("l").unlink(),
        lambda file: [file.with_name("l").unlink(), file.with_name("l").symlink_to("/etc/passwd")],
    ],
)
def test_nothing_but_what_was_planned_is_packed(tmp_path, change):
    tree(tmp_path, "src/a", b="b")
    (tmp_path / "src/a").write_text("a")
    (tmp_path / "src/l").symlink_to("a")
    found = manifest(tmp_path, "src", "b")
    assert changed_files(tmp_path, found) == []
    change(tmp_path / "src/a")
    (name,) = changed_files(tmp_path, found)
    bundle = packed(tmp_path, found)
    for _ in range(2):
        with pytest.raises(PermanentError) as info, bundle.open():
            pass
        assert info.value.summary == f"`{name}` changed since it was planned"


def test_files_that_nobody_planned_are_not_at_hand(tmp_path):
    """Of a rank that was recorded long ago: a host may still have them."""
    bundle = Bundles(tmp_path, {}).of(RecordedFiles(paths=(), digest="0" * 64))
    assert bundle.digest == "0" * 64
    with pytest.raises(PermanentError, match="not at hand"), bundle.open():
        pass
