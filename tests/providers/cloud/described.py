"""A cloud's published description of its API (OpenAPI 3.1, 3.0 or Swagger 2.0) as a judge over a stand-in.

The files are not part of this project. `FLEETFORM_SPECS` names the folder that has them; without it, tests
that ask the judge are skipped. Fields that the description does not know are complaints, in requests and in
answers: OpenAPI allows them, but a misspelt field must not pass. Two things are forgiven: a field that is
required and not described, and a null in an answer if the description has no word for nulls.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from jsonschema import Draft4Validator, Draft202012Validator, FormatChecker
from referencing import Registry
from referencing.jsonschema import DRAFT4, DRAFT202012

from tests.providers.cloud.web import Answer, Asked, Web

VARIABLE = "FLEETFORM_SPECS"
_METHODS = ("get", "put", "post", "delete", "patch")


def described(name: str) -> Described:
    """The description in a file of the folder; skips the test where it is not."""
    file = _file(name)
    if file is None:
        pytest.skip(f"the description {name} is not here: {VARIABLE} names no folder that has it")
    return _read(file)


@contextmanager
def serving(name: str, answer: Callable[[Asked], Answer], forgiven: str = "(?!)") -> Iterator[Web]:
    """A server whose answers and accepted requests fit the description, if it is there.

    Complaints with a match of `forgiven` are about what the description itself has wrong.
    """
    file, complaints = _file(name), list[str]()
    with Web(_read(file).over(answer, complaints) if file else answer) as web:
        yield web
    if left := [one for one in complaints if not re.search(forgiven, one)]:
        pytest.fail("\n".join(left))


def _file(name: str) -> Path | None:
    folder = os.environ.get(VARIABLE)
    file = Path(folder, name) if folder else None
    return file if file and file.is_file() else None


@functools.cache
def _read(file: Path) -> Described:
    return Described(json.loads(file.read_text(encoding="utf-8")))


class Described:
    """What a description says of requests and answers."""

    def __init__(self, text: dict[str, Any]) -> None:
        self._old = not text.get("openapi", "").startswith("3.1")
        """Before OpenAPI 3.1, schemas are those of JSON Schema's draft 4, with `nullable`."""
        self._text = _strict(copy.deepcopy(text), old=self._old)
        self._nulls = self._old and "nullable" not in json.dumps(text)
        draft = DRAFT4 if self._old else DRAFT202012
        self._registry: Registry = Registry().with_resource("urn:api", draft.create_resource(self._text))
        server = next(iter(text.get("servers", ())), {"url": text.get("basePath", "")})
        base = self._base = urlsplit(server["url"]).path.rstrip("/")
        self._operations = [
            (method, re.compile(base + re.sub(r"\\\{\w+\\\}", "([^/]+)", re.escape(path))), base + path)
            for path, methods in self._text["paths"].items()
            for method in methods
            if method in _METHODS
        ]
        # A fixed word outranks an id in the same place.
        self._operations.sort(key=lambda one: one[1].groups)

    def request(self, asked: Asked) -> list[str]:
        """What is wrong with a request; empty if nothing is."""
        operation = self._operation(asked)
        if operation is None:
            return [f"{asked.line}: no such operation"]
        where = {"query": dict(asked.params), "path": {}, "header": {}}
        out, known = [], set()
        for one in operation["parameters"]:
            if one["in"] == "query":
                known.add(one["name"])
                text = where["query"].get(one["name"])
                if text is None:
                    out += [f"{one['name']} is required"] if one.get("required") else []
                else:
                    schema = one.get("schema") or {k: v for k, v in one.items() if k in _SCHEMA_WORDS}
                    out += self._faults(schema, _plain(text, schema))
        out += [f"the parameter {name} is unknown" for name in where["query"] if name not in known]
        schema, needed = self._body_of(operation)
        if asked.body is None:
            out += ["a body is required"] if needed else []
        elif schema is None:
            out += ["a body is not allowed"] if asked.body else []
        else:
            out += self._faults(schema, asked.body)
        return [f"{asked.line}: {text}" for text in out]

    def answer(self, asked: Asked, answer: Answer) -> list[str]:
        """What is wrong with an answer; empty if nothing is."""
        operation, (status, body) = self._operation(asked), answer
        if operation is None:
            return [] if status >= 400 else [f"{asked.line}: no such operation"]
        responses = operation["responses"]
        response = responses.get(str(status)) or responses.get("default")
        if response is None:
            return [f"{asked.line}: no answer {status} is described"]
        response = self._resolved(response)
        media = response.get("content", {}).get("application/json", response)
        schema = media.get("schema")
        if self._nulls:
            body = _without_nulls(body)
        faults = [] if schema is None and not body else self._faults(schema or {}, body)
        return [f"{asked.line}: {status}: {text}" for text in faults]

    def over(self, answer: Callable[[Asked], Answer], complaints: list[str]) -> Callable[[Asked], Answer]:
        """As `answer`; complaints about accepted requests and about all answers are added to the list.

        Lost answers have nothing to look at, and 429 and 5xx stand in no description.
        """

        def judged(asked: Asked) -> Answer:
            kept = copy.deepcopy(asked)
            found = answer(asked)
            if 200 <= found[0] < 300:
                complaints.extend(self.request(kept))
            if found[0] and found[0] != 429 and found[0] < 500:
                complaints.extend(self.answer(kept, json.loads(json.dumps(found))))
            return found

        return judged

    def _operation(self, asked: Asked) -> Any:
        for method, pattern, path in self._operations:
            if asked.method.lower() == method and pattern.fullmatch(asked.path):
                methods = self._text["paths"][path.removeprefix(self._base)]
                own = methods[method]
                shared = [*methods.get("parameters", []), *own.get("parameters", [])]
                return {**own, "parameters": [self._resolved(one) for one in shared]}
        return None

    def _resolved(self, thing: dict[str, Any]) -> Any:
        if "$ref" not in thing:
            return thing
        return self._registry.resolver("urn:api").lookup(thing["$ref"]).contents

    def _body_of(self, operation: dict[str, Any]) -> tuple[Any, bool]:
        for one in operation["parameters"]:
            if one["in"] == "body":
                return one["schema"], bool(one.get("required"))
        body = self._resolved(operation.get("requestBody") or {})
        return body.get("content", {}).get("application/json", {}).get("schema"), bool(body.get("required"))

    def _faults(self, schema: Any, thing: Any) -> list[str]:
        draft = Draft4Validator if self._old else Draft202012Validator
        # A local `#/…` is one of the description, wherever the schema stands.
        whole = json.loads(json.dumps(schema).replace('"$ref": "#/', '"$ref": "urn:api#/'))
        checker = draft(whole, registry=self._registry, format_checker=FormatChecker())
        return [f"{error.json_path}: {error.message}" for error in checker.iter_errors(thing)]


