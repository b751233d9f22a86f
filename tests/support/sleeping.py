"""A command that falls asleep, and wakes up when its lease is long over: `sleeping.py STEP PLACES ARGS…`.

It runs `fleetform ARGS` and stops itself (SIGSTOP) before the STEP-th time that it comes to one of the
PLACES, a list with commas: PLACE, or PLACE=WORD where only those count that are about this word.

    call     a provider is about to be called; WORD is in the name of the method or in what it gets
    local    a command to a node of this machine is about to run
    queued   a command to a host waits for its turn and for a connection
    sent     a command to a host is about to be sent: whoever wrote may write was asked
    limited  a request to a cloud waits until the cloud can bear it
    dialled  a request to a cloud waits for a connection
    retry    a call that failed waits to be tried again
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

put = setattr  # a name of another module, which is no constant to us
about: ContextVar[str] = ContextVar("about", default="")


class Sleeper:
    """Counts the places that the command came to."""

    def __init__(self, step: int, places: str) -> None:
        self.step = step
        self.places = [place.partition("=")[::2] for place in places.split(",")]
        self.slept = 0

    def at(self, place: str, words: object) -> None:
        """Sleep here if it is time to."""
        if not any(place == one and word in str(words) for one, word in self.places):
            return
        self.step -= 1
        if self.step == 0:
            # Sent to this thread: it would run on for moments if another thread were to stop all of them.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            self.slept = 3600

    def before(self, owner: Any, name: str, place: str, words: Callable[..., object]) -> None:
        """Have calls of a method be a place; `words` says what it is about."""
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.at(place, words(*args, **kwargs))
            return real(*args, **kwargs)

        put(owner, name, call)

    def arm(self) -> None:
        """Set all places up."""
        from tenacity import nap

        from declarative.apply.backend_client import BackendClient
        from declarative.store import lock
        from providers.local.machine import BareTransport

        clock, sleep = time.clock_gettime, time.sleep
        put(time, "clock_gettime", lambda which: clock(which) + self.slept)
        # Who is stopped in the middle of a transaction keeps SQLite's lock, too.
        put(lock.Renewal, "_run", lambda _: None)
        for name in ("create", "update", "delete", "start", "release", "stop"):
            self.before(BackendClient, name, "call", lambda *words, name=name, **_: (name, *words[1:]))
        self.before(BareTransport, "run", "local", lambda _, argv, *_more, **_other: argv)
        waits = SimpleNamespace(sleep=sleep)
        put(nap, "time", waits)
        self.before(waits, "sleep", "retry", lambda _: "")
        wanted = {place for place, _ in self.places}
        if {"queued", "sent"} & wanted:
            self.arm_hosts()
        if {"limited", "dialled"} & wanted:
            self.arm_clouds()

    def arm_hosts(self) -> None:
        """The places on the way to a host."""
        from providers.ssh.link import Link

        real: Any = Link.run

        async def run(link: Any, command: str, *args: Any) -> Any:
            about.set(command)
            return await real(link, command, *args)

        put(Link, "run", run)
        self.before(Link, "connection", "queued", lambda *_: about.get())
        self.before(Link, "_answer", "sent", lambda *_: about.get())

    def arm_clouds(self) -> None:
        """The places on the way to a cloud."""
        from urllib3.connectionpool import HTTPConnectionPool

        from providers.cloud.connection import Connection, Limiter

        real: Any = Connection.call

        def call(connection: Any, what: str, *args: Any, **kwargs: Any) -> Any:
            about.set(what)
            return real(connection, what, *args, **kwargs)

        put(Connection, "call", call)
        self.before(Limiter, "wait", "limited", lambda *_: about.get())
        self.before(HTTPConnectionPool, "_get_conn", "dialled", lambda *_, **__: about.get())


if __name__ == "__main__":
    Sleeper(int(sys.argv.pop(1)), sys.argv.pop(1)).arm()
    from declarative import cli

    cli.main()
