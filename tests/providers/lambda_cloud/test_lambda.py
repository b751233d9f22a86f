"""The driver `lambda` against the small Lambda Cloud (server.py); its requests fit Lambda's
description, where that is at hand.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pytest

from declarative.model.state import Address, Record, token
from declarative.model.status import NodeState
from declarative.provider import (
    Config,
    Ended,
    PermanentError,
    PermanentKind,
    TransientError,
    TransientKind,
    load,
)
from declarative.retry import Policy, call
from providers.cloud import account as shared_account
from providers.cloud import cloud, connection
from providers.cloud.any import account, lambda_cloud
from providers.cloud.provider import Cloud
from providers.testing import NODE, Conformance, Place, Spoilt
from tests.providers.cloud.described import serving
from tests.providers.cloud.stand_in import Clock, Fault
from tests.providers.cloud.web import LOST, Asked, Web
from tests.providers.lambda_cloud.server import KEY, Lambda
from tests.support.cli import Project, fleet

DESCRIPTION = "lambda.openapi.json"
PLACE = {"region": "us-east-1", "backend": "la", "instance_type": "gpu_1x_a10"}
INPUTS = MappingProxyType({**NODE, **PLACE})
NODE_0 = Address("node", "gpu-0")
LAUNCH = "POST /api/v1/instance-operations/launch"
T = TypeVar("T")
QUICK = Policy(deadline=60.0, first=0.0, longest=0.01)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a while there takes none here; the stand-in's clock goes on with each request."""
    monkeypatch.setenv("FLEETFORM_TEST_KEY", KEY)
    monkeypatch.setattr(lambda_cloud, "GAP", 0.0)
    monkeypatch.setattr(lambda_cloud, "LAUNCH_GAP", 0.0)
    monkeypatch.setattr(lambda_cloud.Lambda, "settle", 0.0)
    monkeypatch.setattr(shared_account, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(shared_account, "LONGEST_PAUSE", 0.001)


def standing(**more: Any) -> Lambda:
    return Lambda(Clock(tick=60), paced=False, **more)


@pytest.fixture
def stand_in() -> Lambda:
    return standing()


@pytest.fixture
def web(stand_in: Lambda) -> Iterator[Web]:
    with serving(DESCRIPTION, stand_in) as running:
        yield running


def provider(url: str, folder: Path, lineage: str = "lineage-1", **more: Any) -> Any:
    """A new process, as far as that can be seen: nothing is remembered."""
    account._UNCERTAIN.clear()
    config = Config(
        backend="la",
        project_dir=folder,
        lineage=lineage,
        driver="lambda",
        regions=("us-east-1", "us-west-1"),
        credentials={"key": "FLEETFORM_TEST_KEY"},
        endpoint=url,
        image={"*": "lambda-stack-24-04"},
    )
    made: Any = cloud(replace(config, **more))
    made.readiness = lambda nodes: {n: s.readiness for n, s in made._nodes.readiness(nodes).items()}
    return made


class TestLambda(Conformance):
    backend = "la"
    volumes = False
    ranks = False  # nothing is behind these instances
    crowd = 0  # they are made one by one
    node_inputs = INPUTS

    @pytest.fixture(autouse=True)
    def server(self, web: Web, stand_in: Lambda) -> Iterator[None]:
        self.url, self.cloud = web.url, stand_in
        stand_in.capacity = dict.fromkeys(stand_in.capacity, 10_000)
        with Web(stand_in) as self.bad:
            yield

    def make(self, folder: Path, lineage: str) -> Any:
        return provider(self.url, folder, lineage)

    def test_read_after_create_equals(self, place: Place) -> None:
        """Its inputs are in the state alone: they may change, and tags cannot."""
        record = place.node()
        (found,) = place.provider.inventory()
        assert found == place.provider.find(record.address, place.token(record))
        assert (found.token, found.known) == (place.token(record), False)
        assert dict(found.outputs) == dict(record.outputs)

    def spoiled(self, folder: Path, lineage: str, how: Spoilt) -> Any:
        def answer(asked: Asked) -> Any:
            if how is Spoilt.SENSELESS:
                return 200, "<html><body>Welcome!</body></html>"
            if how is Spoilt.DENIED:
                return 401, {"error": {"code": "global/invalid-api-key", "message": "no", "suggestion": ""}}
            found = self.cloud(asked)
            return LOST if asked.line == LAUNCH else found

        if how is Spoilt.NOBODY:
            return provider("http://127.0.0.1:9", folder, lineage)
        self.bad.answer = answer
        return provider(self.bad.url, folder, lineage)


del Conformance  # it is no test itself


def made(there: Any, name: str = "gpu-0", **more: Any) -> Record:
    inputs = {**INPUTS, **more}
    address = Address("node", name)
    outputs = there.create(address, token("lineage-1", address, 1, None), inputs, {})
    return Record(address=address, backend="la", inputs=inputs, outputs=outputs)


def running(stand_in: Lambda) -> list[dict[str, Any]]:
    return [one for one in stand_in.instances.values() if one["status"] in ("booting", "active", "unhealthy")]


# -------------------------------------------------------------------------------------- one request


def test_a_node_is_one_request_with_all_its_marks(web: Web, stand_in: Lambda, tmp_path: Path):
    record = made(provider(web.url, tmp_path), tags={"team": "vision"})
    (body,) = [asked.body for asked in web.asked if asked.line == LAUNCH]
    (key,) = stand_in.keys.values()
    tags = {tag["key"]: tag["value"] for tag in body.pop("tags")}
    assert tags == {
        "team": "vision",
        "fleetform:owner": "lineage-1",
        "fleetform:token": token("lineage-1", record.address, 1, None),
        "fleetform:address": "node/gpu-0",
    }
    assert body.pop("user_data").startswith("#cloud-config\n")
    assert body == {
        "region_name": "us-east-1",
        "instance_type_name": "gpu_1x_a10",
        "ssh_key_names": [key["name"]],
        "name": "gpu-0",
        "hostname": "gpu-0",
        "image": {"family": "lambda-stack-24-04"},
    }
    assert record.outputs["host_key"].startswith("ssh-ed25519 ")
    assert record.outputs["address"].startswith("10.19.")
    assert record.outputs["public_address"].startswith("198.51.")
    provider(web.url, tmp_path).delete(record)
    assert not running(stand_in)
    assert not stand_in.keys


def test_offers_have_prices_and_what_is_free(web: Web, stand_in: Lambda, tmp_path: Path):
    stand_in.capacity["gpu_8x_h100_sxm5", "us-west-1"] = 0
    offers = {(o.instance_type, o.region): o for o in provider(web.url, tmp_path).offers()}
    assert ("gpu_8x_h100_sxm5", "us-west-1") not in offers
    h100 = offers["gpu_8x_h100_sxm5", "us-east-1"]
    assert (h100.price, h100.shape.gpus, h100.shape.gpu_name) == (23.92, 8, "H100")
    assert (h100.shape.gpu_memory_mib, h100.shape.memory_mib) == (80 * 1024, 1800 * 1024)
    assert offers["cpu_4x_general", "us-west-1"].shape.gpus == 0
    assert len(offers) == 9


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"tags": {"Team": "a"}}, "cannot be a tag"),
        ({"tags": {"team": "v" * 129}}, "cannot be a tag"),
        ({"spot": True}, "no spot"),
    ],
)
def test_what_it_has_not_is_refused(web: Web, stand_in: Lambda, tmp_path: Path, more: Any, text: str):
    with pytest.raises(PermanentError, match=text):
        made(provider(web.url, tmp_path), **more)
    assert not stand_in.instances


