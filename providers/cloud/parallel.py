"""Threads that ask a cloud side by side: each question takes as long as the way there and back."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def asking(at_once: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads for questions that change nothing. What is not asked yet when this ends, never is.

    Who presses Ctrl-C does not wait for answers: one may take a minute.
    """
    pool = ThreadPoolExecutor(at_once, thread_name_prefix=name)
    try:
        yield pool
    except BaseException as error:
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()
