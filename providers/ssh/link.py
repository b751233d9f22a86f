"""The kept connection to a host, and the faults on the way to it. The home of asyncssh.

All of it runs in the loop of `transport`. A command that was not sent is a fault of the port. A command that
was sent and not answered is `ConnectionLost`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
from asyncssh.encryption import get_default_encryption_algs

from declarative.model.status import HostRefusal
from declarative.provider import (
    Fence,
    PermanentError,
    PermanentKind,
    ProviderError,
    RefusedError,
    Source,
    TransientError,
    TransientKind,
    reads_only,
)
from providers.ssh.host import Host
from providers.ssh.known_hosts import Checked, Trust
from providers.transport import ConnectionLost, Finished

HANDSHAKES = 16
"""Connections of one process at once: each needs the CPU and has a deadline."""
LONG_HANDSHAKE = 1.0
"""Seconds after which a handshake only waits for its host."""
SHORT, LONG = 3, 5
"""Commands at once on a connection, short and long ones. sshd takes 10 at most (MaxSessions), and a poll must
not wait for a stop that takes minutes."""
LONG_SECONDS = 90.0
PIECE = 1 << 18
"""Bytes of a source that are read at once; about as many wait to be sent."""
MOST_BYTES = 4 << 20
"""Bytes of one answer: enough for ten thousand ranks and volumes of a host, of a few hundred bytes each."""
MOST_WORDS = 1 << 20
"""Bytes of a command's stderr."""
CHEAP_CIPHERS = "^aes256-gcm@openssh.com,aes128-gcm@openssh.com"
"""Before the others that asyncssh has: its first one needs several times as much CPU for a packet."""
AWAY = (
    "see that it is on and that its address, port and way are right, then run this again; if it is lost for "
    "good, take it out of the YAML, then `fleetform state rm` its node"
)


class Links:
    """All links of a process."""

    def __init__(self) -> None:
        self._links: dict[Host, Link] = {}
        self._handshakes = asyncio.Semaphore(HANDSHAKES)
        self.plain: asyncssh.SSHClientConnectionOptions | None = None
        """The options of all hosts without a configuration file; None where the user has one."""
        if not os.access(Path("~/.ssh/config").expanduser(), os.R_OK):
            self.plain = asyncssh.SSHClientConnectionOptions(client_keys=None)

    @contextlib.asynccontextmanager
    async def handshake(self) -> AsyncIterator[None]:
        """A place for a handshake. One that takes long only waits, and makes room for others."""
        await self._handshakes.acquire()
        held = True

        def leave() -> None:
            nonlocal held
            if held:
                held = False
                self._handshakes.release()

        timer = asyncio.get_running_loop().call_later(LONG_HANDSHAKE, leave)
        try:
            yield
        finally:
            timer.cancel()
            leave()

    def to(self, host: Host) -> Link:
        """The link to that host."""
        return self._links.setdefault(host, Link(host, self))

    async def close(self) -> None:
        """End them all."""
        await asyncio.gather(*(link.close() for link in tuple(self._links.values())), return_exceptions=True)