def test_it_has_no_volumes(web: Web, tmp_path: Path):
    inputs = {"backend": "la", "region": "us-east-1", "size": "1GB"}
    with pytest.raises(PermanentError, match="no volumes that can be attached"):
        provider(web.url, tmp_path).create(Address("volume", "data-0"), "a" * 32, inputs, {})


def test_tags_of_a_machine_that_is_there_stay(web: Web, tmp_path: Path):
    """The API cannot change them: the plan's update says so, and what only the state keeps is taken."""
    there = provider(web.url, tmp_path)
    record = made(there, tags={"team": "a"})
    with pytest.raises(PermanentError, match="writes no tags on a machine") as raised:
        there.update(record, "b" * 32, {**record.inputs, "tags": {"team": "b"}})
    assert "--replace node/gpu-0" in (raised.value.hint or "")
    assert there.update(record, "b" * 32, {**record.inputs, "env": {"A": "b"}})["id"] == record.outputs["id"]


def test_a_mark_that_somebody_removed_is_not_put_back(web: Web, stand_in: Lambda, tmp_path: Path):
    """The node counts as there all the same: it is not made again."""
    there = provider(web.url, tmp_path)
    record = made(there)
    stand_in.instances[record.outputs["id"]]["tags"] = []
    assert there.inventory() == ()
    assert dict(there.recall([record])[record.address].actual) == {"tags": {}}
    with pytest.raises(PermanentError, match="cannot be put back"):
        there.update(record, token("lineage-1", NODE_0, 1, None), record.inputs)
    with pytest.raises(PermanentError, match="does not carry this state's tags") as caught:
        there.delete(record)  # only what names its owner is ended
    assert caught.value.kind is PermanentKind.CONFLICT
    assert len(running(stand_in)) == 1
    stand_in.end(record.outputs["id"], "terminated")
    there.delete(record)


