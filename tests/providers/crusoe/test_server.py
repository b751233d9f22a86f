"""The stand-in for Crusoe Cloud over plain HTTP, and against the description that Crusoe publishes."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.providers.cloud.described import described, spoiled
from tests.providers.cloud.stand_in import Fault, Pace
from tests.providers.cloud.web import Asked, Web
from tests.providers.crusoe.server import CENTRAL, EAST, FABRIC, KEY_ID, PROJECT, SUBNET, Crusoe, signature

DESCRIPTION = "crusoe-v1.openapi.json"
WHEN = "2026-11-30T00:00:00Z"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICpu a@b"
OF_PROJECT = f"/v1/projects/{PROJECT}"
VMS, DISKS = f"{OF_PROJECT}/compute/vms/instances", f"{OF_PROJECT}/storage/disks"
VM: dict[str, Any] = {
    "name": "gpu-0",
    "type": "l40s-48gb.1x",
    "location": EAST,
    "image": "ubuntu22.04:latest",
    "ssh_public_key": KEY,
    "startup_script": "#!/bin/sh\n",
    "install_crusoe_watch_agent": False,
}
DISK = {"name": "data", "location": EAST, "size": "1TiB", "type": "persistent-ssd", "block_size": 512}
INTERFACE = {
    **dict.fromkeys(("id", "name", "network", "interface_type", "mac_address", "external_dns_name"), ""),
    "subnet": SUBNET,
    "ips": [{"private_ipv4": {"address": ""}, "public_ipv4": {"address": "", "id": "", "type": "static"}}],
}
"""As Crusoe's own clients send one: the description asks for fields that only the cloud knows."""


class Client:
    """Asks over HTTP, as somebody who has read the description."""

    def __init__(self, cloud: Crusoe, port: int) -> None:
        self.cloud, self.port = cloud, port

    def ask(
        self, method: str, path: str, body: Any = None, sign: Any = None, **params: str
    ) -> tuple[int, Any]:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        signed = signature(method, path, params, WHEN) if sign is None else sign
        headers = {"X-Crusoe-Timestamp": WHEN, "Authorization": f"Bearer 1.0:{KEY_ID}:{signed}"}
        data = None if body is None else json.dumps(body)
        try:
            whole = f"{path}?{urlencode(params)}" if params else path
            link.request(method, whole, data, {**headers, "Content-Type": "application/json"})
            answer = link.getresponse()
            text = answer.read()
        finally:
            link.close()
        return answer.status, json.loads(text) if text else None

    def good(self, method: str, path: str, body: Any = None, **params: str) -> Any:
        status, answer = self.ask(method, path, body, **params)
        assert status == 200, answer
        return answer

    def done(self, method: str, path: str, body: Any = None, seconds: float = 60) -> Any:
        """A change to its end: what its operation says."""
        operation = self.good(method, path, body)["operation"]
        assert operation["state"] == "IN_PROGRESS"
        self.cloud.clock.advance(seconds)
        kind = DISKS if operation["metadata"]["type"] == "disk" else VMS
        return self.good("GET", f"{kind}/operations/{operation['operation_id']}")

    def bad(self, method: str, path: str, body: Any = None, **params: str) -> str:
        status, answer = self.ask(method, path, body, **params)
        assert status == 400, answer
        return str(answer["message"])


@pytest.fixture
def client() -> Iterator[Client]:
    cloud = Crusoe()
    with Web(cloud) as web:
        yield Client(cloud, web.port)


@pytest.fixture
def judged() -> Iterator[Client]:
    """A client whose every request and answer is held against the description."""
    cloud, complaints = Crusoe(), list[str]()
    with Web(described(DESCRIPTION).over(cloud, complaints)) as web:
        yield Client(cloud, web.port)
    # Crusoe's own clients count on a 404 where the description has none.
    assert [one for one in complaints if not one.endswith("no answer 404 is described")] == []


