"""A lease as a value: its holder, the clock that it goes by, and whether the holder's process still lives.

It reads this host's clock and processes, and no database.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path

from declarative.model.record import struct


@struct(frozen=True, slots=True, kw_only=True)
class Actor:
    """The user of a state: a person or the CI's, and the project's commit; None if unknown."""

    name: str | None = None
    revision: str | None = None


@struct(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """The holder of the lock, and the end of its lease unless renewed. Times are seconds since the epoch."""

    owner: str
    host: str
    pid: int
    doing: str
    since: float
    expires: float
    fence: int
    place: str = field(default="", repr=False)
    """Host, boot and pid namespace: where `pid` means something."""
    started: str | None = field(default=None, repr=False)
    """When the process started, by its kernel. It differs for another process with the same pid."""
    ends: float | None = field(default=None, repr=False)
    """The same as `expires`, in `boottime` of that place; None if an older version took the lock."""
    epoch: int = field(default=0, repr=False)
    """Counts like `fence`, and is at least the milliseconds since 1970 when the lock was taken. So a state
    that was restored from a backup goes on above the epochs that its nodes know.
    """

    def __str__(self) -> str:
        text = f"`{self.doing}` on {self.host}, pid {self.pid}"
        with suppress(ArithmeticError, OSError, TypeError, ValueError):  # of a stranger's row it is no time
            since = datetime.fromtimestamp(self.since, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            text = f"{text}, since {since}"
        return text

    def lapsed(self, time: float) -> bool:
        """Whether the lease ended, or the holder can be seen to be dead."""
        if self.place == place():
            over = self.expires <= time if self.ends is None else self.ends <= boottime()
            return over or is_dead(self.pid, self.started)
        return self.expires <= time


def boottime() -> float:
    """Seconds since this host started, including sleep. Nobody can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def place() -> str:
    """This host, boot and pid namespace: containers may share a host name but not their pids."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    try:
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        parts.append(f"{uuid.getnode():x}")  # no /proc: the host name alone may be anyone's
    return "/".join(parts)


def started_at(pid: int) -> str | None:
    """When a process started, in ticks since the boot; None where that cannot be read; "" for a dead one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    parts = text.rpartition(")")[2].split()  # the name before it may hold anything, `)` included
    return "" if parts[0] in "ZX" else parts[19]


def is_dead(pid: int, started: str | None) -> bool:
    """Whether that process of this place is gone: no such pid, a zombie, or another one with its pid."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # somebody else's: it lives
        pass
    now = started_at(pid)
    return now is not None and (now == "" or (started is not None and now != started))
