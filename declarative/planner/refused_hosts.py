"""Hosts that answer and are not used: a warning for each cause, with the lines to write. Pure.

Hosts of one cause get one message, with lines to copy: thirty new hosts are one errand, not thirty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from declarative.model.diagnostic import Diagnostic, Severity, Span, and_more
from declarative.model.resource import Desired, Host
from declarative.model.schema import encode
from declarative.model.spec.hosts import fingerprint
from declarative.model.state import State
from declarative.model.status import HostRefusal
from declarative.planner.health import refused_hint
from declarative.planner.hosts import declared_hosts
from declarative.planner.inventory import Inventory

MOST_NAMED = 20
"""So many hosts are named in one message; more are counted."""
Refused = tuple[Host, HostRefusal]


def in_short(fields: Mapping[str, Any], refusal: HostRefusal) -> str:
    """Why a host is not used, in words that are the same for all hosts of one cause."""
    way = f" of {refusal.hostname}, on the way to it," if refusal.on_the_way else ""
    if refusal.key:
        verb = "has changed" if refusal.known else "is not known"
        return f"the key{way} {verb}" if way else f"its key {verb}"
    identity = _identity(fields, refusal)
    with_what = f"`{identity}`" if identity else "the keys of the agent and of `~/.ssh`"
    user = f" of {refusal.user}" if refusal.user else ""
    who = f"{refusal.hostname}, on the way to it," if way else "it"
    return f"{who} refuses the login{user} with {with_what}"


def _identity(fields: Mapping[str, Any], refusal: HostRefusal) -> str | None:
    """The declared private key that was refused; None for those of the agent and of `~/.ssh`."""
    jump = fields.get("proxy_jump") or {}
    if refusal.on_the_way:
        fields = jump if jump.get("hostname") == refusal.hostname else {}
    identity = fields.get("identity_file")
    return str(identity) if identity else None


def contact_notes(desired: Desired, state: State, inventory: Inventory) -> list[Diagnostic]:
    """One warning for all hosts of a fleet that are not used for one cause, whether they are nodes or not."""
    refused = [(item.host, item.refusal) for item in inventory.left_out if item.refusal]
    nodes = [record for record in state.of("node") if record.node.is_ssh_host]
    for record in nodes:
        observed = inventory.readiness.get(record.address.name)
        if observed and observed.refusal:
            node = record.node
            host = Host(
                fleet=node.fleet,
                name=record.address.name,
                backend=node.backend,
                key=node.host_key,
                fields=node.host,
            )
            refused.append((host, observed.refusal))
    fleets = {host.fleet for host, _ in refused} & desired.fleets.keys()
    declared = {(h.fleet, h.key): h for name in sorted(fleets) for h in declared_hosts(desired.fleets[name])}
    groups: dict[tuple[str, str], dict[str, Refused]] = {}
    for host, refusal in refused:
        present = declared.get((host.fleet, host.key), host)
        key = present.fleet, in_short(present.fields, refusal)
        groups.setdefault(key, {})[present.key] = present, refusal
    return [_note(why, list(group.values()), desired) for (_, why), group in groups.items()]


def _note(why: str, group: Sequence[Refused], desired: Desired) -> Diagnostic:
    host, refusal = group[0]
    address, is_one = f"fleet/{host.fleet}", not group[1:]
    named = and_more((h.key for h, _ in group), MOST_NAMED)
    if not is_one:
        why = why.replace("its key is", "their keys are").replace("its key has", "their keys have")
        why = why.replace("way to it,", "way to them,").replace("it refuses", "they refuse")
    hosts, are = ("host", "is") if is_one else ("hosts", "are")
    code = "host-key-changed" if refusal.known else "host-key-unknown"
    if not refusal.key:
        code = "identity-refused"
    return Diagnostic(
        code=code,
        summary=f"{hosts} {named} of {address} {are} not used: {why}",
        hint=_hint(host, refusal, group),
        span=_place(host, refusal, desired.places),
        address=address,
        severity=Severity.WARNING,
        block=tuple(_block(group, desired)),
    )


def changed_key(refusal: HostRefusal, address: str, span: Span | None) -> Diagnostic:
    """The error about one host whose key is another one, for who was to trust it."""
    known = ", ".join(map(fingerprint, refusal.known))
    return Diagnostic(
        code="host-key-changed",
        summary=f"the key of {refusal.hostname} has changed: known is {known}, it offers "
        f"{fingerprint(refusal.key)}",
        hint=refused_hint(refusal),
        span=span,
        address=address,
    )


def _hint(host: Host, refusal: HostRefusal, group: Sequence[Refused]) -> str:
    hint = refused_hint(refusal)
    if refusal.key and refusal.on_the_way and host.proxy_jump.get("hostname") != refusal.hostname:
        return f"ssh's configuration names it: once its fingerprint is checked, write into {refusal.file}:"
    if refusal.key and not refusal.known:
        more = f" (of {MOST_NAMED}; more follow)" if len(group) > MOST_NAMED else ""
        return f"{hint}; by hand, once they are checked, write in `ssh_config`{more}:"
    return hint


def _place(host: Host, refusal: HostRefusal, places: Mapping[str, Span]) -> Span | None:
    """The line to change: of the private key that was refused, or of the hosts."""
    fleet = f"fleet/{host.fleet}"
    own, field = f"{fleet}.hosts.{host.index}", "hosts"
    if not refusal.key:
        field = "proxy_jump.identity_file" if refusal.on_the_way else "identity_file"
    names = (f"{own}.{field}", f"{fleet}.{field}", fleet)
    return next((place for name in names if (place := places.get(name))), None)


def _block(group: Sequence[Refused], desired: Desired) -> Iterator[str]:
    for host, refusal in group[:MOST_NAMED]:
        if not refusal.key:
            return
        way = refusal.on_the_way
        prints = fingerprint(refusal.key)
        if refusal.known:
            known = ", ".join(map(fingerprint, refusal.known))
            yield f"{refusal.hostname}: known is {known}, it offers {prints}"
        elif way and host.proxy_jump.get("hostname") != refusal.hostname:
            yield f"{refusal.name} {refusal.key}  # {prints}"
        elif way:
            jump = {**host.proxy_jump, "host_keys": [refusal.key]}
            yield f"proxy_jump: {in_flow(jump)}  # {prints}"
        else:
            # The host's own fields in the YAML.
            fleet = desired.fleets.get(host.fleet)
            hosts = fleet.ssh_config.hosts if fleet and fleet.ssh_config else ()
            fields: dict[str, Any] = encode(hosts[host.index]) if host.index < len(hosts) else {}
            if fields.get("hostname") != host.hostname:
                fields = {"hostname": host.hostname}
            yield f"- {in_flow({**fields, 'host_keys': [refusal.key]})}  # {prints}"
        if way:
            return


_PLAIN = re.compile(r"[A-Za-z/~][A-Za-z0-9_./@~+=-]*(?: [A-Za-z0-9_./@~+=-]+)*", re.ASCII)
_WORDS = frozenset({"~", "true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def in_flow(value: Any) -> str:
    """Plain data as YAML in one line. Texts that might be read as something else are quoted."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {in_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(in_flow, value)) + "]"
    if isinstance(value, str) and value.lower() not in _WORDS:
        address = re.fullmatch(r"[0-9]+(\.[0-9]+){3}", value, re.ASCII)
        return value if address or _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)
