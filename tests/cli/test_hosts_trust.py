"""`fleetform hosts trust`: which keys it writes and which hosts it names, by what the hosts answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from declarative.cli import cli
from declarative.cli import hosts as command
from declarative.cli.errors import Failed
from declarative.converge.project import ProjectSession
from declarative.model.diagnostic import failed
from declarative.model.status import HostRefusal, NodeState, Readiness
from declarative.render.diagnostics import diagnostics_text
from tests.language.test_host_keys import KEY, OTHER

READY = {"shape": "there"}
OFF: dict[str, Any] = {}
Trust = Callable[..., tuple[int, str, str]]


def new(hostname: str, **more: Any) -> dict[str, Any]:
    """The answer of a host whose key is not known."""
    return {"refusal": HostRefusal(hostname=hostname, **{"key": KEY, **more})}


@pytest.fixture
def trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trust:
    """Runs the command in a project: its exit code, its output and the file afterwards. A host gives its
    answer until its key, or that of the host on its way, is declared.
    """

    def run(answers: Mapping[str, dict[str, Any]], config: str = "", *words: str) -> tuple[int, str, str]:
        listed = "".join(
            f"    - hostname: {name}\n" for name in answers if f"{{hostname: {name}}}" not in config
        )
        pool = "type: fleet\nname: pool\nnodes: 1\n---\n{type: backend, name: hpc, driver: slurm}\n"
        pool += "---\n{type: fleet, name: jobs, backends: [hpc], partition: gpu}\n"
        rack = f"type: fleet\nname: rack\nplacement: any\nssh_config:\n{config}  hosts:\n{listed}"
        (tmp_path / "main.yaml").write_text(f"{pool}---\n{rack}")

        def seen(fields: Mapping[str, Any]) -> Any:
            answer = answers[fields["hostname"]]
            declared = fields.get("host_keys") or (fields.get("proxy_jump") or {}).get("host_keys")
            if "refusal" in answer and declared:
                answer = READY
            readiness = Readiness(state=NodeState.NOT_READY, reason="why", refusal=answer.get("refusal"))
            return SimpleNamespace(**{"shape": None, **answer, "readiness": readiness})

        backend = SimpleNamespace(look=lambda asked: {key: seen(fields) for key, fields in asked.items()})
        backends = SimpleNamespace(get=lambda _: backend)
        monkeypatch.setattr(ProjectSession, "backends", lambda *_: backends)
        line = ["-C", str(tmp_path), "hosts", "trust", "--auto-approve", *words]
        done = CliRunner().invoke(cli, line, standalone_mode=False)
        found = done.exception.diagnostics if isinstance(done.exception, Failed) else ()
        output = f"{done.output} {diagnostics_text(found, color=False)}"
        code = 1 if done.exception else done.return_value
        return code, " ".join(output.split()), (tmp_path / "main.yaml").read_text()

    return run


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (READY, False),
        (OFF, True),
        ({"connected": True}, False),
        (new("h1", key=""), False),  # it was met, and refuses the login
        (new("gate", key="", on_the_way=True), True),
    ],
)
def test_hosts_whose_key_nobody_saw_are_named_and_the_others_written(trust: Trust, answer: Any, named: bool):
    code, output, text = trust({"h0": new("h0"), "h1": answer})
    assert ("no key of host h1 of fleet/rack was seen: why" in output) == named
    assert code == int(named)
    assert text.endswith(f"    - hostname: h0\n      host_keys: [{KEY}]\n    - hostname: h1\n")


def test_a_host_on_the_way_that_is_not_declared_here_is_named_with_the_line_for_its_file(trust: Trust):
    way = new("gate", on_the_way=True, name="gate,10.0.0.1", file="~/.ssh/known_hosts")
    code, output, text = trust({"h0": way})
    assert code == 1
    assert "gate, on the way to h0, is named by ssh's configuration, not here" in output
    assert f"write into ~/.ssh/known_hosts: gate,10.0.0.1 {KEY}" in output
    assert KEY not in text
    assert "Wrote" not in output


def test_a_file_is_written_once_and_only_if_it_changes(trust: Trust):
    assert trust({"h0": new("h0")})[1].count("Wrote main.yaml.") == 1
    code, output, _ = trust({"h0": READY})
    assert (code, "Wrote" in output) == (0, False)


@pytest.mark.parametrize("jump", ["", "  proxy_jump: *gate\n"])
def test_what_cannot_be_edited_is_printed_to_be_pasted(
    trust: Trust, monkeypatch: pytest.MonkeyPatch, jump: str
):
    monkeypatch.setattr("declarative.language.formatter.with_host_keys", lambda *_: None)
    config = "  proxy_jump: {hostname: gate, user: root}\n" if jump else ""
    answer = new("gate", on_the_way=True) if jump else new("h0")
    code, output, text = trust({"h0": answer}, config)
    assert code == 1
    begin, name = ("proxy_jump: ", "gate") if jump else ("- ", "h0")
    assert f"{begin}{{hostname: {name}, host_keys: [{KEY}]}}" in output
    assert KEY not in text
    assert "Wrote" not in output


def test_a_file_that_cannot_be_written_is_an_error(trust: Trust, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any) -> None:
        raise failed("outside-project", "it is a link", "write the file itself")

    monkeypatch.setattr(command, "replace_file", refuse)
    code, output, text = trust({"h0": new("h0")})
    assert (code, KEY in text) == (1, False)
    assert "error[outside-project]: it is a link" in output


def test_each_fleet_gets_its_own_keys(trust: Trust):
    more = "  hosts: [{hostname: a}]\n---\ntype: fleet\nname: other\nplacement: any\nssh_config:\n"
    code, output, text = trust({"h0": new("h0"), "a": new("a", key=OTHER)}, more)
    first, _, second = text.partition("name: other")
    assert code == 0, output
    assert (OTHER in first, KEY in first, KEY in second) == (True, False, True)
