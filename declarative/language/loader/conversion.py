"""Converts documents of dstack and SkyPilot to drafts of our documents.

A task of SkyPilot becomes a task, and a fleet with the nodes that SkyPilot launches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from declarative.language.loader.foreign_formats import Draft, known_backends, name_of
from declarative.language.source import Document
from declarative.model.schema import fields_of
from declarative.model.schema.marks import ignored_of
from declarative.model.spec import DOCUMENTS, Resources

_SECRET = re.compile(r"\$\{\{\s*secrets\.(\w+)\s*\}\}", re.ASCII)
_KNOWN = r"env\.\w+|var\.\w+|groups\[\d+\]\.nodes\[\d+\]\.IP_ADDRESS|(?:dstack\.)?(?:node_rank|job_num)"
_OTHER = re.compile(rf"\$\{{\{{(?!\s*(?:{_KNOWN})\s*\}}\}})", re.ASCII)
_SERVING = {
    *("port", "model", "replicas", "scaling", "rate_limits", "auth", "https", "gateway", "probes", "router"),
    *("rolling_deployment", "strip_prefix", "path_prefix", "cors"),
}


def from_dstack(document: Document, default: str) -> list[Draft]:
    """The drafts for one document of dstack. A document without a name is called `default`. If it has no
    counterpart, the draft has only notes.
    """
    kind = document.data.get("type")
    data = dict(document.data)
    if kind == "service" and "replica_groups" not in data and isinstance(data.get("commands", []), list):
        return [_service(data, default)]
    if kind not in ("task", "fleet", "volume"):
        why = (
            "a machine to work on is a `task`, and `fleetform ssh`"
            if kind == "dev-environment"
            else "no counterpart"
        )
        what = "without a `type`" if kind is None else f"of the type `{kind}`"
        return [Draft("", {}, [f"left out a document {what}: {why}"])]
    return [_draft(str(kind), data, default)]


def _service(data: dict[str, Any], default: str) -> Draft:
    lost = [key for key in data if key in _SERVING]
    data = {key: value for key, value in data.items() if key not in _SERVING}
    draft = _draft("task", data, default)
    draft.notes.insert(
        0, "a service of dstack: as a task it runs until it is stopped, and nothing routes to it"
    )
    for key in lost:
        draft.drop(key, "services have no counterpart")
    return draft


def _draft(kind: str, data: dict[str, Any], default: str) -> Draft:
    draft = Draft(kind)
    cls = DOCUMENTS[kind]
    known = {f.name for f in fields_of(cls)}
    foreign: Mapping[str, str] = getattr(cls, "FOREIGN", {})
    draft.fields["name"] = name_of(data.get("name"), default, draft.notes)
    for key, value in data.items():
        if key in ("type", "name") or value is None:
            continue
        if key in ignored_of(cls):
            draft.drop(key, ignored_of(cls)[key])
        elif key not in known:
            draft.drop(key, foreign.get(key, "no field of fleetform"))
        elif key == "backends" and isinstance(value, list):
            draft.fields[key] = known_backends(draft, value)
        else:
            draft.fields[key] = _plain(value, draft)
    _fit(draft)
    return draft


def _fit(draft: Draft) -> None:
    """Leave out fields that other fields make wrong or useless."""
    if isinstance(resources := draft.fields.get("resources"), dict):
        for key in [key for key in resources if key in ignored_of(Resources)]:
            del resources[key]
            draft.drop(f"resources.{key}", ignored_of(Resources)[key])
    backend = draft.fields.get("backend")
    if backend and not known_backends(draft, [backend]):
        del draft.fields["backend"]
    for key in ("privileged", "registry_auth"):
        if "image" not in draft.fields and key in draft.fields:
            del draft.fields[key]
            draft.drop(key, "without an `image`, commands are processes of the node's user")


def _plain(value: Any, draft: Draft) -> Any:
    """The value with dstack's secrets replaced by variables of the environment."""
    if isinstance(value, Mapping):
        return {k: _plain(v, draft) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v, draft) for v in value]
    if not isinstance(value, str):
        return value
    for name in _SECRET.findall(value):
        draft.notes.append(
            f"the secret `{name}` is now the environment variable {name.upper()} of the user who applies"
        )
    value = _SECRET.sub(lambda m: f"${{{{ env.{m[1].upper()} }}}}", value)
    if _OTHER.search(value):
        draft.notes.append(
            "an expression `${{ … }}` of dstack was replaced by `dstack-expression`: it has no counterpart"
        )
        value = re.sub(
            r"\$\{\{.*?\}\}", lambda m: m[0] if not _OTHER.match(m[0]) else "dstack-expression", value
        )
    return value


