"""Calls to many hosts or backends, side by side.

`side_by_side` and `ask_backends` wait for all answers. `prompt_answers` does not wait for those that are much
slower than the others: its threads are daemons, so that the process does not wait at its end for answers that
nobody wants any more.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 16
"""Calls that are made side by side by default."""
NODES_AT_ONCE = 64
"""Nodes whose ranks are started or stopped side by side: each stop may take its whole `stop_duration`."""
HOSTS_AT_ONCE = 128
"""Hosts that are asked side by side. Up to that many slow hosts hold up no other."""
BACKENDS_AT_ONCE = 8
"""Backends that are asked side by side; each may have many offers."""
HURRIED = 2.0
"""Seconds for hosts that are slower than the others: the user is looking at the screen."""
PATIENT = 20.0
"""The same if the answers are planned with or recorded: most hosts have reported their error by then."""
TIMES_SLOWER = 3
"""A host is left out only if it takes three times as long as half of the others."""

LATE = 5.0
"""Seconds without an answer of a backend, after which a person hears which backend it is."""
on_late: ContextVar[Callable[[Sequence[str]], None] | None] = ContextVar("on_late", default=None)
"""Is given the backends that are late, once for each time that several are asked; None to tell nobody."""


def side_by_side(items: Iterable[T], ask: Callable[[T], R], at_once: int = AT_ONCE) -> list[R]:
    """The answers, in the order of the items.

    If a call fails, no further one is begun, and its error is raised once the others have ended.
    """
    calls = [(copy_context(), item) for item in items]
    with ThreadPoolExecutor(min(at_once, len(calls)) or 1) as pool:
        return list(pool.map(lambda call: call[0].run(ask, call[1]), calls))


def ask_backends(names: Iterable[str], ask: Callable[[str], R]) -> dict[str, R]:
    """Backend → the answer, in the order of the names; raises what an `ask` raised."""
    contexts = {name: copy_context() for name in names}
    waiting = dict.fromkeys(contexts)

    def answer(name: str) -> R:
        try:
            return ask(name)
        finally:
            waiting.pop(name)

    tell = on_late.get()
    timer = threading.Timer(LATE, lambda: tell and tell(list(waiting)))
    timer.daemon = True
    if tell and waiting:
        timer.start()
    try:
        if len(contexts) == 1:
            return {name: answer(name) for name in contexts}
        calls = {name: (name, context) for name, context in contexts.items()}
        futures = start_calls(calls, lambda call: call[1].run(answer, call[0]), BACKENDS_AT_ONCE)
        return {name: future.result() for name, future in futures.items()}
    finally:
        timer.cancel()


def prompt_answers(asked: Mapping[str, T], ask: Callable[[T], R], patience: float = PATIENT) -> dict[str, R]:
    """Name → the answer, of all that gave one in time; raises what an `ask` raised.

    Once half of them have answered, the others are waited for `patience` seconds more, or longer if the first
    half took long; then those that did not answer are left out. Until then it is not they who are slow.
    """
    answers: dict[str, R] = {}
    done: queue.SimpleQueue[tuple[str, Future[R]]] = queue.SimpleQueue()
    started, limit = time.monotonic(), None

    def put(name: str, future: Future[R]) -> None:
        done.put((name, future))

    for name, future in start_calls(asked, ask).items():
        future.add_done_callback(partial(put, name))
    while len(answers) < len(asked):
        try:
            name, future = done.get(timeout=None if limit is None else max(0.0, limit - time.monotonic()))
        except queue.Empty:
            break
        answers[name] = future.result()
        if limit is None and len(answers) * 2 >= len(asked):
            now = time.monotonic()
            limit = now + max(patience, (TIMES_SLOWER - 1) * (now - started))
    return answers


def start_calls(
    asked: Mapping[str, T], ask: Callable[[T], R], at_once: int = HOSTS_AT_ONCE
) -> dict[str, Future[R]]:
    """Name → the answer that is to come."""
    futures: dict[str, Future[R]] = {name: Future() for name in asked}
    waiting = iter(list(asked.items()))

    def work() -> None:
        for name, item in waiting:
            try:
                futures[name].set_result(ask(item))
            except BaseException as error:  # noqa: BLE001  # it is raised where somebody waits for it
                futures[name].set_exception(error)

    for _ in range(min(at_once, len(asked))):
        threading.Thread(target=work, name="host", daemon=True).start()
    return futures
