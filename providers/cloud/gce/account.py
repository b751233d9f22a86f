"""One account of GCE: its service account, project and options.

A service account logs in with its key. For any other key, libcloud would open a dialogue in the browser, and
keep tokens in the home folder. Here, any other key is an error, and the token stays in memory.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from declarative.model.inputs import PlacedInputs
from declarative.model.record import struct
from declarative.provider import Config, PermanentError, PermanentKind
from providers.cloud import settings
from providers.cloud.any.rest_account import RestAccount
from providers.cloud.any.site import Site
from providers.cloud.gce.answers import error_info
from providers.cloud.rest import Form, Rest, Tokens, pages, signed

PAGE = "500"
"""The most items per answer."""
ENDPOINT = "https://compute.googleapis.com"
OPTIONS: Mapping[str, type | tuple[type, ...]] = dict.fromkeys(
    ("project", "network", "disk_type", "placement_group"), str
) | {"disk_size": int}


class Account(RestAccount):
    """The project of a backend."""

    CLOUD = "GCE"
    ARCHITECTURES = ("x86_64", "arm64")
    DISK_TYPE = "pd-balanced"

    def __init__(self, config: Config, open_site: Callable[[Account, str], Site]) -> None:
        super().__init__(config, OPTIONS, open_site)

    @property
    def project(self) -> str:
        """The project: the option, else that of the key."""
        return self._there()[1]

    def ask(self, what: str, method: str, path: str, **more: Any) -> dict[str, Any]:
        """One request; the path begins with a project."""
        return self._there()[0].ask(what, method, f"/compute/v1/projects/{path}", **more)

    def pages(
        self, what: str, path: str, about: str | None = None, **params: str
    ) -> Iterator[Mapping[str, Any]]:
        """All pages of a listing."""

        def ask(more: str | None) -> Mapping[str, Any]:
            page = {"maxResults": PAGE, **params, **({"pageToken": more} if more else {})}
            return self.ask(what, "GET", path, about=about, params=page)

        return pages(what, ask, "nextPageToken")

    def _make(self) -> tuple[Rest, str]:
        who = service_account(self.config)
        project = str(self.options.get("project") or who.project or "")
        if not re.fullmatch(r"[a-z0-9.:-]{1,100}", project):
            summary = f"backend {self.config.backend}: the project is not named"
            hint = "write `options: {project: my-project}`"
            raise PermanentError(PermanentKind.INVALID, summary, about="options.project", hint=hint)
        self.scrub.learn([who.key, *(line for line in who.key.splitlines() if "-----" not in line)])

        parts = urlsplit(who.token_uri)
        door = Rest(self._connection(f"{parts.scheme}://{parts.netloc}", error_info, "login"), None)

        def enter() -> dict[str, Any]:
            form = Form(grant_type="urn:ietf:params:oauth:grant-type:jwt-bearer", assertion=assertion(who))
            return door.ask("login at Google", "POST", parts.path or "/", body=form, about="credentials.key")

        tokens = Tokens(enter, "GCE", self.scrub)
        return Rest(self._connection(self.config.endpoint or ENDPOINT, error_info, project), tokens), project

    def zone(self, inputs: PlacedInputs) -> str:
        """The zone of a thing to make."""
        region = inputs.region
        zones = [z for z in self.config.zones if z.rpartition("-")[0] == region]
        zone = inputs.zone or next(iter(zones), None)
        if not zone or not re.fullmatch(r"[a-z0-9-]{1,63}", str(zone)):
            summary = "what GCE makes is in one zone, and none is named"
            hint = f"write `availability_zone: {region or 'us-central1'}-a`"
            raise PermanentError(PermanentKind.INVALID, summary, about="availability_zone", hint=hint)
        return str(zone)


TOKEN_URI = "https://oauth2.googleapis.com/token"  # noqa: S105  # a URL
SCOPE = "https://www.googleapis.com/auth/compute"
LIFE = 3600
"""Lifetime in seconds of a signed request for a token, and of its token."""
HINT = (
    "`credentials.key` names the variable that has the key of a service account: the path of its JSON file, "
    "the JSON itself, or its private key as PEM with the account's address under `credentials.email`"
)


@struct(frozen=True, slots=True, kw_only=True)
class ServiceAccount:
    """A service account. `project` is the project in its file."""

    email: str
    key: str = field(repr=False)
    signer: RSAPrivateKey = field(repr=False, compare=False)
    key_id: str | None
    project: str | None
    token_uri: str


def service_account(config: Config) -> ServiceAccount:
    """The service account of a backend; `PermanentError` if its credentials are not valid. Sends
    no request.
    """
    values = settings.secrets(config, ("key",), ("email",))
    given, variable = values["key"], config.credentials["key"]
    if not given.startswith(("{", "-----")):
        try:
            given = Path(given).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            what = error.strerror if isinstance(error, OSError) else "it is no text"
            raise _refused(f"the file that {variable} names cannot be read: {what}") from None
    if given.startswith("-----"):
        if "email" not in values:
            raise _refused(f"{variable} holds only a private key, and its account is not named")
        return _checked(variable, values["email"], given.replace("\\n", "\n"), {})
    try:
        found = json.loads(given)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _refused(f"what {variable} leads to is neither JSON nor a private key")
    if found.get("type") != "service_account":
        raise _refused(f"the key that {variable} leads to is of the type {str(found.get('type'))[:40]!r}")
    return _checked(variable, str(found.get("client_email")), str(found.get("private_key")), found)


def _checked(variable: str, email: str, key: str, found: Mapping[str, Any]) -> ServiceAccount:
    try:
        loaded = load_pem_private_key(key.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        loaded = None
    if not isinstance(loaded, RSAPrivateKey):
        raise _refused(f"the private key that {variable} leads to is damaged, or no RSA key")
    if not re.fullmatch(r"[!-~]+@[!-~]+", email):
        raise _refused(f"the key that {variable} leads to names no account")
    uri = found.get("token_uri") or TOKEN_URI
    if not isinstance(uri, str) or not re.fullmatch(r"https?://[!-~]+", uri):
        raise _refused(f"the `token_uri` of the key that {variable} leads to is no URL")
    project, key_id = found.get("project_id"), found.get("private_key_id")
    return ServiceAccount(
        email=email,
        key=key,
        signer=loaded,
        key_id=key_id if isinstance(key_id, str) else None,
        project=project if isinstance(project, str) else None,
        token_uri=uri,
    )


def _refused(summary: str) -> PermanentError:
    return PermanentError(PermanentKind.AUTH, summary, about="credentials.key", hint=HINT)


def assertion(account: ServiceAccount, now: float | None = None) -> str:
    """A signed request for a token (RFC 7523)."""
    issued = int(time.time() if now is None else now)
    claims = {
        "iss": account.email,
        "scope": SCOPE,
        "aud": account.token_uri,
        "iat": issued,
        "exp": issued + LIFE,
    }
    return signed({"kid": account.key_id} if account.key_id else {}, claims, account.signer)
