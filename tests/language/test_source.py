"""YAML with positions: what is read, what is refused, and where."""

import gc
import json
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.language.source import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_MARKS,
    MAX_NODES,
    Document,
    no_collections,
    parse,
    read,
)
from declarative.language.source.reader import MAX_DOCUMENTS, MAX_FINDINGS, MAX_ITEMS
from declarative.model.diagnostic import Diagnostic, InvalidError, Span


def one(text: str) -> Document:
    (document,) = read(text, "f.yaml")
    return document


def refused(content: str | bytes) -> Diagnostic:
    with pytest.raises(InvalidError) as info:
        read(content, "f.yaml")
    (diagnostic,) = info.value.diagnostics
    return diagnostic


def place(span: Span | None) -> tuple[int, int, int, int]:
    assert span is not None
    return span.line, span.column, span.end_line, span.end_column


# ------------------------------------------------------------------------------------------------ data


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("2020-01-01", "2020-01-01"),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("-3", -3),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("4.", 4.0),
        ("1.2.3", "1.2.3"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("'12'", "12"),
        ('"a\\tb"', "a\tb"),
        ("!!str 12", "12"),
        ("! 12", "12"),
        ("9223372036854775807", 2**63 - 1),
        ("0..4", "0..4"),
        ("data-${{ node_rank }}:/data", "data-${{ node_rank }}:/data"),
        ("${#x} {% if %}", "${#x} {% if %}"),
    ],
)
def test_scalars_are_those_of_the_core_schema(text, value):
    found = one(f"a: {text}\n").data["a"]
    assert found == value
    assert type(found) is type(value)


def test_empty_documents_are_left_out():
    assert [d.data for d in read("---\n# nothing\n---\na: 1\n---\n...\n---\nb: 2\n", "f")] == [
        {"a": 1},
        {"b": 2},
    ]
    assert read("", "f") == []


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter():
    document = one("\ufeffa: 1\r\nb:\r\n  - x\r\n")
    assert document.data == {"a": 1, "b": ["x"]}
    assert place(document.span(("b", 0))) == (3, 5, 3, 6)
    assert document.span(("b", 0)).text == "  - x"


def test_aliases_stand_for_what_they_name():
    assert one("a: &x [1, {b: 2}]\nc: *x\n").data == {"a": [1, {"b": 2}], "c": [1, {"b": 2}]}


# ------------------------------------------------------------------------------------------------ places

TEXT = """\
# a comment
type: fleet
name: gpu
text: |
  two
  lines
list:
  - 1
  - deep: "é"   # comment
    flow: [a,
      b]
"""


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        (("type",), (2, 7, 2, 12), (2, 1, 2, 5)),
        (("list",), (8, 3, 11, 9), (7, 1, 7, 5)),
        (("list", 0), (8, 5, 8, 6), (8, 5, 8, 6)),
        (("list", 1, "deep"), (9, 11, 9, 14), (9, 5, 9, 9)),
        (("list", 1, "flow"), (10, 11, 11, 9), (10, 5, 10, 9)),
        (("list", 1, "flow", 1), (11, 7, 11, 8), (11, 7, 11, 8)),
        (("list", 7), (8, 3, 11, 9), (7, 1, 7, 5)),  # the nearest that there is
        (("nodes",), (3, 7, 3, 10), (3, 7, 3, 10)),  # a whole document is shown by its name
        ((), (3, 7, 3, 10), (3, 7, 3, 10)),
    ],
)
def test_places(path, value, key):
    document = one(TEXT)
    assert place(document.span(path)) == value
    assert place(document.span(path, key=True)) == key


