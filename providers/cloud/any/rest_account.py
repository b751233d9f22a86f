"""One account of a cloud that is asked through `rest`: its connection, and the one key of its nodes.

The key is compared with that of nodes that are there, by a tag on them: such clouds keep no key pairs.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from declarative.provider import Config, PermanentError, PermanentKind
from providers.cloud import settings
from providers.cloud.any.account import FINGERPRINT, Account, At
from providers.cloud.any.site import Site
from providers.cloud.connection import Connection, limiter
from providers.cloud.faults import Answer, ErrorInfo
from providers.cloud.keys import SHARE
from providers.cloud.rest import Rest, link
from providers.ssh.key_pairs import Login


class RestAccount(Account, ABC):
    """One account of a cloud with such an API. Secrets are read only when first needed."""

    TAGGED = True

    def __init__(
        self,
        config: Config,
        options: Mapping[str, type | tuple[type, ...]],
        open_site: Callable[[Any, str], Site],
    ) -> None:
        super().__init__(config, options, open_site)
        self._turn = threading.Lock()
        self._link: tuple[Rest, str] | None = None
        self._comparing = threading.Lock()
        self._compared = False

    def login(self, at: At) -> Login:
        """The key; `PermanentError` if existing nodes have another one."""
        with self._comparing:
            login = self.keys.made()
            for machine in () if self._compared else at.machines():
                have = machine.tags.get(FINGERPRINT, login.fingerprint)
                if have != login.fingerprint:
                    summary = (
                        f"the nodes of this state let in another key than {self.keys.source}: that of "
                        f"{machine.name} is {have}, ours is {login.fingerprint}"
                    )
                    hint = f"take it from the machine that made the first; so that all have it, {SHARE}"
                    raise PermanentError(PermanentKind.CONFLICT, summary, about="identity_file", hint=hint)
            self._compared = True
            return login

    def _there(self) -> tuple[Rest, str]:
        """The connection to the API, and the project or subscription."""
        with self._turn:
            if self._link is None:
                self._link = self._make()
            return self._link

    @abstractmethod
    def _make(self) -> tuple[Rest, str]:
        """Make the connection."""

    def _connection(self, url: str, read: Callable[[Answer], ErrorInfo | None], *key: str) -> Connection:
        """A connection to a host. `read` parses its errors; `key` separates limiters for the same host."""
        host = settings.host(url)
        own = limiter(self.CLOUD, self.config.backend, host.name, host.port, *key)
        fence, answered = self.config.fence, self.config.answered
        link_to = partial(link, host, self.timeout)
        return Connection(link_to, own, self.scrub, read, fence=fence, answered=answered)