@pytest.mark.parametrize(
    ("status", "reason"), [("preempted", "Lambda took it back"), ("terminated", "it was terminated")]
)
def test_why_a_node_ended_is_said(web: Web, stand_in: Lambda, tmp_path: Path, status: str, reason: str):
    there = provider(web.url, tmp_path)
    record = made(there)
    stand_in.end(record.outputs["id"], status)
    assert there.recall([record]) == {record.address: Ended(reason=reason)}
    stand_in.clock.advance(3600)
    assert there.recall([record]) == {}  # it may be another account
    made(there, "gpu-1")
    (ended,) = there.recall([record]).values()
    assert ended == Ended(reason=f"Lambda has no instance {record.outputs['id']} any more")


def test_an_instance_that_never_ran_is_ended(web: Web, stand_in: Lambda, tmp_path: Path):
    stand_in.becomes = "unhealthy"
    with pytest.raises(PermanentError, match="reports it as unhealthy") as raised:
        made(provider(web.url, tmp_path))
    assert raised.value.kind is PermanentKind.NO_CAPACITY
    assert not running(stand_in)


def test_a_node_that_becomes_unhealthy_is_not_ready(web: Web, stand_in: Lambda, tmp_path: Path):
    there = provider(web.url, tmp_path)
    record = made(there)
    assert there.readiness([record])["gpu-0"].state is NodeState.READY
    stand_in.instances[record.outputs["id"]]["status"] = "unhealthy"
    assert there.readiness([record])["gpu-0"].state is NodeState.NOT_READY


# -------------------------------------------------------------------------------- faults, told apart


def test_no_capacity_and_a_quota_are_told_apart(web: Web, stand_in: Lambda, tmp_path: Path):
    stand_in.refusing.add(("gpu_1x_a10", "us-east-1"))
    with pytest.raises(PermanentError) as raised:
        made(provider(web.url, tmp_path))
    assert (raised.value.kind, raised.value.about) == (PermanentKind.NO_CAPACITY, "us-east-1")
    assert "apply later" in (raised.value.hint or "")
    assert made(provider(web.url, tmp_path), region="us-west-1").outputs["id"]  # the next offer
    stand_in.quota = 1
    with pytest.raises(PermanentError) as raised:
        made(provider(web.url, tmp_path), "gpu-1", region="us-west-1")
    assert raised.value.kind is PermanentKind.QUOTA
    assert "support" in (raised.value.hint or "")


