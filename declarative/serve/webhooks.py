"""The loop's own events, and the delivery of events to webhooks: at least once, in order, for each hook by
its own cursor in the state.

A hook that fails, hangs or is unreachable delays no other. It is tried again at growing intervals, and misses
nothing as long as the state keeps its events. Bodies are signed as in Standard Webhooks. The loop writes
events about changes: what waits, what fails, who leads.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from declarative import __version__
from declarative.model.record import struct
from declarative.model.spec.project import HookFormat, Notify
from declarative.reconcile.loop import Round, Wait
from declarative.render.listings import event_json
from declarative.render.output_json import to_line
from declarative.store import Store
from declarative.store.errors import StateError
from declarative.store.events import Event

WriteEvent = Callable[[str, str, Mapping[str, Any]], None]


class _Error(NamedTuple):
    """An error of a round, as it is told of once."""

    code: str
    summary: str
    file: str
    """Empty for an error that is not about a file."""
    line: int


class Announcer:
    """Writes events about what changed since the last round."""

    def __init__(self, write_event: WriteEvent) -> None:
        self._write = write_event
        self._leads = False
        self._waits: set[Wait] = set()
        self._errors: set[_Error] = set()

    def observe(self, done: Round) -> None:
        """Compare a round that ended. A replica that follows writes nothing: the leader does."""
        if not done.held:
            self._leads = False
            return
        if not self._leads:
            self._leads = True
            self._write("reconcile.leads", "reconcile/loop", {"epoch": done.epoch})
        errors = {
            _Error(e.code, e.summary, e.span.file if e.span else "", e.span.line if e.span else 0)
            for e in done.errors
        }
        for error in sorted(errors - self._errors):
            detail = {
                "code": error.code,
                "summary": error.summary,
                "file": error.file or None,
                "line": error.line or None,
                "commit": done.revision,
                "commit_in_force": done.in_force,
            }
            self._write("reconcile.failed", "reconcile/loop", detail)
        if self._errors and not errors:
            self._write("reconcile.recovered", "reconcile/loop", {"commit": done.revision})
        self._errors = errors
        if done.plan is None:
            return
        waits = {Wait(address=w.address, action=w.action, why=w.why, digest=w.digest) for w in done.waits}
        for wait in sorted(waits - self._waits, key=lambda w: (w.address, w.action, w.why)):
            kind = wait.address.partition("/")[0]
            detail = {"action": wait.action, "why": wait.why, "digest": wait.digest}
            self._write(f"{kind}.waiting", wait.address, detail)
        self._waits = waits


TIMEOUT = 10.0
"""Seconds of silence after which a request has failed."""
LONGEST = 30.0
"""Seconds that a whole request may take."""
CLAIM = 60.0
"""For how many seconds only this process delivers to a hook; renewed with each event."""
BATCH = 100
FIRST, SELDOM = 1.0, 600.0
"""Seconds until the second try, and the longest wait between two."""
DETAILS = ("cause", "error", "reason", "why", "summary")
TEXT_LENGTH = 2000


class DeliveryError(Exception):
    """A webhook did not accept an event: why, without its URL. `after` is when it wants the next try."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after


@struct(frozen=True, slots=True)
class Webhook:
    """A webhook, with its URL and secret from the environment."""

    hook: Notify
    url: str
    secret: str | None = None

    def __repr__(self) -> str:
        return f"Webhook({self.hook.name})"


# ---------------------------------------------------------------------------------------------- messages


def message(target: Webhook, event: Event, lineage: str | None, now: float) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request."""
    payload = event_json(event, lineage)
    headers = {"Content-Type": "application/json", "User-Agent": f"fleetform/{__version__}"}
    if target.hook.format is HookFormat.SLACK:
        return headers, _body({"text": _slack(event)})
    if target.hook.format is HookFormat.GITHUB:
        headers["Accept"] = "application/vnd.github+json"
        headers["Authorization"] = f"Bearer {target.secret}"
        return headers, _body({"event_type": f"fleetform.{event.type}"[:100], "client_payload": payload})
    body = _body(payload)
    headers["webhook-id"] = payload["id"]
    headers["webhook-timestamp"] = str(int(now))
    if target.secret:
        headers["webhook-signature"] = signature(target.secret, payload["id"], int(now), body)
    return headers, body


def signature(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and HMAC-SHA256 over id, time and body. A secret `whsec_…` is base64 of the key."""
    key = secret.encode()
    if secret.startswith("whsec_"):
        with contextlib.suppress(ValueError):
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    digest = hmac.new(key, f"{id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def _body(data: Mapping[str, Any]) -> bytes:
    return to_line(data).encode(errors="replace")


def _slack(event: Event) -> str:
    """A message for Slack in which nothing of the event is markup, a link or a mention."""
    why = next((str(event.detail[name]) for name in DETAILS if event.detail.get(name)), "")
    if event.detail.get("file"):
        why += f", {event.detail['file']}:{event.detail.get('line')}"
    if event.detail.get("commit"):
        why = f"{why}, commit {str(event.detail['commit'])[:12]}".removeprefix(", ")
    text = f"{event.address}: {event.type.partition('.')[2].replace('_', ' ')}" + (f" ({why})" if why else "")
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, entity)
    # Put a zero-width character after whatever begins markup or a mention.
    return "".join(f"{c}\u200b" if c in "*_~`@#:" else c for c in text[:TEXT_LENGTH])


# ----------------------------------------------------------------------------------------------- sending


