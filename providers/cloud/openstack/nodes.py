"""Nodes: servers, whose metadata go with the request that makes them."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from declarative.inputs import NodeInputs, inputs_of
from declarative.provider import Ended, PermanentError, PermanentKind, ProviderError, Thing, TransientError
from declarative.provider import TransientKind as Kind
from declarative.state import Address, NodeState, Readiness, Record
from providers.cloud import cloud_init, marks
from providers.cloud.account import look_up, pauses
from providers.cloud.faults import fault
from providers.cloud.hosts import Seen
from providers.cloud.marks import Mark
from providers.cloud.openstack import answers, names
from providers.cloud.openstack.account import Account, extras, made_id
from providers.cloud.openstack.answers import Server
from providers.cloud.openstack.codes import of_fault
from providers.cloud.openstack.floating import Floating
from providers.cloud.openstack.keys import NovaKeys
from providers.cloud.openstack.region import Region
from providers.cloud.redact import Scrub
from providers.cloud.volume_checks import check_fixed, gone

FIXED = ("backend", "region", "zone", "instance_type", "spot", "resources")
"""Inputs of a node that are those of its server: it is made anew to change them."""

ASKED_ALONE = 2
"""So many nodes are looked at one by one."""


class Nodes:
    """The servers of one account."""

    def __init__(self, account: Account, keys: NovaKeys) -> None:
        self._account = account
        self._keys = keys
        self._floating = Floating(account)
        self._failed: dict[str, ProviderError] = {}
        """What became of creates, by token, whose broken server could not be taken away yet."""

    def listed(self, **query: object) -> list[Server]:
        """All that are ours and alive, in all regions."""
        return self._account.each(lambda region: self._in(region, **query))

    def _in(self, region: Region, **query: object) -> list[Server]:
        return [s for s in region.servers(**query) if self._account.mine(s.tags) and not s.gone]

    def thing(self, server: Server) -> Thing:
        """A server of ours as a thing."""
        return marks.thing(server.tags, server.id, outputs(server), partial(self._actual, server))

    def _actual(self, server: Server, made: Mapping[str, Any]) -> dict[str, Any]:
        """What others changed: the tags, and the flavor, which a resize changes."""
        found = self._account.strange(server.tags, made)
        if server.flavor and server.flavor != made.get("instance_type", server.flavor):
            found["instance_type"] = server.flavor
        return found

    def recall(self, records: Sequence[Record]) -> dict[Address, Thing | Ended | None]:
        """See `provider.Recalls`. Nova forgets what ended; what else is ours tells whether it was there."""
        out: dict[Address, Thing | Ended | None] = {}
        for region, found in self._account.by_region(records):
            there = self._by_id(region, [made_id(record) for record in found])
            right = any(not s.gone for s in there.values()) or self._keys.there(region)
            for record in found:
                server = there.get(made_id(record) or "")
                if server is not None and not server.gone:
                    out[record.address] = marks.again(
                        record, server.tags, self._actual(server, record.inputs)
                    )
                elif server is not None:
                    out[record.address] = Ended(reason=f"it is {server.task or server.status}")
                elif right:
                    out[record.address] = Ended(reason="nova knows no such server any more")
        return out

    def _by_id(self, region: Region, ids: Sequence[str | None]) -> dict[str, Server]:
        """Those that there are: a few are asked for one by one, of more all servers are listed before that,
        for a listing may leave something out.
        """
        listed = region.servers() if len(ids) > ASKED_ALONE else ()
        there = {server.id: server for server in listed if server.id in ids}
        alone = [region.server(made) for made in ids if made and made not in there]
        return there | {server.id: server for server in alone if server}

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port. One that never came to run is nothing that was made."""
        found = self._account.each(lambda region: self._of_token(region, address, token))
        things = (self.thing(server) for server in sorted(found, key=_age) if not server.stillborn)
        return next((t for t in things if t.address == address), None)

    def _of_token(self, region: Region, address: Address, token: str) -> list[Server]:
        found = self._in(region, name=f"^{re.escape(address.name)}$")
        return [server for server in found if server.tags.get(marks.TOKEN) == token]

    # ------------------------------------------------------------------------------------- create

    def create(self, address: Address, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. It ends when the server runs and has an address."""
        node, mark = inputs_of("node", inputs), self._account.mark(address, token, inputs)
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
        for extra in extras(found, _age):
            self._end(region, extra.id)
            if extra.id == server.id:
                text = f"{server.id} is a second {address}, and is taken away"
                raise TransientError(Kind.BUSY, text, about=str(address))
        return outputs(self._floating.public(region, server))

    def _made(self, region: Region, mark: Mark, node: NodeInputs) -> Server:
        """The server that runs; that an earlier try failed is said once nothing is left of it."""
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
        """The id of what an earlier try made; those that came to nothing are taken away."""
        found = sorted(self._of_token(region, address, token), key=_age)
        for server in found:
            if server.stillborn:
                self._removed(region, server.id)
        return next((server.id for server in found if not server.stillborn), None)

    def _ask(self, region: Region, mark: Mark, node: NodeInputs) -> str:
        """Have one made; its id."""
        options = self._account.options
        image = names.image(region, self._account.image(region.name))
        network = names.network(region, options.get("network"))
        flavor = names.flavor(region, node.instance_type)
        login, key = self._keys.bring(region), self._keys.host_key(mark.token)
        user = self._account.config.ssh_user or cloud_init.USER
        mine = self._account.tags(mark)
        told = cloud_init.user_data(user, login.public, key)
        asked: dict[str, Any] = {
            "name": mark.address.name,
            "flavorRef": flavor,
            "networks": [{"uuid": network}],
            "metadata": {**mine, marks.HOST_KEY: key.public, marks.USER: user},
            "user_data": base64.b64encode(told.encode()).decode(),
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
        """What it starts from: the image, or a volume of it that goes with the server."""
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
        """What was looked up may have changed since; whoever deleted the last node took the key pair away."""
        if error.kind not in (PermanentKind.INVALID, PermanentKind.NOT_FOUND):
            return
        region.known.clear()
        if "Invalid key_name" in error.summary and not self._account.options.get("key_name"):
            self._keys.forgotten(region)
            raise TransientError(Kind.BUSY, error.summary, about=error.about) from None

    def _running(self, region: Region, made: str) -> Server:
        """The server once it runs, or has failed."""
        for _ in pauses(f"{made} is still starting", made):
            # Not there yet is no more than that: nova had answered that it is made.
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

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port. What changes in place is written down alone."""
        check_fixed(have.address, have.inputs, inputs, FIXED)
        region, server = self._of(have, untagged=True)
        if server is None:
            raise gone(have.address)
        if self._account.lost(server.tags):
            return self._mend(region, server, have, self._account.mark(have.address, token, inputs))
        made = marks.read(server.tags, server.id)
        mark = self._account.mark(made.address, made.token, inputs)
        self._account.retag(region, "compute", _path(server), server.tags, mark)
        return outputs(server)

    def _mend(self, region: Region, server: Server, have: Record, mark: Mark) -> Mapping[str, Any]:
        """Write everything anew on a server that says nothing of itself; whose it is comes last."""
        region.tag("compute", _path(server), marks.of_node(have.outputs))
        self._account.retag(region, "compute", _path(server), server.tags, mark)
        return have.outputs

    def delete(self, have: Record) -> None:
        """See the port. It ends when the server is gone, and with it its share of the quota.

        With the last one of a region goes the key pair there.
        """
        if have.outputs.get("id"):
            region, server = self._of(have)
            there = [(region, server)] if server else []
            places = [region]
        else:
            there = self._account.each(lambda region: self._of_address(region, have.address))
            places = [region for region, _ in there]
        with ExitStack() as stack:
            for region in {region.name: region for region in places}.values():
                stack.enter_context(self._changing(region, ending=True))
                self._keys.left(region)
            for region, server in there:
                if have.outputs.get("public_address") or self._floating.wanted(server):
                    self._floating.release(region, server)
                self._removed(region, server.id)

    def _changing(self, region: Region, *, ending: bool) -> AbstractContextManager[None]:
        return self._keys.changing(region, lambda: bool(self._in(region)), ending=ending)

    def _removed(self, region: Region, made: str) -> None:
        """Delete a server, and wait until it is gone. One that fails on the way is asked for again."""
        self._end(region, made)
        for _ in pauses(f"{made} is not gone yet", made):
            server = region.server(made)
            # One that says DELETED still counts; one that can be restored does for days.
            if server is None or server.status == "SOFT_DELETED":
                return
            if not server.task:
                self._end(region, made)

    def _end(self, region: Region, made: str) -> None:
        try:
            region.ask(f"deleting server {made}", "compute", "DELETE", f"/servers/{made}")
        except PermanentError as error:
            if error.kind is not PermanentKind.NOT_FOUND:
                raise

    def _of(self, have: Record, *, untagged: bool = False) -> tuple[Region, Server | None]:
        """The server of a record, if it is there; one that is not ours is an error, and so is one that does
        not say whose it is, unless that is to be mended.
        """
        region = self._account.region(have.node.region)
        made = made_id(have)
        server = region.server(made) if made else None
        if server is None or server.status in answers.GONE:
            return region, None
        if not (untagged and self._account.lost(server.tags)):
            self._account.check_owner(server.tags, have, server.id)
        return region, server

    def _of_address(self, region: Region, address: Address) -> list[tuple[Region, Server]]:
        return [
            (region, server)
            for server in self._in(region)
            if self._account.mine(server.tags, address=str(address))
        ]

    # ---------------------------------------------------------------------------------- readiness

    def readiness(self, nodes: Sequence[Record]) -> dict[str, Seen]:
        """What nova says of nodes."""
        by_region: dict[str, list[Record]] = {}
        for record in nodes:
            by_region.setdefault(record.node.region, []).append(record)
        seen: dict[str, Seen] = {}
        for name, records in by_region.items():
            seen |= self._readiness(self._account.region(name), records)
        return seen

    def _readiness(self, region: Region, records: Sequence[Record]) -> dict[str, Seen]:
        ids = {record.address.name: made_id(record) for record in records}
        there = self._by_id(region, list(ids.values()))
        out: dict[str, Seen] = {}
        for name, made in ids.items():
            server = there.get(made or "")
            state, reason = _state(server)
            ready = Readiness(state=state, reason=reason, observed_at=time.time())
            taken = bool(server and server.tags.get(marks.TAKEN))
            # Nova hears of a floating address late: until then the record's is the better one.
            public = server.public_address or None if server else None
            out[name] = Seen(readiness=ready, taken=taken, public=public)
        return out

    def taken(self, node: Record) -> None:
        """Note that a node was ready once: what it is not from now on is no part of its start."""
        region = self._account.region(node.node.region)
        region.tag("compute", f"/servers/{node.outputs['id']}", {marks.TAKEN: "yes"})


def outputs(server: Server) -> dict[str, Any]:
    """What is recorded of a server, and stays as it is while that lives and runs."""
    found = {
        "id": server.id,
        "address": server.address,
        "zone": server.zone,
        "public_address": server.public_address,
        "image": server.image,
        "user": server.tags.get(marks.USER),
        "host_key": server.tags.get(marks.HOST_KEY),
    }
    return {key: value for key, value in found.items() if value or key == "address"}


def _why(server: Server, place: str) -> ProviderError:
    """The fault of a server that never came to run."""
    text = server.fault or "OpenStack does not say why"
    kind = of_fault(text) or PermanentKind.INVALID
    if isinstance(kind, Kind):
        kind = PermanentKind.NO_CAPACITY  # it came to nothing: another one may do better
    summary = f"{server.name} failed while it started: {Scrub()(text)}"
    return fault(kind, summary, about=place)


def _path(server: Server) -> str:
    return f"/servers/{server.id}"


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
