"""Converts documents of dstack to drafts of our documents."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from declarative.language.importers.drafts import (
    Commands,
    Draft,
    Noted,
    known_backends,
    list_of,
    name_of,
    note_clone,
    note_rights,
)
from declarative.language.source import Document, Path
from declarative.model.schema import BadValueError, fields_of, ignored_of
from declarative.model.spec import DOCUMENTS, Resources
from declarative.model.spec.task import Files, Repos
from declarative.model.spec.values import Gpu

_SECRET = re.compile(r"\$\{\{\s*secrets\.(\w+)\s*\}\}", re.ASCII)
_KNOWN = r"env\.\w+|var\.\w+|groups\[\d+\]\.nodes\[\d+\]\.IP_ADDRESS|(?:dstack\.)?(?:node_rank|job_num)"
_OTHER = re.compile(rf"\$\{{\{{(?!\s*(?:{_KNOWN})\s*\}}\}})", re.ASCII)
_SERVING = {
    *("port", "model", "replicas", "scaling", "rate_limits", "auth", "https", "gateway", "probes", "router"),
    *("rolling_deployment", "strip_prefix", "path_prefix", "cors"),
}


def from_dstack(document: Document, default: str) -> list[Draft]:
    """The drafts for one document of dstack, called `default` if it has no name. If it has no counterpart,
    the draft has only notes.
    """
    kind = document.data.get("type")
    data = dict(document.data)
    if kind == "service" and "replica_groups" not in data and isinstance(data.get("commands", []), list):
        return [_service(data, default, document)]
    if kind not in ("task", "fleet", "volume"):
        why = (
            "a machine to work on is a `task`, and `fleetform ssh`"
            if kind == "dev-environment"
            else "no counterpart"
        )
        what = "without a `type`" if kind is None else f"of the type `{kind}`"
        draft = Draft("", document=document)
        draft.note(f"left out a document {what}: {why}", ("type",))
        return [draft]
    schedule = data.get("schedule")
    crons = schedule.get("cron") if isinstance(schedule, Mapping) else None
    if not isinstance(schedule, Mapping) or not isinstance(crons, list) or not crons:
        return [_draft(str(kind), data, default, document)]
    times = _joined_times(crons)
    drafts = [
        _draft(str(kind), {**data, "schedule": {**schedule, "cron": time}}, default, document)
        for time in times
    ]
    if len(times) > 1:
        drafts[0].note(f"`schedule.cron` has {len(times)} times: each is a task", ("schedule", "cron"))
    return drafts


def _service(data: dict[str, Any], default: str, document: Document) -> Draft:
    draft = _draft("task", {k: v for k, v in data.items() if k not in _SERVING}, default, document)
    what = "as a task it runs until it is stopped, and nothing routes to it"
    draft.notes.insert(0, f"a service of dstack: {what}")
    for key in (key for key in data if key in _SERVING):
        draft.drop(key, "services have no counterpart", (key,), document.data[key])
    return draft


_VENDORS = {"tpu": "google", "tt": "tenstorrent"}
"""dstack's short names of vendors."""
_OF_RESOURCES = ("gpu", "gpus", "cpu", "memory")
"""Fields that belong into `resources`. Without them, the task would run on other nodes."""


def _draft(kind: str, data: dict[str, Any], default: str, document: Document) -> Draft:
    draft = Draft(kind, document=document)
    cls = DOCUMENTS[kind]
    known = {f.name for f in fields_of(cls)}
    foreign: Mapping[str, str] = getattr(cls, "FOREIGN", {})
    draft.fields["name"] = name_of(data.get("name"), default, draft.notes)
    for key, value in data.items():
        if key in ("type", "name") or value is None:
            continue
        if key == "backend" and "backends" in known and "backends" not in data:
            draft.fields["backends"] = known_backends(draft, [value], "backend")
            continue
        if key in ignored_of(cls):
            draft.drop(key, ignored_of(cls)[key], (key,), value)
        elif key in _OF_RESOURCES:
            draft.refuse(f"`{key}` is no field of dstack: write it in `resources`", (key,))
        elif key not in known:
            draft.drop(key, foreign.get(key, "no field of fleetform"), (key,), value)
        elif key == "backends" and isinstance(value, list):
            draft.fields[key] = known_backends(draft, value)
        else:
            draft.fields[key] = _plain(value, draft, (key,))
    if kind == "task":
        _fit_task(draft)
    _fit(draft)
    return draft