class Link:
    """The way to one host. It connects when it is needed, and again when the connection was lost."""

    def __init__(self, host: Host, links: Links) -> None:
        self._host = host
        self._links = links
        self._connection: asyncssh.SSHClientConnection | None = None
        self._used: dict[asyncssh.SSHClientConnection, int] = {}
        self._opening = asyncio.Lock()
        self._short, self._long = asyncio.Semaphore(SHORT), asyncio.Semaphore(LONG)
        self.connected = False
        """Whether it was at least once: the host's key counts, and it let us in."""
        self.known: dict[str, Any] = {}
        """Values that callers keep as long as the present connection lasts."""

    async def run(  # the port's timeout
        self,
        command: str,
        stdin: bytes | Source,
        timeout: float | None,  # noqa: ASYNC109
        fence: Fence = reads_only,
    ) -> Finished:
        """Run a line of shell to its end. `fence` is asked last: a turn and a connection may take long."""
        async with self._long if timeout is None or timeout > LONG_SECONDS else self._short:
            connection = await self.connection()
            if fence is not reads_only:
                await asyncio.to_thread(fence)  # it may have to ask the state's database
            with self._in_use(connection):
                try:
                    async with asyncio.timeout(timeout):
                        return await self._answer(connection, command, stdin)
                except TimeoutError:
                    self._retire(connection)
                    raise ConnectionLost(f"{self._host} gave no answer within {timeout:g} s") from None
                except asyncio.CancelledError:
                    self._retire(connection)
                    raise
                except asyncssh.ChannelOpenError as error:
                    if connection.is_closed():
                        raise ConnectionLost(f"the connection to {self._host} was lost") from error
                    self._retire(connection)
                    summary = f"{self._host} takes no more commands at once: {error.reason}"
                    raise TransientError(TransientKind.BUSY, summary, about=self._host.hostname) from error
                except (asyncssh.Error, OSError) as error:
                    raise ConnectionLost(f"the connection to {self._host} was lost: {error}") from error

    @contextlib.contextmanager
    def _in_use(self, connection: asyncssh.SSHClientConnection) -> Iterator[None]:
        """Keep a connection open while a command uses it, even if it is retired meanwhile."""
        self._used[connection] = self._used.get(connection, 0) + 1
        try:
            yield
        finally:
            self._used[connection] -= 1
            if not self._used[connection]:
                del self._used[connection]
                if connection is not self._connection:
                    connection.close()

    def _retire(self, connection: asyncssh.SSHClientConnection) -> None:
        """Start no more commands on it: an abandoned one keeps its place there. Others on it may end."""
        if connection is self._connection:
            self._connection = None

    async def _answer(
        self, connection: asyncssh.SSHClientConnection, command: str, stdin: bytes | Source
    ) -> Finished:
        process = await connection.create_process(command, encoding=None)
        try:
            with contextlib.suppress(OSError):  # it may end without reading
                if isinstance(stdin, bytes):
                    process.stdin.write(stdin)
                else:
                    await _pour(stdin, process)
                process.stdin.write_eof()
            stdout, stderr = await asyncio.gather(
                self._all(process.stdout, MOST_BYTES), self._all(process.stderr, MOST_WORDS)
            )
            await process.wait_closed()
            status, killed = process.exit_status, process.exit_signal
        finally:
            process.close()
        if killed is not None:
            return Finished(-_number(killed[0]), stdout, stderr)
        if status is None:  # for asyncssh the command ended, but the answer may be cut off anywhere
            raise ConnectionLost(f"the connection to {self._host} was lost")
        return Finished(status, stdout, stderr)

    async def _all(self, stream: asyncssh.SSHReader[bytes], most: int) -> bytes:
        """All bytes of a stream; `PermanentError` if there are more, so that no host fills our memory."""
        found = bytearray()
        while piece := await stream.read(PIECE):
            found += piece
            if len(found) > most:
                summary = f"{self._host} answers with more than {most >> 20} MiB"
                raise PermanentError(PermanentKind.INVALID, summary, about=self._host.hostname)
        return bytes(found)

    async def connection(self, behind: tuple[Host, ...] = ()) -> asyncssh.SSHClientConnection:
        """The kept connection, or a new one; a fault of the port if it cannot connect.

        `behind` are the hosts that are reached through this one.
        """
        if self._host in behind:
            summary = f"the way to {behind[0]} goes in a circle"
            raise PermanentError(PermanentKind.INVALID, summary, about="proxy_jump")
        async with self._opening:
            if self._connection is None or self._connection.is_closed():
                self.known = {}
                try:
                    self._connection = await self._open((*behind, self._host))
                except (OSError, ValueError, asyncssh.Error) as error:
                    raise unsent(self._host, error) from error
                self.connected = True
            return self._connection

    async def known_keys(self) -> tuple[str, ...]:
        """The keys that count for the host, found by its name."""
        trust = Trust.of(self._host, await self._options(self._settings()))
        return trust.by_name()

    async def user(self) -> str:
        """The user who is logged in, who may be one of `~/.ssh/config`."""
        connection = await self.connection()
        return str(connection.get_extra_info("username"))

    def _settings(self) -> dict[str, Any]:
        host = self._host
        settings = {
            "port": host.port,
            "username": host.user,
            "client_keys": [host.identity_file] if host.identity_file else None,
            "config": [host.config] if host.config else None,
        }
        return {key: value for key, value in settings.items() if value is not None}

    async def _open(self, way: tuple[Host, ...]) -> asyncssh.SSHClientConnection:
        host, settings = self._host, self._settings()
        options = await self._options(settings)
        if options.encryption_algs == get_default_encryption_algs():  # nobody has chosen others
            settings["encryption_algs"] = CHEAP_CIPHERS
        trust = Trust.of(host, options)
        tunnel = await self._tunnel(options, way)
        client = Checked(trust)

        async def attempt(**more: Any) -> asyncssh.SSHClientConnection:
            return await asyncssh.connect(
                host.hostname,
                **settings,
                **more,
                tunnel=tunnel,
                client_factory=lambda: client,
                known_hosts=trust.match,
                ignore_encrypted=True,  # the agent may have it open
                x509_trusted_certs=None,
                password_auth=False,
                kbdint_auth=False,
                host_based_auth=False,
                connect_timeout=host.timing.connect,
                login_timeout=host.timing.connect,
                keepalive_interval=host.timing.keepalive,
                keepalive_count_max=host.timing.missed,
            )

        async with self._links.handshake():
            try:
                return await attempt()
            except (asyncssh.KeyExchangeFailed, asyncssh.ConnectionLost, ConnectionResetError):
                if not trust.known:
                    raise
            except asyncssh.HostKeyNotVerifiable as error:
                raise client.refusal(str(error)) from error
            # The host no longer has a key of a known kind: ask for its other keys, to name them in the fault.
            try:
                return await attempt(server_host_key_algs="default")
            except asyncssh.HostKeyNotVerifiable as error:
                raise client.refusal(str(error)) from error

    async def _options(self, settings: dict[str, Any]) -> asyncssh.SSHClientConnectionOptions:
        """The configuration file's options for this host. It sends nothing and reads no key."""
        host = self._host
        if self._links.plain and not host.config:
            options = copy(self._links.plain)
            options.host, options.port = host.hostname, host.port or asyncssh.DEFAULT_PORT
            return options
        try:
            found: asyncssh.SSHClientConnectionOptions = await asyncssh.SSHClientConnectionOptions.construct(
                host=host.hostname, **{**settings, "client_keys": None}
            )
        except asyncssh.ConfigParseError as error:
            # The text is not shown: the path may lead to another file, which may hold secrets.
            line = re.search(r"\bline (\d+)", str(error))
            summary = f"{host.config or '~/.ssh/config'} cannot be read" + (f": {line[0]}" if line else "")
            raise PermanentError(PermanentKind.INVALID, summary, about="ssh_config") from None
        return found

    async def _tunnel(
        self, options: asyncssh.SSHClientConnectionOptions, way: tuple[Host, ...]
    ) -> asyncssh.SSHClientConnection | None:
        """The connection to the host on the way, which is declared or in the configuration file."""
        jump = self._host.proxy_jump or _configured(self._host, options)
        if jump is None:
            return None
        try:
            return await self._links.to(jump).connection(way)
        except RefusedError as error:
            refusal = replace(error.refusal, on_the_way=True)
            raise RefusedError(
                error.summary, refusal, about=error.about or "", hint=error.hint or ""
            ) from error

    async def close(self) -> None:
        """Close all connections."""
        kept = {self._connection} if self._connection else set()
        for connection in kept | self._used.keys():
            connection.close()
            await connection.wait_closed()


