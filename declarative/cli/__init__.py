"""The command line. Each command lives in a module of its own, imported when it is run: `--help` and
completion pay for none of them.
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
from typing import Any, NoReturn

import click

from declarative import __version__

COMMANDS: dict[str, str] = {
    "init": "write a first project that plans at once",
    "validate": "check the project's files",
    "import": "documents of dstack or SkyPilot as fleetform's",
    "fmt": "put the files into their normal form",
    "plan": "show what apply would do",
    "explain": "why a task, a rank or a node is where it is",
    "offers": "what could be launched, and for how much",
    "show": "what a saved plan would do",
    "apply": "do it",
    "destroy": "delete everything but what is protected",
    "status": "nodes, blocks, volumes and tasks as they are now",
    "logs": "what a task's ranks have printed",
    "stop": "stop a task",
    "drain": "give a node no new work",
    "undrain": "give a drained node work again",
    "ssh": "a shell on a node, or a command",
    "exec": "run a command beside a rank",
    "state": "look into what is recorded, and change it by hand",
    "schema": "the JSON Schema of each document type",
    "completion": "completion for your shell",
}
"""Name → one line, so that `--help` need not import the commands."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "fleetform": (
        "fleetform init",
        "fleetform plan",
        "fleetform apply --wait",
        "fleetform logs train/0 -f",
    ),
    "validate": ("fleetform validate --json", "fleetform -C infra/gpu validate --var size=8"),
    "import": (
        "fleetform import dstack .dstack.yml",
        "fleetform import skypilot train.yaml --out train.fleet.yaml",
    ),
    "fmt": ("fleetform fmt", "fleetform fmt --check --diff"),
    "plan": (
        "fleetform plan --json",
        "fleetform plan --offline --detailed-exitcode",
        "fleetform plan --replace task/train",
        "fleetform plan --replace node/gpu-3",
        "fleetform plan --reuse",
        "fleetform plan --out next.plan",
    ),
    "explain": ("fleetform explain task/train", "fleetform explain node/gpu-0 --json"),
    "offers": (
        "fleetform offers --gpu H100:8",
        "fleetform offers fleet/gpu --max-price 10",
        "fleetform offers --cpu 8.. --region us-east-1 --on-demand --json",
    ),
    "show": ("fleetform show next.plan", "fleetform show next.plan --json"),
    "apply": (
        "fleetform apply --auto-approve --wait",
        "fleetform apply --lock-timeout 5m",
        "fleetform apply --reuse",
        "fleetform apply next.plan",
    ),
    "destroy": ("fleetform destroy --auto-approve",),
    "status": ("fleetform status --json", "fleetform status --refresh"),
    "logs": (
        "fleetform logs train",
        "fleetform logs train/0 -f",
        "fleetform logs train -f --tail 10",
        "fleetform logs train --since 10m -n 3",
    ),
    "ssh": ("fleetform ssh gpu-0", "fleetform ssh gpu-0 -- nvidia-smi"),
    "exec": ("fleetform exec train/0", "fleetform exec train/0 -- py-spy dump --pid 4242"),
    "stop": ("fleetform stop train",),
    "drain": ('fleetform drain gpu-3 --reason "bad NIC"',),
    "undrain": ("fleetform undrain gpu-3",),
    "state": (
        "fleetform state list volume",
        "fleetform state mv volume/data volume/datasets",
        "fleetform state pull --state sqlite:///.fleetform/state.db | fleetform state push -",
    ),
    "schema": ("fleetform schema task", "fleetform schema --check --dir schemas"),
}
"""Lines to copy, under each command's help."""


def _examples(name: str) -> str | None:
    """The epilog of a command, each example on a line of its own."""
    lines = EXAMPLES.get(name)
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in lines))) if lines else None


class _ReaderGoneError(Exception):
    """Nobody reads stdout any more."""


@contextlib.contextmanager
def _reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # which click would end with exit code 1
        raise _ReaderGoneError from None


class Commands(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        # `import` is no name for a module.
        module = importlib.import_module(f"declarative.cli.{'imports' if cmd_name == 'import' else cmd_name}")
        command: click.Command = module.command
        command.epilog = command.epilog or _examples(cmd_name)
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _reader():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _reader():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = click.utils.make_str(args[0]) if args else ""
        if args and name not in COMMANDS and not name.startswith("-"):
            from declarative.cli import usage_hints

            raise usage_hints.NoCommandError(name, ctx, COMMANDS, usage_hints.COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=Commands, epilog=_examples("fleetform"), context_settings={"help_option_names": ["-h", "--help"]}
)
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


def _mend_streams() -> None:
    """Streams that are closed (`>&-`) take anything; others show as `?` what their encoding lacks, and say
    nothing that a CI agent obeys.
    """
    from declarative.cli.output import Stream

    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  # to the end
        elif isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, Stream(stream))


def _end_if_asking(code: int) -> None:
    """End at once where threads still wait for answers that nobody wants any more: Python would join them."""
    if any(t is not threading.main_thread() and not t.daemon for t in threading.enumerate()):
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main() -> NoReturn:
    """Run the command; exit codes are those of docs/commands.md (usage errors are 1, not click's 2)."""
    code: Any = 0
    # A large project is half a million values that all live to the end: to go through them at every 700
    # new ones, as Python does, takes a quarter of the time of a plan. Garbage is still collected.
    gc.set_threshold(100_000, 20, 50)
    _mend_streams()
    try:
        code = cli.main(prog_name="fleetform", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = 1
    except click.UsageError as error:
        from declarative.cli import usage_hints

        usage_hints.usage(error, sys.argv[1:]).show()
        code = 1
    except click.ClickException as error:
        error.show()
        code = 1
    except (click.Abort, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        code = 130
        _end_if_asking(code)
    except (_ReaderGoneError, BrokenPipeError):
        # `| head` has what it wanted, which is no fault. Nothing more can be printed, not even what is
        # still buffered when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or 'fleetform'}: {error.strerror or error}\n")
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
