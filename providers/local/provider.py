"""`Local`: the methods of the port, over folders (`folders`) and processes (`ranks`)."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from declarative.model.blocks import Shape
from declarative.model.inputs import inputs_of
from declarative.model.resource import Offer
from declarative.model.state import Address, Record
from declarative.model.status import NodeState, RankStatus, Readiness
from declarative.model.text import suggest
from declarative.provider import Config, Launch, PermanentError, PermanentKind, Thing, reads_only
from declarative.provider.optional import LogEnd, Terminal
from providers.faults import RUNNING, guarded
from providers.local import machine
from providers.local.files import DamagedError, Epoch, Meta, erase, never_ran, place
from providers.local.folders import DATA, Attachments, Folders
from providers.ownership import check_update, key_of
from providers.rank_scripts import beside, prepared
from providers.ranks import Ranks, RanksOfNodes
from providers.runner import Runner

MEBIBYTE = 1024 * 1024
LEAST_FREE = 16 * MEBIBYTE
"""A node with less free space is not ready: there would be no room for logs."""

TOOLS = ("sh", "env", "flock", "setsid")
FIXED = {
    "node": ("backend", "region", "zone", "instance_type", "resources"),
    "volume": ("backend", "region", "zone"),
}
"""Fields of a thing that cannot change in place."""


class Local(RanksOfNodes):
    """One use of this machine.

    `options.root` is the folder of everything: relative to the project and inside it, or absolute; the
    default is `.fleetform/local` in the project. Several states may share one: each sees its own things.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._folders = Folders(_root(config), config.lineage)
        self._attachments = Attachments(self._folders)
        fence = config.fence if config.lineage else reads_only  # without a lineage there is no owner
        file = self._folders.root / f".epoch.{key_of(config.lineage)}"
        self._epoch = Epoch(file, fence, tuple(self._folders.parents.values()))

    # ------------------------------------------------------------------------------------- things

    @guarded
    def offers(self) -> tuple[Offer, ...]:
        """This machine in each region and zone that the backend names; it takes any shape asked for."""
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        shape = Shape(cpu=len(machine.usable_cpus()), memory_mib=pages // MEBIBYTE)
        return tuple(
            Offer(
                backend=self._config.backend,
                region=region,
                zone=zone,
                instance_type="local",
                shape=shape,
                price=0.0,
                shaped=True,
            )
            for region in self._config.regions or ("local",)
            for zone in self._config.zones or (None,)
        )

    @guarded
    def gpus(self) -> tuple[str, ...] | None:
        return machine.gpus()

    @guarded
    def can(self) -> frozenset[str]:
        return machine.can()

    @guarded
    def inventory(self) -> tuple[Thing, ...]:
        """All of this owner. A damaged `fleetform.json` is a fault that names it.

        Its thing is neither listed with invented inputs nor taken for gone.
        """
        with self._epoch.as_writer(make=False):  # no other writer changes anything meanwhile
            things = self._folders.listed()
        return tuple(self._thing(meta) for meta in (*things, *self._attachments.listed(things)))

    @guarded
    def find(self, address: Address, token: str) -> Thing | None:
        attached = address.kind == "attachment"
        where: Attachments | Folders = self._attachments if attached else self._folders
        meta = where.read(address)
        if meta is None or meta.owner != self._config.lineage or meta.token != token:
            return None
        return self._thing(meta)

    @guarded
    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """A `size` is only recorded: a folder has no limit of its own."""
        meta = Meta(
            owner=self._config.lineage, address=address, token=token, inputs=inputs, created=time.time()
        )
        make = self._attachments.make if address.kind == "attachment" else self._folders.make
        with self._epoch.as_writer():
            return self._outputs(make(meta))

    @guarded
    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the new inputs; also the `size` of a volume, since folders have no limits."""
        address = have.address
        if address.kind not in FIXED:
            raise PermanentError(PermanentKind.INVALID, f"{address} cannot be changed", about=str(address))
        # Before the lock, which needs a folder, and after it: the folder may be another one then.
        self._folders.of(have)
        with self._epoch.as_writer(), self._folders.locked(address):
            meta = self._folders.of(have)
            before, after = (inputs_of(address.kind, data) for data in (meta.inputs, inputs))
            check_update(address, FIXED[address.kind], before, after)
            meta = replace(meta, inputs=inputs)
            self._folders.rewrite(meta)
        return self._outputs(meta)

    @guarded
    def delete(self, have: Record) -> None:
        """Remove a thing with its content.

        `PermanentError` for a node with running ranks, and for a volume that is attached.
        """
        with self._epoch.as_writer(make=False):
            self._delete(have)

    def _delete(self, have: Record) -> None:
        address, id_made = have.address, have.outputs.get("id")
        if address.kind == "attachment":
            self._attachments.remove(address, id_made)
            return
        meta = self._folders.read(address)
        if meta is None or meta.owner != self._config.lineage or id_made not in {None, meta.id}:
            self._folders.sweep(address)
            return
        if address.kind == "node":
            self._check_idle(address)
            self._folders.remove(meta)
            return
        with self._folders.locked(address):
            self._attachments.check_free(address.name)
            self._folders.remove(meta)

    @guarded
    def bury(self, node: Record) -> None:
        """Without its folder, the runner cannot stop its ranks."""
        folder = self._folders.folder(node.address)
        if not (folder / "ranks").exists():
            machine.kill_marked(f"{folder}/ranks/")

    def _check_idle(self, node: Address) -> None:
        folder = self._folders.folder(node)
        if not (folder / "ranks").exists():
            return
        ranks = self._ranks_in(folder)
        busy = ranks.running()
        if busy:
            # Not the transient kind: ranks may run for days, and a command must not wait that long unasked.
            summary = f"{node} has running ranks: {', '.join(busy)}"
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(node), hint=RUNNING)
        ranks.forget_lost()

    @guarded
    def tidy(self, node: Record, oldest: Mapping[str, int]) -> None:
        folder, ranks = self._folders.folder(node.address), self._ranks(node)
        for name in ranks.ended_before(oldest):
            ranks.runner.forget(name)
            for own in ("hosts", "work"):
                if (folder / own / name).is_dir():
                    erase(folder / own / name)

    def _outputs(self, meta: Meta) -> dict[str, Any]:
        if meta.address.kind == "attachment":
            volume = Address("volume", meta.attachment.volume)
            return {"id": meta.id, "path": f"{self._folders.at(volume)}/{DATA}"}
        folder = self._folders.at(meta.address)
        if meta.address.kind == "volume":
            return {"id": meta.id, "path": f"{folder}/{DATA}"}
        return {"id": meta.id, "address": "127.0.0.1", "path": folder}

    def _thing(self, meta: Meta) -> Thing:
        vanished = self._attachments.vanished(meta) if meta.address.kind == "volume" else None
        return Thing(
            address=meta.address,
            token=meta.token,
            inputs=meta.inputs,
            outputs=self._outputs(meta),
            lost=vanished,
        )

    # -------------------------------------------------------------------------------------- nodes

    @guarded
    def readiness(self, nodes: Sequence[Record]) -> Mapping[str, Readiness]:
        """A missing folder is `unreachable`, as a host that does not answer."""
        lacking = _lacking()
        return {record.address.name: self._ready(record, lacking) for record in nodes}

    def _ready(self, record: Record, lacking: str | None) -> Readiness:
        try:
            self._folders.of(record)
            reason = _unfit(self._folders.at(record.address)) or lacking
            state = NodeState.NOT_READY if reason else NodeState.READY
        except DamagedError as error:
            state, reason = NodeState.NOT_READY, error.summary
        except PermanentError as error:
            state, reason = NodeState.UNREACHABLE, error.summary
        except OSError as error:
            state, reason = NodeState.UNKNOWN, str(error)
        return Readiness(state=state, reason=reason, observed_at=time.time(), can=machine.can())

    # -------------------------------------------------------------------------------------- ranks

    @guarded
    def start(self, node: Record, launch: Launch) -> RankStatus:
        """CPUs beyond the machine's wrap around.

        The rank gets the variables that it declares, and of the caller's only `machine.INHERITED`.
        """
        self._folders.of(node)
        data = {path: str(self._data(volume, node)) for path, volume in launch.volumes.items()}
        folder = self._folders.folder(node.address)
        launched = prepared(str(folder), machine.usable_cpus(), launch, data)
        if launch.files is not None:
            place(folder / "work" / launch.attempt, launch.files)
        return self._ranks_in(folder).start(launched)

    @guarded
    def unused(self, nodes: Sequence[Record]) -> tuple[str, ...]:
        return tuple(node.address.name for node in nodes if self._is_unused(node))

    @guarded
    def mark(self) -> object | None:
        """The digest of the times, sizes and modes of the files, which are not read."""
        state = self._folders.mark()
        if state is None:
            return None
        things, disks = state
        fit = {disk: (_full(path), os.statvfs(path).f_flag) for disk, path in disks.items()}
        return things, fit, _lacking(), self.offers(), os.geteuid()

    def _is_unused(self, node: Record) -> bool:
        try:
            self._folders.of(node)
        except PermanentError:
            return False
        return never_ran(f"{self._folders.at(node.address)}/ranks", self._config.fence())

    def _data(self, volume: Record, node: Record) -> Path:
        """The folder of a volume's data, if the node may use it."""
        self._folders.of(volume)
        self._attachments.check_free(volume.address.name, node.address.name)
        data = self._folders.folder(volume.address) / DATA
        if not data.is_dir():
            summary = f"{volume.address} has lost its data: {data} is not a folder"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about=str(volume.address))
        return data

    def peers(self, node: Record, attempts: Sequence[str]) -> Mapping[str, str]:
        """None, since all nodes are this machine."""
        return {}

    @guarded
    def log_ends(self, node: Record, attempts: Sequence[str]) -> Mapping[str, LogEnd]:
        self._folders.of(node)
        folder = self._folders.folder(node.address) / "ranks"
        ends: dict[str, LogEnd] = {}
        for attempt in attempts:
            with contextlib.suppress(FileNotFoundError):
                status = (folder / attempt / "log").stat()
                ends[attempt] = LogEnd(size=status.st_size, quiet=time.time() - status.st_mtime)
        return ends

    @guarded
    def terminal(
        self,
        node: Record,
        attempt: str | None,
        command: Sequence[str],
        *,
        tty: bool,  # it has the caller's
    ) -> AbstractContextManager[Terminal]:
        """A shell begins in the node's folder."""
        self._folders.of(node)
        folder = str(self._folders.folder(node.address))
        if attempt is not None:
            return nullcontext(Terminal(argv=beside(folder, attempt, command)))
        shell = os.environ.get("SHELL") or "/bin/sh"
        argv = (shell, "-c", " ".join(command)) if command else (shell,)
        return nullcontext(Terminal(argv=argv, folder=folder))

    def _ranks(self, node: Record) -> Ranks:
        self._folders.of(node)
        return self._ranks_in(self._folders.folder(node.address))

    def _ranks_in(self, folder: Path) -> Ranks:
        return Ranks(Runner(machine.BareTransport(), str(folder / "ranks"), fence=self._config.fence))


