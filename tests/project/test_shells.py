"""What is said of every shell script of the project."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from declarative.provider import Launch
from providers.rank_scripts import prepared
from providers.slurm import login
from providers.ssh import scripts

REPOSITORY = Path(__file__).resolve().parents[2]
SHELLS = [[shell, *more] for shell, *more in (["dash"], ["busybox", "sh"]) if shutil.which(shell)]
SCRIPTS = [
    *(REPOSITORY / name for name in ("dev", "tools/ci-job", "tests/clock/at")),
    *sorted(
        path
        for folder in ("providers", "declarative", "tests", "tools", "examples", "benchmarks")
        for path in (REPOSITORY / folder).rglob("*.sh")
    ),
]
SOURCES = sorted((REPOSITORY / "providers").rglob("*.py"))
OURS = ("gpus.sh", "gate.sh", "peers.sh")
"""The parts of what is launched that stand before a task's own commands."""
SPECIAL = r":|\.|break|continue|eval|exec|exit|export|readonly|return|set|shift|times|trap|unset"
"""The special builtins of POSIX: a redirection of theirs that fails ends the shell."""
_FAILING = re.compile(rf"(?:{SPECIAL})(?=\s)(?P<words>[^;|()]*)")
_BEGIN = re.compile(
    rf"(?:^|[;|&({{!]|\b(?:then|else|do|elif|if|while|until))\s*(?=(?:{SPECIAL})\s)", re.MULTILINE
)
_TO = re.compile(r"""(?<![<>\w])\d?(?:<>|>>|>\||<(?!<)|>)\s*(?!&|/dev/null|\()""")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.")


def _bare(line: str) -> str:
    """A line without what is quoted, nor a comment."""
    return re.sub(r"(^|\s)#.*", "", _QUOTED.sub('""', line))


def ending(text: str) -> Iterator[str]:
    """The lines whose redirection ends the shell if it fails."""
    for line in text.splitlines():
        # A script in quotes, of `sh -c`, is one as well.
        for part in (_bare(line), *(found[0][1:-1] for found in _QUOTED.finditer(line))):
            for begin in _BEGIN.finditer(part):
                words = _FAILING.match(part, begin.end())
                if words and _TO.search(words["words"].partition("&&")[0]):
                    yield line
                    break


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_no_redirection_that_fails_ends_a_script(path: Path) -> None:
    """Of a full disk, say. `true >file` and `command exec 9>>file` fail like any other command."""
    assert [*ending(path.read_text())] == []


def test_no_redirection_that_fails_ends_a_script_in_python() -> None:
    texts = (
        (path, each.value)
        for path in SOURCES
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )
    assert [(path, line) for path, text in texts for line in ending(text)] == []


ENDING = (
    ": >file",
    "x || : >>file",
    "{ : >file; } 2>/dev/null || :",
    "exec 9>>file",
    "if :; then export A <file; fi",
    "(exec 3<>file)",
    ". ./x >file",
    "sh -c ': >file'",
)
GOING_ON = (
    "true >file",
    "command exec 9>>file",
    "exec 9>&-",
    "exec 2>&1 </dev/null",
    ": x # >file",
    "echo x >file || :",
    "x && : || cat <<END",
    "exec cat && x >file",
)


def test_it_is_known_by_its_form() -> None:
    assert [line for line in ENDING if not [*ending(line)]] == []
    assert [line for line in GOING_ON if [*ending(line)]] == []


JOINED = {
    "the runner on hosts": scripts.bundle().decode(),
    "a visit of a host": scripts.visit().decode(),
    "the login node of Slurm": login.script(),
    "the nodes of Slurm": login.bundle()[1].decode(),
    **{name: scripts.text(name) for name in ("enter.sh", "put.sh", "probe.sh", "volume.sh")},
}


@pytest.mark.parametrize("name", JOINED)
def test_what_is_joined_sets_each_variable_that_it_uses(name: str) -> None:
    """`./dev lint` checks each part by itself, where the variables of the others are unknown."""
    if not (shellcheck := shutil.which("shellcheck") or shutil.which("shellcheck", path=sys.prefix + "/bin")):
        pytest.skip("no shellcheck is installed here")
    text = re.sub("^# shellcheck .*\n", "", JOINED[name], flags=re.MULTILINE)
    text = f"# shellcheck extended-analysis=false\n{text}"  # half the time; older releases ignore it
    done = subprocess.run(
        [shellcheck, "--norc", "--shell=sh", "--include=SC2154", "--format=gcc", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("line", [line for line in ENDING if not line.startswith((". ", "(", "sh"))])
def test_it_is_what_shells_do(tmp_path: Path, shell: list[str], line: str) -> None:
    text = line.replace("file", str(tmp_path / "none" / "file"))
    done = subprocess.run([*shell, "-c", f"{text}\necho on"], capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_what_is_written_instead_goes_on(shell: list[str]) -> None:
    text = "true >/none/file || command exec 9>>/none/file || echo on"
    done = subprocess.run([*shell, "-c", text], capture_output=True, text=True, check=False)
    assert done.stdout == "on\n"


@pytest.mark.parametrize("shell", [*SHELLS, ["bash"]], ids=" ".join)
def test_a_task_has_no_function_and_no_variable_of_ours(tmp_path: Path, shell: list[str]) -> None:
    """Its programs may have these names."""
    text = "".join((REPOSITORY / "providers" / name).read_text() for name in OURS)
    functions = {*re.findall(r"^([a-z_]+)\(\)", text, re.MULTILINE), "joins", "launches"}
    variables = {*re.findall(r"(?:^|[\s;])([a-z_]+)=", text)}
    assert {"numbers", "devices", "behind", "meet"} <= functions
    assert {"visible", "waited"} <= variables
    asked = Launch(
        attempt="a-0.1",
        commands=(
            f"functions='{' '.join(sorted(functions))}' variables='{' '.join(sorted(variables))}'",
            'for each in $functions; do [ "$(command -v $each)" != $each ] || echo function $each; done',
            'for each in $variables; do eval "[ -z \\"\\${$each+x}\\" ]" || echo variable $each; done',
            "echo asked",
        ),
        env={},
        cpus=(),
        gpus=(0, 1),
        working_dir=None,
        volumes={},
        hostfile="a slots=1\n",
        gate_seconds=1,
        max_seconds=None,
        stop_seconds=1,
    )
    script = prepared(str(tmp_path / "node"), (), asked, {}, meets=True).script
    (tmp_path / "run" / "peers").mkdir(parents=True)  # it has peers already: no sshd is started
    env = {"PATH": os.environ["PATH"], "FLEETFORM_RUN": str(tmp_path / "run"), "HOME": str(tmp_path)}
    done = subprocess.run([*shell, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "asked\n"
