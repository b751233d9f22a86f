"""A directory into `Desired`, or into everything that is wrong with it."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declarative.language.loader import Loaded, load
from declarative.language.loader import files as files_module
from declarative.model.codes import CODES
from declarative.model.diagnostic import Diagnostic, InvalidError, Severity
from declarative.model.inputs import data_of
from declarative.model.resource import RankMount
from declarative.model.schema import Problem, _validator, fields_of, validate
from declarative.model.spec import DOCUMENTS, Fleet, Resources
from declarative.provider import installed
from tests.support.cli import clean_env, fleet


def write(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        path = directory / (name.replace("__", "/") + ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def errors(directory: Path, **options) -> list[Diagnostic]:
    with pytest.raises(InvalidError) as info:
        load(directory, **options)
    return [d for d in info.value.diagnostics if d.severity is Severity.ERROR]


FLEET = "type: fleet\nname: gpu\nnodes: 1\n"
RACKS = "type: backend\nname: rack\ndriver: ssh\n"
RACK = "type: fleet\nname: rack\nssh_config: {hosts: [a]}\n"
VOLUME = "type: volume\nname: data\nsize: 1GB\n"
TASK = "type: task\nname: train\ncommands: [run]\n"

WHOLE = """\
type: project
name: demo
variables:
  size: 500GB
  ranks: {type: number, default: 4}
