"""`fleetform fmt`: values, layout, what must stay, the command. FLEETFORM_ACCEPT=1 rewrites the
golden files.
"""

import os
import random
import re
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import click.testing
import pytest
import ruamel.yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from declarative.cli.project_files import fmt_command
from declarative.language import formatter as format_module
from declarative.language.formatter import format_text
from declarative.language.loader import load
from declarative.language.source import parse, reader
from declarative.model.diagnostic import InvalidError
from declarative.model.schema import Problem, decode
from declarative.model.spec import DOCUMENTS, Memory
from tests.support.golden import check_golden

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parents[1] / "golden" / "fmt"
CASES = sorted(path.name.removesuffix(".before.yaml") for path in GOLDEN.glob("*.before.yaml"))


def formatted(text):
    """The normal form, which is its own, in which every comment is still there, and which means the same."""
    result = format_text(text, "f.yaml")
    assert result.text is not None, result.diagnostics
    assert format_text(result.text, "f.yaml").text == result.text, "not idempotent"
    assert result.text == "" or (result.text.endswith("\n") and not result.text.startswith("\n"))
    assert meaning(text) == meaning(result.text)
    return result.text


def meaning(text):
    """Each document decoded, or its data where it is not valid."""
    out: list[object] = []
    reading = parse(text, "f.yaml")
    assert not reading.diagnostics
    for document in reading.documents:
        kind = document.data.get("type")
        body = {k: v for k, v in document.data.items() if k != "type"}
        if not isinstance(kind, str) or kind not in DOCUMENTS:
            out.append(document.data)
            continue
        problems: list[Problem] = []
        spec = decode(DOCUMENTS[kind], body, (), problems)
        out.append((repr(spec), body.keys(), {(p.path, p.code) for p in problems}))
    return out


def fmt(text):
    return formatted(dedent(text).removeprefix("\n"))


# ------------------------------------------------------------------------------------- golden files


@pytest.mark.parametrize("case", CASES)
def test_golden(case):
    before = (GOLDEN / f"{case}.before.yaml").read_bytes().decode()
    after = GOLDEN / f"{case}.after.yaml"
    text = formatted(before)
    check_golden(after, text)
    sides = [sorted(m.rstrip() for m in re.findall("# .*", side)) for side in (before, text)]
    assert sides[0] == sides[1]


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("project")])
def test_the_project_is_the_same(case, tmp_path):
    """What the loader makes of the files, places aside."""
    sides = []
    for side in ("before", "after"):
        folder = tmp_path / side
        folder.mkdir()
        shutil.copy(GOLDEN / f"{case}.{side}.yaml", folder / "main.yaml")
        sides.append(replace(load(folder).desired, places={}))
    assert sides[0] == sides[1]


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted((ROOT / "examples").rglob("*.y*ml"))
        if path.parent.name not in ("ci", "gitops")
    ],
    ids=str,
)
def test_examples_are_formatted(path):
    """If not: `fleetform fmt examples/…/*.yaml`."""
    text = path.read_bytes().decode()
    assert formatted(text) == text


# ------------------------------------------------------------------------------------------- values


FLEET, TASK, VOLUME = "fleet", "task", "volume"


