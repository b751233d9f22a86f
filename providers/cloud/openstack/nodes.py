"""Nodes: servers, whose metadata are part of the create request."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from declarative.model.inputs import NodeInputs
from declarative.model.state import Address, Record
from declarative.model.status import NodeState
from declarative.provider import Ended, PermanentError, PermanentKind, ProviderError, TransientError
from declarative.provider import TransientKind as Kind
from providers.cloud import marks
from providers.cloud.account import if_there, look_up, pauses
from providers.cloud.bad_answers import Scrub
from providers.cloud.checks import tags_left
from providers.cloud.keys import Pairs
from providers.cloud.marks import Mark
from providers.cloud.nodes import ended, first_start, outputs
from providers.cloud.openstack import answers, names
from providers.cloud.openstack.account import Account, Floating, duplicates, made_id
from providers.cloud.openstack.answers import Server, of_fault
from providers.cloud.openstack.region import Region
from providers.ssh.key_pairs import Login

ASKED_ALONE = 2
"""Up to so many nodes are looked at one by one."""


class NovaNodes:
    """Nova's calls for nodes: see `nodes.Driver`."""

    def __init__(self, account: Account, keys: NovaKeys) -> None:
        self._account = account
        self._keys = keys
        self._floating = Floating(account)
        self._failed: dict[str, ProviderError] = {}
        """Token → the fault of a create whose broken server could not be deleted yet."""

    def listed(self, **narrow: str) -> list[Server]:
        """All of ours that are alive, in all regions."""
        found = self._account.each(self._in)
        return [server for server in found if self._account.mine(server.tags, **narrow)]

    def _in(self, region: Region, **query: object) -> list[Server]:
        return [s for s in region.servers(**query) if self._account.mine(s.tags) and not s.gone]

    def candidates(self, address: Address, token: str) -> list[Server]:
        """The servers of a create with this token, without those that never ran."""
        found = self._account.each(lambda region: self._of_token(region, address, token))
        return [server for server in sorted(found, key=_age) if not server.stillborn]

    def recorded(self, records: Sequence[Record]) -> Iterator[tuple[Record, Server | Ended | None]]:
        """Nova forgets ended servers; other things of ours show whether one existed."""
        for region, found in self._account.by_region(records):
            there = self._by_id(region, [made_id(record) for record in found])
            right = any(not s.gone for s in there.values()) or self._keys.there(region)
            for record in found:
                server = there.get(made_id(record) or "")
                if server is not None:
                    yield record, server
                elif right:
                    yield record, Ended(reason="nova knows no such server any more")

    def _by_id(self, region: Region, ids: Sequence[str | None]) -> dict[str, Server]:
        """The existing ones: a few are requested one by one, many by a listing first, which may be
        incomplete.
        """
        listed = region.servers() if len(ids) > ASKED_ALONE else ()
        there = {server.id: server for server in listed if server.id in ids}
        alone = [region.server(made) for made in ids if made and made not in there]
        return there | {server.id: server for server in alone if server}

    def machine(self, have: Record, *, ending: bool) -> Server | None:
        """The server of a record, if it exists."""
        made = made_id(have)
        server = self._region(have).server(made) if made else None
        return None if server is None or server.status in answers.GONE else server

    def _region(self, have: Record) -> Region:
        return self._account.region(have.node.region)

    def type_of(self, machine: Server, made: str) -> str:
        """Its flavor, which a resize changes."""
        return machine.flavor

    def _of_token(self, region: Region, address: Address, token: str) -> list[Server]:
        found = self._in(region, name=f"^{re.escape(address.name)}$")
        return [server for server in found if server.tags.get(marks.TOKEN) == token]

    # ----------------------------------------------------------------------------------- adoption

    def named(self, asked: NodeInputs) -> Server | None:
        """Look it up by its id. The listing is shared."""
        return self._account.region(asked.region).shared.servers.find(str(asked.instance_id))

    def take(self, machine: Server, mark: Mark) -> None:
        region = self._account.region(machine.region)
        region.tag("compute", _path(machine.id), self._account.tags(mark))
        region.shared.servers.changed(machine.id)

    def let_go(self, machine: Server) -> None:
        """All tags change in one request: half of a mark would be unreadable."""
        region, path = self._account.region(machine.region), _path(machine.id)
        region.write("compute", path, tags_left(region.written("compute", path), machine.id))
        region.shared.servers.changed(machine.id)

    # ------------------------------------------------------------------------------------- create

    def create(self, mark: Mark, node: NodeInputs) -> Server:
        """Return when the server runs and has an address."""
        address, token = mark.address, mark.token
        region = self._account.region(node.region)
        if node.spot:
            summary = "OpenStack has no spot instances"
            raise PermanentError(PermanentKind.INVALID, summary, about="spot_policy")
        with self._changing(region, ending=False):
            try:
                server = self._made(region, mark, node)
            except PermanentError:
                self._keys.left(region)
                raise
        self._account.check_answer(server.tags, token, server.id)
        found = look_up(partial(self._of_token, region, address, token))
        for extra in duplicates(found, _age):
            self._end(region, extra.id)
            if extra.id == server.id:
                text = f"{server.id} is a duplicate of {address}, and is deleted"
                raise TransientError(Kind.BUSY, text, about=str(address))
        return self._floating.public(region, server)

    def _made(self, region: Region, mark: Mark, node: NodeInputs) -> Server:
        """The running server. A failed earlier try is a fault, once its server is deleted."""
        address, token = mark.address, mark.token
        if token in self._failed:
            self._there(region, address, token)
            raise self._failed.pop(token)
        made = self._account.made_once(
            token,
            lambda: self._ask(region, mark, node),
            lambda: self._there(region, address, token),
        )
        server = self._running(region, made)
        if not server.stillborn:
            return server
        self._failed[token] = _why(server, node.zone or region.name)
        self._removed(region, made)
        raise self._failed.pop(token)

    def _there(self, region: Region, address: Address, token: str) -> str | None:
        """The id of an earlier try's server; failed ones are deleted."""
        found = sorted(self._of_token(region, address, token), key=_age)
        for server in found:
            if server.stillborn:
                self._removed(region, server.id)
        return next((server.id for server in found if not server.stillborn), None)

    def _ask(self, region: Region, mark: Mark, node: NodeInputs) -> str:
        """Request a server; returns its id."""
        options = self._account.options
        image = names.image(region, self._account.image(region.name))
        network = names.network(region, options.get("network"))
        flavor = names.flavor(region, node.instance_type)
        own, user_data = first_start(self._account, self._keys, self._keys.ensure(region), mark.token)
        asked: dict[str, Any] = {
            "name": mark.address.name,
            "flavorRef": flavor,
            "networks": [{"uuid": network}],
            "metadata": {**self._account.tags(mark), **own},
            "user_data": base64.b64encode(user_data.encode()).decode(),
            "key_name": options.get("key_name") or self._keys.name,
            **self._disk(image),
        }
        if node.zone:
            asked["availability_zone"] = node.zone
        if groups := self._account.config.network.security_groups:
            asked["security_groups"] = [{"name": group} for group in groups]
        try:
            found = region.ask(
                f"making {mark.address}",
                "compute",
                "POST",
                "/servers",
                {"server": asked},
                about=node.zone or region.name,
            )
        except PermanentError as error:
            self._stale(region, error)
            raise
        return str(answers.inside("making a server", found, "server").get("id") or "")

    def _disk(self, image: str) -> dict[str, Any]:
        """Its boot source: the image, or a volume made from it that is deleted with the server."""
        size = self._account.options.get("root_volume")
        if not size:
            return {"imageRef": image}
        disk = {
            "boot_index": 0,
            "uuid": image,
            "source_type": "image",
            "destination_type": "volume",
            "volume_size": size,
            "delete_on_termination": True,
        }
        return {"block_device_mapping_v2": [disk]}

    def _stale(self, region: Region, error: PermanentError) -> None:
        """Forget what was looked up: it may have changed, and the key pair goes with the last node."""
        if error.kind not in (PermanentKind.INVALID, PermanentKind.NOT_FOUND):
            return
        region.known.clear()
        if "Invalid key_name" in error.summary and not self._account.options.get("key_name"):
            self._keys.forgotten(region)
            raise TransientError(Kind.BUSY, error.summary, about=error.about) from None

    def _running(self, region: Region, made: str) -> Server:
        """The server once it runs or has failed."""
        for _ in pauses(f"{made} is still starting", made):
            # Nova has confirmed it: if it is not listed yet, it will be.
            server = look_up(partial(region.server, made))
            if server is None:
                continue
            if server.gone:
                summary = f"{made} was deleted while it started"
                raise PermanentError(PermanentKind.NOT_FOUND, summary, about=server.name)
            if server.stillborn:
                return server
            if server.status not in answers.STARTING and server.address:
                return server
        raise AssertionError("pauses end with a fault")

    # ----------------------------------------------------------------------------- update, delete

    def retag(self, machine: Server, mark: Mark, have: Record, more: Mapping[str, str]) -> Mapping[str, Any]:
        """The owner is written last."""
        region = self._region(have)
        if more:
            region.tag("compute", _path(machine.id), more)
        self._account.retag(region, "compute", _path(machine.id), machine.tags, mark)
        return outputs(machine)

    def remove(self, have: Record, there: Callable[[], list[Server]]) -> None:
        """Return when the server is gone and its quota is free. With the last one of a region its key
        pair is deleted.
        """
        found = there()
        places = {have.node.region} if have.outputs.get("id") else {server.region for server in found}
        with ExitStack() as stack:
            for region in map(self._account.region, sorted(places)):
                stack.enter_context(self._changing(region, ending=True))
                self._keys.left(region)
            for server in found:
                region = self._account.region(server.region)
                if have.outputs.get("public_address") or self._floating.wanted(server):
                    self._floating.release(region, server)
                self._removed(region, server.id)

    def _changing(self, region: Region, *, ending: bool) -> AbstractContextManager[None]:
        return self._keys.changing(region, lambda: bool(self._in(region)), ending=ending)

    def _removed(self, region: Region, made: str) -> None:
        """Delete a server, and wait until it is gone. If it fails meanwhile, the delete is repeated."""
        self._end(region, made)
        for _ in pauses(f"{made} is not gone yet", made):
            server = region.server(made)
            # A server that is DELETED still uses quota; one that can be restored does for days.
            if server is None or server.status == "SOFT_DELETED":
                return
            if not server.task:
                self._end(region, made)

    def _end(self, region: Region, made: str) -> None:
        if_there(region.ask, f"deleting server {made}", "compute", "DELETE", f"/servers/{made}")

    # ---------------------------------------------------------------------------------- readiness

    def states(
        self, nodes: Sequence[Record]
    ) -> Iterator[tuple[Record, Server | None, NodeState, str | None]]:
        """Nova's report on nodes."""
        for region, records in self._account.by_region(nodes):
            ids = [made_id(record) for record in records]
            there = self._by_id(region, ids)
            for record, made in zip(records, ids, strict=True):
                server = there.get(made or "")
                yield record, server, *_state(server)

    def note_ready(self, node: Record) -> None:
        """Tag the server without looking at it first."""
        self._region(node).tag("compute", _path(node.outputs["id"]), {marks.TAKEN: "yes"})


