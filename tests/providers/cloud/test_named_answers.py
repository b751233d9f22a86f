"""Answers of GCE and Azure, as libcloud's own tests recorded them, and the meaning of refusals."""

import json
import re
import tracemalloc

import pytest

from declarative.model.state import Address
from declarative.model.status import NodeState
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import marks
from providers.cloud.azure import answers as azure
from providers.cloud.bad_answers import Scrub
from providers.cloud.faults import Answer, classify
from providers.cloud.gce import answers as gce
from providers.cloud.gce import offers as gce_offers
from providers.cloud.marks import name_of, packed
from providers.cloud.rest import Tokens
from tests.providers.azure import server as fake_azure
from tests.providers.gce.server import recorded

GROUP = "_subscriptions_99999999_resourceGroups_000000_providers_Microsoft"
PLACE = "project_name/us-central1-a"


# ----------------------------------------------------------------------------------- GCE, recorded


def test_recorded_instances_of_gce():
    found = {
        machine.name: machine
        for item in gce.scoped("list", recorded("aggregated_instances"), "instances")
        for machine in [gce.instance("list", item)]
    }
    assert len(found) >= 5
    node = found["node-name"]
    assert (node.id, node.zone, node.state) == (f"{PLACE}/node-name", "us-central1-a", NodeState.READY)
    assert re.fullmatch(r"10\.[\d.]+", node.address)
    assert re.fullmatch(r"[\d.]+", node.public_address)
    assert node.type == "n1-standard-1"
    assert marks.OWNER not in node.tags
    assert list(node.devices or ()) == [f"{PLACE}/node-name"]
    stopped = gce.instance("look", recorded("zones_us_central1_a_instances_stopped_node"))
    assert (stopped.state, stopped.word) == (NodeState.NOT_READY, "TERMINATED")


def test_recorded_disks_of_gce():
    found = [gce.disk("list", item) for item in gce.scoped("list", recorded("aggregated_disks"), "disks")]
    assert len(found) >= 5
    assert all(not disk.busy and not disk.broken and (disk.size or 0) > 0 and disk.id for disk in found)
    one = gce.disk("look", recorded("zones_us-central1-a_disks_lcdisk"))
    assert (one.id, one.size, one.type, one.on) == (f"{PLACE}/lcdisk", 10, "pd-ssd", ())


@pytest.mark.parametrize(
    "name",
    [
        "operations_operation_zones_us-central1-a_instances_post",
        "operations_operation_zones_us-central1-a_disks_post",
        "operations_operation_zones_us-central1-a_disks_lcdisk_resize_post",
        "operations_operation_zones_us-central1-a_instances_node-name_attachDisk_post",
        "operations_operation_zones_us-central1-a_instances_node-name_detachDisk_post",
        "operations_operation_zones_us-central1-a_instances_node-name_delete",
    ],
)
def test_recorded_operations_of_gce(name):
    assert gce.done("change", recorded(name), None)
    begun = recorded(name.removeprefix("operations_operation_"))
    assert not gce.done("change", begun, None)


def test_a_recorded_operation_that_failed():
    with pytest.raises(PermanentError, match="RESOURCE_ALREADY_EXISTS") as caught:
        gce.done("create", recorded("operations_operation_zones_europe-west1-a_instances_post"), "z")
    assert (caught.value.kind, caught.value.about) == (PermanentKind.CONFLICT, "z")
    with pytest.raises(TransientError, match="is no operation"):
        gce.done("create", recorded("zones_us-central1-a_disks_lcdisk"), None)


def test_recorded_refusals_of_gce():
    missing = recorded("zones_us-central1-b_instances_libcloud-lb-demo-www-002")
    said = gce.error_info(Answer(status=404, text=json.dumps(missing)))
    assert said is not None
    assert said.kind is PermanentKind.NOT_FOUND
    family = recorded("global_images_family_notfound")
    said = gce.error_info(Answer(status=404, text=json.dumps(family)))
    assert said is not None
    assert said.kind is PermanentKind.NOT_FOUND


