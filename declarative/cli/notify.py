"""Webhooks of the project, with what the environment says of them; and who tells them beside a loop."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from declarative.cli.errors import Failed, failed
from declarative.cli.session import Session
from declarative.cli.state_access import of_state
from declarative.model.diagnostic import Diagnostic

if TYPE_CHECKING:
    from declarative.reconcile.round import Round
    from declarative.serve.webhooks import Webhook
    from declarative.store import Store

POLL = 1.0
"""Seconds between two looks whether there is something to tell."""
DRIVER = "notify"
"""What the policy calls it: variables that begin with NOTIFY_ are its own."""


def targets(session: Session) -> tuple[list[Webhook], tuple[Diagnostic, ...]]:
    """The webhooks that can be told, and what the others lack."""
    from declarative.serve.webhooks import Webhook

    policy = session.policy()
    found: list[Webhook] = []
    faults: list[Diagnostic] = []
    for hook in session.current.project.notify:
        try:
            url = _value(hook.url, hook.name, policy.refused_variable(DRIVER, hook.url))
            secret = hook.secret and _value(
                hook.secret, hook.name, policy.refused_variable(DRIVER, hook.secret)
            )
            if policy.refused_endpoint(url):
                summary = f"the URL of webhook {hook.name}, in `{hook.url}`, is not allowed"
                raise failed(
                    "bad-credential", summary, "use `https://…`; see `endpoints` in docs/security.md"
                )
        except Failed as error:
            faults += error.diagnostics
        else:
            found.append(Webhook(hook, url, secret))
    return found, tuple(faults)


def _value(variable: str, name: str, refused: str | None) -> str:
    if refused is not None:
        hint = f"name it NOTIFY_…, or allow it: `--allow-variable {variable}`"
        raise failed("bad-credential", f"webhook {name} may not have the variable `{variable}`", hint)
    value = os.environ.get(variable, "")
    if not value:
        raise failed(
            "missing-env", f"webhook {name} needs `{variable}`, and it is not set", f"set `{variable}`"
        )
    return value


@contextmanager
def _going_on(session: Session, say: Callable[[tuple[Diagnostic, ...]], None]) -> Iterator[None]:
    """A state that is away ends neither the loop nor the thread beside it: both try again."""
    from declarative.store import StateError

    try:
        yield
    except Failed as error:
        say(error.diagnostics)
    except StateError as error:
        say(of_state(error, session.directory).diagnostics)


@contextmanager
def notifying(session: Session) -> Iterator[Callable[[Round], None]]:
    """Tell the webhooks meanwhile, while this loop leads; what has to be told of rounds."""
    from declarative.serve.announce import Announcer
    from declarative.serve.webhooks import Deliveries

    deliveries = Deliveries(lambda: session.state.write_anew(session.current), session.clock, _say)
    announcer = Announcer(deliveries.tell)
    leads, over = threading.Event(), threading.Event()
    said: set[Diagnostic] = set()

    def say(faults: tuple[Diagnostic, ...]) -> None:
        session.say(tuple(f for f in faults if f not in said))
        said.update(faults)

    def observe(done: Round) -> None:
        (leads.set if done.held else leads.clear)()
        if done.plan is not None or done.errors:
            with _going_on(session, say):
                announcer.observe(done)

    def tick() -> None:
        hooks = session.current.project.notify
        if leads.is_set() and hooks:
            with _going_on(session, say):
                found, faults = targets(session)
                say(faults)
                deliveries.tick(found, {hook.name for hook in hooks})

    def run() -> None:
        while not over.wait(POLL):
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


def deliver_once(session: Session, store: Store) -> bool:
    """Tell all webhooks of all that they were not told of; whether each has it all."""
    from declarative.serve.webhooks import deliver

    found, faults = targets(session)
    session.say(faults)
    store.keep_hooks(hook.name for hook in session.current.project.notify)
    failures: dict[str, str] = {}

    def run(target: Webhook) -> None:
        why = deliver(store, target, session.clock, at_once=True)
        if why is not None:
            failures[target.hook.name] = why

    threads = [threading.Thread(target=run, args=(target,)) for target in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, why in sorted(failures.items()):
        _say(f"notify {name} is not told of events: {why}")
    return not failures and not faults


def _say(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
