"""dstack's files: each loads as it is, or every field that has no counterpart is named, with what to do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from declarative.diagnostic import Diagnostic, InvalidError
from declarative.loader import load
from declarative.schema import decode, fields_of
from declarative.schema.decode import Problem
from declarative.spec import Fleet, Gpu, Resources, Task, Volume
from declarative.spec.hosts import HostFields, ProxyJump, SshConfig
from declarative.spec.mounts import Mount

FILES = Path(__file__).parent / "dstack"

# What is said of each file: (line, code) → the field or value that it is about.
SAID: dict[str, list[tuple[int, str, str]]] = {
    "fleet-cloud": [
        (9, "not-supported-yet", "CPU architecture"),
        (18, "dstack-field", "`retry`"),
        (25, "dstack-field", "`backend_options`"),
    ],
    "fleet-elastic": [],
    "fleet-ssh": [],
    "volume": [],
    "volume-cloud": [(3, "dangling-reference", "`aws`")],
    "volume-kubernetes": [
        (5, "dstack-field", "`claim_name`"),
        (6, "dstack-field", "`storage_class_name`"),
        (7, "dstack-field", "`access_modes`"),
        (8, "dstack-field", "`read_only`"),
    ],
    "task": [],
    "task-distributed": [],
    "task-everything": [
        (5, "dstack-field", "`python`"),
        (6, "dstack-field", "`docker`"),
        (7, "dstack-field", "`nvcc`"),
        (8, "dstack-field", "`user`"),
        (9, "dstack-field", "`privileged`"),
        (10, "dstack-field", "`entrypoint`"),
        (11, "dstack-field", "`shell`"),
        (12, "dstack-field", "`home_dir`"),
        (13, "dstack-field", "`registry_auth`"),
        (17, "dstack-field", "`ports`"),
        (18, "dstack-field", "`repos`"),
        (27, "dstack-field", "`total_memory`"),
        (28, "dstack-field", "`compute_capability`"),
        (30, "dstack-field", "`shm_size`"),
        (37, "dstack-field", "`availability_zones`"),
        (38, "dstack-field", "`instance_types`"),
        (39, "dstack-field", "`reservation`"),
        (40, "dstack-field", "`idle_duration`"),
        (42, "dstack-field", "`utilization_policy`"),
        (45, "dstack-field", "`schedule`"),
        (47, "dstack-field", "`main/h100-pool`"),
        (49, "dstack-field", "`hostname`"),
        (50, "dstack-field", "`backend_options`"),
        (52, "dstack-field", "`dstack`"),
    ],
    "task-groups": [(4, "dstack-field", "`groups`"), (3, "missing-field", "`commands`")],
    "other-types": [
        (1, "unknown-type", "`dev-environment`"),
        (5, "unknown-type", "`service`"),
        (10, "unknown-type", "`gateway`"),
    ],
}


@pytest.mark.parametrize("name", sorted(path.stem for path in FILES.glob("*.yaml")))
def test_a_file_of_dstack_loads_or_says_field_by_field_what_does_not(tmp_path, name):
    shutil.copy(FILES / f"{name}.yaml", tmp_path)
    try:
        load(tmp_path)
        diagnostics: tuple[Diagnostic, ...] = ()
    except InvalidError as error:
        diagnostics = error.diagnostics
    found = [(d.span.line if d.span else 0, d.code, d.summary) for d in diagnostics]
    assert all(d.hint for d in diagnostics)
    assert "hunter2" not in str(diagnostics)
    assert [(line, code) for line, code, _ in found] == [(line, code) for line, code, _ in sorted(SAID[name])]
    for (_, _, summary), (_, _, what) in zip(found, sorted(SAID[name]), strict=True):
        assert what in summary


PROFILE = (
    "backends regions availability_zones instance_types reservation spot_policy retry max_duration "
    "stop_duration max_price creation_policy idle_duration utilization_policy startup_order stop_criteria "
    "schedule fleets instances tags backend_options"
)
FIELDS: dict[type, str] = {
    Fleet: "type name placement blocks nodes reservation resources backends regions availability_zones "
    "instance_types spot_policy retry max_price idle_duration tags backend_options ssh_config env",
    SshConfig: "user port identity_file proxy_jump network hosts",
    HostFields: "hostname port user identity_file proxy_jump internal_ip blocks",
    ProxyJump: "hostname port user identity_file",
    Volume: "type name backend region availability_zone size volume_id auto_cleanup_duration tags claim_name "
    "storage_class_name access_modes read_only",
    Task: "type name image python docker nvcc user privileged entrypoint commands nodes groups env shell "
    "working_dir home_dir registry_auth resources volumes ports repos files priority dstack " + PROFILE,
    Resources: "cpu memory shm_size gpu disk",
    Gpu: "vendor name count memory total_memory compute_capability",
    Mount: "name path instance_path optional",
}
"""The fields of dstack 0.22, by what has them here."""


@pytest.mark.parametrize(
    ("cls", "field"), [(cls, field) for cls, fields in FIELDS.items() for field in fields.split()]
)
def test_no_field_of_dstack_is_unknown(cls, field):
    """It is a field here, or is answered with what to do instead."""
    problems: list[Problem] = []
    if cls is Gpu:
        decode(Resources, {"gpu": {field: "nvidia"}}, (), problems)
    elif cls is Mount:
        decode(Task, {"name": "train", "commands": ["x"], "volumes": [{field: "x"}]}, (), problems)
    else:
        decode(cls, {} if field == "type" else {field: None}, (), problems)
    assert "unknown-field" not in [p.code for p in problems]
    foreign = getattr(cls, "FOREIGN", {})
    if cls not in (Gpu, Mount) and field != "type":
        assert field in {f.name for f in fields_of(cls)} or foreign[field]


# Notations of dstack, and what each comes out as.
NOTATIONS = [
    (Resources, "cpu", "4..8", "4..8"),
    (Resources, "cpu", {"count": "2.."}, "2.."),
    (Resources, "memory", "24GB..", "24GB.."),
    (Resources, "memory", "24gb .. 1tb", "24GB..1TB"),
    (Resources, "memory", 16, "16GB"),
    (Resources, "memory", "512MB", "512MB"),
    (Resources, "disk", {"size": "100GB.."}, "100GB.."),
    (Resources, "gpu", 1, "1"),
    (Resources, "cpu", {"min": 2, "max": 8}, "2..8"),
    (Resources, "memory", {"min": "8GB", "max": None}, "8GB.."),
    (Resources, "gpu", "24GB", "24GB:1.."),
    (Resources, "gpu", "H100:8", "H100:8"),
    (Resources, "gpu", "8:H100:80GB", "H100:80GB:8"),
    (Resources, "gpu", "A10G,A100:40GB..80GB:1..4", "A10G,A100:40GB..80GB:1..4"),
    (Resources, "gpu", "amd:MI300X:8", "amd:MI300X:8"),
    (Resources, "gpu", "nvidia", "nvidia:1.."),
    (Resources, "gpu", "A100:2..", "A100:2.."),
    (Resources, "gpu", {"name": "A100", "memory": "80GB", "count": {"min": 1, "max": 2}}, "A100:80GB:1..2"),
    (Fleet, "nodes", 2, 2),
    (Fleet, "nodes", "2", 2),
    (Fleet, "nodes", "0..", "0.."),
    (Fleet, "nodes", "..4", "0..4"),
    (Fleet, "nodes", {"min": 1, "target": 2, "max": None}, {"min": 1, "target": 2, "max": None}),
    (Fleet, "blocks", "4", 4),
    (Fleet, "idle_duration", "off", "off"),
    (Fleet, "idle_duration", -1, "off"),
    (Fleet, "idle_duration", 90, "90s"),
    (Fleet, "idle_duration", "2 h", "2h"),
    (Fleet, "env", {"A": 1, "B": True, "C": None}, {"A": "1", "B": "true", "C": "${{ env.C }}"}),
    (Fleet, "env", ["A=1=2", "B"], {"A": "1=2", "B": "${{ env.B }}"}),
    (Task, "instances", [{"fleet": "gpu", "instance": 3}, "gpu-1"], ["gpu-3", "gpu-1"]),
    (Task, "volumes", [{"name": ["a1", "b1"], "path": "/d/"}], [{"name": ["a1", "b1"], "path": "/d"}]),
    (Task, "stop_duration", "off", "off"),
]
NEEDED: dict[type, dict[str, Any]] = {
    Fleet: {"name": "gpu", "nodes": 1},
    Task: {"name": "train", "commands": ["x"]},
    Resources: {},
}


@pytest.mark.parametrize(("cls", "field", "written", "normal"), NOTATIONS, ids=lambda v: str(v)[:30])
def test_notations_of_dstack_are_read(cls, field, written, normal):
    problems: list[Problem] = []
    spec = decode(cls, {**NEEDED[cls], field: written}, (), problems)
    assert problems == []
    value = getattr(spec, field)
    plain = value.plain() if hasattr(value, "plain") else [item.plain() for item in value]
    assert plain == normal