@pytest.mark.parametrize(
    ("kind", "field", "old", "new"),
    [
        (FLEET, "nodes", "{min: 1, max: 4}", "1..4"),
        (FLEET, "nodes", "{max: 4}", "0..4"),
        (FLEET, "nodes", "{min: 2, max: 2}", "2"),
        (FLEET, "nodes", "{min: 1}", "1.."),
        (FLEET, "nodes", "{min: 0, target: 2, max: 4}", "{min: 0, target: 2, max: 4}"),
        (FLEET, "nodes", "{max: 4, target: 2}", "{max: 4, target: 2}"),
        (FLEET, "nodes", "{min: 3, max: 1}", "{min: 3, max: 1}"),
        (FLEET, "nodes", "{min: 1, maxx: 4}", "{min: 1, maxx: 4}"),
        (FLEET, "nodes", "{min: '${{ var.n }}', max: 4}", "{min: '${{ var.n }}', max: 4}"),
        (FLEET, "nodes", "'2'", "2"),
        (FLEET, "nodes", '"0..4"', "0..4"),
        (FLEET, "nodes", "0 .. 4", "0..4"),
        (FLEET, "nodes", "0..", "0.."),
        (FLEET, "nodes", "0x10", "16"),
        (FLEET, "blocks", "'4'", "4"),
        (FLEET, "blocks", '"auto"', "auto"),
        (FLEET, "blocks", "0", "0"),
        (FLEET, "idle_duration", "86400", "1d"),
        (FLEET, "idle_duration", "'90'", "90s"),
        (FLEET, "idle_duration", "90", "90s"),
        (FLEET, "idle_duration", "24h", "1d"),
        (FLEET, "idle_duration", "7 d", "1w"),
        (FLEET, "idle_duration", "90m", "90m"),
        (FLEET, "idle_duration", "false", "off"),
        (FLEET, "idle_duration", "-1", "off"),
        (FLEET, "idle_duration", '"off"', '"off"'),
        (FLEET, "idle_duration", "${{ var.idle }}", "${{ var.idle }}"),
        (FLEET, "idle_duration", "soon", "soon"),
        (FLEET, "prevent_destroy", "True", "true"),
        (FLEET, "prevent_destroy", "'true'", "'true'"),
        (FLEET, "max_price", "'4'", "'4'"),
        (FLEET, "max_price", "4.50", "4.50"),
        (FLEET, "regions", "[\"a\", 'b c', \"no\", '1']", "[a, b c, \"no\", '1']"),
        (FLEET, "regions", '{"a": b}', '{"a": b}'),
        (FLEET, "resources", "{memory: 16gb}", "{memory: 16GB}"),
        (FLEET, "resources", "{ memory: 1024MB..2TB,cpu: '2' }", "{ memory: 1GB..2TB,cpu: 2 }"),
        (FLEET, "resources", "{memory: '24 GB ..'}", "{memory: 24GB..}"),
        (FLEET, "resources", "{memory: 16, disk: 0.5}", "{memory: 16GB, disk: 512MB}"),
        (FLEET, "resources", "{memory: 16GiB}", "{memory: 16GiB}"),
        (FLEET, "resources", "{memory: 0..}", "{memory: 0..}"),
        (FLEET, "resources", "{gpu: 'H100:8'}", "{gpu: 'H100:8'}"),
        (FLEET, "resources", "{gpu: '8:h100:80gb'}", '{gpu: "h100:80GB:8"}'),
        (FLEET, "resources", "{gpu: H100}", "{gpu: H100}"),
        (FLEET, "resources", "{gpu: 'H100:1..'}", "{gpu: 'H100:1..'}"),
        (FLEET, "resources", "{gpu: {name: H100, count: 8}}", '{gpu: "H100:8"}'),
        (FLEET, "resources", "{gpu: {name: [A100, H100], memory: 80gb}}", '{gpu: "A100,H100:80GB"}'),
        (FLEET, "resources", "{gpu: {name: H100, size: 8}}", "{gpu: {name: H100, size: 8}}"),
        (
            FLEET,
            "tags",
            "{a: \"b\", 'c': 'yes', d: '1_0', e: '12:30'}",
            "{a: b, 'c': 'yes', d: '1_0', e: '12:30'}",
        ),
        (VOLUME, "size", "1024gb", "1TB"),
        (VOLUME, "size", "'${{ var.size }}'", "'${{ var.size }}'"),
        (VOLUME, "size", '"500GB"', "500GB"),
        (TASK, "commands", '["echo \'a\'", "a: b", "x #y", "- z", " s", "t\\t"]', None),
        (TASK, "working_dir", "!!str 12", "!!str 12"),
        (TASK, "working_dir", "&a '/x'", "&a '/x'"),
        (TASK, "working_dir", '"/x"', "/x"),
        (TASK, "working_dir", '"a: b"', '"a: b"'),
        (TASK, "working_dir", "'it''s'", "'it''s'"),
        (TASK, "working_dir", "'null'", "'null'"),
        (TASK, "working_dir", "''", "''"),
        (TASK, "working_dir", "'2020-01-01'", "'2020-01-01'"),
        (TASK, "working_dir", "'-x'", "'-x'"),
        (TASK, "working_dir", "'@x'", "'@x'"),
        (TASK, "working_dir", "~", "~"),
        (TASK, "volumes", "[{path: /b/, name: a}, 'a:/x/']", "[{path: /b/, name: a}, 'a:/x/']"),
        (TASK, "volumes", "[{name: a, path: /b, size: 1024gb}]", "[{name: a, path: /b, size: 1TB}]"),
        (TASK, "retry", "{duration: 3600, on_events: [error]}", "{duration: 1h, on_events: [error]}"),
        (TASK, "env", '{B: "x", A: \'y z\', C: "1"}', '{B: x, A: y z, C: "1"}'),
        (TASK, "stop_duration", "300", "5m"),
    ],
)
def test_values(kind, field, old, new):
    start = f"type: {kind}\nname: aa\n"
    new = old.replace("\"echo 'a'\"", "echo 'a'") if new is None else new
    assert formatted(f"{start}{field}: {old}\n") == f"{start}{field}: {new}\n"


