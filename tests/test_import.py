"""`fleetform import`: converted documents of dstack and SkyPilot load, and name what was lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from declarative.cli import cli
from declarative.language.loader import load
from declarative.language.source import read
from tests.test_errors import golden

DSTACK = Path(__file__).parent / "dstack"
GOLDEN = Path(__file__).parent / "golden" / "import"
SKYPILOT = sorted(path.name for path in GOLDEN.glob("*.sky.yaml"))


def imported(*argv: object, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, ["import", *map(str, argv)])
    assert done.exit_code == code, done.output
    return done


@pytest.mark.parametrize("name", sorted(path.stem for path in DSTACK.glob("*.yaml")))
def test_what_comes_of_dstack_loads_and_says_what_was_lost(name, tmp_path):
    text = imported("dstack", DSTACK / f"{name}.yaml").stdout
    golden(GOLDEN / f"{name}.out.yaml", text)
    assert "hunter2" not in text
    (tmp_path / "out.yaml").write_text(text)
    assert load(tmp_path).diagnostics == ()


@pytest.mark.parametrize("name", SKYPILOT)
def test_what_comes_of_skypilot_loads_and_says_what_was_lost(name, tmp_path):
    text = imported("skypilot", GOLDEN / name).stdout
    golden(GOLDEN / name.replace(".sky.yaml", ".out.yaml"), text)
    assert "hunter2" not in text
    (tmp_path / "out.yaml").write_text(text)
    assert load(tmp_path).diagnostics == ()


def test_no_file_is_written_over(tmp_path):
    out = tmp_path / "out.yaml"
    assert "Wrote" in imported("dstack", DSTACK / "task.yaml", "--out", out).stdout
    assert list(load(tmp_path).desired.tasks) == ["train"]
    before = out.read_text()
    imported("dstack", DSTACK / "volume.yaml", "--out", out, code=1)
    assert out.read_text() == before


def test_a_strangers_text_stays_what_it_is(tmp_path):
    """No name and no value becomes a line of its own, another type, or a command of the terminal."""
    file = tmp_path / "a.yaml"
    odd = ["yes", "1", "0x10", "1e3", "null", "a: b", "a #b", "- a", "", " a", "a ", "@a", "*a", "a:", "~"]
    env = "".join(f"  A{i}: {text!r}\n" for i, text in enumerate(odd))
    commands = "\n".join(
        f"  - {text}" for text in ('"a\\tb\\n  c\\n"', '"\\x9b31m"', '"|"', '"a\\u2028b: c"', '"\\n a"')
    )
    file.write_text(
        f'type: task\nname: train\n"x\\ntype: fleet": 1\n"\\x9b2J": 2\nenv:\n{env}commands:\n{commands}\n',
        "utf-8",
    )
    text = imported("dstack", file).stdout
    assert "\x9b" not in text
    (document,) = read(text, "out.yaml")
    (given,) = read(file.read_text("utf-8"), "a.yaml")
    for key in ("env", "commands"):
        assert document.data[key] == given.data[key]
    assert set(document.data) == {"type", "name", "env", "commands"}


def test_bad_yaml_is_an_error(tmp_path):
    (tmp_path / "a.yaml").write_text("a: [")
    done = CliRunner().invoke(cli, ["import", "skypilot", str(tmp_path / "a.yaml")])
    assert done.exit_code == 1
    imported("terraform", tmp_path / "a.yaml", code=2)


@pytest.mark.parametrize(
    ("tool", "text"),
    [("dstack", "type: task\nname: {}\ncommands: [x]\n"), ("skypilot", "name: {}\nrun: x\n")],
)
def test_a_changed_name_is_said(tool, text, tmp_path):
    """Other documents and scripts may go by the old one."""
    for name, new in (("a", "imported"), ("My_Task", "my-task")):
        (tmp_path / "x.yaml").write_text(text.format(name))
        assert f"# the name is now `{new}`: " in imported(tool, tmp_path / "x.yaml").stdout
    (tmp_path / "x.yaml").write_text(text.format("train"))
    assert "the name is now" not in imported(tool, tmp_path / "x.yaml").stdout


def test_a_document_without_a_type(tmp_path):
    """It may be the file of another tool."""
    (tmp_path / "sky.yaml").write_text("run: x\n")
    said = imported("dstack", tmp_path / "sky.yaml").stdout
    assert "# left out a document without a `type`: no counterpart\n" in said
