"""Explains the parser's errors in the user's words: the probable mistake, and what to write.

libyaml reports where it gave up, often far below the mistake, and what its own grammar expected there. This
module compares that with the lines at both of its marks. Text of a line that may contain a secret never gets
into a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from declarative.language.source.places import Text, place_of
from declarative.model.diagnostic import Diagnostic, Span
from declarative.model.record import struct

QUOTE = 'put the value in quotes: "…"'
_SPACES = "indent with spaces, not tabs"
_ODD_SPACE = re.compile("[\u00a0\u1680\u2000-\u200b\u202f\u205f\u3000\ufeff]")
_CONFLICT = re.compile(r"(?:<<<<<<<|=======|>>>>>>>|\|\|\|\|\|\|\|)(?:\s|$)")
_WORD = re.compile(r"\s*(?:-\s+)*([A-Za-z_][\w-]{0,40})(\s*=|:|\s)?")
_VALUED = re.compile(r"\s*(?:-\s+)*[^\s#:][^:]*:\s+[^\s#|>&]")
_LONGEST_KEY = 1024
"""libyaml's limit; ours is lower."""


@struct(frozen=True, slots=True)
class _Mark:
    """A position of the parser, and the text there. Lines and columns count from 0."""

    text: Text
    line: int
    column: int

    @property
    def whole(self) -> str:
        return self.text.line(self.line)

    @property
    def before(self) -> str:
        return self.whole[: self.column]

    @property
    def rest(self) -> str:
        return self.whole[self.column :]

    @property
    def first(self) -> bool:
        """Whether it is the first text on its line."""
        return not self.before.strip()

    @property
    def ended(self) -> bool:
        """Whether nothing follows it in the file."""
        return not any(line.strip() for line in [self.rest, *self.text.lines()[self.line + 1 :][:1]])

    def above(self) -> int | None:
        """The number of the last line above that is neither blank nor a comment."""
        for number in range(self.line - 1, max(-1, self.line - 100), -1):
            line = self.text.line(number).strip()
            if line and not line.startswith("#"):
                return number
        return None

    def word(self) -> re.Match[str] | None:
        """The first word of the line, unless it may be part of a secret."""
        return None if self.text.masks(self.line) else _WORD.match(self.whole)


@struct(frozen=True, slots=True)
class _Fault:
    """The parser's error: where it gave up, and where the value began that it was reading."""

    problem: str
    context: str
    at: _Mark
    opening: _Mark


@struct(frozen=True, slots=True)
class _Message:
    """A summary and a hint, and where to show them."""

    summary: str
    hint: str
    at: _Mark


_Rule: TypeAlias = Callable[[_Fault], _Message]


def explain(text: Text, bad: Any) -> Diagnostic:
    """The diagnostic for an error of the parser."""
    problem = str(bad.problem or "this is not YAML")
    mark = bad.problem_mark or bad.context_mark
    if mark is None:
        span = Span(text.file, 1, 1, 1, 1)
        return Diagnostic(code="yaml-syntax", summary=problem, hint=_LOOK, span=span)
    opening = bad.context_mark or mark
    fault = _Fault(
        problem,
        str(bad.context or ""),
        _Mark(text, mark.line, mark.column),
        _Mark(text, opening.line, opening.column),
    )
    message = _anywhere(fault) or next((rule(fault) for part, rule in _RULES if part in problem), None)
    message = message or _Message(problem, _LOOK, fault.at)
    place = text.span(place_of(message.at, message.at), broken=True)
    return Diagnostic(code="yaml-syntax", summary=message.summary, hint=message.hint, span=place)


_LOOK = "look here and in the lines above for a quote or bracket that is not closed, and at the indentation"


