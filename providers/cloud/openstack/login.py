"""Keystone: a token for all that is asked, and the catalog that says where."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from declarative.diagnostic import suggest
from declarative.provider import PermanentError, PermanentKind
from providers.cloud.connection import Connection, limiter
from providers.cloud.openstack.answers import inside, listed, strange
from providers.cloud.openstack.codes import said
from providers.cloud.redact import Scrub

_ANOTHERS = (300, 301, 302, 404, 405)
"""Statuses of servers that know of no logins."""
MARGIN = 120.0
"""Seconds before its end from which on a token is not used any more."""

TYPES: Mapping[str, tuple[str, ...]] = {
    "compute": ("compute",),
    "volume": ("volumev3", "block-storage", "block-store"),
    "image": ("image",),
    "network": ("network",),
}
"""By which types catalogs call the APIs; their names are whatever the cloud likes."""
VERSIONS: Mapping[str, str] = {"image": "/v2", "network": "/v2.0"}
"""What some catalogs have at the end of a URL, and others leave to who asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token, and the catalog that came with it."""

    value: str
    expires: float
    """By the monotonic clock."""
    catalog: tuple[Mapping[str, Any], ...]

    def regions(self) -> list[str]:
        """All regions that the catalog knows."""
        found = {_region(e) for entry in self.catalog for e in entry.get("endpoints") or ()}
        return sorted(found)

    def url(self, api: str, region: str, interface: str) -> str:
        """Where an API of a region answers."""
        found = {
            str(entry.get("type")): str(e["url"]).rstrip("/")
            for entry in self.catalog
            for e in entry.get("endpoints") or ()
            if _region(e) == region and e.get("interface") == interface and e.get("url")
        }
        url = next((found[kind] for kind in TYPES[api] if kind in found), None)
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
    """Tokens of one user in one project. Safe to use from many threads: all use the same one."""

    def __init__(self, endpoint: str, body: Mapping[str, Any], scrub: Scrub, timeout: int) -> None:
        """`endpoint` is keystone's URL without its version, `body` what is posted to it."""
        self._body = json.dumps(body)
        self.endpoint = endpoint
        self._scrub = scrub
        self._turn = threading.Lock()
        self._token: Token | None = None

        def make() -> Any:
            return _Keystone(endpoint, timeout)

        self._connection = Connection(make, limiter("openstack", endpoint), scrub, said)

    def token(self) -> Token:
        """One that holds for some time to come."""
        with self._turn:
            if self._token is None or time.monotonic() > self._token.expires - MARGIN:
                self._token = self._ask()
            return self._token

    def refused(self, token: Token) -> None:
        """Somebody was told that it does not hold."""
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
                raise OSError(found.status)  # to libcloud, a refusal is an answer as others
            return found

        response = self._connection.call(what, ask, about="credentials", carrier=_connected)
        try:
            found = inside(what, json.loads(response.body), "token")
        except ValueError:
            raise strange(what, "is no JSON: is `endpoint` keystone's URL?") from None
        value = response.headers.get("x-subject-token")
        if not value:
            raise strange(what, "has no token")
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

        # Who logs in stands in the request: libcloud's own knows fewer ways to say it.
        kind: Any = openstack_identity.OpenStackIdentity_3_0_Connection
        self.connection = kind(auth_url=endpoint, user_id="-", key="-", tenant_name="-", timeout=timeout)


def _connected(driver: Any) -> Any:
    if driver.connection.connection is None:
        driver.connection.connect()
    return driver.connection


def _region(endpoint: Mapping[str, Any]) -> str:
    return str(endpoint.get("region_id") or endpoint.get("region") or "")


def _seconds(found: Mapping[str, Any]) -> float:
    """How long a token holds: by two times of one clock, which need not be ours."""
    try:
        ends, begins = (datetime.fromisoformat(str(found[key])) for key in ("expires_at", "issued_at"))
        return (ends - begins).total_seconds()
    except (KeyError, ValueError, TypeError):
        return 600.0