def test_too_many_requests_are_a_fault_to_try_again(web: Web, stand_in: Lambda, tmp_path: Path):
    stand_in.faults = [Fault(line="GET /api/v1/instances", answer=(429, {"error": {"message": "slow"}}))]
    with pytest.raises(TransientError) as raised:
        provider(web.url, tmp_path).inventory()
    assert raised.value.kind is TransientKind.THROTTLED
    assert "a launch each 12 s" in (raised.value.hint or "")


def test_an_inactive_account_is_no_matter_of_trying_again(web: Web, stand_in: Lambda, tmp_path: Path):
    stand_in.inactive = True
    with pytest.raises(PermanentError) as raised:
        provider(web.url, tmp_path).inventory()
    assert raised.value.kind is PermanentKind.AUTH
    assert "payment" in (raised.value.hint or "")


def test_an_image_that_is_not_there_is_named(web: Web, stand_in: Lambda, tmp_path: Path):
    with pytest.raises(PermanentError) as raised:
        made(provider(web.url, tmp_path, image={"*": "windows-11"}))
    assert raised.value.kind is PermanentKind.INVALID
    assert "windows-11" in (raised.value.hint or "")
    assert not stand_in.instances


def test_a_key_that_went_meanwhile_is_brought_again(web: Web, stand_in: Lambda, tmp_path: Path):
    """The command that deletes the last node also deletes the key."""
    there = provider(web.url, tmp_path)
    made(there)
    stand_in.keys.clear()
    call(lambda: made(there, "gpu-1"), policy=QUICK)
    assert len(stand_in.keys) == 1


def test_the_rates_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of requests and of launches, with the stand-in's clock to wait by: nothing is refused."""
    stand_in = Lambda()
    monkeypatch.setattr(lambda_cloud, "GAP", 1.05)
    monkeypatch.setattr(lambda_cloud, "LAUNCH_GAP", 12.2)

    def limiter(*_: Any, least: float) -> connection.Limiter:
        return connection.Limiter(stand_in.clock.now, stand_in.clock.advance, least=least)

    monkeypatch.setattr(lambda_cloud, "limiter", limiter)
    answers: Counter[int] = Counter()

    def answer(asked: Asked) -> Any:
        found = stand_in(asked)
        answers[found[0]] += 1
        return found

    with serving(DESCRIPTION, answer) as web:
        there = provider(web.url, tmp_path)
        start = stand_in.clock.now()
        for i in range(5):
            made(there, f"gpu-{i}")
        assert len(there.inventory()) == 5
    assert stand_in.clock.now() - start > 4 * 12
    assert set(answers) == {200}


# ------------------------------------------------------------------------------- lost answers, kills


def lives(url: str, folder: Path, stand_in: Lambda) -> None:
    """A node is made and deleted, however often that is cut short: once, and nothing stays. Each try is a
    process that knows nothing of the last.
    """

    def tried(step: Callable[[Any], T]) -> T:
        return call(lambda: step(provider(url, folder)), policy=QUICK)

    record = tried(made)
    assert [one["id"] for one in running(stand_in)] == [record.outputs["id"]]
    assert [thing.outputs["id"] for thing in tried(lambda there: there.inventory())] == [record.outputs["id"]]
    tried(lambda there: there.delete(record))
    assert not running(stand_in)


class Cut:
    """Cuts the line at the requests of these numbers; `done`: once they were carried out."""

    def __init__(self, stand_in: Lambda, at: set[int], *, done: bool) -> None:
        self.stand_in, self.at, self.done, self.count = stand_in, at, done, 0

    def __call__(self, asked: Asked) -> Any:
        self.count += 1
        if self.count not in self.at:
            return self.stand_in(asked)
        if self.done:
            self.stand_in(asked)
        return LOST