_SCHEMA_WORDS = ("type", "enum", "format", "minimum", "maximum", "items", "pattern")


def _plain(text: str, schema: dict[str, Any]) -> Any:
    """A query parameter as its schema has it."""
    if schema.get("type") == "array":
        return [_plain(part, schema.get("items", {})) for part in text.split(",")]
    if schema.get("type") in ("integer", "number", "boolean"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _strict(thing: Any, *, old: bool, parts: bool = False) -> Any:
    """A description whose objects have no unknown fields. The parts of an `allOf` stay open."""
    if isinstance(thing, list):
        return [_strict(one, old=old, parts=parts) for one in thing]
    if not isinstance(thing, dict):
        return thing
    out = {key: _strict(one, old=old, parts=key == "allOf") for key, one in thing.items()}
    if isinstance(out.get("required"), list) and isinstance(out.get("properties"), dict):
        out["required"] = [name for name in out["required"] if name in out["properties"]]
        if not out["required"]:
            del out["required"]  # draft 4 wants one
    if out.get("properties") and "allOf" not in out and not parts:
        out.setdefault("additionalProperties", False)
    if old and out.get("nullable") is True and "$ref" not in out:
        return {"anyOf": [{"type": "null"}, out]}
    return out


def _without_nulls(thing: Any) -> Any:
    """Without the fields that are null."""
    if isinstance(thing, list):
        return [_without_nulls(one) for one in thing]
    if isinstance(thing, dict):
        return {key: _without_nulls(one) for key, one in thing.items() if one is not None}
    return thing


WRONG: tuple[Any, ...] = (None, 7, "", "?!", [], {}, [7], True)


def spoiled(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A body without each of its fields, with each of another type, and with one that nobody knows."""
    for name in body:
        yield {key: thing for key, thing in body.items() if key != name}
        for wrong in WRONG:
            yield {**body, name: wrong}
    yield {**body, "unheard_of": 1}
