"""The launch of a rank: its commands, its files, the environment of docs/tasks.md, its CPUs, GPUs and
volumes.

The files of tasks are packed to be sent: exactly those that were planned, or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import tarfile
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from declarative.language.loader import sent_files
from declarative.language.template import env_names, resolve_env
from declarative.model.blocks import cpus_of, gpus_of, share
from declarative.model.inputs import (
    VOLUME_VARIABLE,
    Inputs,
    NodeInputs,
    RankInputs,
    RecordedFiles,
    ReservationInputs,
    gang_variables,
    knows_siblings,
)
from declarative.model.resource import Entry, Manifest
from declarative.model.spec import Isolation
from declarative.model.spec.values import Duration
from declarative.model.state import Address, Record, State, attempt_id, rank_name
from declarative.model.text import and_more
from declarative.planner.inventory import alone_seconds
from declarative.planner.plan import Action, Op, Plan
from declarative.provider import Archive, Bind, Launch, PermanentError, PermanentKind
from declarative.provider.optional import Terms

AGAIN = "plan again; or undo the change, and apply again"
MOST_NAMED = 5


class Bundles:
    """The bundles of one project by their digest, each packed once, when it is first needed.

    Safe to use from many threads.
    """

    def __init__(self, project_dir: Path, manifests: Mapping[str, Manifest]) -> None:
        self._root = project_dir
        self._manifests = manifests
        self._made: dict[str, Packed] = {}
        self._lock = threading.Lock()

    def of(self, files: RecordedFiles) -> Packed:
        """The bundle of a rank that gets these files."""
        digest = files.digest
        with self._lock:
            if digest not in self._made:
                self._made[digest] = Packed(self._root, digest, self._manifests.get(digest))
            return self._made[digest]


class Packed:
    """One bundle. Its archive is a temporary file without a name, which goes with the process."""

    def __init__(self, root: Path, digest: str, manifest: Manifest | None) -> None:
        self.digest = digest
        self._root = root
        self._manifest = manifest
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._size, self._sha256 = 0, ""

    @contextlib.contextmanager
    def open(self) -> Iterator[Archive]:
        """See `Bundle.open`."""
        with self._lock:
            if self._file is None:
                self._file = self._packed()
        yield Archive(source=_Reader(self._file.fileno()), size=self._size, sha256=self._sha256)

    def _packed(self) -> IO[bytes]:
        if self._manifest is None:
            # Only planned files were looked at. Recorded ones may not exist any more.
            summary = "the task's files as they were planned are not at hand"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about="files", hint=AGAIN)
        try:
            with contextlib.ExitStack() as undo:
                spool = undo.enter_context(tempfile.TemporaryFile())
                out = _Hashing(spool)
                # A stream is all that it needs, but not all that its type asks for.
                with tarfile.open(fileobj=cast("Any", out), mode="w|", format=tarfile.GNU_FORMAT) as archive:
                    for entry in self._manifest.entries:
                        _add(archive, self._root, entry)
                spool.flush()
                undo.pop_all()
        except OSError as error:
            summary = f"the task's files cannot be packed: {error.strerror or error}"
            hint = "they are packed into a temporary file: `TMPDIR` says where"
            raise PermanentError(PermanentKind.INVALID, summary, about="files", hint=hint) from error
        weakref.finalize(self, spool.close)
        self._size, self._sha256 = out.size, out.digest.hexdigest()
        return spool


class _Hashing:
    """The stream that a tar archive is written to."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size, self.digest = 0, hashlib.sha256()

    def write(self, piece: bytes) -> int:
        self.size += len(piece)
        self.digest.update(piece)
        return self._file.write(piece)


