"""Commands on hosts: the synchronous side. One thread has an event loop, in which all connections live.

Connections are kept for the whole process, one a host, whichever provider asks. asyncssh is imported with the
first of them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from declarative.provider import Fence, Source, reads_only
from providers.ssh.host import Host
from providers.ssh.line import command_line
from providers.transport import ConnectionLost, Finished

if TYPE_CHECKING:
    from providers.ssh.link import Link, Links

T = TypeVar("T")

CLOSING = 3.0
"""Seconds that a process waits at its end for hosts to hear that it goes."""

NOT_FOUND = (2, 127)
"""What a shell says of a script that is not there."""


class Background:
    """A thread with an event loop, and the links that live in it. It begins with the first call."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._links: Links | None = None
        self._over = False

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives. A caller who is interrupted takes it back."""
        with self._turn:
            if self._over:
                work.close()
                raise ConnectionLost("this process ends")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="fleetform-ssh", daemon=True
                )
                self._thread.start()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def link(self, host: Host) -> Link:
        """The link to a host."""
        from providers.ssh.link import Links

        with self._turn:
            if self._links is None:
                self._links = Links()
            return self._links.to(host)

    def close(self) -> None:
        """Close all connections and end the thread. A later call begins anew."""
        with self._turn:
            loop, thread, links = self._loop, self._thread, self._links
            self._loop = self._thread = self._links = None
        if loop is None or thread is None:
            return
        if links is not None:
            with contextlib.suppress(Exception):  # whoever is gone need not be told
                asyncio.run_coroutine_threadsafe(links.close(), loop).result(CLOSING)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSING)
        if not thread.is_alive():
            loop.close()

    def end(self) -> None:
        """Close, for good: a thread that still waits for a slow host shall not connect anew."""
        with self._turn:
            self._over = True
        self.close()


background = Background()
atexit.register(background.end)


class SshTransport:
    """Runs commands on one host.

    Where no connection comes about, it raises the port's fault, since it knows the reason: `NOT_SENT`, `AUTH`
    or `INVALID`. `ConnectionLost` is left for what it is: the command was sent, and no answer came.
    """

    def __init__(self, host: Host, fence: Fence = reads_only) -> None:
        self.host = host
        self.fence = fence

    def run(self, argv: Sequence[str], stdin: bytes | Source = b"", timeout: float | None = None) -> Finished:
        """See `Transport.run`. A command that is still running after `timeout` goes on there.

        What is too large for memory is given as a source of bytes.
        """
        link = background.link(self.host)
        done = background.call(link.run(command_line(argv), stdin, timeout, self.fence))
        if done.exit_code in NOT_FOUND:
            link.known.clear()  # a script that was put there may be gone: what is asked next looks again
        return done

    def learnt(self, key: str, value: object) -> None:
        """What was found out along with something else: `once` finds it."""
        background.link(self.host).known.setdefault(key, value)

    def forget(self) -> None:
        """Forget what `once` remembers of the host: its state folder has gone."""
        background.link(self.host).known.clear()

    def once(self, key: str, make: Callable[[], T]) -> T:
        """What `make` gives, remembered as long as the present connection lasts."""
        link = background.link(self.host)
        background.call(link.connection())
        known = link.known  # of this connection: what is found out over the next one is put elsewhere
        if key not in known:
            known[key] = make()
        return cast("T", known[key])
