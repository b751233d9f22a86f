"""What every command needs: the project, its state, its backends, and how to say what went wrong."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from declarative.diagnostic import Diagnostic, InvalidError, Severity

if TYPE_CHECKING:
    from declarative.apply import Backends
    from declarative.loader import Loaded
    from declarative.resource import Desired
    from declarative.state import State
    from declarative.store import Store

DEFAULT_STATE = "sqlite:///.fleetform/state.db"

F = TypeVar("F", bound=Callable[..., Any])


class Failed(click.ClickException):
    """An error with its diagnostics; shown as text on stderr, or as the command's JSON."""

    exit_code = 1

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__("; ".join(d.summary for d in diagnostics))
        self.diagnostics = diagnostics

    def show(self, file: Any = None) -> None:
        from declarative.render import diagnostics_text, use_color

        stream = file or sys.stderr
        stream.write(diagnostics_text(self.diagnostics, color=use_color(stream, os.environ)))


def failed(code: str, summary: str, hint: str | None = None) -> Failed:
    """One error without a place."""
    return Failed((Diagnostic(code=code, summary=summary, hint=hint),))


def _project_options(command: F) -> F:
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
    for option in reversed(options):
        command = option(command)
    return command


def _state_options(command: F) -> F:
    return click.option(
        "--state", "state_url", metavar="URL", envvar="FLEETFORM_STATE", help="Where the state is kept."
    )(command)


def project_command(command: F) -> F:
    """Options of commands that read the project and the state; gives them a `Session` first."""

    @functools.wraps(command)
    @click.pass_context
    def run(ctx: click.Context, /, **options: Any) -> Any:
        session = Session(
            Path(ctx.obj["directory"]),
            options.pop("state_url", None),
            options.pop("variables", ()),
            options.pop("var_files", ()),
        )
        ctx.call_on_close(session.close)
        return ctx.invoke(command, session, **options)

    return _project_options(_state_options(cast("F", run)))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout, and nothing else.")
lock_option = click.option(
    "--lock-timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=0.0,
    help="How long to wait for another command that writes; default 0.",
)
approve_option = click.option("--auto-approve", is_flag=True, help="Do not ask.")


class Session:
    """One command's view of a project."""

    def __init__(
        self, directory: Path, state_url: str | None, variables: tuple[str, ...], var_files: tuple[str, ...]
    ) -> None:
        self.directory = directory
        self._state_url = state_url
        self._variables = variables
        self._var_files = tuple(Path(f) for f in var_files)
        self._store: Store | None = None
        self.warnings: tuple[Diagnostic, ...] = ()

    def close(self) -> None:
        """Give up the state's connections."""
        if self._store:
            self._store.close()

    def load(self, *, required: bool = True) -> Loaded | None:
        """The project, or `Failed` with every error of it; None if it may be missing or broken."""
        from declarative.loader import load

        try:
            loaded = load(
                self.directory, variables=self._assigned(), var_files=self._var_files, environ=os.environ
            )
        except InvalidError as error:
            if required:
                raise Failed(error.diagnostics) from None
            self.warnings = tuple(d for d in error.diagnostics if d.code != "no-documents")
            return None
        self.warnings = loaded.diagnostics
        return loaded

    def _assigned(self) -> Mapping[str, str]:
        out: dict[str, str] = {}
        for text in self._variables:
            name, equals, value = text.partition("=")
            if not equals:
                raise failed("usage", f"`--var {text}` has no value", f"write `--var {text}=…`")
            out[name] = value
        return out

    def state_url(self, desired: Desired | None, *, offline: bool = False) -> str:
        """`--state`, else FLEETFORM_STATE, else the project's, else the default one.

        Offline the project's is not asked: a stranger's YAML does not choose what is read.
        """
        declared = None if offline or desired is None else desired.project.state
        return self._state_url or declared or DEFAULT_STATE

    def store(self, desired: Desired | None, *, write: bool = False, offline: bool = False) -> Store:
        """The state, opened once; for reading it need not exist."""
        from declarative.store import StateError, open_store

        if self._store is None:
            try:
                url = self.state_url(desired, offline=offline)
                self._store = open_store(url, create=write, read_only=not write, root=self.directory)
            except StateError as error:
                raise failed(error.code, error.summary, error.hint) from None
        return self._store

    def backends(self, desired: Desired | None, state: State) -> Backends:
        """The providers of this run."""
        from declarative.apply import Backends

        declared = desired.backends if desired else {}
        return Backends(declared, self.directory.resolve(), state.lineage or "")

    def warn(self, *, quiet: bool = False) -> None:
        """Show the warnings of loading on stderr."""
        self.say(self.warnings, quiet=quiet)

    def say(self, diagnostics: tuple[Diagnostic, ...], *, quiet: bool = False) -> None:
        """Show diagnostics on stderr."""
        if diagnostics and not quiet:
            from declarative.render import diagnostics_text, use_color

            sys.stderr.write(diagnostics_text(diagnostics, color=use_color(sys.stderr, os.environ)))


def now() -> float:
    """Seconds since the epoch."""
    return time.time()


def emit(data: Any) -> None:
    """JSON on stdout."""
    from declarative.render import to_json

    sys.stdout.write(to_json(data))


def emit_text(text: str) -> None:
    """Text on stdout, as it is."""
    sys.stdout.write(text)


def out_style() -> dict[str, Any]:
    """Colour and width of stdout."""
    from declarative.render import use_color, width

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
            raise failed(error.code, error.summary, error.hint) from None

    return cast("F", run)
