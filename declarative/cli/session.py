"""What every command needs: the project, its state, its backends, and how to say what went wrong."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from declarative.cli.failure import Failed, failed
from declarative.cli.output import Unbroken
from declarative.cli.state_access import StateAccess, hint_of
from declarative.diagnostic import Diagnostic, InvalidError, Severity

if TYPE_CHECKING:
    from declarative.apply.backends import Backends
    from declarative.loader import Loaded, Look
    from declarative.manifest import Manifest
    from declarative.resource import Desired
    from declarative.spec.policy import Policy
    from declarative.state import State

F = TypeVar("F", bound=Callable[..., Any])

STREAMING = ("apply", "destroy")
"""Commands whose `--json` is a line for each event."""


def _project_options(command: F, short: tuple[str, ...]) -> F:
    options = (
        click.option("--var", "variables", metavar="NAME=VALUE", multiple=True, help="Set a variable."),
        click.option(
            "--var-file",
            "var_files",
            type=click.Path(exists=True, dir_okay=False),
            multiple=True,
            help="A YAML file with variables.",
        ),
    )
    files = click.option(
        *short,
        "--file",
        "files",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        multiple=True,
        help="Read this file of the project too: a hidden one, or one in a folder.",
    )
    for option in (*reversed(options), files, *_ALLOW):
        command = option(command)
    return command


_ALLOW = (
    click.option(
        "--allow-commands",
        "commands",
        is_flag=True,
        envvar="FLEETFORM_ALLOW_COMMANDS",
        help="Let the project's `ssh_config` run commands and read other files.",
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
        "--allow-variable",
        "allowed_variables",
        metavar="NAME",
        multiple=True,
        envvar="FLEETFORM_ALLOW_VARIABLE",
        help="Let backends use this variable as a credential, besides those of their own tools.",
    ),
)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the caller allows the project besides: it counts where the operator's policy is silent."""

    commands: bool = False
    paths: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()

    def with_policy(self, policy: Policy) -> Policy:
        """Both together."""
        return replace(
            policy,
            paths=(*policy.paths, *(str(Path(p).absolute()) for p in self.paths)),
            allow_commands=policy.allow_commands or self.commands,
            more_variables=(*policy.more_variables, *self.variables),
        )


STATE_HELP = "Where the state is kept; or, to look into it, a file that `state pull` printed."


def _state_options(command: F) -> F:
    return click.option("--state", "state_url", metavar="URL", envvar="FLEETFORM_STATE", help=STATE_HELP)(
        command
    )


def project_command(command: F, *, short: tuple[str, ...] = ("-f",)) -> F:
    """Options of commands that read the project and the state; gives them a `Session` first.

    `short` is what `--file` is called too.
    """

    @functools.wraps(command)
    @click.pass_context
    def run(ctx: click.Context, /, **options: Any) -> Any:
        session = Session(
            Path(ctx.obj["directory"]),
            options.pop("state_url", None),
            options.pop("variables", ()),
            options.pop("var_files", ()),
            options.pop("files", ()),
            Allowed(options.pop("commands"), options.pop("paths"), options.pop("allowed_variables")),
        )
        ctx.call_on_close(session.close)
        try:
            return ctx.invoke(command, session, **options)
        except Failed as error:
            if options.get("as_json"):
                error.form = "event" if ctx.info_name in STREAMING else "object"
            raise

    return _project_options(_state_options(cast("F", run)), short)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, and nothing else.")