def _configured(host: Host, options: asyncssh.SSHClientConnectionOptions) -> Host | None:
    """The last host of the configuration file's `ProxyJump`; it is reached through the others."""
    jump: Host | None = None
    for part in str(options.tunnel).split(",") if isinstance(options.tunnel, str) else ():
        user, _, place = part.rpartition("@")
        name, _, port = place.rpartition(":") if ":" in place else (place, "", "")
        if name == host.hostname:  # `Host *` with a ProxyJump means the hosts behind it
            continue
        jump = Host(
            hostname=name,
            user=user or None,
            port=int(port) if port else None,
            known_hosts=host.known_hosts,
            config=host.config,
            proxy_jump=jump,
            timing=host.timing,
        )
    return jump


def unsent(host: Host, error: Exception) -> ProviderError:
    """The port's fault for a failed connection."""
    about = host.hostname
    if refused := _refused(host, error):
        return refused
    if isinstance(error, TimeoutError):
        summary = f"{host} did not answer within {host.timing.connect:g} s"
        return TransientError(TransientKind.NOT_SENT, summary, about=about, hint=AWAY, away=True)
    reason = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno:  # the texts of asyncio are about calls
        reason = os.strerror(error.errno) if error.errno > 0 else error.strerror or reason
    summary = f"{host} cannot be reached: {reason}"
    return TransientError(TransientKind.NOT_SENT, summary, about=about, hint=AWAY, away=True)


def _refused(host: Host, error: Exception) -> PermanentError | None:
    """The fault if another try would fail as well."""
    about = host.hostname
    reason = str(error) or type(error).__name__
    if isinstance(error, asyncssh.PermissionDenied):
        summary = f"{host} refused the login: {reason}"
        hint = "see that the key is right (`identity_file`, or the agent), and that its public half is there"
        refusal = HostRefusal(hostname=host.hostname, port=host.port, user=host.user)
        return RefusedError(summary, refusal, about=about, hint=hint)
    if isinstance(error, asyncssh.KeyExchangeFailed | asyncssh.ProtocolNotSupported | asyncssh.ProtocolError):
        return PermanentError(PermanentKind.INVALID, f"{host} does not understand us: {reason}", about=about)
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError) and error.filename:
        summary = f"{error.filename}: {error.strerror}"
        return PermanentError(PermanentKind.INVALID, summary, about="identity_file")
    if isinstance(error, ValueError):
        return PermanentError(PermanentKind.INVALID, f"{host}: {reason}", about=about)
    return None


async def _pour(source: Source, process: asyncssh.SSHClientProcess[bytes]) -> None:
    """Write all of it, no faster than the host reads. `BrokenPipeError` if the command ends before."""
    while piece := await asyncio.to_thread(source.read, PIECE):
        process.stdin.write(piece)
        await process.stdin.drain()


def _number(name: str) -> int:
    """SSH calls a signal `KILL`."""
    number = signal.Signals.__members__.get(f"SIG{name}")
    return int(number) if number else 1