def test_block_forms_become_short():
    text = """
    type: fleet
    name: aa
    nodes:
      max: 4
      min: 1
    resources:
      gpu:
        count: 8
        name: H100
    """
    assert fmt(text) == "type: fleet\nname: aa\nnodes: 1..4\nresources:\n  gpu: H100:8\n"


@pytest.mark.parametrize(
    "inner",
    [
        "min: 1 # why\n  max: 4",
        "# why\n  min: 1\n  max: 4",
        "min: 1\n  max: 4\n  # why",
        "min: &a 1\n  max: 4",
    ],
)
def test_what_holds_a_comment_stays_long(inner):
    text = f"type: fleet\nname: aa\nnodes:\n  {inner}\n"
    assert formatted(text) == text


# -------------------------------------------------------------------------------------------- layout


def test_order_of_keys():
    text = """
    zzz: 1
    name: bb
    aaa: 2
    ssh_config:
      user: me
      zzz: 1
      hosts:
      - blocks: 2
        hostname: h
    type: fleet
    ---
    catalog:
      - {memory: 1gb, instance_type: a, cpu: 1}
      - memory: 1gb
        cpu: 1
        instance_type: b
    options:
      z: 1
      a: 2
    name: lab
    type: backend
    ---
    b: 1
    a: 2
    type: unheard-of
    """
    assert fmt(text) == dedent("""\
    type: fleet
    name: bb
    ssh_config:
      hosts:
        - hostname: h
          blocks: 2
      user: me
      zzz: 1
    zzz: 1
    aaa: 2
    ---
    type: backend
    name: lab
    catalog:
      - {memory: 1GB, instance_type: a, cpu: 1}
      - instance_type: b
        cpu: 1
        memory: 1GB
    options:
      z: 1
      a: 2
    ---
    b: 1
    a: 2
    type: unheard-of
    """)


def test_an_alias_stays_behind_its_anchor():
    text = "type: task\nzzz: &a [x]\ncommands: *a\nname: aa\n"
    assert formatted(text) == text
    ordered = "commands: &a [x]\nzzz: *a\nname: aa\ntype: task\n"
    assert formatted(ordered) == "type: task\nname: aa\ncommands: &a [x]\nzzz: *a\n"


