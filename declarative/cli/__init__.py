"""The command line. Each command lives in a module of its own, imported when it is run: `--help` and
completion pay for none of them."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NoReturn

import click

from declarative import __version__

COMMANDS: dict[str, str] = {
    "init": "write a first project that plans at once",
    "validate": "check the project's files",
    "plan": "show what apply would do",
    "apply": "do it",
    "destroy": "delete everything but what is protected",
    "status": "nodes, blocks, volumes and tasks as they are now",
    "logs": "what a task's ranks have printed",
    "stop": "stop a task",
    "state": "look into what is recorded",
    "schema": "the JSON Schema of each document type",
}
"""Name → one line, so that `--help` need not import the commands."""

EXAMPLES = """\b
Examples:
  fleetform init
  fleetform plan
  fleetform apply --wait
  fleetform logs train/0 -f
"""


class Commands(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"declarative.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from declarative.diagnostic import suggest

        name = click.utils.make_str(args[0]) if args else ""
        if args and name not in COMMANDS and not name.startswith("-"):
            near = suggest(name, COMMANDS)
            ctx.fail(f"no command `{name}`" + (f"; {near}" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


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
    """Run the command; exit codes are those of DESIGN §5 (usage errors are 1, not click's 2)."""
    try:
        code: Any = cli.main(standalone_mode=False)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.Abort:
        click.echo("interrupted", err=True)
        code = 130
    except click.ClickException as error:
        error.show()
        code = 1
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # The reader (`| head`) has what it wanted; nothing more can be printed, not even at exit.
        sys.stderr.close()
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