---
type: fleet
name: gpu
nodes: 0..4
placement: cluster
blocks: auto
resources: {gpu: "H100:8"}
env: [TOKEN]
---
type: volume
name: data
count: 4
size: ${{ var.size }}
---
type: task
name: train
nodes: ${{ var.ranks }}
env: [NCCL_DEBUG=INFO, "HF=${{ env.HF_TOKEN }}-${{ var.ranks }}"]
commands:
  - echo ${#x} $FLEETFORM_NODE_RANK
fleets: [gpu]
volumes:
  - data-${{ node_rank }}:/data
  - {name: "scratch-${DSTACK_NODE_RANK}", path: /scratch, size: 100GB, prevent_destroy: false}
"""


def test_a_whole_project(tmp_path):
    loaded = load(write(tmp_path, main=WHOLE))
    desired = loaded.desired
    assert loaded.files == ("main.yaml",)
    assert loaded.diagnostics == ()
    assert desired.project.name == "demo"
    assert desired.backends == {}
    assert desired.fleets["gpu"].env == (("TOKEN", "${{ env.TOKEN }}"),)
    assert list(desired.volumes) == [*(f"data-{i}" for i in range(4)), *(f"scratch-{i}" for i in range(4))]
    assert desired.volumes["data-3"].declared_by == "volume/data"
    assert data_of(desired.volumes["data-3"].inputs) == {
        "backend": "local",
        "region": "local",
        "size": "500GB",
        "prevent_destroy": True,
    }
    assert desired.volumes["scratch-1"].declared_by == "task/train"
    assert data_of(desired.volumes["scratch-1"].inputs) == {
        "backend": "local",
        "region": "local",
        "size": "100GB",
        "prevent_destroy": False,
    }
    task = desired.tasks["train"]
    assert task.spec.nodes == 4
    assert dict(task.spec.env) == {"NCCL_DEBUG": "INFO", "HF": "${{ env.HF_TOKEN }}-4"}
    assert task.spec.commands == ("echo ${#x} $FLEETFORM_NODE_RANK",)
    assert task.mounts[2] == (
        RankMount(path="/data", names=("data-2",), variable="DATA"),
        RankMount(path="/scratch", names=("scratch-2",), variable="SCRATCH"),
    )
    assert len(task.mounts) == 4
    places = {address: (span.line, span.column) for address, span in desired.places.items()}
    assert places["fleet/gpu"] == (8, 7)
    assert places["volume/data-0"] == places["volume/data-3"] == (16, 7)
    assert places["task/train"] == (21, 7)
    assert places["volume/scratch-0"] == (29, 12)


def test_an_empty_file_declares_nothing(tmp_path):
    assert load(write(tmp_path, a="# all gone\n")).desired.places == {}


# ------------------------------------------------------------------------------------------------ codes

HINT_NAME = "give one of them another name"
CASES = {
    "missing-type": (
        "name: x\n",
        "the document has no `type`",
        "add `type:` with one of `project`, ",
        None,
        (1, 7),
    ),
    "unknown-type": (
        "type: flet\n",
        "`flet` is not a type of document",
        "did you mean `fleet`?",
        None,
        (1, 7),
    ),
    "unknown-type: a list": (
        "type: [fleet]\n",
        "a list is not a type",
        "known types: `project`, ",
        None,
        (1, 7),
    ),
    "unknown-type: dstack": (
        "type: profile\n",
        "`profile` is not a type",
        "write its fields where they are used",
        None,
        (1, 7),
    ),
    "second-project": (
        "type: project\n---\ntype: project\nname: two\n",
        "a project has one `project` document; the first is at a.yaml:1",
        "move its fields into the first one",
        None,
        (4, 7),
    ),
    "duplicate-name": (
        FLEET + "---\n" + FLEET,
        "there is another fleet `gpu`, at a.yaml:2",
        HINT_NAME,
        "fleet/gpu",
        (6, 7),
    ),
    "duplicate-name: by count": (
        VOLUME + "count: 4\n---\n" + VOLUME.replace("data", "data-2"),
        "`data-2` is declared by `volume/data` too, at a.yaml:2",
        HINT_NAME,
        "volume/data-2",
        (7, 7),
    ),
    "duplicate-name: inline": (
        VOLUME + "---\n" + TASK + "volumes: [{name: data, path: /s, size: 1GB}]\n",
        "there is another volume `data`, at a.yaml:2",
        HINT_NAME,
        "task/train",
        (8, 18),
    ),
    "undefined-variable": (
        FLEET + "max_price: ${{ var.price }}\n",
        "no variable `price` is declared",
        "declare it in the `project` document: `variables: {price: …}`",
        "fleet/gpu",
        (4, 12),
    ),
    "missing-variable": (
        "type: project\nvariables:\n  price: {type: number}\n---\n" + FLEET + "max_price: ${{ var.price }}\n",
        "the variable `price` has no value",
        "pass --var price=…, set FLEETFORM_VAR_price, or give it a default",
        None,
        (3, 3),
    ),
    "bad-variable": (
        "type: project\nvariables:\n  price: {type: number, default: x}\n",
        "its default: expected a number, found `x`",
        "write a number",
        None,
        (3, 34),
    ),
    "template-error": (
        FLEET + "regions: ['${{ 2 ** 9 }}']\n",
        "`**` cannot be used in an expression",
        "write the number itself",
        "fleet/gpu",
        (4, 11),
    ),
    "node-rank-here": (
        TASK + "working_dir: /x/${{ node_rank }}\n",
        "`node_rank` can be used only in the names of a task's volumes",
        "in commands and scripts the rank is `$FLEETFORM_NODE_RANK`",
        "task/train",
        (4, 14),
    ),
    "env-here": (
        TASK + "tags: {a: '${{ env.HOME }}'}\n",
        "`env.HOME` cannot be used here: only in `env` values",
        "write `env: [HOME]` in the task and `$HOME` in its commands",
        "task/train",
        (4, 11),
    ),
    "bad-name": (FLEET.replace("gpu", "{a: b}"), "a mapping is not a name", "write 2 to 41", None, (2, 7)),
    "bad-name: with its number": (
        VOLUME.replace("data", "a" * 40) + "count: 3\n",
        "with its number, `aaaaaaaaaaaaaaaaaa-2`, the name has 42 characters",
        "shorten it by 1",
        "volume/" + "a" * 40,
        (2, 7),
    ),
    "unknown-field": (
        FLEET + "node: 3\n",
        "`node` is not a field of fleet",
        "did you mean `nodes`?",
        "fleet/gpu",
        (4, 1),
    ),
    "dstack-field": (
        TASK + "user: me\n",
        "`user` is a field of dstack",
        "remove it;",
        "task/train",
        (4, 1),
    ),
    "missing-field": (
        "type: fleet\nname: gpu\n",
        "`nodes` is missing",
        "add `nodes: 2`, or a range such as `nodes: 0..4`",
        "fleet/gpu",
        (2, 7),
    ),
    "missing-field: the name": (
        "nodes: 1\ntype: fleet\n",
        "`name` is missing",
        "add `name: …`; the fleet's name",
        None,
        (2, 7),
    ),
    "missing-field: a word that is no word": (
        "type: backend\nname: lab\ndriver: ec2\ncatalog:\n- {instance_type: a, memory: 1GB}\n",
        "`cpu` is missing",
        "add `cpu: …`; CPUs of one instance",
        "backend/lab",
        (5, 3),
    ),
    "missing-field: a volume between two clouds": (
        "type: backend\nname: here\ndriver: ec2\n---\n"
        + RACKS
        + "---\ntype: volume\nname: data\nsize: 1GB\n",
        "several backends are declared, and the volume names none of them",
        "write `backend: here` or `backend: rack`",
        "volume/data",
        (10, 7),
    ),
    "wrong-type: an image that is a number": (
        "type: backend\nname: lab\ndriver: vultr\nimage: 2284\n",
        "expected an image, found `2284`",
        'put an id that is a number in quotes: `"2284"`',
        "backend/lab",
        (4, 8),
    ),
    "missing-field: nested": (
        "type: backend\nname: lab\ncatalog:\n- {cpu: 1, memory: 1GB}\n",
        "`instance_type` is missing",
        "add `instance_type: …`; the backend's name for this shape",
        "backend/lab",
        (4, 3),
    ),
    "wrong-type": (
        TASK + "nodes: x\n",
        "expected a whole number, found `x`",
        "write a whole number from 1 to 100000",
        "task/train",
        (4, 8),
    ),
    "bad-value: a cloud's field": (
        "type: backend\nname: local\nendpoint: http://lab:8773\n",
        "`endpoint` is for clouds: the driver `local` cannot use it",
        "remove it",
        "backend/local",
        (3, 11),
    ),
    "bad-value: a volume that is here": (
        VOLUME + "volume_id: vol-1\n",
        "`volume_id` is for clouds: the driver `local` cannot use it",
        "remove it",
        "volume/data",
        (4, 12),
    ),
    "bad-value: a kind of disk": (
        VOLUME + "volume_type: gp3\n",
        "`volume_type` is for clouds: the driver `local` cannot use it",
        "remove it",
        "volume/data",
        (4, 14),
    ),
    "bad-value: several of one volume": (
        VOLUME + "volume_id: vol-1\ncount: 2\n",
        "`volume_id` is one volume, and `count` makes several",
        "leave `count` out, and write a document for each volume",
        "volume/data",
        (2, 7),
    ),
    "bad-value: an endpoint": (
        "type: backend\nname: lab\ndriver: local\nendpoint: lab/api\n",
        "`lab/api` is not a URL of a server",
        "write a URL such as `https://cloud.example.org:8773`",
        "backend/lab",
        (4, 11),
    ),
    "bad-credential: an endpoint": (
        "type: backend\nname: lab\ndriver: local\nendpoint: https://me:hunter2@lab\n",
        "`endpoint` names a user or a password",
        "leave it out, and name the variables that hold it under `credentials`",
        "backend/lab",
        (4, 11),
    ),
    "bad-value: an image": (
        "type: backend\nname: lab\ndriver: local\nimage: {us-east-1: [ami-1]}\n",
        "a list is not an image",
        "write an id, `{filter: {name: …, owner: …}}`, or one for each region: `{us-east-1: ami-0abc}`",
        "backend/lab",
        (4, 20),
    ),
    "wrong-type: an owner that is a number": (
        "type: backend\nname: lab\ndriver: ec2\nimage: {filter: {name: x, owner: 099720109477}}\n",
        "expected a string, found a number",
        "write it in quotes: a number loses the zeros at its start",
        "backend/lab",
        (4, 34),
    ),
    "bad-value: a filter beside regions": (
        "type: backend\nname: lab\ndriver: ec2\nimage: {us-east-1: ami-1, filter: {name: x}}\n",
        "`filter` stands beside regions",
        "write `filter` under each region that it is for; under `*` it is for all others",
        "backend/lab",
        (4, 27),
    ),
    "bad-value: a reservation of this machine": (
        FLEET + "reservation: cr-1\nbackends: [local]\n",
        "`reservation` is for clouds: the driver `local` cannot use it",
        "name a cloud's backend, or remove `reservation`",
        "fleet/gpu",
        (5, 12),
    ),
    "bad-value: a reservation without a cloud": (
        FLEET + "reservation: cr-1\n",
        "`reservation` is for clouds: the driver `local` cannot use it",
        "name a cloud's backend, or remove `reservation`",
        "fleet/gpu",
        (4, 14),
    ),
    "bad-value: a reservation of spot": (
        FLEET + "reservation: cr-1\nspot_policy: spot\n",
        "reserved capacity is not spot",
        "remove it, or the `reservation`",
        "fleet/gpu",
        (5, 14),
    ),
    "bad-value: a login": (
        "type: backend\nname: lab\ndriver: ec2\nssh_user: Some One\n",
        "`Some One` is not the name of a user",
        "write the name of a user, such as `ubuntu`",
        "backend/lab",
        (4, 11),
    ),
    "bad-value: a driver": (
        "type: backend\nname: lab\ndriver: opnstack\n",
        "there is no driver `opnstack`",
        "did you mean `openstack`?",
        "backend/lab",
        (3, 9),
    ),
    "bad-value: a driver of libcloud's": (
        "type: backend\nname: lab\ndriver: linod\n",
        "there is no driver `linod`",
        "did you mean `linode`?",
        "backend/lab",
        (3, 9),
    ),
    "bad-value: a name": (
        "type: backend\nname: aws\n",
        "there is no driver `aws`",
        "write `driver: ec2`",
        "backend/aws",
        (2, 7),
    ),
    "bad-value: a driver that nothing is like": (
        "type: backend\nname: lab\ndriver: runpod\n",
        "there is no driver `runpod`",
        f"there are {', '.join(installed())}; of libcloud's others, see docs/clouds.md",
        "backend/lab",
        (3, 9),
    ),
    "bad-value: a cloud's other name": (
        "type: backend\nname: lab\ndriver: google\n",
        "there is no driver `google`",
        "write `driver: gce`",
        "backend/lab",
        (3, 9),
    ),
    "nodes-and-ssh: a backend of hosts": (
        FLEET + "backends: [local, ssh]\n",
        "the backend `ssh` launches nothing: it is for hosts that exist",
        "declare them as `ssh_config: {hosts: […]}`, or name another backend",
        "fleet/gpu",
        (4, 19),
    ),
    "nodes-and-ssh: a backend that launches": (
        RACK + "backends: [local]\n",
        "hosts are nodes of one backend with the driver `ssh`, and `local` is another one",
        "remove it",
        "fleet/rack",
        (4, 12),
    ),
    "nodes-and-ssh: a price": (
        RACK + "max_price: 2\n",
        "`max_price` is for machines to launch, and `ssh_config` names hosts that exist",
        "remove it",
        "fleet/rack",
        (4, 1),
    ),
    "nodes-and-ssh: resources of the fleet": (
        RACK + "resources: {cpu: 2..}\n",
        "`resources` is for machines to launch, and `ssh_config` names hosts that exist",
        "write what a host has at the host: `hosts: [{hostname: …, resources: {…}}]`",
        "fleet/rack",
        (4, 1),
    ),
    "duplicate-host: in two fleets": (
        RACK + "---\ntype: fleet\nname: rock\nssh_config: {hosts: [b, {hostname: a, port: 22}]}\n",
        "`a` is a host of fleet/rack too",
        "remove one",
        "fleet/rock",
        (7, 25),
    ),
    "duplicate-host: at another port": (
        RACK + "---\ntype: fleet\nname: rock\nssh_config: {hosts: [{hostname: a, port: 2222}]}\n",
        "`a` is a host of fleet/rack too",
        "remove one",
        "fleet/rock",
        (7, 22),
    ),
    "volume-host: of a backend without hosts": (
        RACK + "---\n" + VOLUME + "host: a\n",
        "`host` is for volumes on hosts, and the backend `local` has no hosts",
        "write `backend: ssh`",
        "volume/data",
        (8, 7),
    ),
    "volume-host: a region": (
        RACK + "---\n" + VOLUME + "backend: ssh\nhost: a\nregion: east\n",
        "hosts have no region, so a volume on a host cannot have `region`",
        "remove it: the volume is on its `host`, or else on the host of its rank",
        "volume/data",
        (10, 9),
    ),
    "volume-host: a zone in a mount": (
        RACK
        + "---\n"
        + TASK
        + "volumes: [{name: tmp, path: /t, size: 1GB, backend: ssh, availability_zone: a}]\n",
        "hosts have no region, so a volume on a host cannot have `availability_zone`",
        "remove it: the volume is on its `host`, or else on the host of its rank",
        "task/train",
        (8, 77),
    ),
    "dangling-reference: a host": (
        "type: fleet\nname: rack\nssh_config: {hosts: [node1.lan]}\n---\n"
        + VOLUME
        + "backend: ssh\nhost: node2.lan\n",
        "no fleet of the backend `ssh` has a host `node2.lan`",
        "did you mean `node1.lan`?",
        "volume/data",
        (9, 7),
    ),
    "dangling-reference: a host by its port": (
        "type: fleet\nname: rack\nssh_config: {hosts: [{hostname: gw, port: 1}, {hostname: gw, port: 2}]}\n"
        "---\n" + VOLUME + "backend: ssh\nhost: gw\n",
        "no fleet of the backend `ssh` has a host `gw`",
        "did you mean `gw:",
        "volume/data",
        (9, 7),
    ),
    "bad-state-url: a password": (
        "type: project\nstate: postgresql://u:secret@h/db\n",
        "`state` names a user or a password",
        "leave them out: they come from PGUSER, PGPASSWORD, ~/.pgpass or a service",
        None,
        (2, 8),
    ),
    "bad-state-url": (
        "type: project\nstate: mysql://u:secret@h/db\n",
        "`state` is not a URL that can be used",
        "write `state: sqlite:///path` or `state: postgresql://host/database`, or leave it out",
        None,
        (2, 8),
    ),
    "dangling-reference: backend": (
        FLEET + "backends: [loca]\n",
        "no backend is named `loca`",
        "did you mean `local`?",
        "fleet/gpu",
        (4, 12),
    ),
    "dangling-reference: a volume's backend": (
        VOLUME + "backend: nope\n",
        "no backend is named `nope`",
        "declare it: `type: backend` with `name: nope`",
        "volume/data",
        (4, 10),
    ),
    "dangling-reference: a task's backend": (
        TASK + "backends: [nope]\n",
        "no backend is named `nope`",
        "declare it: `type: backend` with `name: nope`",
        "task/train",
        (4, 12),
    ),
    "dangling-reference: an inline volume's backend": (
        TASK + "volumes: [{name: tmp, path: /t, size: 1GB, backend: nope}]\n",
        "no backend is named `nope`",
        "declare it: `type: backend` with `name: nope`",
        "task/train",
        (4, 53),
    ),
    "dangling-reference: fleet": (
        FLEET + "---\n" + TASK + "fleets: [gpus]\n",
        "no fleet is named `gpus`",
        "did you mean `gpu`?",
        "task/train",
        (8, 10),
    ),
    "dangling-reference: a fleet of another number": (
        "type: fleet\nname: gpu-2\nnodes: 1\n---\n" + TASK + "fleets: [gpu-3]\n",
        "no fleet is named `gpu-3`",
        "declare it: `type: fleet` with `name: gpu-3`",
        "task/train",
        (8, 10),
    ),
    "bad-value: a region of this machine": (
        VOLUME + "backend: local\nregion: EU-RO-1\n",
        "backend local has no region `EU-RO-1`",
        "remove it, or write the cloud's backend: `backend: NAME`",
        "volume/data",
        (5, 9),
    ),
    "out-of-range: a short time window": (
        TASK + "utilization_policy: {min_gpu_utilization: 10, time_window: 30}\n",
        "a `time_window` is at least 5m, and this one is `30s`",
        "write `5m` or more",
        "task/train",
        (4, 60),
    ),
    "dangling-reference: volume": (
        TASK + "volumes: ['data:/d']\n",
        "no volume is named `data`",
        "declare it: `type: volume` with `name: data`, or add `size:` here",
        "task/train",
        (4, 11),
    ),
    "dangling-reference: the base of numbered ones": (
        VOLUME + "count: 4\n---\n" + TASK + "volumes: ['data:/d']\n",
        "no volume is named `data`",
        "write `data-${{ node_rank }}` for each rank's own, or `data-0`",
        "task/train",
        (9, 11),
    ),
    "dangling-reference: too few": (
        VOLUME + "count: 2\n---\n" + TASK + "nodes: 4\nvolumes: ['data-${{ node_rank }}:/d']\n",
        "no volume is named `data-2` (for rank 2)",
        "`data` has `count: 2`; write `count: 4`",
        "task/train",
        (10, 11),
    ),
    "dangling-reference: not numbered": (
        VOLUME + "---\n" + TASK + "nodes: 2\nvolumes: ['data-${{ node_rank }}:/d']\n",
        "no volume is named `data-0` (for rank 0)",
        "`data` has no `count`; write `count: 2`",
        "task/train",
        (9, 11),
    ),
    "dangling-reference: an alternative": (
        VOLUME + "---\n" + TASK + "volumes: [{name: [data, dat], path: /d}]\n",
        "no volume is named `dat`",
        "did you mean `data`?",
        "task/train",
        (8, 25),
    ),
    "volume-of-two-ranks": (
        VOLUME + "---\n" + TASK + "nodes: 2\nvolumes: ['data:/d']\n",
        "`data` is mounted by ranks 0 and 1; a volume is attached to one node at a time",
        "write `data-${{ node_rank }}`, with `count: 2` in the volume `data`",
        "task/train",
        (9, 11),
    ),
    "volume-of-two-ranks: at two paths": (
        VOLUME + "---\n" + TASK + "volumes: ['data:/d', 'data:/e']\n",
        "`data` is mounted twice by rank 0",
        "mount it once, and use folders of it",
        "task/train",
        (8, 22),
    ),
    "volume-of-two-ranks: inline": (
        TASK + "nodes: 2\nvolumes: [{name: tmp, path: /t, size: 1GB}]\n",
        "`tmp` would be created once for 2 ranks",
        "write `tmp-${{ node_rank }}`",
        "task/train",
        (5, 18),
    ),
    "volume-of-two-ranks: computed": (
        VOLUME + "count: 2\n---\n" + TASK + "nodes: 2\nvolumes: ['data-${{ node_rank // 2 }}:/d']\n",
        "`data-0` is mounted by ranks 0 and 1",
        "write `data-${{ node_rank }}`",
        "task/train",
        (10, 11),
    ),
    "rank-name": (
        TASK + "volumes: ['${{ node_rank }}-data:/d']\n",
        "the names of the ranks may differ only in a number at their end",
        "write `data-${{ node_rank }}`",
        "task/train",
        (4, 11),
    ),
    "duplicate-mount: a host's folder": (
        VOLUME + "---\n" + TASK + "volumes: ['data:/d', '/mnt/d:/d/']\n",
        "two folders or volumes are mounted at `/d`",
        "change one of the paths",
        "task/train",
        (8, 22),
    ),
    "bad-path: a host's folder": (
        TASK + "volumes: ['~/d:/d']\n",
        "`~/d` is not an absolute path",
        "write the folder's path on the host, from `/` on",
        "task/train",
        (4, 11),
    ),
    "bad-path: dots of a host's folder": (
        TASK + "volumes: [{instance_path: /mnt/../etc, path: /d}]\n",
        "`/mnt/../etc` contains `..`",
        "write the path that you mean, without `..`, such as `/data`",
        "task/train",
        (4, 27),
    ),
    "bad-path: the whole host": (
        TASK + "volumes: ['/:/host']\n",
        "`/` is the whole host",
        "write a folder of it, such as `/mnt/data`",
        "task/train",
        (4, 11),
    ),
    "bad-mount: a folder below a mount": (
        TASK + "volumes: ['/mnt/d/x:/x', '/srv:/mnt/d']\n",
        "`/mnt/d/x` lies below `/mnt/d`, where something else is mounted",
        "mount that one at another path",
        "task/train",
        (4, 11),
    ),
    "bad-mount: a folder where another is mounted": (
        TASK + "volumes: ['/b:/c', '/a:/b']\n",
        "`/b` is where something else is mounted",
        "mount that one at another path",
        "task/train",
        (4, 11),
    ),
    "bad-mount: a folder and a volume": (
        TASK + "volumes: [{instance_path: /mnt/d, path: /d, name: data}]\n",
        "`name` and `instance_path` exclude each other",
        "remove one of them: a host's own folder is no volume, and nothing is created for it",
        "task/train",
        (4, 45),
    ),
    "node-rank-here: a host's folder": (
        TASK + "volumes: ['/mnt/${{ node_rank }}:/d']\n",
        "`node_rank` can be used only in the names of a task's volumes",
        "write a path that is the same on every rank's host",
        "task/train",
        (4, 11),
    ),
    "wrong-type: optional": (
        TASK + "volumes: [{instance_path: /mnt/d, path: /d, optional: maybe}]\n",
        "expected true or false, found `maybe`",
        "write `optional: true`, or remove it",
        "task/train",
        (4, 55),
    ),
    "rank-name: no dash": (
        TASK + "volumes: ['data${{ node_rank }}:/d']\n",
        "the names of the ranks may differ only in a number at their end",
        "write `data-${{ node_rank }}`",
        "task/train",
        (4, 11),
    ),
    "too-large: ranks": (
        "\n---\n".join(f"type: task\nname: t{i}\ncommands: [x]\nnodes: 99999" for i in range(3)),
        "more than 200000 ranks are declared",
        "declare fewer",
        "task/t2",
        (14, 8),
    ),
    "too-large: volumes": (
        "---\n".join(f"type: volume\nname: d{i}\nsize: 1GB\ncount: 99999\n" for i in range(3)),
        "more than 200000 volumes are declared",
        "declare fewer",
        "volume/d2",
        (14, 8),
    ),
    "too-large: mounts": (
        TASK + "nodes: 99999\nvolumes:\n" + "".join(f"- v{i}:/{i}\n" for i in range(11)),
        "all ranks together have more than 250000 mounts",
        "mount fewer",
        "task/train",
        (6, 1),
    ),
    "outside-project": (
        "type: project\ninclude: ['../x/*.yaml']\n",
        "`../x/*.yaml` leads outside of the project",
        "write a pattern below the project's directory, such as `fleets/*.yaml`",
        None,
        (2, 11),
    ),
    "duplicate-key": (
        FLEET + "nodes: 2\n",
        "`nodes` is already in line 3",
        "remove one of the two",
        None,
        (4, 1),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_codes(tmp_path, case):
    text, summary, hint, address, at = CASES[case]
    (found,) = errors(write(tmp_path, a=text))
    assert found.code == case.partition(":")[0]
    assert found.summary.startswith(summary)
    assert (found.hint or "").startswith(hint or CODES[found.code].fix)
    assert found.address == address
    assert found.span is not None
    assert found.span.file == "a.yaml"
    assert (found.span.line, found.span.column) == at
    assert "secret" not in found.summary


def test_a_disagreement_with_the_published_schema_is_shown(tmp_path, monkeypatch):
    def finds(cls, kind, value):
        return [Problem(("nodes",), "schema", "no")] if kind == "fleet" else []

    monkeypatch.setattr("declarative.language.loader.documents.validate", finds)
    (found,) = errors(write(tmp_path, a=FLEET))
    assert (found.code, found.summary, found.address) == ("schema", "no", "fleet/gpu")


@pytest.mark.parametrize("command", ["status", "plan", "plan --offline"])
def test_a_command_imports_what_it_uses(project, command):
    """What a command imports is most of what it takes. The bounds have room for a few more modules."""
    project.declare(fleet("gpu"))
    code = (
        "import json, sys; from declarative.cli import cli;"
        f"cli.main({command.split()}, prog_name='fleetform', standalone_mode=False);"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=project.path,
        env=clean_env(),
        capture_output=True,
        text=True,
    )
    modules = json.loads(done.stderr.splitlines()[-1])
    tops = {name.partition(".")[0] for name in modules}
    assert not tops & {"jsonschema", "sqlalchemy", "psycopg", "numpy", "highspy", "asyncssh", "rich"}
    assert len(modules) <= 420, len(modules)


@pytest.mark.parametrize(("padding", "refused"), [(0, True), (4_000, False)])
def test_a_project_may_have_more_values_if_it_writes_them_out(tmp_path, monkeypatch, padding, refused):
    monkeypatch.setattr(files_module, "MAX_TOTAL_SIZE", 2)
    monkeypatch.setattr(files_module, "BYTES_OF_VALUE", 100)
    folder = write(tmp_path, a=VOLUME + "#" * padding + "\n", b=FLEET)
    if refused:
        assert [error.code for error in errors(folder)] == ["too-large"]
    else:
        assert load(folder).desired.volumes


def test_everything_is_found_at_once(tmp_path):
    found = errors(
        write(
            tmp_path,
            a="type: project\n---\n"
            + FLEET
            + "nods: 3\nregions: 4\n---\ntype: volum\n---\n"
            + VOLUME
            + "size: 2GB\n",
            b=TASK + "env: ['A=${{ var.x }}']\nimage: -i\n---\nname: 'x\n",
        )
    )
    assert [(d.code, d.span and d.span.file, d.span and d.span.line) for d in found] == [
        ("unknown-field", "a.yaml", 6),
        ("wrong-type", "a.yaml", 7),
        ("unknown-type", "a.yaml", 9),
        ("duplicate-key", "a.yaml", 14),
        ("undefined-variable", "b.yaml", 4),
        ("bad-image", "b.yaml", 5),
        ("yaml-syntax", "b.yaml", 7),
    ]


@pytest.mark.parametrize(
    "lost", ["- a list\n", "name: 'x\n", "typ: fleet\nname: gpus\n", "type: fleet\nname: [gpus]\n"]
)
def test_a_name_may_be_declared_in_what_cannot_be_read(tmp_path, lost):
    found = errors(write(tmp_path, a=TASK + "fleets: [gpus]\nvolumes: ['data:/d']\n", b=lost))
    assert "dangling-reference" not in [d.code for d in found]


def test_a_name_of_a_wrong_document_is_known(tmp_path):
    found = errors(
        write(
            tmp_path,
            a=TASK + "fleets: [gpu]\nvolumes: ['data-1:/d']\n",
            b=FLEET + "x: 1\n---\n" + VOLUME + "y: 1\n",
        )
    )
    assert [d.code for d in found] == ["unknown-field", "unknown-field"]


# ------------------------------------------------------------------------------------------------ variables

SIZES = "type: project\nvariables: {size: 1GB, n: {type: number, default: 1, allowed: [1, 2]}}\n"
SIZED = VOLUME.replace("1GB", "${{ var.size }}")


def size_of(loaded: Loaded) -> object:
    return loaded.desired.volumes["data"].inputs.size


def test_the_precedence_of_variables(tmp_path):
    project = write(tmp_path / "p", a=SIZES + "---\n" + SIZED)
    first = write(tmp_path, one="size: 3GB\n") / "one.yaml"
    second = write(tmp_path, two="size: 4GB\n") / "two.yaml"
    environ = {"FLEETFORM_VAR_size": "2GB", "FLEETFORM_VAR_other": "x"}
    assert size_of(load(project)) == "1GB"
    assert size_of(load(project, environ=environ)) == "2GB"
    assert size_of(load(project, environ=environ, var_files=[first])) == "3GB"
    assert size_of(load(project, environ=environ, var_files=[first, second])) == "4GB"
    assert size_of(load(project, environ=environ, var_files=[first], variables={"size": "5GB"})) == "5GB"


@pytest.mark.parametrize(
    ("given", "code", "summary", "hint"),
    [
        (
            {"sise": "1"},
            "undeclared-variable",
            "--var sise: no such variable is declared",
            "did you mean `size`?",
        ),
        (
            {"qq": "1"},
            "undeclared-variable",
            "--var qq: no such variable is declared",
            "declare it in the `project`",
        ),
        ({"n": "x"}, "bad-variable", "--var n: expected a number, found `x`", "write a number"),
        ({"n": "3"}, "bad-variable", "--var n: expected one of `1`, `2`, found `3`", "write one of these"),
        ({"size": "x" * 70_000}, "bad-variable", "--var size: a value has at most 65536 characters", None),
        ({"size": "\0"}, "bad-variable", "--var size: the value holds U+0000 or is not UTF-8", None),
    ],
)
def test_wrong_variables(tmp_path, given, code, summary, hint):
    (found,) = errors(write(tmp_path, a=SIZES + "---\n" + SIZED), variables=given)
    assert (found.code, found.span) == (code, None)
    assert found.summary.startswith(summary)
    assert (found.hint or "").startswith(hint or CODES[code].fix)


def test_variable_files_are_checked(tmp_path):
    project = write(tmp_path / "p", a=SIZES)
    file = write(tmp_path, v="n: [1]\nm: 2\n") / "v.yaml"
    with pytest.raises(InvalidError) as info:
        load(project, var_files=[file, tmp_path / "none.yaml"])
    none, number, other = info.value.diagnostics
    assert (none.code, none.hint) == ("unreadable", "check --var-file")
    assert none.summary == f"`{tmp_path}/none.yaml` cannot be read: No such file or directory"
    assert (number.code, number.summary) == ("bad-variable", "`n`: expected a number, found a list")
    assert number.span is not None
    assert (number.span.file, number.span.line, number.span.column) == (str(file), 1, 4)
    assert (other.code, other.severity) == ("undeclared-variable", Severity.WARNING)


def test_the_project_is_made_of_its_variables(tmp_path):
    """Its name, its state and what it includes."""
    project = "type: project\nname: '${{ var.a }}-x'\nstate: sqlite:///${{ var.a }}.db\n"
    project += "include: ['${{ var.a }}/*.yaml']\nvariables: {a: {type: string}}\n"
    write(tmp_path, main=project, prod__f=FLEET, test__f=FLEET)
    loaded = load(tmp_path, variables={"a": "prod"})
    found = loaded.desired.project
    assert (found.name, found.state, loaded.files) == (
        "prod-x",
        "sqlite:///prod.db",
        ("main.yaml", "prod/f.yaml"),
    )


@pytest.mark.parametrize(
    ("line", "code", "column"),
    [
        ("state: sqlite:///${{ env.HOME }}.db", "env-here", 8),
        ("state: sqlite:///${{ node_rank }}.db", "node-rank-here", 8),
        ("state: sqlite:///${{ var.b }}.db", "undefined-variable", 8),
        ("state: sqlite:///${{ var.a }", "template-error", 8),
        ("state: ${{ var.n }}", "wrong-type", 8),
        ("state: ${{ var.a }}", "bad-state-url", 8),
        ("name: ${{ var.n }}", "bad-name", 7),
        ("name: ${{ env.A }}-x", "env-here", 7),
        ("include: ['${{ env.A }}/*.yaml']", "env-here", 11),
        ("include: ['../${{ var.a }}/*.yaml']", "outside-project", 11),
    ],
)
def test_nothing_else_makes_the_project(tmp_path, line, code, column):
    """What is not a variable is refused at its place; nothing is taken literally."""
    write(tmp_path, main=f"type: project\n{line}\nvariables: {{a: x, n: 1}}\n---\n{FLEET}")
    (found,) = errors(tmp_path)
    assert found.span is not None
    assert (found.code, found.span.line, found.span.column) == (code, 2, column)


def test_a_shared_folder_needs_a_repository(tmp_path):
    """Without one, `../shared` is not the project's, and the hint says what makes it so."""
    project = "type: project\ninclude: [../shared/*.yaml]\n---\n" + FLEET
    (found,) = errors(write(tmp_path / "prod", a=project))
    assert (found.code, "`git init`" in str(found.hint)) == ("outside-project", True)
    (tmp_path / "shared").mkdir()
    (tmp_path / ".git").mkdir()
    assert not load(tmp_path / "prod").desired.tasks


def test_a_policy_among_the_documents(tmp_path):
    (found,) = errors(write(tmp_path, a=FLEET + "---\ntype: policy\ndrivers: [ec2]\n"))
    assert (found.code, "FLEETFORM_POLICY" in str(found.hint)) == ("unknown-type", True)


def test_a_file_of_variables_that_is_none(tmp_path):
    """Such as one of Terraform: what it should be has no `type`."""
    values = tmp_path / "prod.tfvars"
    values.write_text('size = "1GB"\n')
    (found,) = errors(write(tmp_path, a=SIZES + "---\n" + SIZED), var_files=[values])
    assert (found.code, found.hint) == ("not-a-mapping", "write `name: value` lines")


@pytest.mark.parametrize(
    ("default", "column"), [("'x${{ var.b }}'", 16), ("{default: '${{ env.HOME }}'}", 26)]
)
def test_variables_are_not_made_of_one_another(tmp_path, default, column):
    """A template there would reach the shell of a rank as it is."""
    project = f"type: project\nvariables: {{a: {default}, b: x}}\n---\n{FLEET}"
    (found,) = errors(write(tmp_path, a=project))
    assert (found.code, found.summary) == (
        "bad-variable",
        "its default: a variable cannot be made of other variables",
    )
    assert found.span is not None
    assert (found.span.line, found.span.column) == (2, column)


# ------------------------------------------------------------------------------------------------ files


def test_no_file_at_all(tmp_path):
    write(tmp_path, sub__a=FLEET)
    (tmp_path / ".hidden.yaml").write_text("- x")
    (found,) = errors(tmp_path)
    assert (found.code, found.summary) == ("no-documents", f"there is no YAML file in `{tmp_path}`")
    assert (found.hint or "").startswith("run `fleetform init`")


def test_no_directory(tmp_path):
    (found,) = errors(tmp_path / "none")
    assert found.code == "unreadable"
    assert found.summary == f"`{tmp_path}/none` cannot be read: No such file or directory"


def test_includes(tmp_path):
    write(
        tmp_path,
        a="type: project\ninclude: ['fleets/*.yaml', '**/v.yaml', 'a.yaml', 'x/*.yaml']\n",
        fleets__one=FLEET,
        fleets__deep__two=FLEET,
        fleets__deep__v=VOLUME,
        hidden__other=TASK,
    )
    (tmp_path / "fleets" / ".three.yaml").write_text("- x")
    (tmp_path / "loop").symlink_to(tmp_path)
    loaded = load(tmp_path)
    assert loaded.files == ("a.yaml", "fleets/deep/v.yaml", "fleets/one.yaml")
    (warning,) = loaded.diagnostics
    assert (warning.code, warning.severity) == ("nothing-included", Severity.WARNING)
    assert warning.summary == "`x/*.yaml` matches no file"
    assert warning.span is not None
    assert (warning.span.line, warning.span.column) == (2, 51)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ("{hosts: [{hostname: a, internal_ip: 8.8.8.8}, {hostname: b, internal_ip: 10.0.0.2}]}", "8.8.8.8"),
        ("{hosts: [a, b], network: 8.8.8.0/24}", "8.8.8.0/24"),
        ("{hosts: [a, b], network: 0.0.0.0/0}", "0.0.0.0/0"),
        ("{hosts: [a, b], network: 10.0.0.0/8}", None),
        ("{hosts: [a, b], network: 100.64.0.0/10}", None),
        ("{hosts: [a, b], network: '2a00:1450::/32'}", None),
        ("{hosts: [{hostname: 8.8.8.8}, b]}", None),
    ],
)
def test_ranks_that_meet_in_the_internet(tmp_path, config, found):
    """A warning: by `network` and `internal_ip` ranks reach each other, by `hostname` we reach them."""
    loaded = load(write(tmp_path, a=f"type: fleet\nname: rack\nssh_config: {config}\n"))
    said = [(d.code, d.severity, d.span.line if d.span else 0) for d in loaded.diagnostics]
    assert said == ([("public-address", Severity.WARNING, 3)] if found else [])
    assert all(f"`{found}` is a public address" in d.summary for d in loaded.diagnostics)
    example = "10.0.0.0/24" if "/" in (found or "") else "10.0.0.4"
    assert all(f"`{example}`" in (d.hint or "") for d in loaded.diagnostics)


