"""What a project asks for, held against what the operator allows, before anything is contacted or read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from declarative.model.spec.policy import OperatorPolicy
from declarative.provider import Config, PermanentError, PermanentKind

FILES = ("known_hosts", "ssh_config", "identity_file")
"""Options of backends, and fields of hosts, that name files of ssh's."""
MAY = "a policy may allow it: docs/security.md"
_HARMLESS = frozenset(
    re.findall(
        r"\w+",
        "host match hostname port user identityfile identitiesonly userknownhostsfile "
        "globalknownhostsfile proxyjump serveraliveinterval serveralivecountmax connecttimeout "
        "connectionattempts hostkeyalias hostkeyalgorithms kexalgorithms ciphers macs compression "
        "addressfamily stricthostkeychecking tcpkeepalive preferredauthentications pubkeyauthentication "
        "passwordauthentication batchmode loglevel checkhostip hashknownhosts updatehostkeys "
        "casignaturealgorithms pubkeyacceptedalgorithms bindaddress requesttty canonicalizehostname ",
    )
)
"""What ssh's configuration may say without running a command, loading a library, reading other files as
configuration, sending variables, or lending the user's agent."""
_MOST = 1 << 20


def check(
    config: Config, policy: OperatorPolicy, hosts: Iterable[Mapping[str, Any]], *, offline: bool = False
) -> None:
    """`PermanentError` for the first thing that a backend, or one of `hosts`, may not have.

    Offline any variables may be named: their values are neither read nor sent.
    """
    if why := policy.refused_driver(config.driver):
        raise _refused(why, "driver", MAY)
    if config.endpoint and (why := policy.refused_endpoint(str(config.endpoint))):
        raise _refused(why, "endpoint", f"write `https://…`; or {MAY} (`endpoints`)")
    for key, variable in () if offline else config.credentials.items():
        if why := policy.refused_variable(config.driver, variable):
            hint = f"if it is meant for that: `--allow-variable {variable}`; or {MAY} (`credentials`)"
            raise _refused(f"backend {config.backend}: {why}", f"credentials.{key}", hint)
    for name, text in dict.fromkeys(_files(config.options, hosts)):  # hosts mostly name the same few
        path = Path(os.path.realpath(config.project_dir.absolute() / Path(text).expanduser()))
        if not _is_allowed(path, config.project_dir, policy):
            # In the summary as well: where a host is left out of a plan, that is all that is said.
            why = (
                f"`{name}` is neither in the project nor in ~/.ssh: {text} (`--allow-path {text}` allows it)"
            )
            raise _refused(why, name, f"if it is meant, allow it; or {MAY} (`paths`)")
        if name == "ssh_config" and not policy.allow_commands:
            _check_config(path, config.project_dir)


def _refused(summary: str, about: str, hint: str) -> PermanentError:
    return PermanentError(PermanentKind.INVALID, summary, about=about, hint=hint)


def _files(options: Mapping[str, Any], hosts: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """(field, file) of a backend's options, and of hosts and those on the way to them."""
    left: list[Any] = [options, *hosts]
    while left:
        fields = left.pop()
        if isinstance(fields, Mapping):
            yield from ((n, fields[n]) for n in FILES if isinstance(fields.get(n), str) and fields[n])
            left += (fields.get("proxy_jump"), fields.get("login"))


def _is_allowed(path: Path, project: Path, policy: OperatorPolicy) -> bool:
    places = (project, Path("~/.ssh").expanduser(), *(Path(p).expanduser() for p in policy.paths))
    return any(path.is_relative_to(os.path.realpath(place)) for place in places)


def _check_config(path: Path, project: Path) -> None:
    """`PermanentError` where ssh's configuration, as a part of the project, would do more than name hosts.

    Neither the line nor its words are shown: the file may be anything.
    """
    if not path.is_relative_to(os.path.realpath(project)):
        return  # it is the user's own, or the operator's
    try:
        with path.open("rb") as file:
            text = file.read(_MOST).decode(errors="replace")
    except OSError:
        return  # whoever needs it says so
    for number, line in enumerate(re.split(r"\r\n|[\n\r\f\v\x1c-\x1e\x85\u2028\u2029]", text), 1):
        word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        keyword = word.strip("\"' \t").split("\t")[0].lower()
        if not keyword or keyword.startswith("#"):
            continue
        runs = keyword == "match" and re.search(r"exec", rest, re.IGNORECASE)
        files = keyword in ("identityfile", "userknownhostsfile", "globalknownhostsfile")
        outside = files and re.search(r"(^|[\s\"'=])(/|~(?!/\.ssh/))|\.\.|%", rest)
        if keyword not in _HARMLESS or runs or outside or "${" in line or "`" in line:
            summary = f"line {number} of the project's `ssh_config` does more than name hosts and keys "
            summary += "(`--allow-commands` allows it)"
            hint = "if its commands and files are meant, allow them, or put it into ~/.ssh"
            raise _refused(summary, "options.ssh_config", hint)
