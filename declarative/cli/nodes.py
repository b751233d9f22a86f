"""Commands on one node or task: `fleetform drain`, `undrain` and `stop` by the user's word, `ssh` and `exec`
with our stdin, stdout and stderr.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from declarative.cli import completion
from declarative.cli.options import (
    declared,
    examples,
    find_node,
    find_ranks,
    is_or_has,
    lock_option,
    node_of,
    observed,
    parse_target,
    project_command,
    rank_option,
    ranks_argument,
    words_argument,
)
from declarative.cli.output import emit_text, say
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import InvalidError, failed
from declarative.model.record import struct
from declarative.model.text import and_more
from declarative.render.text import is_terminal

if TYPE_CHECKING:
    from declarative.apply.backends import Backends
    from declarative.model.resource import TaskWant
    from declarative.model.state import Address, Record, State
    from declarative.model.status import Silence
    from declarative.provider.optional import Terminal


@click.command("ssh", epilog=examples("fleetform ssh gpu-0", "fleetform ssh gpu-0 -- nvidia-smi"))
@click.argument("target", metavar="NODE", shell_complete=completion.nodes)
@words_argument
@project_command
def ssh_command(session: ProjectSession, target: str, words: tuple[str, ...]) -> int:
    """Open a shell on a node, or run a command there: as ssh does, the words are put together for a shell.

    A host is reached by the system's `ssh`, with the port, user, identity file, way and host keys that are
    declared, and `~/.ssh/config` for the rest; keys that are not known are refused. A node of the backend
    `local` is its folder. The exit code is the command's; 125 if the node could not be reached, or the
    connection was lost.
    """
    desired = declared(session)
    state = session.state.open(desired).read()
    node = find_node(state, target)
    with terminal_on(session.backends(desired, state), node, None, words) as terminal:
        return run_in(terminal, node)


@click.command(
    "exec", epilog=examples("fleetform exec train/0", "fleetform exec train/0 -- py-spy dump --pid 4242")
)
@ranks_argument
@words_argument
@rank_option
@project_command
def exec_command(session: ProjectSession, target: str, rank: int | None, words: tuple[str, ...]) -> int:
    """Run a command on a rank's node as if the rank had started it: in its folder, with its environment, on
    its CPUs, among its volumes. Without a command, a shell. It ends when the rank ends.

    The words are run as they are; for pipes and the like: `-- sh -c '…'`. The environment is read from the
    rank's processes, secrets included. The exit code is the command's; 125 if it was not run there, or the
    connection was lost. On ssh hosts it is the system's `ssh` that connects.
    """
    from declarative.model.state import attempt_id
    from declarative.provider import ProviderError

    desired = declared(session)
    task, only_rank = parse_target(target, rank)
    state = session.state.open(desired).read()
    state = observed(session, desired, state) if state.intents else state
    records = find_ranks(state, task, only_rank)
    if len(records) > 1:
        hint = f"write `{task}/0`; its ranks are 0 to {len(records) - 1}"
        raise failed("usage", f"task/{task} has {len(records)} ranks", hint)
    record = records[0]
    backends = session.backends(desired, state)
    recorded = state.ranks.get(record.address.name)
    node = state.node_of_rank(record.address.name)
    if node is None:
        node = node_of(record, state)
        if node is None or (recorded and recorded.state.ended):
            raise _ended(record, recorded.state.value if recorded else "ended")
    attempt = attempt_id(record)
    try:
        status = backends.get(node.backend).poll(node, [attempt])[attempt]
    except ProviderError as error:
        raise failed("backend", error.summary, error.hint) from None
    if status is None or status.state.ended:
        raise _ended(record, status.state.value if status else "not started")
    session.state.note(desired, "exec", record.address)
    with terminal_on(backends, node, attempt, words) as terminal:
        return run_in(terminal, node)


def _ended(record: Record, state: str) -> InvalidError:
    task, rank = record.rank.task, record.rank.rank
    node = record.node_name
    hint = f"what it printed: `fleetform logs {task}/{rank}`"
    if node:
        hint += f"; on its node: `fleetform ssh {node}`"
    return failed("not-running", f"{record.address} does not run: it {is_or_has(state)}", hint)


NOT_RUN = 125
"""The exit code where the connection was lost, or the command was not run at its other end, as docker has it.
An error before that has the exit code of every command: 1."""
THEIRS = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to the command as well: it answers them."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
"""Requests to end, which only this process gets: it passes them on, and waits for the command's end."""


@contextlib.contextmanager
def terminal_on(
    backends: Backends, node: Record, attempt: str | None, words: Sequence[str]
) -> Iterator[Terminal]:
    """A terminal on a node; with an attempt, beside the rank that runs it."""
    from declarative.provider import ProviderError

    tty = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    with contextlib.ExitStack() as stack:
        try:
            opened = backends.get(node.backend).terminal(node, attempt, words, tty=tty)
            terminal = stack.enter_context(opened)
        except ProviderError as error:
            raise failed("backend", error.summary, error.hint) from None
        yield terminal