@pytest.mark.parametrize(
    "config",
    [
        *(
            f"{{hosts: [{{hostname: a, internal_ip: '{ip}'}}]}}"
            for ip in ("127.0.0.1", "::1", "169.254.1.2", "fe80::1")
        ),
        *(
            f"{{hosts: [a], network: '{net}'}}"
            for net in ("127.0.0.0/8", "169.254.0.0/16", "fe80::/64", "224.0.0.0/4")
        ),
    ],
)
def test_ranks_never_meet_where_each_host_means_itself(tmp_path, config):
    [error] = errors(write(tmp_path, a=f"type: fleet\nname: rack\nssh_config: {config}\n"))
    assert (error.code, error.span.line if error.span else 0) == ("bad-address", 3)
    assert error.summary.endswith(("no other host reaches it", "no host reaches another there"))
    assert "write the " in (error.hint or "")


def test_files_are_named_relative_to_the_directory(tmp_path):
    write(tmp_path, a="type: project\ninclude: [sub/*.yaml]\n", sub__b="type: fleet\n")
    assert {d.span and d.span.file for d in errors(tmp_path)} == {"sub/b.yaml"}


def test_links_that_lead_outside_are_refused(tmp_path):
    outside = write(tmp_path / "outside", a=FLEET)
    project = write(tmp_path / "p", p="type: project\ninclude: ['sub/*.yaml', 'sub/a.yaml']\n")
    (project / "a.yaml").symlink_to(outside / "a.yaml")
    (project / "sub").symlink_to(outside)
    found = errors(project)
    assert [(d.code, d.summary, d.span and (d.span.file, d.span.line)) for d in found] == [
        ("outside-project", "`a.yaml` is a link that leads outside of the project", ("a.yaml", 1)),
        ("outside-project", "`sub` leads outside of the project", ("p.yaml", 2)),
        ("outside-project", "`sub/a.yaml` is a link that leads outside of the project", ("sub/a.yaml", 1)),
    ]


