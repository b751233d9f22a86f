"""The configured backends of one run: each provider is made once, when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from declarative.apply.renamed import Renamed
from declarative.provider import Config, PermanentError, PermanentKind, Provider, UnknownProviderError, load
from declarative.resource import LOCAL
from declarative.spec import Backend


class Backends:
    """Providers by the name of their backend. Safe to use from many threads."""

    def __init__(self, declared: Mapping[str, Backend], project_dir: Path, lineage: str) -> None:
        self.declared = declared
        self.project_dir = project_dir
        self.lineage = lineage
        self._made: dict[str, Provider] = {}
        self._turn = threading.Lock()

    def names(self) -> tuple[str, ...]:
        """The declared backends, or `local` where there is none."""
        return tuple(sorted({*self.declared, LOCAL}))

    def get(self, name: str | None) -> Provider:
        """The provider of a backend; `PermanentError` if there is none."""
        name = name or LOCAL
        with self._turn:
            if name not in self._made:
                self._made[name] = self._make(name)
            return self._made[name]

    def _make(self, name: str) -> Provider:
        backend = self.declared.get(name)
        config = Config(
            backend=name,
            project_dir=self.project_dir,
            lineage=self.lineage,
            regions=backend.regions if backend else (),
            zones=backend.availability_zones if backend else (),
            options=backend.options if backend else {},
        )
        if backend is None and name != LOCAL:
            hint = f"declare `type: backend` with `name: {name}` again until nothing of it is left"
            raise PermanentError(PermanentKind.NOT_FOUND, f"backend {name} is not declared", hint=hint)
        try:
            return Renamed(load(backend.provider if backend else LOCAL, config))
        except UnknownProviderError as error:
            raise PermanentError(PermanentKind.NOT_FOUND, str(error), hint=error.hint) from None
