"""`fleetform conformance`, on the tests' small Azure."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.providers.azure import server as fake
from tests.providers.cloud.web import Web
from tests.support.cli import Project


@pytest.mark.slow
def test_the_command_tries_the_driver(tmp_path: Path) -> None:
    """Nothing of the project is touched, nothing is left, and the report is signed."""
    azure, project = fake.Azure(), Project(tmp_path)
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    with Web(azure) as web:
        config = fake.config(web.url, tmp_path)
        project.declare(
            {
                "type": "backend",
                "name": "az",
                "driver": "azure",
                "regions": [*config.regions],
                "image": config.image["*"],
                "credentials": {**config.credentials},
                "endpoint": web.url,
                "options": {k: v for k, v in config.options.items() if k != "ssh_config"},
                "network": {"subnets": {**config.network.subnets}},
            }
        )
        given = ("--lives", "2", "--report", "az.json", "--sign", str(key))
        env = {**fake.SECRETS, "FLEETFORM_ALLOW_VARIABLE": "FLEETFORM_TEST_*"}
        done = project.run("conformance", "azure", *given, env=env)
    assert "All 13 laws hold." in done.out
    assert not azure.things
    assert [p.name for p in (tmp_path / ".fleetform").iterdir()] == ["conformance"]
    report = (tmp_path / "az.json").read_bytes()
    assert json.loads(report)["passed"] is True
    assert not [value for value in fake.SECRETS.values() if value.encode() in report]
    (tmp_path / "signers").write_text(f"me {key.with_suffix('.pub').read_text()}")
    check = ["ssh-keygen", "-Y", "verify", "-n", "fleetform-conformance", "-I", "me", "-f", "signers"]
    subprocess.run([*check, "-s", "az.json.sig"], input=report, cwd=tmp_path, check=True)


def test_a_real_cloud_is_not_tried_without_a_budget(tmp_path: Path) -> None:
    """Neither by mistake, nor beyond what it may cost."""
    project = Project(tmp_path)
    project.declare(
        {"type": "backend", "name": "az", "driver": "azure", "regions": ["eastus"], "image": "a:b:c:d"}
    )
    done = project.run("conformance", "nothing", code=1)
    assert "the project has no backend `nothing` of a cloud" in done.err
    done = project.run("conformance", "az", code=1)
    assert "backend az is a real cloud, and what this makes costs money" in done.err
    assert "`--spend 5`" in done.err