class _Reader:
    """One reader of a file that has several."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._offset = descriptor, 0

    def read(self, size: int, /) -> bytes:
        piece = os.pread(self._descriptor, size, self._offset)
        self._offset += len(piece)
        return piece


def _add(archive: tarfile.TarFile, root: Path, entry: Entry) -> None:
    """An entry as it was planned: its owner, times and the rest of its mode say nothing."""
    info = tarfile.TarInfo(entry.path)
    info.mode = 0o755 if entry.executable else 0o644
    if entry.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
        if _differs(root, entry):
            raise _changed([entry.source])
        archive.addfile(info)
        return
    info.size = entry.size
    *above, name = entry.source.split("/")
    with contextlib.ExitStack() as opened:
        try:
            parent = opened.enter_context(sent_files.open_folder(root, *above))
            file = opened.enter_context(sent_files.open_file(parent, name))
        except OSError:  # it is gone, or no file any more, or may not be read any more
            raise _changed([entry.source]) from None
        if not _is_planned(os.fstat(file.fileno()), entry):
            raise _changed([entry.source])
        reader = _Checked(file)
        archive.addfile(info, cast("Any", reader))
    if reader.digest.hexdigest() != entry.sha256:
        raise _changed([entry.source])


class _Checked:
    """A file that is read into an archive. One that is cut short meanwhile ends in zeros: its sum tells."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        piece = b""
        while len(piece) < size and (more := self._file.read(size - len(piece))):
            piece += more
        self.digest.update(piece)
        return piece + bytes(size - len(piece))


def _is_planned(status: os.stat_result, entry: Entry) -> bool:
    return status.st_size == entry.size and bool(status.st_mode & 0o100) == entry.executable


def changed_files(root: Path, manifest: Manifest) -> list[str]:
    """The files that differ from the plan, by their names in the project."""
    return [entry.source for entry in manifest.entries if _differs(root, entry)]


def _differs(root: Path, entry: Entry) -> bool:
    *above, name = entry.source.split("/")
    try:
        with sent_files.open_folder(root, *above) as parent:
            if entry.link is not None:
                return os.readlink(name, dir_fd=parent) != entry.link
            with sent_files.open_file(parent, name) as file:
                if not _is_planned(os.fstat(file.fileno()), entry):
                    return True
                return sent_files.summed(file)[1] != entry.sha256
    except OSError:
        return True


def named(files: list[str]) -> str:
    """The first few by name, and how many more there are."""
    return and_more((f"`{name}`" for name in files), MOST_NAMED)


def _changed(files: list[str]) -> PermanentError:
    summary = f"{named(files)} changed since it was planned"
    return PermanentError(PermanentKind.CONFLICT, summary, about="files", hint=AGAIN)


GRACE_SECONDS = 300
"""Seconds that a rank gets to stop if its task does not say, or says `off`."""


def grace_of(rank: RankInputs) -> int:
    """Seconds that a rank gets to stop."""
    declared = seconds(rank.stop_duration, GRACE_SECONDS)
    return GRACE_SECONDS if declared is None else declared


def seconds(recorded: Any, default: int | None) -> int | None:
    """A duration as it is recorded, in seconds."""
    return default if recorded is None else Duration.parse(recorded).seconds


MOST_NEAR = 3


