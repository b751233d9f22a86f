"""`fleetform logs`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from declarative.cli import complete
from declarative.cli.failure import Failed, failed
from declarative.cli.log_lines import Printer
from declarative.cli.log_reading import Follower, Source, begin, dump
from declarative.cli.session import Seconds, Session, now, project_command, state_errors

if TYPE_CHECKING:
    from declarative.resource import Desired
    from declarative.state import Record, State

AGAIN = "is to run again, as its `retry` says: `apply --wait` does that, or the next `fleetform apply`"


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


@click.command("logs")
@click.argument("target", metavar="TASK[/RANK]", shell_complete=complete.ranks)
@click.option("-f", "--follow", is_flag=True, help="Go on until the ranks have ended.")
@click.option("--rank", type=click.IntRange(min=0), help="The same as TASK/RANK.")
@click.option(
    "-n", "--tail", metavar="LINES", type=click.IntRange(min=0), help="Of each rank, only the last lines."
)
@click.option(
    "--since",
    metavar="DURATION",
    type=Seconds(),
    help="Leave out ranks that have printed nothing for so long (`90`, `10m`).",
)
@click.option("--raw", is_flag=True, help="Print everything as it is: colours, and what moves the cursor.")
@partial(project_command, short=())  # `-f` follows
@state_errors
def command(session: Session, target: str, rank: int | None, follow: bool, raw: bool, **options: Any) -> int:
    """Print the output of a task's ranks, one after the other; with --follow, as it comes. With several
    ranks, each line begins with its rank.

    On a terminal, control characters are shown and not obeyed; anywhere, what a CI agent would take for its
    commands (`##[`, `::` at the start of a line) is broken. --raw leaves both as they are.

    Lines carry no times: --since leaves out ranks that have been quiet for so long, by their hosts' clocks,
    and prints the others from their beginning, or with --tail their last lines. With --follow, quiet ranks
    are shown from where they go on.

    --follow waits for a host that does not answer, and goes on where it was: nothing is left out, nothing
    comes twice. When a rank is started anew while others run, it goes on with that attempt; once all have
    ended it ends, and says if the task is to run again. Exits 1 if the output of a rank cannot be read.
    """
    loaded = session.load(required=False)
    session.warn()
    desired = loaded.desired if loaded else None
    task, wanted = parse_target(target, rank)
    store = session.state.open(desired)
    state = known_state(session, desired, store.read())
    told_ranks(state, task, ranks_of(state, task), wanted)
    backends = session.backends(desired, state)

    def chosen(state: State) -> list[Record]:
        return [r for r in ranks_of(state, task) if wanted in (None, r.rank.rank)]

    def look() -> tuple[list[Record], State]:
        state = store.read()
        return chosen(state), state

    records = chosen(state)
    sources = [Source(record, _node(record, state), backends) for record in records]
    printer = Printer(sys.stdout.buffer, prefixed=len(records) > 1, terminal=sys.stdout.isatty(), raw=raw)
    sources, faults = begin(sources, **options, keep=follow)
    if follow:

        def source(record: Record, state: State) -> Source | None:
            node = _found(record, state)
            return Source(record, node, session.backends(desired, state)) if node else None

        faults += Follower(look, source, printer).follow(sources)
        _say_retry(session, desired, store.read(), task)
    else:
        faults += dump(sources, printer)
    sys.stdout.flush()
    if faults:
        raise Failed(tuple(faults))
    return 0


def known_state(session: Session, desired: Desired | None, state: State) -> State:
    """What is recorded and, where a command was cut short, what can be seen to have come of it."""
    from declarative.apply.answers import HURRIED
    from declarative.apply.inventory import look
    from declarative.plan.observe import effective

    if not state.intents:
        return state
    return effective(
        state, look(state, session.backends(desired, state), offers=False, patience=HURRIED).inventory
    )


def _say_retry(session: Session, desired: Desired | None, state: State, task: str) -> None:
    """On stderr, that a task which has ended is to run again: who waits for its end shall know."""
    from declarative.apply.answers import HURRIED
    from declarative.apply.inventory import look
    from declarative.plan.observe import effective
    from declarative.plan.retries import again

    want = desired.tasks.get(task) if desired else None
    if want is None or not want.spec.retry.on_events:
        return
    state = effective(
        state, look(state, session.backends(desired, state), offers=False, patience=HURRIED).inventory
    )
    if again(want, ranks_of(state, task), state, now()):
        sys.stderr.write(f"task/{task} {AGAIN}\n")


def told_ranks(state: State, task: str, records: list[Record], wanted: int | None) -> None:
    """`Failed` where a task has not run, or has no such rank."""
    if not records:
        raise failed("not-run", f"task/{task} has not run", _known(state, task))
    if wanted is not None and not any(r.rank.rank == wanted for r in records):
        raise failed(
            "unknown-rank", f"task/{task} has no rank {wanted}", f"its ranks are 0 to {len(records) - 1}"
        )


def ranks_of(state: State, task: str) -> list[Record]:
    """The recorded ranks of a task, by rank."""
    found = [r for r in state.of("rank") if r.rank.task == task]
    return sorted(found, key=lambda r: r.rank.rank)


def _known(state: State, task: str) -> str:
    from declarative.diagnostic import suggest

    known = sorted({r.rank.task for r in state.of("rank")})
    near = suggest(task, known)
    return near or (f"tasks that have run: {', '.join(known)}" if known else "run `fleetform apply` first")


def _node(record: Record, state: State) -> Record:
    """The node that has a rank's output."""
    node = _found(record, state)
    if node is None:
        raise failed("gone", f"the node of {record.address} is gone, and its output with it")
    return node


def _found(record: Record, state: State) -> Record | None:
    reservation = state.get("reservation", record.address.name)
    name = record.outputs.get("node") or (reservation.reservation.node if reservation else None)
    return state.get("node", str(name)) if name else None
