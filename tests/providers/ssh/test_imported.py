"""Machines that exist become YAML and nodes: hosts over SSH, and instances that others made."""

from __future__ import annotations

from pathlib import Path

import boto3  # type: ignore[import-untyped]
import pytest

from declarative.language.loader import load
from providers.cloud import keys
from providers.ssh.key_pairs import Login, make
from tests.providers.ec2.run import REGION
from tests.providers.ec2.server import AMI
from tests.providers.ssh.machines import Machines
from tests.providers.ssh.rack import SSH, Rack, wipe
from tests.providers.ssh.test_instances import Account, Cloud, backend
from tests.providers.ssh.test_instances import cloud as cloud  # noqa: PLC0414  # a fixture
from tests.support.cli import task, until

pytestmark = pytest.mark.slow


@pytest.fixture
def rack(machines: Machines, tmp_path: Path) -> Rack:
    return Rack(tmp_path, machines)


def test_hosts_become_a_fleet_that_plans(rack: Rack, machines: Machines) -> None:
    """Each is looked at; what it has, or what is wrong with it, stands beside it."""
    backend = {**SSH, "options": {**SSH["options"], "known_hosts": "known_hosts"}}  # type: ignore[dict-item]
    rack.declare(backend, file="backend.yaml")
    names = [f"root@{machine.address}" for machine in machines]
    told = ("--fleet", "lab", "--identity-file", machines.login)
    text = rack.run("import", "ssh", *names, *told).out
    assert text.count(" CPUs, ") == len(names)
    assert "  user: root\n" in text
    rack.write("lab.yaml", text)
    assert load(rack.path).diagnostics == ()
    rack.run("fmt", "--check", "lab.yaml")
    rack.apply()
    assert [name for name, _ in sorted(rack.nodes().items())] == ["lab-0", "lab-1", "lab-2"]
    rack.no_changes()
    rack.run("destroy", "--auto-approve")
    rack.keys("")
    unknown = rack.run("import", "ssh", *names, *told, "--name", machines[0].address).out
    assert "not ready: the key of" in unknown
    assert "add this line to" in unknown
    wipe(machines)


def test_ranks_run_on_an_instance_that_somebody_else_made(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the user's key and the host's own. Once released, the instance is unchanged and still runs."""
    project = Account(tmp_path / "project")
    project.path.mkdir()
    file = project.path / "theirs"
    make(file)
    login = Login(file, "theirs")
    key = login.host_key("somebody's")
    client = boto3.client(
        "ec2",
        region_name=REGION,
        endpoint_url=f"http://127.0.0.1:{cloud.port}",
        aws_access_key_id="somebody",
        aws_secret_access_key="else",
    )
    told = keys.user_data("root", login.public, key)
    asked = {"ImageId": AMI, "InstanceType": "t3.medium", "MinCount": 1, "MaxCount": 1}
    made = client.run_instances(**asked, UserData=told)["Instances"][0]["InstanceId"]
    until(lambda: made in cloud.of and cloud.of[made].answers())
    machine = cloud.of[made]
    before = client.describe_instances(InstanceIds=[made])["Reservations"][0]["Instances"]
    boot = machine.sh("cat /proc/sys/kernel/random/boot_id")

    options = {**backend(cloud.port)["options"], "identity_file": "theirs", "known_hosts": "known_hosts"}
    place = backend(cloud.port, ssh_user="root", options=options)
    fleet = {"type": "fleet", "name": "lab", "backends": ["aws"], "instance_ids": [made]}
    project.declare(place, fleet, task("hello", "echo by $(id -un)", creation_policy="reuse"))
    project.write("known_hosts", "")
    refused = project.apply("--wait", code=None)
    assert "is not known: it offers" in refused.out + refused.err
    project.write("known_hosts", f"{machine.address} {key.public}\n")
    project.apply("--wait")
    assert "by root" in project.logs("hello")
    project.no_changes()
    assert machine.sh("cat /proc/sys/kernel/random/boot_id") == boot

    project.declare(place)
    project.apply()
    assert machine.sh("ls -d /var/lib/fleetform 2>/dev/null || :") == ""
    assert client.describe_instances(InstanceIds=[made])["Reservations"][0]["Instances"] == before
    assert machine.sh("cat /proc/sys/kernel/random/boot_id") == boot
    client.close()
    project.clean_up()