def launch_of(
    state: State,
    rank: Record,
    environ: Mapping[str, str],
    files: Bundles | None = None,
    *,
    gate_seconds: int | None = None,
    limits: Mapping[str, float | None] | None = None,
) -> Launch:
    """The launch of a rank whose reservation and attachments are recorded, as those of all its siblings are.
    With `gate_seconds` it waits at most so long for them (`gate`).

    `limits`: see `Backends`.

    Secrets (`${{ env.X }}`) are taken from `environ` here and go nowhere but into the launch; a variable
    that is not set raises `template.MissingEnvError`.
    """
    reservation = state.needed(rank, "reservation")
    node = state.needed(reservation, "node")
    shape, total = node.node.resources, node.node.blocks
    blocks, asked = reservation.reservation.blocks, rank.rank
    attached = [state.records[a] for a in sorted(rank.needs) if a.kind == "attachment"]
    terms = terms_of(state, rank, limits or {})
    gang = _siblings(state, rank) if knows_siblings(asked) else []
    siblings = [(node.node_address or "", len(gpus)) for node, gpus in gang]
    slots: dict[str, int] = {}
    for address, gpus in siblings:
        # No launcher takes an address of IPv6 for a name: Hydra reads a count after a colon, and Open MPI
        # allows none. It has dashes for colons; `rsh.sh` knows whom that means.
        name = address.replace(":", "-") if asked.nodes > 1 else address
        slots[name] = slots.get(name, 0) + gpus
    auth, policy = asked.registry_auth, asked.utilization_policy
    window = seconds(policy["time_window"], None) if policy else None
    env = {n: resolve_env(text, environ) for n, text in {**node.node.variables, **asked.env}.items()}
    # The provider puts in its own path: the declared one need not be mountable.
    variables = {VOLUME_VARIABLE + a.attachment.variable: a.attachment.path for a in attached}
    return Launch(
        attempt=attempt_id(rank),
        commands=(*first_commands(asked), *asked.commands),
        env={
            **(mpi_variables(slots) if asked.nodes > 1 else {}),
            **env,
            **gang_variables(asked.task, asked.rank, asked.nodes, siblings),
            **variables,
        },
        cpus=cpus_of(shape, total, blocks),
        gpus=gpus_of(shape, total, blocks),
        working_dir=asked.working_dir,
        volumes={a.attachment.path: state.needed(a, "volume") for a in attached},
        max_seconds=terms.max_seconds,
        stop_seconds=terms.stop_seconds,
        binds=tuple(
            Bind(source=folder["instance_path"], target=path, optional=bool(folder.get("optional")))
            for path, folder in sorted(asked.instance_paths.items())
        ),
        image=asked.image,
        hostfile=hostfile(slots) if knows_siblings(asked) else None,
        hostfiles=hostfiles(slots) if knows_siblings(asked) else {},
        files=files.of(asked.files) if files and asked.files else None,
        # A rank with the whole node shares it with the node's system alone, which knows what it needs.
        memory_mib=share(shape, total, len(blocks)).memory_mib if len(blocks) < total else None,
        privileged=asked.privileged,
        queue=asked.queue,
        login=(resolve_env(auth["username"], environ), resolve_env(auth["password"], environ))
        if auth
        else None,
        hard=asked.isolation == Isolation.HARD.value,
        gate_seconds=gate_seconds,
        unused=(int(policy["min_gpu_utilization"]), window) if policy and window else None,
        alone_seconds=terms.alone_seconds,
        near=terms.near,
    )


def terms_of(state: State, rank: Record, limits: Mapping[str, float | None]) -> Terms:
    """The terms on which its host ends a rank; `state` as for `launch_of`."""
    node = state.needed(state.needed(rank, "reservation"), "node")
    gang = _siblings(state, rank) if knows_siblings(rank.rank) else []
    near = dict.fromkeys(n.node_address or "" for n, _ in gang if n.address != node.address)
    return Terms(
        stop_seconds=grace_of(rank.rank),
        max_seconds=seconds(rank.rank.max_duration, None),
        alone_seconds=alone_seconds(node.node, rank.rank, limits),
        near=tuple(near)[:MOST_NEAR],
    )


def first_commands(inputs: RankInputs) -> tuple[str, ...]:
    """The commands before a task's own: the clone of its `repos`, its `python`, its `nvcc`."""
    out = []
    for repo in inputs.repos:
        path = repo.get("path", ".")
        where = shlex.quote(path if path.startswith("/") else f"./{path}")
        branch = f" --branch {shlex.quote(repo['branch'])}" if repo.get("branch") else ""
        clone = f"git clone --quiet{branch} -- {shlex.quote(repo['url'])} {where}"
        if repo.get("hash"):
            clone += f" && git -C {where} checkout --quiet --detach {shlex.quote(repo['hash'])}"
        out.append(f"[ -e {where}/.git ] || {{ {clone}; }}")
    if inputs.python is not None:
        out.append(_PYTHON.replace("VERSION", shlex.quote(inputs.python)))
    if inputs.nvcc:
        out.append(_NVCC)
    return tuple(out)


