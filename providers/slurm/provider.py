"""`Slurm`: the port's methods, by means of looks (`snapshot`), jobs, and files on the shared filesystem.

A node of Slurm becomes a node of a fleet without being made: only its owner is written down. Several states
may have the same node, since Slurm itself records what each of its jobs holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, cast

from declarative.model.blocks import Shape
from declarative.model.inputs import AttachmentInputs, inputs_of
from declarative.model.resource import Offer, OthersShare
from declarative.model.state import Address, Record, orphan_hint
from declarative.model.status import RankStatus, Readiness
from declarative.provider import Config, Launch, PermanentError, PermanentKind, Thing
from declarative.provider.optional import Gang, LogEnd, Member, Seat, Terminal, Terms
from providers.faults import RUNNING, guarded
from providers.ownership import Owned, check_update
from providers.rank_scripts import beside
from providers.runner import RunnerError, counted
from providers.slurm import jobs
from providers.slurm.cluster import Node
from providers.slurm.fleets import key_at, members, readiness, taken
from providers.slurm.login import Place, place_of
from providers.slurm.snapshot import WITNESS, Looks, Snapshot, as_thing, thing_in
from providers.ssh.host import terminal
from providers.ssh.scripts import place_files
from providers.ssh.transport import SshTransport, command_line

ERASE_SECONDS = 600.0
_SPARE_SECONDS = 60.0
FIXED = {"node": ("backend", "region", "zone", "instance_type"), "volume": ("backend", "region", "zone")}
"""Fields of a thing that cannot change in place."""


class Slurm:
    """One cluster, as one of its users sees it through a login node."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._place: Place = place_of(config)
        self._looks = Looks(self._place)

    # ------------------------------------------------------------------------------------- things

    @guarded
    def offers(self) -> tuple[Offer, ...]:
        """None: Slurm launches nothing. `members` returns the existing nodes."""
        return ()

    @guarded
    def members(self, settings: Mapping[str, Any]) -> tuple[Member, ...]:
        """The nodes of a partition."""
        return members(self._looks.get(fresh=True), settings)

    @guarded
    def taken(self, nodes: Sequence[Record]) -> Mapping[str, tuple[OthersShare, ...]]:
        """The shares of nodes that others' jobs hold."""
        seen = self._looks.get()
        return {r.address.name: taken(seen, str(r.node.host.get("slurm", ""))) for r in nodes}

    @guarded
    def inventory(self) -> tuple[Thing, ...]:
        """All things of this owner. A damaged file is a fault that names it."""
        snapshot = self._looks.get(fresh=True)
        return tuple(as_thing(*thing, snapshot.vanished) for thing in snapshot.things if self._mine(thing[0]))

    def _mine(self, thing: Owned) -> bool:
        return thing.owner == self._config.lineage

    @guarded
    def find(self, address: Address, token: str) -> Thing | None:
        thing = self._thing_at(address)
        vanished = self._looks.get().vanished
        return as_thing(*thing, vanished) if thing and thing[0].token == token else None

    def _thing_at(self, address: Address) -> tuple[Owned, Mapping[str, object]] | None:
        things = self._looks.get(fresh=True).things
        return next((t for t in things if t[0].address == address and self._mine(t[0])), None)

    @guarded
    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """Write down a node, a volume or an attachment. A volume is a folder on the shared filesystem."""
        thing = Owned(owner=self._config.lineage, address=address, token=token, inputs=inputs)
        outputs: dict[str, Any] = {"id": thing.id}
        if address.kind == "node":
            node = self._slurm_node(inputs_of("node", inputs).host, address)
            outputs |= {
                "address": node.address,
                "slurm_node": node.name,
                "path": f"{self._place.folder}/{thing.key}",
            }
        elif address.kind == "volume":
            inputs_of("volume", inputs)
            outputs |= {"path": f"{self._place.folder}/volumes/{thing.key}", WITNESS: True}
        elif address.kind == "attachment":
            attachment = inputs_of("attachment", inputs)
            volume = needs.get(Address("volume", attachment.volume))
            if volume is None or Address("node", attachment.node) not in needs:
                summary = f"{address}: its volume or its node is not there"
                raise PermanentError(PermanentKind.NOT_FOUND, summary, about=str(address))
            self._check_free(attachment.volume, attachment.node)
            outputs["path"] = volume.outputs["path"]
        else:
            summary = f"a slurm backend makes nodes, volumes and attachments, not {address}"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(address))
        return self._put(thing, outputs)

    def _put(self, thing: Owned, outputs: Mapping[str, Any]) -> Mapping[str, Any]:
        text = _text(thing, outputs)
        folder = str(outputs["path"]) if thing.address.kind == "volume" else ""
        answer = self._place.ask("put", _file(thing.address), str(len(text)), folder, stdin=text)
        self._looks.changed()
        name = _file(thing.address)
        written, written_outputs = thing_in(
            counted(b"FLEETFORM-THING ", answer, name), name, str(self._place.login.host)
        )
        if written.token != thing.token:
            summary = f"{thing.address} exists already, from another create"
            hint = orphan_hint(thing.address)
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(thing.address), hint=hint)
        return written_outputs

    def _check_free(self, volume: str, node: str) -> None:
        """Refuse a volume that is attached to another node."""
        for attachment, inputs in self._attached(self._looks.get(fresh=True)):
            if inputs.volume == volume and inputs.node != node:
                summary = f"volume/{volume} is attached to node/{inputs.node} ({attachment.address})"
                raise PermanentError(PermanentKind.CONFLICT, summary, about=f"volume/{volume}")

    @guarded
    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the new inputs."""
        address = have.address
        thing, outputs = self._thing_at(address) or (None, {})
        if thing is None or thing.id != have.outputs.get("id"):
            raise PermanentError(PermanentKind.NOT_FOUND, f"{address} is not there", about=str(address))
        if address.kind not in FIXED:
            raise PermanentError(PermanentKind.INVALID, f"{address} cannot be changed", about=str(address))
        before, after = (inputs_of(address.kind, of) for of in (thing.inputs, inputs))
        check_update(address, FIXED[address.kind], before, after)
        text = _text(replace(thing, inputs=inputs), outputs)
        self._place.ask("change", _file(address), thing.key, str(len(text)), stdin=text)
        self._looks.changed()
        return outputs

    @guarded
    def delete(self, have: Record) -> None:
        """Forget a node, and what its ranks left; remove a volume with its data; detach an attachment."""
        address = have.address
        thing, outputs = self._thing_at(address) or (None, {})
        if thing is None or have.outputs.get("id") not in (None, thing.id):
            return
        folder = ""
        if address.kind == "node":
            self._check_idle(thing, address)
            for on, inputs in self._attached(self._looks.get()):
                if inputs.node == address.name:
                    self._place.ask("drop", _file(on.address), on.key)  # the attachment ends with its host
            folder = f"{self._place.folder}/{thing.key}"
        elif address.kind == "volume":
            self._check_detached(address)
            folder = str(outputs["path"])
        self._place.ask("drop", _file(address), thing.key, folder, seconds=ERASE_SECONDS)
        self._looks.changed()

    def _attached(self, snapshot: Snapshot) -> list[tuple[Owned, AttachmentInputs]]:
        """The attachments of this owner."""
        mine = [f for f, _ in snapshot.things if f.address.kind == "attachment" and self._mine(f)]
        return [(attachment, inputs_of("attachment", attachment.inputs)) for attachment in mine]

    def _check_detached(self, volume: Address) -> None:
        for attachment, inputs in self._attached(self._looks.get()):
            if inputs.volume == volume.name:
                summary, hint = f"{volume} is attached: {attachment.address}", "detach it first"
                raise PermanentError(PermanentKind.CONFLICT, summary, about=str(volume), hint=hint)

    def _check_idle(self, node: Owned, address: Address) -> None:
        snapshot = self._looks.get()
        mine = [a for a in snapshot.attempts.values() if a.node == node.key]
        busy = sorted(a.name for a in mine if not snapshot.status(a).state.ended)
        if busy:
            summary = f"{address} has running ranks: {', '.join(busy)}"
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(address), hint=RUNNING)

    @guarded
    def tidy(self, node: Record, oldest: Mapping[str, int]) -> None:
        snapshot = self._looks.get(fresh=True)
        old = [
            a.name
            for a in snapshot.attempts.values()
            if a.node == key_at(node) and snapshot.status(a).state.ended and jobs.is_before(a.name, oldest)
        ]
        if old:
            self._place.ask("tidy", key_at(node), *sorted(old), seconds=ERASE_SECONDS)
            self._looks.changed()

    # -------------------------------------------------------------------------------------- nodes

    @guarded
    def readiness(self, nodes: Sequence[Record]) -> Mapping[str, Readiness]:
        """Slurm decides: one look for any number of nodes."""
        snapshot = self._looks.get()
        return {r.address.name: readiness(snapshot, r) for r in nodes}

    def _slurm_node(self, host: Mapping[str, Any], address: Address) -> Node:
        name = str(host.get("slurm", ""))
        node = self._looks.get().cluster.nodes.get(name)
        if node is None:
            summary = f"{address}: Slurm has no node `{name}`"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about=str(address))
        return node

    # -------------------------------------------------------------------------------------- ranks

    @guarded
    def start(self, node: Record, launch: Launch) -> RankStatus:
        """Without a gate, each rank is a job of its own."""
        key, folder = key_at(node), f"{self._place.folder}/{key_at(node)}"
        plan = jobs.plan_of(node, folder, launch, self._volumes(launch))
        self._place.bundle()
        if launch.files is not None:
            self._place.ask("claim", key)
            place_files(cast("SshTransport", self._place.login), folder, key, launch.attempt, launch.files)
        payload = plan.script.encode(errors="surrogateescape")
        self._place.ask(
            "prepare",
            *(key, launch.attempt, str(len(payload))),
            *("-" if launch.gate_seconds is None else str(launch.gate_seconds), str(launch.stop_seconds)),
            *plan.needs,
            *plan.options,
            stdin=payload,
            begin="FLEETFORM-PREPARED",
        )
        self._looks.changed()
        if launch.gate_seconds is None:
            self._reserve((Seat(node=node, attempt=launch.attempt),), jobs.task_of(launch.attempt))
            self._open(key, [launch.attempt])
        return self._status(node, launch.attempt)

    def _volumes(self, launch: Launch) -> dict[str, str]:
        things = {f.id for f, _ in self._looks.get().things}
        for volume in launch.volumes.values():
            if volume.outputs.get("id") not in things:
                summary = f"{volume.address} is not there"
                raise PermanentError(PermanentKind.NOT_FOUND, summary, about=str(volume.address))
        return {path: str(volume.outputs["path"]) for path, volume in launch.volumes.items()}

    def _status(self, node: Record, attempt: str) -> RankStatus:
        snapshot = self._looks.get(fresh=True)
        started = snapshot.attempts.get((key_at(node), attempt))
        if started is None:
            raise RunnerError("failed", f"{attempt} was prepared and is not there")
        return snapshot.status(started)

    @guarded
    def reserve(self, gang: Gang) -> None:
        """One job for the whole gang, on the nodes of its seats."""
        self._reserve(gang.seats, gang.task)

    def _reserve(self, seats: Sequence[Seat], task: str) -> None:
        prepared = jobs.attempts_of(
            self._place.ask("seats", *(f"{key_at(s.node)}/{s.attempt}" for s in seats))
        )
        if all(a.ended is not None for a in prepared):
            return
        job = jobs.job_of(task, seats, prepared)
        bundle = self._place.bundle()
        answer = self._place.ask(
            "submit",
            *(job.token, job.name, str(1 if job.queue else self._place.start_seconds), bundle),
            *job.ranks,
            "--",
            *job.options,
            seconds=_SPARE_SECONDS + self._place.start_seconds,
            begin="FLEETFORM-JOB ",
        )
        self._looks.changed()
        number, state, reason = jobs.submitted(answer)
        if state == "PENDING" and not job.queue:
            self._place.ask("cancel", job.token, "gate")
            self._looks.changed()
            raise jobs.not_granted(task, number, reason, self._looks.get(), seats)

    @guarded
    def expected(self, task: str, ranks: Sequence[tuple[Record, Shape]], seconds: int | None) -> float | None:
        """Ask `sbatch --test-only`."""
        needs = [jobs.need_of(node, share, seconds) for node, share in ranks]
        options = jobs.options_of(task, ranks[0][0], needs)
        return jobs.expected_in(self._place.ask("expect", *options).decode(errors="replace"))

    @guarded
    def release(
        self, node: Record, attempts: Sequence[str], peers: Sequence[str] = ()
    ) -> Mapping[str, RankStatus | None]:
        """Ranks without a reserved gang become jobs of their own."""
        del peers  # the site's MPI uses Slurm's own addresses
        snapshot, key = self._looks.get(fresh=True), key_at(node)
        for name in attempts:
            prepared = snapshot.attempts.get((key, name))
            if prepared is not None and not prepared.job and not snapshot.status(prepared).state.ended:
                self._reserve((Seat(node=node, attempt=name),), jobs.task_of(name))
        self._open(key, attempts)
        return self.poll(node, attempts)

    def _open(self, key: str, attempts: Sequence[str]) -> None:
        if attempts:
            snapshot = self._looks.get()
            prepared = (snapshot.attempts.get((key, name)) for name in attempts)
            waits = any(a is not None and snapshot.is_queued(a) for a in prepared)
            self._place.ask("open", key, "0" if waits else str(self._place.start_seconds), *attempts)
        self._looks.changed()

    def peers(self, node: Record, attempts: Sequence[str]) -> Mapping[str, str]:
        """No rank needs one: the site's MPI uses Slurm's own addresses."""
        del node, attempts
        return {}

    @guarded
    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        """All nodes share one look."""
        snapshot, key = self._looks.get(), key_at(node)
        known = {name: snapshot.attempts.get((key, name)) for name in attempts}
        return {name: snapshot.status(a) if a else None for name, a in known.items()}

    @guarded
    def attempts(self, node: Record) -> Mapping[str, RankStatus]:
        snapshot = self._looks.get()
        return {a.name: snapshot.status(a) for a in snapshot.attempts.values() if a.node == key_at(node)}

    @guarded
    def stop(self, node: Record, attempt: str, grace_seconds: int) -> RankStatus | None:
        seconds = grace_seconds + 2 * _SPARE_SECONDS
        self._place.ask("stop", key_at(node), attempt, str(grace_seconds), seconds=seconds)
        self._looks.changed()
        return self.poll(node, [attempt])[attempt]

    @guarded
    def change_limit(self, node: Record, attempt: str, seconds: int | None) -> None:
        """`adjust` sees to the job's own limit."""
        self._place.ask("limit", key_at(node), attempt, "off" if seconds is None else str(seconds))

    @guarded
    def adjust(self, node: Record, attempt: str, terms: Terms) -> None:
        """Slurm ends what its nodes lose, so no rank ends itself.

        The job itself must last for long enough. Most clusters let only operators lengthen one that runs.
        """
        minutes = jobs.minutes_of(terms.max_seconds, terms.stop_seconds)
        words = (str(terms.stop_seconds), "-" if minutes is None else str(minutes))
        try:
            self._place.ask("adjust", key_at(node), attempt, *words)
        except RunnerError as error:
            if error.code != "time":
                raise
            number, _, why = error.text.partition(" ")
            longer = "UNLIMITED" if minutes is None else minutes
            summary = f"Slurm would end job {number} before the new times of {attempt}, and refused: {why}"
            hint = (
                f"ask an operator for `scontrol update JobId={number} TimeLimit={longer}`, and run this "
                f"again; or `--replace task/{jobs.task_of(attempt)}`, which makes a new job"
            )
            raise PermanentError(PermanentKind.INVALID, summary, about=attempt, hint=hint) from None

    @guarded
    def read_log(self, node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
        answer = self._place.ask("tail", key_at(node), attempt, str(offset), str(limit))
        return counted(b"FLEETFORM-LOG ", answer, f"the log of {attempt}")

    @guarded
    def log_ends(self, node: Record, attempts: Sequence[str]) -> Mapping[str, LogEnd]:
        answer = self._place.ask("ends", key_at(node), *attempts).decode(errors="replace")
        body = answer.partition("FLEETFORM-LOGS\n")[2].partition("FLEETFORM-END")[0]
        rows = [line.split() for line in body.splitlines()]
        return {name: LogEnd(size=int(size), quiet=float(quiet)) for name, size, quiet in rows}

    @guarded
    def terminal(
        self, node: Record, attempt: str | None, command: Sequence[str], *, tty: bool
    ) -> AbstractContextManager[Terminal]:
        """A step in the rank's job."""
        if attempt is None:
            summary = f"{node.address} is Slurm's: it allows logins only inside of a job"
            hint = "name a task that runs there: `fleetform exec TASK`"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(node.address), hint=hint)
        running = self._looks.get(fresh=True).attempts.get((key_at(node), attempt))
        number = running.step.partition(".")[0] if running else ""
        if not running or not number.isdecimal():
            summary = f"{attempt} does not run"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about=attempt)
        inside = beside(f"{self._place.folder}/{key_at(node)}/{key_at(node)}", attempt, command)
        step = (f"--jobid={number}", f"--nodelist={running.host}", "--nodes=1", "--ntasks=1", "--overlap")
        words = ("srun", *step, "--gres=none", "--mpi=none", "--quiet", *(("--pty",) if tty else ()), *inside)
        if isinstance(self._place.login, SshTransport):
            return terminal(self._place.login.host, command_line(words), tty=tty)
        return nullcontext(Terminal(argv=words))


def _text(thing: Owned, outputs: Mapping[str, Any]) -> bytes:
    return f"{thing.key}\n{thing.json(outputs=dict(outputs))}\n".encode()


def _file(address: Address) -> str:
    return f"{address.kind}.{address.name}"
