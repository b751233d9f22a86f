"""Converts tasks of SkyPilot: each becomes a task, and a fleet for each alternative of its `resources`.

A note with its line names whatever has no counterpart. Nothing that chooses a place is left out: a fleet that
no driver here can launch keeps a backend that is not declared, so it never runs on this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeAlias

from declarative.language.importers.drafts import (
    NO_DRIVER,
    SOME_CLOUD,
    Draft,
    Noted,
    cloud_of,
    has_driver,
    mapping_of,
    name_of,
    note_clone,
    note_rights,
    remove,
)
from declarative.language.source import Document, Path
from declarative.model.record import struct
from declarative.model.resource import SLURM, SSH
from declarative.model.spec.gpu_models import board, known
from declarative.model.spec.values import MAX_NAME
from declarative.model.text import and_more

_HEADING = frozenset(("name", "execution", "placement", "primary_tasks", "termination_delay"))
_ELSEWHERE = {
    "service": "nothing scales a task or routes to it",
    "event_callback": "no counterpart",
    "file_mounts_mapping": "no counterpart",
}
_LOST = {
    "ports": "ranks listen on their node's address",
    "disk_tier": "choose the disk by the backend or by `instance_types`",
    "network_tier": "choose the network by `instance_types`",
    "accelerator_args": "no driver here launches TPUs",
    "local_disk": "choose it by `instance_types`",
    "volumes": "declare a `volume`, and mount it with `volumes` of the task",
    "hooks": "nothing runs before an idle node is deleted: do it at the end of `commands`",
}
_MEANT = {
    **dict.fromkeys(("gpu", "accelerator"), "`accelerators`"),
    **dict.fromkeys(("num_nodes", "nodes"), "`num_nodes` beside `resources`"),
}
"""Fields that SkyPilot does not have, and what to write for them. Without them it would be another task."""
_IN_HOME = re.compile(r"(?:HOME\}?|~|/root|/home/[\w-]+)/sky_workdir")
"""The folder of `workdir`, as commands name it."""
_ABOVE = re.compile(r"(?:(?!\bcd\s).)*\bcd\s+\.\.(?!\w)", re.DOTALL)
"""Commands that go from that folder to the home first."""
WORKDIR = "sky_workdir"


def from_skypilot(document: Document, default: str) -> list[Draft]:
    """Fleets and a task, called `default` if they have no names."""
    if set(document.data) <= _HEADING:
        heading = Draft("", document=document)
        heading.note("left out the heading of a pipeline: all tasks are started at once here")
        return [heading]
    task = Draft("task", document=document)
    data = _shaped(task)
    name = task.fields["name"] = name_of(data.pop("name", None), default, task.notes)
    nodes = data.pop("num_nodes", None) or 1
    if nodes != 1:
        task.fields["nodes"] = nodes
    env, known_env = _environment(data, task)
    for key in ("workdir", "file_mounts", "volumes"):
        data[key] = _filled(data.get(key), known_env)
    fleets = _Resources(data.pop("resources", None), task, str(name), nodes).fleets()
    _login(env, task)
    if env:
        task.fields["env"] = env
    _Files(data, task).convert()
    for key, value in data.items():
        if key in ("config", "experimental") and value is not None:
            _name_config(key, value, task)
        elif value is not None:
            task.drop(key, _ELSEWHERE.get(key, "no counterpart"), (key,), value)
    for fleet in fleets if task.refused else ():
        fleet.refused, fleet.refused_at = task.refused, task.refused_at
    return [*fleets, task]


_EXCLUSIVE = (
    ("any_of", "ordered"),
    ("gpus", "accelerators"),
    *(("infra", key) for key in ("cloud", "region", "zone")),
)
"""Fields of which only one may be there."""


def _shaped(task: Draft) -> dict[str, Any]:
    """The data of the task's document, without values of a shape that SkyPilot refuses. The task is refused
    if it would be another one without them.
    """
    assert task.document is not None
    data = deepcopy(dict(task.document.data))
    for path, shape in [*_misshapen(data)]:
        remove(data, path)
        why = f"`{'.'.join(map(str, path))}` has to be {shape}"
        if set(_MAY_BE_LEFT_OUT) & set(path):
            task.note(f"left out: {why}", path)
        else:
            task.refuse(why, path)
    resources = data.get("resources")
    alternatives: list[tuple[Path, Mapping[str, Any]]] = []
    if isinstance(resources, dict):
        alternatives.append((("resources",), resources))
        for key in ("any_of", "ordered"):
            items = enumerate(resources.get(key) or ())
            alternatives += [(("resources", key, i), mapping_of(item)) for i, item in items]
    for path, item in alternatives:
        for one, other in _EXCLUSIVE:
            if item.get(one) is not None and item.get(other) is not None:
                task.refuse(f"`{one}` and `{other}` exclude each other", (*path, other))
    return data


_OF_CONFIG = {
    "account": "it is the fleet's field `account`",
    "qos": "it is the fleet's field `qos`",
    "partition": "it is the fleet's field `partition`",
    "time": "write `max_duration` in the task",
}
"""Options of Slurm, and what to write for them."""


def _name_config(key: str, value: Any, task: Draft) -> None:
    """Note what the settings change, and what to write for settings with a counterpart."""
    inner: dict[str, None] = {}
    for path, leaf in _leaves(value, (key,)):
        last = path[-1]
        if last == "mountPath":
            why = f"write `volumes: ['{leaf}:{leaf}']` for a folder of the node, or declare a `volume`"
            task.note(f"`{key}` mounts `{leaf}`: {why}", path)
        elif last in _OF_CONFIG and "slurm" in path:
            task.drop(f"{key}.{last}", _OF_CONFIG[str(last)], path, leaf)
        else:
            inner[".".join(str(step) for step in path[1:] if isinstance(step, str))] = None
    shown = and_more([f"`{name}`" for name in inner if name], 6)
    if inner:
        task.drop(key, f"no counterpart{f' for {shown}' if shown else ''}", (key,))


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if not isinstance(value, Mapping | list):
        yield path, value
        return
    for step, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _leaves(item, (*path, step))


def _escaped(value: str) -> str:
    """The text with `${{` escaped, so that nothing in it is evaluated here."""
    return value.replace("${{", "$${{")


# ------------------------------------------------------------------------------------------ environment


def _environment(data: dict[str, Any], task: Draft) -> tuple[dict[str, str], dict[str, str]]:
    """All variables, and the values that the file has."""
    env: dict[str, str] = {}
    values: dict[str, str] = {}
    for key, value in mapping_of(data.pop("envs", None)).items():
        if value is None:
            env[key] = f"${{{{ env.{key} }}}}"
        else:
            values[key] = task.text(value, ("envs", key))
            env[key] = _escaped(values[key])
    if empty := [key for key, value in values.items() if not (value or key.startswith(_LOGIN))]:
        why = f"if `sky launch --env` filled it in, write `${{{{ env.{empty[0]} }}}}`"
        task.note(f"`envs` ({', '.join(empty)}) is empty: {why}", ("envs", empty[0]))
    for key, value in values.items():
        if _IN_HOME.search(value):
            why = "`workdir` lies in the rank's own folder, where the commands start"
            task.note(f"`envs.{key}` names `{WORKDIR}`: {why}", ("envs", key))
    for key, value in mapping_of(data.pop("secrets", None)).items():
        if value == "":
            why = f"it is read as {key} from the environment of the user who applies, and has to be set"
            task.note(f"`secrets.{key}` is empty: {why}", ("secrets", key))
        elif value is not None:
            why = f"set {key} in the environment of the user who applies"
            task.drop(f"secrets.{key}", why, ("secrets", key))
        env[key] = f"${{{{ env.{key} }}}}"
    return env, values


def _filled(value: Any, env: Mapping[str, str]) -> Any:
    """The value with `$NAME` and `${NAME}` of the file's own variables replaced, as SkyPilot does."""
    if isinstance(value, Mapping):
        return {_filled(k, env): _filled(v, env) for k, v in value.items()}
    if isinstance(value, list):
        return [_filled(item, env) for item in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda m: env.get(m[1] or m[2], m[0]), value)


