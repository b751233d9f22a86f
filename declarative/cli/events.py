"""`fleetform events`: what happened, from a cursor on. Also the project's webhooks, with their values from
the environment, and their deliveries beside a loop.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

import click

from declarative.cli.options import declared, examples, json_option, project_command
from declarative.cli.output import emit_text, out_style, pause, say, say_line
from declarative.converge.project import ProjectSession
from declarative.converge.state_access import of_state
from declarative.model.diagnostic import Diagnostic, InvalidError, failed

if TYPE_CHECKING:
    from declarative.model.resource import Desired
    from declarative.model.spec.policy import OperatorPolicy
    from declarative.reconcile.loop import Round
    from declarative.serve.webhooks import Webhook
    from declarative.store import Store

TELLING = 1.0
"""Seconds between two looks whether there is something to tell."""
DRIVER = "notify"
"""The name of webhooks in the policy: variables for them begin with NOTIFY_."""


def targets(session: ProjectSession) -> tuple[list[Webhook], tuple[Diagnostic, ...]]:
    """The usable webhooks, and what the others lack."""
    from declarative.serve.webhooks import Webhook

    policy = session.policy()
    webhooks: list[Webhook] = []
    faults: list[Diagnostic] = []
    for hook in session.current.project.notify:
        try:
            url = _value(hook.url, hook.name, policy)
            secret = hook.secret and _value(hook.secret, hook.name, policy)
            if policy.refused_endpoint(url):
                summary = f"the URL of webhook {hook.name}, in `{hook.url}`, is not allowed"
                hint = "use `https://…`; see `endpoints` in docs/security.md"
                raise failed("bad-credential", summary, hint)
        except InvalidError as error:
            faults += error.diagnostics
        else:
            webhooks.append(Webhook(hook, url, secret))
    return webhooks, tuple(faults)


def _value(variable: str, name: str, policy: OperatorPolicy) -> str:
    if policy.refused_variable(DRIVER, variable) is not None:
        hint = f"name it NOTIFY_…, or allow it: `--allow-variable {variable}`"
        raise failed("bad-credential", f"webhook {name} may not have the variable `{variable}`", hint)
    if value := os.environ.get(variable):
        return value
    summary = f"webhook {name} needs `{variable}`, and it is not set"
    raise failed("missing-env", summary, f"set `{variable}`")


@contextmanager
def notifying(session: ProjectSession) -> Iterator[Callable[[Round], None]]:
    """Deliver events to the webhooks while this loop leads. The result is an observer of rounds."""
    from declarative.serve.webhooks import Announcer, Deliveries
    from declarative.store import StateError

    deliveries = Deliveries(lambda: session.state.write_anew(session.current), session.clock, say_line)
    announcer = Announcer(deliveries.write_event)
    leads, over = threading.Event(), threading.Event()
    shown: set[Diagnostic] = set()

    def say_new(faults: tuple[Diagnostic, ...]) -> None:
        say(tuple(f for f in faults if f not in shown))
        shown.update(faults)

    @contextmanager
    def going_on() -> Iterator[None]:
        """A state that is away ends neither the loop nor the thread beside it: both try again."""
        try:
            yield
        except InvalidError as error:
            say_new(error.diagnostics)
        except StateError as error:
            say_new(of_state(error, session.directory).diagnostics)

    def observe(done: Round) -> None:
        (leads.set if done.held else leads.clear)()
        if done.plan is not None or done.errors:
            with going_on():
                announcer.observe(done)

    def tick() -> None:
        hooks = session.current.project.notify
        if leads.is_set() and hooks:
            with going_on():
                webhooks, faults = targets(session)
                say_new(faults)
                deliveries.tick(webhooks, {hook.name for hook in hooks})

    def run() -> None:
        while not over.wait(TELLING):
            tick()

    thread = threading.Thread(target=run, name="notify", daemon=True)
    thread.start()
    try:
        yield observe
    finally:
        over.set()
        thread.join()
        tick()  # of what the last round did, `--once` too
        deliveries.close()


def deliver_once(session: ProjectSession, store: Store) -> bool:
    """Deliver to all webhooks all events that they lack; whether each has all of them."""
    from declarative.serve.webhooks import deliver

    webhooks, faults = targets(session)
    say(faults)
    store.hooks.keep(hook.name for hook in session.current.project.notify)
    failures: dict[str, str] = {}

    def run(target: Webhook) -> None:
        why = deliver(store, target, session.clock, at_once=True)
        if why is not None:
            failures[target.hook.name] = why

    threads = [threading.Thread(target=run, args=(target,)) for target in webhooks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, why in sorted(failures.items()):
        say_line(f"notify {name} is not told of events: {why}")
    return not failures and not faults


SHOWN = 50
"""Events that are printed without a cursor."""
POLL = 1.0
MOST_DIGITS = 18


@click.command(
    "events",
    epilog=examples(
        "fleetform events",
        "fleetform events --type 'rank.*' --type node.unreachable -f",
        "fleetform events --since 1042 --json",
    ),
)
@click.option(
    "--since",
    metavar="CURSOR",
    help="Print the events after this one, the `cursor` of the last that you have; 0 for all that are kept.",
)
@click.option(
    "--type",
    "types",
    metavar="PATTERN",
    multiple=True,
    help="Print only these: `rank.failed`, `node.*`; `*` is a wildcard.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with new events until interrupted.")
@click.option(
    "--deliver",
    is_flag=True,
    help="Print nothing: deliver once, as from cron, the events that the webhooks of `notify` lack.",
)
@json_option
@partial(project_command, short_names=())  # `-f` follows
def events_command(
    session: ProjectSession,
    since: str | None,
    types: tuple[str, ...],
    follow: bool,
    deliver: bool,
    as_json: bool,
) -> int:
    """Print what happened, oldest first: things made and deleted, states of nodes, ranks and tasks, and what
    users did.

    With --json each event is a line of JSON. Its `cursor` is what --since takes to go on behind it; its `id`
    never changes. Without --since the last 50 are printed.

    --deliver does what `fleetform reconcile` does by itself, and exits 1 if a delivery failed. A new webhook
    gets the events from then on.
    """
    from declarative.model.schema import BadValueError
    from declarative.model.spec.project import EventPattern
    from declarative.render.listings import event_json, events_text
    from declarative.render.output_json import to_line

    for pattern in types:
        try:
            EventPattern.parse(pattern)
        except BadValueError as error:
            raise failed("usage", f"`--type {pattern}`: {error.summary}", error.hint) from None
    if deliver:
        with session.state.write_anew(session.load().desired) as store:
            return 0 if deliver_once(session, store) else 1
    desired = declared(session, warn=not as_json)
    cursor = _start(session, desired, since)
    while True:
        with session.state.read_anew(desired) as store:
            events, lineage = store.events.after(cursor), store.lineage()
        chosen = [e for e in events if not types or any(fnmatchcase(e.type, pattern) for pattern in types)]
        if chosen and as_json:
            emit_text("".join(f"{to_line(event_json(event, lineage))}\n" for event in chosen))
        elif chosen:
            emit_text(events_text(chosen, color=out_style()["color"]))
        if events:
            cursor = events[-1].id
        elif not follow:
            return 0
        else:
            pause(POLL)


def _start(session: ProjectSession, desired: Desired | None, since: str | None) -> int:
    """The cursor to begin after. Warns if events after it are gone."""
    with session.state.read_anew(desired) as store:
        first, last = store.events.bounds()
    if since is None:
        return max(0, last - SHOWN)
    if not since.isascii() or not since.isdigit() or len(since) > MOST_DIGITS:
        raise failed("usage", f"`{since}` is not a cursor", "take the `cursor` of an event, or 0 for all")
    cursor = int(since)
    if cursor > last:
        hint = "the state was restored from a backup, or it is another one: begin with `--since 0`"
        raise failed("usage", f"the last event is {last}, and the cursor {cursor} lies behind it", hint)
    if cursor and cursor + 1 < first:
        sys.stderr.write(f"warning: the events {cursor + 1} to {first - 1} are not kept any more\n")
    return cursor