def test_recorded_machine_types_of_gce():
    found = list(gce.scoped("list", recorded("aggregated_machineTypes"), "machineTypes"))
    small = next(t for t in found if t["name"] == "n1-standard-1" and t["zone"] == "us-central1-a")
    shape = gce_offers._shape(small)
    assert shape is not None
    assert (shape.cpu, shape.memory_mib, shape.gpus) == (1, 3840, 0)
    price = gce_offers._price("n1-standard-1", "us-central1", shape)
    assert price == pytest.approx(0.0475, rel=0.1)
    assert gce_offers._price("e2-micro", "us-central1", shape) is None
    assert gce_offers._price("c2-standard-4", "europe-west6", shape) is None  # 0.0 in the table
    assert any(gce_offers._obsolete(t) for t in found)


@pytest.mark.parametrize(
    ("kind", "gpus"),
    [
        ("nvidia-h100-80gb", (8, "H100", 81920)),
        ("nvidia-of-tomorrow", (8, None, None)),
        ("ct5lp", None),
    ],
)
def test_gpus_of_machine_types(kind, gpus):
    several = [{"guestAcceleratorType": kind, "guestAcceleratorCount": 8}]
    shape = gce_offers._shape({"guestCpus": 208, "memoryMb": 1916928, "accelerators": several})
    assert (shape and (shape.gpus, shape.gpu_name, shape.gpu_memory_mib)) == gpus
    assert shape is None or gce_offers._price("a3-highgpu-8g", "us-central1", shape) is None


# --------------------------------------------------------------------------------- Azure, recorded


def test_recorded_machines_of_azure():
    page = fake_azure.recorded("_subscriptions_99999999_providers_Microsoft_Compute_virtualMachines")
    (item,) = page["value"]
    machine = azure.machine("list", item)
    assert (machine.id, machine.state, machine.type) == ("000000/test-node-1", NodeState.READY, "Standard_A1")
    name = f"{GROUP}_Compute_virtualMachines_test_node_1"
    held = azure.machine("look", fake_azure.recorded(name))
    assert held.tags == {"tag_key1": "tag_val1"}
    assert list(held.devices or ()) == ["000000/dd0-9999"]
    view = fake_azure.recorded(f"{name}_InstanceView")
    with_view = {**item, "properties": {**item["properties"], "instanceView": view}}
    assert azure.power(azure.states("look", with_view)) == "running"
    off = name.replace("node_1", "node_2_InstanceView")
    view = fake_azure.recorded(off)
    stopped = {**item, "properties": {**item["properties"], "instanceView": view}}
    assert azure.machine("look", stopped).state in (NodeState.READY, NodeState.NOT_READY)


def test_recorded_disks_and_interfaces_of_azure():
    found = [
        azure.disk("list", item)
        for page in ("disks", "disks_1")
        for item in fake_azure.recorded(f"_subscriptions_99999999_providers_Microsoft_Compute_{page}")[
            "value"
        ]
    ]
    assert len(found) >= 4
    first = next(d for d in found if d.name == "test-disk-1")
    assert (first.id, first.size, first.zone) == ("000000/test-disk-1", 31, None)
    assert first.on == ("revizor/test-vm-1",)
    assert first.type == "Standard_LRS"
    card = fake_azure.recorded(f"{GROUP}_Network_networkInterfaces_test_node_1_nic")
    assert azure.addresses("look", card) == ("10.0.0.1", "")


def test_a_machine_that_failed_says_why():
    statuses = [
        {"code": "ProvisioningState/failed/ZonalAllocationFailed", "message": "Allocation failed."},
        {"code": "PowerState/stopped"},
    ]
    found = {
        "id": "/subscriptions/s/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/N",
        "name": "N",
        "location": "eastus",
        "zones": ["2"],
        "properties": {"provisioningState": "Failed", "instanceView": {"statuses": statuses}},
    }
    machine = azure.machine("look", found)
    assert (machine.id, machine.zone, machine.state) == ("g/n", "eastus-2", NodeState.FAILED)
    assert machine.fault == (PermanentKind.NO_CAPACITY, "ZonalAllocationFailed: Allocation failed.")
    statuses[1]["code"] = "PowerState/running"  # what failed was a change of it
    assert azure.machine("look", found).state is NodeState.READY


@pytest.mark.parametrize("broken", [{}, {"properties": {}}, {"properties": None, "id": 1}, {"tags": 3}])
def test_what_cannot_be_read_is_a_fault_and_nothing_else(broken):
    for read in (azure.machine, azure.disk, azure.addresses, gce.instance, gce.disk):
        with pytest.raises(TransientError, match=r"cannot be read|has a state"):
            read("look", broken)


