"""The state folder of a host is moved (`@move` of `claim.sh`): the host's own scripts, run here by the shells
of hosts. `tests/providers/ssh/test_state_folders.py` runs the same over real ssh.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from providers.runner import AttemptState, Launch, Runner, RunnerError
from providers.ssh import scripts
from providers.transport import LocalTransport
from tests.providers.ssh.test_claims import claims, contents, made, node, volumes
from tests.support.cli import until

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
MEMORY = Path("/dev/shm")
CHANGES = ("cp", "mv", "rm", "mkdir", "rmdir", "ln", "sync", "cat", "flock")
"""The programs by which a move changes anything, and takes its locks."""
OTHER = 65534
"""A user that has nothing."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of other users")


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, path: Path) -> str:
    """What `sh` is on the host."""
    (path / "sh").symlink_to(str(shutil.which(request.param)))
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that come before all others. No lock is waited for."""
    folder = tmp_path / "programs"
    folder.mkdir()
    put(
        folder / "flock",
        f"""case $* in
"-w 10 "*) shift 2 && set -- -n "$@" ;;
"-s -w 10 "*) shift 3 && set -- -s -n "$@" ;;
esac
exec {shutil.which("flock")} "$@" """,
    )
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A state folder with a node, an ended rank's files and a volume."""
    root = tmp_path / "disk" / "state"
    claims(root, epoch=3).take(node())
    data = made(volumes(root, epoch=3))
    Path(str(data.outputs["path"]), "file").write_text("kept")
    (root / node().key / "work" / "train-0").mkdir(parents=True)
    runner(root, epoch=3).poll()
    return root


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "other" / "state"


