"""Fuzzes the answers of one cloud: they are recorded once, then changed by seed and read.

`providers/cloud/test_fuzzed_answers.py` runs it, in CI with a few thousand seeds.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import libcloud.http
import pytest
import requests

from declarative.model.state import Address, Record
from declarative.provider import ProviderError
from providers.testing import NODE, VOLUME
from tests.support.fuzz_states import OTHERS, places

MOST_SAID = 1_000
"""Characters of a fault."""
MOST_REQUESTS = 200
"""Of one read. A listing that leads on has an end by itself (`bad_answers`): it has tests of its own."""
ODD = (
    *(b"", b"null", b"[]", b"{}", b"<a/>", b"\xff\xfe", b"[" * 5_000, b'{"a":' * 5_000, b"<a>" * 5_000),
    *(b'{"a": NaN}', b'{"a": ' + b"9" * 5_000 + b"}", b'<!DOCTYPE l [<!ENTITY a "ha">]><l>&a;</l>'),
)
"""What comes into the place of an answer."""
STATUS = (200, 200, 200, 201, 204, 301, 400, 401, 403, 404, 409, 429, 500, 503)
HEADERS = ("x-subject-token", "retry-after", "content-type", "date", "location")
WORDS = ("-1e9", "9" * 5_000, "nan", "é", "http://[", "a" * 3_000, "")


class Replayed:
    """The answers of a cloud, as they came, and as a seed changes them. It takes the place of HTTP."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = libcloud.http.LibcloudConnection.request
        self._known: dict[tuple[str, str], tuple[int, dict[str, str], bytes]] = {}
        self.chance: random.Random | None = None
        self.count = 0
        replayed = self

        def request(link: Any, method: str, url: str, *args: Any, **more: Any) -> None:
            replayed.answer(link, method, url, *args, **more)

        monkeypatch.setattr(libcloud.http.LibcloudConnection, "request", request)

    def bytes_of(self, real: Callable[..., bytes]) -> Callable[..., bytes]:
        """`real`, which asks for the bytes at a path, with its answers recorded or changed."""

        def ask(link: Any, path: str, *given: Any) -> bytes:
            if self.chance is None:
                found = real(link, path, *given)
                self._known["RPC", path] = 0, {}, found
                return found
            self.count += 1
            if self.count > MOST_REQUESTS:
                raise ConnectionResetError("it takes too long")
            content = self._known.get(("RPC", path), (0, {}, b""))[2]
            return _changed_bytes(content, self.chance) if self.chance.random() < 0.5 else content

        return ask

    def answer(self, link: Any, method: str, url: str, *args: Any, **more: Any) -> None:
        """Answer one request: from the cloud while recording, else from the changed record."""
        body = more.get("body") or (args[0] if args else "") or ""
        key = (method, f"{url.partition('?')[0]} {_action(body)}")
        if self.chance is None:
            self._real(link, method, url, *args, **more)
            found = link.response
            self._known[key] = found.status_code, dict(found.headers), found.content
            return
        self.count += 1
        if self.count > MOST_REQUESTS:
            raise requests.exceptions.ReadTimeout("it takes too long")
        status, headers, content = self._known.get(key, (404, {}, b"{}"))
        headers = dict(headers)
        if self.chance.random() < 0.5:
            status, content = self._changed(status, headers, content)
        made = requests.Response()
        made.status_code, made._content, made.encoding, made.url = status, content, "utf-8", url
        made.headers.update(headers)
        link.response = made

    def _changed(self, status: int, headers: dict[str, str], content: bytes) -> tuple[int, bytes]:
        chance = self.chance
        assert chance is not None
        how = chance.randrange(20)
        if how == 0:
            return chance.choice(STATUS), content
        if how == 1:
            headers[chance.choice(HEADERS)] = chance.choice(WORDS)
            return chance.choice(STATUS), content
        if how == 2:
            return status, chance.choice(ODD)
        if how == 3 and content:
            at = chance.randrange(len(content))
            return status, content[:at] + chance.randbytes(chance.randrange(4)) + content[at + 1 :]
        try:
            made = json.loads(content)
        except ValueError:
            return status, _changed_xml(content, chance)
        inner = {"x": made}
        for _ in range(chance.choice((1, 1, 2, 3))):
            _change(inner, chance)
        return status, json.dumps(inner.get("x")).encode()


