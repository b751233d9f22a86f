"""A command's view of the project, its state and its backends; and the decorator that commands get it by."""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from declarative.cli import output
from declarative.cli.errors import Failed, failed
from declarative.cli.options import project_options
from declarative.cli.state_access import StateAccess, of_state
from declarative.model.diagnostic import Diagnostic, InvalidError, Severity, in_order
from declarative.model.record import struct

if TYPE_CHECKING:
    from declarative.apply.backends import Backends
    from declarative.apply.outages import Outages
    from declarative.language.loader import Loaded, Look
    from declarative.model.manifest import Manifest
    from declarative.model.resource import Desired
    from declarative.model.spec.policy import OperatorPolicy
    from declarative.model.state import State
    from declarative.planner.inventory import Inventory
    from declarative.planner.types import Origin, Plan, Spent
    from declarative.store import Store

F = TypeVar("F", bound=Callable[..., Any])
MOST_OF_MARK = 63
"""Characters of a project's name on its things: the most that every cloud takes."""


@struct(frozen=True, slots=True)
class Allowed:
    """The caller's permissions for the project: they count where the operator's policy is silent."""

    commands: bool = False
    paths: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()

    def with_policy(self, policy: OperatorPolicy) -> OperatorPolicy:
        """Both together."""
        return replace(
            policy,
            paths=(*policy.paths, *(str(Path(p).absolute()) for p in self.paths)),
            allow_commands=policy.allow_commands or self.commands,
            more_variables=(*policy.more_variables, *self.variables),
        )


