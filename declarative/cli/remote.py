"""`fleetform ssh` and `exec`: a command on a node that is given our stdin, stdout and stderr, and its end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

import click

from declarative.cli import completion
from declarative.cli.errors import Failed, failed
from declarative.cli.options import examples, rank_option, ranks_argument, words_argument
from declarative.cli.session import Session, project_command
from declarative.cli.targets import find_node, find_ranks, node_of, observed, parse_target
from declarative.render.text import is_terminal

if TYPE_CHECKING:
    from declarative.apply.backends import Backends
    from declarative.model.state import Record, State
    from declarative.provider import Terminal


@click.command("ssh", epilog=examples("fleetform ssh gpu-0", "fleetform ssh gpu-0 -- nvidia-smi"))
@click.argument("target", metavar="NODE", shell_complete=completion.nodes)
@words_argument
@project_command
def ssh_command(session: Session, target: str, words: tuple[str, ...]) -> int:
    """Open a shell on a node, or run a command there: as ssh does, the words are put together for a shell.

    A host is reached by the system's `ssh`, with the port, user, identity file, way and host keys that are
    declared, and `~/.ssh/config` for the rest; keys that are not known are refused. A node of the backend
    `local` is its folder. The exit code is the command's; 125 if the node could not be reached, or the
    connection was lost.
    """
    desired = session.declared(warn=True)
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
def exec_command(session: Session, target: str, rank: int | None, words: tuple[str, ...]) -> int:
    """Run a command on a rank's node as if the rank had started it: in its folder, with its environment, on
    its CPUs, among its volumes. Without a command, a shell. It ends when the rank ends.

    The words are run as they are; for pipes and the like: `-- sh -c '…'`. The environment is read from the
    rank's processes, secrets included. The exit code is the command's; 125 if it was not run there, or the
    connection was lost. On ssh hosts it is the system's `ssh` that connects.
    """
    desired = session.declared(warn=True)
    task, wanted = parse_target(target, rank)
    state = session.state.open(desired).read()
    state = observed(session, desired, state) if state.intents else state
    found = find_ranks(state, task, wanted)
    if len(found) > 1:
        hint = f"write `{task}/0`; its ranks are 0 to {len(found) - 1}"
        raise failed("usage", f"task/{task} has {len(found)} ranks", hint)
    record = found[0]
    backends = session.backends(desired, state)
    node = _node(state, record)
    attempt = _running_attempt(backends, node, record)
    session.state.note(desired, "exec", record.address)
    with terminal_on(backends, node, attempt, words) as terminal:
        return run_in(terminal, node)


def _node(state: State, record: Record) -> Record:
    from declarative.apply.polls import node_of_rank

    node = node_of_rank(state, record.address.name)
    if node is None:
        node = node_of(record, state)
        seen = state.ranks.get(record.address.name)
        if node is None or (seen and seen.state.ended):
            raise _ended(record, seen.state.value if seen else "ended")
    return node


def _running_attempt(backends: Backends, node: Record, record: Record) -> str:
    """The rank's attempt, which runs."""
    from declarative.model.state import attempt_id
    from declarative.provider import ProviderError

    attempt = attempt_id(record)
    try:
        status = backends.get(node.backend).poll(node, [attempt])[attempt]
    except ProviderError as error:
        raise failed("backend", error.summary, error.hint) from None
    if status is None or status.state.ended:
        raise _ended(record, status.state.value if status else "not started")
    return attempt


def _ended(record: Record, state: str) -> Failed:
    task, rank = record.rank.task, record.rank.rank
    hint = f"what it printed: `fleetform logs {task}/{rank}`; on its node: `fleetform ssh NODE`"
    return failed("not-running", f"{record.address} does not run: it is {state}", hint)


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
            found = backends.get(node.backend).terminal(node, attempt, words, tty=tty)
            terminal = stack.enter_context(found)
        except ProviderError as error:
            raise failed("backend", error.summary, error.hint) from None
        yield terminal


def run_in(terminal: Terminal, node: Record) -> int:
    """Run it to its end; its exit code, which is 128 and the signal's number if it was killed."""
    sys.stdout.flush()
    try:
        # Not ignored but heard: what is ignored here, the command would ignore as well.
        with _signals() as heard:
            process = subprocess.Popen(  # noqa: S603  # the user's command, or a provider's way to it
                terminal.argv,
                cwd=terminal.folder,
                env=None if terminal.env is None else dict(terminal.env),
            )
            heard.process = process
            code = process.wait()
    except OSError as error:
        summary = f"cannot run `{terminal.argv[0]}`: {error.strerror or error}"
        raise failed("backend", summary, "see that it is installed") from None
    code = 128 - code if code < 0 else code
    fault = terminal.fault(code)
    if fault is not None and heard.number is not None:
        return 128 + heard.number  # it was we who ended it
    if fault is not None:
        hint = f"`fleetform status --refresh` shows what is wrong with the host of {node.address}"
        failed("backend", fault, hint).show()
        return NOT_RUN
    return code


@dataclass(slots=True)
class _Heard:
    """The last signal that came, and the command that it is for."""

    process: subprocess.Popen[bytes] | None = None
    number: int | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.number = number
        if number in PASSED_ON and self.process is not None:
            self.process.send_signal(number)


@contextlib.contextmanager
def _signals() -> Iterator[_Heard]:
    heard = _Heard()
    before = {number: signal.signal(number, heard) for number in (*THEIRS, *PASSED_ON)}
    try:
        yield heard
    finally:
        for number, old in before.items():
            signal.signal(number, old)