def test_an_anchor_that_is_set_twice():
    text = "zzz: &a 1\ntype: task\nname: &a bb\nworking_dir: *a\nqqq: *a\n"
    assert formatted(text) == text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k:\n    - a\n    -   b\n", "k:\n  - a\n  - b\n"),
        ("k:\n- - a\n  - b\n-\n  - c\n", "k:\n  - - a\n    - b\n  -\n    - c\n"),
        ("k: &x\n      a: 1\nl:  *x\n", "k: &x\n  a: 1\nl: *x\n"),
        ("k:\n-  &x\n   a: 1\n- *x\n", "k:\n  - &x\n    a: 1\n  - *x\n"),
        ("k:\n -  a : 1\n    b:   2\n", "k:\n  - a: 1\n    b: 2\n"),
        ("  k:   1\n  l: 2\n", "k: 1\nl: 2\n"),
        ("k:\n\n\n    a: 1\n\n\n\n    b: 2\n", "k:\n  a: 1\n\n  b: 2\n"),
        ("\n\n# c\n\n\n\nk: 1\n\n\n", "# c\n\nk: 1\n"),
        ("k: 1   \t\n\n\n---\n\nl: 1\n...\n# c\n", "k: 1\n\n---\nl: 1\n...\n# c\n"),
        ("--- # c\nk: 1\n---   {a: 1}  # d\n---\n--- ~\n", "--- # c\nk: 1\n--- {a: 1}    # d\n---\n--- ~\n"),
        ("k: |\n      x\n\n        y\n\n\nl: 1\n", "k: |\n      x\n\n        y\n\nl: 1\n"),
        ("k:\n- |  # c\n x\n- >-\n   y\n", "k:\n  - |  # c\n   x\n  - >-\n     y\n"),
        ("k:\n    - |2\n         x\n        y\n", "k:\n  - |2\n       x\n      y\n"),
        ("k: |\n  x  \n     \nl: 1\n", "k: |\n  x  \n     \nl: 1\n"),
        ("k: |\n  x", "k: |-\n  x\n"),
        ("k: |+\n  x", "k: |-\n  x\n"),
        ("k: |+\n  x\n\n\n", "k: |+\n  x\n\n\n"),
        ("k: |+\n  x\n\n\n# c\nl: 1\n", "k: |+\n  x\n\n\n# c\nl: 1\n"),
        ("k:\n    long\n      text\n", "k:\n  long\n      text\n"),
        ("k:\n    - a b\n      c\n", "k:\n  - a b\n    c\n"),
        ("k: {a: 1,\n    # c\n  b: 2}   \n", "k: {a: 1,\n    # c\n  b: 2}\n"),
        ("k: [\n  1,   \n]\n", "k: [\n  1,\n ]\n"),
        ('k: "a  \n   b\\ \n  c"\n', 'k: "a\n   b\\ \n  c"\n'),
        ("? k\n:  1\n? l\n", "? k\n:  1\n? l\n"),
        ("a:\n    ? k\n    :  1\n", "a:\n  ? k\n  :  1\n"),
        ("a:\n-   ? k\n    : 1\n", "a:\n  - ? k\n    : 1\n"),
        ("'k' : 1\n\"l\":   2\n", "'k': 1\n\"l\": 2\n"),
        ("k:\nl:   # c\n- \n-\n", "k:\nl:   # c\n  -\n  -\n"),
        ('k: 1\r\n# c\r\nl: "a\r\n  b"\r\n', 'k: 1\n# c\nl: "a\n  b"\n'),
        ("\ufeffk: 1", "k: 1\n"),
        ("%YAML 1.2\n---\nk:  1\n", "%YAML 1.2\n---\nk: 1\n"),
        ("{k:  1,\n l: 2}\n", "{k:  1,\n l: 2}\n"),
        ("é: 'ü😀'   # ñ\n", "é: ü😀     # ñ\n"),
        ("# only\n\n\n# comments\n", "# only\n\n# comments\n"),
        # What generated documents have found.
        ("#", "#\n"),
        ("k:  'c d'#e\n", "k: c d #e\n"),
        ("k: |\n  x\n     ", "k: |-\n  x\n     \n"),
        ("k: |+\n  x\n\n ", "k: |+\n  x\n\n"),
        ("k: # c\n  &a # d\n   - >\n     x\n", "k: # c\n  &a # d\n   - >\n     x\n"),
        ("k: &a # c\n |\n  x\n", "k: &a # c\n |\n  x\n"),
        ("k: &a # c\n !!map # d\n b: 1\n", "k: &a # c\n !!map # d\n b: 1\n"),
        ("? k\n---\nl:  1\n", "? k\n---\nl: 1\n"),
        ("k:\n   ? a\n# c\nl:  1\n", "k:\n  ? a\n# c\nl: 1\n"),
        ("!!str k:\n- |+\n  x\n...\n---\nl:  1\n", "!!str k:\n- |+\n  x\n...\n---\nl: 1\n"),
        ('k: "a\\ \n b"\n', 'k: "a\\ \n b"\n'),
        ("", ""),
        ("\n\n", ""),
    ],
)
def test_layout(old, new):
    assert formatted(old) == new


def test_comments_of_nested_blocks():
    """A comment belongs to the block that it is indented into, whatever comes next."""
    text = """
    a:
        b:
            - 1
            # in the list
          # still in the list
        # in b
     # in a
    # before c
    c: 1
        # after c
    """
    assert fmt(text) == dedent("""\
    a:
      b:
        - 1
        # in the list
        # still in the list
      # in b
      # in a
    # before c
    c: 1
    # after c
    """)


def test_what_means_something_else_is_refused(monkeypatch):
    """The net below: whatever the formatter does wrong, the file is not damaged."""
    real = format_module._rewritten
    for wrong in ("k: 2 # c\n", "k: 1\n", "k: 1 # c\n---\nl: 1\n", "k: [", "k: '1' # c\n"):
        monkeypatch.setattr(format_module, "_rewritten", lambda *_, wrong=wrong: wrong)
        result = format_text("k:  1 # c\n", "f.yaml")
        assert result.text is None
        assert result.diagnostics[0].code == "internal-error"
    monkeypatch.setattr(format_module, "_rewritten", real)
    assert formatted("k:  1 # c\n") == "k: 1 # c\n"


@pytest.mark.parametrize("text", ["k: [", "k: 1\nk: 2\n", "- 1\n", "k: !x 1\n", "<<: {}\n", b"\xff", "k: \0"])
def test_what_cannot_be_read_is_left_alone(text):
    result = format_text(text, "f.yaml")
    assert result.text is None
    assert result.diagnostics == parse(text, "f.yaml").diagnostics != ()


@pytest.mark.slow
def test_many_values_take_no_longer_each():
    start = time.process_time()
    formatted("a:\n" + "- 'x y'\n" * 15_000)
    formatted("".join(f"k{i}: &a{i} 'v'\n# c\n" for i in range(4_000)))
    assert time.process_time() - start < 30


