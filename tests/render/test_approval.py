"""What an approval covers, and what is named as another plan: values as they stand in a report."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest

from declarative.converge.planning import RunOptions
from declarative.converge.run import MOST_DIFFERENCES, Run
from declarative.model.blocks import Shape
from declarative.model.diagnostic import InvalidError
from declarative.model.inputs import OfferInputs
from declarative.model.state import RETRIES, State
from declarative.planner.approval import (
    MARK,
    REFUSED,
    PlanDigest,
    RefusedPlanError,
    approval_in,
    approval_of,
    as_approved,
    differences,
    read_approval,
)
from declarative.planner.plan import Fallback, Op, Plan, Spare
from tests.render.test_render import act, node
from tests.support.planned import plan_of

DIGEST = "sha256:" + "0" * 64


def step(id_: str, after: Any = None, before: Any = None, **more: Any) -> dict[str, Any]:
    return {"id": id_, "before": before, "after": after, "forget": False, **more}


def content(*actions: dict[str, Any], **more: Any) -> PlanDigest:
    """The approval of a plan as a file shows it."""
    base = {"lineage": "3f1c", "actions": actions, "moved": [], "unplaced": [], "fallbacks": []}
    return approval_in({**base, **more})


def differ(was: Any, now: Any, *recorded: str) -> list[str]:
    return list(differences(content(*was), content(*now), recorded))


def changed(was: Any, now: Any, op: str = "create:rank/a-0") -> list[str]:
    """What is said of an action whose inputs after it are others."""
    found = differ([step(op, was)], [step(op, now)])
    assert all(line.startswith("not as approved: rank/a-0 ") for line in found), found
    return [line.removeprefix("not as approved: rank/a-0 ") for line in found]


# -------------------------------------------------------------------------------------- what is covered


def test_the_order_of_keys_is_no_difference():
    one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert content(step("create:rank/a-0", one)) == content(step("create:rank/a-0", other))


def test_of_a_retry_the_time_does_not_count_and_its_number_does():
    def of(**series: Any) -> str:
        return content(step("create:rank/a-0", {"x": 1, RETRIES: series})).digest

    assert of(number=1, since=5, at=6) == of(number=1, since=7, at=8) == of(number=1)
    assert of(number=1) != of(number=2)
    assert content(step("create:rank/a-0", {RETRIES: 3})) != content(step("create:rank/a-0", {RETRIES: 4}))


@pytest.mark.parametrize("op", ["create", "update", "delete"])
def test_of_updates_alone_it_counts_that_they_end_work(op):
    one, other = (content(step(f"{op}:rank/a-0", {}, {}, ends=ends)) for ends in (False, True))
    assert (one != other) == (op == "update")
    assert other.content is not None
    assert [action.get("ends", False) for action in other.content["actions"]] == [op == "update"]


def test_what_has_no_place_is_a_part():
    one = content(step("create:rank/a-0", {}))
    other = content(step("create:rank/a-0", {}), unplaced=[{"task": "b"}, {"task": "a"}])
    assert "not placed: task/a, task/b" in other.parts
    assert not any(part.startswith("not placed") for part in one.parts)
    assert one.to_json()["parts"][0] == {"step": "state", "digest": "3f1c"}
    assert content(lineage=None).to_json()["parts"] == [{"step": "state", "digest": ""}]


def test_a_comment_holds_the_content_where_it_has_room():
    approval = content(step("create:rank/a-0", {"commands": ["a"]}))
    whole = approval.hidden()
    assert read_approval(whole) == approval
    assert approval.hidden(len(whole)) == whole
    assert read_approval(approval.hidden(len(whole) - 1)).digest == approval.digest
    assert len(approval.hidden(len(whole) - 1)) < len(whole)


# --------------------------------------------------------------------------------------- what differs

XS, XY = ["x"] * 300, [*["x"] * 150, "y", *["x"] * 150]
TWO = ["command line 1: b, approved: a", "command line 2: c, approved: none"]
ONE = ["command line 1: a, approved: b", "command line 2: none, approved: c"]

MORE = ["command line 1: p, approved: none", "command line 3: q, approved: none"]
LESS = ["command line 1: none, approved: p", "command line 3: none, approved: q"]


@pytest.mark.parametrize(
    ("was", "now", "lines"),
    [
        ({"env": {"A": "x"}}, {"env": {"A": "y"}}, ["env.A: y, approved: x"]),
        ({"env": None}, {"env": {"A": "y"}}, ["env.A: y, approved: none"]),
        ({"env": {"A": "y"}}, {"env": None}, ["env.A: none, approved: y"]),
        ({"env": {"A": "y"}}, {"env": "A"}, ['env: A, approved: {"A": "y"}']),
        ({"env": "A"}, {"env": {"A": "y"}}, ['env: {"A": "y"}, approved: A']),
        ({"env": None}, {}, ["is written in another way"]),
        ({"a": [1]}, {"a": [2, 3]}, ["a: [2, 3], approved: [1]"]),
        ({"commands": None}, {"commands": ["x"]}, ['commands: ["x"], approved: none']),
        ({"commands": ["x"]}, {"commands": None}, ['commands: none, approved: ["x"]']),
        ({"commands": ["a\nb"]}, {"commands": ["a", "b"]}, ['commands: ["a", "b"], approved: ["a\\nb"]']),
        ({"commands": ["a", "z"]}, {"commands": ["b", "c", "z"]}, TWO),
        ({"commands": ["b", "c", "z"]}, {"commands": ["a", "z"]}, ONE),
        ({"commands": ["b", "c"]}, {"commands": ["a"]}, ONE),
        ({"commands": ["x"]}, {"commands": ["p", "x", "q"]}, MORE),
        ({"commands": ["p", "x", "q"]}, {"commands": ["x"]}, LESS),
        ({"commands": XS}, {"commands": XY}, ["command line 151: y, approved: none"]),
        ({"x": "a" * 80}, {"x": "b" * 81}, [f"x: {'b' * 80}…, approved: {'a' * 80}"]),
        ({"x": True}, {"x": "true"}, ["x: true, approved: true"]),
        (None, {"x": 1}, ["x: 1, approved: none"]),
        ({"x": 1}, None, ["x: none, approved: 1"]),
        ({"price": 2}, {"price": 1.5}, []),
        ({"price": 2}, {"price": 2.5}, ["price: 2.5, approved: 2"]),
        ({"price": None}, {"price": 1.0}, ["price: 1.0, approved: none"]),
        ({"price": 1.0}, {"price": None}, ["price: none, approved: 1.0"]),
        ({"price": 2, "x": 1}, {"price": 1, "x": 2}, ["x: 2, approved: 1"]),
    ],
)
def test_each_value_that_differs_is_named(was, now, lines):
    assert changed(was, now) == lines


CHANGED = "not as approved: rank/a-0 "


@pytest.mark.parametrize(
    ("was", "now", "line"),
    [
        ({"ends": True}, {"ends": True}, None),
        ({"ends": True}, {}, None),
        ({}, {"ends": True}, "ends what is running"),
        ({"ends": True, "after": {"x": None}}, {}, "is written in another way"),
        ({"before": {"x": 1}}, {"before": {"x": 2}}, "x as recorded: 2, approved: 1"),
        ({}, {"forget": True}, "forget: true, approved: false"),
    ],
)
def test_less_may_end_and_nothing_else_differ(was, now, line):
    at = "update:rank/a-0"
    found = differ([{**step(at, {}, {}), **was}], [{**step(at, {}, {}), **now}])
    assert found == ([] if line is None else [f"{CHANGED}{line}"])


def test_other_values_of_what_is_deleted_are_named():
    was, now = (step("delete:volume/a", None, {"size": size}) for size in ("1GB", "2GB"))
    assert differ([was], [now]) == ["not as approved: volume/a size as recorded: 2GB, approved: 1GB"]


def test_changes_that_are_not_alike_are_named_without_values():
    was = [step(f"create:rank/a-{i}", {"x": 0}) for i in range(2)]
    for values, text in (((1, 1), ": 1, approved: 0"), ((1, 2), "")):
        now = [step(f"create:rank/a-{i}", {"x": value}) for i, value in enumerate(values)]
        assert differ(was, now) == [f"not as approved: rank/a-[0-1] x{text}"]


def test_a_digest_alone_approves_that_plan_and_no_other():
    plan, other = content(step("create:rank/a-0", {})), content(step("create:rank/b-0", {}))
    bare = PlanDigest(plan.digest, {})
    assert list(differences(bare, plan)) == list(differences(plan, bare)) == []
    told = "only the digest of the approved plan is known: compare its report with this plan"
    assert list(differences(bare, other)) == list(differences(other, bare)) == [told]
    both = content(step("create:rank/a-0", {}), step("create:rank/b-0", {}))
    assert list(differences(other, both, earlier=[bare])) == ["not approved: create rank/a-0"]
    assert list(differences(other, both, earlier=[bare, plan])) == []
    elsewhere = content(step("create:rank/a-0", {}), lineage="other")
    assert list(differences(other, both, earlier=[elsewhere])) == ["not approved: create rank/a-0"]
    assert list(differences(plan, elsewhere)) == [
        "not as approved: it is another state: other, approved: 3f1c"
    ]


def test_renames_and_refusals_have_to_be_approved():
    moves = [{"from": f"task/{a}", "to": f"task/{b}", "addresses": []} for a, b in ("ab", "cd")]
    gone = [{"task": "x"}, {"task": "y"}]
    done = content(step("create:rank/a-0", {}), moved=moves[:1], unplaced=gone[:1])
    more = content(step("create:rank/a-0", {}), moved=moves, unplaced=gone)
    told = ["not approved: rename task/c to task/d", "not approved: not placed: task/y"]
    assert list(differences(done, more)) == told
    assert list(differences(more, done)) == []


@pytest.mark.parametrize(
    ("approved", "planned", "recorded", "undone"),
    [
        ([step("create:volume/v", {})], [], "volume/v", False),
        ([step("create:volume/v", {})], [], "", True),
        ([step("delete:volume/v", None, {})], [], "", False),
        ([step("delete:volume/v", None, {})], [], "volume/v", True),
        # It was made anew already; or the old one is still to be deleted.
        ([step("delete:volume/v", None, {}), step("create:volume/v", {})], [], "volume/v", False),
        ([step("create:volume/v", {})], [step("delete:volume/v", None, {})], "volume/v", True),
        # The rank that held it has ended, which gave it back.
        ([step("create:reservation/a-0", {"rank": 0})], [], "rank/a-0", False),
        ([step("create:reservation/a-0", {"rank": 0})], [], "rank/a-1", True),
        ([step("create:attachment/v", {"rank": "a-0"})], [], "rank/a-0", False),
        ([step("create:attachment/v", {"rank": "a-0"})], [], "rank/v", True),
        ([step("create:attachment/v", None)], [], "attachment/v", False),
        ([step("create:attachment/v", None)], [], "", True),
        ([step("create:rank/a-0", {})], [], "rank/a-0", False),
        ([step("create:node/a-0", {})], [], "rank/a-0", True),
        ([step("create:node/a-0", {})], [], "rank/None", True),
    ],
)
def test_what_the_state_shows_to_be_done_is_not_missed(approved, planned, recorded, undone):
    found = differ(approved, planned, recorded)
    assert any(line.startswith("approved, and not done now: ") for line in found) == undone


# ------------------------------------------------------------------------------------------- fallbacks


def offer(kind: str, price: float | None) -> OfferInputs:
    shape = Shape(cpu=1, memory_mib=1)
    return OfferInputs(backend="sky", region="east", instance_type=kind, price=price, resources=shape)


@pytest.mark.parametrize(
    ("price", "now", "kept"),
    [
        (2.0, 2.0, True),
        (2.0, 1.0, True),
        (2.0, 2.1, False),
        (2.0, None, False),
        (None, 9.0, True),
        (None, None, True),
    ],
)
def test_fallbacks_are_used_as_they_were_approved(price, now, kept):
    """For the nodes that they were approved for, at no higher price; the planned offer is none."""
    other = {**node(), "backend": "sky", "region": "east", "instance_type": "own"}
    made = tuple(act(Op.CREATE, f"node/{name}", after=other) for name in ("a-0", "a-1"))

    def plan(*ways: tuple[OfferInputs, ...]) -> Any:
        spares = tuple(tuple(Spare(offer=one) for one in way) for way in ways)
        return plan_of(actions=made, fallbacks=(Fallback(kinds=(("a-0",), ("a-1",)), ways=spares),))

    def shown(names: list[str], kind: str, price: float | None) -> dict[str, Any]:
        place = {"backend": "sky", "region": "east", "zone": None, "instance_type": kind, "spot": False}
        return {"for": names, "offers": [{**place, "price": price}]}

    fallbacks = [shown(["node/a-0", "node/a-1"], "both", price), shown(["node/a-0"], "one", 2.0)]
    approved = content(fallbacks=fallbacks)
    both, own, one = offer("both", now), offer("own", 99.0), offer("one", 1.0)
    for way, approves in (
        ((both, both), kept),
        ((own, both), kept),
        ((own, own), True),
        ((one, own), True),
        ((own, one), False),
        ((one, both), kept),
        ((offer("x", 0.0), own), False),
    ):
        found = as_approved(plan(way), approved)
        assert [len(fallback.ways) for fallback in found.preview.fallbacks] == [int(approves)], way
    assert as_approved(plan((own, one)), PlanDigest(DIGEST, {})) == plan((own, one))


# --------------------------------------------------------------------------------------------- reading


def hidden(text: Any, digest: str = DIGEST) -> str:
    return f"<!-- {MARK} {json.dumps({'digest': digest, 'content': text})} -->"


def packed(data: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(data).encode())).decode()


def test_a_report_whose_content_is_damaged_is_known_by_its_digest_alone():
    approval = content(step("create:rank/a-0", {}))
    held: dict[str, Any] = {**(approval.content or {})}
    whole = packed(held)
    cut = base64.b64encode(base64.b64decode(whole)[:-1]).decode()
    assert read_approval(hidden(whole, approval.digest)) == approval
    known = PlanDigest(approval.digest, {})
    wrong: list[Any] = [cut, f"{whole[:4]}!{whole[4:]}", "ä", "AAAA", 3]
    odd: list[Any] = [3, [3], [[]], [{}], None]
    wrong += map(packed, odd)
    wrong += [packed({**held, "actions": actions}) for actions in odd]
    wrong += [packed({**held, "actions": [step("x:y/z", "text")]})]
    for text in wrong:
        assert read_approval(hidden(text, approval.digest)) == known, text
    assert read_approval(f'<!-- {MARK} {{"digest": "{DIGEST}"}} -->') == PlanDigest(DIGEST, {})


def test_the_report_of_a_plan_with_errors_or_without_a_digest_approves_nothing():
    approval = content(step("create:rank/a-0", {}))
    data = {"digest": approval.digest, **(approval.content or {})}
    for text in (json.dumps({**data, "result": "error"}), f"{approval.hidden()}\n{REFUSED}"):
        with pytest.raises(RefusedPlanError):
            read_approval(text)
    for digest in (None, 3, "sha256:0", "x" + approval.digest):
        with pytest.raises(ValueError, match="no digest"):
            read_approval(json.dumps({**data, "digest": digest}))
    for text in ("[]", "3", "null"):
        with pytest.raises(ValueError, match="no digest"):
            read_approval(text)
    assert read_approval(json.dumps({**data, "digest": DIGEST})) == PlanDigest(DIGEST, {})


@pytest.mark.parametrize("text", [REFUSED, hidden("x"), "fleetform"])
def test_what_a_plan_in_json_shows_is_no_approval(text):
    """A command may hold the marks of a report."""
    approval = content(step("create:rank/a-0", {"commands": [text]}))
    assert read_approval(json.dumps({"digest": approval.digest, **(approval.content or {})})) == approval


# --------------------------------------------------------------------------------------------- applying


def refused(plan: Plan, expect: PlanDigest | None) -> list[Any]:
    """What `apply --expect` says of a plan."""
    run = Run.__new__(Run)
    run.options = RunOptions(approved=expect)
    try:
        run._check_approved(plan, State())
    except InvalidError as failed:
        return list(failed.diagnostics)
    return []


def test_apply_does_what_was_approved_and_nothing_else():
    made = plan_of(lineage="3f1c", serial=1, actions=(act(Op.CREATE, "node/a-0", after=node()),))
    nothing = plan_of(lineage="3f1c", serial=1)
    assert (
        refused(made, None) == refused(made, approval_of(made)) == refused(nothing, approval_of(made)) == []
    )
    (found,) = refused(made, approval_of(nothing))
    assert (found.code, found.summary) == ("plan-differs", "not approved: create node/a-0")
    assert "let this plan be approved" in found.hint


@pytest.mark.parametrize("more", [0, 1, 9])
def test_the_first_differences_are_named_and_the_others_counted(more):
    count = MOST_DIFFERENCES + more
    was, now = ({**node(), "env": {f"A{i}": value for i in range(count)}, "tags": {}} for value in ("a", "b"))
    plans = [
        plan_of(lineage="3f1c", serial=1, actions=(act(Op.CREATE, "node/a-0", after=one),))
        for one in (was, now)
    ]
    found = refused(plans[1], approval_of(plans[0]))
    told = [f"{more} more differences"] if more else []
    assert [d.summary for d in found[MOST_DIFFERENCES:]] == told
    assert [bool(d.hint) for d in found] == [False] * (len(found) - 1) + [True]
    assert all("node/a-0 env.A" in d.summary for d in found[:MOST_DIFFERENCES])
