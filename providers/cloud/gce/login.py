"""Who asks Google: a service account, by its key.

libcloud would open a dialogue in the browser for any other key, and keep tokens in the home folder. Here a
key is one of a service account or an error, and the token stays in memory.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from declarative.provider import Config, PermanentError, PermanentKind
from providers.cloud import settings

TOKEN_URI = "https://oauth2.googleapis.com/token"  # noqa: S105  # a URL
SCOPE = "https://www.googleapis.com/auth/compute"
LIFE = 3600
"""Seconds that a signed request for a token is good for, and the token after it."""
HINT = (
    "`credentials.key` names the variable that has the key of a service account: the path of its JSON file, "
    "the JSON itself, or its private key as PEM with the account's address under `credentials.email`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A service account. `project` is the one that its file names."""

    email: str
    key: str = field(repr=False)
    signer: RSAPrivateKey = field(repr=False, compare=False)
    key_id: str | None
    project: str | None
    token_uri: str


def account(config: Config) -> Account:
    """The service account of a backend; `PermanentError` if its credentials are none. Contacts nobody."""
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
            raise _refused(f"{variable} holds a private key alone, and nobody says whose it is")
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


def _checked(variable: str, email: str, key: str, found: Mapping[str, Any]) -> Account:
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
    return Account(
        email=email,
        key=key,
        signer=loaded,
        key_id=key_id if isinstance(key_id, str) else None,
        project=project if isinstance(project, str) else None,
        token_uri=uri,
    )


def _refused(summary: str) -> PermanentError:
    return PermanentError(PermanentKind.AUTH, summary, about="credentials.key", hint=HINT)


def assertion(account: Account, now: float | None = None) -> str:
    """A signed request for a token (RFC 7523)."""
    begun = int(time.time() if now is None else now)
    head = {"alg": "RS256", "typ": "JWT", **({"kid": account.key_id} if account.key_id else {})}
    claims = {
        "iss": account.email,
        "scope": SCOPE,
        "aud": account.token_uri,
        "iat": begun,
        "exp": begun + LIFE,
    }
    text = b".".join(_encoded(json.dumps(part, sort_keys=True).encode()) for part in (head, claims))
    return (text + b"." + _encoded(account.signer.sign(text, PKCS1v15(), SHA256()))).decode()


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