def _action(body: Any) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    return next((part for part in text.split("&") if part.startswith("Action=")), "")


def _change(made: dict[str, Any], chance: random.Random) -> None:
    *way, last = chance.choice(list(places(made)) or [("x",)])
    inner: Any = made
    for part in way:
        inner = inner[part]
    if chance.random() < 0.2 and way:
        del inner[last]
    else:
        inner[last] = copy.deepcopy(chance.choice((*OTHERS, "9" * 3_000 + "-", "0-99999999999")))


def _changed_xml(content: bytes, chance: random.Random) -> bytes:
    """An element is taken out or doubled, or its text is another one."""
    parts = content.decode(errors="replace").split("<")
    at = chance.randrange(len(parts))
    how = chance.randrange(4)
    if how == 0:
        parts[at : at + 1] = []
    elif how == 1:
        parts[at : at + 1] = [parts[at]] * 2
    else:
        name, ends, _ = parts[at].partition(">")
        word = str(chance.choice(OTHERS)).replace("&", "&amp;").replace("<", "&lt;")
        parts[at] = f"{name}{ends}{word}" if ends else word
    return "<".join(parts).encode(errors="replace")


def _changed_bytes(content: bytes, chance: random.Random) -> bytes:
    """Some are others, gone, or there twice."""
    made = bytearray(content)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(made) + 1)
        how = chance.randrange(5)
        if how == 0:
            made[at : at + 1] = chance.randbytes(1)
        elif how == 1:
            del made[at : at + chance.randrange(1, 30)]
        elif how == 2:
            made[at:at] = made[max(0, at - chance.randrange(1, 60)) : at]
        elif how == 3:
            made[at:at] = chance.randbytes(chance.randrange(1, 9))
        else:
            return chance.choice(ODD)
    return bytes(made)


class Tried:
    """A provider, and a cloud in which it made a node and, if it has `volumes`, a volume."""

    def __init__(
        self, make: Callable[[], Any], place: dict[str, str], replayed: Replayed, *, volumes: bool = True
    ) -> None:
        self._make, self._replayed = make, replayed
        there = make()
        self.records = list(_made(there, place, volumes=volumes))
        for _, read in self._reads(there):
            read()

    def _reads(self, there: Any) -> Iterator[tuple[str, Callable[[], object]]]:
        nodes = [r for r in self.records if r.address.kind == "node"]
        yield "inventory", there.inventory
        yield "recall", lambda: there.recall(self.records)
        yield "readiness", lambda: _ready(there, nodes)
        yield "find", lambda: [there.find(r.address, "0" * 32) for r in self.records]
        yield "offers", lambda: list(there.offers())

    def try_seed(self, seed: int) -> str:
        """One read, by a provider that has asked for nothing before."""
        chance = random.Random(seed)
        there = self._make()
        name, read = chance.choice(list(self._reads(there)))
        self._replayed.chance, self._replayed.count = chance, 0
        try:
            read()
        except ProviderError as error:
            said = f"{error.summary}\n{error.hint or ''}"
            said.encode()
            assert len(said) <= 2 * MOST_SAID, said
            assert all(c == "\n" or (c.isprintable() or c == " ") for c in said), repr(said)
            return f"{name} refused"
        finally:
            self._replayed.chance = None
        return f"{name} taken"


def _ready(there: Any, nodes: list[Record]) -> None:
    """The cloud's report on its nodes, without a login to them."""
    there._hosts.readiness = lambda *_: {}
    for found in there.readiness(nodes).values():
        assert (found.reason or "").isprintable(), repr(found.reason)


def _made(there: Any, place: dict[str, str], *, volumes: bool) -> Iterator[Record]:
    inputs: dict[str, Any] = {**NODE, **place, "backend": "there"}
    where: dict[str, Any] = {key: inputs[key] for key in ("region", "zone", "backend") if key in inputs}
    for address, given in (
        (Address("node", "gpu-0"), inputs),
        *([(Address("volume", "data-0"), {**VOLUME, **where})] if volumes else []),
    ):
        outputs = there.create(address, "0" * 32, given, {})
        yield Record(address=address, backend="there", inputs=given, outputs=outputs)


def try_seeds(tried: Tried, seeds: Iterable[int]) -> Counter[str]:
    """How often each result occurred."""
    count = Counter[str]()
    for seed in seeds:
        try:
            count[tried.try_seed(seed)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    return count
