"""What is said about hosts that are not used: once for each cause, and nothing that may not happen."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from declarative.apply.offers import notes_on
from declarative.cli import COMMANDS
from declarative.model.codes import CODES
from declarative.model.resource import LeftOut
from declarative.model.state import State
from declarative.model.status import HostRefusal, NodeState
from declarative.planner.hosts import contact_notes, declared_hosts
from declarative.planner.inventory import Inventory, host_health, node_hint
from declarative.render.diagnostics import diagnostics_text
from declarative.render.output_json import diagnostics_json
from declarative.render.status_view import host_view
from tests.language.test_host_keys import KEY, OTHER
from tests.support.model import project

DESIRED = project(
    fleets=[
        {
            "name": "rack",
            "placement": "any",
            "ssh_config": {"user": "root", "identity_file": "key", "hosts": [f"h{i}" for i in range(64)]},
        }
    ]
)
HOSTS = declared_hosts(DESIRED.fleets["rack"])
CAUSES: dict[str, dict[str, Any] | None] = {
    "host-key-unknown": {"key": KEY},
    "host-key-changed": {"key": KEY, "known": (OTHER,)},
    "identity-refused": {},
    "host-not-ready": None,
}


def left_out(cause: str) -> tuple[LeftOut, ...]:
    fields = CAUSES[cause]
    return tuple(
        LeftOut(
            host=host,
            reason="unreachable: it did not answer within 15 s" if fields is None else "not ready",
            refusal=None if fields is None else HostRefusal(hostname=host.key, user="root", **fields),
        )
        for host in HOSTS
    )


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_one_message_however_many_hosts_have_it(cause):
    """And for programs it has one entry for each host."""
    items = left_out(cause)
    notes = [*contact_notes(DESIRED, State(), Inventory(left_out=items)), *notes_on(items, offline=False)]
    assert [note.code for note in notes] == [cause]
    assert "h0" in notes[0].summary
    assert "and 44 more" in notes[0].summary
    assert len(diagnostics_text(notes, color=False).splitlines()) < 30
    assert [health.host for health in host_health(items)] == [host.key for host in HOSTS]
    json.dumps(diagnostics_json(notes))


@pytest.mark.parametrize("known", [(), (OTHER,)])
def test_a_host_on_the_way_to_one_of_its_own_address_is_named_as_that(known):
    """As where all hosts, and the gate itself, are reached through the gate."""
    gate = HostRefusal(hostname="h0", user="root", key=KEY, known=known, on_the_way=True)
    fields = {**HOSTS[0].fields, "proxy_jump": {"hostname": "h0"}}
    items = (LeftOut(host=replace(HOSTS[0], fields=fields), reason="not ready", refusal=gate),)
    (note,) = contact_notes(project(), State(), Inventory(left_out=items))
    assert "the key of h0, on the way to it," in note.summary
    assert known or note.block[0].startswith(f"proxy_jump: {{hostname: h0, host_keys: [{KEY}]}}")


def hints() -> list[str]:
    every = [item.hint or "" for cause in CAUSES for item in host_health(left_out(cause))[:1]]
    every += [host_view(HOSTS[0], None).reason, *map(node_hint, NodeState)]
    for cause in CAUSES:
        items = left_out(cause)
        notes = contact_notes(DESIRED, State(), Inventory(left_out=items))
        every += [note.hint or "" for note in (*notes, *notes_on(items, offline=False))]
        every += [CODES[cause].fix]
    return every


@pytest.mark.parametrize("hint", dict.fromkeys(hints()))
def test_no_hint_promises_what_an_apply_does(hint):
    """It may do nothing: a task without a place stops it, and so does a limit. Named commands exist."""
    assert not re.search(r"`(fleetform )?apply`[^;]* (makes|takes|adopts|puts)", hint)
    for command in re.findall(r"`fleetform ([a-z]+)", hint):
        assert command in COMMANDS
