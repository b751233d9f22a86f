"""GitHub and GitLab, for what a job needs: its pull request's comments, and issues.

A job's variables are trusted, and answers over the network are not: only comments of the job's own account
count as ours, whatever other comments begin with.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from declarative.model.diagnostic import InvalidError, failed
from declarative.model.record import struct

ACTIONS_BOT = "github-actions[bot]"
"""The author of comments that are written with the token of a GitHub Actions job."""
MOST_BYTES = 16 << 20
MOST_PAGES = 100
PER_PAGE = 100
SECONDS = 60.0


@struct(frozen=True, slots=True)
class Comment:
    """A comment or an issue of our own."""

    id: int
    body: str


class Forge:
    """Where the repository is: its API, and the parts of it that are called alike."""

    change: str
    """The method of a request that changes a thing."""
    text: str
    """The key of an issue's text."""
    link: str
    """The key of the address at which people see a thing."""
    closed: Mapping[str, str]
    """The change that closes an issue."""

    def __init__(
        self, base: str, headers: Mapping[str, str], project: str, environ: Mapping[str, str]
    ) -> None:
        """`project` is the part of the path that all calls about the repository have."""
        parts = urllib.parse.urlsplit(base)
        here = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "localhost", "::1"}
        if parts.scheme != "https" and not here:  # a token goes over TLS, or stays on this machine
            raise failed("forge", f"`{base}` is not https", "correct GITHUB_API_URL or CI_API_V4_URL")
        self._base = base.rstrip("/")
        self._headers = headers
        self._project = project
        self._environ = environ

    def write_issue(self, title: str, body: str, old: Comment | None) -> str:
        """Open an issue, or change the `old` one; where it can be seen."""
        issue = {"title": title, self.text: body}
        path = f"{self._project}/issues"
        answer = self.call(self.change, f"{path}/{old.id}", issue) if old else self.call("POST", path, issue)
        return str(answer.get(self.link, ""))

    def close_issue(self, old: Comment) -> None:
        """Close an issue."""
        self.call(self.change, f"{self._project}/issues/{old.id}", self.closed)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer as data; `InvalidError` with `forge` if there is none, `forge-denied` if it is not
        allowed.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._base}/{path}", data, method=method)  # noqa: S310 (checked)
        request.add_header("User-Agent", "fleetform")
        request.add_header("Content-Type", "application/json")
        for name, value in self._headers.items():
            request.add_unredirected_header(name, value)  # a token stays where it belongs
        place = f"{method} {self._base}/{path}"
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
                text = answer.read(MOST_BYTES + 1)
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


class GitHub(Forge):
    """GitHub, in a job of GitHub Actions or with the same variables."""

    change, text, link = "PATCH", "body", "html_url"
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
        self._me: str | None = None

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
        """Our comments on a pull request."""
        return self._ours(f"{self._project}/issues/{request}/comments", "id")

    def write(self, request: int, body: str, old: Comment | None) -> str:
        """Write a comment, or change the `old` one; where it can be seen."""
        method, path = "POST", f"{self._project}/issues/{request}/comments"
        if old:
            method, path = self.change, f"{self._project}/issues/comments/{old.id}"
        return str(self.call(method, path, {"body": body}).get(self.link, ""))

    def issues(self) -> Iterator[Comment]:
        """Our open issues."""
        return self._ours(f"{self._project}/issues?state=open", "number")

    def _ours(self, path: str, key: str) -> Iterator[Comment]:
        for item in self.pages(path):
            author = (item.get("user") or {}).get("login")
            if author == self._login() and "pull_request" not in item:
                yield Comment(int(item[key]), str(item.get(self.text) or ""))

    def _login(self) -> str:
        """The account of the token. A job's own token may not ask for it."""
        if self._me is None:
            try:
                self._me = str(self.call("GET", "user").get("login"))
            except InvalidError as error:
                if error.diagnostics[0].code != "forge-denied":
                    raise
                self._me = ACTIONS_BOT
        return self._me


class GitLab(Forge):
    """GitLab, in a job of GitLab CI. The job's own token may not write notes, so the project gives one."""

    change, text, link = "PUT", "description", "web_url"
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
        self._me: Any = None

    def request_of_job(self) -> int | None:
        number, sha = self._environ.get("CI_MERGE_REQUEST_IID"), self._environ.get("CI_COMMIT_SHA")
        return int(number) if number else self.request_of(sha) if sha else None

    def request_of(self, commit: str) -> int | None:
        path = f"{self._project}/repository/commits/{commit}/merge_requests"
        merged = [m for m in self.pages(path) if m.get("state") == "merged"]
        return int(merged[0]["iid"]) if merged else None

    def comments(self, request: int) -> Iterator[Comment]:
        return self._ours(f"merge_requests/{request}/notes", "id", "body")

    def write(self, request: int, body: str, old: Comment | None) -> str:
        path = f"{self._project}/merge_requests/{request}/notes"
        method, path = (self.change, f"{path}/{old.id}") if old else ("POST", path)
        self.call(method, path, {"body": body})
        return f"{self._environ.get('CI_PROJECT_URL', '')}/-/merge_requests/{request}"

    def issues(self) -> Iterator[Comment]:
        return self._ours("issues?state=opened&scope=all", "iid", self.text)

    def _ours(self, path: str, key: str, text: str) -> Iterator[Comment]:
        self._me = self._me or self.call("GET", "user").get("id")
        for item in self.pages(f"{self._project}/{path}"):
            if (item.get("author") or {}).get("id") == self._me:
                yield Comment(int(item[key]), str(item.get(text) or ""))


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
