"""Things that a state made and does not record: found, recorded again, or deleted."""

import json
from typing import Any

import pytest

from declarative.apply.backend_client import BackendClient
from declarative.apply.backend_look import look
from declarative.apply.orphans import Orphan, is_protected
from declarative.model.state import Address
from declarative.model.status import NodeState, Readiness
from declarative.provider import Thing, TransientError, TransientKind
from tests.support.cli import fleet, task, until, volume
from tests.support.market import Market, Site
from tests.support.model import of_node, of_volume
from tests.support.planned import GPU, declared


@pytest.fixture
def forgetful(project):
    """Two nodes and two volumes; a node and both volumes were forgotten, one of those protected."""
    project.declare(fleet(nodes=2), volume("data"), volume("keep", prevent_destroy=True))
    project.apply()
    project.run("state", "rm", "--auto-approve", "node/gpu-1", "volume/data", "volume/keep")
    return project


@pytest.mark.slow
def test_an_orphan_is_adopted(forgetful):
    """It is recorded as it was made; from then on it is as if it had never been forgotten."""
    text = forgetful.run("plan").out
    assert (
        "` records one, `fleetform destroy --orphans` deletes all that have no `prevent_destroy`.\n" in text
    )
    listed = forgetful.run("state", "adopt").out
    names = ["node/gpu-1", "volume/data", "volume/keep"]
    assert [line.split()[0] for line in listed.splitlines()] == names
    for address, code, words in (
        ("node/gpu-0", "exists", "node/gpu-0 is recorded already"),
        ("node/gpu-7", "unknown-address", "orphans: node/gpu-1, volume/data, volume/keep"),
        ("rank/job-0", "unknown-address", "orphans: node/gpu-1"),
        ("reservation/job-0", "usage", "only nodes, volumes and ranks can"),
    ):
        done = forgetful.run("state", "adopt", address, code=1)
        assert f"error[{code}]" in done.err
        assert words in done.err
    for address in names:
        assert forgetful.run("state", "adopt", address).out.startswith(f"Adopted: {address}")
    forgetful.no_changes()
    done = [line.split()[1:3] for line in forgetful.run("state", "history").out.splitlines()[:3]]
    assert done == [["adopt", address] for address in reversed(names)]
    told = forgetful.run("events", "--type", "*.adopted").out.splitlines()
    assert [line.split()[1:3] for line in told] == [[f"{a.split('/')[0]}.adopted", a] for a in names]


def test_orphans_are_deleted_and_nothing_else(forgetful):
    """Not without consent, and not what is protected."""
    folders = [forgetful.local / "nodes", forgetful.local / "volumes"]

    def there():
        return {p.name for folder in folders for p in folder.iterdir()}

    assert "error[not-approved]" in forgetful.run("destroy", "--orphans", code=1).err
    assert there() == {"gpu-0", "gpu-1", "data", "keep"}
    done = forgetful.run("destroy", "--orphans", "--auto-approve")
    assert "Orphans: 2 to delete." in done.out
    assert "Kept, because of `prevent_destroy`: volume/keep." in done.out
    assert there() == {"gpu-0", "keep"}
    events = forgetful.run("destroy", "--orphans", "--auto-approve", "--json").events
    assert [e["event"] for e in events] == ["orphans", "kept"]
    assert events[1]["addresses"] == ["volume/keep"]
    assert forgetful.run("state", "list").out == "node/gpu-0\n"


@pytest.mark.parametrize(
    ("address", "inputs", "known", "kept"),
    [
        ("node/gpu-0", of_node(), True, False),
        ("node/gpu-0", of_node(prevent_destroy=True), True, True),
        ("node/gpu-0", {"prevent_destroy": False}, True, True),
        ("volume/data", of_volume(), True, False),
        ("volume/data", {}, False, True),
        ("node/gpu-0", {}, False, False),
        ("attachment/train-0.data", {"volume": 1}, True, False),
    ],
)
def test_what_cannot_be_read_of_a_disk_or_a_node_counts_as_protected(address, inputs, known, kept):
    thing = Thing(address=Address.parse(address), token="t", inputs=inputs, outputs={}, known=known)
    assert is_protected(Orphan(backend="sky", thing=thing)) is kept