# ------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (403, "rateLimitExceeded", TransientKind.THROTTLED),
        (403, "quotaExceeded", PermanentKind.QUOTA),
        (403, "forbidden", PermanentKind.AUTH),
        (403, "accessNotConfigured", PermanentKind.AUTH),
        (401, "required", PermanentKind.AUTH),
        (400, "required", PermanentKind.INVALID),
        (400, "resourceNotReady", TransientKind.BUSY),
        (400, "resourceInUseByAnotherResource", TransientKind.BUSY),
        (404, "notFound", PermanentKind.NOT_FOUND),
        (409, "alreadyExists", PermanentKind.CONFLICT),
        (412, "conditionNotMet", TransientKind.BUSY),
        (503, "backendError", TransientKind.AMBIGUOUS),
        (400, "neverHeardOf", PermanentKind.INVALID),
        (500, "neverHeardOf", TransientKind.AMBIGUOUS),
        (429, "neverHeardOf", TransientKind.THROTTLED),
    ],
)
def test_refusals_of_gce(status, reason, kind):
    errors = [{"reason": reason, "message": "why"}]
    text = json.dumps({"error": {"code": status, "message": "why", "errors": errors}})
    fault = classify(
        RuntimeError(), Answer(status=status, text=text), what="w", scrub=Scrub(), read=gce.error_info
    )
    assert fault.kind is kind  # type: ignore[attr-defined]
    assert fault.summary == f"w: {reason}: why"


@pytest.mark.parametrize(
    ("metric", "kind"), [("INSTANCES", PermanentKind.INSTANCES), ("NVIDIA_H100_GPUS", PermanentKind.QUOTA)]
)
def test_a_quota_of_gce_on_instances_is_told_from_others(metric, kind):
    message = f"Quota '{metric}' exceeded.  Limit: 24.0 in region us-central1."
    for code in ("quotaExceeded", "QUOTA_EXCEEDED"):
        assert gce.kind_of(code, message) is kind


@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (409, "SkuNotAvailable", "", PermanentKind.NO_CAPACITY),
        (409, "AllocationFailed", "", PermanentKind.NO_CAPACITY),
        (409, "ZonalAllocationFailed", "", PermanentKind.NO_CAPACITY),
        (409, "OperationNotAllowed", "exceeding approved Total Regional Cores quota", PermanentKind.QUOTA),
        (409, "OperationNotAllowed", "Disk is attached to VM", PermanentKind.CONFLICT),
        (409, "AnotherOperationInProgress", "", TransientKind.BUSY),
        (409, "Conflict", "", PermanentKind.CONFLICT),
        (412, "Whatever", "", PermanentKind.CONFLICT),
        (429, "TooManyRequests", "", TransientKind.THROTTLED),
        (429, "OperationNotAllowedDueToThrottling", "", TransientKind.THROTTLED),
        (403, "AuthorizationFailed", "", PermanentKind.AUTH),
        (401, "ExpiredAuthenticationToken", "", PermanentKind.AUTH),
        (404, "ResourceNotFound", "", PermanentKind.NOT_FOUND),
        (404, "ResourceGroupNotFound", "", PermanentKind.INVALID),
        (500, "InternalServerError", "", TransientKind.AMBIGUOUS),
        (400, "InvalidParameter", "", PermanentKind.INVALID),
    ],
)
def test_refusals_of_azure(status, code, message, kind):
    text = json.dumps({"error": {"code": code, "message": message}})
    answer = Answer(status=status, text=text, headers={"retry-after": "7"})
    fault = classify(RuntimeError(), answer, what="w", scrub=Scrub(), read=azure.error_info)
    assert fault.kind is kind  # type: ignore[attr-defined]
    if isinstance(fault, TransientError):
        assert fault.after == 7


def test_a_code_within_a_code_is_the_one_that_tells():
    inner = {"code": "SkuNotAvailable", "message": "sold out"}
    text = json.dumps({"error": {"code": "DeploymentFailed", "message": "see details", "details": [inner]}})
    said = azure.error_info(Answer(status=400, text=text))
    assert said is not None
    assert (said.kind, said.text) == (PermanentKind.NO_CAPACITY, "SkuNotAvailable: sold out")


@pytest.mark.parametrize("text", ["", "<html>", "[]", "3", '{"error": 3}', '{"error": {"code": 4}}', "null"])
def test_what_is_no_error_of_theirs_is_told_by_its_status(text):
    for read in (gce.error_info, azure.error_info):
        fault = classify(RuntimeError(), Answer(status=502, text=text), what="w", scrub=Scrub(), read=read)
        assert fault.kind is TransientKind.AMBIGUOUS  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------- names and marks