def run_in(terminal: Terminal, node: Record) -> int:
    """Run it to its end; its exit code, which is 128 and the signal's number if it was killed."""
    sys.stdout.flush()
    relay = _SignalRelay()
    # Handled and not ignored: the command would inherit an ignored signal.
    before = {number: signal.signal(number, relay) for number in (*THEIRS, *PASSED_ON)}
    try:
        relay.process = subprocess.Popen(  # noqa: S603  # the user's command, or a provider's way to it
            terminal.argv,
            cwd=terminal.folder,
            env=None if terminal.env is None else dict(terminal.env),
        )
        code = relay.process.wait()
    except OSError as error:
        summary = f"cannot run `{terminal.argv[0]}`: {error.strerror or error}"
        raise failed("backend", summary, "see that it is installed") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    code = 128 - code if code < 0 else code
    fault = terminal.fault(code)
    if fault is not None and relay.number is not None:
        return 128 + relay.number  # it was we who ended it
    if fault is not None:
        hint = f"`fleetform status --refresh` shows what is wrong with the host of {node.address}"
        say(failed("backend", fault, hint).diagnostics)
        return NOT_RUN
    return code


@struct(slots=True)
class _SignalRelay:
    """The last signal, and the command that gets it."""

    process: subprocess.Popen[bytes] | None = None
    number: int | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.number = number
        if number in PASSED_ON and self.process is not None:
            self.process.send_signal(number)


LONGEST = 200
"""Characters of a reason."""

nodes_argument = click.argument(
    "targets", metavar="NODE...", nargs=-1, required=True, shell_complete=completion.nodes
)


