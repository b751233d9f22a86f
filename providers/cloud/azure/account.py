"""One account of Azure: its resource group, its options, its login and its host."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from declarative.provider import Config, PermanentError, PermanentKind
from providers.cloud import settings
from providers.cloud.any.rest_account import RestAccount
from providers.cloud.any.site import Site
from providers.cloud.azure.answers import error_info
from providers.cloud.rest import Form, Rest, Tokens, listed, pages
from providers.cloud.settings import write

ENDPOINT = "https://management.azure.com"
LOGIN = "https://login.microsoftonline.com"
COMPUTE = "2024-07-01"
"""Since 2024-03-01, disks are attached without rewriting the whole machine, and `If-None-Match` works."""
NEEDED = ("tenant_id", "subscription_id", "key", "secret")
OPTIONS: Mapping[str, type | tuple[type, ...]] = dict.fromkeys(
    ("resource_group", "login_endpoint", "login_resource", "disk_type", "admin_user", "placement_group"), str
) | {"disk_size": int}
ARCHITECTURES = {"x86_64": "x64", "arm64": "Arm64"}
"""Our names of architectures, and Azure's."""
_GROUP = re.compile(r"[\w().-]{1,90}")
_ID = re.compile(r"[0-9A-Za-z.-]{1,100}")


class Account(RestAccount):
    """The resource group of a backend."""

    CLOUD = "Azure"
    ARCHITECTURES = tuple(ARCHITECTURES)
    DISK_TYPE = "Premium_LRS"

    def __init__(self, config: Config, open_site: Callable[[Account, str], Site]) -> None:
        super().__init__(config, OPTIONS, open_site)
        group = str(self.options.get("resource_group") or "")
        if not _GROUP.fullmatch(group):
            summary = f"backend {config.backend}: the resource group is not named"
            hint = write(config, "options")
            raise PermanentError(PermanentKind.INVALID, summary, about="options.resource_group", hint=hint)
        self.group = group.lower()
        """The id in lower case: Azure's answers vary."""

    def root(self, group: str | None = None) -> str:
        """The path of a resource group, or of the subscription."""
        below = f"/subscriptions/{self._there()[1]}"
        return f"{below}/resourceGroups/{group}" if group else below

    def ask(self, what: str, method: str, path: str, version: str, **more: Any) -> dict[str, Any]:
        """One request in a version of the API."""
        params = {"api-version": version, **more.pop("params", {})}
        return self._there()[0].ask(what, method, path, params=params, **more)

    def all(self, what: str, path: str, version: str, params: Mapping[str, str]) -> list[dict[str, Any]]:
        """A listing, all pages of it."""

        def ask(more: str | None) -> Mapping[str, Any]:
            if more is None:
                return self.ask(what, "GET", path, version, params=dict(params))
            # Only the query of the next page's URL is used: the token is sent to no other host.
            query = dict(parse_qsl(urlsplit(more).query, keep_blank_values=True))
            return self.ask(what, "GET", path, query.pop("api-version", version), params=query)

        return [item for page in pages(what, ask, "nextLink") for item in listed(what, page, "value")]

    def _make(self) -> tuple[Rest, str]:
        values = settings.secrets(self.config, NEEDED)
        for key in ("tenant_id", "subscription_id"):
            if not _ID.fullmatch(values[key]):
                summary = f"the variable {self.config.credentials[key]} holds no id"
                raise PermanentError(PermanentKind.AUTH, summary, about=f"credentials.{key}")
        self.scrub.learn((values["secret"], values["key"]))
        endpoint = (self.config.endpoint or ENDPOINT).rstrip("/")
        login = str(self.options.get("login_endpoint") or LOGIN)
        door = Rest(self._connection(login, error_info, "login"), None)
        form = Form(
            grant_type="client_credentials",
            client_id=values["key"],
            client_secret=values["secret"],
            resource=str(self.options.get("login_resource") or f"{endpoint}/"),
        )

        def enter() -> dict[str, Any]:
            path = f"/{values['tenant_id']}/oauth2/token"
            return door.ask("login at Azure", "POST", path, body=form, about="credentials")

        tokens = Tokens(enter, "Azure", self.scrub)
        return Rest(self._connection(endpoint, error_info), tokens), values["subscription_id"]
