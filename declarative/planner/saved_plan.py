"""Saved plans: all that `apply` needs of a plan, and the facts that show whether it still holds.

Pure: text in, text out; `cli.plan_files` owns the file. A saved plan is self-contained. So it has what
`apply` needs of the project beside the actions: the declared backends (credentials by the names of their
variables), the names of the tasks, the state's place. `${{ env.X }}` stays as it is written: it is read when
a rank starts. No secret gets in, because none is in a plan.

The checksum guards against accidents and edits by hand. It is not a signature: anybody who may write the file
can make a new one, and `apply` runs the commands in it. Trust the file like the YAML, or sign it
(`cli.plan_files`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from declarative.model.codec import PLAN_KIND, BadDataError, outline, reader, to_data
from declarative.model.diagnostic import Diagnostic, InvalidError, is_version
from declarative.model.inputs import WORD, RankInputs
from declarative.model.manifest import Manifest
from declarative.model.record import struct
from declarative.model.schema import Problem, decode, encode
from declarative.model.spec import Backend
from declarative.planner.facts import AGAIN, Facts, digest
from declarative.planner.plan import Action, Fallback, Op, Plan

FILE_VERSION = 1
"""The format of the file and of its actions: raised when another version would do them otherwise."""


@struct(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """A plan with everything that `apply` needs of it."""

    plan: Plan
    facts: Facts
    backends: Mapping[str, Backend] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    """The names of the declared tasks: those that `--wait` follows."""
    files: Mapping[str, Manifest] = field(default_factory=dict)
    """Digest → the files of ranks that it starts: names and sums, without contents."""
    state: str
    """Where the state is, as it was given; it holds no password, those are refused."""
    directory: str
    """Where the project was: for messages, and to tell apart two states that are both empty."""
    made_by: str
    made_at: str
    project: str | None = None
    """The project's declared name, which is written on what it makes."""


@struct(frozen=True, slots=True, kw_only=True)
class _File:
    """The file's fields, in its order."""

    kind: str
    format_version: int
    layout: str
    checksum: str
    made_by: str
    made_at: str
    project: str | None = None
    directory: str
    state: str
    tasks: tuple[str, ...]
    backends: Mapping[str, Any]
    files: Mapping[str, Manifest]
    facts_digest: str
    facts: Facts
    plan: Plan


def layout() -> str:
    """A fingerprint of the fields in a file. A new field makes another format, also if nobody raised the
    version.
    """
    fields_by_class: dict[str, list[str]] = {}
    outline(_File, fields_by_class)
    return digest(fields_by_class).removeprefix("sha256:")[:12]


def dump(saved: SavedPlan) -> str:
    """The file's text: the same plan, the same bytes."""
    plan = saved.plan
    # Source lines may hold anything: only the findings and their places are kept.
    spans = {d: replace(d.span, text="") for d in plan.diagnostics if d.span}
    diagnostics = tuple(replace(d, span=spans[d]) if d in spans else d for d in plan.diagnostics)
    data: dict[str, Any] = {
        "kind": PLAN_KIND,
        "format_version": FILE_VERSION,
        "layout": layout(),
        "checksum": "",
        "made_by": saved.made_by,
        "made_at": saved.made_at,
        "project": saved.project,
        "directory": saved.directory,
        "state": saved.state,
        "tasks": list(saved.tasks),
        "backends": {name: encode(backend) for name, backend in sorted(saved.backends.items())},
        "files": to_data(dict(sorted(saved.files.items()))),
        "facts_digest": digest(to_data(saved.facts)),
        "facts": to_data(saved.facts),
        "plan": to_data(replace(plan, diagnostics=diagnostics)),
    }
    data["checksum"] = _checksum(data)
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"


def load(text: str, name: str, version: str) -> SavedPlan:
    """The plan in a file's text; `InvalidError` with one finding if it cannot be used.

    `name` is the file's, `version` this tool's: for the messages.
    """
    data, checksum = _parse(text, name)
    _check_format(data, name, version)
    if data.get("checksum") != checksum:
        raise _refused(
            "plan-edited",
            f"{name} is not as it was saved: its checksum does not match",
            f"a plan is changed in the YAML: edit that, and {AGAIN}",
        )
    try:
        file: _File = reader(_File)(data)
        backends = {key: _backend(key, value) for key, value in file.backends.items()}
        if file.project is not None and not WORD.fullmatch(file.project):
            raise BadDataError("a name").at("project")
        _sound(file.plan)
        _sound_files(file)
        if file.facts_digest != digest(to_data(file.facts)):
            raise BadDataError("the digest of the facts").at("facts_digest")
    except BadDataError as bad:
        raise _no_plan(name, str(bad)) from None
    return SavedPlan(
        plan=file.plan,
        facts=file.facts,
        backends=backends,
        tasks=file.tasks,
        files=file.files,
        state=file.state,
        directory=file.directory,
        made_by=file.made_by,
        made_at=file.made_at,
        project=file.project,
    )