def _reason(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    text = " ".join(value.split()) if value else ""
    if len(text) > LONGEST or not text.isprintable():
        hint = f"write one line of {LONGEST} characters at most"
        raise failed("usage", "the reason is not plain text", hint)
    return text or None


reason_option = click.option(
    "--reason",
    metavar="TEXT",
    callback=_reason,
    help="Why; it is recorded and shown, so put no secret in it.",
)


@click.command("drain", epilog=examples('fleetform drain gpu-3 --reason "bad NIC"'))
@nodes_argument
@reason_option
@lock_option
@project_command
def drain_command(session: ProjectSession, targets: tuple[str, ...], **options: Any) -> int:
    """Give nodes no new work. What runs on them goes on; nothing is asked of their backend.

    It holds until `fleetform undrain`, or until the node is made anew (`apply --replace node/NAME`). A fleet
    that shrinks gives up its drained nodes first; until then they count among its nodes. To drain a node once
    more gives it another reason.
    """
    return _set_drained(session, targets, drained=True, **options)


@click.command("undrain", epilog=examples("fleetform undrain gpu-3"))
@nodes_argument
@reason_option
@lock_option
@project_command
def undrain_command(session: ProjectSession, targets: tuple[str, ...], **options: Any) -> int:
    """Give drained nodes work again, from the next apply on."""
    return _set_drained(session, targets, drained=False, **options)


def _set_drained(
    session: ProjectSession,
    targets: tuple[str, ...],
    *,
    drained: bool,
    reason: str | None,
    lock_timeout: float | None,
) -> int:
    from declarative.model.state import drain_of
    from declarative.model.status import Drain
    from declarative.render.output_json import iso

    store = session.state.open(declared(session), write=True, create=False)
    with session.state.lock(store, "drain" if drained else "undrain", lock_timeout) as writer:
        state = writer.state()
        for node in {r.address: r for r in (find_node(state, target) for target in targets)}.values():
            have = drain_of(node)
            if not drained and have is None:
                message = "is not drained"
            elif not drained:
                writer.drain(node.address, None, reason)
                message = f"takes work again; it was {have}"
            elif have and reason in (None, have.reason):
                message = f"is {have}"
            else:
                want = Drain(since=have.since if have else str(iso(time.time())), reason=reason)
                # As they were last seen.
                ranks = sorted(set(state.held_blocks().get(node.address.name, {}).values()))
                going = f"; {and_more(ranks, 5)} {'goes' if len(ranks) == 1 else 'go'} on" if ranks else ""
                writer.drain(node.address, want, reason)
                message = f"takes no new work: {want}{going}"
            emit_text(f"{node.address} {message}\n")
    return 0


@click.command("stop", epilog=examples("fleetform stop train"))
@click.argument("target", metavar="TASK", shell_complete=completion.tasks)
@lock_option
@project_command
def stop_command(session: ProjectSession, target: str, lock_timeout: float | None) -> int:
    """Stop every rank of a task: TERM, then KILL after its `stop_duration`, and give its blocks back.

    It stays stopped until its declaration changes or `apply --replace task/NAME` asks for it, also if it
    waits for a place, for its `schedule` or for its next attempt. What runs of it and is not recorded is
    stopped as well. Exits 4 if a rank could not be stopped: one on a node that does not answer is stopped
    once it does, or is lost with the node after its fleet's `unreachable_duration`.
    """
    from declarative.apply.backend_look import look
    from declarative.apply.orphans import delete_orphans
    from declarative.apply.settle import VanishedError, check_vanished, settle
    from declarative.apply.watch import ranks_of, stop_task
    from declarative.model.state import Address
    from declarative.model.status import RankStatus
    from declarative.render.progress import Progress

    desired = declared(session)
    task, rank = parse_target(target)
    if rank is not None:
        raise failed("usage", "a rank cannot be stopped alone", f"write `fleetform stop {task}`")
    store = session.state.open_if_any(desired)
    with (
        session.state.lock(store, "stop", lock_timeout) as writer,
        Progress(sys.stderr, "plain", 0) as progress,
    ):
        backends = session.backends(desired, writer.state())

        def note(name: str, status: RankStatus) -> None:
            progress.rank(f"rank/{name}", status.state.value, status.cause)

        before = writer.state()
        observation = look(before, backends, offers=False)
        with contextlib.suppress(VanishedError):  # what is there can be stopped; `apply` asks about the rest
            check_vanished(before, observation.inventory)
            settle(writer, backends, observation, session.clock, note, ending=True)
        silent = observation.inventory.silent
        state = writer.state()
        strays = [o for o in observation.orphans if _is_rank_of(o.thing.address, task)]
        # Beside what runs unrecorded, nothing waits: `apply` refuses to start the task a second time.
        want = desired.tasks.get(task) if desired and state.lineage and not strays else None
        if not ranks_of(state, task) and not strays and want is None:
            hint = "`fleetform status` lists the tasks"
            if desired and task in desired.tasks and not state.lineage:
                hint = (
                    "nothing was applied yet, so there is nothing to stop; take the task out of the YAML, "
                    "and the first `fleetform apply` does not start it"
                )
            raise failed("not-run", f"task/{task} has not run", hint)
        writer.log("stop", Address("task", task))
        stop_task(writer, backends, task, session.clock, note, want=want, silent=silent)
        results = delete_orphans(strays, state, backends, progress, threading.Event())
        state = writer.state()
    unstopped = _report_stop(state, task, silent, want, session.clock())
    return 4 if unstopped or any(result.outcome != "done" for result in results) else 0


def _report_stop(
    state: State, task: str, silent: Mapping[str, Silence], want: TaskWant | None, now: float
) -> list[str]:
    """Say what became of the task; the ranks that have not ended, or may not have."""
    from declarative.apply.watch import ranks_of, state_of
    from declarative.model.status import RankState

    names = ranks_of(state, task)
    unstopped = [name for name in names if not state.has_ended(name)]
    for name in unstopped:
        sys.stderr.write(f"{_why_not_stopped(state, task, name, silent, now)}\n")
    asked = [str(i.address) for i in state.intents if i.op == "create" and _is_rank_of(i.address, task)]
    for address in asked:
        why = f"whether {address} started is not known yet, so it is not stopped"
        sys.stderr.write(f"{why}. Once its node answers: `fleetform stop {task}`\n")
    if names:
        how = state_of(state, task)
        restarts = want and how is not RankState.STOPPED and (want.spec.retry.on_events or want.spec.schedule)
        then = ", and does not start again by itself" if restarts else ""
        emit_text(f"task/{task} {is_or_has(how.value)}{then}.\n")
    return [*unstopped, *asked]


def _is_rank_of(address: Address, task: str) -> bool:
    return address.kind == "rank" and address.name.rpartition("-")[0] == task


def _why_not_stopped(state: State, task: str, name: str, silent: Mapping[str, Silence], now: float) -> str:
    """Why a rank could not be stopped, and what to type next."""
    from declarative.model.text import clean
    from declarative.planner.inventory import silence_text

    node = state.node_of_rank(name)
    if node is None:
        return f"rank/{name} could not be stopped: its node is not known (`fleetform status`)"
    silence = silent.get(node.address.name)
    if silence is None:
        readiness = state.readiness.get(node.address.name)
        why = f" ({readiness.reason})" if readiness and readiness.reason else ""
        return clean(
            f"rank/{name} could not be stopped: {node.address} cannot be asked{why}. Once it answers: "
            f"`fleetform stop {task}`"
        )
    why = (
        f"rank/{name} is not stopped yet, and may run: {node.address} {silence_text(silence, now)}. Once "
        f"it answers, the next `fleetform apply` or `fleetform stop {task}` stops it"
    )
    if silence.until is not None:
        return clean(f"{why}; once it is given up, they count it as lost")
    if node.node.host:
        lost = f"take its host out of the YAML, then `fleetform state rm {node.address}`"
    else:
        lost = "end it at its cloud"
    return clean(f"{why}; if it is lost for good, {lost}")
