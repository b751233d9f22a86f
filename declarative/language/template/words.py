"""What is wrong with an expression, in the user's words: what Jinja2 says of it is about its own tokens.

The expression itself is looked at first, its text in quotes left out: most of what is wrong comes from other
languages (`&&`, `? :`, `{% if %}`, `$x`), and Jinja2 only tells where it gave up. Nothing is run here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from declarative.model.diagnostic import suggest

Message = tuple[str, str]
"""What is wrong, and what to write."""

NAMES = "`var.x` (declare x in `project.variables`), `env.X`, `node_rank`"
_QUOTED = re.compile(r"""'(?>[^'\\]|\\.)*+'|"(?>[^"\\]|\\.)*+\"""", re.DOTALL)
_FOREIGN = (
    (r"&&", "`&&` is not an operator", "write `and`"),
    (r"\|\|", "`||` is not an operator", "write `or`"),
    (r"!==", "`!==` is not an operator", "write `!=`"),
    (r"===", "`===` is not an operator", "write `==`"),
    (r"\?", "`?` is not an operator", "write `a if b else c`"),
    (r"!(?!=)", "`!` is not an operator", "write `not`"),
    (r"(?<![=!<>])=(?!=)", "`=` is not an operator", "write `==` to compare"),
    (r"\$", "`$` has no meaning in it", "write the name alone, such as `var.x`"),
)
"""What other languages write, as expressions to search for."""
_STATEMENTS = (
    "if",
    "elif",
    "else",
    "endif",
    "for",
    "endfor",
    "set",
    "with",
    "block",
    "macro",
    "raw",
    "include",
)
_NODES = {
    "call": ("functions and methods cannot be called in an expression", "use one of the filters: {filters}"),
    "getattr": ("a name has two parts at most in an expression", f"known: {NAMES}"),
    "getitem": ("`[ ]` cannot be used in an expression", f"names are written with a dot; known: {NAMES}"),
    "test": (
        "`is` cannot be used in an expression",
        "compare with `==`, `!=`, `<` or `in`; every declared variable has a value",
    ),
    "pow": ("`**` cannot be used in an expression", "write the number itself, or use `*`"),
    "list": ("a list cannot be written in an expression", "an expression gives text or a number"),
    "tuple": ("`,` cannot be used in an expression", "write one `${{ … }}` for each value; `~` joins text"),
    "dict": ("a mapping cannot be written in an expression", "an expression gives text or a number"),
    "slice": ("`[ ]` cannot be used in an expression", f"names are written with a dot; known: {NAMES}"),
}


def shown(text: str) -> str:
    """An expression, as a message may show it."""
    return text if len(text) <= 60 else text[:60] + "…"


def never_closed(text: str, end: int) -> Message:
    """`text` begins with `${{` that is not closed; `end` is where reading it came to its end."""
    piece = text[:40]
    if text[end : end + 1] in ("'", '"'):
        quote = text[end]
        hint = f"close it with another `{quote}` before `}}}}`"
        return f"a `{quote}` in `{piece}` is never closed", hint
    if re.match(r"\}(?:\s*\}|\s*$)", text[end - 1 : end + 20]) or "}" in text[3:end]:
        return f"`{piece}` is never closed", "end the expression with `}}`: two braces, no space between"
    return f"`{piece}` is never closed", "end the expression with `}}`"


def one_too_many(closed: str) -> Message:
    """`closed` is an expression with its braces; one more follows."""
    hint = "write two of them; where the brace is text: `${{ '}' }}`"
    return f"there is a `}}` too many behind `{shown(closed)}`", hint


def not_allowed(node: str, filters: Sequence[str]) -> Message:
    """A part of Jinja2 that expressions do not have."""
    summary, hint = _NODES.get(
        node,
        (
            f"`{node}` is not allowed in an expression",
            "use names, constants, operators, `a if b else c`, and the filters {filters}",
        ),
    )
    return summary, hint.format(filters=", ".join(filters)) if "{filters}" in hint else hint


