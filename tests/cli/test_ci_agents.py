"""Output never commands a CI agent, whatever a stranger's files contain, with the real command."""

from __future__ import annotations

import json

import pytest

from declarative.cli.output import CommandEscaper
from tests.support.agents import commands_of
from tests.support.cli import Project

EVIL = (
    "##vso[task.prependpath]/tmp/x",
    "##[set-env name=PATH;]/tmp/x",
    "##teamcity[buildStop comment='x']",
    "::set-env name=PATH::/tmp/x",
    " \u00a0::stop-commands::x",
)


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path)
    yield made
    made.clean_up()


def test_agents_obey_what_the_parsers_of_these_tests_find():
    assert commands_of("\n".join(EVIL)) == list(EVIL)
    assert commands_of("a :: b :: c\n## [x]\n# ::debug::x\n[::1]:22\n::1") == []


@pytest.mark.parametrize("evil", EVIL)
def test_no_cut_between_writes_makes_a_command(evil):
    """A line is tame however it comes, also after colours, and a tame line stays as it is."""
    for start in ("", "x" * 100, " " * 100, "\x1b[31m", "é ", "a\r", "a: ##"):
        text = f"{start}{evil}\n{evil}"
        whole = CommandEscaper()(text)
        assert commands_of(whole) == []
        escape = CommandEscaper()
        assert "".join(map(escape, text)) == whole
        assert CommandEscaper()(whole) == whole


def test_text_that_commands_nothing_is_left_alone():
    text = "a::b\n# x\n## [a]\n- [::1]:22\n#[x]\nvso[task]\n:\n:x:\n"
    assert CommandEscaper()(text) == text


def test_a_strangers_files_command_nothing(project):
    """Files, names, commands, environment and what is wrong with them, as text and as JSON."""
    task = {"type": "task", "name": "train", "commands": [*EVIL, *(f"echo\n{evil}\n" for evil in EVIL)]}
    project.declare(
        {"type": "fleet", "name": "gpu", "nodes": 1, "env": dict.fromkeys("A", EVIL[0])},
        {**task, "env": dict(zip("ABCDE", EVIL, strict=True)), "image": EVIL[0]},
    )
    for words in (
        ("plan", "--offline"),
        ("plan", "--offline", "--json"),
        ("explain", "task/train", "--json"),
    ):
        done = project.run(*words, code=None)
        assert commands_of(done.out) == commands_of(done.err) == []
    for evil in EVIL:
        (project.path / f"{evil.replace('/', '_')}.yaml").write_text("type: task\nname: [\n")
    project.declare(*({"type": evil, "name": evil, evil: 1} for evil in EVIL), file="bad.yaml")
    text = "\n".join(f"  {evil.strip()}" for evil in EVIL)
    project.write("text.yaml", f"name: odd\ntype: task\ncommands:\n- |\n{text}\n")
    wrong: tuple[tuple[str, ...], ...] = (
        ("validate",),
        ("validate", "--json"),
        ("plan", EVIL[0]),
        ("logs", EVIL[3]),
        ("fmt", "--diff"),
    )
    for bad in wrong:
        done = project.run(*bad, code=None)
        assert "prependpath" in done.out + done.err or "set-env" in done.out + done.err
        assert commands_of(done.out) == commands_of(done.err) == []


def test_json_holds_the_value_all_the_same(project):
    project.declare(
        {"type": "task", "name": "train", "commands": [EVIL[0]]}, {"type": "fleet", "name": "gpu", "nodes": 1}
    )
    done = project.run("plan", "--offline", "--json")
    assert r"\u0023#vso[task" in done.out
    assert EVIL[0] in json.dumps(done.json)


def test_imported_documents_command_nothing_and_mean_the_same(project):
    run = f"a\n{EVIL[0]}\n{EVIL[3]}\n"
    project.write("sky.txt", json.dumps({"name": "sky", "run": run, "num_nodes": 1}))
    done = project.run("import", "skypilot", "sky.txt")
    assert commands_of(done.out) == []
    project.write("x.yaml", "name: cloud\ntype: backend\ndriver: local\n---\n" + done.out)
    assert EVIL[0] in json.dumps(project.run("plan", "--offline", "--json", code=None).json)


def test_a_diff_shows_what_cannot_be_seen(project):
    """Zero-width characters may stand in a file; a diff of `fmt` shows them."""
    project.write("a.yaml", "name: gpu\ntype: fleet\nnodes: 1\n# a\u200bb\ttab\n")
    out = project.run("fmt", "--diff").out
    assert "\u200b" not in out
    assert "a\\u200bb\ttab" in out
