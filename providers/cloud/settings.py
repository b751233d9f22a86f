"""The endpoint, secrets and options of a cloud, and which of them each driver needs.

A backend's `credentials` name environment variables. Their values are read here, kept in memory, and removed
from every message.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from declarative.model.record import struct
from declarative.model.text import suggest
from declarative.provider import Config, PermanentError, PermanentKind
from providers.cloud.bad_answers import Scrub

RETRIES = "LIBCLOUD_RETRY_FAILED_HTTP_REQUESTS"
DEBUG = "LIBCLOUD_DEBUG"
REFUSED: Mapping[str, str] = {
    # It repeats requests without an answer under a new token, which makes things twice.
    RETRIES: f"unset {RETRIES}; requests are tried again here, and safely",
    DEBUG: f"unset {DEBUG}: all requests would be written into that file, with passwords, tokens and keys",
}
"""libcloud's variables that are refused, and what to do about each."""
TIMEOUT = 60
"""The timeout of a request in seconds."""
NODE_DISK = 100
"""The default size of a node's own disk in GiB: an image's, often 8, is too small for GPU software."""


@struct(frozen=True, slots=True, kw_only=True)
class Host:
    """The host that requests go to."""

    name: str
    port: int
    secure: bool


def refuse() -> None:
    """`PermanentError` if a variable would make libcloud do something unsafe."""
    for name, hint in REFUSED.items():
        if os.environ.get(name):
            raise PermanentError(PermanentKind.INVALID, f"{name} is set", about=name, hint=hint)


def secrets(config: Config, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, str]:
    """The values of a driver's credentials; `PermanentError` for a missing one."""
    refuse()
    known = (*needed, *optional)
    for key in config.credentials:
        if key not in known:
            raise _unknown(config, known, key)
    missing = [key for key in needed if key not in config.credentials]
    if missing:
        raise _unnamed(config, needed, missing[0])
    values = {key: os.environ.get(name, "").strip() for key, name in config.credentials.items()}
    unset = [key for key, value in values.items() if not value]
    if unset:
        raise _unset(config, unset)
    return values


def _unknown(config: Config, known: Sequence[str], key: str) -> PermanentError:
    """The fault for a credential that the driver does not have."""
    summary = f"`{key}` is no credential of the driver `{config.driver}`"
    hint = suggest(key, known) or f"it takes {', '.join(known)}"
    return PermanentError(PermanentKind.AUTH, summary, about=f"credentials.{key}", hint=hint)


def _unnamed(config: Config, needed: Sequence[str], key: str) -> PermanentError:
    """The fault for a credential that the backend does not name."""
    example = ", ".join(f"{name}: NAME_OF_A_VARIABLE" for name in needed)
    hint = f"write `credentials: {{{example}}}`"
    shown = re.findall(r"(\w+):", NEEDED.get(config.driver, {}).get("credentials", ""))
    if set(needed) <= set(shown):
        hint = write(config, "credentials") or hint
    summary = f"backend {config.backend} names no `{key}` under `credentials`"
    return PermanentError(PermanentKind.AUTH, summary, about="credentials", hint=hint)


def _unset(config: Config, keys: Sequence[str]) -> PermanentError:
    """The fault for variables without a value."""
    names = " and ".join(config.credentials[key] for key in keys)
    which = " and ".join(f"`{key}`" for key in keys)
    if len(keys) == 1:
        summary = f"the environment variable {names} is not set"
        hint = (
            f"export it, with the credential {which} of backend {config.backend}, or name the one that has it"
        )
    else:
        summary = f"the environment variables {names} are not set"
        hint = (
            f"export them, with the credentials {which} of backend {config.backend}, "
            "or name those that have them"
        )
    return PermanentError(PermanentKind.AUTH, summary, about=f"credentials.{keys[0]}", hint=hint)


def scrub(values: Mapping[str, str]) -> Scrub:
    """An object that removes these values from messages."""
    return Scrub(values.values())


def host(endpoint: str) -> Host:
    """A URL in libcloud's form."""
    parts = urlsplit(endpoint)
    secure = parts.scheme == "https"
    if parts.path not in ("", "/"):
        summary = f"`endpoint` has a path, and this driver asks at `/`: {endpoint}"
        raise PermanentError(PermanentKind.INVALID, summary, about="endpoint")
    return Host(name=parts.hostname or "", port=parts.port or (443 if secure else 80), secure=secure)