def test_anchored_values_keep_their_notation():
    """An alias may stand where the same words mean something else, or where the order counts."""
    text = """
    type: task
    name: aa
    resources: &r
      memory: 16gb
      cpu: 4
    tags: *r
    commands: [x]
    """
    assert fmt(text) == dedent(text).removeprefix("\n")


def test_odd_line_breaks_are_refused():
    result = format_text("a: 1\nb: 'x\u2028 y'\n", "f.yaml")
    assert result.text is None
    span = result.diagnostics[0].span
    assert span is not None
    assert span.line == 2


# ---------------------------------------------------------------------------------- generated documents


def kinds():
    """The fields of each type of document, and what they hold: a name of `Scribe`'s lists, or a part."""
    resources = {"cpu": "count", "memory": "memory", "disk": "memory", "gpu": "gpu", "odd": "text"}
    host = {"hostname": "text", "blocks": "count", "resources": resources, "user": "text"}
    mount = {"name": "text", "path": "text", "size": "memory", "optional": "text"}
    offer = {"memory": "memory", "instance_type": "text", "gpu": "gpu"}
    fleet = {"nodes": "nodes", "resources": resources, "idle_duration": "time", "regions": ["text"]}
    fleet |= {"tags": {"b": "text", "a": "text"}, "ssh_config": {"user": "text", "hosts": [host]}}
    fleet |= {"env": ["text"], "unknown": "text", "blocks": "count"}
    task = {"nodes": "count", "commands": ["text"], "env": {"Z": "text", "A": "text"}, "volumes": [mount]}
    task |= {"max_duration": "time", "working_dir": "text", "resources": resources, "files": [["text"]]}
    variables = {"b": "text", "a": {"default": "text", "type": "text"}}
    return {
        "fleet": fleet,
        "task": task,
        "volume": {"size": "memory", "region": "text", "tags": {"k": "text"}},
        "backend": {"catalog": [offer], "options": {"z": "text", "a": ["text"]}},
        "project": {"variables": variables, "include": ["text"]},
        "riddle": {"z": "text", "a": {"c": "text", "b": "text"}},
    }


