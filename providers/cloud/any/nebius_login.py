"""The account of Nebius' that a backend uses, found as Nebius' own tools find it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from declarative.model.record import struct
from declarative.provider import Config, PermanentError, PermanentKind
from providers.cloud import settings
from providers.cloud.rest import signed

VARIABLE, PROFILE = "NEBIUS_IAM_TOKEN", "NEBIUS_PROFILE"
FOLDER = Path(".nebius")
"""Below the home folder: where Nebius' own tools keep `config.yaml`, and others `credentials.json`."""
_TOKEN = re.compile(r"[!-~]{1,16384}")
_FILE = re.compile(r"[~./].*|.*\.json")


@struct(frozen=True, slots=True, kw_only=True)
class Login:
    """A token, or a service account with its key. `project` is that of the tools' profile."""

    token: str = field(default="", repr=False)
    account: str = ""
    key_id: str = ""
    key: str = field(default="", repr=False)
    signer: Any = field(default=None, repr=False, compare=False)
    project: str = ""

    @property
    def secrets(self) -> list[str]:
        """What must not be shown."""
        return [self.token, self.key, *(line for line in self.key.splitlines() if "-----" not in line)]

    def assertion(self, now: float | None = None) -> str:
        """A signed request for a token, valid for five minutes."""
        issued = int(time.time() if now is None else now)
        claims = {"iss": self.account, "sub": self.account, "iat": issued, "exp": issued + 300}
        return signed({"kid": self.key_id}, {**claims, "kid": self.key_id}, self.signer)


def login(config: Config) -> Login:
    """The account in the variable that `credentials` names, else the one that Nebius' own tools would use;
    `PermanentError` if there is none. Sends no request.
    """
    settings.refuse()
    if config.credentials:
        given, where = settings.secrets(config, ("key",))["key"], config.credentials["key"]
        if given.startswith("{"):
            return _of_file(_parsed(given, where), where)
        return _of_path(given, where) if _FILE.fullmatch(given) else _of_token(given, where)
    try:
        home = Path.home() / FOLDER
    except RuntimeError:
        home = FOLDER
    if token := os.environ.get(VARIABLE, "").strip():
        return _of_token(token, VARIABLE)
    if (home / "config.yaml").is_file():
        return _of_profile(home / "config.yaml")
    if (home / "credentials.json").is_file():
        return _of_path(str(home / "credentials.json"), "~/.nebius/credentials.json")
    summary = f"there is no key of Nebius': {VARIABLE} is not set, and ~/{FOLDER} has no config.yaml"
    hint = f"run `nebius profile create`, export {VARIABLE}, or {settings.write(config, 'credentials')}"
    raise PermanentError(PermanentKind.AUTH, summary, about="credentials", hint=hint)


def _refused(summary: str) -> PermanentError:
    hint = (
        "`credentials.key` names the variable that has the path of a service account's key "
        f"(`nebius iam auth-public-key generate`), that JSON itself, or a token as {VARIABLE} has it"
    )
    return PermanentError(PermanentKind.AUTH, summary, about="credentials.key", hint=hint)


def _of_token(token: str, where: str) -> Login:
    if not _TOKEN.fullmatch(token):
        raise _refused(f"what {where} holds is no token")
    return Login(token=token)


def _text(path: str, where: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, RuntimeError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is no text"
        raise _refused(f"the file that {where} names cannot be read: {what}") from None


def _parsed(text: str, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _refused(f"what {where} leads to is no JSON")
    return found


def _of_path(path: str, where: str) -> Login:
    return _of_file(_parsed(_text(path, where), where), where)


def _of_file(found: Mapping[str, Any], where: str) -> Login:
    """The JSON that the console and the command line write for a service account's key."""
    inner = found.get("subject-credentials")
    if not isinstance(inner, dict):
        raise _refused(f"what {where} leads to has no `subject-credentials`")
    return _of_key(inner.get("sub"), inner.get("kid"), inner.get("private-key"), where)


def _of_key(account: object, key_id: object, key: object, where: str, project: str = "") -> Login:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not (isinstance(account, str) and isinstance(key_id, str) and isinstance(key, str)):
        raise _refused(f"what {where} leads to names no service account with a private key")
    try:
        signer = load_pem_private_key(key.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        signer = None
    if not isinstance(signer, RSAPrivateKey):
        raise _refused(f"the private key that {where} leads to is damaged, or no RSA key")
    return Login(account=account, key_id=key_id, key=key, signer=signer, project=project)


def _of_profile(file: Path) -> Login:
    """The profile that Nebius' command line uses: a service account, or a file with a token."""
    import yaml  # type: ignore[import-untyped,unused-ignore]  # comes with `nebius`

    try:
        found = yaml.safe_load(_text(str(file), str(file)))
        name = os.environ.get(PROFILE, "").strip() or found.get("default") or "default"
        profile = found["profiles"][name]
        project, kind = str(profile.get("parent-id") or ""), profile.get("auth-type")
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, RecursionError):
        raise _refused(f"{file} has no profile that can be read") from None
    where = f"the profile {name} of {file}"
    if path := profile.get("token-file"):
        return Login(token=_of_token(_text(str(path), where), where).token, project=project)
    if kind != "service account":
        summary = f"{where} logs in with a browser"
        hint = f'export {VARIABLE}="$(nebius iam get-access-token)", or use the key of a service account'
        raise PermanentError(PermanentKind.AUTH, summary, about="credentials", hint=hint)
    if path := profile.get("service-account-credentials-file-path"):
        inner = _of_path(str(path), where)
        return _of_key(inner.account, inner.key_id, inner.key, where, project)
    key = profile.get("private-key") or _text(str(profile.get("private-key-file-path")), where)
    return _of_key(profile.get("service-account-id"), profile.get("public-key-id"), key, where, project)
