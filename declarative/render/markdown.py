"""A plan as Markdown for a comment on a pull request: valid on GitHub and GitLab, and of limited length.

Addresses that are destroyed or replaced are never left out. What does not fit is shortened: similar things
are grouped, groups are counted. Text from outside stands in fenced blocks, where nothing can be a link, a
mention, HTML or a fence.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from declarative.model.record import struct
from declarative.model.spec.project import HOURS_A_MONTH
from declarative.model.text import clean, host_lists
from declarative.planner.approval import REFUSED, approval_of
from declarative.planner.plan import NodePreview, Op, Plan
from declarative.render.actions import (
    SYMBOLS,
    ActionEntry,
    adoption_text,
    differing_text,
    entries_of,
    group_lines,
    grouped,
)
from declarative.render.diagnostics import count_text
from declarative.render.plan import (
    BY_HAND,
    at_most_text,
    block_lines,
    blocks_in_use,
    cost_line,
    headline,
    origin_text,
    plan_title,
    rank_lines,
    report_parts,
    together_alike,
    unplaced_lines,
)
from declarative.render.text import PLAIN, money, plural, titled

HEAD = "<!-- fleetform plan -->"
"""The first line of a report. Comments and files that begin with it are ours."""
GONE = ("delete", "replace")
_BACKTICKS = re.compile("`+")
NOT_NAMED = (
    "**{count} more are destroyed or replaced and not named here, since there is no room. Do not approve "
    "this plan by this report:** look at `fleetform plan`."
)


NOT_SHOWN = (
    "\n**The values of {actions} are not shown here{commands}: a report of {limit:,} characters has no room "
    "for them.** {then}\n"
)
COVERED = "The digest covers them all the same. Look at `fleetform plan` before you approve this."
ACTIONS = "All actions"
MOST_ORIGIN = 500
"""Characters of where a plan comes from: a report has to have room for more."""


@struct(frozen=True, slots=True)
class Section:
    """A part of a report. `bodies` are versions of the same text, each shorter than the one before."""

    title: str
    bodies: tuple[Sequence[str], ...]
    language: str = "text"
    open: bool = False

    def text(self, level: int) -> str:
        """The section, folded below its title unless it is `open`; empty without content."""
        block = fenced(self.bodies[level], self.language)
        if not block:
            return ""
        if self.open:
            return f"\n#### {self.title}\n\n{block}"
        return f"\n<details><summary>{self.title}</summary>\n\n{block}\n</details>\n"


def fenced(lines: Iterable[str], language: str = "text") -> str:
    """A block whose fence is longer than any fence in it."""
    body = "\n".join(clean(line) for line in lines).strip("\n")
    if not body:
        return ""
    longest = max((len(ticks) for ticks in _BACKTICKS.findall(body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{body}\n{fence}\n"


def plan_markdown(plan: Plan, max_chars: int) -> str:
    """The report in at most `max_chars` characters. Its frame and all counts take up to 4,000."""
    entries = entries_of(plan)
    project = f", {_code(plan.origin.project)}" if plan.origin.project else ""
    title = (
        f"{'refused: ' if plan.refused else ''}{plan_title(plan)}" if plan.shown else "the plan has errors"
    )
    head = "\n".join([HEAD, f"### fleetform{project}: {title}", "", *_summary(plan)]) + "\n"
    if plan.result == "error":
        foot = f"\n{REFUSED}\n"
    else:
        approval = approval_of(plan)
        foot = f"\nDigest: `{approval.digest}`\n\n{approval.hidden(max_chars // 2)}\n"
    sections = _sections(plan, entries)
    actions = next(section for section in sections if section.title == ACTIONS)
    for notice in ("", _not_shown(plan, max_chars)):
        room = max_chars - len(head) - len(notice) - len(foot)
        least = sum(len(section.text(-1)) for section in sections)
        gone = _destroyed(entries, room - least)
        text = _fitted(sections, room - len(gone))
        if actions.text(0) in text:
            break
    return head + notice + gone + text + foot


def _not_shown(plan: Plan, max_chars: int) -> str:
    """What a report says that has no room for the values of its actions."""
    ranks = len([a for a in plan.actions if a.op is not Op.DELETE and a.address.kind == "rank"])
    commands = f", among them the commands of {plural(ranks, 'rank')}" if ranks else ""
    then = "`fleetform plan` shows them." if plan.result == "error" else COVERED
    actions = plural(len(plan.actions), "action")
    return NOT_SHOWN.format(actions=actions, commands=commands, limit=max_chars, then=then)


def _code(text: str) -> str:
    """Text from outside within a line: nothing in it has a meaning there."""
    shown = clean(text).replace("`", "'")
    return f"`{shown[:MOST_ORIGIN]}`"


def _summary(plan: Plan) -> list[str]:
    """The project and its state, the cost, and warnings that must not be overlooked."""
    origin = [_code(text), ""] if (text := origin_text(plan.origin)) else []
    errors = [d for d in plan.diagnostics if d.severity.value == "error"]
    refusal = [f"**The plan cannot be applied: {count_text(errors)}.**"] if errors else []
    if not plan.shown:
        return [*origin, *refusal]
    lines = [*origin, *refusal, *([""] if refusal else [])]
    cost = plan.preview.cost
    if cost.before or cost.after or None in (cost.before, cost.after):
        lines += ["| | before | after | change |", "|---|--:|--:|--:|"]
        for name, hours in (("an hour", 1), ("a month", HOURS_A_MONTH)):
            amounts = ["unknown" if p is None else _amount(p, hours) for p in (cost.before, cost.after)]
            amounts.append("unknown")
            if cost.before is not None and cost.after is not None:
                change = (cost.after - cost.before) * hours
                amounts[-1] = f"{'+' if change > 0 else '' if change else '±'}{change:,.2f}"
            lines.append(f"| USD {name} | {' | '.join(amounts)} |")
        lines.append("")
    lines.append(cost_line(cost) + at_most_text(plan))
    if text := differing_text(plan):
        lines += ["", f"{text}."]
    if text := adoption_text(plan):
        lines += ["", text]
    if plan.stops:
        lines += ["", f"**{plural(plan.stops, 'rank')} that run now are stopped by what is declared now.**"]
    if plan.restarts:
        lines += ["", f"**{plural(plan.restarts, 'rank')} that run now are stopped and started again.**"]
    if plan.basis.offline:
        lines += ["", "Planned offline, from what is recorded."]
    return lines


def _amount(price: float, hours: int) -> str:
    return f"{price * hours:,.2f}" if hours > 1 else money(price)


def _fitted(sections: Sequence[Section], room: int) -> str:
    """Each section in the longest version that fits; earlier sections take room first."""
    levels = [len(section.bodies) - 1 for section in sections]
    texts = [section.text(level) for section, level in zip(sections, levels, strict=True)]
    for at, section in enumerate(sections):
        free = room - sum(map(len, texts)) + len(texts[at])
        fitting = (text for level in range(levels[at]) if len(text := section.text(level)) <= free)
        texts[at] = next(fitting, texts[at])
    return "".join(texts)


# ----------------------------------------------------------------------------- destroyed and replaced


def _destroyed(entries: Sequence[ActionEntry], room: int) -> str:
    """All addresses that are destroyed or replaced. The reasons are left out if there is no room."""
    gone = [entry for entry in entries if entry.change in GONE]
    if not gone:
        return "\nNothing is destroyed or replaced.\n" if entries else ""
    title = f"Destroyed or replaced: {len(gone)}"
    by_reason: dict[tuple[str, str, str], list[str]] = {}
    by_kind: dict[tuple[str, str], list[str]] = {}
    for entry in gone:
        symbol, kind = SYMBOLS[entry.change][0], entry.address.kind
        by_reason.setdefault((symbol, kind, entry.reason), []).append(str(entry.address))
        by_kind.setdefault((symbol, kind), []).append(entry.address.name)
    for lines in (
        _headings(gone),
        [f"{symbol} {', '.join(host_lists(all_))}  # {why}" for (symbol, _, why), all_ in by_reason.items()],
        # The shortest text that still names every address.
        [f"{symbol} {kind}: {' '.join(host_lists(all_))}" for (symbol, kind), all_ in by_kind.items()],
    ):
        text = Section(title, (lines,), "diff", open=True).text(0)
        if len(text) <= room:
            return text
    # Names without a pattern can exceed any report: it then warns not to approve by it.
    names = [f"{SYMBOLS[e.change][0]} {clean(e.address)}" for e in gone]
    ends = itertools.accumulate(len(name) + 1 for name in names)
    count = sum(end <= room - len(title) - len(NOT_NAMED) - 100 for end in ends)
    text = Section(title, (names[:count],), "diff", open=True).text(0)
    return f"{text}\n{NOT_NAMED.format(count=len(names) - count)}\n"


def _headings(entries: Sequence[ActionEntry]) -> list[str]:
    """A line for each group of similar neighbours."""
    return [next(iter(group_lines(group, PLAIN, None))).strip() for group in grouped(list(entries))]


# ------------------------------------------------------------------------------------ all other parts


def _sections(plan: Plan, entries: list[ActionEntry]) -> list[Section]:
    """The sections, in the order in which they take room."""
    parts = report_parts(plan)
    findings = [count_text(plan.diagnostics)] if plan.diagnostics else []
    drift, preview = plan.observed.drift, plan.preview
    differing = {difference.address for difference in plan.observed.differences}
    changes = []
    for group in grouped(entries):
        first, *rest = group_lines(group, PLAIN, None)
        changes += [first.strip(), *rest]  # the symbol comes first, because `diff` colours by it
    kinds = Counter((SYMBOLS[e.change][0], e.address.kind) for e in entries)
    counts = [f"{symbol} {plural(count, kind)}" for (symbol, kind), count in kinds.items()]
    refusals = plan.unplaced.refusals
    shorter = unplaced_lines(refusals, PLAIN, waiting=plan.unplaced.tried_again)
    headlines = [headline(alike, PLAIN) for alike in together_alike(refusals)]
    statuses = Counter(f"{r.task}: {r.status.value}" for r in plan.reservations)
    ranks = [f"{clean(what)} {count}" for what, count in statuses.items()]
    parts["by-hand"] = parts["by-hand"][0], titled(BY_HAND, parts["by-hand"][1])

    def section(name: str, *shorter: Sequence[str], count: int | None = None, open: bool = False) -> Section:
        title, lines = parts[name]
        return Section(title if count is None else f"{title}: {count}", (lines, *shorter), open=open)

    sections = [
        section("findings", findings, open=plan.result == "error"),
        section("shares", [], open=True),
        Section(
            f"Cannot be placed: {plural(len(refusals), 'task')}",
            (parts["unplaced"][1], shorter, headlines, _counted(len(refusals), "task")),
            open=True,
        ),
        section("moved", _counted(len(plan.scope.moved), "rename"), count=len(plan.scope.moved), open=True),
        section("part", parts["part"][1][:1], open=True),
        Section(ACTIONS, (changes, _headings(entries), counts), "diff"),
        section("drift", _counted(len(drift), "change"), count=len(drift)),
        section("health", _counted(len(plan.health), "thing")),
        Section(
            "Blocks after apply",
            (block_lines(plan, PLAIN, None), _fleets(plan), _counted(len(preview.nodes), "node")),
        ),
        Section("Ranks", (rank_lines(plan, PLAIN, None), ranks, _counted(len(plan.reservations), "rank"))),
        section("fallbacks", []),
        section("queued", _counted(len(preview.queued), "task")),
        section("unstarted", []),
        section("by-hand", []),
        section("differences", _counted(len(differing), "node"), count=len(differing), open=True),
        section("backends", _counted(len(preview.backends), "backend")),
        section("notes", []),
    ]
    if not plan.actions and not plan.unplaced.refusals:
        return [s for s in sections if s.title not in {"Blocks after apply", "Ranks"}]
    return sections


def _counted(count: int, noun: str) -> list[str]:
    return [plural(count, noun)] if count else []


def _fleets(plan: Plan) -> list[str]:
    """A line for each fleet: its new, kept and deleted nodes, and its busy blocks."""
    lines = []
    by_fleet: dict[str, list[NodePreview]] = {}
    for node in plan.preview.nodes:
        by_fleet.setdefault(node.fleet, []).append(node)
    for fleet, nodes in sorted(by_fleet.items()):
        counts = Counter(node.status for node in nodes)
        listed = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        busy, total = blocks_in_use([node for node in nodes if node.status != "deleted"])
        lines.append(f"fleet/{clean(fleet)}: {listed}; {busy}/{total} blocks busy")
    return lines