def life(client: Client) -> None:
    """A VM with a disk and its operations, from the types to the last delete."""
    locations = client.good("GET", "/v1/locations")["items"]
    types = client.good("GET", f"{OF_PROJECT}/compute/vms/types")["items"]
    capacities = client.good("GET", "/v1/capacities", location=EAST, product_name=VM["type"])["items"]
    images = client.good("GET", "/v1/compute/images")["items"]
    assert (locations, capacities[0]["quantity"]) == ([EAST, CENTRAL], 10)
    assert [(one["num_gpu"], one["gpu_type"]) for one in types][1] == (1, "L40S 48GB")
    assert VM["image"] in [f"{one['name']}:{tag}" for one in images for tag in one["tags"]]
    assert client.good("GET", f"{OF_PROJECT}/compute/custom-images")["items"]
    assert client.good("GET", f"{OF_PROJECT}/networking/vpc-subnets")["items"][0]["id"] == SUBNET

    disk = client.done("POST", DISKS, DISK)["result"]
    assert (disk["size"], disk["attached_to"]) == ("1024GiB", [])
    vm = client.done("POST", VMS, {**VM, "network_interfaces": [INTERFACE]})["result"]
    at = f"{VMS}/{vm['id']}"
    assert vm["state"] == "STATE_RUNNING"
    assert vm["network_interfaces"][0]["ips"][0]["public_ipv4"]["type"] == "static"
    assert client.cloud.bodies[vm["id"]]["startup_script"] == VM["startup_script"]

    one = {"disk_id": disk["id"], "mode": "read-write", "attachment_type": "data"}
    attached = client.done("POST", f"{at}/attach-disks", {"attach_disks": [one]})["result"]
    assert [one["attachment_type"] for one in attached["disks"]] == ["os", "data"]
    holders = client.good("GET", f"{DISKS}/{disk['id']}")["attached_to"]
    assert [one["vm_id"] for one in holders] == [vm["id"]]
    assert client.done("DELETE", f"{DISKS}/{disk['id']}")["state"] == "FAILED"
    assert "powered off" in client.bad("PATCH", f"{DISKS}/{disk['id']}", {"size": "2TiB"})
    assert [one["id"] for one in client.good("GET", DISKS, exclude_os="true")["items"]] == [disk["id"]]
    assert len(client.good("GET", DISKS)["items"]) == 2

    client.done("POST", f"{at}/detach-disks", {"detach_disks": [disk["id"]]})
    assert client.done("PATCH", f"{DISKS}/{disk['id']}", {"size": "2TiB"})["result"]["size"] == "2048GiB"
    client.done("POST", f"{at}/attach-disks", {"attach_disks": [one]})
    assert client.done("DELETE", at)["state"] == "SUCCEEDED"
    assert client.ask("GET", at)[0] == 404
    remaining = client.good("GET", DISKS, disk_names="data")["items"]
    assert [one["attached_to"] for one in remaining] == [[]]
    assert client.done("DELETE", f"{DISKS}/{disk['id']}")["state"] == "SUCCEEDED"
    assert client.good("GET", DISKS)["items"] == []


def cluster(client: Client) -> None:
    """VMs in a partition of an InfiniBand network, which has to outlive them."""
    networks = client.good("GET", f"{OF_PROJECT}/networking/ib-networks")["items"]
    assert [(one["id"], one["capacities"][0]["quantity"]) for one in networks] == [(FABRIC, 4)]
    partitions = f"{OF_PROJECT}/networking/ib-partitions"
    made = client.good("POST", partitions, {"name": "train", "ib_network_id": FABRIC})["id"]
    assert [one["name"] for one in client.good("GET", partitions)["items"]] == ["train"]
    big = {**VM, "type": "h100-80gb-sxm-ib.8x", "location": CENTRAL}
    assert "partition" in client.bad("POST", VMS, big)
    adapters = [{"transport_partition_id": made}]
    vms = [client.done("POST", VMS, {**big, "host_channel_adapters": adapters})["result"] for _ in range(2)]
    assert len({vm["pod_id"] for vm in vms}) == 1
    assert "has VMs" in client.bad("DELETE", f"{partitions}/{made}")
    for vm in vms:
        client.done("DELETE", f"{VMS}/{vm['id']}")
    assert client.good("DELETE", f"{partitions}/{made}") is None


def test_a_life_of_a_node_and_a_volume(client):
    life(client)


def test_a_cluster(client):
    cluster(client)