@pytest.mark.parametrize("done", [True, False])
def test_a_cut_at_any_request_makes_nothing_twice(tmp_path: Path, done: bool):
    whole = Cut(standing(), set(), done=True)
    with serving(DESCRIPTION, whole) as web:
        lives(web.url, tmp_path / "whole", whole.stand_in)
    assert whole.count >= 8
    for number in range(1, whole.count + 1):
        cut = Cut(standing(), {number}, done=done)
        with serving(DESCRIPTION, cut) as web:
            lives(web.url, tmp_path / f"{number}", cut.stand_in)


@pytest.mark.slow
def test_200_drawn_cuts_make_nothing_twice_and_lose_nothing(tmp_path: Path):
    """Several requests are cut in each, and what a launch made may be listed late."""
    luck = random.Random(47)
    for turn in range(200):
        stand_in = standing()
        stand_in.late = luck.choice((0, 0, 60, 120))
        cut = Cut(stand_in, set(luck.sample(range(1, 14), 4)), done=luck.random() < 0.7)
        with Web(cut) as web:
            lives(web.url, tmp_path / f"{turn}", stand_in)


def test_what_comes_to_light_late_is_deleted(web: Web, stand_in: Lambda, tmp_path: Path):
    """The answer was lost, and the instance is listed only after the second one was launched."""
    stand_in.late = 100
    stand_in.faults = [Fault(line=LAUNCH)]
    with pytest.raises(TransientError):
        made(provider(web.url, tmp_path))
    record = made(provider(web.url, tmp_path))
    assert len(stand_in.instances) == 2
    assert [one["id"] for one in running(stand_in)] == [record.outputs["id"]]


# -------------------------------------------------------------------------------------- credentials


def test_the_entry_point_leads_here(tmp_path: Path):
    config = provider("http://127.0.0.1:9", tmp_path)._account.config
    assert type(load("lambda", config)) is Cloud


def test_the_key_is_found_where_users_have_it(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    there = provider(web.url, tmp_path, credentials={})
    monkeypatch.delenv("LAMBDA_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(PermanentError) as raised:
        there.inventory()
    assert raised.value.kind is PermanentKind.AUTH
    assert "export LAMBDA_API_KEY" in (raised.value.hint or "")
    file = tmp_path / ".lambda_cloud" / "lambda_keys"
    file.parent.mkdir()
    file.write_text(f"api_key = {KEY}\n")
    assert there.inventory() == ()
    monkeypatch.setenv("LAMBDA_API_KEY", "another")
    with pytest.raises(PermanentError) as raised:
        provider(web.url, tmp_path, credentials={}).inventory()
    assert "another" not in str(raised.value)
    assert KEY not in os.environ["LAMBDA_API_KEY"]


# -------------------------------------------------------------------------------------- the command


@pytest.mark.slow
def test_from_plan_to_destroy(web: Web, stand_in: Lambda, tmp_path: Path):
    """A fleet whose first offer is sold out though it is listed: the next one is taken. Nothing stays."""
    project, env = Project(tmp_path), {"LAMBDA_API_KEY": KEY}
    stand_in.refusing.add(("gpu_1x_a10", "us-east-1"))
    backend = {
        "type": "backend",
        "name": "la",
        "driver": "lambda",
        "regions": ["us-east-1", "us-west-1"],
        "endpoint": web.url,
        "image": "lambda-stack-24-04",
    }
    gpu = fleet("gpu", backends=["la"], nodes=1, resources={"gpu": "A10:1"})
    project.declare(backend, gpu)
    plan = project.run("plan", "--json", env=env).json
    node = next(a["after"] for a in plan["actions"] if a["address"] == "node/gpu-0")
    assert (node["instance_type"], node["price"]) == ("gpu_1x_a10", 0.75)
    project.apply(env=env)
    (instance,) = running(stand_in)
    assert instance["region"]["name"] == "us-west-1"
    project.run("destroy", "--auto-approve", env=env)
    assert not running(stand_in)
    assert not stand_in.keys
    assert KEY.encode() not in (tmp_path / ".fleetform" / "state.db").read_bytes()
