"""What people type who come from other tools, and what to do instead. Read only after a mistake."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import click

STATUS = "write `fleetform status`"
APPLY = "write `fleetform apply`"
DESTROY = "write `fleetform destroy`"
PLAN = "`fleetform plan` looks at what is there each time"
COMMANDS = {
    "attach": "write `fleetform logs TASK -f`",
    "delete": DESTROY,
    "down": DESTROY,
    "graph": "in `fleetform plan --json` each action names what it needs",
    "help": "write `fleetform --help`, or `fleetform COMMAND --help`",
    "import": "volumes that exist are adopted by `volume_id`, what was forgotten by `fleetform state adopt`",
    "list": STATUS,
    "ls": STATUS,
    "offer": "write `fleetform offers`",
    "output": "write `fleetform status --json`",
    "ps": STATUS,
    "refresh": PLAN,
    "run": APPLY,
    "taint": "`fleetform apply --replace task/NAME` runs a task again",
    "up": APPLY,
    "version": "write `fleetform --version`",
    "workspace": "give each a directory, or a `--state URL`",
}
"""Commands of other tools."""

APPROVE = "write `--auto-approve`"
WHOLE = "leave it out: all YAML files of the project's directory belong together, and `-C DIR` names it"
BEFORE = "write it before the command: `fleetform -C DIR …`"
OPTIONS = {
    "C": BEFORE,
    "chdir": BEFORE,
    "destroy": "`fleetform destroy` shows what it would do, and asks",
    "f": WHOLE,
    "file": WHOLE,
    "no-color": "write `NO_COLOR=1` before the command",
    "o": "write `--out FILE`",
    "refresh": PLAN,
    "refresh-only": PLAN,
    "target": "leave it out: a plan is about the whole project",
    "y": APPROVE,
    "yes": APPROVE,
}
"""Options of other tools, without their dashes."""


def option(error: click.NoSuchOption, typed: Sequence[str]) -> str | None:
    """What to say of an option that there is not: how it is spelled here, or what to do instead.

    `typed` is the command line. Of `-auto-approve` click knows only that there is no `-a`.
    """
    if error.ctx is None:
        return None
    known = {name for param in error.ctx.command.params for name in param.opts}
    words = [w.partition("=")[0] for w in takewhile(lambda w: w != "--", typed) if w.startswith("-")]
    for name in words:
        if not name.startswith("--") and f"-{name}" in known:
            return f"no option `{name}`; write `-{name}`"
    for name in (w for w in words if w == error.option_name or w[:2] == error.option_name):
        said = OPTIONS.get(name.lstrip("-"))
        if said and name not in known and (said != APPROVE or "--auto-approve" in known):
            return f"no option `{name}`; {said}"
    return None
