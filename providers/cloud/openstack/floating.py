"""Public addresses of nodes: floating ones, where `network.public_ip` asks for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.openstack import answers, names
from providers.cloud.openstack.account import Account
from providers.cloud.openstack.answers import Server
from providers.cloud.openstack.region import Region

PATH = "/v2.0/floatingips"


class Floating:
    """The floating addresses of one account's nodes. Each says in its description whose it is."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def public(self, region: Region, server: Server) -> Server:
        """The server with its public address; one is taken if there is none yet."""
        if not self._account.config.network.public_ip or server.public_address:
            return server
        port = self._port(region, server)
        have = self._listed(region, port_id=port)
        item = have[0] if have else self._make(region, server, port)
        address = item.get("floating_ip_address")
        if not address:
            raise answers.strange("a floating address", "has no address")
        return replace(server, public_address=str(address))

    def _make(self, region: Region, server: Server, port: str) -> dict[str, Any]:
        network = names.outside(region, self._account.options.get("floating_network"))
        asked = {"floating_network_id": network, "port_id": port, "description": self._says(server)}
        what = f"a floating address for {server.name}"
        # One that is on this port already is refused by neutron: it is not made twice.
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
        """Whether something may have been taken for a server."""
        return bool(self._account.config.network.public_ip or server.public_address)

    def release(self, region: Region, server: Server) -> None:
        """Give back what was taken for a server."""
        for item in self._listed(region, description=self._says(server)):
            try:
                region.ask("a floating address", "network", "DELETE", f"{PATH}/{item['id']}")
            except PermanentError as error:
                if error.kind is not PermanentKind.NOT_FOUND:
                    raise

    def _says(self, server: Server) -> str:
        return f"fleetform {self._account.owner} {server.tags.get(marks.TOKEN, '')}"

    def _listed(self, region: Region, **query: object) -> list[dict[str, Any]]:
        what = "listing floating addresses"
        return answers.listed(what, region.ask(what, "network", "GET", PATH, query=query), "floatingips")