_PYTHON = r"""
VIRTUAL_ENV=$PWD/.venv-$FLEETFORM_TASK_NAME-$FLEETFORM_NODE_RANK
if [ -x "$VIRTUAL_ENV/bin/python" ]; then :
elif command -v uv >/dev/null 2>&1; then uv venv --quiet --seed --python VERSION "$VIRTUAL_ENV"
elif command -v pythonVERSION >/dev/null 2>&1; then pythonVERSION -m venv "$VIRTUAL_ENV"
else echo "fleetform: neither uv nor pythonVERSION is here, which the task needs" >&2; false
fi && export VIRTUAL_ENV PATH="$VIRTUAL_ENV/bin:$PATH"
"""
_NVCC = r"""
command -v nvcc >/dev/null 2>&1 || PATH=/usr/local/cuda/bin:$PATH
command -v nvcc >/dev/null 2>&1 || { echo "fleetform: no nvcc is here, which the task needs" >&2; false; }
"""


def missing_env(plan: Plan, state: State, environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Variables that are not set → the tasks of `plan` whose ranks would be started with them."""
    planned = {a.address: a.typed for a in plan.actions if a.after is not None}
    out: dict[str, list[str]] = {}
    for action in plan.actions:
        rank = action.typed
        if action.op is not Op.CREATE or not isinstance(rank, RankInputs):
            continue
        env = {**_node_env(action, planned, state), **rank.env, **rank.registry_auth}
        for name in sorted({n for text in env.values() for n in env_names(text)} - environ.keys()):
            tasks = out.setdefault(name, [])
            if rank.task not in tasks:
                tasks.append(rank.task)
    return dict(sorted(out.items()))


def _node_env(action: Action, planned: Mapping[Address, Inputs], state: State) -> Mapping[str, str]:
    """The environment of the node that a rank will be on."""

    def inputs(address: Address) -> Inputs | None:
        record = state.records.get(address)
        return planned.get(address) or (record.typed if record else None)

    reservation = next((a for a in action.holds if a.kind == "reservation"), None)
    place = inputs(reservation) if reservation else None
    node = inputs(Address("node", place.node)) if isinstance(place, ReservationInputs) else None
    return node.variables if isinstance(node, NodeInputs) else {}


def _siblings(state: State, rank: Record) -> list[tuple[Record, tuple[int, ...]]]:
    """Node and GPUs of every rank of the gang, by rank."""
    out: list[tuple[Record, tuple[int, ...]]] = []
    for index in range(rank.rank.nodes):
        reservation = state.get("reservation", rank_name(rank.rank.task, index))
        if reservation is None:
            continue
        node = state.needed(reservation, "node")
        blocks = reservation.reservation.blocks
        out.append((node, gpus_of(node.node.resources, node.node.blocks, blocks)))
    return out


def hostfile(slots: Mapping[str, int]) -> str:
    """The host file that Open MPI and Hydra read alike: a line with the name for each slot.

    Neither reads the counts of the other. A node whose ranks have no GPU is there once: Open MPI then takes
    a slot for each of its cores.
    """
    return "".join(f"{name}\n" * max(1, n) for name, n in slots.items())


def hostfiles(slots: Mapping[str, int]) -> dict[str, str]:
    """The host file of each launcher, in its own form. Intel's documents no counts."""
    return {
        "openmpi": "".join(f"{name} slots={n}\n" if n else f"{name}\n" for name, n in slots.items()),
        "hydra": "".join(f"{name}:{n}\n" if n else f"{name}\n" for name, n in slots.items()),
        "intel": "".join(f"{name}\n" for name in slots),
    }


def mpi_variables(slots: Mapping[str, int]) -> dict[str, str]:
    """The counts that host files cannot say; a variable that the user declares counts instead."""
    out: dict[str, str] = {}
    if slots and all(slots.values()):
        if 1 in slots.values():  # a host that is named once would have a slot for each of its cores
            out |= dict.fromkeys(("OMPI_MCA_orte_set_default_slots", "PRTE_MCA_prte_set_default_slots"), "1")
        if len(set(slots.values())) == 1:
            out["I_MPI_PERHOST"] = str(next(iter(slots.values())))
    return out