def test_answers_and_accepted_requests_fit_the_description(judged):
    life(judged)
    cluster(judged)
    shared = judged.done("POST", DISKS, {**DISK, "type": "shared-volume"})["result"]
    assert len(shared["vips"]) == 2
    for number in range(5):
        judged.done("POST", VMS, {**VM, "name": f"n-{number}"})
    page = judged.good("GET", VMS, limit="3", names="n-0,n-1,n-2,n-3")
    judged.good("GET", VMS, limit="3", next_token=page["next_page_token"])
    judged.good("GET", f"{VMS}/operations", state="SUCCEEDED")
    judged.good("GET", f"{DISKS}/operations")
    judged.good("GET", f"{OF_PROJECT}/quotas")
    judged.bad("POST", VMS, {**VM, "image": "plan9:latest"})
    assert judged.ask("GET", VMS, sign="no")[0] == 401


def test_what_the_description_refuses_is_refused():
    cloud, description = Crusoe(), described(DESCRIPTION)
    at, disk = f"{VMS}/{cloud_vm(cloud)}", f"{DISKS}/{next(iter(cloud.disks))}"
    attach = {"disk_id": next(iter(cloud.disks)), "mode": "read-only", "attachment_type": "data"}
    bodies: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", VMS, {**VM, "disks": [], "network_interfaces": [], "host_channel_adapters": []}),
        ("POST", DISKS, DISK),
        ("PATCH", disk, {"size": "300GiB"}),
        ("POST", f"{OF_PROJECT}/networking/ib-partitions", {"name": "a", "ib_network_id": FABRIC}),
        ("POST", f"{at}/attach-disks", {"attach_disks": []}),
        ("POST", f"{at}/detach-disks", {"detach_disks": []}),
    ]
    bodies += [("POST", f"{at}/attach-disks", {"attach_disks": [one]}) for one in spoiled(attach)]
    refused = 0
    for method, path, body in bodies:
        for wrong in spoiled(body):
            asked = Asked(method=method, path=path, params={}, body=wrong, headers=signed(method, path))
            if description.request(asked):
                refused += 1
                status, answer = cloud(asked)
                assert status == 400, (path, wrong)
                assert description.answer(asked, (status, answer)) == []
    assert refused > 100


def signed(method: str, path: str) -> dict[str, str]:
    return {
        "X-Crusoe-Timestamp": WHEN,
        "Authorization": f"Bearer 1.0:{KEY_ID}:{signature(method, path, {}, WHEN)}",
    }


def cloud_vm(cloud: Crusoe) -> str:
    """The id of a VM that runs."""
    cloud(Asked(method="POST", path=VMS, params={}, body=VM, headers=signed("POST", VMS)))
    cloud.clock.advance(60)
    return next(iter(cloud.vms))


def test_a_new_vm_is_not_found_at_once_and_its_answer_may_be_lost(client):
    client.cloud.faults = [Fault(line=f"POST {VMS}"), Fault(line=f"POST {VMS}", done=False)]
    for _ in range(2):
        with pytest.raises(http.client.RemoteDisconnected):
            client.ask("POST", VMS, VM)
    assert client.good("GET", VMS, names="gpu-0")["items"] == []
    client.cloud.clock.advance(client.cloud.late)
    assert [vm["state"] for vm in client.good("GET", VMS, names="gpu-0")["items"]] == ["STATE_CREATING"]
    made = client.good("POST", VMS, VM)["operation"]["metadata"]["id"]
    assert client.ask("GET", f"{VMS}/{made}")[0] == 404
    client.cloud.clock.advance(60)
    assert len(client.good("GET", VMS, names="gpu-0")["items"]) == 2

    client.cloud.unique = True
    assert "exists" in client.bad("POST", VMS, VM)


def test_pages_are_short_and_stay_where_they_are(client):
    for number in range(5):
        client.done("POST", VMS, {**VM, "name": f"n-{number}"})
    first = client.good("GET", VMS, limit="2")
    client.done("DELETE", f"{VMS}/{first['items'][0]['id']}")
    second = client.good("GET", VMS, limit="2", next_token=first["next_page_token"])
    last = client.good("GET", VMS, limit="2", next_token=second["next_page_token"])
    names = [vm["name"] for page in (first, second, last) for vm in page["items"]]
    assert names == [f"n-{number}" for number in range(5)]
    assert last["next_page_token"] == ""
    assert "token" in client.bad("GET", VMS, next_token="x")


