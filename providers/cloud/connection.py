"""One libcloud driver per thread, and requests through it whose faults are the port's.

libcloud's drivers keep the running request in themselves, so threads that share one mix up their answers. Its
sessions would use the passwords in `~/.netrc` and overwrite the signature with them; here, only proxies and
certificate authorities come from the environment. They would also follow a redirect to any host, with the
body and all headers but one: passwords, tokens, user data.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from functools import cache, partial
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from declarative.provider import (
    Fence,
    PermanentError,
    PermanentKind,
    ProviderError,
    TransientError,
    TransientKind,
    reads_only,
)
from providers.cloud.bad_answers import Pages, Scrub, taken
from providers.cloud.faults import Answer, ErrorInfo, classify

T = TypeVar("T")

MOST_BYTES = 64 << 20
"""The limit for one answer; a page of a thousand machines has about five million."""
_UNASKED = (TypeError, ValueError, NotImplementedError, AttributeError, KeyError)
"""The errors of drivers for bad arguments. Faults of the transport have other classes."""


class _Late(threading.local):
    """The running call of a thread."""

    def __init__(self) -> None:
        self.fence: Fence = reads_only
        self.answers = Pages()
        """A driver's own listings have pages that only the driver sees."""


_late = _Late()


def fence_late() -> None:
    """Ask the running call's fence. For a transport of another kind: just before it sends a request."""
    _late.fence()


