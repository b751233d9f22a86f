"""Asking many hosts or backends at once. A slow host does not hold up the others' answers.

The threads are daemons: the process does not wait at its end for answers that nobody wants any more.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 128
"""Hosts that are asked side by side. Up to that many slow hosts hold up no other."""
BACKENDS = 8
"""Backends that are asked side by side; each may have many offers."""
HURRIED = 2.0
"""Seconds for hosts that are slower than the others: the user is looking at the screen."""
PATIENT = 20.0
"""The same if the answers are planned with or recorded. It is longer than connecting may take, so that most
hosts have reported their error by then.
"""
TIMES_SLOWER = 3
"""A host is only left out if it takes so many times as long as half of the others."""


LATE = 5.0
"""Seconds without an answer of a backend, after which a person is told whose it is."""
on_late: ContextVar[Callable[[Sequence[str]], None] | None] = ContextVar("on_late", default=None)
"""Is given the backends that are late, once for each time that several are asked; None to tell nobody."""


def answers(asked: Mapping[str, T], ask: Callable[[T], R], patience: float = PATIENT) -> dict[str, R]:
    """Name → the answer, of all that gave one; raises what an `ask` raised.

    Once half of them have answered, the others are waited for `patience` seconds more, or longer if the first
    half took long; then those that are left are left out. Until then it is not they who are slow.
    """
    found: dict[str, R] = {}
    done: queue.SimpleQueue[tuple[str, Future[R]]] = queue.SimpleQueue()
    started, limit = time.monotonic(), None
    for name, future in begin(asked, ask).items():
        future.add_done_callback(partial(_put, done, name))
    while len(found) < len(asked):
        try:
            name, future = done.get(timeout=None if limit is None else max(0.0, limit - time.monotonic()))
        except queue.Empty:
            break
        found[name] = future.result()
        if limit is None and len(found) * 2 >= len(asked):
            now = time.monotonic()
            limit = now + max(patience, (TIMES_SLOWER - 1) * (now - started))
    return found


def side_by_side(names: Iterable[str], ask: Callable[[str], R]) -> dict[str, R]:
    """Backend → the answer, in the order of the names; raises what an `ask` raised. All are waited for."""
    asked = {name: copy_context() for name in names}
    waiting = dict.fromkeys(asked)

    def answer(name: str) -> R:
        try:
            return ask(name)
        finally:
            waiting.pop(name)

    with _told(waiting):
        if len(asked) == 1:
            return {name: answer(name) for name in asked}
        items = {name: (name, context) for name, context in asked.items()}
        futures = begin(items, lambda each: each[1].run(answer, each[0]), BACKENDS)
        return {name: future.result() for name, future in futures.items()}


@contextmanager
def _told(waiting: Mapping[str, object]) -> Iterator[None]:
    """Tell whose answers are late, if somebody wants to know."""
    tell = on_late.get()
    if tell is None or not waiting:
        yield
        return
    timer = threading.Timer(LATE, lambda: tell(list(waiting)))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _put(done: queue.SimpleQueue[tuple[str, Future[R]]], name: str, future: Future[R]) -> None:
    done.put((name, future))


def begin(asked: Mapping[str, T], ask: Callable[[T], R], at_once: int = AT_ONCE) -> dict[str, Future[R]]:
    """The answers that are to come."""
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
