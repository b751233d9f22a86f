"""The small Lambda Cloud: what its API promises, over plain HTTP, and compared with Lambda's description."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Iterator
from typing import Any

import pytest

from tests.providers.cloud.described import described, serving, spoiled
from tests.providers.cloud.stand_in import Caller, Fault
from tests.providers.cloud.web import Asked
from tests.providers.lambda_cloud.server import BOOT, END, KEY, Lambda

DESCRIPTION = "lambda.openapi.json"
A100 = "gpu_8x_a100_80gb_sxm4"
LAUNCH = "/api/v1/instance-operations/launch"
TERMINATE = "/api/v1/instance-operations/terminate"
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICN fleet"
FULL = {
    "region_name": "us-east-1",
    "instance_type_name": A100,
    "ssh_key_names": ["fleet"],
    "file_system_mounts": [],
    "hostname": "gpu-0",
    "name": "gpu-0",
    "image": {"family": "ubuntu-24-04"},
    "user_data": "#cloud-config\n",
    "tags": [{"key": "fleetform:owner", "value": "lineage-1"}],
}
BODY = {"region_name": "us-east-1", "instance_type_name": A100, "ssh_key_names": ["fleet"]}


@pytest.fixture
def cloud() -> Lambda:
    return Lambda(paced=False)


@pytest.fixture
def call(cloud: Lambda) -> Iterator[Caller]:
    with serving(DESCRIPTION, cloud) as web:
        yield Caller(web.url, Authorization=f"Bearer {KEY}")


def data(answer: tuple[int, Any]) -> Any:
    assert answer[0] == 200, answer
    return answer[1]["data"]


def refused(answer: tuple[int, Any]) -> tuple[int, str]:
    assert set(answer[1]["error"]) == {"code", "message", "suggestion"}
    return answer[0], answer[1]["error"]["code"]


def launched(call: Caller, **fields: Any) -> str:
    if not data(call("GET /api/v1/ssh-keys")):
        data(call("POST /api/v1/ssh-keys", {"name": "fleet", "public_key": PUBLIC}))
    made: str = data(call(f"POST {LAUNCH}", {**BODY, **fields}))["instance_ids"][0]
    return made


def life(call: Caller, cloud: Lambda) -> None:
    """A node with a filesystem, from its offer to its end."""
    types = data(call("GET /api/v1/instance-types"))
    assert types[A100]["instance_type"]["specs"]["gpus"] == 8
    assert "us-east-1" in {one["name"] for one in types[A100]["regions_with_capacity_available"]}
    assert data(call("GET /api/v1/regions"))
    assert data(call("GET /api/v1/images"))
    key = data(call("POST /api/v1/ssh-keys", {"name": "fleet", "public_key": PUBLIC}))
    assert data(call("GET /api/v1/ssh-keys")) == [key]
    disk = data(call("POST /api/v1/filesystems", {"name": "data", "region": "us-east-1"}))
    mounts = [{"mount_point": "/data/set", "file_system_id": disk["id"]}]
    (made,) = data(call(f"POST {LAUNCH}", {**FULL, "file_system_mounts": mounts}))["instance_ids"]
    assert cloud.user_data[made] == FULL["user_data"]
    (node,) = data(call("GET /api/v1/instances"))
    assert node["status"] == "booting"
    assert "ip" not in node
    cloud.clock.advance(BOOT)
    node = data(call(f"GET /api/v1/instances/{made}"))
    assert (node["status"], node["hostname"], node["tags"]) == ("active", "gpu-0", FULL["tags"])
    assert node["file_system_mounts"] == mounts
    assert node["ip"]
    assert data(call(f"POST /api/v1/instances/{made}", {"name": "renamed"}))["name"] == "renamed"
    assert data(call("GET /api/v1/file-systems"))[0]["is_in_use"]
    deletion = f"DELETE /api/v1/filesystems/{disk['id']}"
    assert refused(call(deletion)) == (400, "filesystems/filesystem-in-use")
    (ending,) = data(call(f"POST {TERMINATE}", {"instance_ids": [made]}))["terminated_instances"]
    assert ending["status"] == "terminating"
    cloud.clock.advance(END)
    assert data(call("GET /api/v1/instances")) == []
    assert data(call(f"GET /api/v1/instances/{made}"))["status"] == "terminated"
    assert data(call(deletion)) == {"deleted_ids": [disk["id"]]}
    assert data(call(f"DELETE /api/v1/ssh-keys/{key['id']}")) == {}
    cloud.clock.advance(3600)
    assert refused(call(f"GET /api/v1/instances/{made}")) == (404, "global/object-does-not-exist")


def test_a_node_and_a_filesystem_live(call: Caller, cloud: Lambda):
    life(call, cloud)


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"region_name": "mars-1"}, 404, "global/object-does-not-exist"),
        ({"instance_type_name": "gpu_9x"}, 404, "global/object-does-not-exist"),
        ({"ssh_key_names": ["other"]}, 404, "global/object-does-not-exist"),
        ({"ssh_key_names": ["fleet", "fleet"]}, 400, "global/invalid-parameters"),
        ({"ssh_key_names": []}, 400, "global/invalid-parameters"),
        ({"file_system_names": ["none"]}, 404, "global/object-does-not-exist"),
        ({"image": {"family": "none"}}, 404, "global/object-does-not-exist"),
        ({"firewall_rulesets": [{"id": "c4"}]}, 404, "global/object-does-not-exist"),
        ({"name": "x" * 65}, 400, "global/invalid-parameters"),
        ({"hostname": "Upper"}, 400, "global/invalid-parameters"),
        ({"tags": [{"key": "Upper", "value": ""}]}, 400, "global/invalid-parameters"),
        ({"tags": [{"key": "k" * 56, "value": ""}]}, 400, "global/invalid-parameters"),
        ({"tags": [{"key": "key", "value": "v" * 129}]}, 400, "global/invalid-parameters"),
        ({"user_data": "x" * (2**20 + 1)}, 400, "global/invalid-parameters"),
        ({"quantity": 2}, 400, "global/invalid-parameters"),
        ({"file_system_names": ["west"]}, 400, "instance-operations/launch/file-system-in-wrong-region"),
    ],
)
def test_a_launch_is_refused(call: Caller, cloud: Lambda, fields: Any, status: int, code: str):
    data(call("POST /api/v1/filesystems", {"name": "west", "region": "us-west-1"}))
    data(call("POST /api/v1/ssh-keys", {"name": "fleet", "public_key": PUBLIC}))
    assert refused(call(f"POST {LAUNCH}", {**BODY, **fields})) == (status, code)
    assert not cloud.instances


def test_no_capacity_and_a_quota_are_told_apart(call: Caller, cloud: Lambda):
    launched(call)
    cloud.refusing.add((A100, "us-east-1"))
    short = (400, "instance-operations/launch/insufficient-capacity")
    assert refused(call(f"POST {LAUNCH}", BODY)) == short
    listed = data(call("GET /api/v1/instance-types"))[A100]["regions_with_capacity_available"]
    assert "us-east-1" in {one["name"] for one in listed}
    cloud.capacity[A100, "us-west-1"] = 0
    assert refused(call(f"POST {LAUNCH}", {**BODY, "region_name": "us-west-1"})) == short
    cloud.quota = 1
    assert refused(call(f"POST {LAUNCH}", BODY)) == (400, "global/quota-exceeded")


def test_names_of_instances_are_not_unique_but_those_of_keys_and_filesystems_are(call: Caller):
    assert launched(call, name="gpu-0") != launched(call, name="gpu-0")
    key = {"name": "fleet", "public_key": PUBLIC}
    assert refused(call("POST /api/v1/ssh-keys", key)) == (400, "global/invalid-parameters")
    disk = {"name": "data", "region": "us-east-1"}
    data(call("POST /api/v1/filesystems", disk))
    assert refused(call("POST /api/v1/filesystems", disk)) == (400, "global/duplicate")


def test_a_lost_answer_leaves_an_instance_behind(call: Caller, cloud: Lambda):
    made = launched(call)
    cloud.late = 30
    cloud.faults = [Fault(line=LAUNCH)]
    with pytest.raises(http.client.RemoteDisconnected):
        call(f"POST {LAUNCH}", {**BODY, "name": "lost"})
    assert [one["id"] for one in data(call("GET /api/v1/instances"))] == [made]
    cloud.clock.advance(30)
    assert data(call("GET /api/v1/instances"))[1]["name"] == "lost"


def test_an_instance_may_become_unhealthy_or_be_preempted(call: Caller, cloud: Lambda):
    cloud.becomes = "unhealthy"
    made = launched(call)
    ended: list[str] = []
    cloud.ended = ended.append
    cloud.clock.advance(BOOT)
    assert data(call(f"GET /api/v1/instances/{made}"))["status"] == "unhealthy"
    cloud.end(made, "preempted")
    assert data(call(f"GET /api/v1/instances/{made}"))["status"] == "preempted"
    assert ended == [made]
    answer = call(f"POST {TERMINATE}", {"instance_ids": [made]})
    assert refused(answer) == (404, "global/object-does-not-exist")


def test_termination_is_repeated_and_ends_all_or_none(call: Caller, cloud: Lambda):
    made = launched(call)
    answer = call(f"POST {TERMINATE}", {"instance_ids": [made, "none"]})
    assert refused(answer) == (404, "global/object-does-not-exist")
    assert cloud.instances[made]["status"] == "booting"
    for _ in range(2):
        data(call(f"POST {TERMINATE}", {"instance_ids": [made]}))
    cloud.clock.advance(BOOT)
    assert cloud.instances[made]["status"] == "terminated"


def test_a_second_has_one_request_and_twelve_have_one_launch():
    cloud = Lambda()
    with serving(DESCRIPTION, cloud) as web:
        call = Caller(web.url, Authorization=f"Bearer {KEY}")

        def after(seconds: float, line: str, body: Any = None) -> int:
            cloud.clock.advance(seconds)
            return call(line, body)[0]

        assert after(0, "POST /api/v1/ssh-keys", {"name": "fleet", "public_key": PUBLIC}) == 200
        assert after(0.5, "GET /api/v1/instances") == 429
        assert after(0.5, f"POST {LAUNCH}", BODY) == 200
        assert after(11, f"POST {LAUNCH}", BODY) == 429
        assert after(1, f"POST {LAUNCH}", BODY) == 200
        assert len(cloud.instances) == 2


def test_a_key_is_asked_for(cloud: Lambda):
    basic = base64.b64encode(f"{KEY}:".encode()).decode()
    with serving(DESCRIPTION, cloud) as web:
        for text in (f"Bearer {KEY}", f"Basic {basic}", f"Basic {KEY}"):
            data(Caller(web.url, Authorization=text)("GET /api/v1/instances"))
        for text in ("Bearer other", "", "Basic !!", KEY):
            answer = Caller(web.url, Authorization=text)("GET /api/v1/instances")
            assert refused(answer) == (401, "global/invalid-api-key")
        cloud.inactive = True
        answer = Caller(web.url, Authorization=f"Bearer {KEY}")("GET /api/v1/instances")
        assert refused(answer) == (403, "global/account-inactive")


# ----------------------------------------------------------------------------------- the description


def test_a_life_is_as_described(cloud: Lambda):
    described(DESCRIPTION)  # skips without it
    with serving(DESCRIPTION, cloud) as web:
        life(Caller(web.url, Authorization=f"Bearer {KEY}"), cloud)


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (f"POST {LAUNCH}", {**FULL, "file_system_names": []}),
        (f"POST {TERMINATE}", {"instance_ids": ["ID"]}),
        ("POST /api/v1/instances/ID", {"name": "other"}),
        ("POST /api/v1/ssh-keys", {"name": "other", "public_key": PUBLIC}),
        ("POST /api/v1/filesystems", {"name": "data", "region": "us-east-1"}),
    ],
)
def test_what_the_description_refuses_is_refused(line: str, body: dict[str, Any]):
    judge, refusals = described(DESCRIPTION), 0
    bodies = [
        *spoiled(body),
        *({**body, "tags": [tag]} for tag in spoiled({"key": "key", "value": "v"}) if "tags" in body),
    ]
    for wrong in bodies:
        with serving(DESCRIPTION, Lambda(paced=False)) as web:
            call = Caller(web.url, Authorization=f"Bearer {KEY}")
            made = launched(call)
            wrong = {k: [made] if thing == ["ID"] else thing for k, thing in wrong.items()}  # noqa: PLW2901
            status, _ = call(line.replace("ID", made), wrong)
            method, path = line.replace("ID", made).split()
            asked = Asked(method=method, path=path, params={}, body=wrong)
            if judge.request(asked):
                refusals += 1
                assert 400 <= status < 500, wrong
    assert refusals > len(body)