def put(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def other_disk(path: Path) -> None:
    """No rename leads to where it is moved."""
    real = shutil.which("ln", path=os.defpath)
    put(path / "ln", f"""case $2 in *.moving) exit 1 ;; esac\nexec {real} "$@" """)


def runner(root: Path, epoch: int | None) -> Runner:
    script = f"{root}/bin/{scripts.runner()[0]}"
    return Runner(LocalTransport(), f"{root}/{node().key}/ranks", script, lambda: epoch)


def launched(root: Path, epoch: int | None, text: str = "true") -> None:
    runner(root, epoch).start(Launch(attempt_id="train-0.2", script=text))


def command(old: Path, *to: Path) -> list[str]:
    return ["sh", f"{old}/bin/{scripts.runner()[0]}", "@move", *map(str, to)]


def move(old: Path, *to: Path, by: Sequence[str] = ()) -> str:
    done = subprocess.run([*by, *command(old, *to)], capture_output=True, text=True, check=False)
    return said(done.stdout + done.stderr)


def killed_move(old: Path, new: Path, env: Mapping[str, str] | None = None) -> int:
    """The exit code of a move that kills its own process group, once all of the group has ended."""
    process = subprocess.Popen(command(old, new), env=env, start_new_session=True)
    code = process.wait()
    until(lambda: not group_lives(process.pid), "the killed group holds its lock")
    return code


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def said(answer: str) -> str:
    """Without the remark on the folder of all tests, which may be in one that is cleaned."""
    return "".join(line for line in answer.splitlines(True) if not line.startswith("files in /"))


def whole(root: Path) -> bool:
    """Whether it can be used, and has all that was in it."""
    try:
        there = contents(root)
    except RunnerError as error:
        if error.code != "root":
            raise
        return False
    if (there.node, len(there.volumes)) != (node(), 1):
        assert not there.node
        assert not there.volumes
        return False
    assert [file.read_text() for file in root.glob("volumes/*/data/file")] == ["kept"]
    assert (root / node().key / "work" / "train-0").is_dir()
    return True


def files(*folders: Path) -> list[str]:
    return sorted(entry.name for folder in folders if folder.exists() for entry in folder.iterdir())


# -------------------------------------------------------------------------------------- all or nothing


@pytest.mark.parametrize("disk", ["same", "other"])
def test_all_of_it_is_moved(shell: str, path: Path, old: Path, new: Path, disk: str) -> None:
    """By a rename where that can be; nothing stays, and who writes goes on with its number."""
    if disk == "other":
        other_disk(path)
    assert move(old, new) == f"moved from {old} to {new}\n"
    assert (whole(new), files(old.parent), files(new.parent)) == (True, [], ["state"])
    assert new.stat().st_mode & 0o777 == 0o700
    with pytest.raises(RunnerError, match="stale"):
        claims(new, epoch=2).release(node().key)
    launched(new, 4)
    volumes(new, epoch=4).delete(made(volumes(new, epoch=4)))
    claims(new, epoch=4).release(node().key)
    assert not new.exists()


@pytest.mark.skipif(not shutil.which("busybox") or not MEMORY.is_dir(), reason="no busybox, or no other disk")
def test_busybox_moves_it_to_another_disk(path: Path, old: Path) -> None:
    """By its own `cp`, `mv` and `stat`, which it takes before others."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        put(path / "sh", f"""exec {shutil.which("busybox")} sh "$@" """)
        new = Path(folder, "state")
        assert Path(folder).stat().st_dev != old.stat().st_dev
        assert move(old, new) == f"moved from {old} to {new}\n"
        assert (whole(new), files(old.parent), files(new.parent)) == (True, [], ["state"])


@pytest.mark.slow
@pytest.mark.parametrize("disk", ["same", "other"])
def test_a_move_that_is_killed_leaves_one_folder(
    path: Path, old: Path, new: Path, tmp_path: Path, disk: str
) -> None:
    """Before each call of a program that changes anything, and in the midst of a copy. Again completes it."""
    if disk == "other":
        other_disk(path)
    count, real, stepped = tmp_path / "count", tmp_path / "real", tmp_path / "stepped"
    for folder in (real, stepped):
        folder.mkdir()
    for name in CHANGES:
        (real / name).symlink_to(str(shutil.which(name)))
        put(
            stepped / name,
            f"""read -r left <{count}
echo $((left - 1)) >{count}
case $left-{name} in
1-*) kill -9 0 ;;
-*-cp) {real}/cp -a {old}/claim {new}.moving && kill -9 0 ;;
esac
exec {real}/{name} "$@" """,
        )
    pristine = tmp_path / "pristine"
    shutil.copytree(old, pristine)
    env = {**os.environ, "PATH": f"{stepped}:{os.environ['PATH']}"}
    for call in range(200):  # 0: in the midst of the copy
        count.write_text(f"{call}\n")
        ended = killed_move(old, new, env)
        assert [whole(old), whole(new)].count(True) == 1, call
        if whole(old):
            assert move(old, new) == f"moved from {old} to {new}\n"
            assert whole(new)
            assert files(old.parent) == []
        if ended == 0 and call:
            assert call > len(CHANGES)
            return
        for folder in (old, new, old.parent / "state.gone"):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(pristine, old)
    pytest.fail("it never came to an end")


def test_the_mark_of_a_copy_ends_with_what_it_was_made_of(
    shell: str, path: Path, old: Path, new: Path
) -> None:
    """A move that is killed just before its end leaves it. Another folder may come where the old one was."""
    other_disk(path)
    put(path / "rm", f"""[ "$*" != "-f {new}/moving" ] || kill -9 0\nexec {shutil.which("rm")} "$@" """)
    killed_move(old, new)
    (path / "rm").unlink()
    assert (files(old.parent), (new / "moving").exists()) == (["state.gone"], True)
    claims(old, epoch=9).take(node(path="/y"))
    runner(old, 9).poll()
    assert whole(new)
    for _ in range(2):  # a refused one writes marks of its own
        assert move(old, new) == f"FLEETFORM-ERR unwritable {new} is there already\n"
        assert whole(new)
    claims(old, epoch=9).release(node(path="/y").key)
    assert not old.exists()
    assert move(new, old) == f"moved from {new} to {old}\n"
    assert whole(old)


def test_what_a_killed_move_left_is_known_until_all_of_it_is_erased(
    shell: str, path: Path, old: Path, new: Path
) -> None:
    """The move that completes it is killed as well, when its `rm` has erased what tells a copy."""
    other_disk(path)
    for name, text in (
        ("cp", f"""{shutil.which("cp")} "$@" && kill -9 0"""),
        ("rm", f"""case $* in *{new}.moving) {shutil.which("rm")} "$2/moving" && kill -9 0 ;; esac"""),
    ):
        put(path / name, f"""{text}\nexec {shutil.which(name)} "$@" """)
        killed_move(old, new)
        (path / name).unlink()
        assert files(new.parent) == ["state.moving"]
        assert ("claim" in files(new.parent / "state.moving")) == (name == "cp")
    assert move(old, new) == f"moved from {old} to {new}\n"
    assert (whole(new), files(old.parent), files(new.parent)) == (True, [], ["state"])


@pytest.mark.parametrize("end", ["new.moving", "state.gone"])
@pytest.mark.parametrize("what", ["folder", "file", "empty"])
def test_what_no_move_left_is_not_erased(shell: str, old: Path, end: str, what: str) -> None:
    to = old.parent / "new"
    there = old.parent / end
    if what == "file":
        there.write_text("precious")
    else:
        there.mkdir()
    if what == "empty":
        assert move(old, to) == f"moved from {old} to {to}\n"
        return
    if what == "folder":
        (there / "file").write_text("precious")
        (there / "moving").write_text(f"{old}\n")
        (there / "moved").write_text("a\n")
    reason = "is there already, and nothing tells that it is not needed: give it another name"
    assert move(old, to) == f"FLEETFORM-ERR unwritable {there} {reason}\n"
    assert (there if what == "file" else there / "file").read_text() == "precious"
    assert whole(old)


# -------------------------------------------------------------------------------- while it takes its time


class Copying:
    """A move to another disk that waits at its copy, which is made."""

    def __init__(self, path: Path, tmp_path: Path, old: Path, new: Path) -> None:
        other_disk(path)
        self._made, self._go = tmp_path / "made", tmp_path / "go"
        os.mkfifo(self._go)
        put(path / "cp", f"""{shutil.which("cp")} "$@" && : >{self._made} && read -r _ <{self._go}""")
        self._process = subprocess.Popen(command(old, new), stdout=subprocess.PIPE, text=True)
        until(lambda: self._made.exists() or self._process.poll() is not None)

    def end(self) -> str:
        """What it says in the end."""
        with self._go.open("r+b", buffering=0) as go:  # as a reader as well, so that none is waited for
            go.write(b"\n")
            return said(self._process.communicate()[0])


@pytest.fixture
def copying(path: Path, tmp_path: Path, old: Path, new: Path) -> Copying:
    return Copying(path, tmp_path, old, new)


def test_nothing_changes_what_is_copied(shell: str, copying: Copying, old: Path, new: Path) -> None:
    """Neither its owner nor a rank nor another move; who looks finds it."""
    for change in (
        lambda: claims(old, epoch=4).change(node(path="/y")),
        lambda: made(volumes(old, epoch=4), "v2"),
        lambda: launched(old, 4),
    ):
        with pytest.raises(RunnerError) as caught:
            change()
        assert caught.value.code == "busy"
    assert move(old, new) == f"FLEETFORM-ERR busy another command works in {old}\n"
    assert (whole(old), whole(new)) == (True, False)
    assert copying.end() == f"moved from {old} to {new}\n"
    assert (whole(old), whole(new)) == (False, True)


def test_an_owner_that_comes_meanwhile_keeps_what_it_made(
    shell: str, copying: Copying, old: Path, new: Path
) -> None:
    made(volumes(old, "other", epoch=1), "v2")
    assert copying.end() == f"FLEETFORM-ERR busy another command works in {old}\n"
    assert (len(contents(old).volumes), files(new.parent)) == (2, [])


@pytest.mark.parametrize("fails", ["back", "discard"])
@pytest.mark.parametrize("disk", ["same", "other"])
def test_nothing_is_erased_after_an_owner_came_in_the_midst_of_the_rename(
    shell: str, path: Path, old: Path, new: Path, disk: str, fails: str
) -> None:
    """Also where it cannot be put back, as there is a folder again, or the copy cannot be set aside."""
    if disk == "other":
        other_disk(path)
    renamed = old.parent / "state.gone" if disk == "other" else new
    theirs = f"mkdir {old} && : >{old}/file" if fails == "back" else "true"
    put(
        path / "mv",
        f"""case $* in
