"""gRPC over a synchronous channel, for clouds that have no other API.

Requests are paced, fenced and scrubbed by `Connection`, as all others are. A channel is asked to connect
before each request, so that a request that nobody got is told from one without an answer; gRPC itself repeats
nothing. What goes through here are bytes: messages are the driver's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any, TypeVar

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before it is loaded: else it writes to stderr as it likes
import grpc  # after that

from declarative.provider import PermanentKind, TransientKind
from providers.cloud.account import Account
from providers.cloud.bad_answers import taken
from providers.cloud.connection import MOST_BYTES, Connection, fence_late, limiter
from providers.cloud.faults import ErrorInfo, Kind, fault
from providers.cloud.rest import bad_answer
from providers.cloud.settings import Host

M = TypeVar("M")

BY_CODE: Mapping[int, Kind] = {
    3: PermanentKind.INVALID,
    5: PermanentKind.NOT_FOUND,
    6: PermanentKind.CONFLICT,
    7: PermanentKind.AUTH,
    8: TransientKind.THROTTLED,
    9: PermanentKind.CONFLICT,
    10: TransientKind.BUSY,
    11: PermanentKind.INVALID,
    12: PermanentKind.INVALID,
    16: PermanentKind.AUTH,
}
"""gRPC's code → the fault of an error without details. Any other code leaves the outcome unknown."""
AGAIN = 3
"""Seconds for connecting anew: gRPC tries it twice a second."""
DETAILS = "grpc-status-details-bin"
"""Where an error has its `google.rpc.Status`."""


def kind_of(code: int) -> Kind:
    """The kind of fault for gRPC's code."""
    return BY_CODE.get(code, TransientKind.AMBIGUOUS)


@cache
def link(host: Host, authorities: str | None) -> Link:
    """The channel to a host, one for the whole process. gRPC watches a channel from a thread of its own for a
    moment after each request, and that thread must not see its channel go.
    """
    return Link(host, authorities)


class Link:
    """The channel to one host. Safe to use from many threads."""

    def __init__(self, host: Host, file: str | None) -> None:
        """`file` has the certificates of authorities, in place of gRPC's own."""
        options = [("grpc.max_receive_message_length", MOST_BYTES), ("grpc.enable_retries", 0)]
        options += [(f"grpc.{name}_reconnect_backoff_ms", 500) for name in ("initial", "min", "max")]
        self._at, self._secure = f"{host.name}:{host.port}", host.secure
        if host.secure:
            login = grpc.ssl_channel_credentials(Path(file).read_bytes() if file else None)
            self._channel = grpc.secure_channel(self._at, login, options)
        else:
            self._channel = grpc.insecure_channel(self._at, options)

    def ask(self, path: str, data: bytes, metadata: list[tuple[str, str]], timeout: int) -> bytes:
        """The answer to one request, sent once. `timeout` is in seconds."""
        self._connect(timeout)
        fence_late()
        answer: bytes = self._channel.unary_unary(path)(data, timeout=timeout, metadata=metadata)
        taken.size += len(answer)
        return answer

    def _connect(self, timeout: int) -> None:
        """A channel that had failed before goes on failing until it is connected: so it gets a moment."""
        states: Queue[Any] = Queue()
        kinds = grpc.ChannelConnectivity
        self._channel.subscribe(states.put, try_to_connect=True)
        try:
            state = states.get(timeout=timeout)
            if state is kinds.TRANSIENT_FAILURE:
                timeout, state = AGAIN, kinds.CONNECTING
            while state in (kinds.IDLE, kinds.CONNECTING):
                state = states.get(timeout=timeout)
        except Empty:
            state = None
        finally:
            self._channel.unsubscribe(states.put)
        if state is not kinds.READY:
            trust = ", or its certificate is not trusted (see REQUESTS_CA_BUNDLE)" if self._secure else ""
            raise ConnectionRefusedError(f"there is no connection to {self._at}{trust}")


class Rpc:
    """Requests to the hosts of one API. Safe to use from many threads."""

    def __init__(
        self,
        account: Account,
        host_of: Callable[[str], Host],
        read: Callable[[int, str, bytes], ErrorInfo],
        token: Callable[[], str] | None = None,
    ) -> None:
        """`host_of` says where a service is. `read` reads an error: its code, its text, and its
        `google.rpc.Status`, which may be empty. `token` is None for logging in.
        """
        self._account, self._host_of, self._read, self._token = account, host_of, read, token
        self._made: dict[Host, Connection] = {}
        self._turn = threading.Lock()

    def ask(
        self, method: str, request: Any, answered: type[M], *, about: str | None = None, **headers: str
    ) -> M:
        """The answer to one request. `method` is `package.Service/Method`; headers are written with `_`."""
        service, _, name = method.partition("/")
        what = f"{service.rpartition('.')[2]}/{name}"
        metadata = [(key.replace("_", "-"), text) for key, text in headers.items()]
        if self._token is not None:
            metadata.append(("authorization", f"Bearer {self._token()}"))
        data = request.SerializeToString()

        def send(to: Link) -> bytes:
            try:
                return to.ask(f"/{method}", data, metadata, self._account.timeout)
            except grpc.RpcError as error:
                details = dict(error.trailing_metadata() or ()).get(DETAILS, b"")
                text = self._account.scrub.hide(error.details() or "")
                info = self._read(error.code().value[0], text, details)
                summary = self._account.scrub(f"{what}: {info.text}")
                kind = info.kind or kind_of(error.code().value[0])
                raise fault(kind, summary, about=about, hint=info.hint) from None

        found = self._at(self._host_of(service)).call(what, send, about=about)
        try:
            message: M = answered.FromString(found)  # type: ignore[attr-defined]
        except Exception:  # noqa: BLE001  # whatever the messages' own code raises
            raise bad_answer(what, "cannot be read") from None
        return message

    def _at(self, host: Host) -> Connection:
        with self._turn:
            if host not in self._made:
                config = self._account.config
                file = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
                pace = limiter(config.driver, config.backend, host.name, host.port)
                make = partial(link, host, file)
                self._made[host] = Connection(
                    make,
                    pace,
                    self._account.scrub,
                    lambda _: None,
                    fence=config.fence,
                    answered=config.answered,
                )
            return self._made[host]