def _fit(draft: Draft) -> None:
    """Write some fields in our notation, and leave out fields that have no effect or are wrong."""
    fields = draft.fields
    if isinstance(resources := fields.get("resources"), dict):
        for key in [key for key in resources if key in ignored_of(Resources)]:
            value = resources.pop(key)
            draft.drop(f"resources.{key}", ignored_of(Resources)[key], ("resources", key), value)
        _without_arch(draft, resources)
        gpu = resources.get("gpu")
        if isinstance(gpu, str):
            resources["gpu"] = ":".join(_VENDORS.get(part.strip().lower(), part) for part in gpu.split(":"))
        elif isinstance(gpu, Mapping) and isinstance(gpu.get("vendor"), str):
            resources["gpu"] = {**gpu, "vendor": _VENDORS.get(gpu["vendor"].lower(), gpu["vendor"])}
    _ask_by_default(draft)
    if fields.get("backend"):
        fields["backend"] = known_backends(draft, [fields["backend"]], "backend")[0]
    for key in ("privileged", "registry_auth"):
        if "image" not in fields and key in fields:
            del fields[key]
            draft.drop(key, "without an `image`, commands are processes of the node's user", (key,))


_SIZES = {"cpu": "2..", "memory": "8GB..", "disk": "100GB.."}
"""dstack's default sizes."""


def _ask_by_default(draft: Draft) -> None:
    """Write dstack's default sizes where the file has none, since here the smallest node would do. And its
    default vendor of GPUs, for a task on dstack's default image.
    """
    fields = draft.fields
    if draft.kind == "volume" or {"ssh_config", "instance_ids", "partition"} & set(fields):
        return
    groups = [group for group in list_of(fields.get("groups")) if isinstance(group, dict)]
    for each in [group for group in groups if group.get("resources")] or [fields]:
        if each.get("resources") is None:
            each["resources"] = {}
        if isinstance(resources := each["resources"], dict):
            for key, size in _SIZES.items():
                if resources.get(key) is None:
                    resources[key] = Noted(size, "dstack's default")
            if draft.kind == "task" and "image" not in fields and "gpu" in resources:
                resources["gpu"] = _of_nvidia(resources["gpu"])


def _of_nvidia(gpu: Any) -> Any:
    """The GPUs as NVIDIA's, if neither model nor vendor is named. A value that is not valid stays."""
    note = "dstack's default vendor, without an `image`"
    with contextlib.suppress(BadValueError):
        asked = Gpu.parse(gpu)
        if asked.count.max != 0 and not (asked.names or asked.vendor):
            as_dict = isinstance(gpu, dict)
            return {"vendor": Noted("nvidia", note), **gpu} if as_dict else Noted(f"nvidia:{gpu}", note)
    return gpu


def _without_arch(draft: Draft, resources: dict[str, Any]) -> None:
    """Leave out the architecture of CPUs: `x86:8..` and `{arch: arm, count: 8..}` become `8..`."""
    cpu = resources.get("cpu")
    arch: Any = None
    rest: Any = None
    if isinstance(cpu, str):
        words = [part for part in cpu.split(":") if part.strip().isalnum() and part.strip()[0].isalpha()]
        rest = ":".join(part for part in cpu.split(":") if part not in words)
        arch = words[0].strip() if words else None
    elif isinstance(cpu, Mapping):
        arch, rest = cpu.get("arch"), cpu.get("count")
    if arch is None:
        return
    if rest in (None, ""):
        del resources["cpu"]
    else:
        resources["cpu"] = rest
    why = "the backend's `image` and the fleet's `instance_types` choose the architecture"
    draft.drop("resources.cpu: architecture", why, ("resources", "cpu"), arch)


_OLD_FOLDER = "/workflow"
"""The folder of the repository, where commands started, before dstack's version 0.20."""


