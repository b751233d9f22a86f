"""What every command needs: the project, its state, its backends, and how to say what went wrong."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click

from declarative.cli.output import Unbroken
from declarative.diagnostic import Diagnostic, InvalidError, Severity

if TYPE_CHECKING:
    from declarative.apply import Backends
    from declarative.loader import Loaded, Look
    from declarative.manifest import Manifest
    from declarative.resource import Desired
    from declarative.state import Address, State
    from declarative.store import LockInfo, Store, Writer

PATIENCE = 30.0
"""Seconds to wait for a lock that is held for moments only."""

AWAY = 60.0
"""Seconds to wait, in the middle of a command, for a state's database that has gone away."""

DEFAULT_STATE = "sqlite:///.fleetform/state.db"

PULL_FIRST = (
    "where it can be reached: `fleetform state pull > state.json`; then give `--state state.json` here, "
    "or plan as if nothing was there with `plan --offline --assume-empty`"
)
MOVE_STATE = (
    f"move it: `fleetform state pull --state {DEFAULT_STATE} > old.json`, `fleetform state push old.json`; "
    "or, if an empty one is meant, name it once with `--state URL`"
)

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Form = Literal["text", "object", "event"]

STREAMING = ("apply", "destroy")
"""Commands whose `--json` is a line for each event."""


class Failed(click.ClickException):
    """An error with its diagnostics; shown as text on stderr, or as the command's JSON."""

    exit_code = 1

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__("; ".join(d.summary for d in diagnostics))
        self.diagnostics = diagnostics
        self.form: Form = "text"

    def show(self, file: Any = None) -> None:
        from declarative.render import diagnostics_json, diagnostics_text, to_event, to_json, use_color

        found = diagnostics_json(self.diagnostics)
        if self.form == "object":
            sys.stdout.write(to_json({"diagnostics": found}))
            return
        if self.form == "event":
            sys.stdout.write(to_event({"event": "error", "diagnostics": found}) + "\n")
            return
        stream = file or sys.stderr
        stream.write(diagnostics_text(self.diagnostics, color=use_color(stream, os.environ)))


def failed(code: str, summary: str, hint: str | None = None) -> Failed:
    """One error without a place."""
    return Failed((Diagnostic(code=code, summary=summary, hint=hint),))


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
    for option in (*reversed(options), files):
        command = option(command)
    return command


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