def _lacking() -> str | None:
    """The things that this machine lacks to run ranks."""
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"not installed: {', '.join(missing)}"
    if not Path("/proc/self/stat").exists():
        return "there is no /proc, by which processes are found"
    return None


def _unfit(folder: str) -> str | None:
    """Why no rank can run in the folder of a node."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} cannot be written"
    full = _full(folder)
    return f"{full} on the disk of {folder}" if full else None


def _full(path: str) -> str | None:
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    if free < LEAST_FREE:
        return f"only {free // MEBIBYTE} MiB are free"
    return "no more files can be made" if disk.f_files and not disk.f_favail else None


def _root(config: Config) -> Path:
    """The folder of everything; a relative one that leads out of the project is refused."""
    for key in config.options:
        if key != "root":
            hint = suggest(key, ["root"]) or "`local` has one option: root"
            summary = f"`{key}` is not an option of the driver `local`"
            raise PermanentError(PermanentKind.INVALID, summary, about=f"options.{key}", hint=hint)
    declared = config.options.get("root")
    project = config.project_dir.absolute()
    if declared is None:
        return project / ".fleetform" / "local"
    if not isinstance(declared, str) or not declared or "\0" in declared:
        raise PermanentError(PermanentKind.INVALID, "`root` is not a path", about="options.root")
    root = Path(declared).expanduser()
    return root if root.is_absolute() else _inside(project, declared)


def _inside(project: Path, declared: str) -> Path:
    real, inside = (Path(os.path.realpath(path)) for path in (project, project / Path(declared).expanduser()))
    if not inside.is_relative_to(real) or inside == real:
        summary = f"`{declared}` is not a folder inside the project"
        hint = "write a folder below the project's, or an absolute path"
        raise PermanentError(PermanentKind.INVALID, summary, about="options.root", hint=hint)
    return inside
