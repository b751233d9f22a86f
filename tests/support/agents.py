"""How the agents of CI services read a log: which of its lines they would take for commands.

Follows the documented forms and the published sources of the agents: GitHub's runner (`ActionCommand`),
Azure's agent (`Command`), and TeamCity's service messages.
"""

from __future__ import annotations

import re

BLANKS = " \t\v\f\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2028\u2029\u202f\u205f\u3000"


def commands_of(text: str) -> list[str]:
    """The lines that any of them obeys. A carriage return ends a line as well."""
    lines = re.split(r"\r\n|\r|\n", text)
    return [line for line in lines if _github(line) or _bracketed(line)]


def _github(line: str) -> bool:
    """`::name key=value::message`, blanks before it aside; a name that is not known today may be tomorrow."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line).lstrip(BLANKS)
    if not line.startswith("::"):
        return False
    end = line.find("::", 2)
    return end > 2 and line[2:end].split(" ")[0] != ""


def _bracketed(line: str) -> bool:
    """`##[name …]` of GitHub's older form, `##vso[area.event …]`, `##teamcity[…]`: anywhere in a line."""
    return any(
        line.find("]", start) >= 0
        for word in ("##[", "##vso[", "##teamcity[")
        if (start := line.find(word)) >= 0
    )