_ACCELERATOR = re.compile(
    r"(?P<name>[A-Za-z0-9._]+?)(?:-(?P<memory>\d+)GB)?(?:-SXM\d?|-PCIe)?(?::(?P<count>\d+\+?)?)?", re.ASCII
)
_PLACE = frozenset(("cloud", "infra", "region", "zone"))
"""Fields of SkyPilot's `resources` for a place."""
_ELSEWHERE = {
    "config": "write it in the `backend` document, or leave it to each user",
    "service": "nothing scales a task or routes to it",
    "experimental": "no counterpart",
    "event_callback": "no counterpart",
    "file_mounts_mapping": "no counterpart",
}


def from_skypilot(document: Document, default: str) -> list[Draft]:
    """A fleet and a task, called `default` if they have no names."""
    data = dict(document.data)
    notes: list[str] = []
    name = name_of(data.pop("name", None), default, notes)
    task, fleet = Draft("task", {"name": name}, notes), Draft("fleet", {"name": name})
    if set(document.data) <= {"name", "execution"}:
        return [Draft("", {}, ["left out the heading of a pipeline: all tasks are started at once here"])]
    nodes = data.pop("num_nodes", None) or 1
    fleet.fields["nodes"] = f"0..{nodes}"
    if nodes != 1:
        task.fields["nodes"] = nodes
        fleet.fields["placement"] = "cluster"
    task.fields["fleets"] = [name]
    _resources(_mapping(data.pop("resources", None)), task, fleet)
    _environment(data, task)
    _workdir(data.pop("workdir", None), task)
    _mounts(_mapping(data.pop("file_mounts", None)), _mapping(data.pop("volumes", None)), task)
    commands = []
    if setup := data.pop("setup", None):
        task.notes.append("`setup` runs at each start of a rank, in a shell of its own")
        commands.append(f"(\n{str(setup).rstrip()}\n)")
    if run := data.pop("run", None):
        commands.append(str(run))
    elif "image" not in task.fields and not commands:
        commands.append("true")
        task.notes.append("there was nothing to run: in SkyPilot such a task only launches its nodes")
    task.fields["commands"] = commands
    for key, value in data.items():
        if value is not None:
            task.drop(key, _ELSEWHERE.get(key, "no counterpart"))
    return [fleet, task]


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _environment(data: dict[str, Any], task: Draft) -> None:
    env: dict[str, Any] = {}
    for key, value in _mapping(data.pop("envs", None)).items():
        env[key] = f"${{{{ env.{key} }}}}" if value is None else value
    for key, value in _mapping(data.pop("secrets", None)).items():
        if value not in (None, ""):
            task.drop(f"secrets.{key}", f"set {key} in the environment of the user who applies")
        env[key] = f"${{{{ env.{key} }}}}"
    if env:
        task.fields["env"] = env


def _workdir(value: Any, task: Draft) -> None:
    if isinstance(value, Mapping):
        task.fields["repos"] = [
            {"url": value.get("url"), **({"branch": value["ref"]} if value.get("ref") else {})}
        ]
    elif value and not str(value).startswith(("/", "~")) and ".." not in str(value).split("/"):
        task.fields["files"] = [{"local_path": str(value).removeprefix("./") or ".", "path": "."}]
    elif value:
        task.drop("workdir", "it is not below this directory: move the project there, and write `files: [.]`")


def _mounts(mounts: dict[str, Any], volumes: dict[str, Any], task: Draft) -> None:
    files = task.fields.setdefault("files", [])
    for target, source in mounts.items():
        local = isinstance(source, str) and "://" not in source and not source.startswith(("/", "~"))
        where = target.removeprefix("~/").removeprefix("./")
        if local and not where.startswith("/") and ".." not in f"{source}/{where}".split("/"):
            files.append({"local_path": source.removeprefix("./"), "path": where})
        else:
            why = (
                "copy the bucket in `commands`"
                if not local
                else "files go below the rank's own folder: `files`"
            )
            task.drop(f"file_mounts.{target}", why)
    if not files:
        del task.fields["files"]
    for target in volumes:
        task.drop(f"volumes.{target}", f"declare a `volume`, and write `volumes: ['<name>:{target}']`")


def _resources(data: dict[str, Any], task: Draft, fleet: Draft) -> None:
    choices = data.pop("any_of", None) or data.pop("ordered", None) or [{}]
    asked = [{**data, **_mapping(choice)} for choice in choices]
    _note_others(asked, task)
    wanted: dict[str, Any] = {}
    for key, value in asked[0].items():
        if value is not None and key not in _PLACE:
            _resource(key, value, (wanted, task, fleet))
    _places(asked, fleet)
    if wanted:
        task.fields["resources"] = wanted
        fleet.fields["resources"] = dict(wanted)


