"""Counts the functions that a field's value passes on its way from YAML to the backend.

    .venv/bin/python tools/value_path.py [FIELD] [--list] [--source DIR]

It runs `fleetform apply` of a tiny project on this machine, with a profile hook, until the backend has been
called with the value. A function is counted if an argument or its result holds the value, at any depth: a
whole project or plan holds it as well. `near` counts those alone that get or return the value, an object that
holds it, or an object that holds that one.

FIELD is `size` of a volume (the default), or `mount` of a task. `--list` prints the functions in the order of
their first call. `--source` measures another clone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

FLEET = {
    "type": "fleet",
    "name": "pool",
    "nodes": 1,
    "placement": "any",
    "resources": {"cpu": 1, "memory": "1GB"},
}
VOLUME = {"type": "volume", "name": "data", "size": "98317MB", "prevent_destroy": False}
TASK = {
    "type": "task",
    "name": "job",
    "commands": ["true"],
    "volumes": ["data:/mnt/passed98317"],
    "creation_policy": "reuse",
}
PROJECTS: Mapping[str, tuple[list[dict[str, Any]], str]] = {
    "size": ([FLEET, VOLUME], "98317"),
    "mount": ([FLEET, {**VOLUME, "size": "1GB"}, TASK], "passed98317"),
}
"""Field → the documents, and a text that stands in the value and nowhere else."""
ANY_DEPTH, NEAR = 12, 2
"""So many objects may lie between an argument and the value."""


class Hook:
    """The profile hook of all threads of a command."""

    def __init__(self, source: Path, mark: str) -> None:
        self.rooms = tuple(f"{source / room}/" for room in ("declarative", "providers"))
        self.backends = f"{source / 'providers'}/"
        self.mark = mark
        self.holders: dict[CodeType, None] = {}
        """In the order of their first call."""
        self.near: set[CodeType] = set()
        self.has_arrived = False

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if self.has_arrived or event not in ("call", "return") or code in self.near:
            return
        if not code.co_filename.startswith(self.rooms) or code.co_name.startswith("<"):
            return
        values = list(_arguments(frame)) if event == "call" else [result]
        if code not in self.holders and self._is_in(values, ANY_DEPTH):
            self.holders[code] = None
        if code in self.holders and self._is_in(values, NEAR):
            self.near.add(code)
            self.has_arrived = event == "call" and code.co_filename.startswith(self.backends)

    def _is_in(self, values: Iterable[Any], depth: int) -> bool:
        passed: set[tuple[int, int]] = set()
        return any(self._holds(value, depth, passed) for value in values)

    def _holds(self, value: Any, depth: int, passed: set[tuple[int, int]]) -> bool:
        if isinstance(value, str):
            return self.mark in value
        if isinstance(value, int) and not isinstance(value, bool):
            return self.mark.isdecimal() and value in (int(self.mark), int(self.mark) << 20)
        if not depth or (id(value), depth) in passed:
            return False
        passed.add((id(value), depth))
        return any(self._holds(part, depth - 1, passed) for part in _parts(value))


def _arguments(frame: FrameType) -> Iterator[Any]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs
    return (frame.f_locals[name] for name in code.co_varnames[:count] if name in frame.f_locals)


def _parts(value: Any) -> Iterator[Any]:
    """The objects that lie directly in a container, or in an object of ours."""
    if isinstance(value, dict):
        yield from [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        yield from [*value]
    elif type(value).__module__.startswith(("declarative.", "providers.")):
        yield from [*getattr(value, "__dict__", {}).values()]
        for name in _fields(type(value)):
            if hasattr(value, name):
                yield getattr(value, name)


@cache
def _fields(kind: type) -> tuple[str, ...]:
    """The attributes of a type whose objects have no `__dict__`."""
    slots = [kind.__dict__.get("__slots__", ()) for kind in kind.__mro__]
    names = [name for slot in slots for name in ((slot,) if isinstance(slot, str) else slot)]
    return tuple(dict.fromkeys((*getattr(kind, "__struct_fields__", ()), *names)))


def measured(field: str, source: Path) -> Hook:
    """The hook of an apply in a folder of its own, which is destroyed again."""
    sys.path.insert(0, str(source))
    from declarative.cli import cli

    documents, mark = PROJECTS[field]
    hook = Hook(source, mark)
    run: Callable[[list[str]], Any] = lambda words: cli(words, standalone_mode=False)  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("main.yaml").write_text("\n---\n".join(json.dumps(document) for document in documents))
        threading.setprofile(hook)
        sys.setprofile(hook)
        try:
            run(["apply", "--auto-approve", "--parallelism", "1"])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            run(["destroy", "--auto-approve"])
            os.chdir(source)
    return hook


def main() -> None:
    """Measure one field, and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("field", nargs="?", choices=PROJECTS, default="size")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parents[1])
    options = parser.parse_args()
    source = options.source.resolve()
    hook = measured(options.field, source)
    if not hook.has_arrived:
        sys.exit("no backend was called with the value")
    if options.list:
        for code in hook.holders:
            kind = "near" if code in hook.near else "    "
            file = Path(code.co_filename).relative_to(source)
            print(f"{kind} {file}:{code.co_firstlineno} {code.co_qualname}")
    for name, codes in (("all", hook.holders), ("near", hook.near)):
        print(
            f"{options.field}, {name}: {len(codes)} functions in {len({c.co_filename for c in codes})} files"
        )


if __name__ == "__main__":
    main()