class Patience:
    """Waits for a state's database that is away: a minute in all, for all threads of the command together.

    Once that was in vain nobody waits any more, and what is left of the command fails at once.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._since: float | None = None

    def __call__(self, step: Callable[[], T], /) -> T:
        """What came of the step."""
        from declarative.store import UnreachableError

        try:
            result = step()
        except UnreachableError:
            result = self._again(step)
        self._since = None
        return result

    def _again(self, step: Callable[[], T]) -> T:
        from declarative.retry import Policy, call_on
        from declarative.store import UnreachableError

        def told(error: UnreachableError, _wait: float) -> None:
            with self._turn:
                first, self._since = self._since is None, self._since or time.monotonic()
            if first:
                _note(f"waiting up to {AWAY:.0f} s: {error.summary}")

        return call_on(
            UnreachableError,
            step,
            policy=Policy(deadline=AWAY, first=0.2, longest=5.0),
            on_retry=told,
            stopping=lambda: self._since is not None and time.monotonic() - self._since >= AWAY,
        )


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


class Session:
    """One command's view of a project."""

    def __init__(
        self,
        directory: Path,
        state_url: str | None,
        variables: tuple[str, ...],
        var_files: tuple[str, ...],
        named: tuple[Path, ...] = (),
    ) -> None:
        self.directory = directory
        self._state_url = state_url
        self._variables = variables
        self._var_files = tuple(Path(f) for f in var_files)
        self._named = named
        self._store: Store | None = None
        self._declared: Desired | None = None
        """What was loaded, whatever is to come of it."""
        self.warnings: tuple[Diagnostic, ...] = ()
        self.files: Mapping[str, Manifest] = {}
        """What the ranks get that this command may start, by its digest."""

    def close(self) -> None:
        """Give up the state's connections."""
        if self._store:
            self._store.close()

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
                state=self._state_url,
                look=look,
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

        if self._state_url or not self.warnings:
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
        if elsewhere or not self._default.exists():
            raise Failed(error.diagnostics)

    @property
    def _default(self) -> Path:
        """The file of the default state."""
        return self.directory / DEFAULT_STATE.removeprefix("sqlite:///")

    def _assigned(self) -> Mapping[str, str]:
        out: dict[str, str] = {}
        for text in self._variables:
            name, equals, value = text.partition("=")
            if not equals:
                raise failed("usage", f"`--var {text}` has no value", f"write `--var {text}=…`")
            out[name] = value
        return out

    def state_url(self, desired: Desired | None) -> str:
        """`--state`, else FLEETFORM_STATE, else the project's, else the default one."""
        declared = desired.project.state if desired else None
        return self._state_url or declared or DEFAULT_STATE

    def store(
        self,
        desired: Desired | None,
        *,
        write: bool = False,
        offline: bool = False,
        create: bool = True,
        typed: bool = True,
    ) -> Store:
        """The state, opened once; for reading it need not exist, and for writing it is made.

        Commands that look into records or mend them do without `typed`, which refuses damaged ones.
        """
        if self._store is None:
            url = self.state_url(desired)
            if offline and not self._state_url:
                self._check_within(url)
            self._store = self._open(url, write=write, create=write and create, typed=typed)
        return self._store

    def _open(self, url: str, *, write: bool = False, create: bool = False, typed: bool = False) -> Store:
        from declarative.cli.who import who
        from declarative.store import StateError, open_store

        try:
            return open_store(
                url,
                create=create,
                read_only=not write,
                typed=typed,
                who=who(self.directory) if write else None,
                root=self.directory,
                resume=Patience(),
                tell=lambda text: _note(f"note: {text}"),
            )
        except StateError as error:
            raise failed(error.code, error.summary, error.hint) from None

    def note(self, desired: Desired | None, op: str, address: Address) -> None:
        """Write into the state's journal what a user does that changes nothing recorded. Where the state
        cannot be written, that is said, and hinders nobody.
        """
        from declarative.store import StateError

        try:
            with self._open(self.state_url(desired), write=True) as store:
                store.note(op, address, op)
        except (Failed, StateError) as error:
            _note(f"warning: the state's history does not tell of this {op}: {error}")

    def _check_within(self, url: str) -> None:
        """`Failed` for a state on a server or outside of the project: a stranger's YAML, or a link of theirs,
        may name it, and what is recorded there is not theirs to show.
        """
        from declarative.store import StateError, file_of

        try:
            file = file_of(url, self.directory)
        except StateError as error:
            raise failed(error.code, error.summary, error.hint) from None
        if file is None:
            summary = "the project keeps its state on a server, and `--offline` contacts none"
            raise failed("offline-state", summary, PULL_FIRST)
        if not file.resolve().is_relative_to(self.directory.resolve()):
            summary = f"the state {file} leads out of the project"
            hint = "name the state that is to be read: `--state sqlite:///PATH`"
            raise failed("outside-project", summary, hint)

    def check_moved(self, desired: Desired) -> None:
        """`Failed` if the project names a state in which nothing was ever recorded, while its default one
        holds things: a plan would make all of them a second time. A state that was named with `--state` is
        meant.
        """
        from declarative.store import file_of

        declared = desired.project.state
        if self._state_url or declared is None or not self._default.exists():
            return
        if file_of(declared, self.directory) == file_of(DEFAULT_STATE, self.directory):
            return
        states = []
        for url in (declared, DEFAULT_STATE):
            with self._open(url) as store:
                states.append(store.read())
        if states[0].lineage is None and states[1].records:
            count = len(states[1].records)
            summary = (
                f"the state that the project names is empty, and its default one, {self._default}, holds "
                f"{count} record{'s' if count > 1 else ''}: all of it would be made a second time"
            )
            raise failed("state-moved", summary, MOVE_STATE)

    @contextlib.contextmanager
    def lock(self, store: Store, doing: str, timeout: float | None) -> Iterator[Writer]:
        """The state's lock; says on stderr whom it waits for.

        Someone who follows tasks holds it for moments only, so that even without a timeout it is waited for.
        """
        from declarative.apply import FOLLOWING
        from declarative.store import StateError

        def told(info: LockInfo) -> None:
            if info.doing != FOLLOWING:
                sys.stderr.write(f"waiting for {info}\n")

        with contextlib.ExitStack() as stack:
            try:
                writer = stack.enter_context(store.lock(doing, timeout or 0.0, on_wait=told))
            except StateError as error:
                if timeout is not None or error.lock is None or error.lock.doing != FOLLOWING:
                    raise
                writer = stack.enter_context(store.lock(doing, PATIENCE, on_wait=told))
            yield writer

    def backends(self, desired: Desired | None, state: State) -> Backends:
        """The providers of this run. Hosts are reached as they are declared now, where they are."""
        from declarative.apply import Backends
        from declarative.plan import hosts_of

        declared = desired.backends if desired else {}
        hosts = hosts_of(self._declared, state) if self._declared else ()
        ways = {host.name: host.fields for host in hosts}
        here = self.directory.resolve()
        return Backends(
            declared, here, state.lineage or "", state, self.files, ways=ways, shared=self._shared()
        )

    def _shared(self) -> bool:
        """Whether the state that was opened is kept outside of the project's folder."""
        from declarative.store.sqlite import path_of

        if self._store is None or not self._store.url.startswith("sqlite:"):
            return self._store is not None
        here = self.directory.resolve()
        return not path_of(self._store.url, here).resolve().is_relative_to(here)

    def warn(self, *, quiet: bool = False) -> None:
        """Show the warnings of loading on stderr."""
        self.say(self.warnings, quiet=quiet)

    def say(self, diagnostics: tuple[Diagnostic, ...], *, quiet: bool = False) -> None:
        """Show diagnostics on stderr."""
        if diagnostics and not quiet:
            from declarative.render import diagnostics_text, use_color

            sys.stderr.write(diagnostics_text(diagnostics, color=use_color(sys.stderr, os.environ)))


def manifests(desired: Desired) -> dict[str, Manifest]:
    """The files of all tasks, by their digest."""
    return {want.files.digest: want.files for want in desired.tasks.values() if want.files is not None}


def now() -> float:
    """Seconds since the epoch."""
    return time.time()


def emit(data: Any) -> None:
    """JSON on stdout."""
    from declarative.render import to_json

    sys.stdout.write(to_json(data))


def emit_line(data: Any) -> None:
    """One event as a line of JSON on stdout, at once."""
    from declarative.render import to_line

    sys.stdout.write(to_line(data) + "\n")
    sys.stdout.flush()


def emit_text(text: str) -> None:
    """Text on stdout, as it is, before anything that comes on stderr."""
    sys.stdout.write(text)
    Unbroken(sys.stdout).flush()


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
        from declarative.apply import VanishedError
        from declarative.store import StateError

        try:
            return function(*args, **kwargs)
        except (StateError, VanishedError) as error:
            raise failed(error.code, error.summary, error.hint) from None

    return cast("F", run)