def test_a_link_inside_is_the_same_file(tmp_path):
    write(tmp_path, a=FLEET)
    (tmp_path / "b.yaml").symlink_to("a.yaml")
    assert load(tmp_path).files == ("a.yaml",)


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "c.yaml"))
        (tmp_path / "d.yaml").symlink_to("d.yaml")
        (tmp_path / "e.yaml").symlink_to("nowhere")
        found = errors(tmp_path)
    assert [d.code for d in found] == ["not-a-file", "not-a-file", "not-a-file", "unreadable", "unreadable"]
    assert found[0].summary == "`a.yaml` is not a regular file"
    assert found[3].summary == "`d.yaml` cannot be read: it is a link that leads to itself"
    assert found[4].summary == "`e.yaml` cannot be read: No such file or directory"


def test_odd_file_names_can_be_shown(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.yaml")).write_bytes(b"type: x")
    (found,) = errors(tmp_path)
    assert found.span is not None
    assert found.span.file == "�.yaml"


def test_the_number_of_files_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "MAX_FILES", 2)
    (found,) = errors(write(tmp_path, a="", b="", c=""))
    assert (found.code, found.summary) == ("too-large", "the project has more than 2 files")


def test_includes_look_at_a_limited_number_of_entries(tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "MAX_ENTRIES", 20)
    write(tmp_path, a="type: project\ninclude: ['**/**/**/**/*.x']\n")
    for i in range(30):
        (tmp_path / f"d{i}").mkdir()
    (found,) = errors(tmp_path)
    assert (found.code, found.summary) == ("too-large", "`include` looks at more than 20 files")


