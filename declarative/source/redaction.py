"""Which lines of a file are never shown under a message, because a secret may stand there.

By the text alone: of a file that is not YAML nothing is known but its text, and the reader's own findings
come before anybody knows what the fields are. What is wrongly held for a secret costs a message its source
line; file, line and column are said all the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SECRET_FIELDS = ("credentials", "creds", "registry_auth", "state", "plan_keys")
"""Fields whose values may hold a secret that does not belong there."""
MASKED_FIELDS = ("env",)
"""Where the syntax is broken, nobody can say what in here is a value, and what breaks it may be a secret."""

MAX_SEARCHED = 2_000
"""Characters of a line that are searched; longer lines are not shown at all."""
MAX_STARTS = 10_000
"""Such fields of one file: after as many, everything is hidden."""

_NAMED = re.compile(
    r"(?:secret|passw|token(?!iz|s\b)|credential|api_?key|\bkey|[_-]key)[\w-]*[\"']?\s*(?::\s|=)\s*[\"']?(?![\s\"'$]|$)",
    re.IGNORECASE,
)
"""A name like `HF_TOKEN` with a value; `${{ env.HF_TOKEN }}` is none."""
_SHAPED = re.compile(
    r"(?:AKIA|ASIA|hf_|ghp_|github_pat_|glpat-|sk-)[\w-]{12,}|://[^\s/:@]*:[^\s/@]+@|-----BEGIN "
)
"""What is a secret by its looks: cloud keys, tokens, a password in a URL."""
_KEY = re.compile(r"\s*[\"']?[\w.-]+[\"']?\s*:(?:\s|$)")
_ITEM = re.compile(r"\s*-\s")
_FIRST = re.compile(rf"\s*(?:-\s+)*[\"']?(?:{'|'.join(MASKED_FIELDS)})\b")
_MARKER = re.compile(r"(?:---|\.\.\.)(?:\s|$)")


def tells_secret(line: str) -> bool:
    """Whether a line looks as if it held a secret, whatever it is part of."""
    return bool(_NAMED.search(line) or _SHAPED.search(line))


def masked(line: str) -> str:
    """A line with nothing left of it but its punctuation, so that a caret still shows where."""
    kept = _FIRST.match(line)
    start = kept.end() if kept else 0
    return line[:start] + re.sub(r"\w", "*", line[start:])


def below_secrets(lines: Sequence[str], fields: Sequence[str], *, broken: bool) -> bytearray:
    """For each line, whether it is part of one of these fields. With `broken`, a missing `:` is no excuse."""
    behind = r"(?![\w.-])" if broken else r"[\"']?\s*:(?:\s|$)"
    start = re.compile(rf"(?:^|[{{,\[])\s*(?:-\s+)*[\"']?({'|'.join(fields)}){behind}")
    out = bytearray(len(lines))
    column, depth, starts = -1, 0, 0
    for number, line in enumerate(lines):
        text = line
        if column >= 0 and _ends(line, column, depth):
            column = -1
        if column < 0:
            found = any(field in line for field in fields) and start.search(line[:MAX_SEARCHED])
            if not found:
                continue
            # In a flow mapping the columns say little: what is further left than the line ends it.
            first = len(line) - len(line.lstrip(" -\"'"))
            column = first if found.start(1) == first else _indent(line)
            depth, text = 0, line[found.end() :]
            starts += 1
        if starts > MAX_STARTS:
            out[number:] = b"\1" * (len(lines) - number)
            break
        out[number] = 1
        depth = max(0, depth + sum(map(text.count, "[{")) - sum(map(text.count, "]}")))
    return out


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _ends(line: str, column: int, depth: int) -> bool:
    """Whether a line is surely no part any more of the field whose key begins at `column`."""
    if _MARKER.match(line):
        return True
    if depth > 0:
        return False
    head, indent = line[:MAX_SEARCHED], _indent(line)
    return bool((indent <= column and _KEY.match(head)) or (indent < column and _ITEM.match(head)))