def _checksum(data: Mapping[str, Any]) -> str:
    """The checksum of everything but itself, independent of the file's layout."""
    return digest({key: value for key, value in data.items() if key != "checksum"})


def _parse(text: str, name: str) -> tuple[dict[str, Any], str]:
    """The data and its checksum, which only data has that can be written again."""
    try:
        data = json.loads(text, parse_constant=_no_constant)
        checksum = _checksum(data) if isinstance(data, dict) else ""
    except RecursionError:
        raise _no_plan(name, "it is nested too deeply") from None
    except ValueError:
        raise _no_plan(name, "it is not JSON, or cut short") from None
    if not isinstance(data, dict) or data.get("kind") != PLAN_KIND:
        raise _no_plan(name, f'it does not begin with `"kind": "{PLAN_KIND}"`')
    return data, checksum


def _no_constant(text: str) -> Any:
    raise ValueError(text)


def _check_format(data: Mapping[str, Any], name: str, version: str) -> None:
    format_version, made_by = data.get("format_version"), data.get("made_by")
    same = type(format_version) is int and format_version == FILE_VERSION
    if same and data.get("layout") == layout():
        return
    by = made_by if is_version(made_by) else "of another version"
    number = (
        f"{format_version}" if type(format_version) is int and abs(format_version) < 1 << 31 else "unknown"
    )
    number += " of another build" if same else ""
    raise _refused(
        "plan-format",
        f"{name} has format {number}, made by fleetform {by}; "
        f"this is fleetform {version}, which reads format {FILE_VERSION}",
        f"apply it with fleetform {by}, or {AGAIN}" if is_version(made_by) else AGAIN,
    )


def _refused(code: str, summary: str, hint: str) -> InvalidError:
    return InvalidError((Diagnostic(code=code, summary=summary, hint=hint),))


def _no_plan(name: str, why: str) -> InvalidError:
    return _refused("not-a-plan", f"{name} is no plan that can be used: {why}", AGAIN)


def _backend(name: str, data: Any) -> Backend:
    """A backend, decoded by the language's own rules."""
    problems: list[Problem] = []
    backend = decode(Backend, data, ("backends", name), problems)
    if backend is None or problems or backend.name != name:
        raise BadDataError("a backend").at(name).at("backends")
    return backend


# ------------------------------------------------------------------------------------------ soundness


def _sound(plan: Plan) -> None:
    """`BadDataError` unless every action can be looked at and carried out in order: nobody reads further
    than this before commands are run.
    """
    done: set[str] = set()
    for index, action in enumerate(plan.actions):
        try:
            _check(action, done)
        except BadDataError as bad:
            raise bad.at(index).at("actions").at("plan") from None
        done.add(action.id)
    for index, fallback in enumerate(plan.preview.fallbacks):
        try:
            _check_ways(fallback, done)
        except BadDataError as bad:
            raise bad.at(index).at("fallbacks").at("plan") from None


def _check_ways(fallback: Fallback, done: set[str]) -> None:
    """Each way is one for all kinds of nodes, and the nodes are those that the plan makes."""
    names = [name for kind in fallback.kinds for name in kind]
    created = {name for name in names if f"create:node/{name}" in done}
    if len(set(names)) != len(names) or set(names) - created != set(fallback.idle):
        raise BadDataError("made of nodes that are created, or idle").at("kinds")
    for number, way in enumerate(fallback.ways):
        if len(way) != len(fallback.kinds):
            raise BadDataError("one offer for each kind").at(number).at("ways")


def _sound_files(file: _File) -> None:
    """`BadDataError` unless all files that ranks get are known, and lie below the project."""
    for digest_, manifest in file.files.items():
        paths = (path for entry in manifest.entries for path in (entry.path, entry.source))
        if manifest.digest != digest_ or not all(map(_is_inside, paths)):
            raise BadDataError("a list of files").at(digest_).at("files")
    for action in file.plan.of(Op.CREATE, "rank"):
        rank = action.typed
        if isinstance(rank, RankInputs) and rank.files and rank.files.digest not in file.files:
            raise BadDataError("a task's files").at(str(action.address)).at("actions")


def _is_inside(path: str) -> bool:
    return "\0" not in path and not any(part in {"", ".", ".."} for part in path.split("/"))


def _check(action: Action, done: set[str]) -> None:
    if action.id in done:
        raise BadDataError("given once").at("address")
    if not done.issuperset(action.needs):
        raise BadDataError("made of actions that come before").at("needs")
    if (action.after is None) is not (action.op is Op.DELETE):
        raise BadDataError("there for all but a delete").at("after")
    if action.op is Op.DELETE and action.before is None:
        raise BadDataError("there for a delete").at("before")
    kinds = [address.kind for address in action.holds]
    held_kinds = {"reservation": "node", "attachment": "reservation", "rank": "reservation"}
    base = held_kinds.get(action.address.kind) if action.op is Op.CREATE else None
    if base and kinds.count(base) != 1:
        raise BadDataError(f"with one {base}").at("holds")
