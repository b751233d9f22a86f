"""Names, environment variables and tags: texts with their own rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

from declarative.model.schema import BadValueError, Is, Json, Word, closed_mapping, describe, raise_all

WORDS = Is(most_items=1_000, longest=255)
"""Lists of names from elsewhere, such as instance types."""
PLACES = replace(WORDS, any_case=True)
"""Lists of regions and zones, compared without case."""
MAX_TAGS = 128
MAX_NAME = 41
MAX_FLEET = 2 * MAX_NAME + 1
NAME = re.compile(r"[a-z][a-z0-9-]{1,40}")
_NODE = re.compile(r"[a-z][a-z0-9-]{1,40}-(0|[1-9][0-9]{0,8})")
MAX_NUMBER = 10**9
MAX_ADDRESS = 255
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@[a-z0-9]+:[0-9a-f]{{32,128}})?",
    re.ASCII,
)
MAX_IMAGE = 500
_TAG_KEY = re.compile(r"[_\-a-zA-Z0-9]{1,60}")
_TAG_VALUE = re.compile(r"[a-zA-Z0-9 .:/=_\-+@]{0,256}")


def check_name(text: Json) -> str:
    """A name of a fleet, volume, task or backend, matched whole."""
    if not isinstance(text, str) or not NAME.fullmatch(text):
        shown = f"`{text[:40]!r}`" if isinstance(text, str) and text != text.strip() else describe(text)
        raise BadValueError("bad-name", f"{shown} is not a name", _name_hint(text))
    return text


def _name_hint(text: Json) -> str:
    """A hint: the rule, or the most similar valid name."""
    rule = "2 to 41 characters: a lower-case letter, then lower-case letters, digits and `-`"
    if not isinstance(text, str) or len(text) > 100:
        return f"write {rule}"
    if NAME.fullmatch(text.strip()):
        what = "line break" if text.rstrip(" ") != text.rstrip() else "space"
        return f"remove the {what} round it: write `{text.strip()}`"
    near = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return f"write `{near}`: {rule}" if NAME.fullmatch(near) else f"write {rule}"


class Name(Word):
    """A name: `[a-z][a-z0-9-]{1,40}`, matched whole."""

    __slots__ = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {"type": "string", "pattern": "^[a-z][a-z0-9-]{1,40}$"}

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-name` when it is not one."""
        return cls(check_name(value))


class FleetName(Name):
    """A fleet's name. dstack's `project/fleet` is a fleet of another project, and refused."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-name`; `dstack-field` for a fleet of another project."""
        if isinstance(value, str) and "/" in value and value.count("/") == 1 and len(value) <= MAX_FLEET:
            hint = f"declare the fleet in this project, and write `{value.partition('/')[2]}`"
            summary = f"`{value}` is a fleet of another project, which fleetform cannot use"
            raise BadValueError("dstack-field", summary, hint)
        return super().parse(value)


