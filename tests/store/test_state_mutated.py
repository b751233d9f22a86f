"""A state with one invalid record is refused by the record's name, or every command can work with it."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from declarative.cli import cli
from declarative.model.state import State
from declarative.store import StateError, open_store
from declarative.store.record_changes import may_push
from declarative.store.snapshot import check_types, parse
from tests.support.cli import Project, fleet, hold, task, volume

OTHERS: tuple[Any, ...] = (None, True, -1, 10**9, 1.5, "", "other", [], ["x"], [1, [2]], {}, {"x": {"y": 1}})
"""What stands in the place of each value, in turn."""


def declare(project: Project) -> None:
    """One of each kind of thing that is recorded."""
    project.declare(
        fleet(nodes=2, blocks=2, placement="cluster", tags={"a": "b"}, env=["X=1"], resources={"cpu": 2}),
        volume(count=2),
        task(
            "train",
            "sleep 600",
            nodes=2,
            exclusive=False,
            env=["A=1"],
            resources={"cpu": 1},
            files=["main.yaml"],
            retry={"on_events": ["error"], "duration": "1h"},
            max_duration="1h",
            volumes=["data-${{ node_rank }}:/data", {"instance_path": "/tmp", "path": "/mnt"}],
        ),
    )


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a record, the record's own fields included."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key)
            yield from paths(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield (*path, index)
            yield from paths(item, (*path, index))


def mutants(data: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(what was done, the record's address, the state): one record of each kind with one thing changed."""
    seen: set[str] = set()
    for index, record in enumerate(data["records"]):
        kind = record["address"].partition("/")[0]
        if kind in seen:
            continue
        seen.add(kind)
        for path in paths(record):
            for other in (..., *OTHERS):
                made = copy.deepcopy(data)
                inner = made["records"][index]
                for part in path[:-1]:
                    inner = inner[part]
                if other is ...:
                    del inner[path[-1]]
                elif inner[path[-1]] == other and type(inner[path[-1]]) is type(other):
                    continue
                else:
                    inner[path[-1]] = other
                yield f"{path} = {other}", record["address"], made
    assert seen == {"node", "volume", "reservation", "attachment", "rank"}


def refusal(data: dict[str, Any]) -> StateError | None:
    """As `state push` refuses it; None if it is taken."""
    try:
        pushed, held = parse(data)
        check_types(pushed)
        may_push(State(), pushed, held, force=False)
    except StateError as error:
        return error
    return None


@pytest.mark.slow
def test_what_can_be_pushed_can_be_planned_with(project: Project) -> None:
    """Each key of each kind of record is dropped, replaced, given another type."""
    declare(project)
    project.apply()
    data = project.run("state", "pull").json
    assert refusal(data) is None
    runner, file = CliRunner(), project.path / "state.json"
    refused = taken = 0
    for what, address, mutant in mutants(data):
        error = refusal(mutant)
        if error is not None:
            assert error.code in ("bad-state", "contradiction"), what
            named = address in str(error) or "address" in what or "generation" in what or "id" in what
            assert named or error.code == "contradiction", f"{what}: {error}"
            refused += 1
            continue
        taken += 1
        file.write_text(json.dumps(mutant))
        for command in (["plan", "--offline"], ["status", "--offline"]):
            words = ["-C", str(project.path), *command, "--state", str(file)]
            done = runner.invoke(cli, words, obj={}, catch_exceptions=True)
            fine = done.exception is None or isinstance(done.exception, SystemExit)
            assert fine, f"{address}: {what}: {command}: {done.exception!r}"
    assert refused > 500
    assert taken > 50


def test_a_reservation_on_a_node_that_is_not_recorded_is_refused(project: Project) -> None:
    """A plan could not say what its blocks are out of."""
    project.declare(fleet(nodes=1), task("job", hold(project.path / "up")))
    project.apply()
    with closing(sqlite3.connect(project.path / ".fleetform" / "state.db")) as made:
        made.execute("UPDATE meta SET seal = NULL")
        changed = "json_set(inputs, '$.node', 'gpu-7') WHERE kind = 'reservation'"
        made.execute(f"UPDATE resources SET inputs = {changed}")
        made.commit()
    done = project.run("plan", "--offline", code=1)
    assert "reservation/job-0: `inputs.node` is not recorded" in done.err


@pytest.mark.parametrize("need", ["reservation/job-0", "rank/job-0"])
def test_what_needs_itself_or_what_is_made_after_it_is_refused(project: Project, need: str) -> None:
    """Nothing of it could be deleted first."""
    project.declare(fleet(nodes=1), task("job", hold(project.path / "up")))
    project.apply()
    state = project.run("state", "pull").json
    next(r for r in state["records"] if r["address"] == "reservation/job-0")["needs"].append(need)
    project.write("state.json", json.dumps(state))
    project.declare(fleet(nodes=1, resources={"cpu": 1}), task("job", "true"))
    done = project.run("plan", "--offline", "--state", "state.json", code=1)
    assert "reservation/job-0: `needs` is not a list of what is made before it" in done.err


