"""The small Hyperstack: what its API promises, over plain HTTP, and compared with its description."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.providers.cloud import described as judges
from tests.providers.cloud.described import described, spoiled
from tests.providers.cloud.stand_in import Caller, Fault
from tests.providers.cloud.web import Asked, Web
from tests.providers.hyperstack.server import ADDRESS, BOOT, BUILD, DISK, END, IMAGES, KEY, Hyperstack

DESCRIPTION = "hyperstack.openapi.json"
WRONG = r"/pricebook: 200: \$\[\d+\]\.(original_)?value: |: 400: \$: Additional properties .*'errors'"
"""Where the description differs from what is known of the cloud: prices are texts, and its own example of a
refused body has `errors`.
"""
MACHINES, VOLUMES = "/v1/core/virtual-machines", "/v1/core/volumes"
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICN fleet"
SSH = {
    "direction": "ingress",
    "ethertype": "IPv4",
    "protocol": "tcp",
    "remote_ip_prefix": "0.0.0.0/0",
    "port_range_min": 22,
    "port_range_max": 22,
}
MACHINE = {
    "name": "gpu-0",
    "environment_name": "fleet",
    "flavor_name": "n3-H100x8",
    "image_name": IMAGES[0],
    "key_name": "fleet",
    "count": 1,
    "user_data": "#cloud-config\n",
    "labels": ["owner=lineage-1"],
    "assign_floating_ip": True,
    "enable_port_randomization": False,
    "security_rules": [SSH],
}
VOLUME = {
    "name": "data",
    "environment_name": "fleet",
    "size": 10,
    "volume_type": "Cloud-SSD",
    "description": "lineage-1",
}


def serving(cloud: Hyperstack) -> AbstractContextManager[Web]:
    return judges.serving(DESCRIPTION, cloud, WRONG)


@pytest.fixture
def cloud() -> Hyperstack:
    return Hyperstack(paced=False)


@pytest.fixture
def call(cloud: Hyperstack) -> Iterator[Caller]:
    with serving(cloud) as web:
        call = Caller(web.url, api_key=KEY)
        prepare(call)
        yield call


def prepare(call: Caller) -> tuple[int, int]:
    """Make an environment and a keypair."""
    environment = done(call("POST /v1/core/environments", {"name": "fleet", "region": "NORWAY-1"}))
    key = {"name": "fleet", "environment_name": "fleet", "public_key": PUBLIC}
    return environment["environment"]["id"], done(call("POST /v1/core/keypairs", key))["keypair"]["id"]


def done(answer: tuple[int, Any]) -> Any:
    assert answer[0] == 200, answer
    assert answer[1]["status"] is True
    return answer[1]


def refused(answer: tuple[int, Any]) -> tuple[int, str | None]:
    assert not answer[1].get("status")
    assert answer[1]["message"]
    return answer[0], answer[1].get("error_reason")


def made(call: Caller, **fields: Any) -> int:
    number: int = done(call(f"POST {MACHINES}", {**MACHINE, **fields}))["instances"][0]["id"]
    return number


def test_offers_have_prices_and_stock(call: Caller, cloud: Hyperstack):
    cloud.capacity["n3-L40x1", "NORWAY-1"] = 0
    groups = done(call("GET /v1/core/flavors", region="NORWAY-1"))["data"]
    flavors = {flavor["name"]: flavor for group in groups for flavor in group["flavors"]}
    assert not flavors["n3-L40x1"]["stock_available"]
    h100 = flavors["n3-H100x8"]
    assert (h100["gpu_count"], h100["stock_available"], h100["region_name"]) == (8, True, "NORWAY-1")
    status, prices = call("GET /v1/pricebook")
    assert status == 200
    assert {one["name"]: float(one["value"]) for one in prices}[h100["gpu"]] == 1.9
    assert {one["region_name"] for one in done(call("GET /v1/core/images"))["images"]} == {
        "NORWAY-1",
        "CANADA-1",
    }
    assert refused(call("GET /v1/core/flavors", region="MARS-1")) == (404, "not_found")


def test_a_machine_lives(cloud: Hyperstack):
    ended: list[int] = []
    cloud.ended = ended.append
    with serving(cloud) as web:
        call = Caller(web.url, api_key=KEY)
        environment, key = prepare(call)
        number = made(call)
        one = f"{MACHINES}/{number}"
        assert cloud.user_data[number] == MACHINE["user_data"]
        (machine,) = done(call(f"GET {MACHINES}"))["instances"]
        assert (machine["status"], machine["fixed_ip"], machine["floating_ip"]) == ("CREATING", None, None)
        assert refused(call(f"DELETE {one}")) == (400, "bad_request")
        cloud.clock.advance(BUILD + BOOT)
        machine = done(call(f"GET {one}"))["instance"]
        assert (machine["status"], machine["floating_ip"]) == ("ACTIVE", "")
        assert machine["security_rules"][0]["port_range_min"] == 22
        cloud.clock.advance(ADDRESS)
        machine = done(call(f"GET {one}"))["instance"]
        assert machine["floating_ip"].startswith("203.0.113.")
        assert machine["labels"] == MACHINE["labels"]
        done(call(f"PUT {one}/label", {"labels": ["other"]}))
        assert done(call(f"GET {one}"))["instance"]["labels"] == ["other"]
        done(call(f"DELETE {one}"))
        assert refused(call(f"DELETE {one}")) == (409, None)
        assert refused(call(f"POST {MACHINES}", MACHINE)) == (409, "already_exist")
        cloud.clock.advance(END)
        assert ended == [number]
        assert refused(call(f"GET {one}")) == (404, "not_found")
        assert refused(call(f"DELETE /v1/core/environments/{environment}")) == (400, "bad_request")
        done(call(f"DELETE /v1/core/keypair/{key}"))
        done(call(f"DELETE /v1/core/environments/{environment}"))
        assert done(call("GET /v1/core/keypairs"))["count"] == 0
        assert done(call("GET /v1/core/environments"))["environments"] == []


def test_a_volume_lives(call: Caller, cloud: Hyperstack):
    volume = done(call(f"POST {VOLUMES}", VOLUME))["volume"]
    assert (volume["status"], volume["description"]) == ("creating", "lineage-1")
    number, one = made(call), f"{VOLUMES}/{volume['id']}"
    attach, detach = (f"POST {MACHINES}/{number}/{what}-volumes" for what in ("attach", "detach"))
    ids = {"volume_ids": [volume["id"]]}
    assert refused(call(attach, ids)) == (400, "bad_request")  # the machine is not active yet
    cloud.clock.advance(BUILD + BOOT)
    (attachment,) = done(call(attach, ids))["volume_attachments"]
    assert (attachment["status"], attachment["instance_id"]) == ("ATTACHING", number)
    assert attachment["device"].startswith("/dev/disk/by-id/virtio-")
    assert refused(call(attach, ids)) == (400, "bad_request")
    assert refused(call(detach, ids)) == (400, "bad_request")  # it is not attached yet
    cloud.clock.advance(DISK)
    assert done(call(f"GET {one}"))["volume"]["attachments"][0]["status"] == "ATTACHED"
    (shown,) = done(call(f"GET {MACHINES}/{number}"))["instance"]["volume_attachments"]
    assert shown["volume"]["id"] == volume["id"]
    assert refused(call(f"DELETE {one}")) == (400, "bad_request")
    done(call(detach, ids))
    cloud.clock.advance(DISK)
    done(call(attach, ids))
    history = [held["status"] for held in done(call(f"GET {one}"))["volume"]["attachments"]]
    assert history == ["DETACHED", "ATTACHING"]
    cloud.clock.advance(DISK)
    done(call(f"DELETE {MACHINES}/{number}"))
    cloud.clock.advance(END)
    assert done(call(f"GET {VOLUMES}"))["volumes"][0]["status"] == "available"
    done(call(f"DELETE {one}"))
    cloud.clock.advance(DISK)
    assert refused(call(f"GET {one}")) == (400, "not_found")
    assert refused(call(f"DELETE {one}")) == (404, "not_found")


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"environment_name": "none"}, (404, "not_found")),
        ({"flavor_name": "none"}, (404, "not_found")),
        ({"image_name": "none"}, (404, "not_found")),
        ({"key_name": "none"}, (404, "not_found")),
        ({"name": "x" * 51}, (400, "bad_request")),
        ({"count": 2}, (400, "bad_request")),
        ({"count": None}, (400, None)),
        ({"labels": "text"}, (400, None)),
        ({"quantity": 1}, (400, None)),
        ({"security_rules": [{**SSH, "protocol": "none"}]}, (400, "bad_request")),
        ({"security_rules": [{"direction": "ingress"}]}, (400, None)),
    ],
)
def test_a_machine_is_refused(call: Caller, cloud: Hyperstack, fields: Any, answer: tuple[int, str | None]):
    assert refused(call(f"POST {MACHINES}", {**MACHINE, **fields})) == answer
    assert not cloud.machines


def test_no_capacity_a_quota_and_the_balance_have_one_code(call: Caller, cloud: Hyperstack):
    environment = next(iter(cloud.environments))
    short = (400, "bad_request")
    cloud.refusing.add(("n3-H100x8", "NORWAY-1"))
    assert refused(call(f"POST {MACHINES}", MACHINE)) == short
    cloud.refusing.clear()
    cloud.quota = 0
    assert refused(call(f"POST {MACHINES}", MACHINE)) == short
    assert done(call(f"GET /v1/core/environments/{environment}/vm-quota"))["available_vms"] == 0
    cloud.quota, cloud.broke = 1, True
    status, body = call(f"POST {MACHINES}", MACHINE)
    assert status == 400
    assert "balance" in body["message"]
    assert not cloud.machines


def test_pages_shift_under_the_reader(call: Caller, cloud: Hyperstack):
    cloud.capacity["n3-H100x8", "NORWAY-1"] = 20
    numbers = [made(call, name=f"gpu-{n}") for n in range(12)]
    cloud.clock.advance(BUILD + BOOT)
    answer = done(call(f"GET {MACHINES}"))
    assert (answer["page"], answer["page_size"], answer["count"], len(answer["instances"])) == (
        None,
        None,
        12,
        10,
    )
    cloud.page = 5
    first = done(call(f"GET {MACHINES}", page="1", pageSize="100"))
    assert (first["page_size"], [one["id"] for one in first["instances"]]) == (5, numbers[:5])
    done(call(f"DELETE {MACHINES}/{numbers[0]}"))
    cloud.clock.advance(END)
    second = done(call(f"GET {MACHINES}", page="2", pageSize="5"))
    assert [one["id"] for one in second["instances"]] == numbers[6:11]  # one is on no page that was read
    assert second["count"] == 11
    assert done(call(f"GET {MACHINES}", search="GPU-11"))["count"] == 1
    assert done(call(f"GET {MACHINES}", environment="fle"))["count"] == 11
    assert done(call(f"GET {MACHINES}", environment="fle", exact_environment_match="true"))["count"] == 0
    assert refused(call(f"GET {MACHINES}", page="0")) == (400, "bad_request")


def test_names_are_unique(call: Caller):
    made(call)
    done(call(f"POST {VOLUMES}", VOLUME))
    key = {"name": "fleet", "environment_name": "fleet", "public_key": PUBLIC}
    for line, body in (
        (f"POST {MACHINES}", MACHINE),
        (f"POST {VOLUMES}", VOLUME),
        ("POST /v1/core/keypairs", key),
        ("POST /v1/core/environments", {"name": "fleet", "region": "CANADA-1"}),
    ):
        assert refused(call(line, body)) == (409, "already_exist")


def test_a_lost_answer_leaves_a_machine_behind(call: Caller, cloud: Hyperstack):
    cloud.late = 30
    cloud.faults = [Fault(line=f"POST {MACHINES}")]
    with pytest.raises(http.client.RemoteDisconnected):
        call(f"POST {MACHINES}", MACHINE)
    assert done(call(f"GET {MACHINES}"))["count"] == 0
    assert refused(call(f"POST {MACHINES}", MACHINE)) == (409, "already_exist")
    cloud.clock.advance(30)
    assert done(call(f"GET {MACHINES}"))["count"] == 1


def test_a_machine_may_fail(call: Caller, cloud: Hyperstack):
    cloud.becomes = "ERROR"
    number = made(call)
    cloud.clock.advance(BUILD + BOOT + ADDRESS)
    machine = done(call(f"GET {MACHINES}/{number}"))["instance"]
    assert (machine["status"], machine["floating_ip"]) == ("ERROR", "")
    done(call(f"DELETE {MACHINES}/{number}"))


def test_a_minute_has_500_requests():
    cloud = Hyperstack()
    asked = Asked(method="GET", path="/v1/pricebook", params={}, headers={"Api_Key": KEY})
    answers = [cloud(asked)[0] for _ in range(501)]
    assert answers == [200] * 500 + [429]
    cloud.clock.advance(60)
    assert cloud(asked)[0] == 200


def test_a_key_is_asked_for(cloud: Hyperstack):
    with serving(cloud) as web:
        for headers in ({}, {"api_key": "other"}, {"Authorization": f"Bearer {KEY}"}):
            assert refused(Caller(web.url, **headers)(f"GET {MACHINES}")) == (401, "unauthorized")


# ----------------------------------------------------------------------------------- the description


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (f"POST {MACHINES}", MACHINE),
        (f"POST {VOLUMES}", VOLUME),
        ("POST /v1/core/environments", {"name": "other", "region": "CANADA-1"}),
        ("POST /v1/core/keypairs", {"name": "other", "environment_name": "fleet", "public_key": PUBLIC}),
        (f"PUT {MACHINES}/1003/label", {"labels": ["x"]}),
        (f"POST {MACHINES}/1003/attach-volumes", {"volume_ids": [1005]}),
    ],
)
def test_what_the_description_refuses_is_refused(line: str, body: dict[str, Any]):
    judge, refusals = described(DESCRIPTION), 0
    rules = ({**body, "security_rules": [rule]} for rule in spoiled(SSH) if "security_rules" in body)
    for wrong in [*spoiled(body), *rules]:
        cloud = Hyperstack(paced=False)
        with serving(cloud) as web:
            call = Caller(web.url, api_key=KEY)
            prepare(call)
            assert made(call, name="first") == 1003
            done(call(f"POST {VOLUMES}", {**VOLUME, "name": "first"}))
            cloud.clock.advance(BUILD + BOOT)
            status, _ = call(line, wrong)
            method, path = line.split()
            if judge.request(Asked(method=method, path=path, params={}, body=wrong)):
                refusals += 1
                assert 400 <= status < 500, wrong
    assert refusals > len(body)
