"""A state restored from a backup, on EC2 (moto's): tokens of its lost future are used up."""

from __future__ import annotations

import pytest

from tests.providers.ec2 import run
from tests.providers.ec2.test_apply import ENV, ZONE, backend, there
from tests.store.test_restored import by_file
from tests.support.cli import fleet, volume

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ec2():
    with run.RunningEc2() as running:
        yield running


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in run.SECRETS.items():
        monkeypatch.setenv(name, value)


def test_what_is_gone_by_now_is_made_anew_by_one_apply(project, ec2):
    """Three generations of a node and of a volume were made and deleted after the backup. One apply goes past
    them, and makes one thing each.
    """
    place = {"backend": "aws", "region": "us-east-1", "availability_zone": ZONE, "prevent_destroy": False}
    base = (backend(ec2.port), volume("base", **place, size="1GB"))
    one = {"instance_types": ["m5.large"], "availability_zones": [ZONE], "resources": {"cpu": 2}}
    nodes = fleet("gpu", backends=["aws"], nodes=1, **one)
    project.declare(*base)
    project.apply(env=ENV)
    restore = by_file(project)
    for _ in range(3):
        project.declare(*base, nodes, volume("data", **place, size="1GB"))
        project.apply(env=ENV)
        project.declare(*base)
        project.apply(env=ENV)
    restore()
    project.declare(*base, nodes, volume("data", **place, size="1GB"))
    project.apply(env=ENV)
    assert set(there(project, ec2.port)) == {"node/gpu-0", "volume/data", "volume/base"}
    assert project.run("plan", "--json", env=ENV).json["result"] == "none"
    records = project.run("state", "pull", env=ENV).json["records"]
    found = {r["address"]: r["generation"] for r in records}
    assert found == {"node/gpu-0": 4, "volume/data": 4, "volume/base": 1}
    project.run("destroy", "--auto-approve", env=ENV)
    assert there(project, ec2.port) == {}
