"""Plans and runs for people and programs, printed and in files: `--format`, `--report` and `--max-chars`, and
what `apply` and `destroy` print (plan, progress and result).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from declarative.cli.options import going_tasks, name_tasks
from declarative.cli.output import PipeSafeStream, check_writable, out_style, say
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import failed
from declarative.render.text import is_terminal, plural

if TYPE_CHECKING:
    from declarative.apply.graph_walk import ActionResult
    from declarative.apply.retry_schedule import Due
    from declarative.cli.run import Run
    from declarative.model.state import State
    from declarative.model.status import RankStatus
    from declarative.planner.approval import PlanDigest
    from declarative.planner.plan import Origin, Plan
    from declarative.render.progress import Mode, Progress

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
    def wanted(self) -> bool:
        """Whether anything but the usual text was asked for."""
        return bool(self.files) or self.printed != "text"

    def check(self, *, as_json: bool) -> None:
        """`InvalidError` if a file could not be written: checked before the plan is made."""
        if as_json:
            if self.printed not in {"text", "json"}:
                raise failed("usage", f"`--json` and `--format {self.printed}` are two formats", "give one")
            self.printed = "json"
        for name in self.files:
            is_ours = functools.partial(_begins, head=BEGINS[self._format(name)])
            check_writable(str(Path(name)), "report", is_ours)

    def write(self, plan: Plan) -> None:
        """Put the plan into the files, each written whole or not at all."""
        for name in self.files:
            form = self._format(name)
            head = f"{BEGINS[form]}\n\n" if form == "text" else ""
            _put(Path(name), head + self._render(plan, form))

    def print(self, plan: Plan) -> None:
        """Print the plan in the format that was asked for."""
        sys.stdout.write(self._render(plan, self.printed))

    def _format(self, name: str) -> str:
        found = SUFFIXES.get(Path(name).suffix, self.printed if self.printed != "text" else None)
        if found is None:
            hint = f"end its name in one of {', '.join(SUFFIXES)}, or say it: `--format markdown`"
            raise failed("usage", f"`--report {name}` does not tell its format", hint)
        return found

    def _render(self, plan: Plan, form: str) -> str:
        if form == "json":
            from declarative.render.data import plan_json, to_json

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

    found: Any = run
    for option in (
        click.option(
            "--max-chars",
            type=click.IntRange(min=LEAST_CHARS),
            default=MAX_CHARS,
            show_default=True,
            help="With Markdown: fold the report until it has no more characters than a comment may have.",
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
            "--format",
            "printed",
            type=click.Choice(FORMATS),
            default="text",
            show_default=True,
            help="What to print.",
        ),
    ):
        found = option(found)
    return found  # type: ignore[no-any-return]


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


def _begins(path: Path, head: str) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(len(head)) == head
    except OSError:
        return False


def _put(path: Path, text: str) -> None:
    # In one step, and with the user's umask: reports are there to be read by others.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise failed("unwritable", f"`{path}` cannot be written: {error.strerror}") from None


PENDING = "pending (no capacity now)"
AS_IT_WAS = "as it was (no capacity now for what changed)"
ENDED = "ended (no capacity now to run again)"
"""The text about tasks without a place."""


class RunOutput:
    """The output of one run."""

    origin: Origin
    """Which project it is of."""

    def __init__(self, session: ProjectSession, doing: str, *, as_json: bool) -> None:
        self.session = session
        self.doing = doing
        self.as_json = as_json
        self.out = PipeSafeStream(sys.stdout)
        self.plan: Plan | None = None
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.__exit__(None, None, None)

    def _show(self, plan: Plan) -> None:
        from declarative.render.data import plan_json
        from declarative.render.plan import plan_text

        if self.as_json:
            self.event({"event": "plan", "plan": plan_json(plan)})
            return
        say(plan.diagnostics)
        if not plan.shown:
            return
        if self.doing == "destroy" and not plan.changes:
            self.out.write("Nothing to destroy.\n")
        else:
            self.out.write(plan_text(plan, **out_style()))

    def _say_waiting(self, plan: Plan, state: State) -> None:
        """Tasks for which there is no place: they stay pending, or run on as they were."""
        if self.as_json:
            self._pending_events(plan.unplaced.pending)
            return
        going, recorded = going_tasks(state), {r.rank.task for r in state.of("rank")}
        groups: dict[tuple[str, bool], list[str]] = {}
        for task in plan.unplaced.pending:
            what = AS_IT_WAS if task in going else ENDED if task in recorded else PENDING
            groups.setdefault((what, task in plan.unplaced.once), []).append(task)
        for (what, once), tasks in groups.items():
            verb = "stays" if len(tasks) == 1 else "stay"
            then = "the next `fleetform apply` tries again"
            if once:
                asked = " ".join(f"--replace task/{task}" for task in tasks)
                then = f"once there is room, `fleetform apply {asked}` again"
            sys.stderr.write(f"{name_tasks(tasks)} {verb} {what}: {then}\n")

    def _say_unreadable(self, plan: Plan) -> None:
        if plan.unreadable_backends and not self.as_json:
            again = "destroy" if self.doing == "destroy" else "apply"
            then = f"what is there was not compared with what is declared. Fix that, and {again} again"
            sys.stderr.write(f"{', '.join(plan.unreadable_backends)} could not be read: {then}\n")

    def _pending_events(self, tasks: Iterable[str]) -> None:
        for task in tasks:
            self.event({"event": "pending", "address": f"task/{task}"})

    def _say_moved(self, plan: Plan, count: int) -> None:
        for move in plan.scope.moved if self.as_json else ():
            self.event({"event": "moved", "from": move.source, "to": move.target})
        if not self.as_json:
            self.out.write(f"Renamed {plural(count, 'record')}.\n")

    def say_protected(self, names: Sequence[str], hint: str, guarded: Sequence[str] = ()) -> None:
        """The text about protected things that stay, or are `guarded` by `limits.protected`; how to delete
        them.
        """
        if self.as_json:
            self.event({"event": "kept", "addresses": [*names, *guarded]})
            return
        if names:
            self.out.write(f"Kept, because of `prevent_destroy`: {', '.join(names)}.\n{hint}\n")
        if guarded:
            self.out.write(f"Kept, because of the project's `limits.protected`: {', '.join(guarded)}.\n")
            self.out.write("To delete them too: take them out of it, and destroy again.\n")

    def event(self, data: Mapping[str, Any]) -> None:
        """One event as a line of JSON."""
        from declarative.render.data import to_event

        self.out.write(to_event(data) + "\n")
        self.out.flush()

    def listener(self, total: int = 0) -> Progress:
        from declarative.render.progress import Progress

        if self._progress is None:
            mode: Mode = "json" if self.as_json else "live" if is_terminal(sys.stderr) else "plain"
            stream = (
                sys.stderr if mode == "live" else PipeSafeStream(sys.stdout if self.as_json else sys.stderr)
            )
            self._progress = Progress(stream, mode, 0)  # type: ignore[arg-type]
            self._progress.__enter__()
        if total:
            self._progress.expect(total)
        return self._progress

    def note(self, rank: str, status: RankStatus) -> None:
        """A rank changed its state."""
        self.listener().rank(f"rank/{rank}", status.state.value, status.cause)

    def report(self, results: tuple[ActionResult, ...], result: str, *, cut_short: bool = False) -> None:
        """The results of actions, and the result of the command (`_result`). See `report_text`."""
        from declarative.render.data import health_json
        from declarative.render.plan import origin_text
        from declarative.render.progress import notes_json, report_text

        if self.as_json:
            counts = {o: sum(r.outcome == o for r in results) for o in ("done", "failed", "skipped")}
            notes = notes_json(results)
            health = health_json(self.plan.health if self.plan else ())
            more = {"elsewhere": notes} if notes else {}
            self.event({"event": "summary", "result": result, **counts, "health": health, **more})
        elif results:
            title, color = self.doing.capitalize(), out_style()["color"]
            forgotten = {action.id for action in self.plan.actions if action.forgets} if self.plan else ()
            origin = origin_text(self.origin)
            text = report_text(
                results, color=color, title=title, forgotten=forgotten, origin=origin, cut_short=cut_short
            )
            self.out.write(text)
            self.out.flush()

    def say(self, text: str) -> None:
        """Something worth saying that is about no single action."""
        self.listener().note(text)

    def say_waits(self, waits: Mapping[str, Due]) -> None:
        """When tasks that were not started are tried again, and why they were not."""
        by_time: dict[int, list[str]] = {}
        for task, due in waits.items():
            by_time.setdefault(round(due.delay), []).append(task)
        for seconds, tasks in sorted(by_time.items()):
            causes = {waits[task].cause for task in tasks}
            why = causes.pop() if len(causes) == 1 else "no capacity"
            verb = "is" if len(tasks) == 1 else "are"
            self.say(f"{name_tasks(tasks)} {verb} tried again in {seconds} s: {why}")


def protected(run: Run) -> dict[str, bool]:
    """What `destroy` was asked to delete and leaves, and whether that is because of `limits.protected`."""
    from declarative.planner.plan_part import is_selected

    state, desired = run.store.read(), run.desired
    asked = (run.options["targets"], run.options["excludes"])
    left = {str(r.address): r.node for r in state.of("node") if is_selected(r, *asked)} | {
        str(r.address): r.volume for r in state.of("volume") if is_selected(r, *asked)
    }
    return {at: desired.is_guarded(at, inputs) for at, inputs in left.items() if desired.protects(at, inputs)}


def kept_text(kept: Collection[str]) -> str:
    """What is said of protected things before the question."""
    from declarative.model.diagnostic import and_more

    return f"Protected, and kept: {and_more(list(kept), 20)}.\n" if kept else ""


def say_kept(run: Run) -> None:
    """What is said of protected things at the end of `destroy`."""
    kept = protected(run)
    guarded = [address for address, is_guarded in kept.items() if is_guarded]
    names = [address for address, is_guarded in kept.items() if not is_guarded]
    run.say_protected(names, f"To delete them too: {_unprotect(run, names)}, and destroy again.", guarded)


def _unprotect(run: Run, names: Sequence[str]) -> str:
    what = "write `prevent_destroy: false` in their fleets and volumes"
    if any(n.startswith("volume/") and n not in run.desired.protected for n in names):
        without = "`removed: [{from: volume/NAME, destroy: true}]` in the project"
        return f"{what} (of a volume without one: {without})"
    return what