class Scribe:
    """Writes documents as people might: any order, indentation, quotes and notation, comments anywhere."""

    PLAIN = (
        "x",
        "a b",
        "'q r'",
        '"s t"',
        "'yes'",
        '"1"',
        "'it''s'",
        "${{ var.x }}",
        "'a:b'",
        "1",
        "~",
        "",
        "é😀",
    )
    BLOCKS = ("|", "|-", "|+", ">", ">-", "|2", "|1+", "| # header")
    NODES = ("1", "'2'", "{min: 1, max: 4}", "{max: 4}", "0..4", '"1..2"', "{min: 0, target: 1, max: 2}")
    MEMORY = ("16gb", "'24 GB ..'", "1024MB..2TB", "16", "0.5", "nonsense", "${{ var.m }}")
    COUNT = ("1", "'2'", "2 .. 4", "3..", "0..")
    GPU = ("1", "H100", "'8:h100'", '"H100:8"', "{name: H100, count: 2}", "{name: [a, b],\n memory: 80gb}")
    TIME = ("86400", "90", "'1h'", "1d", "off", "false", "60 m")

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = []
        self.number = 0
        self.anchors = []

    def pick(self, *options):
        return self.random.choice(options)

    def often(self, share):
        return self.random.random() < share

    def comment(self):
        self.number += 1
        return f"# c{self.number} " + self.pick("'", '"', "{", ": - x", "é", "|", "")

    def loose(self, column):
        """Comments and blank lines of their own."""
        while self.often(0.3):
            if self.often(0.5):
                self.lines.append(" " * self.pick(0, 0, 0, 3))
            else:
                self.lines.append(
                    " " * self.pick(column, column, column + 1, max(0, column - 2), 0) + self.comment()
                )

    def end(self):
        return self.pick("", "", "", " ", "  ") + (
            self.pick(" ", "   ") + self.comment() if self.often(0.25) else ""
        )

    def mapping(self, column, fields, lead=None):
        """Lines of a block mapping; `lead` is what its first line begins with."""
        keys = list(fields)
        self.random.shuffle(keys)
        for key in keys[: self.random.randint(1, len(keys))]:
            if lead is None:
                self.loose(column)
            start = " " * column if lead is None else lead
            lead = None
            shown = self.pick(key, key, key, f"'{key}'", f'"{key}"')
            self.value(f"{start}{shown}{self.pick('', '', ' ')}:", column, fields[key])

    def value(self, head, column, kind):
        step = self.pick(2, 2, 1, 4)
        if isinstance(kind, dict):
            if self.often(0.2):
                self.flow(head, column, kind)
                return
            self.lines.append(head + self.anchor() + self.end())
            self.mapping(column + step, kind)
        elif isinstance(kind, list):
            self.sequence(head, column, self.pick(0, 2, 2, 3), kind[0])
        elif kind == "text" and self.often(0.3):
            self.block_scalar(head, column)
        elif kind == "text" and self.often(0.2):
            self.lines.append(f"{head} " + self.pick("one", '"one', "'one"))
            quote = self.lines[-1].rpartition(" ")[2][0]
            self.lines += ["", " " * (column + step) + "two" + (quote if quote in "'\"" else "") + self.end()]
        elif kind == "text" and self.often(0.15) and self.anchors:
            self.lines.append(f"{head} *{self.pick(*self.anchors)}" + self.end())
        else:
            options = getattr(self, kind.upper()) if kind != "text" else self.PLAIN
            text = self.pick(*options).replace("\n", "\n" + " " * (column + 2))
            if self.often(0.1) and text and kind == "text":
                self.lines.append(head + self.end())
                self.loose(column + step)
                self.lines.append(" " * (column + step) + text + self.end())
            else:
                self.lines.append(f"{head}{self.pick(' ', '  ')}{self.anchor(0.05)} {text}" + self.end())

    def anchor(self, share=0.1):
        if not self.often(share):
            return ""
        self.anchors.append(f"x{self.random.randint(0, 3)}")
        return f" &{self.anchors[-1]}"

    def flow(self, head, column, fields):
        parts = []
        for key, kind in fields.items():
            options = (
                getattr(self, kind.upper(), self.PLAIN) if isinstance(kind, str) else ("[]", "{}", "[ 'a' ]")
            )
            text = self.pick(*(o for o in options if not re.search(r"\$|\n|: *$|^H100:", o)))
            parts.append(f"{key}: {text}")
        self.random.shuffle(parts)
        between = self.pick(", ", ",", ",\n" + " " * (column + 3), ", # f\n" + " " * (column + 1))
        self.lines.append(head + " {" + self.pick("", " ") + between.join(parts) + "}" + self.end())

    def sequence(self, head, column, step, kind):
        self.lines.append(head + self.end())
        at = column + step
        for _ in range(self.random.randint(1, 3)):
            self.loose(at)
            dash = " " * at + "-" + " " * self.pick(1, 1, 3)
            if isinstance(kind, dict) and self.often(0.6):
                if self.often(0.2):
                    self.lines.append(dash.rstrip() + self.end())
                    self.mapping(at + 2, kind)
                else:
                    self.mapping(len(dash), kind, dash)
            elif isinstance(kind, dict):
                self.flow(dash.rstrip(), at, kind)
            else:
                self.value(dash.rstrip(), at, kind)

    def block_scalar(self, head, column):
        header = self.pick(*self.BLOCKS)
        digit = re.search(r"\d", header)
        at = column + (int(digit[0]) if digit else self.pick(1, 2, 5))
        self.lines.append(f"{head} {header}")
        self.lines.append(" " * at + self.pick("x", "x  ", "# text", "k: 1"))
        for _ in range(self.random.randint(0, 3)):
            self.lines.append(
                " " * at + self.pick("y", "  z", "", "   ", "\t", "- q  ") if self.often(0.7) else ""
            )

    def project(self):
        fields = kinds()
        for i in range(self.random.randint(1, 3)):
            self.anchors = []
            if i or self.often(0.3):
                self.lines.append(self.pick("---", "---", "--- # marker", "...\n---"))
            kind = self.pick(*fields)
            self.loose(0)
            self.PLAIN_KIND = (kind,)
            self.NAMES = ("aa", "'bb'", '"c d"')
            self.mapping(self.pick(0, 0, 0, 2), {"type": "plain_kind", "name": "names", **fields[kind]})
            self.loose(0)
        text = "\n".join(self.lines) + self.pick("\n", "\n", "", "\n\n\n", "\n  \n")
        return text.replace("\n", "\r\n") if self.often(0.1) else text


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(st.integers(0, 1 << 32))
def test_generated_documents(seed):
    """Valid YAML, however it is written, has a normal form that means the same and keeps every comment."""
    text = Scribe(seed).project()
    if parse(text, "f.yaml").diagnostics:
        return  # an alias to what was not written, a text that cannot be plain
    result = formatted(text)
    shown = re.compile(r"# c\d+|# marker|# f$|# header", re.MULTILINE)
    assert sorted(shown.findall(text.replace("\r", ""))) == sorted(shown.findall(result))


