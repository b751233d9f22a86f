"""`fleetform logs`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from declarative.cli import complete
from declarative.cli.session import Session, failed, project_command, state_errors

if TYPE_CHECKING:
    from declarative.apply import Backends
    from declarative.resource import Desired
    from declarative.state import Record, State

PERIOD = 0.3


def parse_target(text: str, rank: int | None) -> tuple[str, int | None]:
    """`train`, `train/0`, `task/train` or `rank/train-0` as a task and a rank."""
    if text.startswith("task/"):
        text = text.removeprefix("task/")
    elif text.startswith("rank/"):
        task, _, number = text.removeprefix("rank/").rpartition("-")
        text = f"{task}/{number}"
    task, slash, number = text.partition("/")
    if not slash:
        return task, rank
    if not number.isdecimal():
        raise failed("usage", f"`{number}` is not a rank", f"write `{task}/0`")
    return task, int(number)


@click.command("logs", short_help="what a task's ranks have printed")
@click.argument("target", metavar="TASK[/RANK]", shell_complete=complete.ranks)
@click.option("-f", "--follow", is_flag=True, help="Go on until the ranks have ended.")
@click.option("--rank", type=click.IntRange(min=0), help="The same as TASK/RANK.")
@project_command
@state_errors
def command(session: Session, target: str, follow: bool, rank: int | None) -> int:
    """Print the output of a task's ranks. With several ranks, each line begins with its rank."""
    loaded = session.load(required=False)
    session.warn()
    desired = loaded.desired if loaded else None
    task, wanted = parse_target(target, rank)
    store = session.store(desired)
    state = known_state(session, desired, store.read())
    records = ranks_of(state, task)
    if not records:
        raise failed("not-run", f"task/{task} has not run", _known(state, task))
    if wanted is not None and not any(r.inputs["rank"] == wanted for r in records):
        raise failed(
            "unknown-rank", f"task/{task} has no rank {wanted}", f"its ranks are 0 to {len(records) - 1}"
        )
    chosen = [r for r in records if wanted is None or r.inputs["rank"] == wanted]
    readers = [Reader(r, state, session.backends(desired, state), len(chosen) > 1) for r in chosen]
    if not follow:
        for reader in readers:
            reader.drain()
            reader.close()
        sys.stdout.flush()
        return 0
    _follow(readers, store.read)
    return 0


def known_state(session: Session, desired: Desired | None, state: State) -> State:
    """What is recorded and, where a command was cut short, what can be seen to have come of it."""
    from declarative.apply import look
    from declarative.plan import effective

    if not state.intents:
        return state
    return effective(state, look(state, session.backends(desired, state), offers=False).inventory)


def _follow(readers: list[Reader], read: Callable[[], State]) -> None:
    """Until every rank has ended and all of its output was printed."""
    while True:
        state = read()
        ended = all(reader.has_ended(state) for reader in readers)
        printed = [reader.drain() for reader in readers]
        sys.stdout.flush()
        if ended:
            for reader in readers:  # what came between the last look and its end
                reader.drain()
                reader.close()
            sys.stdout.flush()
            return
        if not any(printed):
            time.sleep(PERIOD)


def ranks_of(state: State, task: str) -> list[Record]:
    """The recorded ranks of a task, by rank."""
    found = [r for r in state.of("rank") if r.inputs["task"] == task]
    return sorted(found, key=lambda r: int(r.inputs["rank"]))


def _known(state: State, task: str) -> str:
    from declarative.diagnostic import suggest

    known = sorted({str(r.inputs["task"]) for r in state.of("rank")})
    near = suggest(task, known)
    return near or (f"tasks that have run: {', '.join(known)}" if known else "run `fleetform apply` first")


class Reader:
    """The output of one rank, read on from where it was."""

    def __init__(self, record: Record, state: State, backends: Backends, prefixed: bool) -> None:
        from declarative.state import attempt_id

        self.record = record
        self.backends = backends
        self.attempt = attempt_id(record)
        self.offset = 0
        self.rest = b""
        self.prefix = f"{record.inputs['rank']} | ".encode() if prefixed else b""
        name = record.outputs.get("node") or self._node_of(state)
        self.node = state.get("node", str(name)) if name else None
        if self.node is None:
            raise failed("gone", f"the node of {record.address} is gone, and its output with it")

    def _node_of(self, state: State) -> str | None:
        reservation = state.get("reservation", self.record.address.name)
        return str(reservation.inputs["node"]) if reservation else None

    def has_ended(self, state: State) -> bool:
        """Whether this attempt has ended; asked of its host, unless that is recorded."""
        from declarative.provider import ProviderError

        record = state.get("rank", self.record.address.name)
        recorded = state.ranks.get(self.record.address.name)
        if record and record.generation == self.record.generation and recorded and recorded.state.ended:
            return True
        assert self.node is not None
        try:
            status = self.backends.get(self.node.backend).poll(self.node, [self.attempt])[self.attempt]
        except ProviderError as error:
            raise failed("backend", error.summary, error.hint) from None
        return status is None or status.state.ended

    def drain(self) -> bool:
        """Print all that is there by now; whether there was anything."""
        from declarative.provider import ProviderError

        assert self.node is not None
        printed = False
        while True:
            try:
                data = self.backends.get(self.node.backend).read_log(self.node, self.attempt, self.offset)
            except ProviderError as error:
                raise failed("backend", error.summary, error.hint) from None
            if not data:
                return printed
            printed = True
            self.offset += len(data)
            lines = (self.rest + data).split(b"\n")
            self.rest = lines.pop()
            self._write(lines)

    def close(self) -> None:
        """Print a last line that has no end."""
        if self.rest:
            self._write([self.rest])
            self.rest = b""

    def _write(self, lines: list[bytes]) -> None:
        if lines:
            sys.stdout.buffer.write(b"".join(self.prefix + line + b"\n" for line in lines))
            sys.stdout.buffer.flush()