def test_no_capacity_is_a_failed_operation_and_a_quota_a_refusal(client):
    client.cloud.stock["l40s-48gb.1x", EAST] = 1
    client.done("POST", VMS, VM)
    failed = client.done("POST", VMS, VM)
    assert (failed["state"], failed["result"]["code"]) == ("FAILED", "out_of_stock")
    assert len(client.good("GET", VMS)["items"]) == 1
    client.cloud.quota["l40s-48gb"] = 1
    assert "quota" in client.bad("POST", VMS, VM)
    quota = next(q for q in client.good("GET", f"{OF_PROJECT}/quotas")["quotas"] if q["used"] == 1)
    assert (quota["programmatic_name"], quota["available"]) == ("l40s-48gb", 0)
    client.cloud.quota["persistent-ssd"] = 200
    assert "quota" in client.bad("POST", DISKS, DISK)


def test_an_operation_is_listed_until_somebody_asked_for_it_and_forgotten_later(client):
    made = client.good("POST", VMS, VM)["operation"]
    at = f"{VMS}/operations/{made['operation_id']}"
    thing = made["metadata"]["id"]
    client.cloud.clock.advance(60)
    assert len(client.good("GET", f"{VMS}/operations", resource_id=thing)["items"]) == 1
    assert client.good("GET", at)["state"] == "SUCCEEDED"
    assert client.good("GET", f"{VMS}/operations", resource_id=thing)["items"] == []
    client.cloud.clock.advance(3600)
    assert client.ask("GET", at)[0] == 403


def test_a_disk_is_written_by_one_vm_and_a_shared_one_by_many(client):
    disk = client.done("POST", DISKS, DISK)["result"]["id"]
    shared = client.done("POST", DISKS, {**DISK, "type": "shared-volume"})["result"]["id"]
    vms = [client.done("POST", VMS, VM)["result"]["id"] for _ in range(2)]

    def attach(vm: str, disk: str) -> Any:
        one = {"disk_id": disk, "mode": "read-write", "attachment_type": "data"}
        return client.ask("POST", f"{VMS}/{vm}/attach-disks", {"attach_disks": [one]})

    operations = [attach(vm, disk)[1]["operation"]["operation_id"] for vm in vms]
    client.cloud.clock.advance(60)
    states = [client.good("GET", f"{VMS}/operations/{one}")["state"] for one in operations]
    assert states == ["SUCCEEDED", "FAILED"]
    assert attach(vms[1], disk)[0] == 400
    assert [attach(vm, shared)[0] for vm in vms] == [200, 200]
    client.cloud.clock.advance(60)
    assert len(client.good("GET", f"{DISKS}/{shared}")["attached_to"]) == 2
    client.done("DELETE", f"{VMS}/{vms[0]}")
    one = {"disk_id": disk, "mode": "read-only", "attachment_type": "data"}
    assert "twice" in client.bad("POST", VMS, {**VM, "disks": [one, one]})
    readers = [client.done("POST", VMS, {**VM, "disks": [one]})["result"] for _ in range(2)]
    assert [[disk["mode"] for disk in vm["disks"]] for vm in readers] == [["read-write", "read-only"]] * 2
    assert len(client.good("GET", f"{DISKS}/{disk}")["attached_to"]) == 2
    vms[0] = readers[0]["id"]
    assert "not attached" in client.bad("POST", f"{VMS}/{vms[0]}/detach-disks", {"detach_disks": ["x"]})


def test_logins_limits_and_errors(client):
    status, answer = client.ask("GET", VMS, sign="AAAA")
    assert (status, answer["code"]) == (401, "bad_credential")
    other = "/v1/projects/44701f9e-845c-4005-9240-adee6401b8d3/quotas"
    assert client.ask("GET", other)[0] == 403
    client.cloud.words = False
    assert client.ask("GET", f"{VMS}/no")[1]["code"] == "404"
    client.cloud.pace = Pace(client.cloud.clock, 1, 1)
    assert [client.ask("GET", VMS)[0] for _ in range(2)] == [200, 429]


def test_the_signature_is_that_of_crusoes_own_client():
    """Computed by openssl: the query is sorted, and its values are escaped."""
    sign = signature("GET", "/v1/x", {"names": "a,b", "limit": "2"}, WHEN)
    assert sign == "wvJMNDi4Sadgg_qpeWDiS6eteCC0-lqhHt2Mg60Gvuo"