_LOGIN = "SKYPILOT_DOCKER_"


def _field_of(task: Draft, begin: str) -> tuple[str, str]:
    """The field of the file that has a variable with this beginning, and the variable."""
    data = task.document.data if task.document else {}
    names = ((k, str(n)) for k in ("envs", "secrets") for n in mapping_of(data.get(k)))
    return next((pair for pair in names if pair[1].startswith(begin)), ("envs", begin))


def _login(env: dict[str, str], task: Draft) -> None:
    """The login to the image's registry, from variables of SkyPilot."""
    keys = ("USERNAME", "PASSWORD", "SERVER")
    login = {key: env.pop(_LOGIN + key) for key in keys if _LOGIN + key in env}
    if not login:
        return
    user, password, server = map(login.get, keys)
    image = task.fields.get("image")
    if image is None:
        field, name = _field_of(task, _LOGIN)
        task.drop(f"{field}.{_LOGIN}*", "the login to a registry is for an `image`", (field, name))
        return
    if server and "${{" not in server:
        registry = f"{server.rstrip('/')}/"
        if not image.startswith(registry):
            task.fields["image"] = registry + image
    elif server is not None:
        why = "write the registry before `image`, if it is not there"
        task.note(f"{_LOGIN}SERVER has no value in the file: {why}")
    if user is None and password is None:
        return
    variables = {key: f"${{{{ env.{_LOGIN}{key} }}}}" for key in ("USERNAME", "PASSWORD")}
    task.fields["registry_auth"] = {
        "username": user or variables["USERNAME"],
        "password": variables["PASSWORD"],
    }
    for key, variable in variables.items():
        value = login.get(key)
        if value != variable and (key == "PASSWORD" or not value):
            name, why = f"{_LOGIN}{key}", "set it in the environment of the user who applies"
            if value:
                field, name = _field_of(task, name)
                task.drop(f"{field}.{name}", why, (field, name))
            else:
                task.note(f"{name} has no value in the file: {why}")


# -------------------------------------------------------------------------------------- files and commands


