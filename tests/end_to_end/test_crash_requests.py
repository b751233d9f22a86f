"""Requests under way when their caller dies: the cloud may still carry them out, however late.

So a thing that is missing after a crash may still appear. A retry has to use the same token, and a late thing
has to be found.
"""

import contextlib
import signal
import sqlite3

import pytest

from declarative.model.state import Address
from declarative.provider import Config
from tests.providers.cloud.run import PLUG, RunningCloud
from tests.providers.cloud.site.cumulus import Cumulus
from tests.support.cli import ended, fleet, task, until, volume
from tests.support.killing import ON_SKY

pytestmark = pytest.mark.slow


@pytest.fixture
def cloud(tmp_path):
    with RunningCloud(tmp_path / "cloud.db") as cloud:
        yield cloud


def declare(project, cloud, *more):
    """A node, a volume and a task."""
    job = task("job", "true", resources={"cpu": "1.."}, volumes=["data:/data"])
    project.declare(cloud.backend(), fleet(placement="any", **ON_SKY), volume(backend="sky"), job, *more)


def die_in_flight(project, cloud, what):
    """An apply is killed while its request for `what` is at the cloud's door."""
    cloud.control(hold=what)
    process = project.start("apply", "--auto-approve", env=PLUG)
    until(lambda: cloud.control()["waiting"] == [what], f"{what} at the door")
    process.kill()
    ended(process, -signal.SIGKILL)


def let_in(cloud, what):
    """The cloud does what was asked of it by one who is dead."""
    cloud.control(release=True)
    until(lambda: cloud.control()["served"] == [what], f"{what} is served")


def wanted_elsewhere(project, cloud):
    """Begun on the cloud by one who died, then declared and made on this machine."""
    declare(project, cloud)
    die_in_flight(project, cloud, "volume/data")
    here = [{"type": "backend", "name": "local"}, volume(backend="local")]
    project.declare(cloud.backend(), fleet(placement="any", **ON_SKY), *here)
    project.apply(env=PLUG)
    assert project.data("data").is_dir()
    project.run("state", "check", env=PLUG)


ORPHAN = "volume/data: orphan: made by this state, but not recorded (vol-2)\n"
WHOLE = {"node/gpu-0": 1, "volume/data": 1, "attachment/job-0.data": 1}


@pytest.mark.parametrize("what", [*WHOLE, "rank/job-0.1"])
def test_a_late_create_makes_no_second_one(project, cloud, what):
    """The next apply asks for the same, and the late one comes after that."""
    declare(project, cloud)
    die_in_flight(project, cloud, what)
    project.apply(env=PLUG)
    let_in(cloud, what)
    assert cloud.things() == WHOLE
    assert cloud.runs() == {"job-0": 1}
    project.run("state", "check", env=PLUG)


def test_a_plan_says_what_is_taken_up(project, cloud):
    """What was begun by one who died: whether it is there, and once it is recorded no more."""
    declare(project, cloud)
    die_in_flight(project, cloud, "volume/data")
    assert "create:volume/data is not there; if it comes after all" in project.run("plan", env=PLUG).err
    let_in(cloud, "volume/data")
    found = project.run("plan", "--json", env=PLUG).json
    assert [d["code"] for d in found["diagnostics"]] == ["taken-up"]
    assert "create:volume/data had been done, and is taken up" in found["diagnostics"][0]["summary"]
    assert "create:volume/data" not in [a["id"] for a in found["actions"]]
    project.apply(env=PLUG)
    assert project.run("plan", "--json", env=PLUG).json["diagnostics"] == []


@pytest.mark.parametrize("what", ["node/gpu-0", "volume/data"])
def test_a_late_create_is_found(project, cloud, what):
    """A late thing that is no longer declared is found when it appears, and deleted."""
    declare(project, cloud)
    die_in_flight(project, cloud, what)
    project.declare(cloud.backend())
    project.apply(env=PLUG)
    let_in(cloud, what)
    project.apply(env=PLUG)
    assert cloud.things() == {}
    project.run("state", "check", env=PLUG)


def test_what_is_wanted_elsewhere_is_not_waited_for(project, cloud):
    """The next apply makes it in another place, where it would be waited for in vain here."""
    wanted_elsewhere(project, cloud)
    project.run("plan", "--detailed-exitcode", env=PLUG)


def test_what_comes_late_is_named(project, cloud):
    """As made and not recorded, also where the address is recorded of another backend."""
    wanted_elsewhere(project, cloud)
    let_in(cloud, "volume/data")
    assert project.run("state", "check", code=None, env=PLUG).out == ORPHAN


def test_a_second_thing_of_one_name_is_named(project, cloud, tmp_path):
    """Clouds take a name twice: what has the name of a recorded thing, and another token, is not that."""
    project.declare(cloud.backend(), volume(backend="sky"))
    project.apply(env=PLUG)
    lineage = project.run("state", "pull").json["lineage"]
    config = Config(backend="sky", project_dir=tmp_path, lineage=lineage, options={"url": cloud.url})
    Cumulus(config).create(Address("volume", "data"), "another", {}, {})
    assert project.run("state", "check", code=None, env=PLUG).out == ORPHAN


def test_what_never_comes_is_no_trouble(project, cloud):
    """Begun, never made, and not wanted any more: everything ends well, again and again."""
    declare(project, cloud)
    die_in_flight(project, cloud, "volume/data")
    project.declare(cloud.backend())
    for _ in range(2):
        project.apply(env=PLUG)
        project.run("plan", "--detailed-exitcode", env=PLUG)
        project.run("state", "check", env=PLUG)
    project.run("destroy", "--auto-approve", env=PLUG)
    assert cloud.things() == {}


def test_a_backend_can_be_given_up(project, cloud):
    """Once what was begun there was looked for after an hour, and did not come."""
    declare(project, cloud)
    die_in_flight(project, cloud, "volume/data")
    project.declare(cloud.backend())
    project.apply(env=PLUG)
    with contextlib.closing(sqlite3.connect(project.path / ".fleetform/state.db")) as state, state:
        older = "begun_at = begun_at - 4000, tick = tick - 4000"
        state.execute(f"UPDATE operations SET {older} WHERE ended_at IS NULL")
        state.execute("UPDATE meta SET seal = NULL")
    project.apply(env=PLUG)
    project.declare({"type": "backend", "name": "local"})
    assert project.apply(env=PLUG).err == ""
    project.run("state", "check", env=PLUG)
