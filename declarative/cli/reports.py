"""Plans for people and programs, printed and in files: `--format`, `--report` and `--max-chars`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from declarative.cli.options import all_of
from declarative.cli.output import check_writable, write_whole
from declarative.model.diagnostic import failed

if TYPE_CHECKING:
    from declarative.planner.approval import PlanDigest
    from declarative.planner.plan import Plan

F = TypeVar("F", bound=Callable[..., Any])
FORMATS = ("text", "markdown", "html", "json")
SUFFIXES = {".txt": "text", ".md": "markdown", ".markdown": "markdown", ".html": "html", ".json": "json"}
BEGINS = {
    "text": "# fleetform plan",
    "markdown": "<!-- fleetform plan -->",
    "html": "<!DOCTYPE html>\n<!-- fleetform plan -->",
    "json": '{\n  "format_version"',
}
"""The begin of the files of each format: other files are not overwritten."""
MAX_CHARS = 65_536
LEAST_CHARS = 4_000
MOST_BYTES = 256 << 20


@dataclass
class Reports:
    """The output for stdout, and for files."""

    printed: str
    files: tuple[str, ...]
    max_chars: int

    @property
    def requested(self) -> bool:
        """Whether anything but the usual text was asked for."""
        return bool(self.files) or self.printed != "text"

    def check(self, *, as_json: bool) -> None:
        """`InvalidError` if a file could not be written: checked before the plan is made."""
        if as_json:
            if self.printed not in {"text", "json"}:
                raise failed("usage", f"`--json` and `--format {self.printed}` are two formats", "give one")
            self.printed = "json"
        for name in self.files:
            head = BEGINS[self._format(name)]

            def is_ours(path: Path, head: str = head) -> bool:
                try:
                    with path.open(encoding="utf-8", errors="replace") as file:
                        return file.read(len(head)) == head
                except OSError:
                    return False

            check_writable(str(Path(name)), "report", is_ours)

    def write(self, plan: Plan) -> None:
        """Put the plan into the files, each written whole or not at all."""
        for name in self.files:
            form = self._format(name)
            head = f"{BEGINS[form]}\n\n" if form == "text" else ""
            text = head + self._render(plan, form)
            # With the user's umask: reports are there to be read by others.
            write_whole(Path(name), text.encode(errors="replace"), 0o666)

    def print(self, plan: Plan) -> None:
        """Print the plan in the format that was asked for."""
        sys.stdout.write(self._render(plan, self.printed))

    def _format(self, name: str) -> str:
        form = SUFFIXES.get(Path(name).suffix, self.printed if self.printed != "text" else None)
        if form is None:
            hint = f"end its name in one of {', '.join(SUFFIXES)}, or say it: `--format markdown`"
            raise failed("usage", f"`--report {name}` does not tell its format", hint)
        return form

    def _render(self, plan: Plan, form: str) -> str:
        if form == "json":
            from declarative.render.output_json import to_json
            from declarative.render.plan_document import plan_json

            return to_json(plan_json(plan))
        if form == "markdown":
            from declarative.render.markdown import plan_markdown

            return plan_markdown(plan, self.max_chars)
        if form == "html":
            from declarative.render.html import plan_html

            return plan_html(plan)
        from declarative.render.diagnostics import diagnostics_text
        from declarative.render.plan import plan_text

        findings = diagnostics_text(plan.diagnostics, color=False)
        return findings + plan_text(plan, color=False, width=None)


def report_options(command: F) -> F:
    """The options; the command gets `reports`."""

    @functools.wraps(command)
    def run(*args: Any, printed: str, report_files: tuple[str, ...], max_chars: int, **options: Any) -> Any:
        return command(*args, reports=Reports(printed, report_files, max_chars), **options)

    options = all_of(
        click.option(
            "--format",
            "printed",
            type=click.Choice(FORMATS),
            default="text",
            show_default=True,
            help="What to print.",
        ),
        click.option(
            "--report",
            "report_files",
            metavar="FILE",
            multiple=True,
            type=click.Path(),
            help="Write the plan into this file too, in the format that its name ends in: .md, .html, .json "
            "or .txt.",
        ),
        click.option(
            "--max-chars",
            type=click.IntRange(min=LEAST_CHARS),
            default=MAX_CHARS,
            show_default=True,
            help="With Markdown: fold the report until it has no more characters than a comment may have.",
        ),
    )
    return options(cast("F", run))


def expected(text: str, *, earlier: bool = False) -> PlanDigest:
    """The digest that `--expect` gives, or the file with a report; `InvalidError` if it is neither, or the
    report of a refused plan. An `earlier` refused plan adds nothing to what is approved.
    """
    from declarative.planner.approval import PlanDigest, RefusedPlanError, is_digest, read_approval

    if is_digest(text):
        return PlanDigest(text, {})
    path = Path(text)
    hint = "name a digest (`sha256:…`), or a file of `fleetform plan --report FILE` or `plan --json`"
    try:
        if not path.exists():
            raise failed("not-a-report", f"there is no file `{text}`, and it is no digest either", hint)
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise failed("not-a-report", f"`{text}` is no digest, and no report of fleetform", hint)
        return read_approval(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise failed("unreadable", f"`{text}`: {error.strerror}", hint) from None
    except RefusedPlanError:
        if earlier:
            return PlanDigest("", {})
        summary = f"the plan in `{text}` was refused: its report approves nothing"
        hint = "mend the errors that it names, plan again, and let that plan be approved"
        raise failed("not-a-report", summary, hint) from None
    except (ValueError, RecursionError):
        summary = f"`{text}` holds no digest of a plan"
        raise failed("not-a-report", summary, f"{hint}; a report that was cut has none") from None