class Seconds(click.ParamType[float]):
    """`90`, `2.5` or `10m`, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from declarative.schema import BadValueError
        from declarative.spec.values import Duration

        if re.fullmatch(r"\d{1,9}(\.\d+)?", str(value)):
            return float(value)
        found = None
        with contextlib.suppress(BadValueError):
            found = Duration.parse(value).seconds
        if found is None:
            self.fail(f"`{value}` is not a duration; write seconds, or `30s`, `10m`", param, ctx)
        return float(found)


lock_option = click.option(
    "--lock-timeout",
    metavar="DURATION",
    type=Seconds(),
    help="How long to wait for another command that writes (`90`, `10m`); default 0.",
)
approve_option = click.option("--auto-approve", is_flag=True, help="Do not ask.")


class Session:
    """One command's view of a project."""

    def __init__(  # noqa: PLR0917  # each is an option of the command line
        self,
        directory: Path,
        state_url: str | None,
        variables: tuple[str, ...],
        var_files: tuple[str, ...],
        named: tuple[Path, ...] = (),
        allowed: Allowed | None = None,
    ) -> None:
        self.directory = directory
        self._allowed = allowed or Allowed()
        self.state = StateAccess(directory, state_url, self.policy)
        self._variables = variables
        self._var_files = tuple(Path(f) for f in var_files)
        self._named = named
        self._declared: Desired | None = None
        """What was loaded, whatever is to come of it."""
        self.warnings: tuple[Diagnostic, ...] = ()
        self.files: Mapping[str, Manifest] = {}
        """What the ranks get that this command may start, by its digest."""

    def policy(self) -> Policy:
        """What the operator allows, and the caller; `Failed` with all that is wrong with the policy."""
        from declarative.loader.policy import read_policy

        try:
            return self._allowed.with_policy(read_policy(os.environ))
        except InvalidError as error:
            raise Failed(error.diagnostics) from None

    def close(self) -> None:
        """Give up the state's connections."""
        self.state.close()

    def load(self, *, required: bool = True, look: Look = "none") -> Loaded | None:
        """The project, or `Failed` with every error of it; None if it need not be there, nor be right.

        `look` is how far the files that ranks get are looked at.
        """
        from declarative.loader import load

        try:
            loaded = load(
                self.directory,
                named=self._named,
                variables=self._assigned(),
                var_files=self._var_files,
                environ=os.environ,
                state=self.state.named,
                look=look,
                published=required,
            )
        except InvalidError as error:
            if required:
                raise Failed(error.diagnostics) from None
            self.warnings = tuple(d for d in error.diagnostics if d.code != "no-documents")
            self._check_where(error)
            return None
        self.warnings = loaded.diagnostics
        self.files = manifests(loaded.desired)
        self._declared = loaded.desired
        return loaded

    def load_if_any(self) -> Loaded | None:
        """The project, or `Failed` with every error of it; None where there are no documents."""
        try:
            return self.load()
        except Failed as error:
            if any(d.code != "no-documents" for d in error.diagnostics):
                raise
            return None

    def _check_where(self, error: InvalidError) -> None:
        """`Failed` with all that is wrong with the project unless it keeps its state in the default place: no
        other one is taken for the one that is meant.
        """
        from declarative.loader import declared_state

        if self.state.named or not self.warnings:
            return
        try:
            elsewhere = declared_state(
                self.directory,
                named=self._named,
                variables=self._assigned(),
                var_files=self._var_files,
                environ=os.environ,
            )
        except ValueError:
            raise Failed(error.diagnostics) from None
        if elsewhere or not self.state.default.exists():
            raise Failed(error.diagnostics)

    def _assigned(self) -> Mapping[str, str]:
        out: dict[str, str] = {}
        for text in self._variables:
            name, equals, value = text.partition("=")
            if not equals:
                raise failed("usage", f"`--var {text}` has no value", f"write `--var {text}=…`")
            out[name] = value
        return out

    def backends(self, desired: Desired | None, state: State) -> Backends:
        """The providers of this run. Hosts are reached as they are declared now, where they are."""
        from declarative.apply.backends import Backends
        from declarative.plan.hosts import hosts_of

        declared = desired.backends if desired else {}
        hosts = hosts_of(self._declared, state) if self._declared else ()
        ways = {host.name: host.fields for host in hosts}
        here = self.directory.resolve()
        return Backends(
            declared,
            here,
            state.lineage or "",
            state,
            self.files,
            ways=ways,
            shared=self.state.shared(),
            fence=self.state.fence,
            changing=self.state.changing,
            learn=self.state.learn,
            policy=self.policy(),
            limits={
                name: fleet.unreachable_duration.seconds
                for name, fleet in (self._declared.fleets if self._declared else {}).items()
            },
        )

    def warn(self, *, quiet: bool = False) -> None:
        """Show the warnings of loading on stderr."""
        self.say(self.warnings, quiet=quiet)

    def say(self, diagnostics: tuple[Diagnostic, ...], *, quiet: bool = False) -> None:
        """Show diagnostics on stderr."""
        if diagnostics and not quiet:
            from declarative.render.diagnostics import diagnostics_text
            from declarative.render.terminal import use_color

            sys.stderr.write(diagnostics_text(diagnostics, color=use_color(sys.stderr, os.environ)))


def manifests(desired: Desired) -> dict[str, Manifest]:
    """The files of all tasks, by their digest."""
    return {want.files.digest: want.files for want in desired.tasks.values() if want.files is not None}


def now() -> float:
    """Seconds since the epoch."""
    return time.time()


def emit(data: Any) -> None:
    """JSON on stdout."""
    from declarative.render.data import to_json

    sys.stdout.write(to_json(data))


def emit_text(text: str) -> None:
    """Text on stdout, as it is, before anything that comes on stderr."""
    sys.stdout.write(text)
    Unbroken(sys.stdout).flush()


def out_style() -> dict[str, Any]:
    """Colour and width of stdout."""
    from declarative.render.terminal import use_color, width

    return {"color": use_color(sys.stdout, os.environ), "width": width(sys.stdout)}


def has_errors(diagnostics: tuple[Diagnostic, ...]) -> bool:
    """Whether any of them is an error."""
    return any(d.severity is Severity.ERROR for d in diagnostics)


def state_errors(function: F) -> F:
    """Turn errors of the state into messages."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        from declarative.store import StateError

        try:
            return function(*args, **kwargs)
        except StateError as error:
            session = next((a for a in args if isinstance(a, Session)), None)
            hint = hint_of(error, session.directory) if session else error.hint
            raise failed(error.code, error.summary, hint) from None

    return cast("F", run)
