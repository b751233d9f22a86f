"""The options and arguments that several commands share, the values that they take, and the nodes, tasks and
ranks that a command line names, looked up in the state.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from declarative.cli import completion
from declarative.cli.errors import Failed
from declarative.cli.output import say, say_late
from declarative.converge.project import CallerPermissions, ProjectSession
from declarative.converge.state_access import of_state
from declarative.model.diagnostic import InvalidError, failed, has_errors
from declarative.model.text import and_more, suggest
from declarative.render.text import is_terminal

if TYPE_CHECKING:
    from declarative.model.resource import Desired
    from declarative.model.state import Record, State

F = TypeVar("F", bound=Callable[..., Any])


def examples(*lines: str) -> str:
    """Lines to copy, as the epilog of a command's help."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines)))


class Seconds(click.ParamType[float]):
    """`90`, `2.5` or `10m`, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from declarative.model.schema import BadValueError
        from declarative.model.spec.values import Duration

        if re.fullmatch(r"\d{1,9}(\.\d+)?", str(value)):
            return float(value)
        seconds = None
        with contextlib.suppress(BadValueError):
            seconds = Duration.parse(value).seconds
        if seconds is None:
            self.fail(f"`{value}` is not a duration; write seconds, or `30s`, `10m`", param, ctx)
        return float(seconds)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, and nothing else.")
offline_option = click.option("--offline", is_flag=True, help="Contact nothing: safe on a stranger's YAML.")
lock_option = click.option(
    "--lock-timeout",
    metavar="DURATION",
    type=Seconds(),
    help="How long to wait for another command that writes (`90`, `10m`); default 0.",
)
approve_option = click.option("--auto-approve", is_flag=True, help="Do not ask.")
replace_option = click.option(
    "--replace",
    "requested",
    metavar="ADDRESS",
    multiple=True,
    shell_complete=completion.replaceable,
    help="Although nothing changed, run `task/NAME` again, or make `node/NAME` anew with all tasks on it, or "
    "`volume/NAME`, which is empty then.",
)


def all_of(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of the help."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def part_options(command: F, *, target: str = "what it needs", exclude: str = "what depends on it") -> F:
    """`--target` and `--exclude`, and what goes with a target and is left out with what is excluded."""

    def option(name: str, meaning: str) -> Callable[[F], F]:
        return click.option(
            f"--{name}",
            f"{name}s",
            metavar="ADDRESS",
            multiple=True,
            shell_complete=completion.recorded,
            help=f"{meaning}: `task/train`, `fleet/gpu`, `node/gpu-0`, `volume/data`; `*` is a wildcard.",
        )

    options = all_of(
        option("target", f"Only this, with {target}"), option("exclude", f"Leave this out, and {exclude}")
    )
    return options(command)


reuse_option = click.option(
    "--reuse",
    is_flag=True,
    help="Launch nothing for tasks, as if each had `creation_policy: reuse`.",
)
unplaced_option = click.option(
    "--allow-unplaced/--no-allow-unplaced",
    default=None,
    help="Go on without the tasks that have no place, or do nothing; default: the project's "
    "`allow_unplaced`.",
)
new_state_option = click.option(
    "--new-state",
    is_flag=True,
    help="The state is meant to be empty, although another one has made things of this project.",
)
effort_option = click.option(
    "--effort",
    metavar="N",
    type=click.IntRange(min=1, max=1000),
    default=1,
    help="Look about N times as long for the cheapest launches, and for how cheap they could be.",
)
planning_options = all_of(
    part_options,
    click.option(
        "--refresh-only",
        is_flag=True,
        help="Only record what changed outside of fleetform: act neither on that nor on the declaration.",
    ),
    replace_option,
    reuse_option,
    effort_option,
)
"""What `plan` and `apply` take alike."""
work_option = click.option(
    "--max-work",
    metavar="N",
    type=click.IntRange(min=1),
    help="Refuse a plan of more units of work, each about 1 KiB and 40 microseconds; `plan --offline` and "
    "`explain --offline` take 250000 unless told.",
)
rank_option = click.option("--rank", type=click.IntRange(min=0), help="The same as TASK/RANK.")
ranks_argument = click.argument("target", metavar="TASK[/RANK]", shell_complete=completion.ranks)
words_argument = click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)


def no_pager_option(result: str) -> Callable[[F], F]:
    """`result` is what the command prints."""
    return click.option(
        "--no-pager", is_flag=True, help=f"Print a long {result} as it is, also on a terminal."
    )


apply_options = all_of(
    click.option(
        "--parallelism",
        type=click.IntRange(1, 256),
        default=8,
        show_default=True,
        help="How many actions at once.",
    ),
    click.option(
        "--accept-vanished",
        is_flag=True,
        help="Go on although several things of one backend are gone at once.",
    ),
)
allow_options = all_of(
    click.option(
        "--allow-variable",
        "allowed_variables",
        metavar="NAME",
        multiple=True,
        envvar="FLEETFORM_ALLOW_VARIABLE",
        help="Let backends use this variable as a credential, besides those of their own tools.",
    ),
    click.option(
        "--allow-path",
        "paths",
        metavar="PATH",
        multiple=True,
        envvar="FLEETFORM_ALLOW_PATH",
        type=click.Path(),
        help="Let ssh's files lie there too, besides the project and ~/.ssh.",
    ),
    click.option(
        "--allow-commands",
        "commands",
        is_flag=True,
        envvar="FLEETFORM_ALLOW_COMMANDS",
        help="Let the project's `ssh_config` run commands and read other files.",
    ),
)
"""The user's permissions for the project, besides the operator's policy."""
project_options = all_of(
    click.option("--var", "variables", metavar="NAME=VALUE", multiple=True, help="Set a variable."),
    click.option(
        "--var-file",
        "var_files",
        type=click.Path(exists=True, dir_okay=False),
        multiple=True,
        help="A YAML file with variables.",
    ),
    click.option(
        "--state",
        "state_url",
        metavar="URL",
        envvar="FLEETFORM_STATE",
        help="Where the state is kept; or, to look into it, a file that `state pull` printed.",
    ),
)


def confirm(question: str, *, approved: bool, doing: str, look: str, as_json: bool = False) -> None:
    """Ask at the terminal, unless `--auto-approve` did that; `InvalidError` without consent.

    `look` is what the hint advises before one approves.
    """
    if approved:
        return
    if as_json or not is_terminal(sys.stdin) or not is_terminal(sys.stderr):
        closed = "stderr" if is_terminal(sys.stdin) else "stdin"
        why = "`--json` is for programs" if as_json else f"{closed} is not a terminal"
        summary = f"{why}, so this command cannot ask for approval"
        raise failed("not-approved", summary, f"{look}, then add `--auto-approve`")
    sys.stderr.write(f"{question}Only `yes` is accepted: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        sys.stderr.write("\n")
    if answer.strip() != "yes":
        raise failed("declined", f"{doing} was declined: nothing was done")


def find_node(state: State, target: str) -> Record:
    """The node that `gpu-0` or `node/gpu-0` names; `InvalidError` if there is none."""
    name = target.removeprefix("node/")
    node = state.get("node", name)
    if node is None:
        known = [r.address.name for r in state.of("node")]
        few = f"nodes: {', '.join(known[:8])}{' …' if len(known) > 8 else ''}"
        hint = suggest(name, known) or (few if known else "run `fleetform apply` first")
        task = name.removeprefix("task/")
        if ranks_of(state, task):
            hint = f"`fleetform exec {task}/0` is for a rank of a task; {few}"
        raise failed("unknown-node", f"there is no node `{name}`", hint)
    return node


def parse_target(text: str, rank: int | None = None) -> tuple[str, int | None]:
    """`train`, `train/0`, `task/train` or `rank/train-0` as a task and a rank."""
    if text.startswith("task/"):
        text = text.removeprefix("task/")
    elif text.startswith("rank/"):
        task, _, number = text.removeprefix("rank/").rpartition("-")
        text = f"{task}/{number}"
    task, slash, number = text.partition("/")
    if not slash:
        return task, rank
    if task == "node" and not number.isdecimal():
        raise failed("usage", f"`{text}` is not a task", f"on a node: `fleetform ssh {number} -- COMMAND`")
    if not number.isdecimal():
        raise failed("usage", f"`{number}` is not a rank", f"write `{task}/0`")
    return task, int(number)


def ranks_of(state: State, task: str) -> list[Record]:
    """The recorded ranks of a task, by rank."""
    records = [r for r in state.of("rank") if r.rank.task == task]
    return sorted(records, key=lambda r: r.rank.rank)


def find_ranks(state: State, task: str, rank: int | None) -> list[Record]:
    """The ranks of a task, or the one; `InvalidError` where the task has not run, or has no such rank."""
    from declarative.model.state import never_ran

    records = ranks_of(state, task)
    if not records:
        known = sorted({r.rank.task for r in state.of("rank")})
        ran = f"tasks that have run: {', '.join(known)}" if known else "run `fleetform apply` first"
        raise failed("not-run", f"task/{task} has not run", suggest(task, known) or ran)
    if all(map(never_ran, records)):
        hint = f"`fleetform apply --replace task/{task}` starts it"
        raise failed("not-run", f"task/{task} was stopped before it ran", hint)
    chosen = [r for r in records if rank in (None, r.rank.rank)]
    if not chosen:
        hint = f"its ranks are 0 to {len(records) - 1}" if records[1:] else "its only rank is 0"
        raise failed("unknown-rank", f"task/{task} has no rank {rank}", hint)
    return chosen


def is_or_has(state: str) -> str:
    """A state of a rank or task as the end of a sentence."""
    return f"{'has' if state in ('succeeded', 'failed') else 'is'} {state}"


def name_tasks(tasks: Iterable[str]) -> str:
    """The first five by name, and how many more there are: there may be thousands."""
    return and_more((f"task/{task}" for task in tasks), 5)


def node_of(record: Record, state: State) -> Record | None:
    """The recorded node that a rank runs on, or ran on."""
    reservation = state.get("reservation", record.address.name)
    name = record.node_name or (reservation.reservation.node if reservation else None)
    return state.get("node", str(name)) if name else None


def observed(session: ProjectSession, desired: Desired | None, state: State) -> State:
    """The state as the backends show it now. Nothing is recorded."""
    from declarative.apply.backend_look import look
    from declarative.apply.parallel import HURRIED
    from declarative.planner.inventory import observed_state

    backends = session.backends(desired, state)
    return observed_state(state, look(state, backends, offers=False, patience=HURRIED).inventory)


def project_command(command: F, *, short_names: tuple[str, ...] = ("-f",)) -> F:
    """Give a command the options of the project and the state, and a `ProjectSession` first. Errors of the
    state become messages.

    `short_names` is what `--file` is called too.
    """

    @functools.wraps(command)
    @click.pass_context
    def run(ctx: click.Context, /, **options: Any) -> Any:
        from declarative import spans

        session = ProjectSession(
            Path(ctx.obj["directory"]),
            options.pop("state_url"),
            options.pop("variables"),
            options.pop("var_files"),
            options.pop("files"),
            CallerPermissions(
                options.pop("commands"), options.pop("paths"), options.pop("allowed_variables")
            ),
            say_late,
        )
        ctx.call_on_close(session.close)
        if spans.is_traced(os.environ):
            try:
                ctx.call_on_close(spans.trace())
            except ImportError:
                sys.stderr.write("no traces: install fleetform with the extra `opentelemetry`\n")
        try:
            return ctx.invoke(state_errors(command), session, **options)
        except InvalidError as error:
            if options.get("as_json") or getattr(options.get("reports"), "printed", None) == "json":
                raise Failed(error, ctx.info_name) from None
            raise

    file_option = click.option(
        *short_names,
        "--file",
        "files",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        multiple=True,
        help="Read this file of the project too: a hidden one, or one in a folder.",
    )
    return allow_options(file_option(project_options(cast("F", run))))


def state_errors(function: F) -> F:
    """Turn errors of the state into messages, in a function whose first argument is a session."""

    @functools.wraps(function)
    def run(session: ProjectSession, *args: Any, **kwargs: Any) -> Any:
        from declarative.store import StateError

        try:
            return function(session, *args, **kwargs)
        except StateError as error:
            raise of_state(error, session.directory) from None

    return cast("F", run)


def check_refresh(refresh_only: bool, others: Iterable[object]) -> None:
    """`InvalidError` if one of the `others` is given beside `--refresh-only`: they change what is done."""
    if refresh_only and any(others):
        hint = "leave the other options out, or `--refresh-only`"
        raise failed("usage", "`--refresh-only` does nothing but to look and to record", hint)


def allowed_work(asked: int | None, *, offline: bool) -> int | None:
    """The units that a plan may take. Offline it may be a stranger's."""
    from declarative.planner.limits import OFFLINE_WORK

    return OFFLINE_WORK if asked is None and offline else asked


def declared(session: ProjectSession, *, warn: bool = True, some: bool = False) -> Desired | None:
    """See `ProjectSession.declared`; with `warn`, errors of the project are shown as warnings."""
    desired = session.declared(some=some)
    if warn:
        say(session.warnings)
        if has_errors(session.warnings):
            sys.stderr.write(
                "The project has errors: this command goes on without its documents, from the state.\n"
            )
    return desired
