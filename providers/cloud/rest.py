"""JSON over HTTP with a bearer token, for clouds whose drivers in libcloud keep state of their own.

libcloud's drivers for GCE and Azure log in for each thread, keep the token in a file of the home folder, open
a dialogue in the browser for an unreadable key, and store a listing's page on the connection. Its transport
does none of that, so requests use only the transport, and the token comes from here.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

from declarative.provider import TransientError, TransientKind
from providers.cloud.bad_answers import Pages, Scrub
from providers.cloud.connection import Connection
from providers.cloud.settings import Host

SPARE = 300.0
"""Seconds before its end when a token is no longer used: a request may take a while."""
_TOKEN = re.compile(r"[!-~]{1,16384}")


class Tokens:
    """The bearer token of one account, shared by all threads."""

    def __init__(
        self,
        ask: Callable[[], Mapping[str, Any]],
        cloud: str,
        scrub: Scrub,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`ask` logs in. Its answer has `access_token` and, in seconds, `expires_in`."""
        self._scrub = scrub
        self._ask = ask
        self._cloud = cloud
        self._now = now
        self._turn = threading.Lock()
        self._value = ""
        self._until = 0.0

    def __call__(self) -> str:
        """A token that is valid for a while."""
        with self._turn:
            if self._now() >= self._until - SPARE:
                self._value, self._until = self._new()
            return self._value

    def _new(self) -> tuple[str, float]:
        found = self._ask()
        try:
            value, life = found["access_token"], float(found["expires_in"])
        except (KeyError, TypeError, ValueError):
            value, life = None, 0.0
        if not isinstance(value, str) or not _TOKEN.fullmatch(value):
            raise TransientError(TransientKind.AMBIGUOUS, f"{self._cloud}: the login's answer has no token")
        self._scrub.learn([value])
        # A token with a shorter life than the reserve is used, too.
        return value, self._now() + max(life, SPARE + 1)


def signed(head: Mapping[str, Any], claims: Mapping[str, Any], key: Any) -> str:
    """A JWT, signed with an RSA key (RFC 7515, RS256)."""
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.hashes import SHA256

    def encoded(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    parts = ({"alg": "RS256", "typ": "JWT", **head}, claims)
    text = b".".join(encoded(json.dumps(part, sort_keys=True).encode()) for part in parts)
    return (text + b"." + encoded(key.sign(text, PKCS1v15(), SHA256()))).decode()


class Form(dict[str, str]):
    """Data sent as a web form."""


class Rest:
    """Requests to one API. Safe to use from many threads."""

    def __init__(self, connection: Connection, token: Callable[[], str] | None) -> None:
        """`token` is None for logging in."""
        self._connection = connection
        self._token = token

    def ask(
        self,
        what: str,
        method: str,
        path: str,
        *,
        about: str | None = None,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Form | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The object in the answer to one request; empty if the answer has only a status."""
        found = self.answer(what, method, path, about=about, params=params, body=body, headers=headers)
        if found in (None, ""):
            return {}
        if not isinstance(found, dict):
            raise bad_answer(what, "is no object")
        return found

    def answer(
        self,
        what: str,
        method: str,
        path: str,
        *,
        about: str | None = None,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Form | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The JSON in the answer to one request, whatever it is."""
        sent = {"Accept": "application/json", **(headers or {})}
        data = None
        if isinstance(body, Form):
            data, sent["Content-Type"] = urlencode(body), "application/x-www-form-urlencoded"
        elif body is not None:
            data, sent["Content-Type"] = json.dumps(body, sort_keys=True), "application/json"
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token()}"
        response = self._connection.request(
            what, path, about=about, method=method, params=dict(params or {}), data=data, headers=sent
        )
        return response.object


def link(
    host: Host,
    timeout: int,
    sign: Callable[[str, str, Mapping[str, str]], Mapping[str, str]] = lambda *_: {},
) -> Any:
    """A thread's connection to a host: libcloud's transport. `sign` makes headers of a request's method, path
    and parameters.
    """
    from libcloud.common.base import Connection as Transport
    from libcloud.common.base import JsonResponse

    class Answer(JsonResponse):
        def success(self) -> bool:
            return 200 <= int(self.status) < 300

    class Link(Transport):
        responseCls = Answer  # noqa: N815  # libcloud's name

        def morph_action_hook(self, action: str) -> str:
            return action

        def pre_connect_hook(self, params: Any, headers: Any) -> tuple[Any, Any]:
            return params, {**headers, **sign(str(self.method), str(self.action), params)}

    make: Any = Link
    found = make(secure=host.secure, host=host.name, port=host.port, timeout=timeout)
    found.connect()
    return SimpleNamespace(connection=found)


def bad_answer(what: str, how: str) -> TransientError:
    """The fault for an answer that does not fit the question."""
    return TransientError(TransientKind.AMBIGUOUS, f"{what}: the answer {how}")


def listed(what: str, found: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """A list in an answer. A missing list is a fault: it does not mean an empty one."""
    items = found.get(key)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise bad_answer(what, f"has no list `{key}`")
    return items


def pages(what: str, ask: Callable[[str | None], Mapping[str, Any]], key: str) -> Iterator[Mapping[str, Any]]:
    """All pages of a listing. `ask` gets the value of `key` in the last answer, at first None."""
    read = Pages()
    more: str | None = None
    while True:
        found = ask(more)
        yield found
        more = found.get(key)
        if not more:
            return
        if not isinstance(more, str):
            raise bad_answer(what, "leads to no page")
        if how := read.fault(more):
            raise bad_answer(what, how)