def _fit_task(draft: Draft) -> None:
    """Write folders, fleets and versions of Python in our notation."""
    fields = draft.fields
    if isinstance(python := fields.get("python"), float):
        fields["python"] = "3.10" if python == 3.1 else str(python)
    if isinstance(fleets := fields.get("fleets"), list):
        for i, name in enumerate(fleets):
            if isinstance(name, str) and name.count("/") == 1:
                fleets[i] = name.partition("/")[2]
                why = f"a fleet of another project; declare `{fleets[i]}` in this one"
                draft.note(f"`fleets` ({name}): {why}", ("fleets", i))
    for i, item in enumerate(list_of(fields.get("volumes"))):
        folder = item.get("instance_path") if isinstance(item, Mapping) else str(item).partition(":")[0]
        if str(folder).startswith("/") and not (isinstance(item, Mapping) and item.get("optional")):
            why = "dstack makes it where it is missing, and here the rank fails: make it on the nodes"
            draft.note(f"`volumes` ({folder}) is a folder of the node: {why}", ("volumes", i))
    commands = _commands(draft)
    for path, text in commands:
        draft.note_variables(text, path)
    _fit_folders(draft, commands)
    mounted = [
        str(each["path"]) if isinstance(each, Mapping) else each.rpartition(":")[2]
        for each in list_of(fields.get("volumes"))
        if isinstance(each, str) or (isinstance(each, Mapping) and each.get("path"))
    ]
    note_rights(draft, commands, "dstack", mounted)


def _commands(draft: Draft) -> Commands:
    """All commands of the task, those of its groups too."""
    groups = list_of(draft.fields.get("groups"))
    within: list[tuple[Path, Any]] = [
        ((), draft.fields),
        *((("groups", i), group) for i, group in enumerate(groups)),
    ]
    return [
        ((*path, "commands", i), str(command))
        for path, each in within
        for i, command in enumerate(list_of(each.get("commands")) if isinstance(each, Mapping) else ())
    ]


def _fit_folders(draft: Draft, commands: Commands) -> None:
    """Write paths from the rank's own folder, where files are sent. A clone may lie anywhere."""
    fields = draft.fields
    folder = fields.get("working_dir")
    absolute = isinstance(folder, str) and folder.startswith("/")
    if commands and "repos" not in fields and "files" not in fields:
        why = "write `repos: [.]` if the commands need files of this folder"
        draft.note(
            f"nothing is sent: before its version 0.20, dstack sent the current repository; {why}",
            commands[0][0],
        )
    root = _repo_folder(draft)
    clones: list[dict[str, Any]] = []  # in their long form; none if `repos` are folders of the project
    with contextlib.suppress(BadValueError):
        plain: Any = Repos.parse(fields.get("repos") or []).plain()
        clones = [dict(item) for item in plain if "url" in item]
    if absolute and clones and not fields.get("files"):  # dstack clones into the folder where commands start
        fields["repos"] = clones = [{**clone, "path": clone.get("path", folder)} for clone in clones]
    _fit_files(draft, str(folder) if absolute else root or _OLD_FOLDER)
    sent = "files" if fields.get("files") else "repos" if fields.get("repos") and not clones else ""
    if absolute and sent:
        why = f"what `{sent}` sends lies in the rank's own folder, and commands start there"
        inner = _below(str(folder), root) if root else None
        if inner is None or inner == ".":
            del fields["working_dir"]
            draft.drop("working_dir", why, ("working_dir",), folder)
        else:
            fields["working_dir"] = inner
            draft.note(
                f"`working_dir` ({folder}) is now `{inner}`: what `{sent}` sends is above it",
                ("working_dir",),
            )
    if sent:
        note_clone(draft, commands)
    empty = {_OLD_FOLDER, root or _OLD_FOLDER, folder if absolute and sent else _OLD_FOLDER}
    empty -= {str(clone.get("path")) for clone in clones}
    for path, text in commands if sent or clones else ():
        for name in sorted(map(str, empty)):
            if re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w.-])", text):
                what = f"what `{sent}` sends" if sent else "the clone"
                why = f"{what} is not there, but where the commands start"
                draft.note(f"`commands` name `{name}`: {why}", path)


