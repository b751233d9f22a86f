"""Files with saved plans: written whole or not at all, readable by their owner alone, and over no other
file.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from declarative import __version__
from declarative.cli.errors import Failed, failed
from declarative.model.codec import PLAN_KIND
from declarative.model.diagnostic import InvalidError
from declarative.model.inputs import RankInputs
from declarative.planner.saved import Saved, dump, load

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from declarative.cli.session import Session
    from declarative.model.manifest import Manifest
    from declarative.model.resource import Desired
    from declarative.model.spec.policy import PlanKey
    from declarative.model.state import State
    from declarative.planner.types import Inventory, Plan

MOST_BYTES = 256 << 20
"""A plan at the planner's own limit is about as large."""

_OURS = re.compile(rb'\s*\{\s*"kind"\s*:\s*"' + re.escape(PLAN_KIND.encode()) + rb'"')
_HEAD = 200
SUFFIXES = (".yaml", ".yml")


def check_target(name: str) -> None:
    """`Failed` if a plan could not be written to `name`: checked before it is made."""
    path = Path(name)
    if name == "-":
        raise failed("usage", "a plan is saved to a file", "name one, or print it: `fleetform plan --json`")
    if path.suffix in SUFFIXES:
        hint = f"write `--out {path.stem}.plan`: every `*{path.suffix}` of the project is read as its YAML"
        raise failed("usage", f"a saved plan is not called `*{path.suffix}`", hint)
    try:
        found = path.lstat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise failed("unwritable", f"`{path.parent}` is not a directory", "make it first") from None
        return
    except OSError as error:
        raise failed("unwritable", f"`{name}` cannot be written: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode) or (found.st_size and not _OURS.match(_head(path))):
        hint = "name another file, or remove that one"
        raise failed(
            "not-overwritten", f"`{name}` exists, and is not a plan of fleetform: it is left alone", hint
        )


def save(
    session: Session,
    name: str,
    found: tuple[Plan, Desired, State, Inventory],
    key: Ed25519PrivateKey | None = None,
) -> None:
    """Put a plan with all that `apply` needs into a file of mode 0600, in one step; then its signature beside
    it, if there is a `key`.
    """
    from declarative.planner.assumptions import used
    from declarative.render.data import iso

    plan, desired, state, inventory = found
    saved = Saved(
        plan=plan,
        facts=used(plan, state, inventory),
        backends=desired.backends,
        tasks=tuple(sorted(desired.tasks)),
        files=_files_of(plan, session.files),
        state=session.state.url(desired),
        directory=str(session.directory.resolve()),
        made_by=__version__,
        made_at=iso(time.time()) or "",
    )
    content = dump(saved).encode()
    if len(content) > MOST_BYTES:
        hint = "split the project; the plan can still be applied without a file"
        raise failed("too-large", f"the plan has {len(content) >> 20} MiB; a file may have 256", hint)
    check_target(name)  # once more: planning took its time
    _put(Path(name), content)
    if key is not None:
        from declarative.cli.plan_signatures import fingerprint, path_of, sign

        _put(path_of(name), sign(content, key))
        who = fingerprint(key.public_key().public_bytes_raw())
        sys.stderr.write(f"signed: {path_of(name)}, by {who}\n")


def _files_of(plan: Plan, files: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """The files of the ranks that the plan starts."""
    starts = (a.typed for a in plan.actions if a.op.value == "create")
    digests = {rank.files.digest for rank in starts if isinstance(rank, RankInputs) and rank.files}
    return {digest: files[digest] for digest in sorted(digests)}


def _put(path: Path, content: bytes) -> None:
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".plan.", suffix=".tmp")
        with os.fdopen(descriptor, "wb") as file:  # mkstemp's mode is 0600
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        raise failed("unwritable", f"`{path}` cannot be written: {error.strerror}") from None
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()


def read(name: str, keys: Collection[PlanKey] | None = None) -> Saved:
    """The plan in a file; `Failed` if there is none, or if it cannot be used. If `keys` are given, one of
    them must have signed it: otherwise its content is not looked at.
    """
    try:
        content = _content(name)
    except OSError as error:
        hint = "`fleetform plan --out FILE` saves a plan; `fleetform apply` alone is about the whole project"
        raise failed("unreadable", f"`{name}`: {error.strerror or error}", hint) from None
    if not _OURS.match(content[:_HEAD]):
        hint = "save one: `fleetform plan --out FILE`"
        if Path(name).suffix in SUFFIXES:
            hint = f"to apply the project with this file of it, write `fleetform apply -f {name}`"
        raise failed("not-a-plan", f"`{name}` is not a plan that fleetform saved", hint)
    if len(content) > MOST_BYTES:
        raise failed(
            "too-large", f"`{name}` has more than 256 MiB", "plan again: `fleetform plan --out FILE`"
        )
    if keys is not None:
        from declarative.cli.plan_signatures import check

        check(name, content, keys)
    try:
        return load(content.decode(errors="surrogateescape"), f"`{name}`", __version__)
    except InvalidError as error:
        raise Failed(error.diagnostics) from None


def _content(name: str) -> bytes:
    """All of a regular file, as far as it may be looked at. A pipe is not waited for."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        head = file.read(_HEAD)
        return head + file.read(MOST_BYTES + 1 - len(head)) if _OURS.match(head) else head


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except OSError:
        return b"?"


def say_saved(session: Session, name: str, result: str) -> None:
    """Say on stderr what `--out` did."""
    if result == "error":
        sys.stderr.write("no plan was saved: it has errors\n")
        return
    where = "" if session.directory == Path() else f" -C {shlex.quote(str(session.directory))}"
    sys.stderr.write(f"saved: `fleetform{where} apply {shlex.quote(name)}` carries out exactly this plan\n")


def origin(saved: Saved) -> str:
    """Where a saved plan comes from, in one line."""
    from declarative.render.text import clean

    where = f"for the state {saved.state} of {saved.directory}, serial {saved.plan.basis.serial}"
    return clean(f"Saved at {saved.made_at} by fleetform {saved.made_by}, {where}.") + "\n"