def send(url: str, headers: Mapping[str, str], body: bytes) -> None:
    """Send one request; `DeliveryError` unless the answer is 2xx. Redirects are not followed."""
    split = urlsplit(url)
    unusable = DeliveryError("its URL does not begin with `https://` or `http://`")
    if split.scheme not in ("http", "https") or not split.hostname:
        raise unusable
    line: http.client.HTTPConnection
    try:
        if split.scheme == "https":
            context = ssl.create_default_context()
            line = http.client.HTTPSConnection(split.hostname, split.port, timeout=TIMEOUT, context=context)
        else:
            line = http.client.HTTPConnection(split.hostname, split.port, timeout=TIMEOUT)
    except (ValueError, OSError):
        raise unusable from None

    def cut() -> None:
        if line.sock is not None:
            with contextlib.suppress(OSError):
                line.sock.shutdown(socket.SHUT_RDWR)

    limit = threading.Timer(LONGEST, cut)
    limit.daemon = True
    limit.start()
    try:
        path = f"{split.path or '/'}{'?' + split.query if split.query else ''}"
        line.request("POST", path, body, dict(headers))
        answer = line.getresponse()
        status, after = answer.status, answer.headers.get("Retry-After", "")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DeliveryError(_why(error)) from None
    finally:
        limit.cancel()
        line.close()
    if not 200 <= status < 300:
        raise DeliveryError(f"it answered HTTP {status}", float(after) if after.isdigit() else 0.0)


def _why(error: Exception) -> str:
    """The error without the URL, which may be a secret."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, OSError):
        return f"it cannot be reached: {error.strerror or type(error).__name__}"
    return f"its answer is not HTTP ({type(error).__name__})"


# -------------------------------------------------------------------------------------------- delivering


def pending(store: Store, targets: Sequence[Webhook]) -> list[Webhook]:
    """The hooks that are new or have events to get. Only reads."""
    known = {hook.name: hook for hook in store.hooks.all()}
    last = store.events.bounds()[1]
    return [
        target
        for target in targets
        if (hook := known.get(target.hook.name)) is None or (hook.cursor < last and not hook.rests)
    ]


def deliver(
    store: Store,
    target: Webhook,
    clock: Callable[[], float],
    stopping: threading.Event | None = None,
    *,
    at_once: bool = False,
) -> str | None:
    """Deliver to one hook all events that it lacks. Returns why that failed; None if the hook has all, or
    another process delivers. `at_once` also tries a hook that rests after a failure.
    """
    name = target.hook.name
    hook = store.hooks.claim(name, CLAIM, at_once=at_once)
    if hook is None:
        return None
    cursor, failures, lineage = hook.cursor, hook.failures, store.lineage()
    while events := store.events.after(cursor, BATCH):
        for event in events:
            if stopping is not None and stopping.is_set():
                store.hooks.advance(name, cursor)
                return None
            if target.hook.wants(event.type):
                try:
                    send(target.url, *message(target, event, lineage, clock()))
                except DeliveryError as error:
                    store.hooks.fail(name, str(error), max(_wait(failures), min(error.after, SELDOM)))
                    return str(error)
                failures = 0
                store.hooks.advance(name, event.id, more=CLAIM)
            cursor = event.id
    store.hooks.advance(name, cursor)
    return None


def _wait(failures: int) -> float:
    """Seconds until the next try after a number of failures."""
    return min(SELDOM, FIRST * 2.0 ** min(failures, 16)) * random.uniform(0.8, 1.2)  # noqa: S311 (spread)


class Deliveries:
    """Delivers to all webhooks in the background, each in its own thread."""

    def __init__(
        self, opened: Callable[[], Store], clock: Callable[[], float], say: Callable[[str], None]
    ) -> None:
        """`opened` opens a state to write to; `say` gets a text when a hook fails or works again."""
        self._opened = opened
        self._clock = clock
        self._say = say
        self._store: Store | None = None
        self._stopping = threading.Event()
        self._running: dict[str, threading.Thread] = {}
        self._reported: dict[str, str | None] = {}
        self._declared: AbstractSet[str] | None = None

    def tick(self, targets: Sequence[Webhook], declared: AbstractSet[str]) -> None:
        """Start the deliveries that are due, and forget hooks that are not `declared` any more. Does not wait
        for them.
        """
        with self._open_store() as store:
            if declared != self._declared:
                store.hooks.keep(declared)
                self._declared = declared
            for target in pending(store, targets):
                name = target.hook.name
                if name not in self._running or not self._running[name].is_alive():
                    thread = threading.Thread(
                        target=self._deliver, args=(store, target), name=f"notify {name}", daemon=True
                    )
                    self._running[name] = thread
                    thread.start()

    def write_event(self, type: str, address: str, detail: Mapping[str, Any]) -> None:
        """Write an event of the loop. An unreachable state does not fail the round."""
        with self._open_store() as store:
            store.events.write(type, address, detail)

    @contextlib.contextmanager
    def _open_store(self) -> Iterator[Store]:
        """The state. If it fails, that is reported, and the next use opens it anew."""
        try:
            if self._store is None:
                self._store = self._opened()
            yield self._store
        except StateError as error:
            self._note("the state", error.summary)
            self._give_up_store()

    def close(self) -> None:
        """Give running deliveries a moment, then end after the requests under way."""
        until = time.monotonic() + TIMEOUT
        for thread in self._running.values():
            thread.join(max(0.0, until - time.monotonic()))
        self._stopping.set()
        for thread in self._running.values():
            thread.join(LONGEST)
        self._give_up_store()

    def _give_up_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _deliver(self, store: Store, target: Webhook) -> None:
        try:
            self._note(target.hook.name, deliver(store, target, self._clock, self._stopping))
        except StateError as error:
            self._note(target.hook.name, error.summary)

    def _note(self, name: str, why: str | None) -> None:
        """Report what changed."""
        before, self._reported[name] = self._reported.get(name), why
        if why != before:
            text = f"does not get events: {why}" if why else "gets events again"
            self._say(f"notify {name} {text}")