def _repo_folder(draft: Draft) -> str | None:
    """The absolute path to which a folder of the project is sent. The path is left out of `repos`."""
    repos = draft.fields.get("repos")
    item = repos[0] if isinstance(repos, list) and len(repos) == 1 else repos
    if isinstance(item, str) and (match := re.fullmatch(r"(\.{1,2}|[\w./-]*[\w-]):(/(?!/).*)", item)):
        source, folder = match.groups()
    elif isinstance(item, Mapping) and str(item.get("path")).startswith("/") and "local_path" in item:
        source, folder = item["local_path"], str(item["path"])
    else:
        return None
    draft.fields["repos"] = [source]
    draft.note(
        f"`repos` ({folder}): what is sent lies in the rank's own folder, where the commands start",
        ("repos",),
    )
    return folder.rstrip("/") or "/"


def _below(path: str, folder: str) -> str | None:
    """The path relative to the folder; None if it is not below it."""
    path, folder = path.rstrip("/"), folder.rstrip("/")
    if path == folder:
        return "."
    return path.removeprefix(f"{folder}/") if path.startswith(f"{folder}/") else None


def _fit_files(draft: Draft, folder: str) -> None:
    """Write files at absolute paths relative to the folder where commands start, if they are below it."""
    files = draft.fields.get("files")
    if not isinstance(files, list):
        return
    usable: list[Any] = []
    for i, item in enumerate(files):
        source, target = item, None
        if isinstance(item, str) and item.count(":") == 1:
            source, target = item.split(":")
        elif isinstance(item, Mapping):
            source, target = item.get("local_path"), item.get("path")
        is_absolute = isinstance(source, str) and isinstance(target, str) and target.startswith("/")
        inner = _below(str(target), folder) if is_absolute else None
        one = {"local_path": source, "path": inner} if inner else item
        try:
            Files.parse([one])
            usable.append(one)
        except BadValueError as bad:
            why = bad.hint or bad.summary
            if is_absolute:
                where = str(target).strip("/")
                why = f"files go below the rank's own folder: `{source}:{where}`; copy it in `commands`"
            draft.drop("files", why, ("files", i), f"{source}:{target}" if target else source)
    draft.fields["files"] = usable


_TEXTS = ("env", "tags", "image", "commands", "user", "working_dir", "regions", "instance_types", "repos")
"""Fields whose scalars are texts for dstack, with or without quotes."""


def _joined_times(crons: list[Any]) -> list[Any]:
    """Cron expressions that differ in one field as one: `0 8 * * *` and `0 20 * * *` are `0 8,20 …`."""
    times = [str(item).split() for item in crons]
    if len({len(time) for time in times}) == 1:
        differ = [i for i in range(len(times[0])) if len({time[i] for time in times}) > 1]
        if len(differ) < 2 and not any("*" in time[i] for time in times for i in differ):
            joined = [",".join(dict.fromkeys(time[i] for time in times)) for i in range(len(times[0]))]
            return [" ".join(joined)]
    return crons


def _plain(value: Any, draft: Draft, path: Path) -> Any:
    """The value with dstack's secrets replaced by variables of the environment."""
    if isinstance(value, Mapping):
        return {k: _plain(v, draft, (*path, k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v, draft, (*path, i)) for i, v in enumerate(value)]
    if isinstance(value, int | float) and path[0] in _TEXTS:
        return draft.text(value, path)
    if not isinstance(value, str):
        return value
    for name in _SECRET.findall(value):
        draft.note(
            f"the secret `{name}` is now the environment variable {name.upper()} of the user who applies",
            path,
        )
    value = _SECRET.sub(lambda m: f"${{{{ env.{m[1].upper()} }}}}", value)
    if _OTHER.search(value):
        draft.note(
            "an expression `${{ … }}` of dstack was replaced by `dstack-expression`: it has no counterpart",
            path,
        )
        value = re.sub(
            r"\$\{\{.*?\}\}", lambda m: m[0] if not _OTHER.match(m[0]) else "dstack-expression", value
        )
    return value
