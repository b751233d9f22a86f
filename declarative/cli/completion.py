"""`fleetform completion`, and what a shell may complete: addresses, tasks and their ranks.

What is offered is put into a command line, so it is checked: names that the language has, from files that
the loader would open. It runs at every press of a key: nothing but `sqlite3` and the YAML reader is imported,
it ends within a fraction of a second, and whatever goes wrong gives no suggestions instead of an error.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

MOST_BYTES = 1 << 18
"""A larger file is left out: completing must not make anyone wait."""
SECONDS = 0.25
"""Seconds for the files, and for the state. Completion offers what was found by then."""
MOST = 10_000
"""Recorded addresses that are looked at."""
MOST_RANKS = 1000
"""Ranks of a task that are offered."""
_NAME = re.compile(r"[a-z][a-z0-9-]{1,50}")
_ADDRESS = re.compile(r"[a-z]{2,20}/[a-z][a-z0-9.-]{1,100}")


def _directory(ctx: click.Context) -> Path:
    root = ctx.find_root()
    return Path(root.params.get("directory") or ".")


def _recorded(ctx: click.Context) -> list[str]:
    """The addresses in the state; none if it cannot be read."""
    import sqlite3

    url = ctx.params.get("state_url") or os.environ.get("FLEETFORM_STATE") or "sqlite:///.fleetform/state.db"
    if not url.startswith("sqlite:///"):
        return []
    path = _directory(ctx) / url.removeprefix("sqlite:///")
    # The log of a database that is written right now lies beside it, and is opened with it.
    beside = (path.with_name(path.name + end) for end in ("-wal", "-shm", "-journal"))
    if not path.is_file() or any(os.path.lexists(p) and not p.is_file() for p in beside):
        return []
    with contextlib.suppress(sqlite3.Error, ValueError):
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=0.2)
        with contextlib.closing(connection):
            # It may be a stranger's: a view in the place of the table may have no end.
            end = time.monotonic() + SECONDS
            connection.set_progress_handler(lambda: time.monotonic() > end, 1000)
            rows = connection.execute("SELECT address FROM resources LIMIT ?", (MOST,)).fetchall()
            return [a for (a,) in rows if isinstance(a, str) and _ADDRESS.fullmatch(a)]
    return []


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _documents(ctx: click.Context) -> Iterator[Mapping[str, Any]]:
    """The documents of the project's own files."""
    from declarative.language.source import parse

    folder = _directory(ctx)
    end = time.monotonic() + SECONDS
    for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        if time.monotonic() > end:
            return
        with contextlib.suppress(OSError, ValueError):
            status = path.lstat()  # opening a pipe would wait for whoever writes into it
            if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                content = file.read(MOST_BYTES)
            for document in parse(content, path.name).documents:
                yield document.data


def _tasks(ctx: click.Context) -> dict[str, int]:
    """Every task that is declared or has run, with the number of its ranks."""
    counts: dict[str, int] = {}
    for document in _documents(ctx):
        name, nodes = document.get("name"), document.get("nodes", 1)
        if document.get("type") == "task" and _is_name(name):
            counts[str(name)] = nodes if isinstance(nodes, int) else 1
    for address in _recorded(ctx):
        if address.startswith("rank/"):
            task, _, rank = address.removeprefix("rank/").rpartition("-")
            if rank.isdecimal():
                counts[task] = max(counts.get(task, 0), int(rank) + 1)
    return counts