@pytest.mark.parametrize("name", ["gpu-0", "a" * 60, "train-2.data-2", "../../etc", "0", "", "Ä", "a-" * 30])
def test_names_are_ones_that_both_take(name):
    found = name_of(Address("node", name), "0123456789abcdef" * 2)
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", found)
    assert found.endswith("-0123456789abcdef01234567")
    assert found != name_of(Address("node", name), "1123456789abcdef" * 2)


def test_tags_are_read_as_they_were_written():
    mark = marks.Mark(
        owner="Läufer/1",
        address=Address("volume", "data-0"),
        token="t" * 32,
        inputs={"size": "1GB", "x": "é" * 400},
    )
    tags = {**marks.written(mark), "team": "a", f"{marks.OURS}on:gpu-0": "1|{}"}
    written = gce.disk_labels(tags, "volume/data-0")
    assert all(re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", k) for k in written)
    assert all(re.fullmatch(r"[a-z0-9_-]{0,63}", v) for v in written.values())
    assert gce.disk_tags(written) == tags
    assert marks.read(gce.disk_tags(written), "x") == mark
    mine, item = gce.instance_labels(tags, "x")
    assert gce.instance_tags(mine, item) == tags
    # Taken away, or another's.
    assert marks.OWNER not in gce.disk_tags({k: v for k, v in written.items() if k != gce.OWNER_LABEL})
    assert gce.disk_tags({**written, gce.OWNER_LABEL: "else"})[marks.OWNER] == "else"
    for damaged in ("0", "!!"):
        assert marks.INPUTS not in gce.disk_tags({**written, "fleetform_mark_00": damaged})


def test_tags_that_grow_when_they_are_read_are_none_of_ours():
    """63 labels are enough for 4 MB, and a text of brackets for more levels than Python reads."""
    known = {gce.OWNER_LABEL: "o", gce.TOKEN_LABEL: "t" * 32}
    for text in (json.dumps({marks.INPUTS: "0" * 4_000_000}), "[" * 100_000, "9" * 5_000):
        code = packed(text)
        parts = {f"{gce.PART_LABEL}{i:03}": code[i * 63 : i * 63 + 63] for i in range(len(code) // 63 + 1)}
        wanted = {marks.OWNER: "o", marks.TOKEN: "t" * 32}
        tracemalloc.start()
        assert gce.disk_tags({**known, **parts}) == wanted
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
        tracemalloc.stop()
        if len(text) < 1_000_000:
            assert gce.instance_tags(known, text) == wanted
    mark = marks.Mark(owner="o", address=Address("volume", "data-0"), token="t", inputs={})
    with pytest.raises(PermanentError, match="somebody changed them"):
        marks.read({**marks.written(mark), marks.INPUTS: "1|" + "[" * 100_000}, "x")


@pytest.mark.parametrize(
    "users", [{"Team": "a"}, {"team": "A b"}, {"1": "a"}, {f"k{i}": "v" for i in range(64)}]
)
def test_tags_that_gce_does_not_take_are_refused(users):
    mark = marks.Mark(owner="o", address=Address("volume", "data-0"), token="t", inputs={})
    with pytest.raises(PermanentError) as caught:
        gce.disk_labels({**marks.written(mark), **users}, "volume/data-0")
    assert caught.value.kind is PermanentKind.INVALID


# ---------------------------------------------------------------------------------------- tokens


def test_a_token_is_asked_for_again_before_it_ends():
    now, asked = [0.0], []

    def ask():
        asked.append(now[0])
        return {"access_token": f"t{len(asked)}", "expires_in": 3600}

    tokens = Tokens(ask, "X", Scrub(), lambda: now[0])
    seen = []
    for at in (0.0, 3299.0, 3301.0, 3302.0):
        now[0] = at
        seen.append(tokens())
    assert seen == ["t1", "t1", "t2", "t2"]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"access_token": "x"},
        {"access_token": "a\nb", "expires_in": 1},
        {"access_token": 1, "expires_in": 1},
    ],
)
def test_a_login_without_a_token_is_a_fault(answer):
    with pytest.raises(TransientError, match="has no token"):
        Tokens(lambda: answer, "X", Scrub())()
