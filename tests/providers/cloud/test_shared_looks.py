"""`providers.cloud.shared_looks`: callers that wait for the same thing share a look."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from providers.cloud.shared_looks import Looks
from tests.support.cli import until

LONG = 600.0
"""Seconds that no test waits: somebody else looks before."""


def test_who_is_alone_looks_for_himself():
    asked = []

    def ask(keys):
        asked.append(list(keys))
        return {"a": 1}

    looks = Looks(ask)
    assert (looks.next("a", 0.0), looks.next("b", 0.01)) == (1, None)
    assert asked == [["a"], ["b"]]


def test_the_first_one_asks_for_all_that_wait():
    asked = []

    def ask(keys):
        asked.append(list(keys))
        return {key: key.upper() for key in keys if key != "d"}

    looks = Looks(ask)
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(looks.next, key, LONG) for key in "bcd"]
        until(lambda: len(looks._waiting) == 3)
        assert looks.next("a", 0.0) == "A"
        assert [other.result(60) for other in others] == ["B", "C", None]
    assert asked == [["a", "b", "c", "d"]]


def test_who_comes_while_another_looks_is_not_in_that_look():
    """What it finds may be older than what he waits for. Nor does he have to wait for its end."""
    inside, go = threading.Event(), threading.Event()
    asked = []

    def ask(keys):
        asked.append(list(keys))
        if keys == ["a"]:
            inside.set()
            assert go.wait(60)
        return dict.fromkeys(keys, len(asked))

    looks = Looks(ask)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(looks.next, "a", 0.0)
        assert inside.wait(60)
        assert looks.next("b", 0.0) == 2
        go.set()
        assert first.result(60) is not None
    assert asked == [["a"], ["b"]]


def test_a_look_that_fails_is_the_fault_of_who_looked():
    """The others ask themselves, when their time has come."""
    asked = []

    def ask(keys):
        asked.append(list(keys))
        if len(asked) == 1:
            raise ValueError("lost")
        return dict.fromkeys(keys, "found")

    looks = Looks(ask)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(looks.next, "b", LONG)
        until(lambda: looks._waiting == {"b"})
        with pytest.raises(ValueError, match="lost"):
            looks.next("a", 0.0)
        until(lambda: looks._waiting == {"b"})
        assert not other.done()
        assert looks.next("a", 0.0) == "found"
        assert other.result(60) == "found"
    assert asked == [["a", "b"], ["a", "b"]]