def test_most_generated_documents_are_valid():
    """Or the test above would test nothing."""
    valid = [s for s in range(300) if not parse(Scribe(s).project(), "f.yaml").diagnostics]
    assert len(valid) > 150


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 32), st.data())
def test_damaged_documents(seed, data):
    """Any text is formatted or refused; never with a fault of our own."""
    text = Scribe(seed).project()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        new = data.draw(
            st.sampled_from(
                [" ", "\n", "\t", "-", ":", "#", "'", '"', "{", "]", "?", "&a ", "*a", "|", "!", "x"]
            )
        )
        text = text[:at] + new + text[at + data.draw(st.integers(0, 3)) :]
    result = format_text(text, "f.yaml")
    if result.text is None:
        assert result.diagnostics == parse(text, "f.yaml").diagnostics
    else:
        formatted(text)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab:-#'\"{}[],|>+& *?!\n \t1", max_size=60))
@example("a: |\n\n   \n")
def test_any_text(text):
    result = format_text(text, "f.yaml")
    if result.text is None:
        assert result.diagnostics == parse(text, "f.yaml").diagnostics
    else:
        formatted(text)


# ------------------------------------------------------------------------------------------ the command


ROUGH = "name: aa\ntype: volume\nsize: 1024gb # c\n"
SMOOTH = "type: volume\nname: aa\nsize: 1TB # c\n"


