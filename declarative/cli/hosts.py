"""`fleetform hosts`: the hosts that a project declares, before they are nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from declarative.cli import CommandGroup
from declarative.cli.options import confirm, examples, project_command
from declarative.cli.output import emit_text, say
from declarative.cli.project_files import bytes_of, replace_file, target_of
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import Diagnostic, InvalidError, failed

if TYPE_CHECKING:
    from declarative.model.resource import Desired, Host
    from declarative.model.status import HostRefusal

MOST_ROUNDS = 8
"""Hosts on the way to others are trusted first: at most this many of them may lie behind each other."""
Place = tuple[str, tuple[str | int, ...]]
"""A fleet, and the path of a host or of its `proxy_jump` in the fleet's document."""


@click.group("hosts", cls=CommandGroup, epilog=examples("fleetform hosts trust"))
def hosts_command() -> None:
    """Hosts that the project declares in `ssh_config`."""


@hosts_command.command(
    "trust", epilog=examples("fleetform hosts trust", "fleetform hosts trust --replace     after a new setup")
)
@click.option("--replace", "replacing", is_flag=True, help="Also write keys in the place of others.")
@click.option("--auto-approve", "approved", is_flag=True, help="Write without asking.")
@project_command
def trust(session: ProjectSession, *, replacing: bool, approved: bool) -> int:
    """Write the keys of hosts that are not known yet into the YAML, as `host_keys`.

    It connects to the declared hosts, shows the fingerprint of each new key, and asks. Compare them with what
    `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` shows on the hosts. All else in the files stays as it
    is. A key in the place of a known one is an error without --replace.
    """
    from declarative.model.spec.fleet import fingerprint
    from declarative.model.text import clean

    desired = session.load().desired
    say(session.warnings)
    files = [
        desired.places[f"fleet/{name}"].file
        for name, fleet in desired.fleets.items()
        if fleet.ssh_config is not None
    ]
    before = {file: _content(session, file) for file in files}
    taken: dict[Place, HostRefusal] = {}
    errors: dict[str, Diagnostic] = {}
    unsteady: dict[Place, Diagnostic] = {}
    for _ in range(MOST_ROUNDS):
        offered, errors = _offers(session, desired, taken, unsteady, replacing=replacing)
        fresh = {place: one for place, one in offered.items() if place not in {*taken, *unsteady}}
        if not fresh:
            break
        for (fleet_name, _), one in fresh.items():
            known = ", ".join(map(fingerprint, one.known))
            instead = clean(f"  CHANGED: known is {known}") if known else ""
            name, print_of_key = clean(one.hostname), fingerprint(one.key)
            emit_text(f"{name} (fleet/{fleet_name})  {print_of_key}{instead}\n")
        confirm(
            "\nCompare the fingerprints with those that the hosts show. Trust these keys? ",
            approved=approved,
            doing="`hosts trust`",
            look="compare the fingerprints above with those that the hosts show",
        )
        taken |= fresh
    taken = {place: one for place, one in taken.items() if place not in unsteady}
    errors |= {str(place): error for place, error in unsteady.items()}
    if taken:
        _write(session, desired, taken, before)
    elif not errors:
        emit_text("The keys of all hosts that answer are known.\n")
    if errors:
        say(tuple(errors.values()))
    return 1 if errors else 0


