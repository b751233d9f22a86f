"""Commands on hosts, for callers without an event loop: one thread has a loop, in which all connections live.

The process keeps one connection to each host, for all providers. The first one imports asyncssh.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import re
import shlex
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from declarative.provider import Fence, Source, TransientError, reads_only
from providers.ssh.shells import ASKED, MARK, SECONDS, no_shell
from providers.transport import ConnectionLost, Finished

if TYPE_CHECKING:
    from providers.ssh.host import Host
    from providers.ssh.link import Link, Links

T = TypeVar("T")

CLOSING = 3.0
"""Seconds that a process waits at its end for its connections to close."""

NOT_FOUND = (2, 127)
"""Exit codes of a shell for a script that is not there."""

_SHELL = "shell"
"""Known of a connection: commands of its user are run by a shell."""
_BARE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
_PLAIN = re.compile(r"[ -~]*", re.ASCII)
_MEANT = frozenset("'!\\")
_ODD = re.compile(rb"[^A-Za-z0-9_@%+=:,./ -]")


class Background:
    """A thread with an event loop, and the links that live in it. It begins with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._links: Links | None = None
        self._ended = False

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. An interrupted caller cancels it."""
        with self._lock:
            if self._ended:
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

        with self._lock:
            if self._links is None:
                self._links = Links()
            return self._links.to(host)

    def close(self) -> None:
        """Close all connections and end the thread. A later call starts a new one."""
        with self._lock:
            loop, thread, links = self._loop, self._thread, self._links
            self._loop = self._thread = self._links = None
        if loop is None or thread is None:
            return
        if links is not None:
            with contextlib.suppress(Exception):  # a host may be gone
                asyncio.run_coroutine_threadsafe(links.close(), loop).result(CLOSING)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSING)
        if not thread.is_alive():
            loop.close()

    def end(self) -> None:
        """Close for good: a thread that still waits for a slow host must not connect again."""
        with self._lock:
            self._ended = True
        self.close()


background = Background()
atexit.register(background.end)


class SshTransport:
    """Runs commands on one host.

    If it cannot connect, it raises a fault of the port, since it knows the reason: `NOT_SENT`, `AUTH` or
    `INVALID`. `ConnectionLost` means that the command was sent, and no answer came.
    """

    def __init__(self, host: Host, fence: Fence = reads_only) -> None:
        self.host = host
        self.fence = fence

    def run(self, argv: Sequence[str], stdin: bytes | Source = b"", timeout: float | None = None) -> Finished:
        """A command that still runs after `timeout` goes on there.

        A source of bytes is for input that is too large for memory.
        """
        link = background.link(self.host)
        answer = background.call(link.run(command_line(argv), stdin, timeout, self.fence))
        if answer.exit_code in NOT_FOUND:
            link.known.clear()  # a script that was put there may be gone: the next call checks
        if MARK in answer.stdout:
            link.known[_SHELL] = True
        elif _SHELL not in link.known:
            self._check_shell(link)
        return answer

    @property
    def connected(self) -> bool:
        """Whether the host let us in at least once, whatever came of it."""
        return background.link(self.host).connected

    def known_keys(self) -> tuple[str, ...]:
        """The host's keys in the files of known hosts. It sends nothing."""
        return background.call(background.link(self.host).known_keys())

    def _check_shell(self, link: Link) -> None:
        """`PermanentError` if the login user gets no shell; asked at most once for each connection."""
        try:
            answer = background.call(link.run(command_line(ASKED), b"", SECONDS))
        except (ConnectionLost, TransientError):
            return  # the answer that is there may be one
        if MARK not in answer.stdout:
            raise no_shell(self.host, background.call(link.user()), answer)
        link.known[_SHELL] = True

    def learnt(self, key: str, value: object) -> None:
        """Remember a value that another call found out: `once` finds it."""
        background.link(self.host).known[key] = value

    def forget(self) -> None:
        """Forget what `once` remembers of the host: its state folder is gone."""
        background.link(self.host).known.clear()

    def once(self, key: str, make: Callable[[], T]) -> T:
        """The result of `make`, remembered as long as the present connection lasts."""
        link = background.link(self.host)
        background.call(link.connection())
        memory = link.known  # of this connection: the next one has its own
        if key not in memory:
            memory[key] = make()
        return cast("T", memory[key])


def command_line(argv: Sequence[str]) -> str:
    """`argv` as one line for whatever shell a user has on a host: sh, bash, zsh, fish, csh.

    Shells agree on bare words, and on text between single quotes that has no quote, newline or `!` in it, nor
    a backslash before one of those. Anything else is written as octal numbers, which one more sh reads.
    """
    if all(_PLAIN.fullmatch(word) and not _MEANT & {*word} for word in argv):
        return " ".join(("exec", *(word if _BARE.fullmatch(word) else f"'{word}'" for word in argv)))
    words = "exec " + shlex.join(argv)
    safe = _ODD.sub(lambda odd: b"\\0%03o" % odd[0][0], words.encode(errors="surrogateescape"))
    return f"""exec sh -c 'eval "$(printf %b "$1")"' sh '{safe.decode()}'"""
