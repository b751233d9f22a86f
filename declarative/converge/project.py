"""One command's view of a project: its files, its state and its backends."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declarative.converge.state_access import StateAccess
from declarative.model.diagnostic import Diagnostic, InvalidError, failed
from declarative.model.record import struct

if TYPE_CHECKING:
    from declarative.apply.backends import Backends
    from declarative.apply.outages import Outages
    from declarative.language.loader import Loaded, Look
    from declarative.model.resource import Desired, Manifest
    from declarative.model.spec.policy import OperatorPolicy
    from declarative.model.state import State
    from declarative.planner.plan import Origin
    from declarative.store import Store

MOST_OF_MARK = 63
"""Characters of a project's name on its things: the most that every cloud takes."""


@struct(frozen=True, slots=True)
class CallerPermissions:
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


class ProjectSession:
    """One command's view of a project."""

    def __init__(  # each is an option of the command line
        self,
        directory: Path,
        state_url: str | None,
        variables: tuple[str, ...],
        var_files: tuple[str, ...],
        named: tuple[Path, ...] = (),
        allowed: CallerPermissions | None = None,
        say_late: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        """`say_late` is told the names of backends whose answers take long."""
        self.directory = directory
        self._allowed = allowed or CallerPermissions()
        self.state = StateAccess(directory, state_url, self.policy)
        self._variables = variables
        self._var_files = tuple(Path(f) for f in var_files)
        self._named = named
        self._say_late = say_late
        self.written: Desired | None = None
        """The loaded project before schedules apply: see `planner.tasks`."""
        self._declared: Desired | None = None
        """The loaded project, with schedules applied."""
        self.clock: Callable[[], float] = time.time
        """Seconds since the epoch, for what a command does."""
        self.outages: Outages | None = None
        """The backends that a loop leaves alone."""
        self.warnings: tuple[Diagnostic, ...] = ()
        self._read: tuple[str, ...] = ()
        """The project's files, if it was read without errors."""
        self.files: Mapping[str, Manifest] = {}
        """Digest → the files of the ranks that this command may start."""

    def policy(self) -> OperatorPolicy:
        """The permissions of the operator and the caller; `InvalidError` with all errors of the policy."""
        from declarative.language.loader.project import read_policy

        return self._allowed.with_policy(read_policy(os.environ))

    @property
    def inputs(self) -> tuple[Path, ...]:
        """The files that the command line names."""
        return (*self._named, *self._var_files)

    def close(self) -> None:
        """Give up the state's connections."""
        self.state.close()

    def pass_time(self) -> None:
        """Apply schedules to the loaded project, as of now."""
        from declarative.planner.tasks import desired_at

        self._declared = desired_at(self.written, self.clock()) if self.written else None

    def load(self, *, look: Look = "none", published: bool = False, **apart: Any) -> Loaded:
        """The project; `InvalidError` with all its errors.

        `look` is how far the files of ranks are looked at. `published`: documents are also checked with the
        published schemas, which takes a while. These never refuse what is read otherwise. `apart` may
        name files that are not read (`without`) and `more` documents.
        """
        from declarative.language.loader import load
        from declarative.planner.tasks import desired_at

        state = self.state.named
        sources = self._sources()
        loaded = load(self.directory, **sources, **apart, state=state, look=look, published=published)
        self.warnings = loaded.diagnostics
        self._read = (*loaded.files, *(str(path.absolute()) for path in self._var_files))
        self.files = {t.files.digest: t.files for t in loaded.desired.tasks.values() if t.files is not None}
        self.written = loaded.desired
        self._declared = desired_at(loaded.desired, self.clock())
        return replace(loaded, desired=self._declared)

    @property
    def current(self) -> Desired:
        """The declaration when the project was last read without errors; empty before that."""
        from declarative.model.resource import Desired

        return self._declared or Desired()

    def load_if_any(self) -> Loaded | None:
        """The project, or `InvalidError` with every error of it; None where there are no documents."""
        try:
            return self.load()
        except InvalidError as error:
            if any(d.code != "no-documents" for d in error.diagnostics):
                raise
            return None

    def declared(self, *, some: bool = False) -> Desired | None:
        """The declaration; None if there is no project, or if it has errors, which become `warnings`.

        `InvalidError` if it is not certain where the project keeps its state, or with `some` if there are
        neither documents nor a state.
        """
        from declarative.language.loader import declared_state

        self._sources()  # an error of the command line is no error of the project
        try:
            self.load()
        except InvalidError as error:
            self.warnings = tuple(d for d in error.diagnostics if d.code != "no-documents")
            if self.warnings and not self.state.named:
                # A command must not work on another state than the one that is meant.
                try:
                    elsewhere = declared_state(self.directory, **self._sources())
                except ValueError:
                    raise error from None
                if elsewhere or not self.state.default.exists():
                    raise
            if some and not self.warnings and not self.state.known:
                raise
        return self._declared

    def _sources(self) -> dict[str, Any]:
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
        from declarative.converge.actor import is_changed, who
        from declarative.language.loader import declared_name
        from declarative.planner.plan import Origin

        here = self.directory.resolve()
        top = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
        name: str | None = desired.project.name if desired else None
        if desired is None:  # whatever is wrong with its files, its name may be read
            with contextlib.suppress(InvalidError, OSError, ValueError):
                name = declared_name(self.directory, **self._sources())
        return Origin(
            project=name or here.name or None,
            environment=None if here == top else here.relative_to(top).as_posix(),
            state=_without_secrets(self.state.url(desired)),
            commit=who(self.directory).revision,
            changed=is_changed(self.directory, self._read),
        )

    def backends(self, desired: Desired | None, state: State) -> Backends:
        """The providers of this run. Hosts are reached as they are declared now, where they are."""
        from declarative.apply.backends import Backends
        from declarative.apply.parallel import on_late
        from declarative.planner.hosts import hosts_of

        on_late.set(None if self.outages else self._say_late)  # a loop tells of them itself
        declared, folder = self._declared, self.directory.resolve()
        hosts = hosts_of(declared, state) if declared else ()
        fleets = declared.fleets if declared else {}
        # Without a name its things carry that of its folder and of the one above: other teams' folders of
        # the same name are not meant.
        name = (desired.project.name if desired else None) or "-".join(folder.parts[-2:]).strip("/")
        return Backends(
            desired.backends if desired else {},
            folder,
            state.lineage or "",
            state,
            self.files,
            project=re.sub(r"[^A-Za-z0-9._-]+", "-", name)[-MOST_OF_MARK:].strip("-"),
            ways={host.name: host.fields for host in hosts if not host.whole},
            shared=self.state.shared(),
            writer=self.state.writer,
            policy=self.policy(),
            outages=self.outages,
            limits={name: fleet.unreachable_duration.seconds for name, fleet in fleets.items()},
            health={name: fleet.health for name, fleet in fleets.items()},
            hard=any(w.spec.isolation == "hard" for w in (declared.tasks.values() if declared else ())),
        )


def _without_secrets(url: str) -> str:
    """A state's URL without user, password and parameters. One that is refused later may hold any of them."""
    place = url.partition("?")[0]
    scheme, _, rest = place.partition("://")
    return place if scheme == "sqlite" else f"{scheme}://{rest.rpartition('@')[2]}" if rest else "unknown"