def _anywhere(fault: _Fault) -> _Message | None:
    """Mistakes that can occur in any state of the parser."""
    above = fault.at.above()
    for number in (fault.opening.line, fault.at.line, *([] if above is None else [above])):
        line = fault.at.text.line(number)
        if _CONFLICT.match(line):
            hint = "resolve it: keep one side, and remove the lines with `<<<<<<<`, `=======` and `>>>>>>>`"
            return _Message("the file holds a merge conflict", hint, _Mark(fault.at.text, number, 0))
        if (odd := _ODD_SPACE.search(line)) and odd[0] == "\ufeff":
            hint = "remove it; `cat` leaves one at the start of each file that it joins"
            at = _Mark(fault.at.text, number, odd.start())
            return _Message("there is a byte order mark (U+FEFF) here, which cannot be seen", hint, at)
        if odd:
            summary = f"there is a U+{ord(odd[0]):04X} here, which looks like a space but is not one"
            return _Message(summary, "write a plain space", _Mark(fault.at.text, number, odd.start()))
    if out := _out_of_text(fault.at):
        return out
    if "${{" in fault.at.whole and "flow" in fault.context:
        hint = QUOTE + " where `${{ … }}` stands between `[ ]` or `{ }`"
        return _Message("`${{` stands between brackets without quotes", hint, fault.at)
    return None


_TEXT_BEGINS = re.compile(r"(?:[^#]*:|\s*-)\s+(?:[!&]\S+\s+)*[|>][-+0-9]*\s*(?:#.*)?")
"""A line below which a text of several lines stands."""
_GOES_ON = re.compile(r"\s*(?:-\s|-$|---|\.\.\.|\?\s|(?:[\w.-]+|\"[^\"]*\"|'[^']*')\s*:(?:\s|$))")
"""A line that may follow such a text: an item, a key, or the end of the document."""


def _out_of_text(mark: _Mark) -> _Message | None:
    """The first line of a script, say, that is not indented as far as the text that it belongs to: YAML ends
    the text there, and complains here or further below.
    """
    first = max(0, mark.line - 1_000)
    lines = [mark.text.line(number) for number in range(first, mark.line + 2)]
    begin = next((i for i in range(mark.line - first - 1, -1, -1) if _TEXT_BEGINS.fullmatch(lines[i])), None)
    if begin is None:
        return None
    indent, blank = 0, 0
    for i in range(begin + 1, len(lines)):
        line = lines[i]
        wide = len(line) - len(line.lstrip(" "))
        if not line.strip(" "):
            blank = max(blank, wide)
            continue
        if line.startswith("\t", wide) and (wide < indent or not indent):
            return None
        if not indent:
            indent = max(wide, blank)
        if wide >= indent and wide:
            continue
        below = next((x for x in lines[i + 1 :] if x.strip()), "")
        comment = line.lstrip().startswith("#") and len(below) - len(below.lstrip(" ")) < indent
        if comment:
            continue
        parent = len(lines[begin]) - len(lines[begin].lstrip(" "))
        if first + i > mark.line or (wide <= parent and _GOES_ON.match(line)):
            return None
        summary = f"the text that begins below line {first + begin + 1} has ended before this line"
        hint = (
            f"indent each line of the text by at least {max(indent, parent + 2)} spaces, this one, too, and "
            "the end of a `<<EOF`: what reads the text does not get these spaces"
        )
        return _Message(summary, hint, _Mark(mark.text, first + i, wide))
    return None


# ---------------------------------------------------------------------------- quotes, brackets, characters


def _open_quote(fault: _Fault) -> _Message:
    if "quoted" not in fault.context:
        return _Message(fault.problem, _LOOK, fault.at)
    quote = fault.opening.rest[:1] or '"'
    hint = (
        f"close it with another `{quote}`; a quote that is part of the text is written between the other kind"
    )
    return _Message(f"the `{quote}` that opens here is never closed", hint, fault.opening)


def _bracket(fault: _Fault) -> _Message:
    opened, closes = ("[", "]") if "']'" in fault.problem else ("{", "}")
    if fault.at.ended:
        summary = f"the `{opened}` that opens here is never closed"
        return _Message(summary, f"close it with `{closes}`", fault.opening)
    there = f"the `{opened}` of line {fault.opening.line + 1}"
    hint = f"write a `,` before this, or close {there} with `{closes}`; {QUOTE} where a bracket is text"
    return _Message(f"expected `,` or `{closes}`, for {there}", hint, fault.at)


def _no_content(fault: _Fault) -> _Message:
    char = fault.at.rest[:1]
    if char in ("]", "}", ","):
        what = "separates nothing" if char == "," else "closes nothing"
        return _Message(f"`{char}` {what} here", f"remove it; {QUOTE} where it is text", fault.at)
    if fault.at.rest.startswith(("---", "...")):
        hint = "close the `[` or `{` in the lines above"
        return _Message("the document ends within brackets", hint, fault.at)
    return _Message("a value is missing here", f"write one; {QUOTE} where it is text", fault.at)