KEYS = st.text("abcxyz", min_size=1, max_size=3)
VALUES = st.recursive(
    st.integers(0, 9) | st.text('ab c:"', max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


def written(value, indent=0):
    """The value in block style; innermost and empty collections in flow style."""
    items = list(
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    )
    if not any(isinstance(item, dict | list) for _, item in items):
        return json.dumps(value)
    heads = [f"{key}: " if isinstance(value, dict) else "- " for key, _ in items]
    lines = (head + written(item, indent + 2) for head, (_, item) in zip(heads, items, strict=True))
    return "".join(f"\n{' ' * indent}{line}" for line in lines)


def paths(value, path=()):
    """The path of each scalar below, and the scalar."""
    if not isinstance(value, dict | list):
        yield path, value
        return
    for step, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from paths(item, (*path, step))


@given(st.lists(st.dictionaries(KEYS, VALUES, min_size=1), min_size=1, max_size=3))
def test_each_value_and_each_key_is_where_its_place_says(documents):
    text = "---".join(f"\n{written(data).strip()}\n" for data in documents)
    lines = text.split("\n")

    def at(span):
        assert span.line == span.end_line
        return lines[span.line - 1][span.column - 1 : span.end_column - 1]

    for document, data in zip(read(text, "f.yaml"), documents, strict=True):
        assert document.data == data
        for path, value in paths(data):
            assert json.loads(at(document.span(path))) == value
            if isinstance(path[-1], str):
                assert at(document.span(path, key=True)).strip('"') == path[-1]


@pytest.mark.parametrize(
    "more",
    ["", "tags: {{team: t{i}}}", "env:\n  A: b{i}\n  C: d", "commands:\n- run {i}", "gpu: {{a: 1}}\nx: [1]"],
)
def test_a_value_takes_little_memory_with_its_place(more):
    """As a table of places for each mapping it took 150 to 200 B, and a project has millions of values."""
    text = "---\n".join(f"type: a\nname: v{i}\n{more.format(i=i)}\n" for i in range(2_000))
    parse("type: a", "f.yaml")
    tracemalloc.start()
    try:
        reading = parse(text, "f.yaml")
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held / sum(document.size for document in reading.documents) < 130


def test_a_document_is_shown_by_its_name_else_its_type_else_its_first_key():
    assert place(one("type: x\nname: {a: 1}\n").span()) == (1, 7, 1, 8)
    assert place(one("\nq: 1\n").span()) == (2, 1, 2, 2)
    assert place(one("{}\n").span()) == (1, 1, 1, 3)


def test_a_long_line_is_not_shown():
    assert one("a: " + "x" * 3000).span(("a",)).text == ""


# ------------------------------------------------------------------------------------------------ refusals

REFUSED = [
    ("a: 'x\n", "yaml-syntax", "the `'` that opens here is never closed", "close it with", (1, 4)),
    (
        "a: b: c\n",
        "yaml-syntax",
        "there is a `: ` where no key can be",
        "in quotes",
        (1, 5),
    ),
    (
        "a:\n\tb: 1\n",
        "yaml-syntax",
        "a tab stands where only spaces are allowed",
        "spaces, not tabs",
        (2, 1),
    ),
    (
        "a: [1, 2\nb: 3\n",
        "yaml-syntax",
        "expected `,` or `]`, for the `[` of line 1",
        "close the `[`",
        (2, 2),
    ),
    ("a: {gpu: H100:8}\n", "yaml-syntax", "there is a `:` in a value without quotes", "in quotes", (1, 14)),
    (
        "a: [x-${{ r }}]\n",
        "yaml-syntax",
        "`${{` stands between brackets",
        "`${{ … }}` stands between",
        (1, 8),
    ),
    ('a: "\\q"\n', "yaml-syntax", "double quotes do not know this escape", "single quotes", (1, 5)),
    ("a: *x\n", "yaml-syntax", "`*x` refers to nothing", "mark a value with `&…`", (1, 4)),
    (
        "a: &x 1\n---\na: *x\n",
        "yaml-syntax",
        "`*x` refers to nothing in this document: an anchor ends with its document, at `---`",
        "write the value out",
        (3, 4),
    ),
    (
        "a: 1\n---\n\ufeffb: 1\nc: 2\n",
        "yaml-syntax",
        "there is a byte order mark (U+FEFF)",
        "remove it",
        (3, 1),
    ),
    ("env: {<<: *e, C: d}\n", "unsupported-yaml", "merge keys are not supported", "write the", (1, 7)),
    ("a: 1\nb: 2\na: 3\n", "duplicate-key", "`a` is already in line 1", "remove one", (3, 1)),
    ("- a\n", "not-a-mapping", "a document is a mapping of fields", "beginning with `type:`", (1, 1)),
    ("text\n", "not-a-mapping", "a document is a mapping of fields", "beginning with `type:`", (1, 1)),
    ("<<: {a: 1}\n", "unsupported-yaml", "merge keys are not supported", "write the fields out", (1, 1)),
    ("a: !x 1\n", "unsupported-yaml", "the tag `!x` is not supported", "remove the tag", (1, 4)),
    (
        "a: !!python/object:os.system {}\n",
        "unsupported-yaml",
        "the tag `tag:yaml.org,2002:python",
        "remove",
        (1, 4),
    ),
    (
        "a: &a [*a]\n",
        "unsupported-yaml",
        "`*a` refers to a value that contains it",
        "write the value out",
        (1, 8),
    ),
    ("%TAG ! x\n---\na: 1\n", "unsupported-yaml", "the directive `%TAG` is not supported", "remove", (1, 1)),
    ("a: 1\n1: 2\n", "non-string-key", "`1` cannot be a key: keys are strings", "in quotes: `'1'`", (2, 1)),
    ("? [a]\n: 1\n", "non-string-key", "a list or a mapping cannot be a key", "in quotes", (1, 3)),
    ("a" * 201 + ": 1\n", "too-large", "a key has more than 200 characters", "check indentation", (1, 1)),
    (
        f"a: {2**63}\n",
        "out-of-range",
        f"`{2**63}` is not a number that can",
        "whole numbers go up to",
        (1, 4),
    ),
    ("a: " + "9" * 5000, "out-of-range", "`" + "9" * 40 + "` is not a number", "in quotes", (1, 4)),
    ("a: .nan\n", "out-of-range", "`.nan` is not a number that can be used here", "in quotes", (1, 4)),
    ("a: 1e999\n", "out-of-range", "`1e999` is not a number that can be used here", "in quotes", (1, 4)),
    ("a: b\0\n", "bad-encoding", "the file holds the control character U+0000", "remove it", (1, 5)),
    (
        'a: "\\0"\n',
        "bad-encoding",
        "the text contains a character that cannot be used",
        "remove",
        (1, 4),
    ),
    (b"a: \xff\n", "bad-encoding", "the file is not UTF-8 text", "save it as UTF-8", (1, 1)),
    ("a: 1\n".encode("utf-16"), "bad-encoding", "the file is not UTF-8 text", "save it as UTF-8", (1, 1)),
    ("a: \ud800\n", "bad-encoding", "the file is not UTF-8 text", "save it as UTF-8", (1, 1)),
    ("# " + "x" * MAX_BYTES, "too-large", "the file is larger than 4 MiB", "split it", (1, 1)),
]


@pytest.mark.parametrize(("content", "code", "summary", "hint", "at"), REFUSED, ids=lambda v: str(v)[:20])
def test_refused(content, code, summary, hint, at):
    found = refused(content)
    assert found.code == code
    assert found.summary.startswith(summary)
    assert (hint in (found.hint or "")) if hint else found.hint is None
    assert place(found.span)[:2] == at


def test_everything_is_found_at_once_and_what_is_readable_is_kept():
    reading = parse("a: 1\na: 2\n---\n- x\n---\nb: !x 1\n---\nc: 3\n---\nd: 'x\n", "f")
    assert [d.code for d in reading.diagnostics] == [
        "duplicate-key",
        "not-a-mapping",
        "unsupported-yaml",
        "yaml-syntax",
    ]
    assert [(d.data, d.whole) for d in reading.documents] == [
        ({"a": 1}, True),
        ({"b": "1"}, False),
        ({"c": 3}, True),
    ]
    assert reading.lost


# What people type, where the message points, and a part of what it says to do.
SYNTAX = [
    ("a: 1\n  b: 2\n", "this line is indented too far", "line 1 has a value already", (2, 4)),
    ("a: 1\n\n# c\n  b: 2\n", "this line is indented too far", "line 1 has a value", (4, 3)),
    ("a:\n    b: 1\n  c: 2\n", "this line is indented like nothing above", "like line 2 or line 1", (3, 3)),
    ("a: |2\n b\n", "this line is indented like nothing above it", "indent it like line 1", (2, 2)),
    ("a:\n  - a\n - b\n", "this line is indented like nothing", "like line 2 or line 1", (3, 2)),
    ("a:\n- b\nc\n", "this line is neither an item nor `key", "begin it with `- `", (3, 1)),
    ("a: ${{ var.b ? 1 : 2 }}\n", "there is a `: ` where no key can be", "a if b else c", (1, 18)),
    ("x y\na: 1\n", "line 1 is not `key: value`", "write `x: …`", (1, 1)),
    ("a: &x &y 1\n", "the value has ended before this", "in quotes", (1, 7)),
    ("a: 'it's'\n", "the value has ended with the quote", "…", (1, 8)),
    ("a: {b: 1} c\n", "the value has ended with the `}`", "remove what follows", (1, 11)),
    ('"a" b\n', "the value has ended with the quote", "one pair of quotes", (1, 5)),
    ("[a]\nb: 1\n", "the document has ended before this", "`---`", (2, 1)),
    ("a: 1\n... b\n", "the document has ended before this", "`---`", (2, 5)),
    (": a\n", "a key is missing before `:`", "write `key: value`", (1, 1)),
    ("a: ? b\n", "text cannot begin with `? `", "in quotes", (1, 4)),
    ("a: , b\n", "`,` separates nothing here", "remove it", (1, 4)),
    ("a: [1,\n---\nb: 2\n", "the document ends within brackets", "close the `[`", (2, 1)),
    ("a: [1 # c\n\n", "the `[` that opens here is never closed", "close it with `]`", (1, 4)),
    ("a: %x\n", "text cannot begin with `%`", "in quotes", (1, 4)),
    ("a: `x`\n", "text cannot begin with a backtick", "in quotes", (1, 4)),
    ("a: & x\n", "text cannot begin with `&`", "in quotes", (1, 4)),
    ("a: !x!y z\n", "text cannot begin with `!`", "in quotes", (1, 4)),
    ("a: !<x z\n", "text cannot begin with `!`", "in quotes", (1, 4)),
    ("a: !{b}\n", "text cannot begin with `!`", "in quotes", (1, 4)),
    ('a: "\\ud800"\n', "double quotes do not know this escape", "single quotes", (1, 7)),
    ("a: |x\n b\n", "nothing may follow the `|`", "the line after `|`", (1, 4)),
    ("a: |0\n b\n", "nothing may follow the `|`", "the line after `|`", (1, 4)),
    ("a: |\n\tb\n", "a tab stands where only spaces", "spaces, not tabs", (2, 1)),
    ("%YAML 2.0\n---\na: 1\n", "directives are not used here", "remove", (1, 1)),
    ("%YAML x\n---\na: 1\n", "directives are not used here", "remove", (1, 1)),
    ("%YAML 1.2\n%YAML 1.2\n---\na: 1\n", "directives are not used here", "remove", (2, 1)),
    ("a: 1\n" + "x" * 1100 + ": 1\n", "a key has at most 1024 characters", "indentation and quotes", (2, 1)),
]


@pytest.mark.parametrize("pyyaml", [False, True])
@pytest.mark.parametrize(
    ("text", "at", "spaces"),
    [
        ("a: |\n b\nc\n", (3, 1), 2),
        ("run: |\n    echo a\n  echo b\nname: c\n", (3, 3), 4),
        ("run: |\n      echo a\n  echo b\n", (3, 3), 6),
        ("run: |\n        \n  echo b\n", (3, 3), 8),
        ("run: |-  # it\n  python <<EOF\nimport os; x = {1: 2}\nEOF\nname: c\n", (3, 1), 2),
        ("run: |\n  python <<EOF\n  x\nEOF\n  echo\n", (4, 1), 2),
        ("commands:\n  - >\n    echo a\n  echo b\n", (4, 3), 4),
        ("commands:\n  - |\n    python <<EOF\nimport x\nEOF\n  - b\n", (4, 1), 4),
        ("run: |\n  if a; then\n# b\n    c\n  fi\n", (3, 1), 2),
        ("run: |\n  a\n\n\nif x\n", (5, 1), 2),
    ],
)
def test_a_line_that_fell_out_of_a_text_is_named_with_its_indentation(text, at, spaces, pyyaml):
    """The parser complains of what it takes for a key, there or below."""
    with pytest.raises(InvalidError) as error:
        read(text, "f.yaml", pyyaml=pyyaml)
    (found,) = error.value.diagnostics
    assert found.summary.endswith("has ended before this line")
    assert f"by at least {spaces} spaces, this one, too" in (found.hint or "")
    assert found.span is not None
    assert (found.span.line, found.span.column) == at


@pytest.mark.parametrize(
    "text",
    [
        "run: |\n  a\nname: b\n  c: d\n",
        "run: |\n  a\nx: 1\nname b\n",
        "- |\n  a\n- b: c: d\n",
        "run: |\n  a\n# b\nname: c: d\n",
        "run: |\n\n\nname: [\n",
    ],
)
def test_a_mistake_below_a_text_is_not_the_texts(text):
    with pytest.raises(InvalidError) as error:
        read(text, "f.yaml")
    assert "has ended before this line" not in str(error.value.diagnostics)


@pytest.mark.parametrize(("text", "summary", "hint", "at"), SYNTAX)
def test_what_is_no_yaml_is_said_once_in_the_words_of_the_user(text, summary, hint, at):
    """The parser's own words are never shown, and neither are errors that follow from the mistake."""
    found = refused(text)
    assert (found.code, found.summary.startswith(summary)) == ("yaml-syntax", True), found.summary
    assert hint in (found.hint or "")
    assert place(found.span)[:2] == at


# Each holds `hunter2` or a key by its looks, in a line that is pointed at.
SECRET = [
    "credentials:\n  key: A\n  secret: hunter2: x\n",
    "credentials:\n    key: A\n  other: hunter2\n",
    "credentials: {key: A,\nother: 'hunter2'x}\n",
    "credentials: {key: hunter2\n",
    "credentials:\n  key: 'hunter2\n",
    "credentials:\n- 'hunter2' b\n",
    "- name: a\n  creds:\n    key: 'hunter2' x\n",
    '{"a": 1,\n"registry_auth": {\n"password": [hunter2\n}}\n',
    "state postgresql://me:hunter2@db/x\nb: 1\n",
    "state: 'sqlite:///hunter2\n",
    "env:\n  - A=hunter2: x: y\n",
    "env: {A:hunter2}\n",
    "env:\n  A: *hunter2\n",
    "env:\n  A: !hunter2 x\n",
    "env hunter2\nb: 1\n",
    "commands:\n  - 'HF_TOKEN=hunter2' x\n",
    "a: 'https://me:hunter2@host/' x\n",
    "a: 'AKIAIOSFODNN7EXAMPLE hunter2' x\n",
    "credentials:\n  key: A\n  key: hunter2\n",
    "credentials:\n  1: hunter2\n",
    "options:\n  api_key: hunter2\n  1: x\n  api_key: hunter2\n",
]


@pytest.mark.parametrize("text", SECRET)
def test_a_line_that_may_hold_a_secret_is_not_shown(text):
    found = parse(text, "f").diagnostics
    assert found
    assert "hunter2" not in str(found)
    assert all(d.span and d.span.line and d.span.column and d.hint for d in found)


SHOWN = [
    "credentials:\n  key: A\nregions: 'a' b\n",
    "credentials:\n  key: A\n---\n  'a' b: c\n",
    "- creds: {key: A}\n- regions: 'a' b\n",
    "env:\n  A: 1\nregions: 'a' b\n",
    "env: [A]\nregions: 'a' b\n",
    "a: ${{ env.HF_TOKEN }}\nregions: 'a' b\n",
    "states: 1\nregions: 'a' b\n",
    "commands:\n  - 'HF_TOKEN=$X' b\n",
    "working_dir: 'secrets' x\n",
]


@pytest.mark.parametrize("text", SHOWN)
def test_any_other_line_is_shown(text):
    found = refused(text)
    assert found.span
    assert found.span.text == text.splitlines()[found.span.line - 1]


def test_of_broken_env_the_punctuation_is_shown():
    """If it is not YAML, it is unknown which part of a line is a value."""
    found = refused("env: {URL: http://h:80}\n")
    assert found.span
    assert found.span.text == "env: {***: ****://*:**}"


def test_lines_are_hidden_in_linear_time():
    """However many fields there are that may hold secrets, and however long they are."""
    text = "state: x\n" * 200_000 + "credentials: {\n" + "- \n" * 200_000 + "a: 'x' y"
    start = time.process_time()
    found = parse(text, "f").diagnostics
    assert found[-1].span
    assert time.process_time() - start < 5


def bomb(width: int, levels: int) -> str:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines)


HOSTILE = {
    "flow nesting": ("[" * MAX_BYTES, "too-deep"),
    "block nesting": ("- " * (MAX_BYTES // 2), "too-deep"),
    "key nesting": ("? " * (MAX_BYTES // 2), "too-deep"),
    "nesting by aliases": ("a: &a " + "[" * 40 + "]" * 40 + "\nb: " + "[" * 40 + "*a" + "]" * 40, "too-deep"),
    "alias bomb": (bomb(9, 12), "too-large"),
    "long text by aliases": ("a: &x " + "y" * (MAX_BYTES // 2) + "\nb:\n" + "- *x\n" * 300_000, "too-large"),
    "values": ("a:\n" + "- \n" * (MAX_BYTES // 3 - 10), "too-large"),
    "documents": ("---\n" * (MAX_BYTES // 4), "too-large"),
    "tag directives": ("".join(f"%TAG !t{i}! x\n" for i in range(200_000)) + "--- a", "unsupported-yaml"),
    "tag directives, old line ends": ("a: 1\r" + "%TAG !t! x\r" * 100_000, "unsupported-yaml"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_fail_fast(name):
    """The C composer dies of the first three; none may take more than a few seconds."""
    text, code = HOSTILE[name]
    start = time.process_time()
    assert [d.code for d in parse(text, "f").diagnostics] == [code]
    assert time.process_time() - start < 10


LIMITS = [
    ("a:\n" + "- b\n" * MAX_ITEMS, "- b\n", "a list has more than 50000 items"),
    ("a:\n" + "".join(f" b{i}:\n" for i in range(MAX_ITEMS)), " c:\n", "a mapping has more than 50000 keys"),
    ("---\n" * MAX_DOCUMENTS, "---\n", "the file has more than 50000 documents"),
    ("#\n" * MAX_MARKS, "#\n", "the file has more than 600000 lines and separators"),
]


@pytest.mark.parametrize(("most", "more", "summary"), LIMITS)
def test_what_no_project_needs_is_refused_and_what_one_may_need_is_not(most, more, summary):
    assert parse(most, "f").diagnostics == ()
    (found,) = parse(most + more, "f").diagnostics
    assert (found.code, found.summary, found.hint) == ("too-large", summary, "split it, or declare less")


def test_what_is_dense_is_refused_before_it_is_read():
    """Reading half a million values takes about a second; counting their separators a fiftieth of it."""
    start = time.process_time()
    for text in ("[],", "{}\n---\n", "a,", "a: b\n", "- \n", "? \n", "'',"):
        file = ("[" if text.endswith(",") else "") + text * (MAX_BYTES // len(text) - 1)
        assert [d.code for d in parse(file, "f").diagnostics] == ["too-large"]
    assert time.process_time() - start < 2


def test_ten_thousand_documents_of_forty_values_are_read():
    """The limits are far enough from what a large project has in one file."""
    fields = "".join(f"field-{i}: value\n" for i in range(19))
    reading = parse("---\n".join(f"n: {i}\n{fields}" for i in range(10_000)), "f")
    assert reading.diagnostics == ()
    assert len(reading.documents) == 10_000


def test_findings_of_one_file_are_limited():
    assert len(parse("{" + "a, " * 100_000 + "}", "f").diagnostics) == MAX_FINDINGS


def test_as_deep_as_allowed():
    assert one("a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)).whole
    assert refused("a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH).summary == "values are nested more than 64 deep"
    assert MAX_NODES == 500_000


# ------------------------------------------------------------------------------------------------ laws


@given(st.text())
def test_any_text_is_read_or_refused(text):
    reading = parse(text, "f")
    assert all(isinstance(d.data, dict) for d in reading.documents)
    assert reading.diagnostics or not reading.lost


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@`,?~<\\ \t\n\r0.", max_size=60))
def test_anything_like_yaml_is_read_or_refused(text):
    reading = parse(text, "f")
    lines = text.count("\n") + text.count("\r") + 1
    for diagnostic in reading.diagnostics:
        assert diagnostic.span is not None
        assert 1 <= diagnostic.span.line <= lines + 1
        assert diagnostic.summary


@given(st.binary())
def test_any_bytes_are_read_or_refused(content):
    parse(content, "f")


@pytest.mark.parametrize(
    "char", [chr(c) for c in (0x85, 0x2028, 0x2029, 0x61C, 0x200E, 0x200F, 0x202E, 0x2066, 0x2069)]
)
def test_what_a_reviewer_would_read_otherwise_is_refused(char):
    """A line's end that no editor knows makes a value of a comment; bidi controls turn the order."""
    reading = parse(f"type: fleet\nname: a\n# one node{char}nodes: 7\n", "f.yaml")
    assert reading.documents == ()
    assert reading.lost
    assert [d.code for d in reading.diagnostics] == ["bad-encoding"]
    assert f"U+{ord(char):04X}" in reading.diagnostics[0].summary
    span = reading.diagnostics[0].span
    assert span is not None
    assert (span.line, span.column) == (3, 11)


def test_what_is_refused_raw_may_be_written_as_an_escape():
    assert read('a: "x\\u2028\\u202ey"\n', "f.yaml")[0].data == {"a": "x\u2028\u202ey"}


def test_what_is_read_is_not_walked_through_once_the_collector_is_back():
    """As new values it would be: 0.2 s of a plan of 10,000 tasks."""
    seen: list[str] = []

    def note(phase: str, _info: dict[str, int]) -> None:
        seen.append(phase)

    gc.callbacks.append(note)
    try:
        with no_collections():
            made: list[list[int]] = [[] for _ in range(gc.get_threshold()[0] * 2)]
        made.append([])
    finally:
        gc.callbacks.remove(note)
    assert not seen
    assert gc.isenabled()