# ------------------------------------------------------------------------------------------------ mounts


def mounts(directory: Path, text: str) -> tuple[tuple[RankMount, ...], ...]:
    return load(write(directory, a=text)).desired.tasks["train"].mounts


def test_alternatives(tmp_path):
    many = VOLUME + "count: 4\n---\n" + VOLUME.replace("data", "more") + "count: 4\n---\n"
    found = mounts(
        tmp_path, many + TASK + "nodes: 2\nvolumes:\n- name: ['data-${{ node_rank }}', more-3]\n  path: /d\n"
    )
    assert found == (
        (RankMount(path="/d", names=("data-0", "more-3"), variable="DATA"),),
        (RankMount(path="/d", names=("data-1", "more-3"), variable="DATA"),),
    )


def test_names_of_variables(tmp_path):
    text = VOLUME.replace("data", "my-data") + "count: 9\n---\n" + TASK
    text += "volumes: ['my-data-3:/a', 'my-data-${{ node_rank }}:/b', "
    text += "'my-data-${{ node_rank + 1 }}:/c', 'my-data-2:/d']\n"
    assert [m.variable for m in mounts(tmp_path, text)[0]] == [
        "MY_DATA_3",
        "MY_DATA",
        "MY_DATA_4",
        "MY_DATA_2",
    ]


