"""`Ssh`: the methods of the port, by the claims on hosts (`claims`), looks (`probe`) and `ranks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any, TypeVar

from declarative.model.blocks import Shape
from declarative.model.inputs import inputs_of
from declarative.model.resource import Offer
from declarative.model.state import Address, Record
from declarative.model.status import NodeState, RankStatus, Readiness
from declarative.provider import (
    Config,
    Launch,
    PermanentError,
    PermanentKind,
    ProviderError,
    Thing,
    TransientError,
    TransientKind,
)
from declarative.provider.optional import LogEnd, Terminal, Visit
from providers.faults import guarded, raise_all
from providers.ownership import key_of
from providers.rank_scripts import beside, prepared
from providers.ranks import Ranks, RanksOfNodes
from providers.runner import Runner
from providers.ssh import probe, scripts
from providers.ssh.claims import Claim, Claims, HostClaims, Volumes, id_on_host
from providers.ssh.host import host_of, options_of, terminal
from providers.ssh.probe import Declared, Facts, Look
from providers.ssh.transport import SshTransport, command_line

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 32
"""Hosts that are asked side by side."""


class Ssh(RanksOfNodes):
    """Hosts that exist, as nodes.

    It has no list of its own. To list and find things it asks `Config.hosts`. For everything else it reads
    the `host` of a record's inputs: how the host is reached, and its declared fields.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._options = options_of(config)

    # ------------------------------------------------------------------------------------- things

    @guarded
    def offers(self) -> tuple[Offer, ...]:
        """None: it launches nothing."""
        return ()

    @guarded
    def look(self, hosts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Look]:
        """The shapes and readiness of hosts before they are nodes, by the given names."""

        def one(fields: Mapping[str, Any]) -> Look:
            try:
                transport, declared = self._transport(fields), declared_of(fields)
            except PermanentError as error:
                return Look(readiness=probe.unanswered(error))
            look = probe.look(transport, self._options.root, declared)
            look = replace(look, connected=transport.connected)
            try:
                if look.facts and look.readiness.state is NodeState.READY:
                    self._check_free(transport, fields, look.facts)
                    look = replace(look, address=_address(fields, look.facts))
            except ProviderError as error:
                return replace(look, readiness=probe.unanswered(error))
            return look

        return dict(zip(hosts, _side_by_side(one, list(hosts.values())), strict=True))

    @guarded
    def known_keys(self, hosts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Sequence[str]]:
        return {name: self._transport(fields).known_keys() for name, fields in hosts.items()}

    @guarded
    def _check_free(self, transport: SshTransport, fields: Mapping[str, Any], facts: Facts) -> None:
        """`PermanentError` if a host cannot be a node of this state, as `create` would find out."""
        _address(fields, facts)
        claims = self._claims(transport)
        have = claims.read() if facts.claim else None
        if have is None:
            return
        same_name = self._config.hosts.get(have.address.name)
        twin = same_name is not None and any(same_name.get(k) != fields.get(k) for k in ("hostname", "port"))
        if have.owner != self._config.lineage or twin:
            raise claims.taken(have)

    @guarded
    def inventory(self) -> tuple[Thing, ...]:
        """All things of this owner on `Config.hosts`, or a fault that names each host that gave no answer."""
        looks, faults = self._look_at(self._config.hosts)
        raise_all(faults)
        mine = {(t.address, t.token): t for f in looks for t in f.things(self._config.lineage)}
        return tuple(mine.values())

    @guarded
    def find(self, address: Address, token: str) -> Thing | None:
        """Ask the host of that name, or all hosts if no host has it."""
        hosts = self._config.hosts
        alone = address.kind == "node" and address.name in hosts
        looks, faults = self._look_at({address.name: hosts[address.name]} if alone else hosts)
        for thing in (thing for f in looks for thing in f.things(self._config.lineage)):
            if (thing.address, thing.token) == (address, token):
                return thing
        raise_all(faults)
        return None

    def _look_at(
        self, hosts: Mapping[str, Mapping[str, Any]]
    ) -> tuple[list[HostClaims], list[ProviderError]]:
        """The things on hosts, and the faults of hosts that did not answer."""

        @guarded
        def look(fields: Mapping[str, Any]) -> HostClaims:
            return self._volumes(fields).look()

        def one(fields: Mapping[str, Any]) -> HostClaims | ProviderError:
            try:
                return look(fields)
            except ProviderError as error:
                return error

        answers = _side_by_side(one, list(hosts.values()))
        faults = [answer for answer in answers if isinstance(answer, ProviderError)]
        return [answer for answer in answers if isinstance(answer, HostClaims)], faults

    @guarded
    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """Take a host for a node, make a volume on its disk, or attach a volume for a rank."""
        if address.kind == "volume":
            volume = inputs_of("volume", inputs)
            return self._volumes(volume.host).create(address, token, inputs, volume)
        if address.kind == "attachment":
            attachment = inputs_of("attachment", inputs)
            disk, node = (
                needs.get(Address("volume", attachment.volume)),
                needs.get(Address("node", attachment.node)),
            )
            if disk is None or node is None:
                summary = f"{address}: its volume or its node is not there"
                raise PermanentError(PermanentKind.NOT_FOUND, summary, about=str(address))
            return self._volumes(disk.volume.host).attach(address, token, inputs, disk, _key(node))
        _check_kind(address)
        return self.take(address, token, inputs, inputs_of("node", inputs).host)

    @guarded
    def take(
        self, address: Address, token: str, inputs: Mapping[str, Any], host: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Take the host, or find that an earlier call with this token took it. `inputs` are noted there."""
        transport = self._transport(host)
        facts = probe.probe(transport, self._options.root)
        if facts.state_fault:
            hint = "fix it, or give the backend another `options.root`"
            about = transport.host.hostname
            raise PermanentError(PermanentKind.INVALID, facts.state_fault, about=about, hint=hint)
        declared, count = declared_of(host), (inputs.get("resources") or {}).get("gpus") or 0
        devices = declared.devices_of(facts, count)
        if count and (devices is None or not (facts.gpus_known or declared.trusted)):
            # They were known a moment ago, and without their UUIDs no rank would get the right ones.
            why = facts.gpu_fault or f"its `gpus` means {len(declared.gpus_of(facts))} of {count}"
            summary = f"the GPUs of {transport.host} are not known now: {why}"
            raise TransientError(TransientKind.BUSY, summary, about=transport.host.hostname)
        claim = Claim(
            owner=self._config.lineage,
            address=address,
            token=token,
            inputs=inputs,
            outputs={
                "id": f"{address}.{key_of(token)}",
                "address": _address(host, facts),
                "path": f"{facts.root}/{key_of(token)}",
                **({"gpus": list(devices)} if devices and count else {}),
            },
        )
        claims = self._claims(transport)
        have = claims.take(claim)
        if (have.owner, have.address) == (claim.owner, claim.address) and have.token != claim.token:
            # An earlier create of the same node, which `state rm` forgot: no other node can want the host.
            self._check_still(transport, have)
            claims.change(claim, have.key)
            have = claims.take(claim)
        if (have.owner, have.token) == (claim.owner, claim.token):
            return have.outputs
        raise claims.taken(have)

    def _check_still(self, transport: SshTransport, old: Claim) -> None:
        """Refuse a forgotten node whose ranks still run: their CPUs would be used twice."""
        entered = scripts.enter(transport, self._options.root)
        busy = self._ranks_in(transport, entered, f"{entered.root}/{old.key}").running()
        if busy:
            names = ", ".join(busy)
            summary = f"{transport.host} was {old.address} before, and ranks of it still run: {names}"
            hint = (
                "take the record back (`fleetform state push --force BACKUP`; `state rm` named the file) and "
                "stop their tasks; or end them on the host"
            )
            raise PermanentError(PermanentKind.CONFLICT, summary, about=str(old.address), hint=hint)

    @guarded
    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the new inputs. They may change how the host is reached, but it must stay the same host."""
        if have.address.kind == "volume":
            volume = inputs_of("volume", inputs)
            return self._volumes(volume.host).update(have, inputs, volume)
        _check_kind(have.address)
        key, host = _key(have), inputs_of("node", inputs).host
        transport = self._transport(host)
        claims = self._claims(transport)
        claim = claims.read()
        if claim is None or claim.key != key:
            summary = f"{transport.host} is not {have.address}"
            raise PermanentError(PermanentKind.NOT_FOUND, summary, about=str(have.address))
        facts = probe.probe(transport, self._options.root)
        outputs = {**claim.outputs, "address": _address(host, facts)}
        claims.change(replace(claim, inputs=inputs, outputs=outputs))
        return outputs

    @guarded
    def delete(self, have: Record) -> None:
        """Give the host back and remove what the node left there; or remove a volume, or detach one.

        `PermanentError` for a node with running ranks, and for a volume that is attached.
        """
        if have.address.kind == "volume":
            self._volumes(have.volume.host).delete(have)
        elif have.address.kind == "node":
            self._give_back(have)
        elif have.address.kind == "attachment":
            # By the newest way to the host. An attachment whose node is gone holds nothing.
            way = self._config.hosts.get(have.attachment.node) or have.outputs.get("host")
            if way:
                self._volumes(way).detach(have)

    def _give_back(self, node: Record) -> None:
        claims = self._claims(self.transport(node))
        claim = claims.read()
        if claim and claim.owner != self._config.lineage:
            return
        if node.outputs.get("id"):
            claims.release(_key(node))  # its folder may exist without a claim, too
        elif claim and claim.address == node.address:
            claims.release(claim.key)

    @guarded
    def tidy(self, node: Record, oldest: Mapping[str, int]) -> None:
        old = self._ranks(node).ended_before(oldest)
        if old:
            self._claims(self.transport(node)).tidy(_key(node), old)

    # -------------------------------------------------------------------------------------- nodes

    @guarded
    def readiness(self, nodes: Sequence[Record]) -> Mapping[str, Readiness]:
        """The readiness of a host that does not answer says why."""

        def one(record: Record) -> Readiness:
            try:
                transport, declared = self.transport(record), _recorded(record)
            except PermanentError as error:
                return probe.unanswered(error)
            return probe.look(transport, self._options.root, declared).readiness

        names = [record.address.name for record in nodes]
        return dict(zip(names, _side_by_side(one, list(nodes)), strict=True))

    @guarded
    def visit(self, node: Record) -> Visit:
        try:
            transport, declared = self.transport(node), _recorded(node)
        except PermanentError as error:
            return Visit(readiness=probe.unanswered(error))
        return probe.visit(
            transport,
            self._options.root,
            self._config.lineage,
            declared,
            attempts=lambda: self._ranks(node).attempts(),
        )

    @guarded
    def reaches(self, node: Record, address: str) -> str | None:
        """Try the port by which this host itself is reached, and others."""
        transport = self.transport(node)
        return probe.reaches(transport, address, transport.host.port)

    # -------------------------------------------------------------------------------------- ranks

    @guarded
    def start(self, node: Record, launch: Launch) -> RankStatus:
        """CPUs beyond those of the host wrap around."""
        volumes = self._volumes(node.node.host)
        if launch.volumes:
            volumes.ready(_key(node), launch.volumes.values())
        return self.launch(node, launch, {path: volumes.path(v) for path, v in launch.volumes.items()})

    @guarded
    def launch(
        self, node: Record, launch: Launch, volumes: Mapping[str, str], *, must: bool = False
    ) -> RankStatus:
        """`start` with volumes that are folders of the host, by the paths where the rank sees them.

        With `must` the rank does not start if the host cannot show them there.
        """
        transport, entered, folder = self._entered(node)
        devices = node.outputs.get("gpus") or ()
        launched = prepared(folder, entered.cpus, launch, volumes, must=must, meets=True, devices=devices)
        if launch.files is not None:
            scripts.place_files(transport, entered.root, _key(node), launch.attempt, launch.files)
        return self._ranks(node).start(launched)

    @guarded
    def log_ends(self, node: Record, attempts: Sequence[str]) -> Mapping[str, LogEnd]:
        """One round trip, however many there are."""
        transport, _, folder = self._entered(node)
        answer = scripts.inline(transport, "logs.sh", (f"{folder}/ranks", *attempts))
        rows = [line.split() for line in scripts.lines(answer, "FLEETFORM-LOGS")]
        return {name: LogEnd(size=int(size), quiet=float(quiet)) for name, size, quiet in rows}

    @guarded
    def terminal(
        self, node: Record, attempt: str | None, command: Sequence[str], *, tty: bool
    ) -> AbstractContextManager[Terminal]:
        if attempt is None:
            # As ssh sends words: with blanks between them, for the shell there.
            return terminal(self.transport(node).host, " ".join(command) or None, tty=tty)
        transport, _, folder = self._entered(node)
        return terminal(transport.host, command_line(beside(folder, attempt, command)), tty=tty)

    def _ranks(self, node: Record) -> Ranks:
        transport, entered, folder = self._entered(node)
        return self._ranks_in(transport, entered, folder)

    def _ranks_in(self, transport: SshTransport, entered: scripts.Entered, folder: str) -> Ranks:
        return Ranks(Runner(transport, f"{folder}/ranks", entered.script, self._config.fence))

    def _entered(self, node: Record) -> tuple[SshTransport, scripts.Entered, str]:
        """The way to a node, the state folder of its host, and the folder of the node in it."""
        transport = self.transport(node)
        entered = scripts.enter(transport, self._options.root)
        return transport, entered, f"{entered.root}/{_key(node)}"

    @guarded
    def transport(self, node: Record) -> SshTransport:
        """The way to a node."""
        return self._transport(node.node.host)

    def _claims(self, transport: SshTransport) -> Claims:
        return Claims(transport, self._options.root, self._config.lineage)

    def _volumes(self, fields: object) -> Volumes:
        return Volumes(self._transport(fields), self._options.root, self._config.lineage)

    def _transport(self, fields: object) -> SshTransport:
        host = host_of(fields, self._config.project_dir, self._options.defaults)
        return SshTransport(host, self._config.fence)


def _side_by_side(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(AT_ONCE, len(items)), thread_name_prefix="hosts") as pool:
        return list(pool.map(function, items))


def _check_kind(address: Address) -> None:
    if address.kind != "node":
        summary = f"an ssh backend makes nodes, volumes and attachments, not {address}"
        raise PermanentError(PermanentKind.INVALID, summary, about=str(address))


def _key(node: Record) -> str:
    return id_on_host(node, "node")


def declared_of(fields: Mapping[str, Any]) -> Declared:
    """The declared shape of a host, which outranks the reported one."""
    resources = fields.get("resources") or {}
    if not isinstance(resources, Mapping) or set(resources) - set(Shape.__dataclass_fields__):
        summary = f"the declared resources of {fields.get('hostname')} cannot be {resources!r}"
        raise PermanentError(PermanentKind.INVALID, summary, about="resources")
    return Declared(
        resources=resources, choice=tuple(fields.get("gpus") or ()), trusted=bool(fields.get("trust"))
    )


def _recorded(node: Record) -> Declared:
    """The same of a node's host, with what is recorded of the node."""
    devices = tuple(map(str, node.outputs.get("gpus") or ()))
    declared = declared_of(node.node.host)
    return replace(declared, recorded=node.node.resources, devices=devices, node=_key(node))


def _address(fields: Mapping[str, Any], facts: Facts) -> str:
    """The address by which other hosts reach it: the declared one, one in the declared network, or ours."""
    if fields.get("internal_ip"):
        return str(fields["internal_ip"])
    if not fields.get("network"):
        return facts.address or str(fields["hostname"])
    network = ip_network(str(fields["network"]))
    inside = [address for address in facts.addresses if ip_address(address) in network]
    if not inside:
        addresses = ", ".join(facts.addresses) or "none"
        summary = f"{fields['hostname']} has no address in {network}: {addresses}"
        raise PermanentError(PermanentKind.INVALID, summary, about="network")
    return inside[0]
