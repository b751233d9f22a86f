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
        """See `provider.Partitions`: the nodes of a partition."""
        return members(self._looks.get(fresh=True), settings)

    @guarded
    def taken(self, nodes: Sequence[Record]) -> Mapping[str, tuple[OthersShare, ...]]:
        """See `provider.Partitions`: what others' jobs hold on nodes."""
        seen = self._looks.get()
        return {r.address.name: taken(seen, str(r.node.host.get("slurm", ""))) for r in nodes}

    @guarded
    def inventory(self) -> tuple[Thing, ...]:
        """All things of this owner. A damaged file is a fault that names it."""
        seen = self._looks.get(fresh=True)
        return tuple(as_thing(*found, seen.vanished) for found in seen.things if self._mine(found[0]))

    def _mine(self, found: Owned) -> bool:
        return found.owner == self._config.lineage

    @guarded
    def find(self, address: Address, token: str) -> Thing | None:
        """See the port."""
        found = self._found(address)
        vanished = self._looks.get().vanished
        return as_thing(*found, vanished) if found and found[0].token == token else None

    def _found(self, address: Address) -> tuple[Owned, Mapping[str, object]] | None:
        things = self._looks.get(fresh=True).things
        return next((t for t in things if t[0].address == address and self._mine(t[0])), None)

    @guarded
    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """Write down a node, a volume or an attachment. A volume is a folder on the shared filesystem."""
        wanted = Owned(owner=self._config.lineage, address=address, token=token, inputs=inputs)
        outputs: dict[str, Any] = {"id": wanted.id}
        if address.kind == "node":
            node = self._slurm_node(inputs_of("node", inputs).host, address)
            outputs |= {
                "address": node.address,
                "slurm_node": node.name,
                "path": f"{self._place.folder}/{wanted.key}",
            }
        elif address.kind == "volume":
            inputs_of("volume", inputs)
            outputs |= {"path": f"{self._place.folder}/volumes/{wanted.key}", WITNESS: True}
        elif address.kind == "attachment":
            asked = inputs_of("attachment", inputs)
            volume = needs.get(Address("volume", asked.volume))
            if volume is None or Address("node", asked.node) not in needs:
                summary = f"{address}: its volume or its node is not there"
                raise PermanentError(PermanentKind.NOT_FOUND, summary, about=str(address))
            self._check_free(asked.volume, asked.node)
            outputs["path"] = volume.outputs["path"]
        else:
            summary = f"a slurm backend makes nodes, volumes and attachments, not {address}"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(address))
        return self._put(wanted, outputs)

    def _put(self, wanted: Owned, outputs: Mapping[str, Any]) -> Mapping[str, Any]:
        text = _text(wanted, outputs)
        folder = str(outputs["path"]) if wanted.address.kind == "volume" else ""
        answer = self._place.ask("put", _file(wanted.address), str(len(text)), folder, stdin=text)
        self._looks.changed()
        name = _file(wanted.address)
        found, has = thing_in(counted(b"FLEETFORM-THING ", answer, name), name, str(self._place.login.host))
        if found.token != wanted.token:
            summary = f"{wanted.address} exists already, from another create"
            hint = orphan_hint(wanted.address)
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(wanted.address), hint=hint)
        return has

    def _check_free(self, volume: str, node: str) -> None:
        """Refuse a volume that is attached to another node."""
        for found, inputs in self._attached(self._looks.get(fresh=True)):
            if inputs.volume == volume and inputs.node != node:
                summary = f"volume/{volume} is attached to node/{inputs.node} ({found.address})"
                raise PermanentError(PermanentKind.CONFLICT, summary, about=f"volume/{volume}")

    @guarded
    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the new inputs."""
        address = have.address
        found = self._found(address)
        if found is None or found[0].id != have.outputs.get("id"):
            raise PermanentError(PermanentKind.NOT_FOUND, f"{address} is not there", about=str(address))
        if address.kind not in FIXED:
            raise PermanentError(PermanentKind.INVALID, f"{address} cannot be changed", about=str(address))
        before, after = (inputs_of(address.kind, of) for of in (found[0].inputs, inputs))
        check_update(address, FIXED[address.kind], before, after)
        text = _text(replace(found[0], inputs=inputs), found[1])
        self._place.ask("change", _file(address), found[0].key, str(len(text)), stdin=text)
        self._looks.changed()
        return found[1]

    @guarded
    def delete(self, have: Record) -> None:
        """Forget a node, and what its ranks left; remove a volume with its data; detach an attachment."""
        address = have.address
        found = self._found(address)
        made = have.outputs.get("id")
        if found is None or made not in (None, found[0].id):
            return
        folder = ""
        if address.kind == "node":
            self._check_idle(found[0], address)
            for on, inputs in self._attached(self._looks.get()):
                if inputs.node == address.name:
                    self._place.ask("drop", _file(on.address), on.key)  # the attachment ends with its host
            folder = f"{self._place.folder}/{found[0].key}"
        elif address.kind == "volume":
            self._check_detached(address)
            folder = str(found[1]["path"])
        self._place.ask("drop", _file(address), found[0].key, folder, seconds=ERASE_SECONDS)
        self._looks.changed()

    def _attached(self, seen: Snapshot) -> list[tuple[Owned, AttachmentInputs]]:
        """The attachments of this owner."""
        mine = [f for f, _ in seen.things if f.address.kind == "attachment" and self._mine(f)]
        return [(found, inputs_of("attachment", found.inputs)) for found in mine]

    def _check_detached(self, volume: Address) -> None:
        for found, inputs in self._attached(self._looks.get()):
            if inputs.volume == volume.name:
                summary, hint = f"{volume} is attached: {found.address}", "detach it first"
                raise PermanentError(PermanentKind.CONFLICT, summary, about=str(volume), hint=hint)

    def _check_idle(self, found: Owned, address: Address) -> None:
        seen = self._looks.get()
        mine = [a for a in seen.attempts.values() if a.node == found.key]
        busy = sorted(a.name for a in mine if not seen.status(a).state.ended)
        if busy:
            summary = f"{address} has running ranks: {', '.join(busy)}"
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(address), hint=RUNNING)

    @guarded
    def tidy(self, node: Record, oldest: Mapping[str, int]) -> None:
        """See `provider.Tidies`."""
        seen = self._looks.get(fresh=True)
        old = [
            a.name
            for a in seen.attempts.values()
            if a.node == key_at(node) and seen.status(a).state.ended and jobs.is_before(a.name, oldest)
        ]
        if old:
            self._place.ask("tidy", key_at(node), *sorted(old), seconds=ERASE_SECONDS)
            self._looks.changed()

    # -------------------------------------------------------------------------------------- nodes

    @guarded
    def readiness(self, nodes: Sequence[Record]) -> Mapping[str, Readiness]:
        """See the port. Slurm decides: one look for any number of nodes."""
        seen = self._looks.get()
        return {r.address.name: readiness(seen, r) for r in nodes}

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
        """See the port. Without a gate, each rank is a job of its own."""
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
        seen = self._looks.get(fresh=True)
        found = seen.attempts.get((key_at(node), attempt))
        if found is None:
            raise RunnerError("failed", f"{attempt} was prepared and is not there")
        return seen.status(found)

    @guarded
    def reserve(self, gang: Gang) -> None:
        """See `provider.Gangs`: one job for the whole gang, on the nodes of its seats."""
        self._reserve(gang.seats, gang.task)

    def _reserve(self, seats: Sequence[Seat], task: str) -> None:
        found = jobs.attempts_of(self._place.ask("seats", *(f"{key_at(s.node)}/{s.attempt}" for s in seats)))
        if all(a.ended is not None for a in found):
            return
        job = jobs.job_of(task, seats, found)
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
        """See `provider.Gangs`, by `sbatch --test-only`."""
        needs = [jobs.need_of(node, share, seconds) for node, share in ranks]
        options = jobs.options_of(task, ranks[0][0], needs)
        return jobs.expected_in(self._place.ask("expect", *options).decode(errors="replace"))

    @guarded
    def release(
        self, node: Record, attempts: Sequence[str], peers: Sequence[str] = ()
    ) -> Mapping[str, RankStatus | None]:
        """See `provider.Gates`. Ranks without a reserved gang become jobs of their own."""
        del peers  # the site's MPI uses Slurm's own addresses
        seen, key = self._looks.get(fresh=True), key_at(node)
        for name in attempts:
            found = seen.attempts.get((key, name))
            if found is not None and not found.job and not seen.status(found).state.ended:
                self._reserve((Seat(node=node, attempt=name),), jobs.task_of(name))
        self._open(key, attempts)
        return self.poll(node, attempts)

    def _open(self, key: str, attempts: Sequence[str]) -> None:
        if attempts:
            seen = self._looks.get()
            found = (seen.attempts.get((key, name)) for name in attempts)
            waits = any(a is not None and seen.is_queued(a) for a in found)
            self._place.ask("open", key, "0" if waits else str(self._place.start_seconds), *attempts)
        self._looks.changed()

    def peers(self, node: Record, attempts: Sequence[str]) -> Mapping[str, str]:
        """See `provider.Gates`: none."""
        del node, attempts
        return {}

    @guarded
    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        """See the port. All nodes share one look."""
        seen, key = self._looks.get(), key_at(node)
        found = {name: seen.attempts.get((key, name)) for name in attempts}
        return {name: seen.status(a) if a else None for name, a in found.items()}

    @guarded
    def attempts(self, node: Record) -> Mapping[str, RankStatus]:
        """See `provider.Tells`."""
        seen = self._looks.get()
        return {a.name: seen.status(a) for a in seen.attempts.values() if a.node == key_at(node)}

    @guarded
    def stop(self, node: Record, attempt: str, grace_seconds: int) -> RankStatus | None:
        """See the port."""
        seconds = grace_seconds + 2 * _SPARE_SECONDS
        self._place.ask("stop", key_at(node), attempt, str(grace_seconds), seconds=seconds)
        self._looks.changed()
        return self.poll(node, [attempt])[attempt]

    @guarded
    def change_limit(self, node: Record, attempt: str, seconds: int | None) -> None:
        """See the port. `adjust` sees to the job's own limit."""
        self._place.ask("limit", key_at(node), attempt, "off" if seconds is None else str(seconds))

    @guarded
    def adjust(self, node: Record, attempt: str, terms: Terms) -> None:
        """See `provider.Adjusts`. Slurm ends what its nodes lose, so no rank ends itself.

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
        """See the port."""
        answer = self._place.ask("tail", key_at(node), attempt, str(offset), str(limit))
        return counted(b"FLEETFORM-LOG ", answer, f"the log of {attempt}")

    @guarded
    def log_ends(self, node: Record, attempts: Sequence[str]) -> Mapping[str, LogEnd]:
        """See `provider.LogEnds`."""
        answer = self._place.ask("ends", key_at(node), *attempts).decode(errors="replace")
        body = answer.partition("FLEETFORM-LOGS\n")[2].partition("FLEETFORM-END")[0]
        found = [line.split() for line in body.splitlines()]
        return {name: LogEnd(size=int(size), quiet=float(quiet)) for name, size, quiet in found}

    @guarded
    def terminal(
        self, node: Record, attempt: str | None, command: Sequence[str], *, tty: bool
    ) -> AbstractContextManager[Terminal]:
        """See `provider.Terminals`: a step in the rank's job."""
        if attempt is None:
            summary = f"{node.address} is Slurm's: it allows logins only inside of a job"
            hint = "name a task that runs there: `fleetform exec TASK`"
            raise PermanentError(PermanentKind.INVALID, summary, about=str(node.address), hint=hint)
        found = self._looks.get(fresh=True).attempts.get((key_at(node), attempt))
        number = found.step.partition(".")[0] if found else ""
        if not found or not number.isdecimal():
            summary = f"{attempt} does not run"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about=attempt)
        inside = beside(f"{self._place.folder}/{key_at(node)}/{key_at(node)}", attempt, command)
        step = (f"--jobid={number}", f"--nodelist={found.host}", "--nodes=1", "--ntasks=1", "--overlap")
        words = ("srun", *step, "--gres=none", "--mpi=none", "--quiet", *(("--pty",) if tty else ()), *inside)
        if isinstance(self._place.login, SshTransport):
            return terminal(self._place.login.host, command_line(words), tty=tty)
        return nullcontext(Terminal(argv=words))


def _text(found: Owned, outputs: Mapping[str, Any]) -> bytes:
    return f"{found.key}\n{found.json(outputs=dict(outputs))}\n".encode()


def _file(address: Address) -> str:
    return f"{address.kind}.{address.name}"