class NodeName(Name):
    """A node by its name; dstack's `{fleet: gpu, instance: 0}` is `gpu-0`.

    `hostname:10.0.0.4`, or `{hostname: 10.0.0.4}`, is the node with this address.
    """

    __slots__ = ()
    HINT: ClassVar[str] = (
        "write a node's name: its fleet's, `-` and a number, such as `gpu-0`; or `{hostname: …}`, or "
        "`{fleet: gpu, instance: 0}`"
    )
    HOST: ClassVar[str] = "hostname:"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-name`; `wrong-type` for another mapping; `dstack-field` for a fleet of another project."""
        if isinstance(value, str) and value.startswith(cls.HOST):
            return cls(cls.HOST + cls._address(value.removeprefix(cls.HOST)))
        if not isinstance(value, Mapping):
            return cls._named(value)
        if set(value) == {"fleet", "instance"}:
            number = value["instance"]
            try:
                name = FleetName.parse(value["fleet"])
            except BadValueError as error:
                raise error.within("fleet")[0] from None
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < MAX_NUMBER:
                summary = f"{describe(number)} is not the number of a node"
                raise BadValueError("bad-value", summary, "write a number from 0 on", ("instance",))
            return cls(f"{name}-{number}")
        if set(value) not in ({"name"}, {"hostname"}):
            shown = ", ".join(f"`{str(key)[:40]}`" for key in value) or "nothing"
            raise BadValueError("wrong-type", f"a mapping with {shown} names no node", cls.HINT)
        (key, text), *_ = value.items()
        try:
            return cls(cls.HOST + cls._address(text)) if key == "hostname" else cls._named(text)
        except BadValueError as error:
            raise error.within(key)[0] from None

    @classmethod
    def _named(cls, text: Json) -> Self:
        if not isinstance(text, str) or not _NODE.fullmatch(text):
            raise BadValueError("bad-name", f"{describe(text)} is not the name of a node", cls.HINT)
        return cls(text)

    @classmethod
    def _address(cls, text: Json) -> str:
        short = isinstance(text, str) and 0 < len(text) <= MAX_ADDRESS
        if not isinstance(text, str) or not short or not text.isprintable() or " " in text:
            hint = "write it as in the fleet's `ssh_config.hosts`, or the node's IP address"
            summary = f"{describe(text)} is not the name or the address of a host"
            raise BadValueError("bad-value", summary, hint)
        return text

    @property
    def host(self) -> str | None:
        """The address, if the node is given by its address; else None."""
        return self.removeprefix(self.HOST) if self.startswith(self.HOST) else None

    @property
    def fleet(self) -> str:
        """The name of its fleet. Meaningless if there is a `host`."""
        return self.rpartition("-")[0]

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        text = {"type": "string"}
        long_forms: tuple[dict[str, Any], ...] = (
            {"name": text},
            {"hostname": text},
            {"fleet": text, "instance": {"type": "integer", "minimum": 0}},
        )
        return {
            "anyOf": [
                {"type": "string", "pattern": f"^({_NODE.pattern}|{cls.HOST}\\S+)$"},
                *(closed_mapping(keys, list(keys)) for keys in long_forms),
            ]
        }


class Env(tuple[tuple[str, str], ...]):
    """Environment variables, as a list of `NAME=value` or as a map. A bare `NAME` takes the
    caller's value.
    """

    __slots__ = ()
    HINT: ClassVar[str] = "write `NAME=value`, or `NAME` alone to pass the caller's value on"

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-env`, `duplicate-key`."""
        pairs: list[tuple[str, str]] = []
        if isinstance(value, Mapping):
            items: list[tuple[str | int, Any, Any]] = [(k, k, v) for k, v in value.items()]
        elif isinstance(value, list | tuple):
            items = []
            for i, item in enumerate(value):
                name, equals, text = item.partition("=") if isinstance(item, str) else (None, "=", item)
                items.append((i, name, text if equals else None))
        else:
            hint = "write a list: `env: [NAME=value]`" if isinstance(value, str) else cls.HINT
            shown = "text" if isinstance(value, str) else describe(value)  # the text may hold a secret
            raise BadValueError("wrong-type", f"expected a list or a mapping, found {shown}", hint)
        names: set[str] = set()
        faults: list[BadValueError] = []
        for place, name, item in items:
            fault = cls._fault(name, item, names)
            if fault is not None:
                fault.at_key = isinstance(place, str) and fault.code == "bad-env"
                faults += fault.within(place)
            else:
                names.add(name)
                # As the shell gets it. A bare name is the caller's variable, read when the rank starts.
                text = str(item).lower() if isinstance(item, bool) else str(item)
                pairs.append((name, f"${{{{ env.{name} }}}}" if item is None else text))
        raise_all(faults)
        return cls(pairs)

    @classmethod
    def _fault(cls, name: Any, item: Any, names: set[str]) -> BadValueError | None:
        """What is wrong with one variable."""
        if name is None:
            return BadValueError("wrong-type", f"expected `NAME=value`, found {describe(item)}", cls.HINT)
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
            hint = f"{cls.HINT}; names have letters, digits and `_`"
            if isinstance(name, str) and _ENV_NAME.fullmatch(name.strip()):
                hint = f"write `{name.strip()}=…`, without spaces around the name"
            return BadValueError("bad-env", f"{describe(name)} is not a variable's name", hint)
        if name in names:
            return BadValueError("duplicate-key", f"`{name}` is set twice", "remove one of them")
        if isinstance(item, Mapping | list | tuple):
            summary = f"expected a string, found {describe(item)}"
            return BadValueError("wrong-type", summary, "put the value in quotes")
        return None

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "array", "items": {"type": "string"}},
                {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
            ]
        }

    def plain(self) -> Json:
        """A mapping, in the order of declaration."""
        return dict(self)


_EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


class Image(Word):
    """A container image: `[registry/]name[:tag][@digest]`, as docker and podman read it."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-image` if it is not an image's name."""
        if not isinstance(value, str) or len(value) > MAX_IMAGE or not _IMAGE.fullmatch(value):
            shown = (
                f"`{value[:40]!r}`" if isinstance(value, str) and value != value.strip() else describe(value)
            )
            if isinstance(value, str) and (expression := _EXPRESSION.search(value)):
                hint = "write it out, or declare a variable and write `${{ var.NAME }}`, known to `plan`"
                summary = f"`{expression[0][:60]}` is read when a rank starts, and cannot be part of an image"
                raise BadValueError("bad-image", summary, hint)
            raise BadValueError("bad-image", f"{shown} is not the name of an image", _image_hint(value))
        return cls(value)


def _image_hint(value: Json) -> str:
    """A hint: the most similar valid image, or the form."""
    if isinstance(value, str) and len(value) <= MAX_IMAGE:
        near = value.strip().removeprefix("docker://").removeprefix("https://").removeprefix("docker:")
        name, slash, tag = near.rpartition(":")
        for meant in (near, f"{name.lower()}{slash}{tag}" if name else "", near.lower()):
            if meant != value and _IMAGE.fullmatch(meant):
                return f"write `{meant}`"
    return "write `name:tag`, or with its registry `nvcr.io/nvidia/pytorch:25.01-py3`"


class Tags(dict[str, str]):
    """Tags. Keys have letters, digits, `_` and `-` (60 characters); values allow a little more (256), as in
    dstack.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-tag`."""
        if not isinstance(value, Mapping):
            hint = "write a mapping: `{team: research}`"
            raise BadValueError("wrong-type", f"expected a mapping, found {describe(value)}", hint)
        if len(value) > MAX_TAGS:
            raise BadValueError("too-large", f"more than {MAX_TAGS} tags", "write fewer: no cloud takes more")
        out = cls()
        faults: list[BadValueError] = []
        for key, item in value.items():
            text = str(item).lower() if isinstance(item, bool) else str(item)
            if not _TAG_KEY.fullmatch(str(key)):
                summary, hint = (
                    f"{describe(key)} cannot be a tag's key",
                    "use up to 60 letters, digits, `_`, `-`",
                )
                faults.append(BadValueError("bad-tag", summary, hint, (key,), at_key=True))
            if isinstance(item, Mapping | list | tuple) or item is None or not _TAG_VALUE.fullmatch(text):
                hint = "use up to 256 letters, digits, spaces and `.:/=_-+@`"
                summary = f"{describe(item)} cannot be a tag's value"
                faults.append(BadValueError("bad-tag", summary, hint, (key,)))
            out[str(key)] = text
        raise_all(faults)
        return out

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}

    def plain(self) -> Json:
        return dict(sorted(self.items()))