def test_orphans_are_shown_also_where_nothing_else_is_recorded(project):
    """A user who forgot the last thing of a backend, or lost its state, still pays for them."""
    data = volume("data")
    project.declare(data)
    project.apply()
    project.run("state", "rm", "--auto-approve", "volume/data")
    project.declare(volume("other"))
    (drift,) = project.plan()["drift"]
    assert (drift["address"], drift["change"]) == ("volume/data", "orphan")
    project.declare(fleet(nodes=0))
    nothing = "No changes. Nothing has to be done about what changed outside of fleetform.\n"
    assert project.run("plan", "--summary").out == nothing
    project.declare(data)
    (warning,) = project.plan()["diagnostics"]
    assert (warning["code"], warning["severity"], warning["address"]) == (
        "orphan-there",
        "warning",
        "volume/data",
    )
    assert "volume/data is there already, made by an earlier create" in project.apply(code=4).err
    project.declare(fleet(nodes=0))
    project.run("state", "adopt", "volume/data")
    project.declare(data)
    project.no_changes()


def test_an_attachment_is_not_said_to_be_adoptable(project):
    """`state adopt` refuses it."""
    up = project.path / "up"
    job = task("job", f"echo >> {up}", volumes=["data:/data"])
    project.declare(fleet(), volume("data"))
    project.apply()
    project.write("kept.json", project.run("state", "pull").out)
    project.declare(fleet(), volume("data"), job)
    project.apply()
    until(lambda: project.ranks("job")[0]["state"] == "succeeded")
    project.run("state", "push", "--force", "kept.json")
    told = project.run("plan")
    assert "\nOrphans: `fleetform destroy --orphans` deletes all.\n" in told.out
    assert "= hint: `fleetform destroy --orphans` deletes it" in told.err
    assert "hint: `fleetform destroy --orphans` deletes it" in project.apply(code=4).out
    project.run("destroy", "--orphans", "--auto-approve")
    project.apply()
    project.no_changes()


def test_nobody_waits_for_a_backend_of_which_nothing_is_recorded_or_wanted():
    """It may have orphans. It is asked once, and not until it answers: every plan would take as long."""
    site, asked = Site(Market()), []
    assert site.apply(declared(fleets=[GPU]))

    class Away(Market):
        def inventory(self):
            asked.append(1)
            raise TransientError(TransientKind.NOT_SENT, "nobody answers there")

    backends = site.backends(declared(fleets=[GPU]))
    made: dict[str, Any] = {"sky": site.market, "local": Away()}
    backends._make = lambda name, hosts, *, offline=False: BackendClient(made[name], {})  # type: ignore[method-assign]
    seen = look(site.store.read(), backends)
    assert asked == [1]
    assert (seen.orphans, seen.inventory.diagnostics) == ([], ())
    site.close()


def test_a_machine_that_does_not_answer_is_not_asked_for_its_ranks():
    """It was asked whether it is there just before. Each try takes as long as connecting may."""
    asked = []

    class Half(Market):
        def poll(self, node, attempts):
            asked.append(node.address.name)
            return super().poll(node, attempts)

    site = Site(Half())
    desired = declared(fleets=[GPU], tasks=[{"name": "job", "nodes": 2, "commands": ["true"]}])
    assert site.apply(desired)
    away = Readiness(state=NodeState.UNREACHABLE, reason="timed out", observed_at=1.0)
    site.market.states = {"gpu-1": away}
    asked.clear()
    seen = look(site.store.read(), site.backends(desired))
    assert asked == ["gpu-0"]
    assert set(seen.inventory.ranks) == {"job-0"}
    site.close()


@pytest.mark.parametrize("every", [False, True])
def test_what_another_backend_of_the_same_account_has_is_no_orphan(every):
    """Such backends list the same things: what one has was offered for deletion as an orphan of the other."""
    site = Site(Market())
    desired = declared(fleets=[GPU], volumes=[{"name": "data", "backend": "sky"}])
    assert site.apply(desired)
    backends = site.backends(desired)
    assert backends.names() == ("local", "sky")
    assert look(site.store.read(), backends, every=every).orphans == []
    with site.store.lock("state rm") as writer:
        writer.drop([Address("volume", "data")])
    found = look(site.store.read(), backends, every=every).orphans
    assert [(str(o.thing.address), o.backend) for o in found] == [("volume/data", "sky")]
    site.close()


@pytest.mark.slow
def test_an_orphan_on_which_something_else_is_written_is_not_adopted(forgetful):
    file = forgetful.path / ".fleetform/local/volumes/data/fleetform.json"
    body = json.loads(file.read_text())
    file.write_text(json.dumps({**body, "inputs": {**body["inputs"], "backend": ["local"]}}))
    done = forgetful.run("state", "adopt", "volume/data", code=1)
    assert "volume/data cannot be adopted: what is written on it was changed" in done.err
    assert "`inputs.backend` is not text" in done.err
    assert "volume/data  orphan" in forgetful.run("plan").out
    forgetful.run("state", "adopt", "volume/keep")