def _why(server: Server, place: str) -> ProviderError:
    """The fault for a server that never ran."""
    text = server.fault or "OpenStack does not say why"
    summary = f"{server.name} failed while it started: {Scrub()(text)}"
    return ended(of_fault(text) or PermanentKind.INVALID, summary, place)


def _path(made: str) -> str:
    return f"/servers/{made}"


def _age(server: Server) -> tuple[str, str]:
    return server.created, server.id


def _state(server: Server | None) -> tuple[NodeState, str | None]:
    if server is None:
        return NodeState.UNREACHABLE, "there is no such server"
    if server.gone:
        return NodeState.TERMINATING, "it is being deleted"
    if server.status in answers.STARTING:
        return NodeState.PROVISIONING, "it is starting"
    if server.status == "ERROR":
        return NodeState.FAILED, f"OpenStack says ERROR: {server.fault}" if server.fault else "it is in ERROR"
    if server.status != "ACTIVE":
        return NodeState.NOT_READY, f"it is {server.status}"
    return NodeState.READY, None


class NovaKeys(Pairs[Region, str]):
    """A pair is recognized by its public key. Pairs belong to their user."""

    def _send(self, region: Region, login: Login) -> None:
        pair = {"name": self.name, "public_key": f"{login.public} {self.name}"}
        region.ask("the key pair", "compute", "POST", "/os-keypairs", {"keypair": pair})

    def _is_of(self, there: str, login: Login) -> bool:
        return there.split()[:2] == login.public.split()[:2]

    def _another(self, region: Region, login: Login, there: str) -> PermanentError:
        return self._others(region, f"nova's key pair {self.name} is another")

    def _find(self, region: Region) -> str | None:
        what = "the key pair"
        found = if_there(region.ask, what, "compute", "GET", f"/os-keypairs/{self.name}")
        return None if found is None else str(answers.inside(what, found, "keypair").get("public_key") or "")

    def _remove(self, region: Region) -> None:
        if_there(region.ask, "the key pair", "compute", "DELETE", f"/os-keypairs/{self.name}")
