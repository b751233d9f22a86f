"""One account of an OpenStack: its login, regions and options, and the floating addresses of nodes with
`network.public_ip`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from declarative.model.spec.backend import ImageFilter
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import marks, settings
from providers.cloud.account import if_there, side_by_side
from providers.cloud.any import account
from providers.cloud.any.site import Machine, Site
from providers.cloud.marks import Mark
from providers.cloud.openstack import answers, names
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
SETTLE = 10
"""Seconds after a create without an answer until a look that finds nothing permits another create."""
T = TypeVar("T")
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

_KEY = re.compile(r"[a-zA-Z0-9_:. -]{1,255}")
"""The form of a metadata key in nova and cinder."""
_MOST = 255
"""The most characters of a value."""


class Account(account.Account):
    """The regions of a backend, and the owner whose things are looked for."""

    CLOUD = "OpenStack"
    TAGGED = True

    def __init__(self, config: Config, site_of: Callable[[Region], Site]) -> None:
        super().__init__(config, OPTIONS, lambda _, name: site_of(self._opened(name)), regional=True)
        if self.interface not in INTERFACES:
            summary = f"the option `interface` is one of {', '.join(INTERFACES)}"
            raise PermanentError(PermanentKind.INVALID, summary, about="options.interface")
        if config.network.subnets:
            summary = "`network.subnets` has no meaning for OpenStack: its nodes are on networks"
            hint = "write `options: {network: NAME}`"
            raise PermanentError(PermanentKind.INVALID, summary, about="network.subnets", hint=hint)
        self.settle = float(self.options.get("settle", SETTLE))
        self._regions: dict[str, Region] = {}
        self._login: Login | None = None

    @property
    def interface(self) -> str:
        """The kind of address at which the APIs are reached."""
        return str(self.options.get("interface", INTERFACES[0]))

    # ------------------------------------------------------------------------------------ regions

    def region(self, name: str) -> Region:
        """The requests to a region."""
        self.at(name)
        return self._regions[name]

    def each_region(self, look: Callable[[Region], Sequence[T]]) -> list[T]:
        """What `look` finds in all regions, in parallel; a region that cannot be asked is an error."""
        return side_by_side([self.region(name) for name in self.regions()], look)

    def _opened(self, name: str) -> Region:
        application = any(key in self.config.credentials for key in APPLICATION)
        values = settings.secrets(self.config, APPLICATION if application else PASSWORD)
        # The user name is not a secret, and may be part of every message.
        self.scrub.learn(v for k, v in values.items() if k in ("password", "secret"))
        if self._login is None:
            body = {"auth": self._application(values) if application else self._user(values)}
            self._login = Login(self._endpoint(), body, self.scrub, self.timeout)
        region = Region(name, self._login, self.interface, self.scrub, self.timeout, self.config)
        self._regions[name] = region
        return region

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


PATH = "/v2.0/floatingips"


class Floating:
    """The floating addresses of one account's nodes. Each has its owner in its description."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def public(self, region: Region, server: Machine) -> Machine:
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

    def _make(self, region: Region, server: Machine, port: str) -> dict[str, Any]:
        network = names.outside(region, self._account.options.get("floating_network"))
        asked = {"floating_network_id": network, "port_id": port, "description": self._says(server)}
        what = f"a floating address for {server.name}"
        # Neutron refuses a second one for the same port, so there are no duplicates.
        found = region.ask(what, "network", "POST", PATH, {"floatingip": asked}, about="network.public_ip")
        return answers.inside(what, found, "floatingip")

    def _port(self, region: Region, server: Machine) -> str:
        """The port of the server's address."""
        what = f"ports of {server.name}"
        found = region.ask(what, "network", "GET", "/v2.0/ports", query={"device_id": server.id})
        ports = answers.listed(what, found, "ports")
        for port in ports:
            if any(ip.get("ip_address") == server.address for ip in port.get("fixed_ips") or ()):
                return str(port["id"])
        summary = f"{server.name} has no port at {server.address} yet"
        raise TransientError(TransientKind.BUSY, summary, about=server.name)

    def wanted(self, server: Machine) -> bool:
        """Whether an address may have been allocated for a server."""
        return bool(self._account.config.network.public_ip or server.public_address)

    def release(self, region: Region, server: Machine) -> None:
        """Release the addresses of a server."""
        for item in self._listed(region, description=self._says(server)):
            if_there(region.ask, "a floating address", "network", "DELETE", f"{PATH}/{item['id']}")

    def _says(self, server: Machine) -> str:
        return f"fleetform {self._account.owner} {server.tags.get(marks.TOKEN, '')}"

    def _listed(self, region: Region, **query: object) -> list[dict[str, Any]]:
        what = "listing floating addresses"
        return answers.listed(what, region.ask(what, "network", "GET", PATH, query=query), "floatingips")