def run(folder, *arguments):
    command = [sys.executable, "-m", "declarative", "fmt", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_command_rewrites(tmp_path):
    rough, smooth = tmp_path / "b.yaml", tmp_path / "a.yml"
    rough.write_text(ROUGH)
    rough.chmod(0o640)
    smooth.write_text(SMOOTH)
    (tmp_path / ".hidden.yaml").write_text(ROUGH)
    before = smooth.stat()
    done = run(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "b.yaml\n", "")
    assert rough.read_text() == SMOOTH
    assert stat.S_IMODE(rough.stat().st_mode) == 0o640
    assert (smooth.stat().st_ino, smooth.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert names(tmp_path) == [".hidden.yaml", "a.yml", "b.yaml"]
    again = run(tmp_path)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


@pytest.mark.slow
def test_command_check_and_diff(tmp_path):
    (tmp_path / "a.yaml").write_text(ROUGH)
    check, diff, both = run(tmp_path, "--check"), run(tmp_path, "--diff"), run(tmp_path, "--check", "--diff")
    assert (check.returncode, check.stdout) == (1, "a.yaml\n")
    assert (diff.returncode, both.returncode) == (0, 1)
    assert diff.stdout == both.stdout
    assert diff.stdout.startswith("--- a/a.yaml\n+++ b/a.yaml\n@@ ")
    assert "\n-size: 1024gb # c\n+size: 1TB # c\n" in diff.stdout
    assert (tmp_path / "a.yaml").read_text() == ROUGH
    run(tmp_path)
    assert run(tmp_path, "--check", "--diff").returncode == 0


def test_diff_shows_what_is_not_seen(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"type: volume\r\nname: aa")
    shown = run(tmp_path, "--diff").stdout
    assert "-type: volume^M\n-name: aa\n\\ No newline at end of file\n+type: volume\n+name: aa\n" in shown


def test_command_includes(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "other").mkdir()
    for name in ("sub/a.yaml", "other/b.yaml"):
        (tmp_path / name).write_text(ROUGH)
    (tmp_path / "p.yaml").write_text("type: project\ninclude:\n  - sub/*.yaml\n")
    assert run(tmp_path).stdout == "sub/a.yaml\n"
    assert (tmp_path / "other/b.yaml").read_text() == ROUGH
    assert run(tmp_path, "other/b.yaml").stdout == "other/b.yaml\n"
    assert (tmp_path / "other/b.yaml").read_text() == SMOOTH


def test_command_with_a_syntax_error(tmp_path):
    """It is reported as `validate` does, and the others are formatted."""
    (tmp_path / "a.yaml").write_text("type: [\n")
    (tmp_path / "b.yaml").write_text(ROUGH)
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (1, "b.yaml\n")
    assert "error[yaml-syntax]" in done.stderr
    assert "a.yaml:2:1" in done.stderr
    assert "1 error" in done.stderr
    assert (tmp_path / "a.yaml").read_text() == "type: [\n"
    assert run(tmp_path, "--check").returncode == 1
    assert run(tmp_path, "a.yaml").returncode == 1


def test_command_does_not_validate(tmp_path):
    (tmp_path / "a.yaml").write_text("name: aa\ntype: fleet\nnods: 1\n")
    assert run(tmp_path).returncode == 0
    assert (tmp_path / "a.yaml").read_text() == "type: fleet\nname: aa\nnods: 1\n"


def test_command_follows_links_within_the_project(tmp_path):
    (tmp_path / "sub").mkdir()
    target = tmp_path / "sub" / "real.yaml"
    target.write_text(ROUGH)
    link = tmp_path / "a.yaml"
    link.symlink_to("sub/real.yaml")
    assert run(tmp_path).stdout == "a.yaml\n"
    assert link.is_symlink()
    assert target.read_text() == SMOOTH
    target.write_text(ROUGH)
    assert run(tmp_path, "a.yaml", "sub/real.yaml").stdout == "a.yaml\n"
    assert link.is_symlink()


@pytest.mark.slow
def test_command_follows_no_link_out_of_the_project(tmp_path):
    outside, project = tmp_path / "outside.yaml", tmp_path / "project"
    project.mkdir()
    outside.write_text(ROUGH)
    (project / "a.yaml").symlink_to(outside)
    for arguments in ([], ["a.yaml"]):
        done = run(project, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert "error[outside-project]" in done.stderr
    assert outside.read_text() == ROUGH
    assert run(project, "../outside.yaml").returncode == 0
    assert outside.read_text() == SMOOTH


@pytest.mark.slow
def test_command_with_a_read_only_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(ROUGH)
    path.chmod(0o444)
    (tmp_path / "b.yaml").write_text(ROUGH)
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (1, "b.yaml\n")
    assert "error[unwritable]: `a.yaml` is read-only" in done.stderr
    assert "hint: make it writable" in done.stderr
    assert path.read_text() == ROUGH
    assert (run(tmp_path, "--check").stdout, run(tmp_path, "--diff").returncode) == ("a.yaml\n", 0)


@pytest.mark.slow
def test_command_with_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "b.yaml").write_text(ROUGH)
    for arguments in ([], ["pipe.yaml", "b.yaml"]):
        done = run(tmp_path, *arguments)
        assert done.returncode == 1
        assert done.stderr.count("error[not-a-file]") == 1
    assert run(tmp_path, "missing.yaml").returncode == 1
    (tmp_path / "empty").mkdir()
    assert "no-documents" in run(tmp_path / "empty").stderr


def test_nothing_is_left_when_writing_fails(tmp_path, monkeypatch):
    from declarative.cli import project_files as command

    path = tmp_path / "a.yaml"
    path.write_text(ROUGH)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidError, match="No space left"):
        command.replace_file(path, b"new")
    assert path.read_text() == ROUGH
    assert names(tmp_path) == ["a.yaml"]


@pytest.mark.parametrize("piece", ['env: {{A: "b{i}"}}', "resources: {{memory: {{min: {n}GB}}}}"])
def test_nothing_is_worked_out_once_for_each_document(monkeypatch, piece):
    """What a parser needs, and the meaning of a value that many documents have."""
    calls: list[object] = []

    def counted(function):
        def run(*args, **options):
            calls.append(function)
            return function(*args, **options)

        return run

    monkeypatch.setattr(ruamel.yaml.YAML, "__init__", counted(ruamel.yaml.YAML.__init__))
    monkeypatch.setattr(Memory, "parse", counted(Memory.parse))
    counts = []
    for documents in (1, 40):
        text = "".join(
            f"---\ntype: task\nname: t{i}\n{piece.format(i=i, n=documents)}\n" for i in range(documents)
        )
        assert format_text(text, "f.yaml").text
        counts.append(len(calls))
        calls.clear()
    assert max(counts) < 10


def test_a_file_is_read_once_and_its_new_text_once(tmp_path, monkeypatch):
    """Reading costs more than all else; a file in its normal form is not read again."""
    read: list[str] = []
    events = reader._events

    def counted(text, out, kept, **options):
        read.extend([text.text] if "type: task" in text.text else [])  # not the pieces that it tries
        return events(text, out, kept, **options)

    monkeypatch.setattr(reader, "_events", counted)
    old = "name: one  # the only one\ntype: task\ncommands: [date]\n"
    new = format_text(old, "").text
    read.clear()
    file = tmp_path / "main.yaml"
    file.write_text(old)
    run = click.testing.CliRunner().invoke
    assert run(fmt_command, ["--check"], obj={"directory": str(tmp_path)}).output == "main.yaml\n"
    assert read == [old, new]
    read.clear()
    file.write_text(new)
    assert run(fmt_command, ["--check"], obj={"directory": str(tmp_path)}).output == ""
    assert read == [new]