class Session:
    """One command's view of a project."""

    def __init__(  # each is an option of the command line
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
        self.written: Desired | None = None
        """The loaded project before schedules apply: see `planner.tasks`."""
        self._declared: Desired | None = None
        """The loaded project, with schedules applied."""
        self.clock: Callable[[], float] = now
        """Seconds since the epoch, for what a command does."""
        self.outages: Outages | None = None
        """The backends that a loop leaves alone."""
        self.warnings: tuple[Diagnostic, ...] = ()
        self._read: tuple[str, ...] = ()
        """The project's files, if it was read without errors."""
        self.files: Mapping[str, Manifest] = {}
        """Digest → the files of the ranks that this command may start."""

    def policy(self) -> OperatorPolicy:
        """The permissions of the operator and the caller; `Failed` with all errors of the policy."""
        from declarative.language.loader.project import read_policy

        try:
            return self._allowed.with_policy(read_policy(os.environ))
        except InvalidError as error:
            raise Failed(error.diagnostics) from None

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that the command line names."""
        return (*self._named, *self._var_files)

    def close(self) -> None:
        """Give up the state's connections."""
        self.state.close()

    def pass_time(self) -> None:
        """Apply schedules to the loaded project, as of now."""
        from declarative.planner.tasks import at

        self._declared = at(self.written, self.clock()) if self.written else None

    def load(self, *, look: Look = "none", published: bool = False, **apart: Any) -> Loaded:
        """The project; `Failed` with all its errors.

        `look` is how far the files of ranks are looked at. `published`: documents are also checked with the
        published schemas, which takes a while. These never refuse what is read otherwise. `apart` are the
        files `without` which it is read, and `more` documents.
        """
        try:
            return self._load(look=look, published=published, **apart)
        except InvalidError as error:
            raise Failed(error.diagnostics) from None

    @property
    def current(self) -> Desired:
        """The declaration when the project was last read without errors; empty before that."""
        from declarative.model.resource import Desired

        return self._declared or Desired()

    def load_if_any(self) -> Loaded | None:
        """The project, or `Failed` with every error of it; None where there are no documents."""
        try:
            return self.load()
        except Failed as error:
            if any(d.code != "no-documents" for d in error.diagnostics):
                raise
            return None

    def declared(self, *, warn: bool = False, some: bool = False) -> Desired | None:
        """The declaration; None if there is no project, or if it has errors, which become warnings.

        `warn` shows the warnings. `Failed` if it is not certain where the project keeps its state, or with
        `some` if there are neither documents nor a state.
        """
        try:
            self._load(look="none", published=False)
        except InvalidError as error:
            self.warnings = tuple(d for d in error.diagnostics if d.code != "no-documents")
            self._check_where(error)
            if some and not self.warnings and not self.state.known:
                raise Failed(error.diagnostics) from None
        if warn:
            self.say(self.warnings)
            if has_errors(self.warnings):
                sys.stderr.write(
                    "The project has errors: this command goes on without its documents, from the state.\n"
                )
        return self._declared

    def _load(self, *, look: Look, published: bool, **apart: Any) -> Loaded:
        from declarative.language.loader import load
        from declarative.planner.tasks import at

        state = self.state.named
        loaded = load(self.directory, **self._given(), **apart, state=state, look=look, published=published)
        self.warnings = loaded.diagnostics
        self._read = (*loaded.files, *(str(path.absolute()) for path in self._var_files))
        self.files = {t.files.digest: t.files for t in loaded.desired.tasks.values() if t.files is not None}
        self.written = loaded.desired
        self._declared = at(loaded.desired, self.clock())
        return replace(loaded, desired=self._declared)

    def _check_where(self, error: InvalidError) -> None:
        """`Failed` with all errors of the project unless it keeps its state in the default place: a command
        must not work on another state than the one that is meant.
        """
        from declarative.language.loader import declared_state

        if self.state.named or not self.warnings:
            return
        try:
            elsewhere = declared_state(self.directory, **self._given())
        except ValueError:
            raise Failed(error.diagnostics) from None
        if elsewhere or not self.state.default.exists():
            raise Failed(error.diagnostics)

    def _given(self) -> dict[str, Any]:
        """The project's files and variables of the command line."""
        variables: dict[str, str] = {}
        for text in self._variables:
            name, equals, value = text.partition("=")
            if not equals:
                raise failed("usage", f"`--var {text}` has no value", f"write `--var {text}=…`")
            variables[name] = value
        return {
            "named": self._named,
            "variables": variables,
            "var_files": self._var_files,
            "environ": os.environ,
        }

    def store(
        self, *, write: bool = False, create: bool = False, typed: bool = False, anew: bool = False
    ) -> Store:
        """The state, for commands that look into records or correct them; the project may have errors."""
        return self.state.open(self.declared(), write=write, create=create, typed=typed, anew=anew)

    def origin(self, desired: Desired | None) -> Origin:
        """Which project this run is of: for the first line of plans, and for questions."""
        from declarative.cli.actor import is_changed, who
        from declarative.planner.types import Origin

        here = self.directory.resolve()
        top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
        return Origin(
            project=(desired.project.name if desired else self._declared_name()) or here.name or None,
            environment=None if here == top else here.relative_to(top).as_posix(),
            state=_without_secrets(self.state.url(desired)),
            commit=who(self.directory).revision,
            changed=is_changed(self.directory, self._read),
        )

    def _declared_name(self) -> str | None:
        """The project's name, whatever else is wrong with its files; None if it cannot be read."""
        from declarative.language.loader import declared_name

        try:
            return declared_name(self.directory, **self._given())
        except (Failed, InvalidError, OSError, ValueError):
            return None

    def backends(self, desired: Desired | None, state: State) -> Backends:
        """The providers of this run. Hosts are reached as they are declared now, where they are."""
        from declarative.apply.backends import Backends
        from declarative.apply.parallel import on_late
        from declarative.planner.hosts import hosts_of

        on_late.set(None if self.outages else output.say_late)  # a loop tells of them itself
        declared = self._declared
        hosts = hosts_of(declared, state) if declared else ()
        fleets = declared.fleets if declared else {}
        return Backends(
            desired.backends if desired else {},
            self.directory.resolve(),
            state.lineage or "",
            state,
            self.files,
            project=_mark_of(desired.project.name if desired else None, self.directory.resolve()),
            ways={host.name: host.fields for host in hosts if not host.whole},
            shared=self.state.shared(),
            fence=self.state.fence,
            changing=self.state.changing,
            learn=self.state.learn,
            policy=self.policy(),
            outages=self.outages,
            limits={name: fleet.unreachable_duration.seconds for name, fleet in fleets.items()},
            hard=any(want.spec.isolation == "hard" for want in declared.tasks.values())
            if declared
            else False,
        )

    def say(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        """Show diagnostics on stderr."""
        if diagnostics:
            from declarative.render.diagnostics import diagnostics_text
            from declarative.render.text import use_color

            sys.stderr.write(diagnostics_text(diagnostics, color=use_color(sys.stderr, os.environ)))


def _mark_of(name: str | None, folder: Path) -> str:
    """The project's name as things carry it: without one, its folder's with that folder's own, so that other
    teams' folders of that name are not meant.
    """
    text = name or "-".join(folder.parts[-2:]).strip("/")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[-MOST_OF_MARK:].strip("-")


def _without_secrets(url: str) -> str:
    """A state's URL without user, password and parameters. One that is refused later may hold any of them."""
    place = url.partition("?")[0]
    scheme, _, rest = place.partition("://")
    return place if scheme == "sqlite" else f"{scheme}://{rest.rpartition('@')[2]}" if rest else "unknown"


def project_command(command: F, *, short_names: tuple[str, ...] = ("-f",)) -> F:
    """Give a command the options of the project and the state, and a `Session` first. Errors of the state
    become messages.

    `short_names` is what `--file` is called too.
    """

    @functools.wraps(command)
    @click.pass_context
    def run(ctx: click.Context, /, **options: Any) -> Any:
        session = Session(
            Path(ctx.obj["directory"]),
            options.pop("state_url"),
            options.pop("variables"),
            options.pop("var_files"),
            options.pop("files"),
            Allowed(options.pop("commands"), options.pop("paths"), options.pop("allowed_variables")),
        )
        ctx.call_on_close(session.close)
        _trace(ctx)
        try:
            return ctx.invoke(state_errors(command), session, **options)
        except Failed as error:
            if options.get("as_json") or getattr(options.get("reports"), "printed", None) == "json":
                error.use_json(ctx.info_name)
            raise

    return project_options(cast("F", run), short_names)


def _trace(ctx: click.Context) -> None:
    """Send traces until the command ends, if the environment asks for them."""
    from declarative import spans

    if spans.wanted(os.environ):
        try:
            ctx.call_on_close(spans.trace())
        except ImportError:
            sys.stderr.write("no traces: install fleetform with the extra `opentelemetry`\n")


def state_errors(function: F) -> F:
    """Turn errors of the state into messages, in a function whose first argument is a session."""

    @functools.wraps(function)
    def run(session: Session, *args: Any, **kwargs: Any) -> Any:
        from declarative.store import StateError

        try:
            return function(session, *args, **kwargs)
        except StateError as error:
            raise of_state(error, session.directory) from None

    return cast("F", run)


def now() -> float:
    """Seconds since the epoch."""
    return time.time()


def has_errors(diagnostics: tuple[Diagnostic, ...]) -> bool:
    """Whether any of them is an error."""
    return any(d.severity is Severity.ERROR for d in diagnostics)


def check_requested(requested: Iterable[str], desired: Desired, state: State | None = None) -> None:
    """`Failed` unless `--replace` names declared tasks, recorded and declared volumes, or nodes that a
    declared fleet launched. Without a `state` only the declaration is checked.
    """
    known, hosts = _replaceable(desired, state)
    for address in requested:
        if address not in known and (state is not None or not address.startswith("node/")):
            raise _not_replaceable(address, known, hosts)


def _replaceable(desired: Desired, state: State | None) -> tuple[list[str], set[str]]:
    """The addresses that `--replace` takes, and those of hosts, which cannot be made anew."""
    known = [f"task/{name}" for name in desired.tasks]
    if state is None:
        return known + [f"volume/{name}" for name in desired.volumes], set()
    nodes = [r for r in state.of("node") if r.node.fleet in desired.fleets]
    known += [str(r.address) for r in nodes if not r.node.host]
    known += [f"volume/{name}" for name in desired.volumes if state.get("volume", name)]
    return known, {str(r.address) for r in nodes if r.node.host}


def _not_replaceable(address: str, known: list[str], hosts: set[str]) -> Failed:
    from declarative.model.diagnostic import suggest

    kind, _, name = address.partition("/")
    if address in hosts:
        hint = f"`fleetform drain {name}`, repair it, then `fleetform undrain {name}`"
        return failed("usage", f"`{address}` is a host that exists: it cannot be made anew", hint)
    task = f"task/{name.rpartition('-')[0]}" if kind == "rank" else f"task/{address}"
    near = f"write `{task}`: a task goes as a whole" if task in known else suggest(address, known)
    hint = near or "write `task/NAME` or `volume/NAME` as it is declared, or `node/NAME` of a node"
    if kind == "fleet":
        return failed(
            "usage", f"`{address}` is not replaced as a whole", "write `node/NAME` for each of its nodes"
        )
    what = {"node": "launched node", "volume": "recorded volume"}.get(kind, "task")
    return failed("unknown-address", f"`{address}` is not a {what} of this project", hint)


def allowing(plan: Plan, unplaced: bool | None) -> Plan:
    """The plan, with what `--allow-unplaced` or `--no-allow-unplaced` says; None if neither was given."""
    return plan if unplaced is None else replace(plan, unplaced=replace(plan.unplaced, allowed=unplaced))


def part_of(
    planned: Callable[..., Plan],
    desired: Desired,
    state: State,
    inventory: Inventory,
    asked: tuple[tuple[str, ...], tuple[str, ...]],
    *,
    spent: Spent | None,
    among: str = "in this project",
) -> Plan:
    """The part of a plan that `--target` and `--exclude` ask for, held against the project's limits; `Failed`
    where one of them names nothing; `among` says of what. `planned` makes the plan, without the
    tasks `aside`.
    """
    from declarative.planner.inventory import effective
    from declarative.planner.limits import limited
    from declarative.planner.renamed import refused_with

    whole = plan = planned()
    if any(asked):
        plan = _part(whole, planned, desired, state, inventory, asked, among)
    cost = replace(plan.preview.cost, spent=spent)
    plan = limited(replace(plan, preview=replace(plan.preview, cost=cost)), desired)
    if not any(asked):
        return plan
    errors = refused_with(plan, limited(whole, desired), desired, effective(state, inventory))
    return replace(plan, diagnostics=in_order((*plan.diagnostics, *errors)))


def _part(  # what `part_of` was given
    plan: Plan,
    planned: Callable[..., Plan],
    desired: Desired,
    state: State,
    inventory: Inventory,
    asked: tuple[tuple[str, ...], tuple[str, ...]],
    among: str,
) -> Plan:
    from declarative.planner.inventory import effective
    from declarative.planner.partial import addresses_of, partial, roomy

    known = {*addresses_of(plan, state), *(v.declared_by for v in desired.volumes.values())}
    for kind, names in (("task", desired.tasks), ("fleet", desired.fleets), ("volume", desired.volumes)):
        known |= {f"{kind}/{name}" for name in names}
    targets, excludes = asked
    for pattern in (*targets, *excludes):
        _check_pattern(pattern, known, among)
    sizes = {name: fleet.nodes.target for name, fleet in desired.fleets.items() if fleet.nodes}
    seen = effective(state, inventory)
    cut = functools.partial(partial, state=seen, targets=targets, excludes=excludes, sizes=sizes)
    return roomy(plan, planned, cut, seen)


def _check_pattern(pattern: str, known: set[str], among: str) -> None:
    from fnmatch import fnmatchcase

    from declarative.model.diagnostic import suggest

    if not any(fnmatchcase(name, pattern) for name in known):
        named = [
            f"`{kind}/{pattern}`" for kind in ("task", "fleet", "volume") if f"{kind}/{pattern}" in known
        ]
        hint = suggest(pattern, sorted(known)) or "write `task/NAME`, `fleet/NAME`, or `volume/NAME`"
        hint = f"write {' or '.join(named)}" if named else hint
        raise failed("unknown-address", f"`{pattern}` names nothing {among}", hint)


def check_refresh(refresh_only: bool, given: Iterable[object]) -> None:
    """`Failed` if an option that is `given` beside `--refresh-only` changes what is done."""
    if refresh_only and any(given):
        hint = "leave the other options out, or `--refresh-only`"
        raise failed("usage", "`--refresh-only` does nothing but to look and to record", hint)


def allowed_work(asked: int | None, *, offline: bool) -> int | None:
    """The units that a plan may take. Offline it may be a stranger's."""
    from declarative.planner.limits import OFFLINE_WORK

    return OFFLINE_WORK if asked is None and offline else asked