def test_a_state_that_was_tampered_with_is_refused_by_name(project: Project) -> None:
    """A stranger's project brings it along; what mends it still works."""
    project.declare(fleet(nodes=1))
    project.apply()
    with closing(sqlite3.connect(project.path / ".fleetform" / "state.db")) as made:
        made.execute("UPDATE resources SET inputs = json_remove(inputs, '$.region')")
        made.commit()
    for command in (["plan", "--offline"], ["plan"], ["status"], ["apply", "--auto-approve"]):
        done = project.run(*command, code=1)
        assert "error[damaged]" in done.err
        assert "node/gpu-0: `inputs.region` is not there" in done.err
    assert "node/gpu-0: `inputs.region` is not there" in project.run("state", "check", code=1).out
    assert "node/gpu-0" in project.run("state", "list").out
    project.write("bad.json", project.run("state", "pull").out)
    assert "node/gpu-0: `inputs.region`" in project.run("state", "push", "--force", "bad.json", code=1).err
    project.run("state", "rm", "--auto-approve", "node/gpu-0")
    assert "node/gpu-0" not in project.run("state", "list").out


ROWS = {
    "resources": ("backend", "inputs", "outputs", "generation", "kind", "name"),
    "rank_status": ("state", "exit_code", "started_at", "ended_at", "mounted", "cause"),
    "node_status": ("state", "observed_at", "idle_since", "can", "reason"),
    "generations": ("generation", "address"),
    "meta": ("lineage", "serial", "format_version"),
    "operations": ("op", "address", "inputs", "begun_at", "needs"),
}


@pytest.mark.slow
def test_no_row_of_a_strangers_state_ends_in_a_traceback(project: Project, tmp_path: Path) -> None:
    """Each column of each table holds what it never does."""
    declare(project)
    project.apply()
    whole = (project.path / ".fleetform" / "state.db").read_bytes()
    runner, file = CliRunner(), tmp_path / "state.db"
    for table, columns in ROWS.items():
        for column in columns:
            for value in ("other", -1, 1.5, "[1]", '{"x": 1}', "null", b"\xff", ""):
                file.write_bytes(whole)
                with closing(sqlite3.connect(file)) as made:
                    made.execute("PRAGMA ignore_check_constraints=ON")
                    with contextlib.suppress(sqlite3.IntegrityError):
                        made.execute(f"UPDATE {table} SET {column} = ?", (value,))
                    made.commit()
                for command in (["plan", "--offline"], ["status", "--offline"]):
                    words = ["-C", str(project.path), *command, "--state", f"sqlite:///{file}"]
                    done = runner.invoke(cli, words, obj={})
                    fine = done.exception is None or isinstance(done.exception, SystemExit)
                    assert fine, f"{table}.{column} = {value!r}: {command}: {done.exception!r}"


def damaged(whole: bytes, seed: int) -> bytes:
    """One bit flipped, or a page of it overwritten."""
    chance = random.Random(seed)
    out, page = bytearray(whole), 4096
    if seed % 5:
        at = chance.randrange(len(out) * 8)
        out[at // 8] ^= 1 << at % 8
    else:
        start = chance.randrange(len(out) // page) * page
        of = chance.choice(("zeros", "noise", "another"))
        other = chance.randrange(len(out) // page) * page
        new = {"zeros": bytes(page), "noise": chance.randbytes(page), "another": whole[other : other + page]}[
            of
        ]
        out[start : start + page] = new
    return bytes(out)


def told(url: str) -> Any:
    """All that is recorded, or that it cannot be read."""
    try:
        with open_store(url, read_only=True) as store:
            return store.pull()
    except StateError:
        return None


def try_damage(project: Project, file: Path, whole: bytes, seeds: Iterable[int]) -> Counter[str]:
    """Damage a state in many ways; returns how often each result occurred. No traceback, and no unnoticed
    damage.
    """
    runner, url, count = CliRunner(), f"sqlite:///{file}", Counter[str]()
    file.write_bytes(whole)
    before = told(url)
    for seed in seeds:
        file.write_bytes(damaged(whole, seed))
        for beside in ("-wal", "-shm", "-journal"):
            Path(f"{file}{beside}").unlink(missing_ok=True)
        changed = told(url) != before
        codes, sound = [], False
        for command in (["plan"], ["state", "check"], ["status", "--offline"], ["apply", "--auto-approve"]):
            words = ["-C", str(project.path), *command, "--state", url]
            done = runner.invoke(cli, words, obj={})
            fine = done.exception is None or isinstance(done.exception, SystemExit)
            assert fine, f"seed {seed}: {command}: {done.exception!r}"
            assert "Traceback" not in done.output
            codes.append(done.exit_code)
            sound = sound or "The state is sound." in done.output
            if command == ["plan"] and done.exit_code:
                assert "error[" in done.output, f"seed {seed}: {done.output}"
        seen = codes[0] == 1 and codes[3] == 1
        if changed:
            assert seen, f"seed {seed}: the state says something else, and nobody noticed: {codes}"
            assert not sound, f"seed {seed}: `state check` calls it sound"
        count["changed" if changed else "refused" if seen else "no matter"] += 1
    return count


FUZZED = int(os.environ.get("FLEETFORM_FLIPS", "40"))


@pytest.mark.slow
def test_damage_that_says_something_else_is_found_before_an_apply(project: Project, tmp_path: Path) -> None:
    """Flipped bits and broken pages, by seed: `FLEETFORM_FLIPS=320` tries as many."""
    declare(project)
    project.apply()
    whole = (project.path / ".fleetform" / "state.db").read_bytes()
    count = try_damage(project, tmp_path / "state.db", whole, range(FUZZED))
    print(count)
    assert sum(count.values()) == FUZZED
    assert count["changed"]