def test_a_volume_on_a_host_is_in_it_as_in_a_zone(tmp_path):
    """Of each backend its own hosts; without a `host` it has no zone yet."""
    text = "type: backend\nname: lab\ndriver: ssh\n---\n"
    text += "type: fleet\nname: rock\nbackends: [lab]\nssh_config: {hosts: [b]}\n---\n" + RACK + "---\n"
    text += VOLUME + "backend: lab\nhost: b\n---\n" + TASK
    text += "nodes: 2\nvolumes: [{name: 's-${{ node_rank }}', path: /s, size: 2GB, backend: ssh}]\n"
    volumes = load(write(tmp_path, a=text)).desired.volumes
    assert data_of(volumes["data"].inputs) == {
        "backend": "lab",
        "region": "ssh",
        "zone": "b",
        "size": "1GB",
        "prevent_destroy": True,
    }
    assert data_of(volumes["s-1"].inputs) == {
        "backend": "ssh",
        "region": "ssh",
        "size": "2GB",
        "prevent_destroy": True,
    }


def test_a_folder_of_the_host_is_no_volume(tmp_path):
    """Every rank's record has it, it binds none to a place, and its path is the same for all."""
    text = "type: task\nname: train\ncommands: [x]\nnodes: 2\nvolumes:\n- /mnt//d/:/d\n"
    text += "- {instance_path: /var/cache, path: /cache, optional: true}\n- {instance_path: /x, path: /x}\n"
    task = load(write(tmp_path, a=text)).desired.tasks["train"]
    assert task.mounts == ((), ())
    folders = {
        "/d": {"instance_path": "/mnt/d"},
        "/cache": {"instance_path": "/var/cache", "optional": True},
        "/x": {"instance_path": "/x"},
    }
    assert [task.rank_inputs(rank).instance_paths for rank in (0, 1)] == [folders, folders]
    assert not task.rank_inputs(0).volumes
    assert task.spec.volumes.plain() == [
        "/mnt/d:/d",
        {"instance_path": "/var/cache", "path": "/cache", "optional": True},
        "/x:/x",
    ]


