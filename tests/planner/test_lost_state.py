"""A plan of an empty state, beside things that another state has made: its own may have been lost.

`tests/providers/ec2/test_apply.py` has the same with the installed command and a cloud.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from declarative.apply.preflight import foresee
from declarative.model.diagnostic import Diagnostic, Severity
from declarative.model.state import Address, Intent, State
from declarative.planner.plan import Plan
from declarative.provider import (
    NoKeyError,
    PermanentError,
    PermanentKind,
    ProviderError,
    TransientError,
    TransientKind,
)
from declarative.provider.optional import Existing
from tests.support.model import World
from tests.support.planned import GPU, declared, with_parts

EMPTY = State(lineage=None)
NODE, DATA = Address("node", "gpu-0"), Address("volume", "data")


class Cloud:
    """The one backend `sky`, and what is asked of it."""

    def __init__(
        self,
        *others: Existing,
        refuses: Collection[ProviderError] = (),
        fails: ProviderError | None = None,
        checks: bool = True,
        project: str | None = "lab",
        only_plans: bool = False,
    ) -> None:
        self._others, self._refuses, self._fails = others, refuses, fails
        self.checks, self.project, self.only_plans = checks, project, only_plans
        self.asked: list[Address] = []
        self.checked: list[Address] = []

    def ask(self, name: str, question: Any, **_: Any) -> Any:
        assert name == "sky"
        return question(self)

    def others(self, addresses: Collection[Address]) -> Collection[Existing]:
        if self._fails:
            raise self._fails
        self.asked += addresses
        return [e for e in self._others if e.address in addresses]

    def check(self, wanted: Mapping[Address, Any]) -> Collection[ProviderError]:
        if self._fails:
            raise self._fails
        self.checked += wanted
        return self._refuses


def there(address: Address, project: str | None = "lab", id: str = "i-1") -> Existing:
    where = {"region": "east", "zone": None, "type": "t", "state": "running"}
    return Existing(id=id, address=address, lineage="before", project=project, **where)  # type: ignore[arg-type]


def planned(**words: Any) -> Plan:
    plan: Plan = World().plan(declared([GPU], volumes=[{"name": "data", "backend": "sky", **words}]))
    return plan


def seen(cloud: Any, state: State = EMPTY, plan: Plan | None = None, **more: Any) -> list[Diagnostic]:
    """What looking ahead adds to the findings of a plan."""
    before = plan or planned()
    after = foresee(before, cloud, {}, state, **more)
    assert [d for d in before.diagnostics if d not in after.diagnostics] == []
    return [d for d in after.diagnostics if d not in before.diagnostics]


def test_an_empty_state_makes_nothing_that_another_one_of_its_project_made() -> None:
    """Each thing is named with its id and its state, and the ways out."""
    cloud = Cloud(there(NODE), there(DATA, id="vol-1"), there(Address("node", "other-0")))
    (error,) = seen(cloud)
    assert (error.code, error.severity, error.address) == ("another-state", Severity.ERROR, "backend/sky")
    assert error.summary == (
        "this state is empty, and another one of this project made node/gpu-0 (i-1, lineage before), "
        "volume/data (vol-1, lineage before) on backend/sky"
    )
    for way in ("fleetform state restore", "fleetform state adopt", "--new-state"):
        assert way in str(error.hint)
    assert sorted(cloud.asked) == [NODE, Address("node", "gpu-1"), DATA]


def test_things_of_a_project_that_is_not_known_are_a_warning() -> None:
    (warning,) = seen(Cloud(there(NODE, None)))
    assert (warning.code, warning.severity) == ("another-state", Severity.WARNING)
    assert "of a project that is not known, made node/gpu-0 (i-1, lineage before)" in warning.summary
    both = seen(Cloud(there(NODE, None), there(DATA)))
    assert sorted(d.severity for d in both) == [Severity.ERROR, Severity.WARNING]


@pytest.mark.parametrize("project", ["lab", None])
def test_another_projects_things_are_its_own(project: str | None) -> None:
    """A project without a name has none that could be the same."""
    assert seen(Cloud(there(NODE, "other"), there(DATA, ""), project=project)) == []


def test_only_an_empty_state_may_be_a_lost_one() -> None:
    """One that records something, began something or has used a generation is somebody's; or a new one is
    meant.
    """
    cloud = Cloud(there(NODE))
    world = World()
    world.apply(world.plan(declared([{**GPU, "name": "old"}])))
    record = next(iter(world.records.values()))
    begun = Intent(id=1, op="create", address=NODE, backend="sky", generation=1, token="t", inputs={})
    for state in (
        replace(EMPTY, records={record.address: record}),
        replace(EMPTY, intents=(begun,)),
        replace(EMPTY, generations={NODE: 1}),
    ):
        assert seen(cloud, state) == []
    assert seen(cloud, new_state=True) == []
    assert cloud.asked == []
    assert len(seen(cloud)) == 1


def test_only_what_a_plan_makes_may_be_there_already() -> None:
    """What it adopts is there by its id, and what it only records is not made."""
    cloud = Cloud(there(DATA))
    assert seen(cloud, plan=planned(volume_id="vol-1", region="east")) == []
    assert DATA not in cloud.asked
    assert DATA in cloud.checked
    world = World()
    world.apply(world.plan(declared([GPU])))
    deleting = world.plan(declared([{**GPU, "nodes": 1}]))
    assert [a.op.value for a in deleting.actions if a.address.kind == "node"] == ["delete"]
    cloud = Cloud(there(Address("node", "gpu-1")))
    assert (seen(cloud, plan=deleting), cloud.asked, cloud.checked) == ([], [], [])


def test_what_cannot_be_read_is_a_warning_once() -> None:
    """Whether there are others cannot be seen then either, which is not said a second time."""
    lost = TransientError(TransientKind.BUSY, "no answer")
    (warning,) = seen(Cloud(fails=lost))
    assert (warning.code, warning.severity) == ("backend-unreadable", Severity.WARNING)
    assert warning.summary == "backend sky cannot be read: no answer"
    assert warning.hint == "whether it would do what is planned could not be seen"
    (hinted,) = seen(Cloud(fails=TransientError(TransientKind.BUSY, "no answer", hint="wait")))
    assert hinted.hint == "wait"
    first = replace(warning, summary="it was found before")
    known = with_parts(planned(), diagnostics=(first,))
    after = foresee(known, Cloud(fails=lost), {}, EMPTY)  # type: ignore[arg-type]
    assert after.diagnostics == (first,)


def test_a_refusal_stands_in_the_place_of_what_could_not_be_read() -> None:
    """A login that is wrong is an error: the warning that nothing could be read says no more."""
    warning = Diagnostic(
        code="backend-unreadable", summary="x", hint="y", address="backend/sky", severity=Severity.WARNING
    )
    other = replace(warning, address="backend/sea")
    known = with_parts(planned(), diagnostics=(warning, other))
    wrong = PermanentError(PermanentKind.AUTH, "wrong password")
    after = foresee(known, Cloud(fails=wrong), {}, EMPTY)  # type: ignore[arg-type]
    assert sorted((d.code, d.address) for d in after.diagnostics) == [
        ("backend-refuses", "backend/sky"),
        ("backend-unreadable", "backend/sea"),
    ]


def test_an_error_is_added_though_it_was_found_before() -> None:
    """Errors of one backend are different ones, as their words say."""
    quota = PermanentError(PermanentKind.NO_CAPACITY, "quota of CPUs")
    (first,) = seen(Cloud(refuses=[quota]))
    known = with_parts(planned(), diagnostics=(first,))
    more = PermanentError(PermanentKind.NO_CAPACITY, "quota of disks")
    assert [d.summary for d in seen(Cloud(refuses=[more]), plan=known)] == [
        "backend sky would refuse this plan: quota of disks"
    ]


def test_a_refusal_of_one_thing_stands_where_that_is_declared() -> None:
    """A node is declared by its fleet."""
    for about, where in ((NODE, "fleet/gpu"), (DATA, "volume/data"), (None, "backend/sky")):
        text = f"{about}: too large" if about else "too large"
        (error,) = seen(Cloud(refuses=[PermanentError(PermanentKind.INVALID, text)]))
        assert (error.code, error.address) == ("backend-refuses", where)
    assert seen(Cloud(refuses=[PermanentError(PermanentKind.INVALID, "too large")], checks=False)) == []


@pytest.mark.parametrize("only_plans", [True, False])
def test_a_missing_key_stops_who_makes_nodes_and_no_plan(only_plans: bool) -> None:
    key = NoKeyError("no key", hint="set it")
    (found,) = seen(Cloud(refuses=[key], only_plans=only_plans))
    kind = ("no-node-key", Severity.WARNING) if only_plans else ("backend-refuses", Severity.ERROR)
    assert ((found.code, found.severity), found.address) == (kind, "backend/sky")
