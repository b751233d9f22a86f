"""examples/gitops: from an empty folder to ranks by following its page, with a Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from tests.serve.test_serve import started
from tests.support.cli import clean_env, fleet

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "gitops"
prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="prometheus is not installed"
)


@pytest.mark.slow
def test_its_page_leads_from_an_empty_folder_to_ranks(tmp_path):
    """All that it says to type, in order, in one shell."""
    blocks = re.findall(r"```sh\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    script = "\n".join(blocks).replace("path/to/fleetform", str(ROOT)).replace("127.0.0.1:9470", "0")
    script = f"set -euo pipefail\ntrap 'kill %1; wait' EXIT\n{script}"
    name = {
        f"GIT_{who}_{what}": "x@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    env = clean_env(**name, GIT_CONFIG_GLOBAL="/dev/null")
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2" in done.stdout
    assert "node.deleted  node/pair-2" in done.stdout
    assert "rank 0 of 2" in done.stdout


@prometheus
def test_promtool_accepts_the_rules_and_their_tests():
    for args in (
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("check", "config", "prometheus.yml"),
    ):
        done = subprocess.run(["promtool", *args], cwd=EXAMPLE, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@prometheus
def test_the_rules_ask_for_metrics_that_there_are():
    page = (ROOT / "docs" / "reconcile.md").read_text()
    for name in set(re.findall(r"fleetform_\w+", (EXAMPLE / "alerts.yml").read_text())):
        assert f"`{name}`" in page


@prometheus
@pytest.mark.slow
def test_prometheus_scrapes_it_and_an_alert_fires_when_a_fleet_is_short(project, tmp_path):
    project.declare(fleet(nodes=1))
    project.apply()
    project.declare(fleet(nodes=2))
    process, at = started(project)
    rules = re.sub(r"\n +for: .*", "", (EXAMPLE / "alerts.yml").read_text())
    (tmp_path / "alerts.yml").write_text(rules)
    config = (EXAMPLE / "prometheus.yml").read_text().replace("15s", "1s")
    (tmp_path / "prometheus.yml").write_text(config.replace("127.0.0.1:9470", f"127.0.0.1:{at.port}"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = (tmp_path / "log").open("wb+")
    command = [
        "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        found = _firing(server, tmp_path / "log", port)
    finally:
        server.terminate()
        server.wait()
        log.close()
        process.terminate()
        process.wait()
    assert ("FleetShort", "gpu") in found
    assert ("FleetformGone", None) not in found


def _firing(server, log, port):
    """The alerts that fire, once there are some."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    found: set[tuple[str, str | None]] = set()
    for _ in range(600):
        assert server.poll() is None, log.read_text()
        alerts = []
        with suppress(OSError), opener.open(f"http://127.0.0.1:{port}/api/v1/alerts", timeout=30) as answer:
            alerts = json.load(answer)["data"]["alerts"]
        found = {
            (a["labels"]["alertname"], a["labels"].get("fleet")) for a in alerts if a["state"] == "firing"
        }
        # Before the first scrape, the tool itself counts as gone.
        if {name for name, _ in found} & {"FleetShort", "FleetformGone"} == {"FleetShort"}:
            break
        threading.Event().wait(0.1)
    return found


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path):
    for unit in (*EXAMPLE.glob("*.service"), *EXAMPLE.glob("*.timer")):
        text = unit.read_text().replace("/opt/fleetform/bin/fleetform", "/bin/true")
        (tmp_path / unit.name).write_text(text.replace("/usr/bin/git", "/bin/true"))
    units = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_container_installs_what_is_locked():
    """It is not built here: what it copies and names has to exist."""
    text = (EXAMPLE / "Containerfile").read_text()
    assert "--require-hashes" in text
    copied = [path for line in re.findall(r"^COPY (\w.*) /src/", text, re.MULTILINE) for path in line.split()]
    for path in (*copied, *re.findall(r"/src/(\S+\.txt)", text)):
        assert (ROOT / path).exists()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {settings["project"]["readme"], *wheel["only-include"]} <= set(copied)
    assert re.search(r"^USER fleetform$", text, re.MULTILINE)
