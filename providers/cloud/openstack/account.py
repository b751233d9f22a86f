"""One account of an OpenStack: its login, regions and options, how each thing is made only once, and the
floating addresses of nodes with `network.public_ip`.

OpenStack has no client tokens, so each create is preceded by a look. A create whose answer was lost may still
take effect for a while; only after that does a missing thing count as not made. Duplicates are deleted
nevertheless: see `duplicates`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from declarative.model.spec.backend import ImageFilter
from declarative.model.state import Record
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import marks, settings
from providers.cloud.account import RegionalAccount, if_there
from providers.cloud.bad_answers import reading
from providers.cloud.marks import Mark
from providers.cloud.openstack import answers, names
from providers.cloud.openstack.answers import Server
from providers.cloud.openstack.region import Login, Region
from providers.cloud.settings import write

TEXTS = (
    "project",
    "project_id",
    "domain",
    "user_domain",
    "project_domain",
    "interface",
    "network",
    "floating_network",
    "key_name",
)
OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(TEXTS, str),
    "root_volume": int,
    "settle": int,
}
INTERFACES = ("public", "internal", "admin")
DOMAIN = "Default"
PASSWORD = ("username", "password")
APPLICATION = ("id", "secret")
"""The two kinds of login: a user, or an application credential, which belongs to one project."""

ID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""The form of the ids of servers and volumes."""
_KEY = re.compile(r"[a-zA-Z0-9_:. -]{1,255}")
"""The form of a metadata key in nova and cinder."""
_MOST = 255
"""The most characters of a value."""


class Account(RegionalAccount[Region]):
    """The regions of a backend, and the owner whose things are looked for."""

    CLOUD = "OpenStack"

    def __init__(self, config: Config) -> None:
        super().__init__(config, OPTIONS)
        if self.interface not in INTERFACES:
            summary = f"the option `interface` is one of {', '.join(INTERFACES)}"
            raise PermanentError(PermanentKind.INVALID, summary, about="options.interface")
        if config.network.subnets:
            summary = "`network.subnets` has no meaning for OpenStack: its nodes are on networks"
            hint = "write `options: {network: NAME}`"
            raise PermanentError(PermanentKind.INVALID, summary, about="network.subnets", hint=hint)
        self.made_once = Once(int(self.options.get("settle", SETTLE)))
        self._login: Login | None = None

    @property
    def interface(self) -> str:
        """The kind of address at which the APIs are reached."""
        return str(self.options.get("interface", INTERFACES[0]))

    # ------------------------------------------------------------------------------------ regions

    def make(self, name: str) -> Region:
        application = any(key in self.config.credentials for key in APPLICATION)
        values = settings.secrets(self.config, APPLICATION if application else PASSWORD)
        # The user name is not a secret, and may be part of every message.
        self.scrub.learn(v for k, v in values.items() if k in ("password", "secret"))
        if self._login is None:
            body = {"auth": self._application(values) if application else self._user(values)}
            self._login = Login(self._endpoint(), body, self.scrub, self.timeout)
        return Region(name, self._login, self.interface, self.scrub, self.timeout, fence=self.config.fence)

    def _endpoint(self) -> str:
        """Keystone's URL without its version, which people copy from `OS_AUTH_URL`."""
        given = self.config.endpoint
        if not given:
            summary = f"backend {self.config.backend} names no `endpoint`"
            hint = f"{write(self.config, 'endpoint')} (keystone's, as `OS_AUTH_URL` has it)"
            raise PermanentError(PermanentKind.INVALID, summary, about="endpoint", hint=hint)
        plain = given.rstrip("/").removesuffix("/v3").rstrip("/")
        if re.search(r"/v\d[^/]*$", plain):
            summary = f"keystone is used in version 3, and `endpoint` names another: {given}"
            raise PermanentError(PermanentKind.INVALID, summary, about="endpoint")
        return plain

    def _user(self, values: Mapping[str, str]) -> dict[str, Any]:
        """A user and a project, in the form of keystone's requests."""
        both = self.options.get("domain", DOMAIN)
        user = {
            "name": values["username"],
            "password": values["password"],
            "domain": {"name": self.options.get("user_domain", both)},
        }
        if "project_id" in self.options:
            project: dict[str, Any] = {"id": self.options["project_id"]}
        elif "project" in self.options:
            domain = {"name": self.options.get("project_domain", both)}
            project = {"name": self.options["project"], "domain": domain}
        else:
            summary = f"backend {self.config.backend} names no project of OpenStack"
            hint = f"{write(self.config, 'options')} (as `OS_PROJECT_NAME` has it)"
            raise PermanentError(PermanentKind.INVALID, summary, about="options.project", hint=hint)
        return {
            "identity": {"methods": ["password"], "password": {"user": user}},
            "scope": {"project": project},
        }

    def _application(self, values: Mapping[str, str]) -> dict[str, Any]:
        credential = {"id": values["id"], "secret": values["secret"]}
        return {"identity": {"methods": ["application_credential"], "application_credential": credential}}

    def find_image(self, region: str, asked: ImageFilter) -> str:
        return names.newest(self.region(region), asked)

    # -------------------------------------------------------------------------------------- marks

    def mine(self, tags: Mapping[str, str], **more: str) -> bool:
        """Whether metadata name us as the owner. `address` and `token` narrow it."""
        return tags.get(marks.OWNER) == self.owner and all(
            tags.get(marks.OURS + key) == value for key, value in more.items()
        )

    def tags(self, mark: Mark) -> dict[str, str]:
        """All metadata of a thing: the user's tags, and ours."""
        users = mark.tags
        for key, value in users.items():
            if key.startswith(marks.OURS) or not _KEY.fullmatch(key) or len(value) > _MOST:
                summary = f"{mark.address}: OpenStack does not take the tag `{key[:60]}`"
                hint = (
                    f"a tag has letters, digits and `-_:. `, does not begin with `{marks.OURS}`, and its "
                    f"value has at most {_MOST} characters"
                )
                raise PermanentError(PermanentKind.INVALID, summary, about="tags", hint=hint)
        return {**users, **marks.written(mark)}

    def retag(self, region: Region, api: str, path: str, have: Mapping[str, str], mark: Mark) -> None:
        """Write a new mark over the one in `have`, or in its place if it was removed. May be interrupted at
        any point, and tried again.
        """
        before = {} if self.has_no_owner(have) else marks.read(have, path).inputs
        after = self.tags(mark)
        users = [k for k in marks.tags_in(before) if k in have and k not in after]
        region.untag(api, path, users)  # first, because only the old mark says which ones they were
        region.tag(api, path, after)
        rest = re.compile(re.escape(marks.INPUTS) + r"\.\d+")
        region.untag(api, path, [k for k in have if rest.fullmatch(k) and k not in after])