def _note_others(asked: Sequence[Mapping[str, Any]], task: Draft) -> None:
    first, *others = asked
    for other in others:
        more = {key for key in other if other[key] != first.get(key)} - _PLACE
        if more:
            task.notes.append(f"of `any_of` the first is taken; another differs in {', '.join(sorted(more))}")


def _resource(key: str, value: Any, out: tuple[dict[str, Any], Draft, Draft]) -> None:
    wanted, task, fleet = out
    if key == "accelerators":
        _accelerators(value, wanted, task)
    elif amount := _amount(key, str(value)):
        wanted[amount[0]] = amount[1]
    elif key == "image_id" and str(value).startswith("docker:"):
        task.fields["image"] = str(value).removeprefix("docker:")
    elif key in ("job_recovery", "spot_recovery"):
        task.fields["retry"] = {"on_events": ["no-capacity", "interruption"]}
        task.notes.append(
            "`job_recovery` became `retry`: after lost nodes it runs again, from its own checkpoints"
        )
    elif key == "use_spot":
        fleet.fields["spot_policy"] = task.fields["spot_policy"] = "spot" if value else "on-demand"
    else:
        _of_nodes(key, value, fleet)


def _of_nodes(key: str, value: Any, fleet: Draft) -> None:
    if key == "instance_type":
        fleet.fields["instance_types"] = [str(value)]
    elif key == "labels" and isinstance(value, Mapping):
        fleet.fields["tags"] = dict(value)
    elif key == "autostop" and (minutes := _minutes(value)) is not None:
        fleet.fields["idle_duration"] = f"{minutes}m"
    else:
        why = {
            "image_id": "write it as `image` in the `backend` document",
            "ports": "ranks listen on their node's address",
        }
        fleet.drop(f"resources.{key}", why.get(key, "no counterpart"))


def _amount(key: str, text: str) -> tuple[str, str] | None:
    """`4+` CPUs, and sizes in GB. `2x` memory means twice the number of CPUs, which we cannot express."""
    least, number = text.endswith("+"), text.rstrip("+")
    size = number if number[-1:].isalpha() else f"{number}GB"
    if key == "cpus":
        return "cpu", f"{number}.." if least else number
    if key == "memory" and number[-1:] != "x":
        return "memory", f"{size}.." if least else size
    return ("disk", f"{size}..") if key == "disk_size" else None


def _minutes(value: Any) -> int | None:
    found = value.get("idle_minutes") if isinstance(value, Mapping) else value
    match = re.fullmatch(r"(\d{1,9})m?", str(found)) if not isinstance(found, bool) else None
    return int(match[1]) if match else None


def _listed(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [str(k) if v is None else f"{k}:{v}" for k, v in value.items()]
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]


def _accelerators(value: Any, wanted: dict[str, Any], task: Draft) -> None:
    """`H100:8`, `{H100: 8}`, or several of them as alternatives."""
    models: dict[tuple[str, str], list[str]] = {}
    """The names by memory and count."""
    for item in _listed(value):
        match = _ACCELERATOR.fullmatch(item)
        if match is None or match["name"].lower().startswith("tpu"):
            task.drop(f"resources.accelerators: {item if ':' in item else item + ':1'}", "no whole GPUs")
            continue
        memory = f"{match['memory']}GB" if match["memory"] else ""
        count = (match["count"] or "1").replace("+", "..")
        models.setdefault((memory, count), []).append(match["name"])
    for (memory, count), names in models.items():
        if "gpu" in wanted:
            task.drop(
                f"resources.accelerators: {', '.join(names)}:{count}", "a task asks for one memory and count"
            )
        else:
            wanted["gpu"] = ":".join(filter(None, (",".join(names), memory, count)))


def _places(asked: Sequence[Mapping[str, Any]], fleet: Draft) -> None:
    """Cloud, region and zone of each alternative."""
    found: dict[str, list[str]] = {"backends": [], "regions": [], "availability_zones": []}
    for one in asked:
        cloud, region, zone = _place(one)
        if cloud in ("k8s", "kubernetes", "ssh"):
            fleet.drop(f"infra: {one.get('infra') or ''}", "declare the hosts: `ssh_config: {hosts: […]}`")
        elif cloud in ("", "*") or known_backends(fleet, [cloud]):
            found["backends"].append(cloud)
            found["regions"].append(region)
            found["availability_zones"].append(zone)
    for key, values in found.items():
        if named := set(values) - {"", "*"}:
            fleet.fields[key] = sorted(named, key=values.index)


def _place(choice: Mapping[str, Any]) -> tuple[str, str, str]:
    """Cloud, region and zone; `infra` combines all three."""
    cloud, region, zone, *_ = (*str(choice.get("infra") or "").split("/"), "", "")
    return (
        str(choice.get("cloud") or cloud).lower(),
        str(choice.get("region") or region),
        str(choice.get("zone") or zone),
    )
