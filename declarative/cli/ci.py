"""`fleetform ci`: a plan on its pull request, and what was approved there. `action.yml` calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from declarative.cli import CommandGroup
from declarative.cli.options import examples, project_command
from declarative.cli.reports import BEGINS
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import InvalidError, failed
from declarative.model.text import clean

if TYPE_CHECKING:
    from declarative.cli.forges import Comment, GitHub, GitLab

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,60}")
MOST_ANNOTATIONS = 50
"""GitHub shows ten of each kind for a step, and fifty for a job."""
MOST_COMMITS = "--max-count=100"
"""The most commits that one job may carry out."""
MOST_STEPS = 20_000
"""The most entries of the history that are searched for the last apply."""
MOST_BYTES = 64 << 20

name_option = click.option(
    "--name",
    metavar="NAME",
    default="",
    help="Tells apart the plans of several projects on one pull request: `prod`.",
)
request_option = click.option(
    "--pull-request", "request", metavar="N", type=int, help="Which one; default: the one of this job."
)


@click.group("ci", cls=CommandGroup)
def ci_command() -> None:
    """A plan on its pull request or merge request: for jobs of GitHub Actions and GitLab CI."""


@ci_command.command("comment", epilog=examples("fleetform ci comment plan.md --json plan.json"))
@click.argument("report", metavar="REPORT", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--json",
    "data",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The same plan as JSON: its errors and warnings are shown at their lines.",
)
@name_option
@request_option
def comment(report: Path, data: Path | None, name: str, request: int | None) -> int:
    """Put a Markdown REPORT of a plan on the pull request, in place of the one that is there.

    In GitHub Actions it goes into the job's summary too; errors and warnings become annotations, and `result`
    and, of a plan without errors, `digest` outputs of the step. A job without the right to comment, such as
    one for a fork's pull request, gets a warning and goes on.
    """
    body = _body(report, name)
    if data is not None:
        _annotate(_json(data))
    _append(os.environ.get("GITHUB_STEP_SUMMARY"), body)
    from declarative.cli.forges import forge_of_job

    try:
        forge = forge_of_job()
        number = request or forge.request_of_job()
        if number is None:
            sys.stderr.write("no pull request belongs to this job: nothing is commented\n")
            return 0
        where = forge.write(number, body, _ours(forge, number, name))
    except InvalidError as error:
        if error.diagnostics[0].code != "forge-denied":
            raise
        sys.stderr.write(f"not commented: {clean(error.diagnostics[0].summary)}\n")
        return 0
    sys.stderr.write(f"commented: {clean(where)}\n")
    return 0


@ci_command.command(
    "approved",
    epilog=examples("fleetform ci approved --out approved.md", "fleetform apply --expect approved.md"),
)
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path), required=True, help="Where to put it."
)
@name_option
@request_option
@project_command
def approved(session: ProjectSession, *, out: Path, name: str, request: int | None) -> int:
    """Fetch the plan that was shown on the pull request that brought this commit, for `apply --expect`.

    Plans of pull requests since the last apply, whose jobs were dropped or failed, go into FILE.0000,
    FILE.0001 and so on, for `--earlier`.
    Of comments, only those count that the job's own account wrote.
    """
    from declarative.cli.forges import forge_of_job

    forge = forge_of_job()
    number = request or forge.request_of_job()
    if number is None:
        hint = "name it: `--pull-request N`; a commit without one has to be approved otherwise"
        raise failed("not-approved", "no merged pull request brought this commit", hint)
    comment = _ours(forge, number, name)
    if comment is None:
        hint = "let the pull request's job run `fleetform ci comment` before it is merged"
        raise failed("not-approved", f"pull request {number} has no plan in its comments", hint)
    commits = () if request else since_last_apply(session)
    earlier = [n for commit in commits if (n := forge.request_of(commit)) is not None and n != number]
    written = []
    for at, other in enumerate(dict.fromkeys(earlier)):
        old = _ours(forge, other, name)
        if old is not None:
            # By number: the oldest comes first among names that are sorted.
            out.with_name(f"{out.name}.{at:04}").write_text(old.body, encoding="utf-8")
            written.append(f"{other} ({out.name}.{at:04})")
    out.write_text(comment.body, encoding="utf-8")
    sys.stderr.write(f"the plan of pull request {number} is in {out}\n")
    if written:
        sys.stderr.write(f"what may be left of earlier ones is carried out too: {', '.join(written)}\n")
    return 0


def since_last_apply(session: ProjectSession) -> list[str]:
    """The commits from the last one without a failed step on, the oldest first, without that of this job.

    A CI system keeps one waiting job and drops the others, so several merges may be carried out by one job.
    `InvalidError` if a later commit than this job's was applied: its job is an old one.
    """
    here = session.origin(None).commit
    loaded = session.load_if_any()
    store = session.state.open(loaded.desired if loaded else None)
    failed_at: dict[str, bool] = {}
    for operation in store.journal.operations(limit=MOST_STEPS):
        if operation.revision:
            is_broken = operation.result in ("failed", None)
            failed_at[operation.revision] = failed_at.get(operation.revision, False) or is_broken
    if here is None or not failed_at:
        return []
    latest = next(iter(failed_at))
    if latest != here and _git(session, "merge-base", "--is-ancestor", here, latest) is not None:
        hint = f"nothing is missing if the job of {latest[:12]} has succeeded; else run that one again"
        raise failed("not-approved", "a later commit than this job's is applied already", hint)
    last = next((commit for commit, broken in failed_at.items() if not broken), [*failed_at][-1])
    commits = _git(session, "rev-list", "--first-parent", "--reverse", MOST_COMMITS, f"{last}..{here}")
    if commits is None:
        sys.stderr.write(
            f"the commits since {last[:12]}, which was applied last, are not in this checkout: only this "
            "commit's plan counts (`fetch-depth: 0`, or `GIT_DEPTH: 0`, fetches them)\n"
        )
        return []
    return [last, *(commit for commit in commits.split() if commit != here)]


def _git(session: ProjectSession, *words: str) -> str | None:
    """The output of git, which runs nothing that the repository names; None if git refuses."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *words]
    try:
        done = subprocess.run(  # noqa: S603 (commits are hexadecimal)
            command, cwd=session.directory, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


@ci_command.command("issue", epilog=examples("fleetform ci issue plan.md --title 'Drift in prod'"))
@click.argument("report", metavar="REPORT", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--title", default="fleetform: what is there is not as declared", show_default=True)
@click.option("--solved", is_flag=True, help="Close the issue, if there is one.")
@name_option
def issue(report: Path, title: str, name: str, *, solved: bool) -> int:
    """Open an issue with a Markdown REPORT, or bring the open one up to date."""
    from declarative.cli.forges import forge_of_job

    body = _body(report, name)
    forge = forge_of_job()
    old = next((issue for issue in forge.issues() if _is_marked(issue, name)), None)
    if not solved:
        sys.stderr.write(f"issue: {clean(forge.write_issue(title, body, old))}\n")
    elif old:
        forge.close_issue(old)
        sys.stderr.write(f"issue {old.id} is closed\n")
    return 0


def _mark(name: str) -> str:
    return f"<!-- fleetform plan of {name} -->" if name else BEGINS["markdown"]


def _is_marked(comment: Comment, name: str) -> bool:
    return comment.body.replace("\r\n", "\n").startswith(f"{_mark(name)}\n")


def _ours(forge: GitHub | GitLab, request: int, name: str) -> Comment | None:
    return next((comment for comment in forge.comments(request) if _is_marked(comment, name)), None)


def _body(report: Path, name: str) -> str:
    """The report under the mark by which it is found again; `InvalidError` if the file is not a report."""
    if name and not _NAME.fullmatch(name):
        raise failed("usage", f"`--name {name}` is no name", "write letters, digits, blanks and `.-_/`")
    text = report.read_text(encoding="utf-8", errors="replace") if report.stat().st_size < MOST_BYTES else ""
    head = f"{BEGINS['markdown']}\n"
    if not text.startswith(head):
        hint = "write one: `fleetform plan --report plan.md`"
        raise failed("not-a-report", f"`{report}` is no report of a plan in Markdown", hint)
    body = text.removeprefix(head)
    if name:
        body = body.replace("### fleetform", f"### fleetform, {name}", 1)
    return f"{_mark(name)}\n{body}"


def _json(path: Path) -> Mapping[str, Any]:
    try:
        plan = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size < MOST_BYTES * 4 else None
    except ValueError:
        plan = None
    if not isinstance(plan, dict) or "diagnostics" not in plan:
        hint = "write one: `fleetform plan --report plan.json`"
        raise failed("not-a-report", f"`{path}` is no plan as JSON", hint)
    return plan


def _append(file: str | None, text: str) -> None:
    if file:
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.write(text)


def _annotate(plan: Mapping[str, Any]) -> None:
    """Errors and warnings at their lines, and the outputs of the step, for GitHub Actions."""
    output = os.environ.get("GITHUB_OUTPUT")
    if not output:
        return
    end = uuid.uuid4().hex  # nobody can write what ends a value
    # A plan with errors approves nothing: a later step has nothing to hand to somebody.
    keys = ("result",) if plan.get("result") == "error" else ("digest", "result")
    for key in keys:
        _append(output, f"{key}<<{end}\n{clean(plan.get(key))}\n{end}\n")
    sys.stdout.flush()
    top = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())
    here = Path(str(click.get_current_context().find_root().obj["directory"])).absolute()
    for item in plan["diagnostics"][:MOST_ANNOTATIONS]:
        kind = "error" if item.get("severity") == "error" else "warning"
        where = {"title": f"fleetform: {item.get('code')}"}
        if item.get("file"):
            where["file"] = os.path.relpath(here / str(item["file"]), top)
            where |= {key: str(item[f]) for key, f in (("line", "line"), ("col", "column")) if item.get(f)}
        text = clean(item.get("summary", "")) + "".join(
            f"\n{clean(line)}" for line in str(item.get("hint") or "").splitlines()
        )
        # `::error file=fleets/gpu.yaml,line=3::…`: data is escaped as the runner's documentation says.
        properties = ",".join(f"{key}={_escaped(value, more=':,')}" for key, value in where.items())
        line = f"::{kind} {properties}::{_escaped(text)}\n"
        # Past `output.Stream`, which breaks such lines wherever they come from: these are meant.
        sys.stdout.buffer.write(line.encode(errors="replace"))
    sys.stdout.buffer.flush()


def _escaped(text: str, more: str = "") -> str:
    for char in f"%\r\n{more}":
        text = text.replace(char, f"%{ord(char):02X}")
    return text