def _offers(
    session: ProjectSession,
    desired: Desired,
    taken: Mapping[Place, HostRefusal],
    unsteady: dict[Place, Diagnostic],
    *,
    replacing: bool,
) -> tuple[dict[Place, HostRefusal], dict[str, Diagnostic]]:
    """Refusals with the keys to write, and errors about hosts whose keys are not written, by their names.
    Those that offer now one key and now another are put into `unsteady`, each with its error.
    """
    from declarative.apply.parallel import ask_backends
    from declarative.model.state import State
    from declarative.planner.hosts import changed_key, declared_hosts

    fleets = [fleet for fleet in desired.fleets.values() if fleet.ssh_config is not None]
    hosts = [_as_trusted(host, taken) for fleet in fleets for host in declared_hosts(fleet)]
    backends = session.backends(desired, State())
    by_backend: dict[str, list[Host]] = {}
    for host in hosts:
        by_backend.setdefault(host.backend, []).append(host)

    def look(name: str) -> Mapping[str, Any]:
        asked = {f"{host.fleet}/{host.index}": host.fields for host in by_backend[name]}
        return backends.get(name).look(asked)

    looks: dict[str, Any] = {}
    for looks_of_backend in ask_backends(sorted(by_backend), look).values():
        looks.update(looks_of_backend)
    offered: dict[Place, HostRefusal] = {}
    errors: dict[str, Diagnostic] = {}
    for host in hosts:
        answer = looks[f"{host.fleet}/{host.index}"]
        refusal, address = answer.readiness.refusal, f"fleet/{host.fleet}"
        if refusal is None or not refusal.key:
            let_in = answer.shape or getattr(answer, "connected", False)
            if not let_in and (refusal is None or refusal.on_the_way):
                summary = f"no key of host {host.key} of {address} was seen: {answer.readiness.reason}"
                errors[host.key] = Diagnostic(
                    code="host-not-ready", summary=summary, address=address, span=desired.places[address]
                )
            continue
        place: Place | None = (host.fleet, ("ssh_config", "hosts", host.index))
        if refusal.on_the_way:
            place = _jump(desired, host, refusal)
        if place is None:
            summary = (
                f"{refusal.hostname}, on the way to {host.key}, is named by ssh's configuration, not here"
            )
            hint = f"once its fingerprint is checked, write into {refusal.file}: {refusal.name} {refusal.key}"
            errors[refusal.hostname] = Diagnostic(
                code="host-key-unknown", summary=summary, hint=hint, address=address
            )
        elif (had := taken.get(place) or offered.get(place)) and had.key != refusal.key:
            unsteady[place] = changed_key(
                replace(refusal, known=(had.key,)), address, desired.places.get(f"{address}.hosts")
            )
        elif refusal.known and not replacing:
            errors[refusal.hostname] = changed_key(refusal, address, desired.places.get(f"{address}.hosts"))
        else:
            offered[place] = refusal
    return offered, errors


def _jump(desired: Desired, host: Host, refusal: HostRefusal) -> Place | None:
    """Where the host on the way is declared."""
    config = desired.fleets[host.fleet].ssh_config
    assert config is not None
    own = config.hosts[host.index].proxy_jump
    path: tuple[str | int, ...] = ("ssh_config", "hosts", host.index) if own else ("ssh_config",)
    jump = own or config.proxy_jump
    return (host.fleet, (*path, "proxy_jump")) if jump and jump.hostname == refusal.hostname else None


def _as_trusted(host: Host, taken: Mapping[Place, HostRefusal]) -> Host:
    """The host as it will be declared."""
    fields = dict(host.fields)
    own = ("ssh_config", "hosts", host.index)
    if one := taken.get((host.fleet, own)):
        fields["host_keys"] = [one.key]
    for path in (("ssh_config", "proxy_jump"), (*own, "proxy_jump")):
        one = taken.get((host.fleet, path))
        jump = fields.get("proxy_jump") or {}
        if one and jump.get("hostname") == one.hostname:
            fields["proxy_jump"] = {**jump, "host_keys": [one.key]}
    return replace(host, fields=fields)


def _content(session: ProjectSession, name: str) -> bytes:
    try:
        return bytes_of(session.directory / name)
    except OSError as error:
        raise failed("unreadable", f"`{name}`: {error}") from None


def _write(
    session: ProjectSession, desired: Desired, taken: Mapping[Place, HostRefusal], before: Mapping[str, bytes]
) -> None:
    """Put the keys into the files; `InvalidError`, with the lines to paste, where that cannot be done."""
    from declarative.language.formatter import with_host_keys
    from declarative.planner.hosts import in_flow

    files = dict(before)
    stuck: list[Diagnostic] = []
    for fleet in dict.fromkeys(fleet for fleet, _ in taken):
        place = desired.places[f"fleet/{fleet}"]
        mine = {path: refusal for (name, path), refusal in taken.items() if name == fleet}
        keys = {path: refusal.key for path, refusal in mine.items()}
        text = with_host_keys(files[place.file].decode(), place.file, place.line, keys)
        if text is not None:
            files[place.file] = text.encode()
            continue
        block = tuple(
            ("proxy_jump: " if path[-1] == "proxy_jump" else "- ")
            + in_flow({"hostname": refusal.hostname, "host_keys": [refusal.key]})
            for path, refusal in mine.items()
        )
        stuck.append(
            Diagnostic(
                code="not-edited",
                summary=f"hosts of fleet/{fleet} come from a template or an alias: this file stays as it is",
                hint="write the keys where the hosts come from:",
                span=place,
                address=f"fleet/{fleet}",
                block=block,
            )
        )
    changed = [name for name, content in files.items() if content != before[name]]
    for name in changed:
        if _content(session, name) != before[name]:
            summary = f"`{name}` was changed meanwhile, so nothing is written"
            raise failed("not-edited", summary, "run the command again")
    for name in changed:
        replace_file(target_of(session.directory / name, session.directory), files[name])
        emit_text(f"Wrote {name}.\n")
    if stuck:
        raise InvalidError(tuple(stuck))