def addresses(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG001
    """Recorded addresses: a kind first, then the names of that kind."""
    return _offered(set(_recorded(ctx)), incomplete)


_GROUPS = {"volume": "volume", "node": "fleet", "rank": "task"}


def _groups(ctx: click.Context) -> Iterator[str]:
    """The names that several records share: a count of volumes, a fleet, a task."""
    for address in _recorded(ctx):
        kind, _, name = address.partition("/")
        base, _, number = name.rpartition("-")
        if number.isdecimal() and base and kind in _GROUPS:
            yield f"{_GROUPS[kind]}/{base}"


def _matching(known: Iterable[str], incomplete: str) -> list[Any]:
    return sorted(text for text in known if text.startswith(incomplete))


def _offered(known: set[str], incomplete: str) -> list[Any]:
    """A kind first, then the names of that kind."""
    if "/" not in incomplete:
        known = {a.partition("/")[0] + "/" for a in known}
    return _matching(known, incomplete)


def recorded(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG001
    """Recorded addresses, and those of fleets, tasks and counts of volumes."""
    return _offered({*_recorded(ctx), *_groups(ctx)}, incomplete)


def movable(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG001
    """The addresses that `state mv` renames."""
    alone = {a for a in _recorded(ctx) if a.startswith(("volume/", "node/"))}
    return _offered({*alone, *_groups(ctx)}, incomplete)


def nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG001
    """The names of recorded nodes."""
    known = [a.removeprefix("node/") for a in _recorded(ctx) if a.startswith("node/")]
    return _matching(known, incomplete)


def tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG001
    """Task names."""
    return _matching(_tasks(ctx), incomplete)


def fleets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG001
    """`fleet/<name>` of those that are declared."""
    names = [d["name"] for d in _documents(ctx) if d.get("type") == "fleet" and _is_name(d.get("name"))]
    return _matching([f"fleet/{name}" for name in names], incomplete)


def replaceable(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG001
    """`task/<name>` of declared tasks, and recorded nodes and volumes."""
    nodes = {a for a in _recorded(ctx) if a.startswith(("node/", "volume/"))}
    return _matching({*(f"task/{name}" for name in _tasks(ctx)), *nodes}, incomplete)


def explained(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG001
    """Tasks, ranks and nodes, declared or recorded: a kind first, then the names of that kind."""
    kind, slash, _ = incomplete.partition("/")
    if not slash:
        return _matching(("node/", "rank/", "task/"), incomplete)
    if kind == "node":
        return _matching(_recorded(ctx), incomplete)
    if kind == "task":
        return _matching([f"task/{name}" for name in _tasks(ctx)], incomplete)
    ranks = [f"rank/{name}-{r}" for name, count in _tasks(ctx).items() for r in range(min(count, MOST_RANKS))]
    return _matching(ranks, incomplete)


def ranks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:  # noqa: ARG001
    """Task names, and after a `/` the numbers of the task's ranks."""
    known = _tasks(ctx)
    task, slash, _ = incomplete.partition("/")
    if not slash:
        return _matching(known, incomplete)
    addresses = [f"{task}/{rank}" for rank in range(min(known.get(task, 0), MOST_RANKS))]
    return [text for text in addresses if text.startswith(incomplete)]  # in their order


# -------------------------------------------------------------------------------------- the command

INSTALL = {
    "bash": '# add to ~/.bashrc: eval "$(fleetform completion bash)"\n',
    "zsh": '# add to ~/.zshrc: eval "$(fleetform completion zsh)"\n',
    "fish": "# save as ~/.config/fish/completions/fleetform.fish\n",
}


HOW = """\b
bash:  eval "$(fleetform completion bash)"
zsh:   eval "$(fleetform completion zsh)"
fish:  fleetform completion fish > ~/.config/fish/completions/fleetform.fish
"""


@click.command("completion", epilog=HOW)
@click.argument("shell", type=click.Choice(sorted(INSTALL)))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> int:
    """Print the completion script of SHELL: commands, options, addresses, tasks and ranks."""
    from click.shell_completion import get_completion_class

    from declarative.cli.output import emit_text

    script = get_completion_class(shell)
    assert script is not None
    emit_text(
        INSTALL[shell] + script(ctx.find_root().command, {}, "fleetform", "_FLEETFORM_COMPLETE").source()
    )
    return 0
