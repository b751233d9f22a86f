"""The shapes of SkyPilot's fields. SkyPilot refuses a file with values of other shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from declarative.language.source import Path

Shape: TypeAlias = tuple[type, ...]

_WORD: Shape = (str, int, float)
_SCALAR: Shape = (*_WORD, bool)
_TASK: Mapping[str, Shape] = {
    "name": _WORD,
    "num_nodes": (int,),
    "workdir": (str, dict),
    "setup": (str,),
    "run": (str,),
    **dict.fromkeys(("resources", "envs", "secrets", "file_mounts", "volumes"), (dict,)),
}
_RESOURCES: Mapping[str, Shape] = {
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
_WITHIN: Mapping[str, Mapping[str, Shape]] = {
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
_VALUES: Mapping[str, Shape] = {
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
MAY_BE_LEFT_OUT = ("name", "labels", "priority", "autostop", "volumes")
"""Fields that change neither what a task does nor on which nodes."""
_NAMES = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", float: "a number"}


def misshapen(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
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


def _fields(data: Mapping[str, Any], shapes: Mapping[str, Shape], path: Path) -> Iterator[tuple[Path, str]]:
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


def _named(shape: Shape) -> str:
    """`text or a mapping`."""
    if set(shape) >= set(_WORD):
        return "text"
    if shape == (int,):
        return "a whole number"
    names = [_NAMES[each] for each in shape if each in _NAMES]
    return " or ".join(", ".join(names).rsplit(", ", 1))