def test_a_task_without_volumes_has_no_mounts(tmp_path):
    assert mounts(tmp_path, TASK + "nodes: 3\n") == ((), (), ())


def test_variables_in_the_names_of_ranks(tmp_path):
    text = "type: project\nvariables: {v: data}\n---\n" + VOLUME + "count: 2\n---\n" + TASK
    text += "nodes: 2\nvolumes: [\"${{ var.v ~ '-' ~ node_rank }}:/${{ var.v }}\"]\n"
    assert [[(m.path, m.names) for m in rank] for rank in mounts(tmp_path, text)] == [
        [("/data", ("data-0",))],
        [("/data", ("data-1",))],
    ]


def test_the_only_declared_backend_is_the_default(tmp_path):
    lab = "type: backend\nname: lab\ndriver: local\nregions: [here]\n---\n"
    desired = load(write(tmp_path, a=lab + VOLUME)).desired
    assert list(desired.backends) == ["lab"]
    assert desired.volumes["data"].inputs.backend == "lab"
    assert desired.volumes["data"].inputs.region == "here"
    assert "backend/lab" in desired.places
    two = lab + lab.replace("lab", "den") + VOLUME
    assert load(write(tmp_path, a=two)).desired.volumes["data"].inputs.backend == "local"


# ------------------------------------------------------------------------------------------------ laws


@given(st.permutations(WHOLE.split("---\n")), st.lists(st.integers(0, 3), min_size=4, max_size=4))
@settings(max_examples=40, deadline=None)
def test_the_order_of_documents_and_files_does_not_matter(documents, homes):
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        (Path(one) / "a.yaml").write_text(WHOLE)
        for home in set(homes):
            mine = [d for d, h in zip(documents, homes, strict=True) if h == home]
            (Path(other) / f"f{home}.yml").write_text("---\n".join(mine))
        left, right = load(Path(one)).desired, load(Path(other)).desired
    for field in ("project", "backends", "fleets", "volumes", "tasks"):
        assert getattr(left, field) == getattr(right, field)
        assert list(getattr(left, "volumes")) == list(getattr(right, "volumes"))  # noqa: B009
    assert left.places.keys() == right.places.keys()


