"""`fleetform apply` and `destroy`. Relative paths start at the project's directory, which is the current one
or that of `-C`, as with every command.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from declarative.cli.options import (
    apply_options,
    approve_option,
    check_refresh,
    confirm,
    examples,
    json_option,
    lock_option,
    name_tasks,
    new_state_option,
    part_options,
    planning_options,
    project_command,
    unplaced_option,
)
from declarative.cli.output import INTERRUPTED, STOPPING, say, stopping
from declarative.converge.project import ProjectSession
from declarative.converge.state_access import DEFAULT_STATE, of_state
from declarative.model.diagnostic import failed
from declarative.model.text import and_more, clean

if TYPE_CHECKING:
    from declarative.apply.graph_walk import ActionResult
    from declarative.apply.retry_schedule import Due
    from declarative.cli.run_output import RunOutput
    from declarative.converge.planning import RunOptions
    from declarative.converge.ports import RunOutcome
    from declarative.converge.run import Run
    from declarative.model.resource import Desired
    from declarative.model.spec.policy import PlanKey
    from declarative.planner.approval import PlanDigest
    from declarative.planner.plan import Plan
    from declarative.store import Writer

MOST_BYTES = 256 << 20
"""Of a report that `--expect` names."""
NOTHING_DONE = (
    "nothing was done: a task cannot be placed (`--allow-unplaced`, or `allow_unplaced: true` in the "
    "project, does the rest)"
)
SENSIBLE = frozenset(
    (
        *("file", "auto_approve", "wait", "allow_unplaced", "parallelism", "accept_vanished", "as_json"),
        *("lock_timeout", "signed_by", "state_url"),
    )
)
"""Options of `apply` that a saved plan allows. All others change what is planned, which is settled."""


def signers(session: ProjectSession, signer: str | None) -> Collection[PlanKey] | None:
    """The keys that may sign plans, by the operator's policy, else by the caller; None if none is needed.

    An empty variable is not a permission: `InvalidError`, as for any text that is not a key.
    """
    from declarative.cli.plan_files import VARIABLE, keys_of

    policy = session.policy()
    if policy.plan_keys is not None:
        return policy.plan_keys
    signer = os.environ.get(VARIABLE) if signer is None else signer
    return None if signer is None else keys_of(signer)


ELSEWHERE = (
    "there is no YAML file here, and nothing was ever recorded: "
    "`fleetform -C DIR destroy` names the project's directory"
)


@click.command(
    "apply",
    epilog=examples(
        "fleetform apply --auto-approve --wait",
        "fleetform apply --lock-timeout 5m",
        "fleetform apply --reuse",
        "fleetform apply next.plan",
        "fleetform apply --expect plan.json",
    ),
)
@click.argument("file", required=False, type=click.Path())
@approve_option
@click.option("--wait", is_flag=True, help="Follow the tasks to their end, and fail if they fail.")
@unplaced_option
@new_state_option
@apply_options
@click.option(
    "--expect",
    metavar="DIGEST|FILE",
    help="Plan, and apply without asking if the plan has this digest, or that of this report (.md, .html or "
    ".json); else say what differs.",
)
@click.option(
    "--earlier",
    metavar="FILE",
    multiple=True,
    type=click.Path(),
    help="With --expect: the report of an earlier approved plan that may not be done in full; the oldest "
    "first.",
)
@click.option(
    "--signed-by",
    metavar="KEY",
    help="With FILE: refuse a plan that this public key (`ssh-ed25519 AAAA…`), or one in a file of that "
    "name, did not sign. Also FLEETFORM_SIGNED_BY.",
)
@planning_options
@json_option
@lock_option
@project_command
def apply_command(session: ProjectSession, *, file: str | None, **options: Any) -> int:
    """Converge: create, change and delete until everything is as declared.

    Shows the plan and asks first. Exits 0, 1 on errors, 3 if a task cannot be placed (and does nothing
    then, unless its `retry` says to wait for capacity, it waits for a `schedule`, or the project says
    `allow_unplaced`), 4 if an action failed, a backend could not be read or, with --wait, a task failed; 130
    when interrupted. With --json, each event is one line of JSON; the `result` of the summary is `done`,
    `unhealthy`, `waiting`, `failed` or `interrupted`.

    With --wait, a task that failed or has no place now is tried again as its `retry` says. One that failed
    before, and is not run again, is named under `Ended` and does not change the exit code.

    With FILE it does what `fleetform plan --out FILE` saved, exactly that and without asking, or refuses and
    names what has changed since. The YAML is not read then. The operator's policy may require that it is
    signed.

    With --expect it plans again, and does what was approved or nothing: CI can apply what a pull request
    showed, without keeping files. Where nothing is left to do, it succeeds.
    """
    from declarative.cli.run_output import RunOutput

    with RunOutput("apply", as_json=options["as_json"]) as output:
        if file is not None:
            return _apply_saved(session, file, options, output)
        return _apply_declared(session, options, output)


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


def _apply_declared(session: ProjectSession, options: Mapping[str, Any], output: RunOutput) -> int:
    """An apply of what the YAML declares."""
    from declarative.converge.planning import check_requested
    from declarative.converge.run import Run

    if options["signed_by"] is not None:
        raise failed("usage", "`--signed-by` is about a saved plan", "name its file: `fleetform apply FILE`")
    approved, earlier = None, []
    if options["expect"] is not None:
        earlier = [expected(name, earlier=True) for name in options["earlier"]]
        approved = expected(options["expect"])
    elif options["earlier"]:
        raise failed("usage", "`--earlier` is about what else was approved", "name the plan: `--expect FILE`")
    changing = ("requested", "targets", "excludes", "reuse", "expect", "wait")
    check_refresh(options["refresh_only"], (options[name] for name in changing))

    def read() -> Desired:
        return session.load(look="contents").desired

    desired = read()
    say(session.warnings)
    check_requested(options["requested"], desired)
    if approved is not None:
        _check_state_outlives_job(session, desired)
    run: Run = Run(
        session,
        desired,
        "apply",
        _run_options(options, approved=approved, earlier=tuple(earlier)),
        output,
        stopping=lambda: stopping(STOPPING),
        consent=lambda: _ask(run, approved=options["auto_approve"] or approved is not None, output=output),
    )
    with session.state.lock(run.store, run.doing, options["lock_timeout"]) as writer:
        _read_again(run, read)
        if options["refresh_only"]:
            outcome = run.refresh_only(writer)
            if not outcome.is_refused:
                output.summary((), outcome.result, run.origin, outcome.plan)
        else:
            outcome = _converge(run, run.make_plan(writer, run.options.requested), writer, output)
    return _end(run, outcome, output)


def _apply_saved(session: ProjectSession, file: str, options: Mapping[str, Any], output: RunOutput) -> int:
    """An apply of a saved plan; `InvalidError` for options that have no effect on one."""
    from declarative.cli.plan_files import read
    from declarative.converge.run import checked_plan, run_of

    ctx = click.get_current_context()
    ineffective = [
        f"`{max(p.opts, key=len)}`"
        for p in ctx.command.params
        if p.name not in SENSIBLE and ctx.get_parameter_source(p.name or "") is ParameterSource.COMMANDLINE
    ]
    if ineffective:
        hint = "give them to `fleetform plan`"
        if len(ineffective) == 1:
            hint = "give it to `fleetform plan --out FILE`"
        raise failed("usage", f"{', '.join(ineffective)} has no effect on a saved plan", hint)
    saved = read(file, signers(session, options["signed_by"]))
    options_of_run = _run_options(options)
    run = run_of(session, saved, options_of_run, output, stopping=lambda: stopping(STOPPING))
    with session.state.lock(run.store, run.doing, options["lock_timeout"]) as writer:
        outcome = _converge(run, checked_plan(run, saved, writer), writer, output)
    return _end(run, outcome, output)


def _run_options(options: Mapping[str, Any], **more: Any) -> RunOptions:
    """The options of the command line that a run knows."""
    from declarative.converge.planning import RunOptions

    return RunOptions(
        requested=frozenset(options.get("requested", ())),
        targets=options["targets"],
        excludes=options["excludes"],
        reuse=options.get("reuse", False),
        effort=options.get("effort", 1),
        allow_unplaced=options.get("allow_unplaced"),
        new_state=options.get("new_state", False),
        refresh_only=options.get("refresh_only", False),
        accept_vanished=options["accept_vanished"],
        parallelism=options["parallelism"],
        follows=options.get("wait", False),
        **more,
    )


def _read_again(run: Run, read: Callable[[], Desired]) -> None:
    """Read the files once more after a wait: meanwhile, somebody may have changed and applied them."""
    session = run.session
    if session.state.waited:
        before = session.warnings
        run.desired = read()
        run.tasks = run.desired.tasks
        say(tuple(d for d in session.warnings if d not in before))
        session.state.check_still(run.desired)


def _converge(run: Run, plan: Plan, writer: Writer, output: RunOutput) -> RunOutcome:
    """Carry out the plan, and print how that ended while the lock is held."""
    outcome = run.converge(plan, writer)
    if outcome.result == "unplaced":
        sys.stderr.write(f"{NOTHING_DONE}\n")
    elif not outcome.is_refused:
        output.finished(outcome, follows=run.options.follows)
    return outcome


def _end(run: Run, outcome: RunOutcome, output: RunOutput) -> int:
    """With `--wait`, follow the tasks to their end; else say which tasks run. Returns the exit code."""
    if run.options.follows and outcome.exit_code in (0, 4) and outcome.carried_out:
        return max(TaskFollowing(run, output).follow(), outcome.exit_code)
    tasks = run.running_tasks() if outcome.exit_code == 0 and not output.as_json else ()
    if tasks:
        sys.stderr.write(f"running: {name_tasks(tasks)} (follow with `fleetform logs {tasks[0]} -f`)\n")
    return outcome.exit_code


def _ask(run: Run, *, approved: bool, output: RunOutput, remark: str = "") -> None:
    """Ask at the terminal, after a `remark`; `InvalidError` without consent."""
    output.out.flush()
    preposition = "in" if run.doing == "destroy" else "to"
    confirm(
        f"\n{remark}{run.doing.capitalize()} this {preposition} {clean(run.origin.project)}? ",
        approved=approved,
        doing=run.doing,
        look="look at the plan",
        as_json=output.as_json,
    )


def _check_state_outlives_job(session: ProjectSession, desired: Desired) -> None:
    """Refuse a CI job without a named state: the file would go with the runner, or be empty on it."""
    in_job = os.environ.get("GITHUB_ACTIONS") or os.environ.get("GITLAB_CI")
    if in_job and not session.state.named and not desired.project.state:
        hint = (
            "keep it on a server: `state: postgresql://…` in the project, or FLEETFORM_STATE; "
            f"if this runner keeps its folders: `--state {DEFAULT_STATE}`"
        )
        raise failed("runner-state", "the state would be a file in this job's folder", hint)


@click.command("destroy", epilog=examples("fleetform destroy --auto-approve"))
@approve_option
@click.option(
    "--orphans", is_flag=True, help="Delete what this state made and does not record, and nothing else."
)
@apply_options
@partial(part_options, target="what depends on it", exclude="what it needs")
@json_option
@lock_option
@project_command
def destroy_command(session: ProjectSession, *, orphans: bool, **options: Any) -> int:
    """Stop all tasks and delete all nodes and volumes, except those with `prevent_destroy`: in the present
    YAML, or at the last apply if the YAML does not have them any more.

    It does the steps of an apply in reverse. Volumes are protected unless they say otherwise; it names what
    is left. With --orphans, what is recorded stays as it is.
    """
    from declarative.cli.run_output import RunOutput
    from declarative.converge.run import Run
    from declarative.model.resource import Desired

    nothing = _nothing(session)
    say(session.warnings)
    with RunOutput("destroy", as_json=options["as_json"]) as output:

        def ask(*, with_protected: bool = True) -> None:
            stays = list(protected(run)) if with_protected else []
            remark = f"Protected, and kept: {and_more(stays, 20)}.\n" if stays else ""
            _ask(run, approved=options["auto_approve"], output=output, remark=remark)

        run: Run = Run(
            session,
            nothing,
            "destroy",
            _run_options(options),
            output,
            stopping=lambda: stopping(STOPPING),
            consent=ask,
        )
        if orphans:
            from declarative.cli.state import destroy_orphans

            return destroy_orphans(run, output, partial(ask, with_protected=False), options["lock_timeout"])
        with session.state.lock(run.store, run.doing, options["lock_timeout"]) as writer:
            _read_again(run, partial(_nothing, session))
            outcome = _converge(run, run.make_plan(writer), writer, output)
        if outcome.carried_out:
            stays = protected(run)
            guarded = [address for address, is_guarded in stays.items() if is_guarded]
            names = [address for address, is_guarded in stays.items() if not is_guarded]
            unprotect = "write `prevent_destroy: false` in their fleets and volumes"
            if any(name.startswith("volume/") and name not in run.desired.protected for name in names):
                without = "`removed: [{from: volume/NAME, destroy: true}]` in the project"
                unprotect = f"{unprotect} (of a volume without one: {without})"
            hint = f"To delete them too: {unprotect}, and destroy again."
            output.say_protected(names, hint, guarded)
            if run.desired == Desired() and run.store.read().lineage is None and not output.as_json:
                sys.stderr.write(f"{ELSEWHERE}\n")
        return outcome.exit_code


def _nothing(session: ProjectSession) -> Desired:
    """The declaration that `destroy` works towards: only what the files protect."""
    from declarative.model.resource import Desired

    loaded = session.load_if_any()
    desired = loaded.desired if loaded else Desired()
    fleets = {f"fleet/{name}": fleet.prevent_destroy for name, fleet in desired.fleets.items()}
    volumes = {f"volume/{name}": v.inputs.prevent_destroy for name, v in desired.volumes.items()}
    return Desired(
        project=desired.project,
        backends=desired.backends,
        places=desired.places,
        protected={**fleets, **volumes},
    )


def protected(run: Run) -> dict[str, bool]:
    """The protected things that `destroy` was asked to delete → whether `limits.protected` guards them."""
    from declarative.planner.part import is_selected

    state, desired = run.store.read(), run.desired
    asked = (run.options.targets, run.options.excludes)
    nodes = {str(r.address): r.node for r in state.of("node") if is_selected(r, *asked)}
    volumes = {str(r.address): r.volume for r in state.of("volume") if is_selected(r, *asked)}
    meant = (nodes | volumes).items()
    return {at: desired.is_guarded(at, inputs) for at, inputs in meant if desired.protects(at, inputs)}


# ---------------------------------------------------------------------------------- `apply --wait` follows

PATIENCE = 5.0
"""Seconds that a retry waits for the lock before it looks again."""
OVERTAKEN = "was changed by another command: this one runs nothing again; `fleetform apply --wait` does"
Step = Literal["on", "over", "interrupted"]
LEAVING = "leaving: the tasks go on (`fleetform status`, `fleetform logs {} -f`)"


class TaskFollowing:
    """Tasks that are followed to their end. Those that fail run again as their `retry` says."""

    def __init__(self, run: Run, output: RunOutput) -> None:
        from declarative.apply.retry_schedule import Retries
        from declarative.apply.watch import Idle

        self._run, self._output = run, output

        def on_retry(task: str, due: Due) -> None:
            output.say(f"task/{task} runs again in {due.delay:.0f} s: {due.cause}")

        # A saved plan has no retries, and no tasks that already wait for a place: its YAML is not read.
        state, tasks = run.store.read(), run.desired.tasks
        waiting = [task for task in (run.plan.unplaced.waiting if run.plan else ()) if task in tasks]
        self._retries = retries = Retries(tasks, run.now, on_retry=on_retry)
        retries.wait_for_place(waiting)
        lacking = {task: lack.what for task, lack in run.lacking.items()}
        retries.tried(lacking, (), lacking)
        retries.tried(run.unstarted, (), dict.fromkeys(run.unstarted))
        output.say_retries(retries.waits((*waiting, *lacking, *run.unstarted)))
        retries.leave(state)
        self._idle = Idle(run.desired.fleets, run.now)
        self._idle.leave(state)
        self._tasks = tuple(sorted({*run.running_tasks(), *waiting}))

    def follow(self) -> int:
        """Watch the tasks, and say how each ended: 0, 3 if one found no place, 4, or 130.

        4 also if the state is lost, as with its lock, while a task is started again: what was done is
        reported.
        """
        from declarative.apply.retry_schedule import NOT_STARTED
        from declarative.apply.watch import follow as watch
        from declarative.model.state import natural
        from declarative.model.status import RankState
        from declarative.render.output_json import iso
        from declarative.store import StateError

        run, retries = self._run, self._retries
        if not self._tasks:
            return 0
        step: Step = "on"
        while step == "on":
            # Made anew each time: the things of a task that runs again may be on other nodes.
            backends = run.session.backends(run.desired, run.store.read())
            with stopping(LEAVING.format(self._tasks[0])) as stop:
                states = watch(
                    run.store,
                    backends,
                    self._tasks,
                    retries,
                    idle=self._idle,
                    stopping=stop,
                    settled=run.refresh,
                    remind=self._output.say,
                )
            try:
                step = "interrupted" if stop.is_set() else self._step()
            except StateError as error:
                say(of_state(error, run.session.directory).diagnostics)
                return 4
        if step == "interrupted":
            return INTERRUPTED
        without_place = retries.without_place
        never = {task: NOT_STARTED for task in states if not retries.knew(task)}
        self._output.say_ended(run.store, states, {**never, **without_place})
        state = run.store.read()
        for name, when in sorted(self._idle.when(state).items(), key=lambda item: natural(item[0])):
            node = state.get("node", name)
            if node and node.node.price != 0:
                self._output.say(f"node/{name} is idle: `fleetform apply` gives it back from {iso(when)} on")
        bad = [task for task, ended in states.items() if ended is not RankState.SUCCEEDED]
        if not bad:
            return 0
        return 3 if all(t in without_place and states[t] is RankState.PENDING for t in bad) else 4

    def _step(self) -> Step:
        """Start the tasks that are to run again, or delete idle nodes; `over` when all tasks have ended."""
        from declarative.apply.watch import is_over

        state = self._run.store.read()
        ready = self._retries.ready(state)
        # If a task is ready although it had ended, another command was faster: it runs again.
        over = not ready and is_over(state, self._tasks, self._retries)
        # If another command declares the tasks anew, their new ranks come when the old ones have gone.
        replaced = over and self._retries.any and self._retries.overtaken(state, self._tasks) is not None
        if over and not replaced:
            return "over"
        if ready or replaced:
            goes_on = self._start_again(ready)
        else:
            goes_on = not self._idle.ready(state) or self._release_places()
        return "on" if goes_on else "interrupted"

    def _start_again(self, tasks: Collection[str]) -> bool:
        """Start tasks once more; False after an interruption."""
        from declarative.apply.retry_schedule import lacking, part_for
        from declarative.converge.run import check_env
        from declarative.model.inputs import RankInputs

        run = self._run
        results: tuple[ActionResult, ...] = ()
        with stopping(STOPPING) as stop, self._locked() as writer:
            if writer is None:
                return not stop.is_set()
            plan = run.make_plan(writer)
            if plan.result == "error":
                say(plan.diagnostics)
                plan = replace(plan, actions=())
            else:
                plan = part_for(plan, tasks)
                check_env(plan, writer.state())
            if plan.actions:
                results, _ = run.perform(plan, writer, stop)
            if run.faults:
                raise run.faults[0]
            self._retries.leave(writer.state())
            self._idle.leave(writer.state())
        undone = {r.address for r in results if r.outcome != "done"}
        starts = [
            (action.typed.task, str(action.address))
            for action in plan.actions
            if action.op == "create" and isinstance(action.typed, RankInputs)
        ]
        broken = {task for task, address in starts if address in undone}
        lacks = lacking(plan, results)
        causes = {task: lacks[task].what if task in lacks else None for task in broken}
        self._retries.tried(tasks, {task for task, _ in starts} - broken, causes)
        if not stop.is_set():
            self._output.say_retries(self._retries.waits(tasks))
        return not stop.is_set()

    def _release_places(self) -> bool:
        """Delete nodes that were idle for their fleet's `idle_duration`; False after an interruption."""
        run = self._run
        self._idle.tried()
        with stopping(STOPPING) as stop, self._locked() as writer:
            plan = run.make_plan(writer) if writer else None
            if writer and plan and plan.result != "error":
                spare = tuple(a for a in plan.actions if a.op == "delete" and a.reason == "idle")
                if spare:
                    run.perform(plan.only(spare), writer, stop)
                    if run.faults:
                        raise run.faults[0]
        return not stop.is_set()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Writer | None]:
        """The lock; None while another command holds it, which may do the same, or after one that has
        declared other things.
        """
        from declarative.store import StateError

        with contextlib.ExitStack() as stack:
            try:
                writer = stack.enter_context(self._run.store.lock(self._run.doing, PATIENCE))
            except StateError as error:
                if error.code != "locked":
                    raise
                yield None
                return
            changed = self._retries.overtaken(writer.state())
            if changed:
                self._output.say(f"task/{changed} {OVERTAKEN}")
                self._retries.end()
                self._idle.end()
            yield None if changed else writer
