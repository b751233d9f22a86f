"""`fleetform ci`: a plan on its pull request, and what was approved there. `action.yml` calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from declarative.cli import CommandGroup
from declarative.cli.options import examples, project_command
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import InvalidError, failed
from declarative.model.record import struct
from declarative.model.text import clean

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
        _annotate(data)
    _append(os.environ.get("GITHUB_STEP_SUMMARY"), body)
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
    from declarative.render.markdown import HEAD

    return f"<!-- fleetform plan of {name} -->" if name else HEAD


def _is_marked(comment: Comment, name: str) -> bool:
    return comment.body.replace("\r\n", "\n").startswith(f"{_mark(name)}\n")


def _ours(forge: GitHub | GitLab, request: int, name: str) -> Comment | None:
    return next((comment for comment in forge.comments(request) if _is_marked(comment, name)), None)


def _body(report: Path, name: str) -> str:
    """The report under the mark by which it is found again; `InvalidError` if the file is not a report."""
    if name and not _NAME.fullmatch(name):
        raise failed("usage", f"`--name {name}` is no name", "write letters, digits, blanks and `.-_/`")
    text = report.read_text(encoding="utf-8", errors="replace") if report.stat().st_size < MOST_BYTES else ""
    head = f"{_mark('')}\n"
    if not text.startswith(head):
        hint = "write one: `fleetform plan --report plan.md`"
        raise failed("not-a-report", f"`{report}` is no report of a plan in Markdown", hint)
    body = text.removeprefix(head)
    if name:
        body = body.replace("### fleetform", f"### fleetform, {name}", 1)
    return f"{_mark(name)}\n{body}"


def _append(file: str | None, text: str) -> None:
    if file:
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.write(text)


def _annotate(path: Path) -> None:
    """Errors and warnings of a plan at their lines, and the outputs of the step, for GitHub Actions."""
    try:
        plan = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size < MOST_BYTES * 4 else None
    except ValueError:
        plan = None
    if not isinstance(plan, dict) or "diagnostics" not in plan:
        hint = "write one: `fleetform plan --report plan.json`"
        raise failed("not-a-report", f"`{path}` is no plan as JSON", hint)
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
    for diagnostic in plan["diagnostics"][:MOST_ANNOTATIONS]:
        kind = "error" if diagnostic.get("severity") == "error" else "warning"
        where = {"title": f"fleetform: {diagnostic.get('code')}"}
        if diagnostic.get("file"):
            where["file"] = os.path.relpath(here / str(diagnostic["file"]), top)
            where |= {
                key: str(diagnostic[f])
                for key, f in (("line", "line"), ("col", "column"))
                if diagnostic.get(f)
            }
        lines = [diagnostic.get("summary", ""), *str(diagnostic.get("hint") or "").splitlines()]
        text = "\n".join(map(clean, lines))
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


# ----------------------------------------------------------------------------------- GitHub and GitLab

ACTIONS_BOT = "github-actions[bot]"
"""The author of comments that are written with the token of a GitHub Actions job."""
MOST_ANSWERED = 16 << 20
"""Bytes of an answer."""
MOST_PAGES = 100
PER_PAGE = 100
SECONDS = 60.0


@struct(frozen=True, slots=True)
class Comment:
    """A comment or an issue of our own."""

    id: int
    body: str


class Forge:
    """Where the repository is: its API, and the parts of it that are called alike.

    A job's variables are trusted, and answers over the network are not: only comments of the job's own
    account count as ours, whatever other comments begin with.
    """

    change: str
    """The method of a request that changes a thing."""
    text: str
    """The key of an issue's text."""
    link: str
    """The key of the address at which people see a thing."""
    author: tuple[str, str]
    """The key of a comment's author, and the key of what identifies an account."""
    closed: Mapping[str, str]
    """The change that closes an issue."""

    def __init__(
        self, base: str, headers: Mapping[str, str], project: str, environ: Mapping[str, str]
    ) -> None:
        """`project` is the part of the path that all calls about the repository have."""
        parts = urlsplit(base)
        here = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "localhost", "::1"}
        if parts.scheme != "https" and not here:  # a token goes over TLS, or stays on this machine
            raise failed("forge", f"`{base}` is not https", "correct GITHUB_API_URL or CI_API_V4_URL")
        self._base = base.rstrip("/")
        self._headers = headers
        self._project = project
        self._environ = environ
        self._me: Any = None

    def write_issue(self, title: str, body: str, old: Comment | None) -> str:
        """Open an issue, or change the `old` one; where it can be seen."""
        issue = {"title": title, self.text: body}
        path = f"{self._project}/issues"
        answer = self.call(self.change, f"{path}/{old.id}", issue) if old else self.call("POST", path, issue)
        return str(answer.get(self.link, ""))

    def close_issue(self, old: Comment) -> None:
        self.call(self.change, f"{self._project}/issues/{old.id}", self.closed)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer as data; `InvalidError` with `forge` if there is none, `forge-denied` if it is not
        allowed.
        """
        import urllib.error
        import urllib.request

        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._base}/{path}", data, method=method)  # noqa: S310 (checked)
        request.add_header("User-Agent", "fleetform")
        request.add_header("Content-Type", "application/json")
        for name, value in self._headers.items():
            request.add_unredirected_header(name, value)  # a token stays where it belongs
        place = f"{method} {self._base}/{path}"
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
                text = answer.read(MOST_ANSWERED + 1)
        except urllib.error.HTTPError as error:
            message = ""
            with suppress(OSError, ValueError):
                details = json.loads(error.read(10_000))
                message = str(details.get("message", ""))[:200] if isinstance(details, dict) else ""
            if error.code in {401, 403, 404}:
                hint = "the job's token needs to write comments, and issues for `ci issue`: see docs/ci.md"
                summary = f"{place}: {error.code} {message}"
                raise failed("forge-denied", summary, hint) from None
            raise failed("forge", f"{place}: {error.code} {message}", "run the job again") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            raise failed("forge", f"{place}: {why}", "run the job again") from None
        try:
            return json.loads(text)
        except ValueError:
            raise failed("forge", f"{place}: the answer is not JSON", "run the job again") from None

    def pages(self, path: str) -> Iterator[Any]:
        """The items of a listing."""
        mark = "&" if "?" in path else "?"
        for page in range(1, MOST_PAGES + 1):
            items = self.call("GET", f"{path}{mark}per_page={PER_PAGE}&page={page}")
            yield from items if isinstance(items, list) else ()
            if not isinstance(items, list) or len(items) < PER_PAGE:
                return

    def account(self) -> Any:
        """What identifies the account of the token."""
        return self.call("GET", "user").get(self.author[1])

    def ours(self, path: str, key: str, text: str) -> Iterator[Comment]:
        """Our comments or issues in a listing: `key` has their number, `text` their text."""
        who, identity = self.author
        for entry in self.pages(f"{self._project}/{path}"):
            self._me = self._me or self.account()
            if (entry.get(who) or {}).get(identity) == self._me and "pull_request" not in entry:
                yield Comment(int(entry[key]), str(entry.get(text) or ""))


class GitHub(Forge):
    """GitHub, in a job of GitHub Actions or with the same variables."""

    change, text, link, author = "PATCH", "body", "html_url", ("user", "login")
    closed = {"state": "closed"}  # noqa: RUF012  # never changed

    def __init__(self, environ: Mapping[str, str]) -> None:
        token = environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN")
        if not token:
            hint = "give the job `env: {GITHUB_TOKEN: ${{ github.token }}}`"
            raise failed("forge-denied", "there is no `GITHUB_TOKEN`", hint)
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        base = environ.get("GITHUB_API_URL", "https://api.github.com")
        super().__init__(base, headers, f"repos/{environ['GITHUB_REPOSITORY']}", environ)

    def request_of_job(self) -> int | None:
        """The pull request of the event, else the merged one that brought the commit, if any."""
        event: Any = {}
        with suppress(OSError, ValueError, KeyError):
            event = json.loads(Path(self._environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
        request = event.get("pull_request") if isinstance(event, dict) else None
        if isinstance(request, dict) and isinstance(request.get("number"), int):
            return int(request["number"])
        sha = self._environ.get("GITHUB_SHA")
        return self.request_of(sha) if sha else None

    def request_of(self, commit: str) -> int | None:
        """The merged pull request that brought a commit; None if there is none."""
        merged = [p for p in self.pages(f"{self._project}/commits/{commit}/pulls") if p.get("merged_at")]
        return int(merged[0]["number"]) if merged else None

    def comments(self, request: int) -> Iterator[Comment]:
        return self.ours(f"issues/{request}/comments", "id", "body")

    def write(self, request: int, body: str, old: Comment | None) -> str:
        """Write a comment, or change the `old` one; where it can be seen."""
        method, path = "POST", f"{self._project}/issues/{request}/comments"
        if old:
            method, path = self.change, f"{self._project}/issues/comments/{old.id}"
        return str(self.call(method, path, {"body": body}).get(self.link, ""))

    def issues(self) -> Iterator[Comment]:
        return self.ours("issues?state=open", "number", self.text)

    def account(self) -> Any:
        """The account of the token. A job's own token may not ask for it."""
        try:
            return str(super().account())
        except InvalidError as error:
            if error.diagnostics[0].code != "forge-denied":
                raise
            return ACTIONS_BOT