def _bad_start(fault: _Fault) -> _Message:
    char = fault.at.rest[:1]
    if char == "\t":
        return _Message("a tab stands where only spaces are allowed", _SPACES, fault.at)
    if fault.at.rest.startswith("```"):
        hint = "remove the lines with ```, which belong to Markdown"
        return _Message("``` is not part of YAML", hint, fault.at)
    shown = "a backtick" if char == "`" else f"`{char}`"
    return _Message(f"text cannot begin with {shown}", QUOTE, fault.at)


def _here(summary: str, hint: str) -> _Rule:
    """The same message for each fault, at its place."""
    return lambda fault: _Message(summary, hint, fault.at)


_tab = _here("a tab stands where only spaces are allowed", _SPACES)
_escape = _here(
    "double quotes do not know this escape",
    "use single quotes, in which a backslash is text, or write `\\\\` for one backslash",
)
_colon = _here(
    "there is a `:` in a value without quotes, or no space behind it",
    f"between `[ ]` and `{{ }}`, {QUOTE} where it holds `:`; a key's `:` needs a space behind it",
)
_inline_list = _here(
    "a list with `- ` cannot begin in its key's line",
    "begin the list in the next line, or write `[…, …]`; in quotes where `- ` is text",
)
_inline_key = _here("text cannot begin with `? `", QUOTE)


def _sign(fault: _Fault) -> _Message:
    """Text that begins with `*`, `&` or `!`: these begin aliases, anchors and tags."""
    char = fault.opening.rest[:1]
    return _Message(f"text cannot begin with `{char}`", QUOTE, fault.opening)


def _block_text(fault: _Fault) -> _Message:
    char = fault.opening.rest[:1]
    hint = f"{QUOTE} where `{char}` is text; a range is written `4..`"
    if char == "|":
        hint = f"{QUOTE} where `|` is text; text of several lines begins in the line after `|`"
    summary = f"nothing may follow the `{char}` that begins a text of several lines"
    return _Message(summary, hint, fault.opening)


def _directive(fault: _Fault) -> _Message:
    return _Message("directives are not used here", "remove the line that begins with `%`", fault.opening)


# ----------------------------------------------------------------------------------- keys and indentation


def _no_colon(fault: _Fault) -> _Message:
    """A line in a mapping that is not `key: value`."""
    mark, general = fault.opening, "write `key: value`; text of several lines needs `|`"
    if fault.at.line == mark.line and fault.at.column - mark.column >= _LONGEST_KEY:
        return _Message(f"a key has at most {_LONGEST_KEY} characters", "check indentation and quotes", mark)
    above = mark.above()
    if above is not None and re.match(r"\s*- ", mark.text.line(above)):
        hint = "begin it with `- ` for another item, or indent it further to go on with the item above"
        return _Message("this line is neither an item nor `key: value`", hint, mark)
    return _Message("this line is not `key: value`", _keyed(mark.word()) or general, mark)


def _keyed(word: re.Match[str] | None) -> str | None:
    """The correct form of `name=gpu`, `name:gpu`, `name gpu`."""
    if word is None:
        return None
    name, sign = word[1], (word[2] or "").strip()
    how = {":": "with a space behind the `:`", "=": "with `:` for `=`"}.get(sign, "with a `:` behind the key")
    return f"write `{name}: …`, {how}; text of several lines needs `|`"


def _second_colon(fault: _Fault) -> _Message:
    """`: ` where no key is possible: in a value, or on a line indented too far."""
    mark = fault.at
    summary = "there is a `: ` where no key can be"
    if re.search(r"\$\{\{[^}]*\?[^}]*$", mark.before):
        return _Message(summary, "choose with `a if b else c`, not with `b ? a : c`", mark)
    if re.search(r":\s", mark.before) or re.match(r"\s*-\s+\S+\s", mark.before):
        return _Message(summary, f"{QUOTE} where it holds `: `", mark)
    number = mark.above()
    if number is None:
        return _Message(summary, f"check the indentation, and {QUOTE} where it holds `: `", mark)
    above = _Mark(mark.text, number, 0)
    if _VALUED.match(above.whole):
        return _too_far(mark, number)
    if ": " not in above.whole + " " and (hint := _keyed(above.word())):
        return _Message(f"line {number + 1} is not `key: value`", hint, above)
    return _Message(summary, f"check the indentation, and {QUOTE} where it holds `: `", mark)