def made_id(have: Record) -> str | None:
    """OpenStack's id in a record; None if it has no valid one."""
    found = str(have.outputs.get("id", ""))
    return found if re.fullmatch(ID, found) else None


T = TypeVar("T")

SETTLE = 10
"""Seconds after a create without an answer until a look that finds nothing permits another create."""
_LOCKS = tuple(threading.Lock() for _ in range(256))
"""One try per token at a time, in this process."""


class Once:
    """Makes each thing of a backend once, by token. Safe to use from many threads."""

    def __init__(
        self,
        settle: float = SETTLE,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settle = settle
        self._now = now
        self._sleep = sleep
        self._unsure: dict[str, float] = {}

    def __call__(self, token: str, make: Callable[[], T], look: Callable[[], T | None]) -> T:
        """The thing that `look` finds for this token, else the one that `make` makes."""
        with _LOCKS[hash(token) % len(_LOCKS)]:
            found = look()
            if found is None and token in self._unsure:
                self._sleep(max(0.0, self._unsure[token] + self._settle - self._now()))
                found = look()
            if found is not None:
                return found
            try:
                with reading():
                    made = make()
            except TransientError as error:
                if error.kind is TransientKind.AMBIGUOUS:
                    self._unsure[token] = self._now()
                raise
            except PermanentError:
                # An earlier try may be what fills the quota.
                late = look() if token in self._unsure else None
                if late is None:
                    raise
                return late
            self._unsure.pop(token, None)
            return made


def duplicates(found: Sequence[T], age: Callable[[T], tuple[str, str]]) -> list[T]:
    """All but the oldest of one create's things. The result is the same for everyone who looks."""
    return sorted(found, key=age)[1:]


PATH = "/v2.0/floatingips"


class Floating:
    """The floating addresses of one account's nodes. Each has its owner in its description."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def public(self, region: Region, server: Server) -> Server:
        """The server with its public address, which is allocated if missing."""
        if not self._account.config.network.public_ip or server.public_address:
            return server
        port = self._port(region, server)
        have = self._listed(region, port_id=port)
        item = have[0] if have else self._make(region, server, port)
        address = item.get("floating_ip_address")
        if not address:
            raise answers.bad_answer("a floating address", "has no address")
        return replace(server, public_address=str(address))

    def _make(self, region: Region, server: Server, port: str) -> dict[str, Any]:
        network = names.outside(region, self._account.options.get("floating_network"))
        asked = {"floating_network_id": network, "port_id": port, "description": self._says(server)}
        what = f"a floating address for {server.name}"
        # Neutron refuses a second one for the same port, so there are no duplicates.
        found = region.ask(what, "network", "POST", PATH, {"floatingip": asked}, about="network.public_ip")
        return answers.inside(what, found, "floatingip")

    def _port(self, region: Region, server: Server) -> str:
        """The port of the server's address."""
        what = f"ports of {server.name}"
        found = region.ask(what, "network", "GET", "/v2.0/ports", query={"device_id": server.id})
        ports = answers.listed(what, found, "ports")
        for port in ports:
            if any(ip.get("ip_address") == server.address for ip in port.get("fixed_ips") or ()):
                return str(port["id"])
        summary = f"{server.name} has no port at {server.address} yet"
        raise TransientError(TransientKind.BUSY, summary, about=server.name)

    def wanted(self, server: Server) -> bool:
        """Whether an address may have been allocated for a server."""
        return bool(self._account.config.network.public_ip or server.public_address)

    def release(self, region: Region, server: Server) -> None:
        """Release the addresses of a server."""
        for item in self._listed(region, description=self._says(server)):
            if_there(region.ask, "a floating address", "network", "DELETE", f"{PATH}/{item['id']}")

    def _says(self, server: Server) -> str:
        return f"fleetform {self._account.owner} {server.tags.get(marks.TOKEN, '')}"

    def _listed(self, region: Region, **query: object) -> list[dict[str, Any]]:
        what = "listing floating addresses"
        return answers.listed(what, region.ask(what, "network", "GET", PATH, query=query), "floatingips")
