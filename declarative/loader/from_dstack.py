"""dstack's configurations as documents of this language."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from declarative.loader.foreign_formats import Draft, known_backends, name_of
from declarative.schema import fields_of
from declarative.schema.marks import ignored_of
from declarative.source import Document
from declarative.spec import DOCUMENTS, Resources

_SECRET = re.compile(r"\$\{\{\s*secrets\.(\w+)\s*\}\}", re.ASCII)
_KNOWN = r"env\.\w+|var\.\w+|groups\[\d+\]\.nodes\[\d+\]\.IP_ADDRESS|(?:dstack\.)?(?:node_rank|job_num)"
_OTHER = re.compile(rf"\$\{{\{{(?!\s*(?:{_KNOWN})\s*\}}\}})", re.ASCII)
_SERVING = {
    *("port", "model", "replicas", "scaling", "rate_limits", "auth", "https", "gateway", "probes", "router"),
    *("rolling_deployment", "strip_prefix", "path_prefix", "cors"),
}


def convert(document: Document, default: str) -> list[Draft]:
    """The documents that one of dstack's comes to, `default` being its name if it has none; what has no
    counterpart is notes alone.
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
        return [Draft("", {}, [f"left out a document of the type `{kind}`: {why}"])]
    return [_draft(str(kind), data, default)]


def _service(data: dict[str, Any], default: str) -> Draft:
    lost = [key for key in data if key in _SERVING]
    data = {key: value for key, value in data.items() if key not in _SERVING}
    draft = _draft("task", data, default)
    draft.notes.insert(
        0, "a service of dstack: as a task it runs until it is stopped, and nothing routes to it"
    )
    for key in lost:
        draft.lose(key, "services have no counterpart")
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
            draft.lose(key, ignored_of(cls)[key])
        elif key not in known:
            draft.lose(key, foreign.get(key, "no field of fleetform"))
        elif key == "backends" and isinstance(value, list):
            draft.fields[key] = known_backends(draft, value)
        else:
            draft.fields[key] = _plain(value, draft)
    _fit(draft)
    return draft


def _fit(draft: Draft) -> None:
    """Leave out what would be an error, or change nothing, because of other fields."""
    if isinstance(resources := draft.fields.get("resources"), dict):
        for key in [key for key in resources if key in ignored_of(Resources)]:
            del resources[key]
            draft.lose(f"resources.{key}", ignored_of(Resources)[key])
    backend = draft.fields.get("backend")
    if backend and not known_backends(draft, [backend]):
        del draft.fields["backend"]
    for key in ("privileged", "registry_auth"):
        if "image" not in draft.fields and key in draft.fields:
            del draft.fields[key]
            draft.lose(key, "without an `image`, commands are processes of the node's user")


def _plain(value: Any, draft: Draft) -> Any:
    """A value with dstack's secrets as variables of the environment."""
    if isinstance(value, Mapping):
        return {k: _plain(v, draft) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v, draft) for v in value]
    if not isinstance(value, str):
        return value
    for name in _SECRET.findall(value):
        draft.notes.append(
            f"the secret `{name}` is now the environment variable {name.upper()} of who applies"
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
