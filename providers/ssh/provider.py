"""`Ssh`, the port's methods over claims (`claims`), `volumes`, looks (`probe`) and ranks (`ranks`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any, TypeVar

from declarative.blocks import Shape
from declarative.inputs import inputs_of
from declarative.provider import (
    Config,
    Launch,
    LogEnd,
    PermanentError,
    PermanentKind,
    ProviderError,
    Terminal,
    Thing,
    TransientError,
    TransientKind,
    Visit,
)
from declarative.resource import Offer
from declarative.state import Address, NodeState, RankStatus, Readiness, Record
from providers.faults import guarded
from providers.ownership import key_of
from providers.rank_access import beside
from providers.ranks import Ranks, prepared
from providers.runner import Runner
from providers.ssh import probe, scripts
from providers.ssh.claims import Claim, Claims, Found, Volumes, id_on_host
from providers.ssh.host import host_of, options_of
from providers.ssh.probe import Facts, Look
from providers.ssh.terminal import joined, terminal
from providers.ssh.transport import SshTransport, command_line

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 32
"""Hosts that are asked side by side."""


class Ssh:
    """Hosts that exist, as nodes.

    It has no list of its own: which hosts there are, `Config.hosts` says for listing and finding, and a
    record's inputs for everything else. Their `host` is how a host is reached and what is declared of it.
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
        """What hosts have and whether they are fit, before they are nodes; by the names that were given."""

        def one(fields: Mapping[str, Any]) -> Look:
            try:
                transport, declared = self._transport(fields), _declared(fields)
            except PermanentError as error:
                return Look(readiness=probe.unanswered(error))
            found = probe.look(transport, self._options.root, declared)
            try:
                if found.facts and found.readiness.state is NodeState.READY:
                    self._check_free(transport, fields, found.facts)
            except ProviderError as error:
                return replace(found, readiness=probe.unanswered(error))
            return found

        return dict(zip(hosts, _side_by_side(one, list(hosts.values())), strict=True))

    @guarded
    def _check_free(self, transport: SshTransport, fields: Mapping[str, Any], facts: Facts) -> None:
        """`PermanentError` if a host cannot be a node of this state: what `create` would find out, too."""
        _address(fields, facts)
        have = self._claims(transport).read() if facts.claim else None
        if have is None:
            return
        known = self._config.hosts.get(have.address.name)
        twin = known is not None and any(known.get(k) != fields.get(k) for k in ("hostname", "port"))
        if have.owner != self._config.lineage or twin:
            raise self._taken(transport, have)

    def _taken(self, transport: SshTransport, have: Claim) -> PermanentError:
        """Somebody else has the host."""
        if have.owner != self._config.lineage:
            summary = f"{transport.host} is {have.address} of another state (lineage {have.owner})"
            hint = (
                "destroy it there; or, if both shall use the host without knowing of each other, "
                "give this backend another `options.root`"
            )
        else:
            summary = f"{transport.host} is {have.address} already"
            hint = "is one host declared under two names? else delete that node first"
        return PermanentError(PermanentKind.CONFLICT, summary, about=str(have.address), hint=hint)

    @guarded
    def inventory(self) -> tuple[Thing, ...]:
        """All of this owner on `Config.hosts`: complete, or an error that names the silent ones."""
        found, faults = self._found(self._config.hosts)
        _none(faults)
        mine = {(t.address, t.token): t for f in found for t in f.things(self._config.lineage)}
        return tuple(mine.values())

    @guarded
    def find(self, address: Address, token: str) -> Thing | None:
        """See the port. It asks the host of that name, or all where there is none of that name."""
        hosts = self._config.hosts
        alone = address.kind == "node" and address.name in hosts
        found, faults = self._found({address.name: hosts[address.name]} if alone else hosts)
        for claim in (claim for f in found for claim in f.of(self._config.lineage)):
            if (claim.address, claim.token) == (address, token):
                return claim.thing
        _none(faults)
        return None

    def _found(self, hosts: Mapping[str, Mapping[str, Any]]) -> tuple[list[Found], list[ProviderError]]:
        """What is on hosts, and why some of them could not be asked."""
        faults: list[ProviderError] = []

        @guarded
        def look(fields: Mapping[str, Any]) -> Found:
            return self._volumes(fields).look()

        def one(fields: Mapping[str, Any]) -> Found | None:
            try:
                return look(fields)
            except ProviderError as error:
                faults.append(error)
                return None

        return [found for found in _side_by_side(one, list(hosts.values())) if found], faults

    @guarded
    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """Take the host for a node, or make a volume on its disk, or take that one for a rank."""
        if address.kind == "volume":
            volume = inputs_of("volume", inputs)
            return self._volumes(volume.host).create(address, token, inputs, volume)
        if address.kind == "attachment":
            asked = inputs_of("attachment", inputs)
            held, node = needs.get(Address("volume", asked.volume)), needs.get(Address("node", asked.node))
            if held is None or node is None:
                summary = f"{address}: its volume or its node is not there"
                raise PermanentError(PermanentKind.NOT_FOUND, summary, about=str(address))
            return self._volumes(held.volume.host).attach(address, token, inputs, held, _key(node))
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
            hint = "mend it, or give the backend another `options.root`"
            about = transport.host.hostname
            raise PermanentError(PermanentKind.INVALID, facts.state_fault, about=about, hint=hint)
        wanted = Claim(
            owner=self._config.lineage,
            address=address,
            token=token,
            inputs=inputs,
            outputs={
                "id": f"{address}.{key_of(token)}",
                "address": _address(host, facts),
                "path": f"{facts.root}/{key_of(token)}",
            },
        )
        claims = self._claims(transport)
        have = claims.take(wanted)
        if (have.owner, have.address) == (wanted.owner, wanted.address) and have.token != wanted.token:
            # Another life of the same node: by `state rm` it was forgotten, and nobody else can want it.
            self._check_still(transport, have)
            claims.change(wanted, have.key)
            have = claims.take(wanted)
        if (have.owner, have.token) == (wanted.owner, wanted.token):
            return have.outputs
        raise self._taken(transport, have)

    def _check_still(self, transport: SshTransport, old: Claim) -> None:
        """Nothing of a forgotten node may run on: its CPUs would be given away twice."""
        entered = scripts.enter(transport, self._options.root)
        runner = Runner(transport, f"{entered.root}/{old.key}/ranks", entered.script, self._config.fence)
        busy = Ranks(runner).running()
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
        """Write the new inputs down: how the host is reached may change with them, not which it is."""
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
        """Give the host back, with all that the node left there. One with running ranks is refused.

        So is a volume that is attached.
        """
        if have.address.kind == "volume":
            self._volumes(have.volume.host).delete(have)
            return
        if have.address.kind == "attachment":
            # By the newest way to the host; one whose node is gone holds nothing.
            way = self._config.hosts.get(have.attachment.node) or have.outputs.get("host")
            if way:
                self._volumes(way).detach(have)
            return
        if have.address.kind != "node":
            return
        claims = self._claims(self.transport(have))
        claim = claims.read()
        if claim and claim.owner != self._config.lineage:
            return
        if have.outputs.get("id"):
            claims.release(_key(have))  # without a claim as well: its folder may be there still
        elif claim and claim.address == have.address:
            claims.release(claim.key)

    @guarded
    def tidy(self, node: Record, oldest: Mapping[str, int]) -> None:
        """See `provider.Tidies`."""
        old = self._ranks(node).ended_before(oldest)
        if old:
            self._claims(self.transport(node)).tidy(_key(node), old)

    # -------------------------------------------------------------------------------------- nodes

    @guarded
    def readiness(self, nodes: Sequence[Record]) -> Mapping[str, Readiness]:
        """See the port. A host that cannot be asked has a readiness too, and it says why."""

        def one(record: Record) -> Readiness:
            try:
                transport, key = self.transport(record), _key(record)
                declared = _declared(record.node.host)
            except PermanentError as error:
                return probe.unanswered(error)
            return probe.look(transport, self._options.root, declared, record.node.resources, key).readiness

        names = [record.address.name for record in nodes]
        return dict(zip(names, _side_by_side(one, list(nodes)), strict=True))

    @guarded
    def visit(self, node: Record) -> Visit:
        """See `provider.Visits`."""
        try:
            transport, key = self.transport(node), _key(node)
            declared = _declared(node.node.host)
        except PermanentError as error:
            return Visit(readiness=probe.unanswered(error))
        return probe.visit(
            transport,
            self._options.root,
            self._config.lineage,
            key,
            declared=declared,
            recorded=node.node.resources,
            attempts=lambda: self._ranks(node).attempts(),
        )

    @guarded
    def reaches(self, node: Record, address: str) -> str | None:
        """See the port. Asked at the port by which this host itself is reached, and at others."""
        transport = self.transport(node)
        return probe.reaches(transport, address, transport.host.port)

    # -------------------------------------------------------------------------------------- ranks

    @guarded
    def start(self, node: Record, launch: Launch) -> RankStatus:
        """See the port. CPUs beyond those of the host wrap around."""
        if launch.volumes:
            self._volumes(node.node.host).ready(_key(node), launch.volumes.values())
        return self.launch(node, launch, {path: str(v.outputs["path"]) for path, v in launch.volumes.items()})

    @guarded
    def launch(
        self, node: Record, launch: Launch, volumes: Mapping[str, str], *, must: bool = False
    ) -> RankStatus:
        """`start` with volumes that are folders of the host, by the paths where the rank is to see them.

        With `must` it does not begin where they cannot be shown there.
        """
        transport = self.transport(node)
        entered = scripts.enter(transport, self._options.root)
        launched = prepared(
            f"{entered.root}/{id_on_host(node, 'node')}", entered.cpus, launch, volumes, must=must, meets=True
        )
        if launch.files is not None:
            scripts.place_files(transport, entered.root, _key(node), launch.attempt, launch.files)
        return self._ranks(node).start(launched)

    @guarded
    def release(
        self, node: Record, attempts: Sequence[str], peers: Sequence[str] = ()
    ) -> Mapping[str, RankStatus | None]:
        """See `provider.Gates`."""
        return self._ranks(node).release(attempts, peers)

    @guarded
    def peers(self, node: Record, attempts: Sequence[str]) -> Mapping[str, str]:
        """See `provider.Gates`."""
        return self._ranks(node).peers(attempts)

    @guarded
    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        """See the port. One round trip, however many there are."""
        return self._ranks(node).poll(attempts)

    @guarded
    def attempts(self, node: Record) -> Mapping[str, RankStatus]:
        """See `provider.Tells`."""
        return self._ranks(node).attempts()

    @guarded
    def stop(self, node: Record, attempt: str, grace_seconds: int) -> RankStatus | None:
        """See the port."""
        return self._ranks(node).stop(attempt, grace_seconds)

    @guarded
    def change_limit(self, node: Record, attempt: str, seconds: int | None) -> None:
        """See the port."""
        self._ranks(node).change_limit(attempt, seconds)

    @guarded
    def read_log(self, node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
        """See the port. An attempt that never started has an empty log."""
        return self._ranks(node).read_log(attempt, offset, limit)

    @guarded
    def log_ends(self, node: Record, attempts: Sequence[str]) -> Mapping[str, LogEnd]:
        """See `provider.LogEnds`. One round trip, however many there are."""
        transport = self.transport(node)
        folder = f"{scripts.enter(transport, self._options.root).root}/{id_on_host(node, 'node')}/ranks"
        said = scripts.lines(scripts.inline(transport, "logs.sh", (folder, *attempts)), "FLEETFORM-LOGS")
        found = [line.split() for line in said]
        return {name: LogEnd(size=int(size), quiet=float(quiet)) for name, size, quiet in found}

    @guarded
    def terminal(
        self, node: Record, attempt: str | None, command: Sequence[str], *, tty: bool
    ) -> AbstractContextManager[Terminal]:
        """See `provider.Terminals`."""
        transport = self.transport(node)
        if attempt is None:
            return terminal(transport.host, joined(command), tty=tty)
        entered = scripts.enter(transport, self._options.root)
        argv = beside(f"{entered.root}/{id_on_host(node, 'node')}", attempt, command)
        return terminal(transport.host, command_line(argv), tty=tty)

    def _ranks(self, node: Record) -> Ranks:
        transport = self.transport(node)
        entered = scripts.enter(transport, self._options.root)
        return Ranks(
            Runner(
                transport,
                f"{entered.root}/{id_on_host(node, 'node')}/ranks",
                entered.script,
                self._config.fence,
            )
        )

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


def _none(faults: Sequence[ProviderError]) -> None:
    """Raise one fault that names all, if there are any."""
    if not faults:
        return
    # One that can be tried again hides no other: what is wrong for good is said first.
    first = next((e for e in faults if isinstance(e, PermanentError)), faults[0])
    summary = "; ".join(sorted(error.summary for error in faults))
    if isinstance(first, PermanentError):
        raise PermanentError(first.kind, summary, about=first.about, hint=first.hint)
    away = isinstance(first, TransientError) and first.away
    raise TransientError(TransientKind.NOT_SENT, summary, about=first.about, hint=first.hint, away=away)


def _check_kind(address: Address) -> None:
    if address.kind != "node":
        summary = f"an ssh backend makes nodes, volumes and attachments, not {address}"
        raise PermanentError(PermanentKind.INVALID, summary, about=str(address))


def _key(node: Record) -> str:
    return id_on_host(node, "node")


def _declared(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """What counts more than what is read: fields of `Shape`."""
    found = fields.get("resources") or {}
    if not isinstance(found, Mapping) or set(found) - set(Shape.__dataclass_fields__):
        summary = f"the declared resources of {fields.get('hostname')} cannot be {found!r}"
        raise PermanentError(PermanentKind.INVALID, summary, about="resources")
    return found


def _address(fields: Mapping[str, Any], facts: Facts) -> str:
    """By which other hosts reach it: the declared one, one in the declared network, or ours."""
    if fields.get("internal_ip"):
        return str(fields["internal_ip"])
    if fields.get("network"):
        network = ip_network(str(fields["network"]))
        inside = [a for a in facts.addresses if ip_address(a) in network]
        if not inside:
            summary = (
                f"{fields['hostname']} has no address in {network}: {', '.join(facts.addresses) or 'none'}"
            )
            raise PermanentError(PermanentKind.INVALID, summary, about="network")
        return inside[0]
    return facts.address or str(fields["hostname"])
