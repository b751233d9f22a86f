"""What people type who come from other tools, and what to do instead. Read only after a mistake."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

import click

from declarative.cli.failure import Failed
from declarative.cli.session import STREAMING
from declarative.diagnostic import Diagnostic, suggest

STATUS = "write `fleetform status`"
APPLY = "write `fleetform apply`"
DESTROY = "write `fleetform destroy`"
PLAN = "`fleetform plan` looks at what is there each time"
ANEW = "`fleetform apply --replace node/NAME` makes a node anew, `task/NAME` runs a task again"
COMMANDS = {
    "attach": "write `fleetform logs TASK -f`",
    "cordon": "write `fleetform drain NODE --reason …`: what runs on the node goes on",
    "cancel": "write `fleetform stop TASK`",
    "delete": DESTROY,
    "describe": "write `fleetform explain ADDRESS`",
    "down": DESTROY,
    "force-unlock": "write `fleetform state unlock`",
    "graph": "in `fleetform plan --json` each action names what it needs",
    "help": "write `fleetform --help`, or `fleetform COMMAND --help`",
    "kill": "write `fleetform stop TASK`",
    "launch": APPLY,
    "list": STATUS,
    "ls": STATUS,
    "offer": "write `fleetform offers`",
    "output": "write `fleetform status --json`",
    "ps": STATUS,
    "refresh": PLAN,
    "replace": ANEW,
    "run": APPLY,
    "taint": ANEW,
    "uncordon": "write `fleetform undrain NODE`",
    "unlock": "write `fleetform state unlock`",
    "up": APPLY,
    "version": "write `fleetform --version`",
    "workspace": "give each a directory, or a `--state URL`",
}
"""Commands of other tools."""

STATE = {
    "delete": "write `fleetform state rm`",
    "ls": "write `fleetform state list`",
    "move": "write `fleetform state mv`",
    "force-unlock": "write `fleetform state unlock`",
    "remove": "write `fleetform state rm`",
}
"""Commands of other tools below `state`."""

APPROVE = "write `--auto-approve`"
BEFORE = "write it before the command: `fleetform -C DIR …`"
OPTIONS = {
    "C": BEFORE,
    "chdir": BEFORE,
    "destroy": "`fleetform destroy` shows what it would do, and asks",
    "no-color": "write `NO_COLOR=1` before the command",
    "o": "write `--out FILE`",
    "refresh": PLAN,
    "refresh-only": PLAN,
    "target": "leave it out: a plan is about the whole project",
    "y": APPROVE,
    "yes": APPROVE,
}
"""Options of other tools, without their dashes."""

FILES = {"plan": "`fleetform show FILE` shows a saved plan, `fleetform apply FILE` does it"}
"""What is said of an argument to a command that takes none."""


def usage(error: click.UsageError, typed: Sequence[str]) -> Failed:
    """What click says of the command line `typed`: text, or JSON where that was asked for."""
    path = error.ctx.command_path if error.ctx else "fleetform"
    summary = re.sub(r"'([^'`]*)'", r"`\1`", error.format_message().rstrip("."))
    hint = f"`{path} --help` shows what can be written"
    if isinstance(error, click.NoSuchOption):
        summary, said = _option(error, typed)
        hint = said or hint
    elif isinstance(error, NoCommandError):
        hint = error.hint or hint
    elif summary.startswith("Got unexpected extra argument") and error.ctx:
        hint = FILES.get(error.ctx.info_name or "", hint)
    failed = Failed((Diagnostic(code="usage", summary=summary[:1].lower() + summary[1:], hint=hint),))
    if "--json" in takewhile(lambda word: word != "--", typed):
        failed.form = "event" if error.ctx and error.ctx.info_name in STREAMING else "object"
    return failed


class NoCommandError(click.UsageError):
    """There is no such command."""

    def __init__(
        self, name: str, ctx: click.Context, known: Iterable[str], habits: Mapping[str, str]
    ) -> None:
        super().__init__(f"no command `{name}`", ctx)
        self.hint = habits.get(name) or suggest(name, known)


def _option(error: click.NoSuchOption, typed: Sequence[str]) -> tuple[str, str | None]:
    """What is said of an option that there is not: how it is spelled here, or what to do instead.

    `typed` is the command line. Of `-auto-approve` click knows only that there is no `-a`.
    """
    if error.ctx is None:
        return f"no option `{error.option_name}`", None
    known = {name for param in error.ctx.command.params for name in param.opts}
    words = [w.partition("=")[0] for w in takewhile(lambda w: w != "--", typed) if w.startswith("-")]
    for name in words:
        if not name.startswith("--") and f"-{name}" in known:
            return f"no option `{name}`", f"write `-{name}`"
    for name in (w for w in words if w == error.option_name or w[:2] == error.option_name):
        said = OPTIONS.get(name.lstrip("-"))
        if said == APPROVE and error.ctx.info_name == "plan":
            said = "leave it out: `fleetform plan` asks nothing"
        elif said == APPROVE and "--auto-approve" not in known:
            said = None
        if said and name not in known:
            return f"no option `{name}`", said
    long = ["--help", *(name for name in known if name.startswith("--"))]
    return f"no option `{error.option_name}`", suggest(error.option_name, long)