class _Files:
    """Files, folders and commands of one task.

    SkyPilot sends `workdir` to `~/sky_workdir`, starts commands there, and puts `~/data` into the home. Ranks
    have a folder of their own. Where a file goes into the home, or the commands name `sky_workdir`, that
    folder becomes their HOME, with the same layout.
    """

    def __init__(self, data: dict[str, Any], task: Draft) -> None:
        self.data, self.task = data, task
        assert task.document is not None
        self.document = task.document
        self.setup, self.run = (str(data.pop(key, None) or "") for key in ("setup", "run"))
        self.workdir = data.pop("workdir", None)
        self.mounts = mapping_of(data.pop("file_mounts", None))
        self.files: list[dict[str, str]] = []
        goes_home = _ABOVE.match(self.setup) or _ABOVE.match(self.run)
        self.home = bool(goes_home or _IN_HOME.search(self.setup + self.run)) or any(
            target.startswith("~/")
            and _is_local(source.get("source") if isinstance(source, Mapping) else source)
            for target, source in self.mounts.items()
        )

    def convert(self) -> None:
        """Fill the task's `files`, `repos` and `commands`."""
        self._workdir()
        for target, source in self.mounts.items():
            self._mount(target, source)
        volumes = mapping_of(self.data.pop("volumes", None))
        for target, volume in volumes.items():
            why = f"declare a `volume`, and write `volumes: ['<name>:{target}']`"
            self.task.drop(f"volumes.{target}", why, ("volumes", target), volume)
        if self.files:
            self.task.fields["files"] = self.files
        self.task.fields["commands"] = self._commands()

    def _commands(self) -> list[str]:
        out = []
        if self.home:
            out.append(f'export HOME="$PWD" && mkdir -p ~/{WORKDIR} && cd ~/{WORKDIR}')
            self.task.note("`~` is the rank's own folder, as its files are there")
        commands = [(("setup",), self.setup), (("run",), self.run)]
        for path, text in commands:
            self.task.note_variables(text, path)
        note_rights(self.task, commands, "skypilot", self.mounts)
        if any(file["local_path"] == "." for file in self.files):
            note_clone(self.task, commands)
        if self.setup:
            self.task.note("`setup` runs at each start of a rank, in a shell of its own", ("setup",))
            out.append(_escaped(f"(\n{self.setup.rstrip()}\n)"))
        if self.run:
            out.append(_escaped(self.run))
        else:
            self.task.note("there is no `run`: such a task of SkyPilot only prepares its nodes")
            if "image" not in self.task.fields and not self.setup:
                out.append("true")
        return out

    def _workdir(self) -> None:
        below = WORKDIR if self.home else "."
        value = self.workdir
        if isinstance(value, Mapping):
            ref = value.get("ref")
            if ref is not None and not isinstance(ref, str):
                ref = self.document.written(("workdir", "ref"))
            repo = {"url": value.get("url"), **({"branch": ref} if ref else {})}
            self.task.fields["repos"] = [{**repo, **({"path": below} if self.home else {})}]
        elif value and _is_local(value):
            self.files.append({"local_path": _tidy(str(value)), "path": below})
        elif value:
            why = "it is not below this directory: move the project there, and write `files: [.]`"
            self.task.drop("workdir", why, ("workdir",), value)

    def _mount(self, target: str, source: Any) -> None:
        shown = source.get("source") or source.get("name") if isinstance(source, Mapping) else source
        copied = isinstance(source, Mapping) and str(source.get("mode")).upper() == "COPY"
        if copied and _is_local(source.get("source")):  # a `name` alone is a bucket that exists
            self.task.note(f"`file_mounts.{target}`: sent as files, not by a bucket", ("file_mounts", target))
            source = shown
        if isinstance(source, Mapping) and _is_local(source.get("source")):
            why = "SkyPilot copies it into a bucket and mounts that: name it in `files`, or use a `volume`"
        elif isinstance(source, Mapping) or "://" in str(source):
            why = "copy the bucket in `commands`, or use a `volume`"
        elif ".ssh/" in str(source):
            why = "a key does not belong into a project: let the nodes' image have it"
        elif _tidy(target).startswith("~/.ssh"):
            why = "ssh reads the home of the node's user, not the rank's folder: let the nodes' image have it"
        elif not _is_local(source):
            why = "it is not below this directory: copy it there, and name it in `files`"
        elif target.startswith("/") or ".." in target.split("/"):
            why = "files go below the rank's own folder: name it in `files`, and copy it in `commands`"
        else:
            where = _tidy(target.removeprefix("~/"))
            if self.home and not target.startswith("~/"):
                where = f"{WORKDIR}/{where}"
            self.files.append({"local_path": _tidy(source), "path": where.rstrip("/") or "."})
            return
        self.task.drop(f"file_mounts.{target}", why, ("file_mounts", target), shown)


def _is_local(source: Any) -> bool:
    """Whether the source is a path below the project's directory."""
    text = source if isinstance(source, str) else ""
    outside = "://" in text or text.startswith(("/", "~")) or ".." in text.split("/") or "$" in text
    return bool(text) and not outside


def _tidy(path: str) -> str:
    return path.removeprefix("./").rstrip("/") or "."


# ---------------------------------------------------------------------------------------------- resources

