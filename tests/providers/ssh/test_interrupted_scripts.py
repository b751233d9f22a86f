"""Commands on a host that were killed, and disks that take nothing: the hosts' own scripts, run here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from declarative.model.state import Record
from providers.ownership import key_of
from providers.runner import RunnerError
from providers.ssh import scripts
from providers.ssh.claims import Claims, Volumes
from providers.transport import ConnectionLost
from tests.providers.ssh.test_claims import DATA, Here, attached, claims, contents, made, node, sized, volumes
from tests.providers.ssh.test_moved_folders import path, put, shell

__all__ = ["path", "shell"]
STEPS = ("mkdir", "head", "stat", "chmod", "sync", "ln", "mv", "rm", "rmdir")


def killed(path: Path, call: Callable[[], object], number: int) -> bool:
    """Whether the `number`th program that a script calls is the end of it."""
    count = path / "count"
    count.write_text(f"{number}\n")
    for name in STEPS:
        real = shutil.which(name, path=os.defpath)
        put(
            path / name,
            f"""read -r to_go <{count}
echo $((to_go - 1)) >{count}
[ "$to_go" != 1 ] || kill -9 0
exec {real} "$@" """,
        )
    with suppress(RunnerError, ConnectionLost):
        call()
    for name in STEPS:
        (path / name).unlink()
    return int(count.read_text()) <= 0


@pytest.mark.parametrize("what", ["make", "claim"])
def test_nothing_stays_of_what_was_cut_short(shell: str, path: Path, tmp_path: Path, what: str) -> None:
    """Whichever step is the last one, the state folder goes with the thing that was to be made."""
    inputs, asked = sized()
    have = Record(
        address=DATA, backend="ssh", inputs=inputs, outputs={"id": f"{DATA}.{key_of('v1')}"}, generation=1
    )
    for number in range(1, 50):
        root = tmp_path / f"state{number}"
        at: Any = Here(3)
        scripts.enter(at, str(root))
        if what == "make":
            here = Volumes(at, str(root), "me")
            hit = killed(path, lambda here=here: here.create(DATA, "v1", inputs, asked), number)  # type: ignore[misc]
            volumes(root, epoch=4).delete(have)
        else:
            host = Claims(at, str(root), "me")
            hit = killed(path, lambda host=host: host.take(node()), number)  # type: ignore[misc]
            claims(root, epoch=4).release(node().key)
        assert not root.exists(), [str(file.relative_to(root)) for file in root.rglob("*")]
        if not hit:
            return
    pytest.fail("it never came to an end")


@pytest.mark.parametrize("file", ["kept", "guarded", "filled"])
def test_a_disk_that_takes_nothing_is_looked_at_and_emptied(shell: str, tmp_path: Path, file: str) -> None:
    """Where a file cannot be written that is there for caution only, as on a full disk."""
    root = tmp_path / "state"
    claims(root, epoch=3).take(node())
    data = made(volumes(root, epoch=3))
    Path(str(data.outputs["path"]), "file").write_text("kept")
    (one,) = root.glob("volumes/*")
    held = attached(volumes(root, epoch=3), data)
    for name in {"guarded", file} - {"filled"}:
        (one / name).unlink(missing_ok=True)
    (one / file).mkdir()
    assert len(volumes(root, epoch=3).look().volumes) == 1
    volumes(root, epoch=3).detach(held)
    assert contents(root).volumes[0].held is None
    volumes(root, epoch=3).delete(data)
    assert contents(root).volumes == ()


def test_a_lock_that_cannot_be_written_is_no_lost_volume(shell: str, tmp_path: Path) -> None:
    root = tmp_path / "state"
    data = made(volumes(root))
    (one,) = root.glob("volumes/*")
    (one / "lock").mkdir()
    with pytest.raises(RunnerError) as caught:
        volumes(root).delete(data)
    assert caught.value.code == "unwritable"


def test_a_look_writes_through_no_link(shell: str, tmp_path: Path) -> None:
    """In a folder in which others may write, they may know which file it would make."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    text = scripts.text("probe.sh").replace(
        "umask 077\n", f"ln -s {precious} {tmp_path}/.fleetform-probe.$$\n"
    )
    answer = Here().run(("sh", "-c", text, "sh", f"{tmp_path}/state", "")).stdout.decode()
    assert answer.endswith("FLEETFORM-END\n")
    assert "\nstate=" not in answer
    assert (precious.read_text(), [*tmp_path.glob(".fleetform-probe*")]) == ("kept", [])


@pytest.mark.parametrize(("code", "says"), [(1, "busy"), (65, "unwritable"), (71, "unwritable")])
def test_a_disk_without_locks_is_no_busy_one(
    shell: str, path: Path, tmp_path: Path, code: int, says: str
) -> None:
    """Nothing gets better by waiting."""
    put(path / "flock", f"exit {code}")
    with pytest.raises(RunnerError) as caught:
        claims(tmp_path / "state", epoch=1).take(node())
    assert caught.value.code == says


@pytest.mark.parametrize("mounted", ["tmpfs", "ext4"])
def test_a_machine_id_that_a_boot_takes_away_names_no_folder(
    shell: str, tmp_path: Path, mounted: str
) -> None:
    """In a home on a network's disk: nobody would see again what is in it."""
    (tmp_path / "mounts").write_text(f"{mounted} /etc/machine-id {mounted} ro,mode=755 0 0\n")
    (tmp_path / "id").write_text("a" * 32)
    text = scripts.text("root.sh").replace("/proc/mounts", f"{tmp_path}/mounts")
    text = text.replace("for file in /etc/machine-id", f"for file in {tmp_path}/id")
    text += f"\nis_local() {{ false; }}\nme=1 HOME={tmp_path} XDG_STATE_HOME=\n"
    ask = f'{text}find_root ""\necho "$root=$wrong"'
    answer = Here().run(("sh", "-c", ask)).stdout.decode()
    home = f"{tmp_path}/.local/state/fleetform"
    if mounted == "tmpfs":
        assert answer.endswith("this host has another /etc/machine-id after each boot\n")
    else:
        assert answer == f"{home}/{'a' * 32}=\n"