def options(config: Config, known: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """The driver's own options; `PermanentError` for a wrong name or type."""
    for key, value in config.options.items():
        about = f"options.{key}"
        if key not in known:
            hint = suggest(key, list(known)) or f"it has these: {', '.join(known)}"
            summary = f"`{key}` is no option of the driver `{config.driver}`"
            raise PermanentError(PermanentKind.INVALID, summary, about=about, hint=hint)
        if not isinstance(value, known[key]) or isinstance(value, bool):
            raise PermanentError(
                PermanentKind.INVALID, f"the option `{key}` cannot be {reprlib.repr(value)}", about=about
            )
    return dict(config.options)


_AZURE = {
    "regions": "[eastus]",
    "credentials": "{tenant_id: AZURE_TENANT_ID, subscription_id: AZURE_SUBSCRIPTION_ID, "
    "key: AZURE_CLIENT_ID, secret: AZURE_CLIENT_SECRET}",
    "image": "Canonical:ubuntu-24_04-lts:server:latest",
    "network": "{subnets: {eastus: my-network/my-subnet}}",
    "options": "{resource_group: my-group}",
}
NEEDED: Mapping[str, Mapping[str, str]] = {
    "ec2": {
        "regions": "[us-east-1]",
        "credentials": "{key: AWS_ACCESS_KEY_ID, secret: AWS_SECRET_ACCESS_KEY}",
        "image": "ami-…",
    },
    "openstack": {
        "endpoint": "https://cloud.example.org:5000",
        "regions": "[RegionOne]",
        "credentials": "{username: OS_USERNAME, password: OS_PASSWORD}",
        "image": "debian-12",
        "options": "{project: lab}",
    },
    "gce": {
        "regions": "[us-central1]",
        "credentials": "{key: GOOGLE_APPLICATION_CREDENTIALS}",
        "image": "ubuntu-os-cloud/ubuntu-2404-lts-amd64",
    },
    "azure": _AZURE,
    "azure_arm": _AZURE,
    "digitalocean": {
        "regions": "[nyc3]",
        "credentials": "{key: DIGITALOCEAN_TOKEN}",
        "image": "ubuntu-24-04-x64",
    },
    "vultr": {
        "regions": "[ewr]",
        "credentials": "{key: VULTR_API_KEY}",
        "image": '"2284"',
    },
    "crusoe": {
        "regions": "[us-east1-a]",
        "credentials": "{key: CRUSOE_ACCESS_KEY_ID, secret: CRUSOE_SECRET_KEY}",
        "image": "ubuntu22.04-nvidia-sxm-docker:latest",
    },
    "hyperstack": {
        "regions": "[CANADA-1]",
        "credentials": "{key: HYPERSTACK_API_KEY}",
        "image": "Ubuntu Server 24.04 LTS (Noble Numbat)",
    },
    "lambda": {
        "regions": "[us-east-1, us-south-2]",
        "credentials": "{key: LAMBDA_API_KEY}",
        "image": "lambda-stack-24-04",
    },
    "nebius": {
        "regions": "[eu-north1]",
        "credentials": "{key: NEBIUS_SERVICE_ACCOUNT}",
        "image": "ubuntu24.04-cuda12",
        "options": "{project: project-…}",
    },
}
"""Driver → field → an example. `credentials` name environment variables."""
_CHOICES = {"options": ("resource_group", "project", "project_id")}
"""The field must have one of these."""


def write(config: Config, field: str) -> str | None:
    """A hint `write …` for a missing or incomplete field, and all others of that kind; None if the driver's
    needs are not known.
    """
    examples = NEEDED.get(config.driver, {})
    if field not in examples:
        return None
    others = (name for name in examples if name != field and not _has(config, name))
    # Without credentials in the YAML, these drivers find them where the clouds' own tools do.
    finds_own = ("ec2", "hyperstack", "lambda", "crusoe", "nebius")
    missing = [field, *(name for name in others if name != "credentials" or config.driver not in finds_own)]
    first, *more = (f"`{name}: {examples[name]}`" for name in missing)
    as_well = f"; missing as well: {', '.join(more)}" if more else ""
    return f"write {first}{as_well}"


def _has(config: Config, field: str) -> bool:
    if field == "options":
        # Only users name a project: an application credential belongs to one.
        return ("secret" in config.credentials and config.driver == "openstack") or any(
            key in config.options for key in _CHOICES[field]
        )
    return bool(config.network.subnets if field == "network" else getattr(config, field))
