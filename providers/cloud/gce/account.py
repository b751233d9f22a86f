"""One use of GCE: its project, its options, who asks, and where."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from declarative.inputs import Placed
from declarative.provider import Config, PermanentError, PermanentKind
from providers.cloud import account, settings
from providers.cloud.connection import Connection, limiter
from providers.cloud.gce import login
from providers.cloud.gce.codes import said
from providers.cloud.rest import Form, Rest, Tokens, link

ENDPOINT = "https://compute.googleapis.com"
OPTIONS: Mapping[str, type | tuple[type, ...]] = dict.fromkeys(
    ("project", "network", "disk_type", "placement_group"), str
) | {"disk_size": int}


class Account(account.Account):
    """The project of a backend. No secret is read before something has to be asked."""

    CLOUD = "GCE"
    ARCHITECTURES = ("x86_64", "arm64")

    def __init__(self, config: Config) -> None:
        super().__init__(config, OPTIONS)
        self._turn = threading.Lock()
        self._made: tuple[Rest, str] | None = None

    @property
    def project(self) -> str:
        """The project: the option, or else that of the key."""
        return self._there()[1]

    def ask(self, what: str, method: str, path: str, **more: Any) -> dict[str, Any]:
        """One request; the path begins with a project."""
        return self._there()[0].ask(what, method, f"/compute/v1/projects/{path}", **more)

    def _there(self) -> tuple[Rest, str]:
        with self._turn:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make(self) -> tuple[Rest, str]:
        who = login.account(self.config)
        project = str(self.options.get("project") or who.project or "")
        if not re.fullmatch(r"[a-z0-9.:-]{1,100}", project):
            summary = f"backend {self.config.backend}: it is not said in which project"
            hint = "write `options: {project: my-project}`"
            raise PermanentError(PermanentKind.INVALID, summary, about="options.project", hint=hint)
        self.scrub.learn([who.key, *(line for line in who.key.splitlines() if "-----" not in line)])

        def connection(url: str, *key: str) -> Connection:
            host = settings.host(url)
            own = limiter("gce", self.config.backend, host.name, host.port, *key)
            return Connection(
                lambda: link(host, self.timeout), own, self.scrub, said, fence=self.config.fence
            )

        parts = urlsplit(who.token_uri)
        door = Rest(connection(f"{parts.scheme}://{parts.netloc}", "login"), None)

        def enter() -> dict[str, Any]:
            form = Form(
                grant_type="urn:ietf:params:oauth:grant-type:jwt-bearer", assertion=login.assertion(who)
            )
            return door.ask("login at Google", "POST", parts.path or "/", body=form, about="credentials.key")

        tokens = Tokens(enter, "GCE", self.scrub)
        return Rest(connection(self.config.endpoint or ENDPOINT, project), tokens), project

    def zone(self, inputs: Placed) -> str:
        """The zone of what is to be made."""
        region = inputs.region
        zones = [z for z in self.config.zones if z.rpartition("-")[0] == region]
        zone = inputs.zone or next(iter(zones), None)
        if not zone or not re.fullmatch(r"[a-z0-9-]{1,63}", str(zone)):
            summary = "what GCE makes is in one zone, and none is named"
            hint = f"write `availability_zone: {region or 'us-central1'}-a`"
            raise PermanentError(PermanentKind.INVALID, summary, about="availability_zone", hint=hint)
        return str(zone)
