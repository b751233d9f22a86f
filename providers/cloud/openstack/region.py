"""One region of an OpenStack: requests to its APIs, complete listings."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from declarative.model.record import struct
from declarative.model.text import suggest
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud.account import if_there
from providers.cloud.any.site import Disk, Machine
from providers.cloud.bad_answers import Pages, Scrub
from providers.cloud.connection import Connection, limiter
from providers.cloud.openstack import answers
from providers.cloud.openstack.answers import bad_answer, error_info, inside, listed

PAGE = 1000
"""The most items per answer; the cloud may return fewer."""
NOVA = "2.61"
"""The version of nova's API that we use, from Queens: flavors include their extra specs."""

CONNECTIONS: Mapping[str, str] = {
    "compute": "connection",
    "volume": "volumev3_connection",
    "image": "image_connection",
    "network": "network_connection",
}
"""The names of the API connections in libcloud's driver."""


class Region:
    """Requests to one region."""

    def __init__(
        self, name: str, login: Login, interface: str, scrub: Scrub, timeout: int, config: Config
    ) -> None:
        self.name = name
        self._login = login
        self._interface = interface

        def make() -> Any:
            return _driver(timeout)

        key = ("openstack", login.endpoint, name)
        pace = limiter(*key)
        self._connection = Connection(
            make, pace, scrub, error_info, fence=config.fence, answered=config.answered
        )
        self._mine = threading.local()
        self.known: dict[tuple[str, str], str] = {}
        """Ids that were looked up by name: (`flavor`, name) → id."""

    # ----------------------------------------------------------------------------------- requests

    def ask(  # a request has that many parts
        self,
        what: str,
        api: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        about: str | None = None,
        version: str | None = None,
        query: Mapping[str, object] | None = None,
    ) -> Any:
        """The content of the answer to one request: JSON, or None. `what` names it in messages."""
        where = f"{what} in {self.name}"
        headers = {"OpenStack-API-Version": f"compute {NOVA}"} if api == "compute" else {}
        if version:
            headers = {"OpenStack-API-Version": version}
        options: dict[str, Any] = {
            "method": method,
            "params": dict(query or {}),
            "data": body,
            "headers": headers,
        }
        token = self._login.token()
        self._mine.refused = False
        try:
            return self._send(where, api, path, token, about=about, **options)
        except PermanentError:
            if not self._mine.refused:
                raise
        # It was not carried out. A token may expire early; if a second one is refused, that is a fault.
        self._login.refused(token)
        return self._send(where, api, path, self._login.token(), about=about, **options)

    def _send(
        self, what: str, api: str, path: str, token: Token, *, about: str | None, **options: Any
    ) -> Any:
        url = token.url(api, self.name, self._interface)

        def aim(driver: Any) -> Any:
            part = getattr(driver, CONNECTIONS[api])
            # All parts are set here, so that libcloud never logs in by itself.
            part.auth_token = part._ex_force_auth_token = token.value  # noqa: SLF001
            part.base_url = part._ex_force_base_url = url  # noqa: SLF001
            part._set_up_connection_info(url)  # noqa: SLF001

            return part

        def ask(driver: Any) -> Any:
            part = getattr(driver, CONNECTIONS[api])
            try:
                return part.request(path, **options).object
            except Exception:
                found = part.connection.response
                self._mine.refused = found is not None and found.status_code == 401
                raise

        return self._connection.call(what, ask, about=about, carrier=aim)

    def pages(self, what: str, api: str, path: str, key: str, **query: object) -> Iterator[dict[str, Any]]:
        """The items of a list, over all pages."""
        read = Pages()
        marker: str | None = None
        while True:
            found = self._page(what, api, path, query, marker)
            items = answers.listed(what, found, key)
            yield from items
            links = found.get(f"{key}_links") or []
            if not any(link.get("rel") == "next" for link in links):
                return
            marker = str(items[-1].get("id")) if items else ""
            if how := read.fault(marker) if marker else "leads to no page":
                raise answers.bad_answer(f"{what} in {self.name}", how)

    def _page(
        self, what: str, api: str, path: str, query: Mapping[str, object], marker: str | None
    ) -> dict[str, Any]:
        """One page of a list; `marker` is the id of the last item before it."""
        more = {"marker": marker} if marker else {}
        try:
            found: dict[str, Any] = self.ask(what, api, "GET", path, query={"limit": PAGE, **query, **more})
        except PermanentError as error:
            if marker is None or error.kind is not PermanentKind.NOT_FOUND:
                raise
            # The last item of the page before was deleted meanwhile.
            raise TransientError(TransientKind.BUSY, error.summary, about=error.about) from None
        return found

    def images(self, what: str, query: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        """All images that match the query. Glance marks further pages in its own way."""
        read = Pages()
        marker: str | None = None
        while True:
            more = {"marker": marker} if marker else {}
            found = self.ask(what, "image", "GET", "/v2/images", query={"limit": PAGE, **query, **more})
            items = answers.listed(what, found, "images")
            yield from items
            last = str(items[-1].get("id")) if items else None
            if not found.get("next") or last in (None, marker):
                return
            if how := read.fault(last):
                raise answers.bad_answer(f"{what} in {self.name}", how)
            marker = last

    # ------------------------------------------------------------------------------------ servers

    def servers(self, **query: object) -> list[Machine]:
        """All servers of the project that match the query."""
        what = "listing servers"
        found = self.pages(what, "compute", "/servers/detail", "servers", **query)
        return [answers.server(what, item, self.name) for item in found]

    def server(self, made: str) -> Machine | None:
        """One server; None if the id does not exist."""
        what = f"server {made}"
        found = if_there(self.ask, what, "compute", "GET", f"/servers/{made}")
        return (
            None if found is None else answers.server(what, answers.inside(what, found, "server"), self.name)
        )

    # ------------------------------------------------------------------------------------ volumes

    def volumes(self, **query: object) -> list[Disk]:
        """All volumes of the project that match the query."""
        what = "listing volumes"
        found = self.pages(what, "volume", "/volumes/detail", "volumes", **query)
        return [answers.volume(what, item, self.name) for item in found]

    def volume(self, made: str) -> Disk | None:
        """One volume; None if the id does not exist."""
        what = f"volume {made}"
        found = if_there(self.ask, what, "volume", "GET", f"/volumes/{made}")
        return (
            None if found is None else answers.volume(what, answers.inside(what, found, "volume"), self.name)
        )

    # ----------------------------------------------------------------------------------- metadata

    def written(self, api: str, path: str) -> dict[str, str]:
        """The metadata that people wrote on a thing. Its description may also show the cloud's own."""
        what = f"metadata of {path[1:]}"
        found = answers.inside(what, self.ask(what, api, "GET", f"{path}/metadata"), "metadata")
        return {str(key): str(value) for key, value in found.items()}

    def write(self, api: str, path: str, tags: Mapping[str, str]) -> None:
        """Replace all metadata of a thing, in one request."""
        self.ask(f"metadata of {path[1:]}", api, "PUT", f"{path}/metadata", {"metadata": dict(tags)})

    def tag(self, api: str, path: str, tags: Mapping[str, str]) -> None:
        """Set metadata of a thing, in one request; its others stay."""
        self.ask(f"metadata of {path[1:]}", api, "POST", f"{path}/metadata", {"metadata": dict(tags)})

    def untag(self, api: str, path: str, keys: Iterable[str]) -> None:
        """Remove metadata from a thing."""
        for key in keys:
            if_there(self.ask, f"metadata of {path[1:]}", api, "DELETE", f"{path}/metadata/{quote(key)}")


def _driver(timeout: int) -> Any:
    """A driver of libcloud's. Host and token are set before each request."""
    from libcloud.compute.providers import get_driver

    return get_driver("openstack")(
        "-",
        "-",
        api_version="2.2",
        ex_force_auth_url="http://127.0.0.1",
        ex_force_auth_version="3.x_password",
        ex_force_auth_token="-",  # noqa: S106  # none yet
        ex_force_base_url="http://127.0.0.1",
        ex_tenant_name="-",
        timeout=timeout,
    )


_ANOTHERS = (300, 301, 302, 404, 405)
"""Statuses of servers that do not know logins."""
MARGIN = 120.0
"""Seconds before its end when a token is no longer used."""

TYPES: Mapping[str, tuple[str, ...]] = {
    "compute": ("compute",),
    "volume": ("volumev3", "block-storage", "block-store"),
    "image": ("image",),
    "network": ("network",),
}
"""The APIs' types in catalogs; their names there vary."""
VERSIONS: Mapping[str, str] = {"image": "/v2", "network": "/v2.0"}
"""Version parts that some catalogs have at the end of a URL, and others leave out."""


@struct(frozen=True, slots=True, kw_only=True)
class Token:
    """A token, and the catalog that came with it."""

    value: str
    expires: float
    """The time by the monotonic clock."""
    catalog: tuple[Mapping[str, Any], ...]

    def regions(self) -> list[str]:
        """All regions in the catalog."""
        found = {_region(e) for entry in self.catalog for e in entry.get("endpoints") or ()}
        return sorted(found)

    def url(self, api: str, region: str, interface: str) -> str:
        """The URL of an API in a region."""
        found: dict[str, str] = {}
        for entry in self.catalog:
            for e in entry.get("endpoints") or ():
                if (_region(e), e.get("interface")) == (region, interface) and e.get("url"):
                    found[str(entry.get("type"))] = str(e["url"]).rstrip("/")
        url = next(filter(None, map(found.get, TYPES[api])), None)
        if url:
            return url.removesuffix(VERSIONS.get(api, ""))
        known = self.regions()
        if region not in known:
            hint = suggest(region, known) or f"it has these: {', '.join(known) or 'none'}"
            raise PermanentError(
                PermanentKind.INVALID, f"this cloud has no region `{region}`", about="regions", hint=hint
            )
        summary = f"keystone's catalog has no {interface} endpoint of `{TYPES[api][0]}` in {region}"
        hint = "`options.interface` is public, internal or admin"
        raise PermanentError(PermanentKind.INVALID, summary, about="options.interface", hint=hint)


class Login:
    """The tokens of one user in one project. Safe to use from many threads, which share a token."""

    def __init__(self, endpoint: str, body: Mapping[str, Any], scrub: Scrub, timeout: int) -> None:
        """`endpoint` is keystone's URL without its version, `body` the login request."""
        self._body = json.dumps(body)
        self.endpoint = endpoint
        self._scrub = scrub
        self._turn = threading.Lock()
        self._token: Token | None = None

        def make() -> Any:
            return _Keystone(endpoint, timeout)

        self._connection = Connection(make, limiter("openstack", endpoint), scrub, error_info)

    def token(self) -> Token:
        """A token that is valid for a while."""
        with self._turn:
            if self._token is None or time.monotonic() > self._token.expires - MARGIN:
                self._token = self._ask()
            return self._token

    def refused(self, token: Token) -> None:
        """Note that a token was refused."""
        with self._turn:
            if self._token is token:
                self._token = None

    def _ask(self) -> Token:
        what = f"login at {self.endpoint}"

        def ask(driver: Any) -> Any:
            link = driver.connection
            try:
                found = link.request("/v3/auth/tokens", method="POST", data=self._body, retry_failed=False)
            finally:
                self._check(link.connection.response)
            if found.status >= 300:
                raise OSError(found.status)  # libcloud treats a refusal like any answer
            return found

        response = self._connection.call(what, ask, about="credentials", carrier=_connected)
        try:
            found = inside(what, json.loads(response.body), "token")
        except ValueError:
            raise bad_answer(what, "is no JSON: is `endpoint` keystone's URL?") from None
        value = response.headers.get("x-subject-token")
        if not value:
            raise bad_answer(what, "has no token")
        self._scrub.learn([value])
        catalog = listed(what, found, "catalog") if "catalog" in found else []
        return Token(value=value, expires=time.monotonic() + _seconds(found), catalog=tuple(catalog))

    def _check(self, response: Any) -> None:
        if response is not None and response.status_code in _ANOTHERS:
            summary = f"what answers at {self.endpoint} is not keystone: status {response.status_code}"
            hint = "`endpoint` is keystone's URL, as `OS_AUTH_URL` has it"
            raise PermanentError(PermanentKind.INVALID, summary, about="endpoint", hint=hint)


class _Keystone:
    """libcloud's connection to keystone, as a driver with nothing else."""

    def __init__(self, endpoint: str, timeout: int) -> None:
        from libcloud.common import openstack_identity

        # The request names the user: libcloud supports fewer kinds of login.
        kind: Any = openstack_identity.OpenStackIdentity_3_0_Connection
        self.connection = kind(auth_url=endpoint, user_id="-", key="-", tenant_name="-", timeout=timeout)


def _connected(driver: Any) -> Any:
    if driver.connection.connection is None:
        driver.connection.connect()
    return driver.connection


def _region(endpoint: Mapping[str, Any]) -> str:
    return str(endpoint.get("region_id") or endpoint.get("region") or "")


def _seconds(found: Mapping[str, Any]) -> float:
    """For how many seconds a token is valid, from two times of the server's clock, which may differ from
    ours.
    """
    try:
        ends, begins = (datetime.fromisoformat(str(found[key])) for key in ("expires_at", "issued_at"))
        return (ends - begins).total_seconds()
    except (KeyError, ValueError, TypeError):
        return 600.0