_GPU = re.compile(r"[A-Za-z][\w .+/()-]{0,60}", re.ASCII)
"""The name of a GPU, as our `gpu` takes it."""
_PLACES = ("backends", "regions", "availability_zones")
_OF_LAUNCHES = {
    "use_spot": "spot_policy",
    "instance_type": "instance_types",
    "max_hourly_cost": "max_price",
    "autostop": "idle_duration",
    "labels": "tags",
}
"""Fields of alternatives that only nodes to launch have, and our fields for them."""


@struct(slots=True)
class _Choice:
    """One alternative: the fields of its fleet. `pool` is a fleet of hosts that others declare."""

    fields: dict[str, Any]
    pool: str | None = None

    @property
    def usable(self) -> bool:
        """Whether a driver here has such nodes."""
        return "partition" in self.fields or all(map(has_driver, self.fields.get("backends", ())))


class _Resources:
    """The `resources` of one task."""

    def __init__(self, value: Any, task: Draft, name: str, nodes: Any) -> None:
        self.task, self.name, self.nodes = task, name, nodes
        self.about = Draft("fleet", document=task.document)
        """Takes the notes about the fleets."""
        self.data = mapping_of(value)
        self.at: dict[str, Path] = {}
        """Key → its path in the file, for the present alternative."""
        self.pools: dict[str, str] = {}
        """Fleet that the project has to declare → how."""
        self.once: set[str] = set()
        """The notes that one alternative has written for all."""

    def fleets(self) -> list[Draft]:
        """The fleets; the task names them, and gets what is the same in all."""
        choices = _merged(self._choices())
        pools = dict.fromkeys(c.pool for c in choices if c.pool is not None)
        usable = [c for c in choices if c.pool is None and c.usable]
        unusable = [c for c in choices if c.pool is None and not c.usable]
        if usable or pools:
            for names in dict.fromkeys(", ".join(c.fields["backends"]) for c in unusable):
                self._once(f"left out an alternative of `resources` ({names}): {NO_DRIVER}", ("resources",))
        elif unusable:
            usable = unusable
            named = ", ".join(dict.fromkeys(b for c in usable for b in c.fields["backends"]))
            for choice in usable:
                backends = [name_of(b, SOME_CLOUD, []) or SOME_CLOUD for b in choice.fields["backends"]]
                choice.fields["backends"] = backends
            why = f"{NO_DRIVER}. Until then `validate` refuses the fleet"
            self.about.note(f"`resources` ({named}): {why}", ("resources",))
        hosts = [c for c in choices if c.pool is not None]
        drafts: list[Draft] = []
        for number, choice in enumerate(usable, 1):
            short = self.name if len(usable) == 1 else f"{self.name[: MAX_NAME - 3].rstrip('-')}-{number}"
            fields: dict[str, Any] = {"name": short, "nodes": f"0..{self.nodes}"}
            if self.nodes != 1:
                fields["placement"] = "cluster"
            fields |= choice.fields
            if "partition" in fields:  # its nodes exist
                fields = {k: v for k, v in fields.items() if k not in ("nodes", "resources")}
            drafts.append(Draft("fleet", fields, document=self.task.document))
        self.task.fields["fleets"] = [*(d.fields["name"] for d in drafts), *pools]
        for pool in pools:
            self.task.note(f"a pool of hosts is the fleet `{pool}`: {self.pools[pool]}", ("resources",))
        self._common(usable, hosts)
        (drafts[0] if drafts else self.task).notes[:0] = self.about.notes
        for draft in (*drafts, self.task) if self.about.refused else ():
            draft.refused, draft.refused_at = self.about.refused, self.about.refused_at
        return drafts

    def _common(self, choices: Sequence[_Choice], hosts: Sequence[_Choice]) -> None:
        """Write into the task what all alternatives ask for. `hosts` have no fleet that asks for more."""
        asked = [c.fields.get("resources", {}) for c in (*choices, *hosts)]
        if not asked:
            return
        same = {k: v for k, v in asked[0].items() if all(other.get(k) == v for other in asked)}
        if "gpu" not in same and all("gpu" in other for other in asked):
            same["gpu"] = _any_gpu([other["gpu"] for other in asked])
        if same:
            self.task.fields["resources"] = same
        for host in hosts:
            more = {k: v for k, v in host.fields.get("resources", {}).items() if k not in same}
            if more:
                shown = ", ".join(f"{k}: {v}" for k, v in more.items())
                why = "the other alternatives differ"
                self.task.note(f"`{host.pool}` has to have {shown}: {why}", ("resources",))
        spots = {c.fields.get("spot_policy") for c in (*choices, *hosts)}
        if len(spots) == 1 and None not in spots:
            self.task.fields["spot_policy"] = spots.pop()

    def _choices(self) -> list[_Choice]:
        """All alternatives, in the order of the file."""
        outer = {k: v for k, v in self.data.items() if k not in ("any_of", "ordered") and v is not None}
        key = next((k for k in ("any_of", "ordered") if self.data.get(k)), "")
        listed = self.data.get(key)
        items: list[Any] = listed if isinstance(listed, list) and listed else [{}]
        if key == "ordered" and len(items) > 1:
            note = "`ordered` has no counterpart: the cheapest that fits is taken"
            self.about.note(note, ("resources", key))
        for k in outer:
            self.at[k] = ("resources", k)
        _of_alias(outer, self.at)
        top = dict(self.at)
        self._of_task(outer)
        out = []
        for i, item in enumerate(items):
            inner = {k: v for k, v in mapping_of(item).items() if v is not None}
            self.at = {**top, **{k: ("resources", key, i, k) for k in inner}}
            _of_alias(inner, self.at)
            self._of_task({k: v for k, v in inner.items() if outer.get(k) != v})
            out += self._alternatives({**outer, **inner})
        return out

    # the task's own fields

    def _of_task(self, alternative: Mapping[str, Any]) -> None:
        """Convert fields of `resources` that are fields of our task."""
        fields = self.task.fields
        for key, value in alternative.items():
            path = self.at[key]
            if key in ("job_recovery", "spot_recovery"):
                self._recovery(key, value)
            elif key == "image_id" and str(value).startswith("docker:"):
                image = str(value).removeprefix("docker:")
                if fields.setdefault("image", image) != image:
                    self.task.drop("resources.image_id", "all alternatives run in one `image`", path, value)
            elif key == "image_id":
                why = "write it as `image` in the `backend` document, or a container as the task's `image`"
                self.about.drop("resources.image_id", why, path, value)
            elif key == "priority" and isinstance(value, int):
                fields["priority"] = max(0, min(100, value // 10))
                self.task.note(f"`priority` ({value}) is from 0 to 100 here, not from -1000 to 1000", path)
            elif key in _MEANT:
                self.about.refuse(f"`resources.{key}` is no field of SkyPilot: write {_MEANT[key]}", path)
            elif key in _LOST or key not in _RESOURCES:
                self.about.drop(f"resources.{key}", _LOST.get(key, "no counterpart"), path, value)
            elif key == "use_spot" and value and not {"job_recovery", "spot_recovery"} & self.data.keys():
                note = "`sky jobs launch` would start it anew after a lost node: add `retry` if that is meant"
                self._once(note, path, self.task)

    def _recovery(self, key: str, value: Any) -> None:
        path = self.at[key]
        fields = mapping_of(value)
        strategy = value if not isinstance(value, Mapping) else fields.get("strategy")
        if str(strategy).lower() == "none" and strategy is not None:
            return
        restarts = fields.get("max_restarts_on_errors") or 0
        if type(restarts) is not int or not 0 <= restarts < 10**9:
            self.task.drop(f"{key}.max_restarts_on_errors", "it has to be a whole number", path, restarts)
            restarts = 0
        codes = fields.get("recover_on_exit_codes")
        events = ["no-capacity", "interruption"]
        retry: dict[str, Any] = {"on_events": events, "duration": "off"}
        what = "after lost nodes it runs again, from its own checkpoints"
        self.task.note(f"`{key}` became `retry`: {what}", path)
        if strategy:
            why = "a lost node is replaced wherever it is cheapest"
            self.task.drop(f"{key}.strategy", why, path, strategy)
        if restarts or codes not in (None, []):
            events.append("error")
        if restarts:
            retry["max_attempts"] = int(restarts) + 1
            why = "`max_attempts` counts starts after lost nodes too"
            self.task.note(f"`max_restarts_on_errors` ({restarts}): {why}", path)
        if codes not in (None, []):
            if not restarts:
                retry["max_attempts"] = 4
            why = f"each error counts, at most {retry['max_attempts']} attempts in all"
            self.task.note(f"`recover_on_exit_codes` ({codes}): exit codes have no counterpart; {why}", path)
        for more in set(fields) - {"strategy", "max_restarts_on_errors", "recover_on_exit_codes"}:
            self.task.drop(f"{key}.{more}", "no counterpart", path, fields[more])
        self.task.fields["retry"] = retry

    # the fleets' fields

    def _alternatives(self, alternative: Mapping[str, Any]) -> list[_Choice]:
        """One alternative of `any_of` as one for each accelerator that it accepts."""
        fields, pool = self._place(alternative)
        resources: dict[str, Any] = {}
        for key, value in alternative.items():
            self._of_nodes(key, value, (fields, resources))
        self._memory(alternative, resources)
        if "partition" in fields or pool is not None:  # the nodes exist; of larger ones, ranks take a share
            for key, ours in _OF_LAUNCHES.items():
                value = fields.pop(ours, None)
                if value is not None and key in self.at and value != "on-demand":
                    self._once(f"left out `resources.{key}`: the nodes exist already", self.at[key])
            resources |= {k: f"{v.removesuffix('..')}.." for k, v in resources.items()}
        if "partition" not in fields and not {"accelerators", "instance_type"} & set(alternative):
            pods = pool is not None or fields.get("backends") == ["kubernetes"]
            _ask_by_default(alternative, resources, pods=pods)
        accelerators = alternative.get("accelerators")
        if isinstance(accelerators, list) and len(accelerators) > 1:
            note = "the order of `accelerators` has no counterpart: the cheapest is taken"
            self._once(note, self.at["accelerators"])
        gpus: list[str | None] = [self._accelerator(item) for item in _listed(accelerators)]
        out = []
        for gpu in gpus or [None]:
            asked = {**({"gpu": gpu} if gpu else {}), **resources}
            out.append(_Choice({**fields, **({"resources": asked} if asked else {})}, pool))
        return out

    def _written(self, key: str, *below: str) -> str:
        """A text as the file has it: for PyYAML, `1.10` is a number."""
        assert self.task.document is not None
        path = (*self.at[key], *below)
        value: Any = self.task.document.data
        for step in path:
            value = value[step]
        return value if isinstance(value, str) else self.task.document.written(path)

    def _of_nodes(self, key: str, value: Any, out: tuple[dict[str, Any], dict[str, Any]]) -> None:
        fields, resources = out
        if key == "cpus":
            least, number = str(value).endswith("+"), str(value).rstrip("+").removesuffix(".0")
            resources["cpu"] = f"{number}.." if least else number
        elif key in ("disk_size", "ephemeral_storage"):
            resources["disk"] = f"{_size(value)}.."
        elif key == "use_spot":
            fields["spot_policy"] = "spot" if value else "on-demand"
        elif key == "instance_type":
            fields["instance_types"] = [self._written(key)]
        elif key == "labels":
            fields["tags"] = {name: self._written(key, name) for name in value}
        elif key == "max_hourly_cost":
            fields["max_price"] = value
        elif key == "autostop":
            self._autostop(value, fields)

    def _memory(self, alternative: Mapping[str, Any], resources: dict[str, Any]) -> None:
        """`64+`, or `4x`, which is 4 GB for each CPU."""
        if "memory" not in alternative:
            return
        text = str(alternative["memory"])
        number = text.rstrip("+")
        if number[-1:].lower() != "x":
            resources["memory"] = f"{_size(number)}.." if text.endswith("+") else _size(number)
            return
        cpus = re.fullmatch(r"(\d{1,9})(?:\.\.)?", str(resources.get("cpu", "")))
        ratio = re.fullmatch(r"\d{1,9}(?:\.\d+)?", number[:-1])
        if cpus and ratio:
            resources["memory"] = f"{int(float(ratio[0]) * int(cpus[1]))}GB.."
        else:
            why = "memory by the CPU has no counterpart"
            self.about.drop("resources.memory", why, self.at["memory"], text)

    def _autostop(self, value: Any, fields: dict[str, Any]) -> None:
        path, more = self.at["autostop"], mapping_of(value)
        if value is False:
            fields["idle_duration"] = "off"
            return
        if not more:
            match = re.fullmatch(r"(\d{1,9})([smhdw]?)", str(5 if value is True else value).strip().lower())
            if match is None:
                self.about.drop("resources.autostop", "write `idle_duration: 10m`", path, value)
                return
            fields["idle_duration"] = f"{match[1]}{match[2] or 'm'}"
        else:
            fields["idle_duration"] = f"{more.get('idle_minutes', 5)}m"
        if not more.get("down"):
            self._once("`autostop` stops nodes and keeps their disks; `idle_duration` deletes both", path)
        for key in ("hook", "hook_timeout", "wait_for"):
            if key in more:
                why = _LOST["hooks"] if key != "wait_for" else "a node is idle here when no rank is on it"
                self.about.drop(f"resources.autostop.{key}", why, (*path, key), more[key])

    def _once(self, text: str, path: Path, draft: Draft | None = None) -> None:
        """Write a note unless another alternative has written it."""
        if text not in self.once:
            self.once.add(text)
            (draft or self.about).note(text, path)

    def _accelerator(self, item: str) -> str:
        """`A100-80GB:8` as `A100:80GB:8`. An unknown model keeps its name."""
        path = self.at["accelerators"]
        name, _, count = item.strip().partition(":")
        name, count = name.strip(), count.strip() or "1"
        number = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)(\+?)", count)
        whole = number is not None and float(number[1]) == int(float(number[1])) and float(number[1]) > 0
        if number is None or not _GPU.fullmatch(name):
            why = f"`resources.accelerators` ({item}) names no GPUs"
            if name.isdecimal():
                why += f": SkyPilot takes a model, as in `L4:{name}`; in a task here, `gpu: {name}` is any"
            self.about.refuse(why, path)
            return name if name.isdecimal() else f"{name}:{count}"
        if not whole:
            note = f"`resources.accelerators` ({item}): a part of a GPU has no counterpart; one is taken"
            self._once(note, path)
        count = "1" if not whole else f"{int(float(number[1]))}{'..' if number[2] else ''}"
        model = known(name)
        if model is None:
            why = "no GPU of that name is known: `plan` refuses it, unless a backend offers one"
            if name.lower().startswith("tpu"):
                why = "no driver here launches TPUs: `plan` refuses it"
            self._once(f"`resources.accelerators` ({item}): {why}", path)
            return f"{name}:{count}"
        if form := board(name):
            why = f"any {model[0]} fits, whatever its board; `instance_types` of the fleet choose one"
            self._once(f"`resources.accelerators` ({item}): {form} has no counterpart: {why}", path)
        return ":".join(filter(None, (model[0], f"{model[1]}GB" if model[1] else "", count)))

    def _place(self, alternative: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Backend, region and zone of an alternative; or the pool of hosts."""
        infra = str(alternative.get("infra") or "")
        cloud, _, rest = infra.partition("/")
        cloud = cloud_of(alternative.get("cloud") or cloud)
        if cloud == SSH:
            pool = name_of(rest, "hosts", []) or "hosts"
            how = "`ssh_config: {hosts: […]}`, which `fleetform import ssh` writes"
            self.pools[pool] = f"declare it with its hosts: {how}"
            return {}, pool
        if cloud == SLURM:
            return self._partition(alternative, rest)
        if cloud == "kubernetes":  # `k8s/CONTEXT`: a context is no region of another cloud
            if context := rest or alternative.get("region"):
                key = "infra" if rest else "region"
                note = f"left out `resources.{key}` ({context}): a context has no counterpart"
                self._once(note, self.at[key])
            return {"backends": [cloud]}, None
        region, zone, *_ = (*rest.split("/"), "", "")
        place = (cloud, str(alternative.get("region") or region), str(alternative.get("zone") or zone))
        pairs = zip(_PLACES, place, strict=True)
        return {key: [value] for key, value in pairs if value not in ("", "*")}, None

    def _partition(self, alternative: Mapping[str, Any], rest: str) -> tuple[dict[str, Any], str | None]:
        """`slurm/CLUSTER/PARTITION`: a partition is a fleet, and its nodes exist."""
        cluster, _, partition = rest.partition("/")
        cluster = str(alternative.get("region") or cluster).strip("*")
        partition = str(alternative.get("zone") or partition).strip("*")
        name = name_of(cluster, SLURM, []) or SLURM
        if has_driver(name):
            name = f"{SLURM}-{name}"
        if partition:
            return {"backends": [name], "partition": partition}, None
        self.pools[name] = f"declare it: `backends: [{name}]`, `partition: …`, see docs/slurm.md"
        return {}, name


def _of_alias(alternative: dict[str, Any], at: dict[str, Path]) -> None:
    """`gpus` is SkyPilot's other name of `accelerators`."""
    if "gpus" in alternative:
        alternative["accelerators"], at["accelerators"] = alternative.pop("gpus"), at.pop("gpus")


def _ask_by_default(alternative: Mapping[str, Any], resources: dict[str, Any], *, pods: bool) -> None:
    """Write SkyPilot's default sizes where the file has none, since here the smallest node would do. `pods`:
    Kubernetes and pools of hosts have other defaults.
    """
    number, ratio = (2, 1) if pods else (8, 4)
    if "memory" in alternative:
        return
    if "cpus" not in alternative:
        resources["cpu"] = Noted(f"{number}..", "SkyPilot's default")
    if cpus := re.fullmatch(r"(\d{1,9})(?:\.\.)?", str(resources["cpu"])):
        note = f"SkyPilot's default: {ratio} GB for each CPU"
        resources["memory"] = Noted(f"{int(cpus[1]) * ratio}GB..", note)


def _size(value: Any) -> str:
    """`64`, `64.0` and `64GB` as we write them."""
    text = str(value).strip().removesuffix(".0")
    return text if text[-1:].isalpha() else f"{text}GB"


def _listed(value: Any) -> list[str]:
    """The accelerators as texts; none for None."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [str(k) if v is None else f"{k}:{v}" for k, v in value.items()]
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    text = str(value)
    if text.startswith("{") and text.endswith("}"):  # a set in quotes, which SkyPilot takes too
        return [item.strip(" '\"") for item in text[1:-1].split(",") if item.strip(" '\"")]
    return [text]


def _any_gpu(gpus: Sequence[str]) -> str:
    """One `gpu` that accepts all of these: for `L4:1` and `A100:80GB:4` it is `L4,A100:1..4`."""
    parts = [gpu.split(":") for gpu in gpus]
    names = dict.fromkeys(name for part in parts for name in part[0].split(","))
    counts = [part[-1].split("..") for part in parts]
    least = min(int(count[0]) for count in counts)
    most = "" if any(len(c) > 1 and not c[1] for c in counts) else str(max(int(c[-1]) for c in counts))
    return f"{','.join(names)}:{least}" + (f"..{most}" if most != str(least) else "")


def _merged(choices: Iterable[_Choice]) -> list[_Choice]:
    """Fewer alternatives with the same meaning: those that differ in one list or in spot alone are one."""
    out, number = list(choices), -1
    while len(out) != number:
        number = len(out)
        for key in ("", "spot_policy", "resources", "instance_types", *reversed(_PLACES)):
            groups: dict[str, list[_Choice]] = {}
            for choice in out:  # what it has in common with others that differ in this field alone
                common = {k: v for k, v in choice.fields.items() if k != key}
                if key == "resources":  # there, only the models of GPUs may differ
                    asked = dict(choice.fields.get("resources", {}))
                    common["asked"] = {**asked, "gpu": asked.get("gpu", "").partition(":")[2]}
                text = json.dumps([choice.pool, common], sort_keys=True, default=str)
                groups.setdefault(text, []).append(choice)
            out = [one for group in groups.values() for one in _joined(group, key)]
    return out


def _joined(group: Sequence[_Choice], key: str) -> Sequence[_Choice]:
    """Alternatives that differ in this field alone as one."""
    if len(group) == 1:
        return group
    first = group[0]
    if not key:
        return [first]
    values = [choice.fields.get(key) for choice in group]
    fields = {k: v for k, v in first.fields.items() if k != key}
    if key == "spot_policy":
        policies = {value or "on-demand" for value in values}
        if any(values):
            fields[key] = "auto" if len(policies) > 1 else policies.pop()
    elif key == "resources":
        names = [str(value.get("gpu", "")).partition(":")[0] for value in values if value]
        rest = dict(first.fields.get(key, {}))
        if rest.get("gpu"):
            models = dict.fromkeys(",".join(names).split(","))
            rest["gpu"] = f"{','.join(models)}:{rest['gpu'].partition(':')[2]}"
        fields |= {key: rest} if rest else {}
    elif all(values):
        if key == "backends" and "partition" in fields:
            return group
        if key == "backends" and (others := [choice for choice in group if not choice.usable]):
            good = [choice for choice in group if choice.usable]
            return [*(_joined(good, key) if good else ()), *others]
        fields[key] = list(dict.fromkeys(name for value in values for name in value or ()))
    return [_Choice(fields, first.pool)]


# --------------------------------------------------------- shapes: SkyPilot refuses a file with others

_Shape: TypeAlias = tuple[type, ...]

_WORD: _Shape = (str, int, float)
_SCALAR: _Shape = (*_WORD, bool)
_TASK: Mapping[str, _Shape] = {
    "name": _WORD,
    "num_nodes": (int,),
    "workdir": (str, dict),
    "setup": (str,),
    "run": (str,),
    **dict.fromkeys(("resources", "envs", "secrets", "file_mounts", "volumes"), (dict,)),
}
_RESOURCES: Mapping[str, _Shape] = {
    **dict.fromkeys(("infra", "cloud", "region", "zone", "instance_type", "cpus", "memory"), _WORD),
    **dict.fromkeys(("disk_size", "ephemeral_storage"), _WORD),
    "accelerators": (*_WORD, dict, list),
    "gpus": (*_WORD, dict, list),
    "use_spot": (bool,),
    "image_id": (str, dict),
    "labels": (dict,),
    "max_hourly_cost": (int, float),
    "priority": (int,),
    "autostop": (bool, int, str, dict),
    "job_recovery": (str, dict),
    "spot_recovery": (str, dict),
}
_WITHIN: Mapping[str, Mapping[str, _Shape]] = {
    "workdir": {"url": (str,), "ref": _WORD},
    "autostop": {
        "idle_minutes": (int,),
        "down": (bool,),
        "wait_for": (str,),
        "hook": (str,),
        "hook_timeout": (int,),
    },
    "job_recovery": {"strategy": (str,)},
    "spot_recovery": {"strategy": (str,)},
}
"""The fields of mappings with known ones."""
_VALUES: Mapping[str, _Shape] = {
    "envs": _SCALAR,
    "secrets": _SCALAR,
    "labels": _SCALAR,
    "file_mounts": (str, dict),
    "volumes": (str, dict),
    "accelerators": _WORD,
    "gpus": _WORD,
    "image_id": _WORD,
}
"""The items of other mappings and lists."""
_MAY_BE_LEFT_OUT = ("name", "labels", "priority", "autostop", "volumes")
"""Fields that change neither what a task does nor on which nodes."""
_NAMES = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", float: "a number"}


def _misshapen(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """The path of each value that has another shape, and the right shape in words."""
    yield from _fields(data, _TASK, ())
    resources = data.get("resources")
    if isinstance(resources, dict):
        yield from _fields(resources, _RESOURCES, ("resources",))
        for key in ("any_of", "ordered"):
            path, items = ("resources", key), resources.get(key)
            if items is not None and not isinstance(items, list):
                yield path, "a list of mappings"
            for i, item in enumerate(items if isinstance(items, list) else ()):
                if isinstance(item, dict):
                    yield from _fields(item, _RESOURCES, (*path, i))
                elif item is not None:
                    yield (*path, i), "a mapping"


def _fields(data: Mapping[str, Any], shapes: Mapping[str, _Shape], path: Path) -> Iterator[tuple[Path, str]]:
    for key, value in data.items():
        shape, here = shapes.get(key), (*path, key)
        if shape is None or value is None:
            continue
        if type(value) not in shape:
            yield here, _named(shape)
        elif isinstance(value, dict) and key in _WITHIN:
            yield from _fields(value, _WITHIN[key], here)
        elif isinstance(value, dict | list) and key in _VALUES:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for step, item in items:
                if item is not None and type(item) not in _VALUES[key]:
                    yield (*here, step), _named(_VALUES[key])


def _named(shape: _Shape) -> str:
    """`text or a mapping`."""
    if set(shape) >= set(_WORD):
        return "text"
    if shape == (int,):
        return "a whole number"
    names = [_NAMES[each] for each in shape if each in _NAMES]
    return " or ".join(", ".join(names).rsplit(", ", 1))