def no_expression(text: str, error: str, filters: Sequence[str]) -> Message:
    """What Jinja2 does not understand; `error` is its own message."""
    bare = _QUOTED.sub("''", text)
    found = _foreign(bare) or _filter(error, filters) or _unbalanced(bare) or _by_message(bare, error)
    summary, hint = found or ("", "write an expression of names, constants and operators: `${{ var.x }}`")
    begin = f"`{shown(text)}` is not an expression"
    return (f"{begin}: {summary}" if summary else begin), hint


def _foreign(bare: str) -> Message | None:
    """What other languages write."""
    if re.search(rf"\{{%|%\}}|\A(?:{'|'.join(_STATEMENTS)})\b(?!\Z)", bare, re.ASCII):
        return "there are no statements", "write `${{ a if b else c }}` to choose; there are no loops"
    if "{{" in bare:
        return "`{{` stands in it once more", "write names alone, without `{{ }}` of their own"
    if bare.startswith("{"):
        return "there is a `{` too many", "write `${{ … }}`, with two of them"
    for sign, summary, hint in _FOREIGN:
        if re.search(sign, bare):
            return summary, hint
    return None


def _filter(error: str, filters: Sequence[str]) -> Message | None:
    match = re.match(r"No filter named '(\w{1,40})'", error)
    if match is None:
        return None
    if match[1] in ("default", "d"):
        return f"there is no filter `{match[1]}`", "give the variable a `default:` in `project.variables`"
    near = suggest(match[1], filters)
    return f"there is no filter `{match[1]}`", near or f"there are {', '.join(filters)}"


def _unbalanced(bare: str) -> Message | None:
    for one, other in (("(", ")"), ("[", "]"), ("{", "}")):
        if bare.count(one) > bare.count(other):
            return f"`{one}` is never closed", f"close it with `{other}`"
        if bare.count(one) < bare.count(other):
            return f"`{other}` closes nothing", "remove it"
    return None


def _by_message(bare: str, error: str) -> Message | None:
    """By the message of Jinja2."""
    if "got 'end of print statement'" in error or error == "unexpected 'end of print statement'":
        last = re.search(r"[A-Za-z]+$|\S$", bare)
        behind = f" behind `{last[0]}`" if last else ""
        return f"something is missing{behind}", f"write a name or a constant{behind}, or remove it"
    if error == "expected name or number":
        return "a name is missing behind `.`", "write `var.x`"
    if match := re.match(r"unexpected (?:char )?'(\S{1,3})'", error):
        if bare.startswith(match[1]) and match[1][0] in "|%*/~<>=,.+":
            return (
                f"nothing stands before `{match[1]}`",
                "write a name or a constant before it; text in quotes",
            )
        return f"`{match[1]}` has no meaning here", "put text in quotes: `'…'`"
    if error.startswith("expected token 'end of print statement'"):
        return _side_by_side(bare)
    return None


def _side_by_side(bare: str) -> Message:
    """Two things with nothing between them."""
    if match := re.fullmatch(r"(var|env)[\s:/]+([A-Za-z_]\w*)", bare):
        return "a `.` is missing", f"write `{match[1]}.{match[2]}`"
    if re.fullmatch(r"[\d.]+\s*[A-Za-z]+", bare):
        return "a number and a word stand side by side", "write it without `${{ }}`, or as text: `'…'`"
    if re.search(r"[\w')]\s+['\w(]", bare):
        hint = "write an operator between them: `~` joins text; put text in quotes: `'…'`"
        return "two values stand side by side", hint
    return "a sign in it has no meaning here", "put text in quotes: `'…'`"


def failure(error: str) -> Message:
    """Why an expression fails when it is worked out; `error` is Python's message."""
    error = re.sub(r"\b_?(?:do_)?(\w+)\(\)", r"`\1`", error[:200])
    if "not supported between" in error:
        return "text and numbers cannot be compared", "make a number of text: `var.x | int`"
    if "argument" in error:
        return error, "give a filter what it takes: `var.x | replace('a', 'b')`, `var.x | upper`"
    if "by zero" in error:
        return error, "make sure that what you divide by is not 0"
    return error, "text is joined with `~`; `| int` and `| float` make numbers of text"