def quiet(text: str) -> None:
    """Whatever the text is, there is a result or there are diagnostics."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            load(Path(folder))
        except InvalidError as error:
            found = error.diagnostics
        else:
            return
    assert found
    assert all(d.code and d.summary and len(d.summary) < 400 for d in found)


FIELDS = sorted({f for cls in DOCUMENTS.values() for f in cls.__dataclass_fields__} | {"ports", "zzz", "<<"})  # type: ignore[attr-defined]
TEXTS = st.sampled_from(
    (
        *(
            "gpu",
            "data-0",
            "1GB",
            "0..4",
            "a:/b",
            "",
            "auto",
            "A=1",
            "~",
            "\u2028",
            "nan",
            "1e400",
            "-1",
            "**",
        ),
        *("${{ node_rank }}", "x-${{ node_rank }}:/p", "${{ env.A }}", "${{ var.x }}", "${DSTACK_NODE_RANK}"),
        *("9" * 400, "../x"),
    )
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.text(max_size=5)
VALUES = st.recursive(
    PLAIN,
    lambda v: (
        st.lists(v, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "path", "size", "min", "default"]) | st.text(max_size=3), v, max_size=3
        )
    ),
    max_leaves=6,
)
KINDS = st.sampled_from([*DOCUMENTS, *DOCUMENTS, "x", None, 3, ["fleet"]])


@st.composite
def projects(draw):
    out = []
    for _ in range(draw(st.integers(1, 4))):
        body = draw(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6))
        out.append(
            {"type": draw(KINDS), "name": draw(st.sampled_from(["gpu", "data", "x1"]) | VALUES), **body}
        )
    return out


def as_yaml(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False).replace("NaN", ".nan").replace("Infinity", ".inf")


@pytest.mark.slow
@given(projects())
@settings(max_examples=300, deadline=None)
def test_any_documents_load_or_are_refused(documents):
    quiet("\n---\n".join(as_yaml(d) for d in documents))


@given(st.text(max_size=200) | st.text(alphabet="typename: fleet\n-[]{}&*'\"$.0", max_size=100))
@settings(max_examples=200, deadline=None)
def test_any_text_loads_or_is_refused(text):
    quiet(text)
    quiet(FLEET + text)


@given(st.sampled_from(sorted(DOCUMENTS)), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6))
@settings(max_examples=300, deadline=None)
def test_the_quick_validation_has_the_verdict_of_jsonschema(kind, body):
    value = {"type": kind, **body}
    whole = _validator(DOCUMENTS[kind], kind)
    assert (validate(DOCUMENTS[kind], kind, value) == []) == whole.is_valid(value)


# ------------------------------------------------------------------------------------------------ speed


@pytest.mark.slow
def test_ten_thousand_documents(tmp_path):
    fleet = 'resources: {gpu: "H100:8", cpu: 4..}\ntags: {team: research}\nidle_duration: 30m\nblocks: auto\n'
    text = "---\n".join(FLEET.replace("gpu", f"gpu-{i}") + fleet for i in range(10_000))
    start = time.process_time()
    desired = load(write(tmp_path, a=text)).desired
    took = time.process_time() - start
    assert len(desired.fleets) == 10_000
    assert isinstance(desired.fleets["gpu-7"], Fleet)
    assert took < 15, took  # about 2 s on the machine that this was written on


HOSTILE = {
    "many wrong fields": lambda: "type: fleet\nname: gpu\n" + "".join(f"f{i}: 1\n" for i in range(150_000)),
    "many undefined variables": lambda: (
        FLEET + "regions:\n" + "".join(f"- ${{{{ var.v{i} }}}}\n" for i in range(150_000))
    ),
    "many broken expressions": lambda: (
        FLEET + "regions:\n" + "".join(f"- ${{{{ (a{i} }}}}\n" for i in range(150_000))
    ),
    "much text from a variable": lambda: (
        "type: project\nvariables:\n  x: "
        + "y" * 60_000
        + "\n---\n"
        + FLEET
        + "regions:\n"
        + "- ${{ var.x }}\n" * 150_000
    ),
    "many mounts": lambda: TASK + "volumes:\n" + "".join(f"- v{i}:/{i}\n" for i in range(150_000)),
    "long names of ranks": lambda: (
        "type: project\nvariables: {x: "
        + "y" * 60_000
        + "}\n---\n"
        + TASK
        + "nodes: 99999\nvolumes: ['${{ var.x }}-${{ node_rank }}:/d']\n"
    ),
    "long values": lambda: "---\n".join(
        f"{FLEET}placement: {'x' * 400_000}\nblocks: {'9' * 4000}\n" for _ in range(9)
    ),
    "dangling references": lambda: "---\n".join(
        f"{TASK.replace('train', f't{i}')}fleets: [fleet-{i}a]\n---\n{FLEET.replace('gpu', f'fleet-{i}')}"
        for i in range(10_000)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_projects_fail_fast(tmp_path, name):
    start = time.process_time()
    found = errors(write(tmp_path, a=HOSTILE[name]()))
    assert len(found) <= 1_001
    assert all(len(d.summary) < 400 for d in found)
    assert time.process_time() - start < 25


def test_where_blocks_are_written_is_known(tmp_path):
    """What the planner says of them points there, not at the fleet's name."""
    text = FLEET + "blocks: 3\n---\n" + FLEET.replace("gpu", "other")
    places = load(write(tmp_path, a=text)).desired.places
    span = places["fleet/gpu.blocks"]
    assert (span.line, span.column, span.text) == (4, 9, "blocks: 3")
    assert "fleet/other.blocks" not in places


@pytest.mark.parametrize("cls", [*DOCUMENTS.values(), Resources])
def test_what_other_tools_call_a_field_is_no_field_here(cls):
    names = {f.name for f in fields_of(cls)}
    words = getattr(cls, "ELSEWHERE", {})
    assert not names & set(words)
    assert all(hint in names or " " in hint for hint in words.values())
    assert not set(words) & set(getattr(cls, "FOREIGN", {}))


REPLACED = """\
type: fleet
name: gpu
nodes: 1
env: {CUDA_VISIBLE_DEVICES: 0, FLEETFORM_NODES_IPS: x, FLEETFORM_MPI_HOSTFILE: x}
---
type: volume
name: data
size: 1GB
---
type: task
name: train
commands: [run]
volumes: ["data:/data"]
env:
  - LEVEL=1
  - SKYPILOT_NODE_RANK=5
  - DSTACK_MPI_HOSTFILE=x
  - FLEETFORM_VOLUME_DATA=/data
  - FLEETFORM_VOLUME_OTHER=/other
  - FLEETFORM_OWN=1
---
type: task
name: apart
nodes: 2
placement: any
commands: [run]
env:
  FLEETFORM_NODE_RANK: 9
  DSTACK_NODES_NUM:
  FLEETFORM_NODES_IPS: 10.0.0.4
"""


def test_variables_that_fleetform_sets_itself(tmp_path):
    """A warning for each, at its place, only where the value is replaced: with `placement: any` no variable
    names other nodes, and not every task has every volume.
    """
    loaded = load(write(tmp_path, a=REPLACED))
    found = [
        (d.code, d.severity, d.address, d.span.line, d.span.column) for d in loaded.diagnostics if d.span
    ]
    assert found == [
        ("replaced-variable", Severity.WARNING, address, line, column)
        for address, line, column in (
            ("fleet/gpu", 4, 7),
            ("task/train", 16, 5),
            ("task/train", 17, 5),
            ("task/train", 18, 5),
            ("task/apart", 28, 3),
            ("task/apart", 29, 3),
        )
    ]
    assert loaded.diagnostics[0].summary == (
        "`env` sets `CUDA_VISIBLE_DEVICES`, which fleetform sets for each rank: "
        "the rank gets fleetform's value"
    )


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("ls $FLEETFORM_VOLUME_STORE ${FLEETFORM_VOLUME_STORE}/x", None),
        ("ls $FLEETFORM_VOLUME_STOER", "did you mean `FLEETFORM_VOLUME_STORE`?"),
        (
            "ls $FLEETFORM_VOLUME_DATA; cd $FLEETFORM_VOLUME_DATA",
            "the task's volumes set `FLEETFORM_VOLUME_STORE`",
        ),
        ("ls ${FLEETFORM_VOLUME_DATA:-/tmp}", None),
        ("export FLEETFORM_VOLUME_DATA=/tmp; ls $FLEETFORM_VOLUME_DATA", None),
        ("env | grep FLEETFORM_VOLUME_", None),
        ("ls $FLEETFORM_VOLUME_OWN $FLEETFORM_VOLUME_FLEETS", None),
    ],
)
def test_a_variable_of_a_volume_that_no_mount_sets(tmp_path, command, found):
    """A warning at the command: the variable is empty there."""
    text = (
        "type: fleet\nname: gpu\nnodes: 1\nenv: {FLEETFORM_VOLUME_FLEETS: /x}\n---\n"
        "type: volume\nname: store\nsize: 1GB\n---\n"
        "type: task\nname: train\nvolumes: ['store:/data', '/host:/host']\nenv: [FLEETFORM_VOLUME_OWN=1]\n"
        f"commands:\n- run\n- {json.dumps(command)}\n"
    )
    loaded = load(write(tmp_path, a=text))
    said = [(d.code, d.severity, d.hint, d.span.line if d.span else 0) for d in loaded.diagnostics]
    assert said == ([("unset-variable", Severity.WARNING, found, 16)] if found else [])


def test_a_variable_of_a_volume_in_commands_of_groups(tmp_path):
    text = "type: task\nname: one\ngroups:\n- commands: [run, 'ls $FLEETFORM_VOLUME_MY_DATA']\n"
    (warning,) = load(write(tmp_path, a=text)).diagnostics
    assert warning.summary == "`commands` use `FLEETFORM_VOLUME_MY_DATA`, and no volume of the task sets it"
    assert warning.hint == "mount the volume: `volumes: ['my-data:/my-data']`"
    assert warning.span is not None
    assert (warning.span.line, warning.span.column) == (4, 19)
