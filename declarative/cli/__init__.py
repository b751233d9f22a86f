"""The command line. Each command is a module of its own, imported when it is run: `--help` and completion do
not wait for them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import click

from declarative import __version__

if TYPE_CHECKING:
    from declarative.model.diagnostic import InvalidError

COMMANDS: dict[str, str] = {
    "init": "write a first project that plans at once",
    "validate": "check the project's files",
    "import": "documents for what is there, or those of dstack and SkyPilot",
    "fmt": "put the files into their normal form",
    "plan": "show what apply would do",
    "drift": "what changed outside of fleetform",
    "explain": "why a task, a rank or a node is where it is",
    "offers": "what could be launched, and for how much",
    "show": "what a saved plan would do",
    "apply": "do it",
    "destroy": "delete everything but what is protected",
    "reconcile": "apply again and again, with nobody watching",
    "approve": "approve what reconcile waits for",
    "serve": "a live page, metrics and health over HTTP",
    "status": "nodes, blocks, volumes and tasks as they are now",
    "events": "what happened, oldest first",
    "logs": "what a task's ranks have printed",
    "stop": "stop a task",
    "drain": "give a node no new work",
    "undrain": "give a drained node work again",
    "ssh": "a shell on a node, or a command",
    "exec": "run a command beside a rank",
    "hosts": "trust the keys of hosts",
    "state": "look into what is recorded, and change it by hand",
    "ci": "a plan on its pull request, and what was approved there",
    "conformance": "try a cloud's driver with kills and lost answers",
    "schema": "the JSON Schema of each document type",
    "completion": "completion for your shell",
}
"""Name → one line, so that `--help` need not import the commands."""

MODULES = {
    "init": "project_files",
    "validate": "project_files",
    "fmt": "project_files",
    "import": "imports",
    "schema": "project_files",
    "drift": "plan",
    "explain": "plan",
    "show": "plan",
    "destroy": "apply",
    "approve": "reconcile",
    "serve": "status",
    "stop": "nodes",
    "drain": "nodes",
    "undrain": "nodes",
    "ssh": "nodes",
    "exec": "nodes",
}
"""The module of a command that has not its name. `plan_command` in it is the command `plan`."""


class _ReaderGoneError(Exception):
    """Nobody reads stdout any more."""


@contextlib.contextmanager
def _reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # which click would end with exit code 1
        raise _ReaderGoneError from None


def _invalid_error() -> type[InvalidError]:
    from declarative.model.diagnostic import InvalidError  # costly, and `--help` has no use for it

    return InvalidError


class CommandGroup(click.Group):
    """A group that says which command was meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = click.utils.make_str(args[0]) if args else ""
        known = self.list_commands(ctx)
        if args and name not in known and not name.startswith("-"):
            from declarative.cli import errors

            raise errors.NoCommandError(name, ctx, known)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with its whole first sentence, which click cuts."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(n, c.get_short_help_str(1000)) for n, c in commands.items() if c])


class Commands(CommandGroup):
    """All commands, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"declarative.cli.{MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _reader():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _reader():
                return super().invoke(ctx)
        except _invalid_error() as error:
            from declarative.cli.errors import Failed

            raise Failed(error) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


EXAMPLES = """\b
Examples:
  fleetform init
  fleetform plan
  fleetform apply --wait
  fleetform logs train/0 -f"""


@click.group(cls=Commands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fleetform", message="%(prog)s %(version)s")
@click.option(
    "-C",
    "--chdir",
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    default=".",
    help="The project's directory; default: the current one.",
)
@click.pass_context
def cli(ctx: click.Context, directory: str) -> None:
    """Terraform for GPU fleets: declare fleets, volumes and multi-node tasks in YAML, plan, apply."""
    ctx.obj = {"directory": directory}


def main() -> NoReturn:
    """Run the command; exit codes are those of docs/commands.md (usage errors are 1, not click's 2)."""
    # A large project is half a million values that all live to the end. Python would go through them at every
    # 700 new ones, which takes a quarter of the time of a plan. Garbage is still collected.
    gc.set_threshold(100_000, 20, 50)
    from declarative.cli.output import Stream

    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it is closed (`>&-`), and takes anything
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  # to the end
        elif isinstance(stream, io.TextIOWrapper):
            # It shows as `?` what its encoding lacks, and says nothing that a CI agent obeys.
            setattr(sys, name, Stream(stream))
    code = _run()
    gc.freeze()  # as it exits, Python would go through all of them once more
    sys.exit(code)


def _run() -> int:
    """The exit code; what went wrong was printed."""
    code: Any = 0
    try:
        code = cli.main(prog_name="fleetform", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and not isinstance(error, click.exceptions.NoArgsIsHelpError):
            from declarative.cli import errors

            error = errors.usage(error, sys.argv[1:])
        error.show()
        return 1
    except (click.Abort, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        if any(t is not threading.main_thread() and not t.daemon for t in threading.enumerate()):
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(130)  # threads still wait for answers, and Python would join them
        return 130
    except (_ReaderGoneError, BrokenPipeError):
        # `| head` has what it wanted, which is no fault. Nothing more can be printed, not even what is
        # still buffered when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or 'fleetform'}: {error.strerror or error}\n")
        return 1
    return code if isinstance(code, int) else 0