class GitLab(Forge):
    """GitLab, in a job of GitLab CI. The job's own token may not write notes, so the project gives one."""

    change, text, link, author = "PUT", "description", "web_url", ("author", "id")
    closed = {"state_event": "close"}  # noqa: RUF012  # never changed

    def __init__(self, environ: Mapping[str, str]) -> None:
        token = environ.get("GITLAB_TOKEN")
        if not token:
            hint = (
                "make a project access token with the scope `api`, and give it as the variable GITLAB_TOKEN"
            )
            raise failed("forge-denied", "there is no `GITLAB_TOKEN`", hint)
        project = f"projects/{environ['CI_PROJECT_ID']}"
        super().__init__(environ["CI_API_V4_URL"], {"PRIVATE-TOKEN": token}, project, environ)

    def request_of_job(self) -> int | None:
        number, sha = self._environ.get("CI_MERGE_REQUEST_IID"), self._environ.get("CI_COMMIT_SHA")
        return int(number) if number else self.request_of(sha) if sha else None

    def request_of(self, commit: str) -> int | None:
        path = f"{self._project}/repository/commits/{commit}/merge_requests"
        merged = [m for m in self.pages(path) if m.get("state") == "merged"]
        return int(merged[0]["iid"]) if merged else None

    def comments(self, request: int) -> Iterator[Comment]:
        return self.ours(f"merge_requests/{request}/notes", "id", "body")

    def write(self, request: int, body: str, old: Comment | None) -> str:
        path = f"{self._project}/merge_requests/{request}/notes"
        method, path = (self.change, f"{path}/{old.id}") if old else ("POST", path)
        self.call(method, path, {"body": body})
        return f"{self._environ.get('CI_PROJECT_URL', '')}/-/merge_requests/{request}"

    def issues(self) -> Iterator[Comment]:
        return self.ours("issues?state=opened&scope=all", "iid", self.text)


def forge_of_job() -> GitHub | GitLab:
    """The forge whose job this is; `InvalidError` in none."""
    if os.environ.get("GITHUB_REPOSITORY"):
        return GitHub(os.environ)
    if os.environ.get("CI_API_V4_URL") and os.environ.get("CI_PROJECT_ID"):
        return GitLab(os.environ)
    hint = (
        "this is for jobs of GitHub Actions and GitLab CI; elsewhere `fleetform plan --report FILE` writes it"
    )
    raise failed("no-forge", "neither `GITHUB_REPOSITORY` nor `CI_API_V4_URL` is set", hint)