class Connection:
    """Requests to one API. Safe to use from many threads."""

    def __init__(
        self,
        make: Callable[[], Any],
        limiter: Limiter,
        scrub: Scrub,
        read: Callable[[Answer], ErrorInfo | None],
        login: Callable[[], object] = lambda: None,
        *,
        fence: Fence = reads_only,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        """`make` makes a new driver, `read` parses its errors. When `login` returns something new, drivers
        are made again. `fence` is called before each call, and again after connecting, just before the
        request is sent: waiting for the limiter, names and handshakes may take long. `answered` is called
        after each call that succeeded (`Config.answered`).
        """
        self._make = make
        self._login = login
        self._fence = fence
        self._answered = answered
        self._limiter = limiter
        self._scrub = scrub
        self._read = read
        self._mine = threading.local()

    def request(
        self,
        what: str,
        path: str,
        *,
        about: str | None = None,
        limiter: Limiter | None = None,
        **options: Any,
    ) -> Any:
        """The response to one request, sent once. `what` names it in messages. `limiter` is for kinds
        of requests that the API counts separately.
        """

        def ask(driver: Any) -> Any:
            return driver.connection.request(path, retry_failed=False, **options)

        return self.call(what, ask, about=about, limiter=limiter)

    def call(
        self,
        what: str,
        ask: Callable[[Any], T],
        *,
        about: str | None = None,
        limiter: Limiter | None = None,
        carrier: Callable[[Any], Any] = lambda driver: getattr(driver, "connection", None),
    ) -> T:
        """The result of a driver's own method. It may send several requests; the last answer counts.

        `carrier` returns the part of the driver that sends them, if it has several connections. An error
        before any request is `INVALID`: the method refuses its arguments.
        """
        driver = self._driver(what)
        limiter = limiter or self._limiter
        limiter.wait()
        self._fence()
        link = None
        self._mine.refused = None
        before = _late.fence, _late.answers
        _late.fence, _late.answers = self._fence_late, Pages()
        try:
            link = _link(carrier(driver))
            if link is not None:
                _settle(link)
                link.response = None
            response = ask(driver)
        except Exception as error:  # libcloud raises any kind of error
            if error is self._mine.refused:
                raise
            fault = self._fault(what, error, link, about)
            if isinstance(fault, TransientError) and fault.kind is TransientKind.THROTTLED:
                limiter.throttled(fault.after)
            # Without the cause, whose text may quote what was sent.
            raise fault from None
        finally:
            _late.fence, _late.answers = before
        limiter.fine()
        self._answered()
        return response

    def _fault(self, what: str, error: Exception, link: Any, about: str | None) -> ProviderError:
        """The fault for an error of a call; `link` comes from `_link`."""
        answer = _answer(link.response) if link is not None else None
        if isinstance(error, TooLongError):
            answer = None  # the answer belongs to an earlier page, or has no content
        if link is not None and answer is None and type(error) in _UNASKED:
            summary = self._scrub(f"{what}: libcloud refused: {error}")
            return PermanentError(PermanentKind.INVALID, summary, about=about)
        return classify(error, answer, what=what, scrub=self._scrub, read=self._read, about=about)

    def _fence_late(self) -> None:
        try:
            self._fence()
        except Exception as error:
            self._mine.refused = error  # not a fault of the cloud
            raise

    def _driver(self, what: str) -> Any:
        login = self._login()
        found = getattr(self._mine, "driver", None)
        if found is None or self._mine.login != login:
            try:
                found = self._make()
            except ProviderError:
                raise
            except _UNASKED as error:
                summary = self._scrub(f"{what}: libcloud's driver cannot be made: {error}")
                raise PermanentError(PermanentKind.INVALID, summary) from None
            except Exception as error:  # noqa: BLE001  # as above
                raise classify(error, None, what=what, scrub=self._scrub) from None
            self._mine.driver, self._mine.login = found, login
        return found


def _link(carrier: Any) -> Any:
    """The part that holds a connection's session and its last response; None for a driver without HTTP."""
    link = getattr(carrier, "connection", None)
    return link if hasattr(link, "session") else None


def _answer(response: Any) -> Answer | None:
    if response is None:
        return None
    headers = {str(k).lower(): str(v) for k, v in response.headers.items()}
    return Answer(status=int(response.status_code), headers=headers, text=response.text or "")


class TooLongError(OSError):
    """An answer without an end, or too long for the question."""


def _read(response: Any, **_: Any) -> None:
    """Read an answer up to the limit. Without a declared charset it is UTF-8.

    Guessing the charset would take longer than the rest of the request, and `text/xml` would be read as
    Latin-1.
    """
    parts, size = [], 0
    if "," in response.headers.get("content-encoding", ""):
        response.close()
        raise TooLongError("the answer is compressed more than once")
    for part in response.iter_content(1 << 16):
        size += len(part)
        if size > MOST_BYTES:
            response.close()
            raise TooLongError(f"the answer has more than {MOST_BYTES >> 20} MiB")
        parts.append(part)
    taken.size += size
    if how := _late.answers.fault(object()):
        raise TooLongError(f"the answer {how}")
    response._content = b"".join(parts)  # noqa: SLF001  # where it keeps what it has read
    if "charset" not in response.headers.get("content-type", "").lower():
        response.encoding = "utf-8"


# Hooks of a session must not refer back to it, so that its sockets are closed as soon as it is dropped.


def _stay(session: Any) -> None:
    """Stop a session from following a redirect to another server. The redirect is then the last answer."""
    its: Callable[[], Any] = weakref.ref(session)
    follow = type(session).get_redirect_target

    def target(response: Any) -> str | None:
        session = its()
        try:
            found: str | None = follow(session, response)
            away = found and session.should_strip_auth(response.url, urljoin(response.url, found))
        except ValueError:  # not a URL
            return None
        return None if away else found

    session.get_redirect_target = target


def _ask_late(session: Any) -> None:
    """Call the running call's fence before each request of a session, once connected."""
    for adapter in session.adapters.values():
        _asking_pools(adapter.poolmanager)
        adapter.proxy_manager_for = partial(_behind_proxy, weakref.ref(adapter))


def _behind_proxy(its: Callable[[], Any], proxy: str, **given: Any) -> Any:
    return _asking_pools(type(its()).proxy_manager_for(its(), proxy, **given))


def _asking_pools(manager: Any) -> Any:
    found = manager.pool_classes_by_scheme.items()
    manager.pool_classes_by_scheme = {scheme: _asking(pool) for scheme, pool in found}
    return manager


@cache
def _asking(pool: Any) -> Any:
    if hasattr(pool, "asks_late"):
        return pool
    real = pool.ConnectionCls

    def request(connection: Any, *args: Any, **given: Any) -> Any:
        if connection.sock is None:
            connection.connect()
        fence_late()
        return real.request(connection, *args, **given)

    asking = type(real.__name__, (real,), {"request": request})
    return type(pool.__name__, (pool,), {"ConnectionCls": asking, "asks_late": True})


def _settle(link: Any) -> None:
    """Take proxies and certificates from the environment, but nothing from `~/.netrc`. Add the late fence."""
    from requests.utils import get_environ_proxies

    session = link.session
    if not session.trust_env:
        return  # done before
    if not link.http_proxy_used:
        session.proxies = get_environ_proxies(link.host, no_proxy=None)
    session.trust_env = False
    _stay(session)
    _ask_late(session)
    session.hooks["response"].append(_read)
    if urlsplit(link.host).scheme == "https" and link.ca_cert is None and link.verify:
        authorities = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        if authorities:
            link.ca_cert = authorities


FIRST_GAP = 0.05
LONGEST_GAP = 2.0
"""The longest gap between two requests in seconds: none at first, doubled with each complaint of the API."""
RECOVERY = 0.9
"""The gap is multiplied by this after each successful request."""
STEADY = 0.98
GENTLY = 1.1
"""The factors of the gap if the API's rate is known: it is about right already."""
LONGEST_PAUSE = 30.0
"""Seconds. If an API wants a longer pause, the retries are slowed down, not the calls here."""


class Limiter:
    """Spaces requests out after complaints. Safe to use from many threads."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        rate: float | None = None,
        least: float = 0.0,
    ) -> None:
        """`rate` is how many requests a second the API is known to allow in the long run. A complaint sets
        the gap to it at once, and the gap stays near it. `least` is a gap in seconds that is always kept.
        """
        self._least = least
        known = (FIRST_GAP, 2.0, RECOVERY) if rate is None else (1 / rate, GENTLY, STEADY)
        self._first, self._growth, self._recovery = known
        self._now = now
        self._sleep = sleep
        self._turn = threading.Lock()
        self._gap = 0.0
        self._next = 0.0
        self._widened = 0.0

    def wait(self) -> None:
        """Wait for a turn; returns at once without complaints, unless there is a gap to keep."""
        with self._turn:
            now = self._now()
            mine = max(now, self._next)
            self._next = mine + max(self._gap, self._least)
        if mine > now:
            self._sleep(mine - now)

    def throttled(self, after: float | None = None) -> None:
        """The API complained; `after` is the pause that it asked for, in seconds."""
        with self._turn:
            now = self._now()
            if now >= self._widened:
                # All requests that were running together count as one complaint.
                self._gap = min(LONGEST_GAP, max(self._first, self._gap * self._growth))
                self._widened = now + self._gap * 2
            self._next = max(self._next, now + min(LONGEST_PAUSE, after or self._gap))

    def fine(self) -> None:
        """A request succeeded."""
        if self._gap:
            with self._turn:
                self._gap = self._gap * self._recovery if self._gap > FIRST_GAP / 10 else 0.0


_LIMITERS: dict[Hashable, Limiter] = {}
_TURN = threading.Lock()


def limiter(*key: Hashable, rate: float | None = None, least: float = 0.0) -> Limiter:
    """The limiter of an API or a part of it, shared by all providers of this process."""
    with _TURN:
        return _LIMITERS.setdefault(key, Limiter(rate=rate, least=least))
