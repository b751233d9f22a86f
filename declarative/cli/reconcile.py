"""`fleetform reconcile` and `approve`: refresh, plan and apply, again and again, unattended."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from declarative.cli.events import notifying
from declarative.cli.options import apply_options, examples, json_option, project_command
from declarative.cli.output import STOPPING, emit, emit_text, stopping, timed_lines
from declarative.cli.status import Listen, listen_options, listening
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import InvalidError, failed

if TYPE_CHECKING:
    from declarative.reconcile.watched_files import Checkout


@click.command(
    "reconcile",
    epilog=examples(
        "fleetform reconcile",
        "fleetform reconcile --once",
        "fleetform reconcile --git https://example.com/infra.git --path prod",
    ),
)
@click.option("--once", is_flag=True, help="One round, for timers.")
@click.option("--git", "url", metavar="URL", help="Follow a branch of this Git repository, in a clone here.")
@click.option("--branch", default="main", show_default=True, help="With --git: the branch.")
@click.option("--path", "within", default="", metavar="DIR", help="With --git: the project's folder in it.")
@listen_options(None)
@apply_options
@json_option
@project_command
def reconcile_command(
    session: ProjectSession,
    *,
    once: bool,
    url: str | None,
    branch: str,
    within: str,
    listen: Listen | None,
    token_file: Path | None,
    accept_vanished: bool,
    parallelism: int,
    as_json: bool,
) -> int:
    """Keep everything as declared: look, plan and apply, again and again, and ask nobody.

    The `project` document says what it may do alone (`reconcile`). The rest waits for `fleetform approve`. It
    reads the files again when they change; while they have errors, the earlier declaration holds. If several
    loops run on one state, only one acts.

    With --git the files are those of a branch: `git` fetches it before each round, with your own login. The
    clone lies in a folder named like the repository; run other commands there (`fleetform -C`).

    With --listen it is seen over HTTP as with `fleetform serve`, and /readyz says whether rounds go on.

    Each line of its log begins with the time, in UTC, unless a terminal shows it or with --json.

    Runs until SIGTERM or Ctrl-C, ends what it has started, and exits 0. With --once it exits as
    `apply --allow-unplaced` does.
    """
    from declarative.cli.run_output import LoopOutput
    from declarative.reconcile.loop import Loop, Stop
    from declarative.reconcile.rounds import Rounds
    from declarative.store.lock import Renewal
    from declarative.store.loop_state import RENEWED_EVERY

    stop = Stop()
    rounds = Rounds(
        session,
        LoopOutput(session, as_json=as_json),
        stop,
        _follow(session, url, branch, within),
        accept_vanished=accept_vanished,
        parallelism=parallelism,
        once=once,
    )
    at_it = listening(session, listen, token_file, lambda: rounds.interval)
    log: AbstractContextManager[None] = nullcontext() if as_json else timed_lines(session.clock)
    with log, stopping(STOPPING, stop), at_it as page, notifying(session) as webhooks:
        loop = Loop(rounds.step, (page, webhooks), clock=session.clock, wait=stop.wait)
        try:
            with Renewal(rounds.keep_lease, RENEWED_EVERY):
                if once:
                    loop.once()
                    return rounds.code
                loop.run(lambda: rounds.interval, rounds.early)
        finally:
            rounds.close()
    return 0


def _follow(session: ProjectSession, url: str | None, branch: str, within: str) -> Checkout | None:
    """Let the session work in the clone of a repository; `InvalidError` if there is none and it cannot be
    made.
    """
    if url is None:
        if within or branch != "main":
            raise failed("usage", "`--branch` and `--path` are about `--git`", "add `--git URL`")
        return None
    from declarative.reconcile.watched_files import Checkout, GitError, folder_of

    here = session.directory.absolute()
    if ":" not in url.partition("/")[0]:  # a folder
        url = str((here / url).resolve())
    try:
        checkout = Checkout(url, branch, here / folder_of(url))
        if checkout.commit is None:
            checkout.update()
    except GitError as error:
        raise InvalidError((error.diagnostic,)) from None
    root = checkout.folder.resolve()
    project = (root / within).resolve()
    if not project.is_relative_to(root) or not project.is_dir():
        summary = f"the branch `{branch}` has no folder `{within}`"
        raise failed("usage", summary, "write it as it is in the repository")
    session.directory = session.state.directory = project
    return checkout


@click.command("approve", epilog=examples("fleetform approve", "fleetform approve sha256:2c26b4…"))
@click.argument("digests", metavar="[DIGEST]...", nargs=-1)
@json_option
@project_command
def approve_command(session: ProjectSession, digests: tuple[str, ...], as_json: bool) -> int:
    """Approve what `fleetform reconcile` waits for; without a DIGEST, list that.

    The first characters of a digest are enough. It holds for exactly these actions: once the plan does
    something else, that waits for an approval of its own.
    """
    from declarative.render.listings import approvals_json, approvals_text

    store = session.store(write=bool(digests))
    waiting = [approval.digest for approval in store.loop.approvals()]
    for beginning in digests:
        matching = [d for d in waiting if d.startswith((beginning, f"sha256:{beginning}"))]
        if len(matching) != 1:
            what = "several plans that wait begin" if matching else "no plan that waits begins"
            raise failed("unknown-digest", f"{what} with `{beginning}`", "list them: `fleetform approve`")
        store.loop.approve(matching[0])
    approvals = [a for a in store.loop.approvals() if not digests or any(d in a.digest for d in digests)]
    if as_json:
        emit(approvals_json(approvals))
    else:
        emit_text(approvals_text(approvals))
    return 0
