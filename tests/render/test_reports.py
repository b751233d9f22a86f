"""Plans as Markdown and HTML, their digest, and `apply --expect`."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import random
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.cli.plan import BEGINS, LEAST_CHARS, MAX_CHARS
from declarative.model.diagnostic import Diagnostic
from declarative.model.state import Address
from declarative.planner.approval import (
    PlanDigest,
    RefusedPlanError,
    approval_of,
    differences,
    read_approval,
)
from declarative.planner.inventory import Drift
from declarative.planner.plan import Op, Reason
from declarative.render.html import plan_html
from declarative.render.markdown import fenced, plan_markdown
from declarative.render.plan_document import plan_json
from tests.render.test_render import EVIL, PLANS, act, golden, node, preview, rank, reserved, unplaced_plan
from tests.support.cli import fleet, task, until, volume
from tests.support.planned import plan_of, with_parts

HOSTILE = (
    "@everyone",
    "#1",
    "octo/cat#1",
    "GH-1",
    "https://evil.example/",
    "www.evil.example",
    "[x](javascript:alert(1))",
    "![x](https://evil.example/x.png)",
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "</details></pre></code><h1>gone</h1>",
    "-->",
    "<!--",
    "```",
    "``````",
    "~~~",
    "`x`",
    "|",
    "| a | b |",
    "$`x`$",
    "$$x$$",
    ":tada:",
    "**Nothing is destroyed or replaced.**",
    "&lt;b&gt;&amp;",
    "a" * 40,
    "deadbeef" * 5,
    "/close",
    "/approve",
    "::error::x",
    "##vso[task.x]",
    "##[error]x",
    "\\",
    "{{ 7 * 7 }}",
    "{% raw %}",
    "]]>",
    '" onmouseover="alert(1)',
    "'><svg/onload=alert(1)>",
    "javascript:alert(1)",
    "\u202egnp",
    EVIL,
)
"""Texts that mean something to a forge, a browser, a template or a CI agent."""


def hostile_plan(texts):
    """A plan that says these texts wherever a stranger can say something."""
    actions = [
        act(
            Op.CREATE,
            f"rank/t{i}-0",
            after=rank(0, f"t{i}", commands=[text, f"a\n{text}\n"], env={text: text}),
        )
        for i, text in enumerate(texts)
    ]
    actions += [
        act(
            Op.DELETE,
            f"node/n-{i}",
            Reason.UNFIT,
            because=(text,),
            before=node(instance_type=text, region=text),
        )
        for i, text in enumerate(texts)
    ]
    gone = act(Op.DELETE, "volume/v", Reason.REMOVED, before={"size": "1GB"})
    actions += [replace(gone, address=Address("volume", text)) for text in texts]
    return plan_of(
        lineage="3f1c",
        serial=1,
        actions=tuple(actions),
        reservations=tuple(reserved(i, region=text, instance_type=text) for i, text in enumerate(texts)),
        drift=tuple(Drift(address=f"node/{text}", change="orphan", detail=text) for text in texts),
        nodes=tuple(preview(i, holders={0: f"rank/{text}"}) for i, text in enumerate(texts)),
        diagnostics=tuple(Diagnostic(code="x", summary=text, hint=text, address=text) for text in texts),
    )


def expanded(text):
    """The names of a host list; the numbers of its first list apply to those written `same`."""
    found = re.search(r"\[([0-9,-]+)\]", text)
    if not found:
        yield text
        return
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            width = len(first) if first[0] == "0" else 0
            rest = text[found.end() :].replace("[same]", f"{number:0{width}}", 1)
            yield from expanded(f"{text[: found.start()]}{number:0{width}}{rest}")


def destroyed_in(text):
    """The addresses that the first block of a report names."""
    block = re.search(r"#### Destroyed or replaced.*?\n\n(`{3,})diff\n(.*?)\n\1\n", text, re.DOTALL)
    found = set()
    for line in block[2].split("\n") if block else ():
        names = re.sub(r"^-(/\+)? ", "", line.partition("  #")[0])
        kind = re.match(r"(\w+): (.*)", names)
        each = [f"{kind[1]}/{name}" for name in kind[2].split(" ")] if kind else names.split(", ")
        found |= {name for item in each for name in expanded(item)}
    return found


def random_plan(rng, count):
    """Deletes, replacements, updates and creates, with names that count and names that do not."""
    actions = []
    for i in range(count):
        kind = rng.choice(("node", "volume"))
        word = "".join(rng.choices("abcdefghij", k=rng.choice((2, 2, 2, 5))))
        name = f"{rng.choice(('data', 'gpu', 'logs'))}-{i}" if rng.random() < 0.9 else f"{word}-{i % 7}-x{i}"
        inputs = node(region=rng.choice("ab")) if kind == "node" else {"size": f"{rng.randrange(9)}GB"}
        change = rng.choice(("delete", "replace", "create", "update"))
        if change in {"delete", "replace"}:
            reason = rng.choice((Reason.REMOVED, Reason.SURPLUS))
            actions.append(act(Op.DELETE, f"{kind}/{name}", reason, before=inputs))
        if change in {"create", "replace"}:
            actions.append(act(Op.CREATE, f"{kind}/{name}", after=inputs))
        if change == "update":
            after = {**inputs, "tags": {"n": str(i)}}
            actions.append(act(Op.UPDATE, f"{kind}/{name}", Reason.CHANGED, before=inputs, after=after))
    nodes = tuple(preview(i, name=f"gpu-{i}", fleet=f"f{i % 5}") for i in range(count))
    ranks = tuple(reserved(i, task=f"job-{i % 9}x") for i in range(count))
    return plan_of(lineage="3f1c", serial=1, actions=tuple(actions), nodes=nodes, reservations=ranks)


# ------------------------------------------------------------------------------------------- Markdown


@pytest.mark.parametrize("name", PLANS)
def test_markdown(name):
    text = plan_markdown(PLANS[name], MAX_CHARS)
    # What is packed depends on the machine's zlib.
    golden(f"plan-{name}.md", re.sub(r'(fleetform-approval: .*"content":")[^"]+', r"\1…", text))
    assert text.startswith(BEGINS["markdown"])


def test_markdown_always_fits_and_names_what_is_destroyed():
    # Another 1,000 of up to 10,000 objects: FLEETFORM_REPORTS=1000.
    rng = random.Random(19)
    for _ in range(int(os.environ.get("FLEETFORM_REPORTS", "12"))):
        plan = random_plan(rng, rng.choice((0, 10, 100, 1000, rng.randrange(10_000))))
        text = plan_markdown(plan, MAX_CHARS)
        assert len(text) <= MAX_CHARS
        assert destroyed_in(text) == {str(a.address) for a in plan.actions if a.op is Op.DELETE}
        assert text == plan_markdown(plan, MAX_CHARS)


@pytest.mark.parametrize("most", [LEAST_CHARS, 6_000, 20_000])
def test_a_short_report_folds_and_cuts_nothing(most):
    for plan in (*PLANS.values(), unplaced_plan(), random_plan(random.Random(1), 60)):
        text = plan_markdown(plan, most)
        assert len(text) <= most
        assert text.count("```") % 2 == 0
        assert text.count("<details>") == text.count("</details>")
        gone = {str(a.address) for a in plan.actions if a.op is Op.DELETE}
        assert destroyed_in(text) == gone or "Do not approve" in text


def test_names_that_do_not_fit_are_counted_and_said_to_be_missing():
    letters = random.Random(2)
    names = ["".join(letters.choices("abcdefghijklmnop", k=30)) for _ in range(5_000)]
    deletes = tuple(act(Op.DELETE, f"volume/{n}", Reason.REMOVED, before={"size": "1GB"}) for n in names)
    text = plan_markdown(plan_of(lineage="3f1c", serial=1, actions=deletes), MAX_CHARS)
    assert len(text) <= MAX_CHARS
    [missing] = map(int, re.findall(r"\*\*(\d+) more are destroyed or replaced and not named here", text))
    assert missing + len(destroyed_in(text)) == 5_000
    assert "Do not approve this plan by this report" in text


def test_no_text_ends_its_block():
    text = fenced(["```", "a", "````"])
    assert text.split("\n") == ["`````text", "```", "a", "````", "`````", ""]


class Seen(HTMLParser):
    """The tags of a page, and its text outside of code."""

    def __init__(self):
        super().__init__()
        self.tags, self.text, self.code = [], "", 0
        self.attributes = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.code += tag in {"pre", "code"}

    def handle_endtag(self, tag):
        self.code -= tag in {"pre", "code"}

    def handle_data(self, data):
        if not self.code:
            self.text += data


@pytest.mark.skipif(not shutil.which("cmark-gfm"), reason="cmark-gfm, GitHub's renderer, is not installed")
@pytest.mark.parametrize("most", [MAX_CHARS * 8, MAX_CHARS, LEAST_CHARS])
def test_nothing_hostile_becomes_markdown(most):
    """GitHub's renderer finds no link, image, mention or HTML: each text is in a block of code, or folded."""
    texts = [f"{a}{b}" for a in HOSTILE for b in ("", " x", "\n\n# x", "`")][:200]
    plan = hostile_plan(texts)
    command = ["cmark-gfm", "--unsafe", *["-e", "table", "-e", "autolink", "-e", "strikethrough"]]
    report = plan_markdown(plan, most)
    page = subprocess.run(command, input=report.encode(), capture_output=True, check=True).stdout.decode()
    seen = Seen()
    seen.feed(page)
    allowed = {"h3", "h4", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"}
    assert set(seen.tags) <= allowed | {"pre", "code"}
    assert {name for name, _ in seen.attributes} <= {"align", "class", "lang"}
    assert not re.search(r"@\w|#\d|https?:|GH-|\$\$|:tada:|\|", seen.text)
    assert "Destroyed or replaced" in seen.text
    comments = re.findall(r"<!--(.*?)-->", page, re.DOTALL)
    assert all(re.fullmatch(r" fleetform[ -][^<>@#`]*", comment) for comment in comments)


# ----------------------------------------------------------------------------------------------- HTML


@pytest.mark.parametrize("name", PLANS)
def test_html(name):
    page = plan_html(PLANS[name])
    assert page == plan_html(PLANS[name])
    assert page.startswith(BEGINS["html"])
    [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html.unescape(page)
    assert not re.search(r"https?://|src=|@import|url\(", page)
    plan = PLANS[name]
    for action in plan.actions:
        text = html.unescape(page)
        assert any(
            str(action.address) in set(expanded(found)) for found in re.findall(r"[a-z]+/[^\s,<\"]+", text)
        )


def test_nothing_hostile_becomes_html():
    plain, evil = (hostile_plan(texts) for texts in ([f"x{i}" for i in range(len(HOSTILE))], HOSTILE))
    pages = []
    for plan in (plain, evil):
        seen = Seen()
        seen.feed(plan_html(plan))
        pages.append((sorted(set(seen.tags)), sorted({name for name, _ in seen.attributes})))
    assert pages[0] == pages[1]
    assert "\u202e" not in plan_html(evil)
    assert "\x1b" not in plan_html(evil)


def test_a_page_of_300_nodes_is_small():
    nodes = tuple(preview(i, total=8, holders=dict.fromkeys(range(8), f"rank/train-{i}")) for i in range(300))
    actions = tuple(act(Op.CREATE, f"node/pair-{i}", after=node()) for i in range(300))
    ranks = tuple(reserved(i) for i in range(300))
    page = plan_html(plan_of(lineage=None, serial=0, actions=actions, nodes=nodes, reservations=ranks))
    assert len(page) < 1_000_000
    assert page.count("<tr>") == 301


# --------------------------------------------------------------------------------------------- digest


def test_the_digest_is_of_what_is_done():
    plan = PLANS["replace"]
    approved = approval_of(plan)
    later = with_parts(plan, serial=99, observed_at=5.0)
    words = tuple(replace(a, reason=Reason.DRIFT, because=("x",)) for a in plan.actions)
    assert approval_of(later) == approval_of(replace(plan, actions=words)) == approved
    assert list(differences(approved, approval_of(later))) == []
    elsewhere = approval_of(with_parts(plan, lineage="other"))
    assert list(differences(approved, elsewhere)) == [
        "not as approved: it is another state: other, approved: 3f1c"
    ]


@pytest.mark.parametrize("name", PLANS)
@given(data=st.data())
def test_what_is_left_of_a_plan_is_approved_with_it(name, data):
    """Whatever part of it was done, the rest goes through; nothing is left out that is not done, and nothing
    comes in.
    """
    plan = PLANS[name]
    approved = read_approval(plan_markdown(plan, MAX_CHARS))
    deletes = {str(a.address) for a in plan.actions if a.op is Op.DELETE}
    creates = {str(a.address) for a in plan.actions if a.op is Op.CREATE}
    # In order, as an apply does them.
    count = data.draw(st.integers(0, len(plan.actions)))
    done, rest = plan.actions[:count], plan.actions[count:]
    recorded = deletes | {str(a.address) for a in plan.actions if a.op is Op.UPDATE}
    for action in done:
        (recorded.discard if action.op is Op.DELETE else recorded.add)(str(action.address))
    left = approval_of(replace(plan, actions=rest))
    assert list(differences(approved, left, recorded)) == []

    if rest:
        missing = data.draw(st.sampled_from([a for a in rest if a.op is not Op.UPDATE] or rest))
        fewer = approval_of(replace(plan, actions=tuple(a for a in rest if a is not missing)))
        if missing.op is not Op.UPDATE and not (missing.op is Op.DELETE and str(missing.address) in creates):
            [line] = differences(approved, fewer, recorded)
            assert line.startswith(f"approved, and not done now: {missing.op.value} ")
    more = act(Op.DELETE, "volume/prod", Reason.REMOVED, before={"size": "1GB"})
    [line] = differences(approved, approval_of(replace(plan, actions=(*rest, more))), recorded)
    assert line == "not approved: delete volume/prod"


def test_what_is_left_of_the_first_plan_of_all_is_approved_too():
    """It was made before the state had a lineage; another state is not meant."""
    plan = PLANS["create"]
    assert plan.basis.lineage is None
    [first, *rest] = plan.actions
    left = with_parts(replace(plan, actions=tuple(rest)), lineage="3f1c")
    assert list(differences(approval_of(plan), approval_of(left), {str(first.address)})) == []


def changed(name, **fields):
    """The plan `create` with other inputs of one thing."""
    plan = PLANS["create"]
    actions = [
        replace(a, after=replace(a.after, **fields)) if str(a.address) == name else a for a in plan.actions
    ]
    assert actions != [*plan.actions]
    return replace(plan, actions=tuple(actions))


@pytest.mark.parametrize(
    ("name", "fields", "line"),
    [
        ("node/pair-0", {"blocks": 4}, "node/pair-0 blocks: 4, approved: 2"),
        ("node/pair-0", {"price": 1.24}, "node/pair-0 price: 1.24, approved: 1.23"),
        ("node/pair-0", {"price": None}, "node/pair-0 price: none, approved: 1.23"),
        ("node/pair-1", {"env": {"A": "x"}}, "node/pair-1 env.A: x, approved: "),
        ("rank/train-1", {"commands": ("a", "b")}, "rank/train-1 command line 1: a, approved: "),
        ("rank/train-0", {"env": {}}, "rank/train-0 env.NCCL_DEBUG: none, approved: INFO"),
    ],
)
def test_a_difference_names_the_value(name, fields, line):
    found = list(differences(approval_of(PLANS["create"]), approval_of(changed(name, **fields))))
    assert any(one.startswith(f"not as approved: {line}") for one in found), found


def test_a_lower_price_was_approved():
    assert not [*differences(approval_of(PLANS["create"]), approval_of(changed("node/pair-0", price=1.0)))]


@given(
    was=st.lists(st.sampled_from(["a", "b", "c\nd"]), min_size=1, max_size=6),
    now=st.lists(st.sampled_from(["a", "b", "c\nd", "e"]), min_size=1, max_size=6),
)
def test_no_change_of_commands_is_overlooked(was, now):
    plans = [changed("rank/train-0", commands=tuple(commands)) for commands in (was, now)]
    found = list(differences(approval_of(plans[0]), approval_of(plans[1])))
    assert bool(found) == (was != now)
    lines = "\n".join(now).split("\n")
    for text in found:
        number = re.match(r"not as approved: rank/train-0 command line (\d+): (.*), approved: (.*)", text)
        if number and number[2] != "none":
            assert lines[int(number[1]) - 1] == number[2]


def test_one_change_of_many_alike_is_one_line():
    def ranks(*extra):
        actions = (
            act(
                Op.CREATE, f"rank/job-{i:03}-0", after={"task": f"job-{i:03}", "commands": [f"x {i}", *extra]}
            )
            for i in range(500)
        )
        return plan_of(lineage="3f1c", serial=1, actions=tuple(actions))

    one = ranks()
    evil = replace(one.actions[3], after=replace(one.actions[3].after, commands=("x 3", "evil")))
    now = replace(one, actions=(*one.actions[:3], evil, *one.actions[4:]))
    assert list(differences(approval_of(one), approval_of(now))) == [
        "not as approved: rank/job-003-0 command line 2: evil, approved: none"
    ]
    assert list(differences(approval_of(one), approval_of(ranks("evil")))) == [
        "not as approved: rank/job-[000-099]-0, rank/job-[100-499]-0 command line 2: evil, approved: none"
    ]


def test_a_report_without_room_for_the_values_says_so():
    actions = tuple(
        act(Op.CREATE, f"rank/job-{i}-0", after={"task": f"job-{i}", "commands": [f"x {i} {'y' * 99}"]})
        for i in range(500)
    )
    plan = plan_of(lineage="3f1c", serial=1, actions=actions)
    report = plan_markdown(plan, 40_000)
    assert "x 499 y" not in report
    assert (
        "**The values of 500 actions are not shown here, among them the commands of 500 ranks: "
        "a report of 40,000 characters has no room for them.**"
    ) in report
    # They are a part of what the digest covers, and what differs is still named.
    evil = replace(actions[3], after=replace(actions[3].after, commands=("evil",)))
    now = approval_of(replace(plan, actions=(*actions[:3], evil, *actions[4:])))
    [line] = differences(read_approval(report), now)
    assert line.startswith("not as approved: rank/job-3-0 command line 1: evil, approved: x 3 yyy")
    assert "are not shown here" not in plan_markdown(plan, 400_000)


def test_what_is_left_of_earlier_plans_is_approved_too():
    """And only that: what neither plan has is refused, and of one thing the newest plan counts."""
    names = ("a", "b", "c")
    parts = {n: act(Op.CREATE, f"volume/{n}", after={"size": "1GB"}) for n in names}
    first, second = (approval_of(plan_of(lineage="3f1c", serial=1, actions=(parts[n],))) for n in "ab")
    both = approval_of(plan_of(lineage="3f1c", serial=2, actions=(parts["a"], parts["b"])))
    assert list(differences(second, both)) == ["not approved: create volume/a"]
    assert list(differences(second, both, earlier=[first])) == []
    every = approval_of(plan_of(lineage="3f1c", serial=2, actions=tuple(parts.values())))
    assert list(differences(second, every, earlier=[first])) == ["not approved: create volume/c"]
    elsewhere = approval_of(plan_of(lineage="other", serial=1, actions=(parts["a"],)))
    assert list(differences(second, both, earlier=[elsewhere])) == ["not approved: create volume/a"]


def test_what_a_report_shows_is_no_approval():
    """A command may hold the text of another plan's approval."""
    evil = approval_of(PLANS["replace"]).hidden()
    shown = act(Op.CREATE, "rank/x-0", after={"task": "x", "commands": [f"a\n{evil}\n"]})
    plan = plan_of(lineage="3f1c", serial=1, actions=(shown,))
    report = plan_markdown(plan, MAX_CHARS)
    assert evil in report
    assert read_approval(report) == approval_of(plan)


def test_content_that_the_digest_does_not_cover_is_not_used():
    """Somebody who edits only what is hidden in a comment approves nothing by it."""
    one, other = approval_of(PLANS["create"]), approval_of(PLANS["replace"])
    mixed = PlanDigest(one.digest, other.parts, other.content)
    assert read_approval(mixed.hidden()) == PlanDigest(one.digest, {})
    data = plan_json(PLANS["create"])
    data["actions"].pop()
    assert read_approval(json.dumps(data)) == PlanDigest(one.digest, {})
    assert read_approval(json.dumps(plan_json(PLANS["create"]))) == one


def test_differences_are_named():
    more = act(Op.DELETE, "volume/prod", Reason.REMOVED, before={"size": "1GB"})
    actions = (*changed("node/pair-0", blocks=4).actions, more)
    now = approval_of(replace(PLANS["create"], actions=tuple(a for a in actions if a.address.kind != "rank")))
    assert list(differences(approval_of(PLANS["create"]), now)) == [
        "not approved: delete volume/prod",
        "not as approved: node/pair-0 blocks: 4, approved: 2",
        "approved, and not done now: create rank/train-[0-1]",
    ]


@pytest.mark.parametrize("render", [lambda p: plan_markdown(p, MAX_CHARS), plan_html])
def test_a_report_holds_its_approval(render):
    for plan in (*PLANS.values(), hostile_plan(HOSTILE)):
        if plan.result != "error":
            assert read_approval(render(plan)).digest == approval_of(plan).digest
    assert read_approval(render(PLANS["many"])) == approval_of(PLANS["many"])


@pytest.mark.parametrize("code", ["over-limit", "bad-value"])
@pytest.mark.parametrize(
    "render", [lambda p: plan_markdown(p, MAX_CHARS), plan_html, lambda p: json.dumps(plan_json(p))]
)
def test_the_report_of_a_refused_plan_holds_no_approval(render, code):
    """Not even one that a text in it looks like."""
    evil = approval_of(PLANS["create"]).hidden()
    finding = Diagnostic(code=code, summary="too much", hint=evil)
    report = render(replace(PLANS["create"], diagnostics=(finding,)))
    assert "Digest" not in report
    with pytest.raises(RefusedPlanError):
        read_approval(report)


def test_the_digest_of_no_state_is_empty():
    new = plan_json(plan_of(lineage=None))
    assert new["parts"] == [{"step": "state", "digest": ""}]
    assert plan_json(plan_of(lineage="ab"))["parts"] == [{"step": "state", "digest": "ab"}]
    # As in earlier versions.
    assert new["digest"] == "sha256:d9885ea58dbd385d14a08c391a8256e4479b83a6b9620ac66900f4e53df6021e"


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"digest": 1}', '{"digest": "sha256:1"}'])
def test_what_is_no_report_is_no_approval(text):
    with pytest.raises(ValueError):  # noqa: PT011
        read_approval(text)


# ---------------------------------------------------------------------------------------- the command


@pytest.fixture
def volumes(project):
    """A project of a fleet and a volume, none of them made."""
    project.declare(fleet(resources={"cpu": 1}), volume(prevent_destroy=False))
    return project


def test_formats_and_files(volumes):
    printed = volumes.run(
        "plan", "--format", "markdown", "--report", "plan.html", "--report", "plan.json"
    ).out
    assert printed.startswith("<!-- fleetform plan -->\n### fleetform, `project`: 2 to create\n")
    assert (volumes.path / "plan.html").read_text().startswith("<!DOCTYPE html>")
    data = json.loads((volumes.path / "plan.json").read_text())
    assert data == volumes.run("plan", "--json").json == volumes.run("plan", "--format", "json").json
    assert data["digest"] in printed
    volumes.run("plan", "--out", "next.plan", "--report", "plan.html", "--report", "plan.txt")
    shown = volumes.run("show", "next.plan", "--format", "markdown", "--report", "plan.md").out
    assert shown == (volumes.path / "plan.md").read_text()
    assert data["digest"] in shown
    assert "Plan: 2 to create" in (volumes.path / "plan.txt").read_text()


def test_files_of_others_are_left_alone(volumes):
    (volumes.path / "README.md").write_text("# ours\n")
    (volumes.path / "link.md").symlink_to("README.md")
    for name in ("README.md", "link.md"):
        found = volumes.run("plan", "--report", name, code=1)
        assert "not-overwritten" in found.err
    assert (volumes.path / "README.md").read_text() == "# ours\n"
    assert "does not tell its format" in volumes.run("plan", "--report", "plan.yaml", code=1).err
    assert "two formats" in volumes.run("plan", "--json", "--format", "html", code=1).out
    assert "is not a directory" in volumes.run("plan", "--report", "no/plan.md", code=1).err


def test_errors_are_reported_too(volumes):
    (volumes.path / "bad.yaml").write_text("type: fleet\nname: x\nnodes: many\n")
    found = volumes.run("plan", "--report", "plan.md", code=1)
    assert "bad.yaml" in found.err
    report = (volumes.path / "plan.md").read_text()
    assert "### fleetform, `project`: the plan has errors" in report
    assert "bad.yaml:3" in report


def test_a_project_with_errors_has_its_name(volumes):
    """If that can be read, whatever else is wrong."""
    broken = (
        "type: project\nname: ours\nvariables: {size: 1GB}\nmode: 1\n---\ntype: fleet\nname: x\nnodes: many\n"
    )
    for text, name in ((broken, "ours"), (broken.replace("ours", "'${{ var.size }} x'"), "project")):
        (volumes.path / "bad.yaml").write_text(text)
        volumes.run("plan", "--report", "plan.md", "--report", "plan.html", code=1)
        assert volumes.run("plan", "--json", code=1).json["project"] == name
        assert f"### fleetform, `{name}`: the plan has errors" in (volumes.path / "plan.md").read_text()
        assert f"<title>fleetform, {name}: " in (volumes.path / "plan.html").read_text()


def test_a_refused_plan_is_approved_by_nothing(volumes):
    files = ("plan.md", "plan.html", "plan.json")
    good = [fleet(resources={"cpu": 1}), volume(prevent_destroy=False)]
    refusals = (
        [fleet(nodes=9, resources={"cpu": 1}), {"type": "project", "limits": {"nodes": 1}}],
        [fleet(nodes="many")],
    )
    for documents in refusals:
        volumes.declare(*documents)
        volumes.run("plan", *(word for name in files for word in ("--report", name)), code=1)
        volumes.declare(*good)
        for name in files:
            refused = volumes.run("apply", "--expect", name, code=1).err
            assert f"the plan in `{name}` was refused: its report approves nothing" in refused
    assert volumes.run("state", "list").out == ""
    volumes.run("plan", "--report", "next.md")
    # Merged before, it stops no later one.
    volumes.run("apply", "--expect", "next.md", "--earlier", "plan.md")


def test_what_names_no_report_is_named(volumes):
    missing = volumes.run("apply", "--expect", "nofile.md", code=1).err
    assert "error[not-a-report]: there is no file `nofile.md`, and it is no digest either" in missing


def test_what_was_approved_is_applied_and_nothing_else(volumes):
    volumes.run("plan", "--report", "plan.md", "--report", "plan.json")
    digest = json.loads((volumes.path / "plan.json").read_text())["digest"]
    volumes.declare(fleet(resources={"cpu": 1}), volume(prevent_destroy=False), volume("more"))
    refused = volumes.run("apply", "--expect", "plan.md", code=1)
    assert "error[plan-differs]: not approved: create volume/more" in refused.err
    refused = volumes.run("apply", "--expect", digest, code=1)
    assert "only the digest of the approved plan is known" in refused.err
    assert volumes.run("state", "list").out == ""
    volumes.declare(fleet(resources={"cpu": 1}), volume(prevent_destroy=False))
    assert "Apply complete: 2 created." in volumes.run("apply", "--expect", digest).out
    # The job may run again: nothing is left to do.
    assert "No changes" in volumes.run("apply", "--expect", "plan.json").out


@pytest.mark.parametrize("report", ["plan.md", "plan.json", "plan.html"])
def test_a_half_done_apply_is_finished_by_what_was_approved(project, report):
    """The first of all too, which began without a state."""
    project.declare(fleet("rack", nodes=2, resources={"cpu": 2}), volume("data"), volume("zbad"))
    project.run("plan", "--report", report)
    folder = project.path / ".fleetform/local/volumes"
    folder.mkdir(parents=True)
    (folder / "zbad").touch()  # in the way
    project.run("apply", "--expect", report, code=4)
    (folder / "zbad").unlink()
    project.declare(fleet("rack", nodes=2, resources={"cpu": 2}), volume("data"), volume("zbad", size="2GB"))
    refused = project.run("apply", "--expect", report, code=1).err
    assert "error[plan-differs]: not as approved: volume/zbad size: 2GB, approved: " in refused
    assert refused.count("plan-differs") == 1
    project.declare(fleet("rack", nodes=2, resources={"cpu": 2}), volume("data"), volume("zbad"))
    assert "Apply complete: 1 created." in project.run("apply", "--expect", report).out
    project.no_changes()


def test_no_report_is_told(volumes):
    assert "not-a-report" in volumes.run("apply", "--expect", "nothing.md", code=1).err
    assert "not-a-report" in volumes.run("apply", "--expect", "main.yaml", code=1).err
    volumes.run("plan", "--out", "next.plan")
    assert (
        "has no effect on a saved plan"
        in volumes.run("apply", "next.plan", "--expect", f"sha256:{'0' * 64}", code=1).err
    )


@pytest.mark.slow
def test_a_retry_is_applied_as_approved(project):
    """However much later: its digest holds no time."""
    project.declare(fleet(), task("job", "exit 3", retry={"on_events": ["error"], "duration": "1h"}))
    project.apply()
    until(lambda: project.ranks("job")[0]["state"] == "failed")
    project.run("plan", "--report", "plan.json")
    assert "rank/job-0: started" in project.run("apply", "--expect", "plan.json").err


def test_a_task_without_a_place_is_part_of_what_is_approved(volumes):
    lost = task("lost", "true", resources={"cpu": "999.."})
    volumes.declare(fleet(resources={"cpu": 1}), lost)
    volumes.run("plan", "--report", "plan.json", code=3)
    volumes.declare(fleet(resources={"cpu": 1}), task("other", "true", resources={"cpu": "999.."}))
    refused = volumes.run("apply", "--allow-unplaced", "--expect", "plan.json", code=1)
    assert "not approved: not placed: task/other" in refused.err


@pytest.mark.parametrize("given", [["--json"], ["--format", "json"], ["--format=json"]])
def test_what_is_wrong_is_json_however_that_is_asked_for(project, given):
    """A mistake in the command line, a project with errors, and a file that is not a saved plan."""
    project.declare({"type": "fleet", "name": "gpu", "nods": 1})
    for args, code in (
        (["plan", "--nothing"], "usage"),
        (["plan"], "unknown-field"),
        (["drift", "--max-chars", "few"], "usage"),
        (["show", "main.yaml"], "not-a-plan"),
    ):
        done = project.run(*args, *given, code=1)
        assert done.err == ""
        assert done.json["result"] == "error"
        assert code in [d["code"] for d in done.json["diagnostics"]]