"-T {old} {renamed}") {shutil.which("mv")} "$@" && : >{renamed}/.epoch.other && {theirs}; exit ;;
"-T {new} {new}.moving") [ {fails} = back ] || exit 1 ;;
esac
exec {shutil.which("mv")} "$@" 2>/dev/null""",
    )
    why = f"another command works in {old}"
    if fails == "back":
        why += f", and what was there is in {renamed}: put it back"
    assert move(old, new) == f"FLEETFORM-ERR busy {why}\n"
    if fails == "back":
        assert (files(old), files(new.parent)) == (["file"], ["state" if disk == "same" else "state.moving"])
        shutil.rmtree(old)
        renamed.rename(old)
    assert (whole(old), whole(new)) == (True, False)
    (path / "mv").unlink()
    (old / ".epoch.other").unlink()
    assert move(old, new) == f"moved from {old} to {new}\n"
    assert (whole(new), files(old.parent), files(new.parent)) == (True, [], ["state"])


def test_a_rank_that_came_meanwhile_runs_on(shell: str, copying: Copying, old: Path, new: Path) -> None:
    """One of a runner that has no number; also nothing is moved where it cannot be told what runs."""
    launched(old, None, "exec sleep 1000")
    assert copying.end() == "FLEETFORM-ERR running train-0.2: stop them first\n"
    assert (whole(old), files(new.parent)) == (True, [])
    assert move(old, new) == "FLEETFORM-ERR running train-0.2: stop them first\n"
    assert runner(old, 4).stop("train-0.2", 0).state is AttemptState.EXITED


@as_root
@pytest.mark.parametrize("verb", ["@move", "@release"])
def test_what_runs_has_to_be_known(shell: str, path: Path, old: Path, new: Path, verb: str) -> None:
    """Where the runner does not answer, nothing counts as ended."""
    launched(old, 4, "exec sleep 1000")
    ranks = old / node().key / "ranks"
    os.chown(ranks, OTHER, OTHER)
    script = f"{old}/bin/{scripts.runner()[0]}"
    words = (new,) if verb == "@move" else (old, node().key)
    done = subprocess.run(["sh", script, verb, *words], capture_output=True, text=True, check=False)
    os.chown(ranks, os.getuid(), os.getgid())
    assert "does not say what runs there" in done.stdout
    assert whole(old)
    assert runner(old, 4).stop("train-0.2", 0).state is AttemptState.EXITED


# -------------------------------------------------------------------------------- what belongs to others


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user can enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def owned(root: Path) -> list[str]:
    """A state folder of another user, and the words by which he does something."""
    claims(root).take(node())
    made(volumes(root))
    subprocess.run(["chown", "-R", str(OTHER), root], check=True)
    return ["setpriv", f"--reuid={OTHER}", "--clear-groups", "env", "HOME=/nonexistent"]


@as_root
@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("disk", ["same", "other"])
def test_files_that_a_container_made_as_root_are_moved_or_named(
    path: Path, theirs: Path, mode: int, disk: str
) -> None:
    """A user cannot give them to root on another disk, nor remove them from the old one."""
    root, to = theirs / "state", theirs / "new"
    him = owned(root)
    (data,) = root.glob("volumes/*/data")
    (data / "file").write_text("root's")
    (data / "file").chmod(mode)
    programs = theirs / "programs"
    programs.mkdir()
    if disk == "other":
        other_disk(programs)
    path_of = f"PATH={programs}:{os.environ['PATH']}"
    answer = move(root, to, by=[*him, path_of])
    if disk == "same":
        assert answer == f"moved from {root} to {to}\n"
        assert (to / data.relative_to(root) / "file").read_text() == "root's"
        return
    assert answer.startswith(f"FLEETFORM-ERR foreign {data}/file belongs to someone else")
    assert f"`chown -R nobody {root}`" in answer
    assert (files(theirs), (data / "file").read_text()) == (["programs", "state"], "root's")


@as_root
@pytest.mark.parametrize("end", ["new.moving", "state.gone"])
def test_what_others_put_in_its_way_is_not_touched(path: Path, theirs: Path, end: str) -> None:
    root, to = theirs / "state", theirs / "new"
    other_disk(path)
    claims(root).take(node())
    (theirs / "precious").mkdir()
    (theirs / end).symlink_to(theirs / "precious")
    assert move(root, to) == f"FLEETFORM-ERR unwritable {theirs / end} belongs to someone else\n"
    (theirs / end).unlink()
    (theirs / end).mkdir()
    os.chown(theirs / end, OTHER, OTHER)
    assert move(root, to) == f"FLEETFORM-ERR unwritable {theirs / end} belongs to someone else\n"
    assert files(theirs) == sorted(["precious", "state", end])


@as_root
def test_only_its_owner_moves_it(path: Path, theirs: Path) -> None:
    root = theirs / "state"
    owned(root)
    assert "belongs to someone else: run this as its owner" in move(root, theirs / "new")
    assert files(theirs) == ["state"]


@pytest.mark.parametrize("what", ["folder", "state", "link", pytest.param("theirs", marks=as_root)])
def test_a_name_that_anybody_can_take_shuts_nobody_out(
    path: Path, old: Path, tmp_path: Path, what: str
) -> None:
    """Only one's own state that an earlier version left there counts."""
    moved = tmp_path / "fleetform-1.moved"
    if what == "folder":
        moved.mkdir()
    elif what == "link":
        moved.symlink_to(old)
    else:
        old.rename(moved)
    if what == "theirs":
        os.chown(moved, OTHER, OTHER)
    text = scripts.text("root.sh").replace("/var/tmp", str(tmp_path))
    ask = f'{text}\nme=1 XDG_STATE_HOME={tmp_path}\nfind_root ""\necho "=$wrong"'
    answer = subprocess.run(["sh", "-c", ask], capture_output=True, text=True, check=True).stdout
    assert answer.startswith("=")
    assert ("was being moved" in answer) == (what == "state")


def test_a_copy_does_not_count_beside_what_it_was_made_of(
    shell: str, old: Path, new: Path, path: Path
) -> None:
    """Named, it is refused with what to do; of two usual folders, the old one counts."""
    shutil.copytree(old, new)
    (new / "moving").write_text(f"{old}\ntoken\n")
    (old / "moved").write_text("token\n")
    with pytest.raises(
        RunnerError, match=f"{new} is a copy of {old}, whose move was cut short: move it again"
    ):
        contents(new)
    assert "is a copy of" in move(new, old.parent / "third")
    assert whole(old)
    text = scripts.text("root.sh").replace("/var/tmp/fleetform-1", str(old))
    text = text.replace("old=/var/tmp/fleetform-${me:=$(id -u)}", f"old={old}")
    ask = f'{text}\nme=1 HOME={new}\nfind_usual() {{ usual={new}; }}\nfind_root ""\necho "$root=$wrong"'
    answer = subprocess.run(["sh", "-c", ask], capture_output=True, text=True, check=True).stdout
    assert answer == f"{old}=\n"
    shutil.rmtree(old)
    assert whole(new)