def _too_far(mark: _Mark, above: int) -> _Message:
    hint = f"line {above + 1} has a value already: indent this line like it, or remove that value"
    return _Message("this line is indented too far", hint, mark)


def _stray_line(fault: _Fault) -> _Message:
    """A line, or the rest of one, that does not continue anything above it."""
    mark, opening = fault.at, fault.opening
    if not mark.first:
        return _after_value(mark)
    beside = opening.column == mark.column
    if mark.rest.startswith("- ") and beside:
        hint = "write a list below a key of its own: `key:`, then lines with `- …`"
        return _Message("a list stands beside keys", hint, mark)
    if mark.rest.startswith(":"):
        return _Message("a key is missing before `:`", "write `key: value`", mark)
    if "'-'" in fault.problem and beside:
        hint = "begin it with `- `, or indent it as far as the fields of the item or of the list's key"
        return _Message("this line stands between the items of a list", hint, mark)
    return _unmatched_indent(mark, opening)


def _unmatched_indent(mark: _Mark, opening: _Mark) -> _Message:
    """A line whose indentation matches nothing above it."""
    above = mark.above()
    hint = f"indent it like line {opening.line + 1}"
    if above is not None and above != opening.line:
        hint = f"indent it like line {above + 1} or line {opening.line + 1}, whichever it belongs beside"
    elif above is not None and mark.column > opening.column and _VALUED.match(mark.text.line(above)):
        return _too_far(mark, above)
    return _Message("this line is indented like nothing above it", hint, mark)


def _after_value(mark: _Mark) -> _Message:
    """Text after the end of a value."""
    last = mark.before.rstrip()[-1:]
    if last in ("'", '"'):
        other = '"' if last == "'" else "'"
        hint = f"put the whole value into one pair of quotes, {other}…{other} where it holds {last}"
        return _Message("the value has ended with the quote before this", hint, mark)
    if last in ("]", "}"):
        hint = f"remove what follows, or {QUOTE} where the bracket is text"
        return _Message(f"the value has ended with the `{last}` before this", hint, mark)
    return _Message("the value has ended before this", QUOTE, mark)


def _document(fault: _Fault) -> _Message:
    mark = fault.at
    above = mark.above()
    if above is not None and mark.text.line(above).startswith("%"):
        return _Message("directives are not used here", "remove it", _Mark(mark.text, above, 0))
    if not mark.first and not mark.whole.startswith("..."):
        return _after_value(mark)
    hint = "begin another document with `---` in a line of its own"
    return _Message("the document has ended before this", hint, mark)


_RULES: tuple[tuple[str, _Rule], ...] = (
    ("unexpected end of stream", _open_quote),
    ("unexpected document indicator", _open_quote),
    ("expected ',' or", _bracket),
    ("expected node content", _no_content),
    ("cannot start any token", _bad_start),
    ("tab character", _tab),
    ("unknown escape", _escape),
    ("hexdecimal", _escape),
    ("character escape code", _escape),
    ("alphabetic or numeric", _sign),
    ("tag", _sign),
    ("whitespace or line break", _sign),
    ("the expected '>'", _sign),
    ("comment or line break", _block_text),
    ("comment or a line break", _block_text),
    ("indentation indicator", _block_text),
    ("YAML", _directive),
    ("directive", _directive),
    ("version number", _directive),
    ("unexpected ':'", _colon),
    ("expected ':'", _no_colon),
    ("mapping values are not", _second_colon),
    ("expected key", _stray_line),
    ("expected <block end>", _stray_line),
    ("expected '-'", _stray_line),
    ("sequence entries", _inline_list),
    ("mapping keys are not", _inline_key),
    ("document start", _document),
)
"""A part of the message of libyaml or of ruamel's own parser, and the rule that rewords it. The first match
counts.
"""
