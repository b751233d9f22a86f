"""Errors of commands: shown as text or JSON. And mistakes in the command line, with what to type instead."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile
from typing import Any

import click

from declarative.model.diagnostic import InvalidError, failed
from declarative.model.text import suggest

STREAMING = ("apply", "destroy", "reconcile")
"""Commands whose `--json` is a line for each event."""


class Failed(click.ClickException):
    """An `InvalidError` as it is shown: text on stderr, or the JSON of the command `json_of`."""

    exit_code = 1

    def __init__(self, error: InvalidError, json_of: str | None = None) -> None:
        super().__init__(str(error))
        self.diagnostics = error.diagnostics
        self.json_of = json_of

    def show(self, file: Any = None) -> None:
        from declarative.render.diagnostics import diagnostics_text
        from declarative.render.output_json import diagnostics_json, to_event, to_json
        from declarative.render.text import use_color

        locked = any(d.code == "locked" for d in self.diagnostics)
        result = "locked" if locked else "error"
        data = {"result": result, "diagnostics": diagnostics_json(self.diagnostics)}
        if self.json_of is None:
            stream = file or sys.stderr
            stream.write(diagnostics_text(self.diagnostics, color=use_color(stream, os.environ)))
        elif self.json_of in STREAMING:
            sys.stdout.write(to_event({"event": "error", **data}) + "\n")
        else:
            sys.stdout.write(to_json(data))


# ------------------------------------------------------------------------ mistakes in the command line

STATUS = "write `fleetform status`"
APPLY = "write `fleetform apply`"
DESTROY = "write `fleetform destroy`"
PLAN = "`fleetform plan` looks at what is there each time"
ANEW = "`fleetform apply --replace node/NAME` makes a node anew, `task/NAME` runs a task again"
FORGET = "remove its document and run `fleetform apply`; `fleetform state rm ADDRESS` only forgets"
COMMANDS = {
    "attach": "write `fleetform logs TASK -f`",
    "console": "`fleetform plan` shows values as filled in; `fleetform state show ADDRESS` what is recorded",
    "cordon": "write `fleetform drain NODE --reason …`: what runs on the node goes on",
    "cancel": "write `fleetform stop TASK`",
    "delete": DESTROY,
    "describe": "write `fleetform explain ADDRESS`",
    "diff": "write `fleetform plan`",
    "down": DESTROY,
    "fleet": STATUS,
    "force-unlock": "write `fleetform state unlock`",
    "get": STATUS,
    "graph": "in `fleetform plan --json` each action names what it needs",
    "help": "write `fleetform --help`, or `fleetform COMMAND --help`",
    "inspect": "write `fleetform explain ADDRESS`",
    "kill": "write `fleetform stop TASK`",
    "launch": APPLY,
    "list": STATUS,
    "ls": STATUS,
    "metrics": "`fleetform serve` has them at /metrics",
    "mv": "write `fleetform state mv`, or `moved` in the `project` document",
    "offer": "write `fleetform offers`",
    "output": "write `fleetform status --json`",
    "preview": "write `fleetform plan`",
    "providers": "a `backend` document names its `driver`; `fleetform schema backend` has its fields",
    "ps": STATUS,
    "pull": "write `fleetform state pull`",
    "push": "write `fleetform state push FILE`",
    "refresh": PLAN,
    "remove": FORGET,
    "replace": ANEW,
    "restart": ANEW,
    "rm": FORGET,
    "run": APPLY,
    "server": "no server has to run; `fleetform serve` shows a live page",
    "start": APPLY,
    "taint": ANEW,
    "top": STATUS,
    "uncordon": "write `fleetform undrain NODE`",
    "untaint": "nothing is marked: leave out `--replace`",
    "unlock": "write `fleetform state unlock`",
    "up": APPLY,
    "version": "write `fleetform --version`",
    "volume": STATUS,
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
FOLLOWED = "leave it out: `fleetform apply` returns when the tasks run, and `--wait` follows them"
OPTIONS = {
    "C": BEFORE,
    "backend-config": "write `state:` in the `project` document, or `--state URL`",
    "chdir": BEFORE,
    "d": FOLLOWED,
    "detach": FOLLOWED,
    "destroy": "`fleetform destroy` shows what it would do, and asks",
    "input": "leave it out: nothing is asked where there is no terminal",
    "lock": "leave it out: one command writes at a time, and others may wait (`apply --lock-timeout 10m`)",
    "no-color": "write `NO_COLOR=1` before the command",
    "o": "write `--out FILE`",
    "refresh": PLAN,
    "w": "`fleetform serve` shows a live page; or `watch fleetform status`",
    "watch": "`fleetform serve` shows a live page; or `watch fleetform status`",
    "y": APPROVE,
    "yes": APPROVE,
}
"""Options of other tools, without their dashes."""

NOT_ASKED = {"plan": "leave it out: `fleetform plan` asks nothing"}
"""The hint for `--yes` on a command without `--auto-approve`."""

FILES = {
    "destroy": "`--target ADDRESS` destroys a part",
    "plan": "`fleetform show FILE` shows a saved plan, `fleetform apply FILE` does it",
    "status": "`fleetform explain ADDRESS` is about one task or node",
    "validate": "another directory stands before the command: `fleetform -C DIR validate`",
}
"""Hints for an argument to a command that takes none."""


class NoCommandError(click.UsageError):
    """A group has no such command."""

    def __init__(self, name: str, ctx: click.Context, known: Iterable[str]) -> None:
        super().__init__(f"no command `{name}`", ctx)
        foreign = STATE if ctx.command.name == "state" else COMMANDS
        self.hint = foreign.get(name) or suggest(name, known)


def usage(error: click.UsageError, typed: Sequence[str]) -> Failed:
    """Show click's error about the command line `typed`, with a hint; as JSON with `--json`."""
    ctx = error.ctx
    command = ctx.info_name if ctx else None
    summary = re.sub(r"'([^'`]*)'", r"`\1`", error.format_message().rstrip("."))
    summary = re.sub(r"\s+", " ", summary[:1].lower() + summary[1:])
    summary = re.sub(
        r"^(invalid value for .*?: )([A-Z][a-z])", lambda match: match[1] + match[2].lower(), summary
    )
    hint = None
    words = [*takewhile(lambda word: word != "--", typed)]
    if isinstance(error, click.NoSuchOption):
        name, hint = _unknown_option(error, words)
        summary = f"no option `{name}`"
    elif isinstance(error, NoCommandError):
        hint = error.hint
    elif summary.startswith("got unexpected extra argument"):
        hint = FILES.get(command or "")
    hint = hint or f"`{ctx.command_path if ctx else 'fleetform'} --help` shows what can be written"
    wants_json = not {"--json", "--format=json"}.isdisjoint(words) or ("--format", "json") in pairwise(words)
    return Failed(failed("usage", summary, hint), (command or "") if wants_json else None)


def _unknown_option(error: click.NoSuchOption, words: Sequence[str]) -> tuple[str, str | None]:
    """The option as it was typed, and how it is spelled here, or what to do instead.

    Of `-auto-approve` click knows only that there is no `-a`.
    """
    if error.ctx is None:
        return error.option_name, None
    known = {name for param in error.ctx.command.params for name in param.opts}
    typed = [word.partition("=")[0] for word in words if word.startswith("-")]
    for name in typed:
        if not name.startswith("--") and f"-{name}" in known:
            return name, f"write `-{name}`"
    refused = error.option_name
    # For `-ab` click's error names only `-a`.
    meant = [name for name in typed if name not in known and refused in (name, name[:2])] or [refused]
    for name in meant:
        hint = OPTIONS.get(name.lstrip("-"))
        if hint == APPROVE and "--auto-approve" not in known:  # the command does not ask for consent
            hint = NOT_ASKED.get(error.ctx.info_name or "")
        if hint:
            return name, hint
    return meant[0], suggest(f"--{meant[0].lstrip('-')}", ["--help", *filter(re.compile("--").match, known)])
