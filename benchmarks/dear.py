# ruff: noqa: E501, PLW1509 - YAML reads best in one line; no threads here
"""What a stranger's small YAML may cost: `plan --offline` and `validate` of shapes that are dear to plan.

    python benchmarks/dear.py                     # all shapes
    python benchmarks/dear.py ranks mounts        # those whose names hold one of the words
    python benchmarks/dear.py --max-work 99999999 # with another bound

Each shape is less than 100 kB of YAML. It has to end within 10 CPU seconds and 300 MB, or be refused
as `too-large` within that. CPU seconds are user and system time of the whole process, memory is its peak.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_BYTES = 100_000
MOST_CPU, MOST_MIB = 10.0, 300.0
STOP = 30
"""CPU seconds after which a run is ended."""

Shape = Callable[[], str]
SHAPES: dict[str, Shape] = {}


def shape(make: Shape) -> Shape:
    """Name a shape by its function."""
    SHAPES[make.__name__] = make
    return make


def documents(*items: str) -> str:
    """As one file."""
    return "---\n".join(item if item.endswith("\n") else item + "\n" for item in items)


def fill(form: Callable[[int], str], most: int = MOST_BYTES - 2_000) -> str:
    """As many of them as there is room for."""
    out, size = [], 0
    for i in range(100_000):
        text = form(i)
        size += len(text) + 4
        if size > most:
            break
        out.append(text)
    return documents(*out)


def cloud(count: int = 100, regions: int = 1, kind: str = "t") -> str:
    """A backend with a catalog."""
    rows = "".join(
        f"  - {{instance_type: {kind}{i}, cpu: {i % 7 + 2}, memory: 8GB, price: {i}.5}}\n"
        for i in range(count)
    )
    names = ", ".join(f"r-{i}" for i in range(regions))
    return f"type: backend\nname: cc\ndriver: ec2\nregions: [{names}]\ncatalog:\n{rows}"


FLEET = "type: fleet\nname: ff\nnodes: 0..100000\nresources: {cpu: 8, memory: 16GB}\nblocks: 8\n"


@shape
def ranks_of_two_tasks() -> str:
    task = "type: task\nname: {}\nnodes: {}\nplacement: any\nresources: {{cpu: 1}}\ncommands: [a]\n"
    return documents(FLEET, task.format("aa", 50_000), task.format("bb", 49_999))


@shape
def ranks_whole_nodes() -> str:
    fleet = "type: fleet\nname: ff\nplacement: cluster\nnodes: 0..100000\nresources: {cpu: 8}\n"
    return documents(fleet, "type: task\nname: aa\nnodes: 99999\ncommands: [a]\n")


@shape
def ranks_that_fit_nowhere() -> str:
    return documents(
        FLEET, "type: task\nname: aa\nnodes: 99999\nplacement: any\nresources: {cpu: 900}\ncommands: [a]\n"
    )


@shape
def ranks_without_room() -> str:
    fleet = "type: fleet\nname: ff\nnodes: 30000\nresources: {cpu: 2}\nblocks: 2\n"
    return documents(
        fleet, "type: task\nname: aa\nnodes: 69999\nplacement: any\nresources: {cpu: 1}\ncommands: [a]\n"
    )


@shape
def nodes_of_one_fleet() -> str:
    return "type: fleet\nname: ff\nnodes: 100000\nresources: {cpu: 64}\nblocks: 64\n"


@shape
def nodes_with_blocks() -> str:
    return documents(
        "type: fleet\nname: ff\nnodes: 1000\nresources: {cpu: 100000}\nblocks: 100000\n",
        "type: task\nname: aa\nnodes: 1000\nplacement: any\nresources: {cpu: 1}\ncommands: [a]\n",
    )


@shape
def fleets_by_tasks() -> str:
    fleets = [
        f"type: fleet\nname: f{i}\nnodes: 0..9\nresources: {{cpu: {i + 1}..}}\nblocks: auto\n"
        for i in range(550)
    ]
    tasks = [
        f"type: task\nname: t{i}\nnodes: 9\nplacement: any\nresources: {{cpu: {i + 1}}}\ncommands: [a]\n"
        for i in range(550)
    ]
    return documents(*fleets, *tasks)


@shape
def fleets_by_tasks_cluster() -> str:
    fleets = [
        f"type: fleet\nname: f{i}\nplacement: cluster\nnodes: 0..99\nresources: {{cpu: {i + 1}..}}\n"
        for i in range(550)
    ]
    tasks = [
        f"type: task\nname: t{i}\nnodes: 90\nresources: {{cpu: {i + 1}..}}\ncommands: [a]\n"
        for i in range(550)
    ]
    return documents(*fleets, *tasks)


@shape
def fleets_without_room() -> str:
    fleets = [
        f"type: fleet\nname: f{i}\nnodes: 0..1\nresources: {{cpu: {i % 50 + 2}}}\nblocks: auto\n"
        for i in range(600)
    ]
    tasks = [
        f"type: task\nname: t{i}\nnodes: 99\nplacement: any\nresources: {{cpu: {i + 100}}}\ncommands: [a]\n"
        for i in range(500)
    ]
    return documents(*fleets, *tasks)


@shape
def fleets_with_catalog() -> str:
    fleets = [f"type: fleet\nname: f{i}\nbackends: [cc]\nnodes: 0..9\n" for i in range(800)]
    tasks = [f"type: task\nname: t{i}\nresources: {{cpu: 2..{i + 2}}}\ncommands: [a]\n" for i in range(300)]
    return documents(cloud(300), *fleets, *tasks)


@shape
def fleets_with_ec2() -> str:
    back = "type: backend\nname: ec2\ndriver: ec2\n"
    fleets = [f"type: fleet\nname: f{i}\nbackends: [ec2]\nnodes: 0..9\n" for i in range(100)]
    tasks = [
        f"type: task\nname: t{i}\nnodes: 9\nplacement: any\nresources: {{cpu: {i % 60 + 2}..}}\ncommands: [a]\n"
        for i in range(900)
    ]
    return documents(back, *fleets, *tasks)


@shape
def fleets_with_ec2_few() -> str:
    back = "type: backend\nname: ec2\ndriver: ec2\nregions: [us-east-1]\n"
    fleets = [
        f"type: fleet\nname: f{i}\nbackends: [ec2]\nnodes: 0..9\nspot_policy: auto\n" for i in range(20)
    ]
    tasks = [
        f"type: task\nname: t{i}\nnodes: 9\nplacement: any\nresources: {{cpu: {i % 60 + 2}.., memory: {i}GB..}}\ncommands: [a]\n"
        for i in range(900)
    ]
    return documents(back, *fleets, *tasks)


@shape
def regions_of_a_catalog() -> str:
    back = cloud(200, 400)
    fleets = [f"type: fleet\nname: f{i}\nbackends: [cc]\nnodes: 0..9\n" for i in range(6)]
    tasks = [
        f"type: task\nname: t{i}\nnodes: 9\nplacement: any\nresources: {{cpu: {i % 8 + 2}..}}\ncommands: [a]\n"
        for i in range(700)
    ]
    return documents(back, *fleets, *tasks)


@shape
def regions_of_a_catalog_cluster() -> str:
    back = cloud(200, 400)
    fleet = "type: fleet\nname: ff\nplacement: cluster\nbackends: [cc]\nnodes: 0..9999\n"
    tasks = [
        f"type: task\nname: t{i}\nnodes: 9\nresources: {{cpu: {i % 8 + 2}..}}\ncommands: [a]\n"
        for i in range(900)
    ]
    return documents(back, fleet, *tasks)


@shape
def environment_by_ranks() -> str:
    env = "".join(f"  E{i}: a\n" for i in range(1_000))
    return documents(
        FLEET,
        f"type: task\nname: aa\nnodes: 4900\nplacement: any\nresources: {{cpu: 1}}\nenv:\n{env}commands: [a]\n",
    )


@shape
def environment_by_nodes() -> str:
    env = "".join(f"  E{i}: a\n" for i in range(1_000))
    return f"type: fleet\nname: ff\nnodes: 4900\nresources: {{cpu: 2}}\nenv:\n{env}"


@shape
def commands_by_ranks() -> str:
    text = "x" * 90_000
    return documents(
        FLEET,
        f"type: task\nname: aa\nnodes: 1400\nplacement: any\nresources: {{cpu: 1}}\ncommands: [{text}]\n",
    )


@shape
def tags_by_nodes() -> str:
    tags = "".join(f"  k{i}: {'v' * 60}\n" for i in range(120))
    return f"type: fleet\nname: ff\nnodes: 20000\nresources: {{cpu: 2}}\ntags:\n{tags}"


@shape
def volumes_counted() -> str:
    return "type: volume\nname: vv\nsize: 1GB\ncount: 99999\n"


@shape
def volumes_with_tags() -> str:
    tags = "".join(f"  k{i}: {'v' * 60}\n" for i in range(120))
    return f"type: volume\nname: vv\nsize: 1GB\ncount: 99999\ntags:\n{tags}"


@shape
def volumes_by_document() -> str:
    return fill(lambda i: f"type: volume\nname: v{i}x\nsize: 1GB\n")


@shape
def mounts_by_ranks() -> str:
    mounts = "".join(f"- v{i}-${{{{ node_rank }}}}:/m{i}\n" for i in range(10))
    volumes = [f"type: volume\nname: v{i}\nsize: 1GB\ncount: 9999\n" for i in range(10)]
    return documents(
        FLEET,
        *volumes,
        f"type: task\nname: aa\nnodes: 9999\nplacement: any\nresources: {{cpu: 1}}\ncommands: [a]\nvolumes:\n{mounts}",
    )


@shape
def mounts_with_alternatives() -> str:
    volumes = [f"type: volume\nname: v{i}\nsize: 1GB\ncount: 100\n" for i in range(500)]
    names = ", ".join(f'"v{i}-${{{{ node_rank }}}}"' for i in range(500))
    return documents(
        FLEET,
        *volumes,
        *(
            f"type: task\nname: t{k}\nnodes: 100\nplacement: any\nresources: {{cpu: 1}}\ncommands: [a]\nvolumes:\n- {{name: [{names}], path: /m}}\n"
            for k in range(4)
        ),
    )


@shape
def mounts_of_one_volume_each() -> str:
    volumes = "type: volume\nname: vv\nsize: 1GB\ncount: 2000\n"
    mounts = "".join(f"- vv-{i}:/m{i}\n" for i in range(2000))
    return documents(
        FLEET, volumes, f"type: task\nname: aa\nresources: {{cpu: 1}}\ncommands: [a]\nvolumes:\n{mounts}"
    )


@shape
def mounts_of_many_alternatives() -> str:
    volumes = "type: volume\nname: vv\nsize: 1GB\ncount: 90000\n"
    names = ", ".join(f"vv-{i}" for i in range(9_000))
    tasks = "type: task\nname: aa\nnodes: 25\nplacement: any\nresources: {cpu: 1}\ncommands: [a]\nvolumes:\n"
    return documents(FLEET, volumes, tasks + f"- {{name: [{names}], path: /m}}\n")


@shape
def mounts_inline() -> str:
    mounts = "".join(f"- {{name: 'v{i}-${{{{ node_rank }}}}', path: /m{i}, size: 1GB}}\n" for i in range(20))
    return documents(
        FLEET,
        f"type: task\nname: aa\nnodes: 5000\nplacement: any\nresources: {{cpu: 1}}\ncommands: [a]\nvolumes:\n{mounts}",
    )


@shape
def mounts_with_templates() -> str:
    mounts = "".join(f"- v{i}-${{{{ (node_rank + {i}) % 40000 }}}}:/m{i}\n" for i in range(2))
    volumes = [f"type: volume\nname: v{i}\nsize: 1GB\ncount: 50000\n" for i in range(2)]
    return documents(
        FLEET,
        *volumes,
        f"type: task\nname: aa\nnodes: 40000\nplacement: any\nresources: {{cpu: 1}}\ncommands: [a]\nvolumes:\n{mounts}",
    )


@shape
def host_mounts() -> str:
    mounts = "".join(f"- /h{i}:/m{i}\n" for i in range(2000))
    return documents(
        FLEET,
        f"type: task\nname: aa\nnodes: 120\nplacement: any\nresources: {{cpu: 1}}\ncommands: [a]\nvolumes:\n{mounts}",
    )


@shape
def host_mounts_by_ranks() -> str:
    mounts = "".join(f"- {{instance_path: /h{i}, path: /m{i}, optional: true}}\n" for i in range(25))
    return documents(
        FLEET,
        f"type: task\nname: aa\nnodes: 9999\nplacement: any\nresources: {{cpu: 1}}\ncommands: [a]\nvolumes:\n{mounts}",
    )


@shape
def hosts_named() -> str:
    hosts = "".join(f"  - h{i}\n" for i in range(9_000))
    return documents(
        f"type: fleet\nname: ff\nssh_config:\n  user: a\n  hosts:\n{hosts}",
        "type: task\nname: aa\nnodes: 9000\nplacement: any\ncommands: [a]\n",
    )


@shape
def hosts_with_resources() -> str:
    hosts = "".join(f"  - {{hostname: h{i}, resources: {{cpu: 4}}, blocks: 4}}\n" for i in range(1_700))
    return documents(
        f"type: fleet\nname: ff\nssh_config:\n  user: a\n  hosts:\n{hosts}",
        "type: task\nname: aa\nnodes: 6800\nplacement: any\nresources: {cpu: 1}\ncommands: [a]\n",
    )


@shape
def hosts_with_tasks() -> str:
    hosts = "".join(f"  - {{hostname: h{i}, resources: {{cpu: 4}}, blocks: 4}}\n" for i in range(800))
    tasks = [
        f"type: task\nname: t{i}\nnodes: 9\nplacement: any\nresources: {{cpu: {i % 7 + 1}}}\ncommands: [a]\n"
        for i in range(500)
    ]
    return documents(f"type: fleet\nname: ff\nssh_config:\n  user: a\n  hosts:\n{hosts}", *tasks)


@shape
def instances_pinned() -> str:
    pins = ", ".join(f"ff-{i}" for i in range(10_000))
    return documents(
        "type: fleet\nname: ff\nnodes: 10000\nresources: {cpu: 2}\n",
        f"type: task\nname: aa\nnodes: 2\nplacement: any\nresources: {{cpu: 1}}\ncommands: [a]\ninstances: [{pins}]\n",
    )


@shape
def instances_pinned_by_ranks() -> str:
    pins = ", ".join(f"ff-{i}" for i in range(990))
    return documents(
        "type: fleet\nname: ff\nnodes: 10000\nresources: {cpu: 8}\nblocks: 8\n",
        *(
            f"type: task\nname: t{k}\nnodes: 7900\nplacement: any\nresources: {{cpu: 1}}\ncommands: [a]\ninstances: [{pins}]\n"
            for k in range(9)
        ),
    )


@shape
def backends_many() -> str:
    backs = fill(
        lambda i: (
            f"type: backend\nname: b{i}\ndriver: ec2\nregions: [r]\ncatalog:\n- {{instance_type: t, cpu: 2, memory: 1GB, price: {i}}}\n"
        ),
        60_000,
    )
    fleets = fill(lambda i: f"type: fleet\nname: f{i}\nnodes: 0..9\n", 38_000)
    return documents(backs, fleets, "type: task\nname: aa\nnodes: 9\nplacement: any\ncommands: [a]\n")


@shape
def backends_of_ec2() -> str:
    return fill(lambda i: f"type: backend\nname: b{i}\ndriver: ec2\n")


@shape
def backends_of_ec2_few() -> str:
    return fill(lambda i: f"type: backend\nname: b{i}\ndriver: ec2\n", 600)


@shape
def tasks_many() -> str:
    return documents(FLEET, fill(lambda i: f"type: task\nname: t{i}\ncommands: [a]\n", 97_000))


@shape
def tasks_that_differ() -> str:
    return documents(
        FLEET,
        fill(
            lambda i: (
                f"type: task\nname: t{i}\nnodes: 40\nplacement: any\nresources: {{memory: {i}MB..}}\ncommands: [a]\n"
            ),
            97_000,
        ),
    )


@shape
def tasks_that_differ_single() -> str:
    return documents(
        FLEET,
        fill(lambda i: f"type: task\nname: t{i}\nresources: {{memory: {i}MB..}}\ncommands: [a]\n", 97_000),
    )


@shape
def tasks_in_clusters() -> str:
    fleet = "type: fleet\nname: ff\nplacement: cluster\nnodes: 0..100000\nresources: {cpu: 8}\nblocks: 8\n"
    return documents(
        fleet,
        fill(
            lambda i: (
                f"type: task\nname: t{i}\nnodes: {i % 50 + 2}\nexclusive: false\nresources: {{cpu: {i % 8 + 1}}}\ncommands: [a]\n"
            ),
            97_000,
        ),
    )


@shape
def tasks_in_full_clusters() -> str:
    fleets = [
        f"type: fleet\nname: f{i}\nplacement: cluster\nnodes: 50\nresources: {{cpu: 8}}\nblocks: 8\n"
        for i in range(200)
    ]
    return documents(
        *fleets,
        fill(
            lambda i: (
                f"type: task\nname: t{i}\nnodes: {i % 50 + 2}\nexclusive: false\nresources: {{cpu: {i % 8 + 1}}}\ncommands: [a]\n"
            ),
            80_000,
        ),
    )


@shape
def groups_of_a_task() -> str:
    rows = "".join(
        f"- {{name: g{i}, nodes: 90, resources: {{cpu: {i % 8 + 1}}}, commands: [a]}}\n" for i in range(100)
    )
    return documents(FLEET, f"type: task\nname: aa\nplacement: any\ngroups:\n{rows}")


@shape
def renames_of_volumes() -> str:
    """Each to what the next one renames."""
    entries = "".join(f"  - {{from: volume/a{i:04}, to: volume/a{i + 1:04}}}\n" for i in range(2000))
    return f"type: project\nname: many\nmoved:\n{entries}"


@shape
def removals_of_volumes() -> str:
    """A third of them is still declared."""
    entries = "".join(f"  - {{from: volume/a{i:04}, destroy: false}}\n" for i in range(1200))
    volumes = (f"type: volume\nname: a{i:04}\nsize: 1GB\n" for i in range(400))
    return documents(f"type: project\nname: many\nremoved:\n{entries}", *volumes)


@shape
def near_names_of_fleets() -> str:
    fleets = [f"type: fleet\nname: abcdefghijklmnopqrstuvwxyz{i:04}\nnodes: 0..1\n" for i in range(700)]
    tasks = [
        f"type: task\nname: t{i}\nfleets: [abcdefghijklmnopqrstuvwxzy{i:04}]\ncommands: [a]\n"
        for i in range(450)
    ]
    return documents(*fleets, *tasks)


@shape
def near_names_of_volumes() -> str:
    volumes = fill(lambda i: f"type: volume\nname: abcdefghijklmnopqrstuvwxyz{i:04}\nsize: 1GB\n", 70_000)
    names = "".join(f"- abcdefghijklmnopqrstuvwxzy{i:04}:/m{i}\n" for i in range(600))
    return documents(volumes, f"type: task\nname: aa\ncommands: [a]\nvolumes:\n{names}")


@shape
def near_names_of_variables() -> str:
    names = "".join(f"  v{'a' * 30}{i:04}: {{default: a}}\n" for i in range(900))
    env = "".join(f"  A{i}: ${{{{ var.v{'a' * 30}{i:04}x }}}}\n" for i in range(600))
    return documents(
        f"type: project\nname: pp\nvariables:\n{names}", f"type: task\nname: aa\ncommands: [a]\nenv:\n{env}"
    )


@shape
def near_names_of_regions() -> str:
    names = ", ".join(f"abcdefghijklmnopqrstuvwxyz{i:04}" for i in range(900))
    back = f"type: backend\nname: cc\ndriver: ec2\nregions: [{names}]\ncatalog:\n- {{instance_type: t, cpu: 2, memory: 1GB, price: 1}}\n"
    fleets = [
        f"type: fleet\nname: f{i}\nnodes: 0..1\nregions: [abcdefghijklmnopqrstuvwxzy{i:04}]\n"
        for i in range(600)
    ]
    return documents(back, *fleets)


@shape
def near_names_of_many_regions() -> str:
    names = ", ".join(f"abcdefghijklmnopqrstuvwxyz{i:04}" for i in range(990))
    near = ", ".join(f"abcdefghijklmnopqrstuvwxzy{i:04}" for i in range(990))
    back = f"type: backend\nname: cc\ndriver: ec2\nregions: [{names}]\ncatalog:\n- {{instance_type: t, cpu: 2, memory: 1GB, price: 1}}\n"
    return documents(back, f"type: fleet\nname: ff\nnodes: 1\nregions: [{near}]\n")


@shape
def near_names_of_types() -> str:
    rows = "".join(
        f"- {{instance_type: abcdefghijklmn{i:04}, cpu: 2, memory: 1GB, price: 1}}\n" for i in range(800)
    )
    near = ", ".join(f"abcdefghijklnm{i:04}" for i in range(900))
    back = f"type: backend\nname: cc\ndriver: ec2\nregions: [r]\ncatalog:\n{rows}"
    return documents(back, f"type: fleet\nname: ff\nnodes: 1\ninstance_types: [{near}]\n")


@shape
def near_names_of_types_of_ec2() -> str:
    near = ", ".join(f"m5.{i}xlarge" for i in range(1000, 1990))
    fleets = [f"type: fleet\nname: f{k}\nnodes: 1\ninstance_types: [{near}]\n" for k in range(6)]
    return documents("type: backend\nname: cc\ndriver: ec2\nregions: [us-east-1]\n", *fleets)


@shape
def near_names_of_fields() -> str:
    return fill(lambda i: f"type: task\nname: t{i}\ncomands: [a]\nresorces: {{cpus: 1}}\n")


@shape
def aliases() -> str:
    env = "".join(f"  E{i}: {'v' * 20}\n" for i in range(700))
    first = f"type: task\nname: aa\ncommands: [a]\nenv: &e\n{env}"
    return first + "".join(f"x{i}: *e\n" for i in range(600))


@shape
def aliases_in_documents() -> str:
    env = ", ".join(f"E{i}: v" for i in range(900))
    lists = "".join(f"  - &e{i} {{{env}}}\n" if i == 0 else "  - *e0\n" for i in range(500))
    return f"type: task\nname: aa\ncommands: [a]\nenv:\n{lists}"


@shape
def templates() -> str:
    variables = "type: project\nname: pp\nvariables:\n  a: {default: b}\n"
    env = "".join(f"  E{i}: ${{{{ var.a ~ {i} }}}}\n" for i in range(1_990))
    return documents(variables, FLEET, f"type: task\nname: aa\ncommands: [a]\nenv:\n{env}")


@shape
def templates_that_are_long() -> str:
    variables = f"type: project\nname: pp\nvariables:\n  a: {{default: {'b' * 2000}}}\n"
    tasks = [f"type: task\nname: t{i}\ncommands: ['${{{{ var.a ~ var.a ~ var.a }}}}']\n" for i in range(500)]
    return documents(variables, FLEET, *tasks)


@shape
def templates_in_commands_by_ranks() -> str:
    variables = f"type: project\nname: pp\nvariables:\n  a: {{default: {'b' * 2000}}}\n"
    tasks = [
        f"type: task\nname: t{i}\nnodes: 50\nplacement: any\ncommands: ['${{{{ var.a ~ var.a ~ var.a }}}}']\n"
        for i in range(40)
    ]
    return documents(variables, FLEET, *tasks)


@shape
def models_of_gpus() -> str:
    names = ",".join(["A100", "H100", "L4", "T4", "V100"] * 1)
    tasks = [
        f"type: task\nname: t{i}\nnodes: 20\nplacement: any\nresources: {{gpu: '{names}:{i % 8 + 1}..'}}\ncommands: [a]\n"
        for i in range(900)
    ]
    fleets = [f"type: fleet\nname: f{i}\nbackends: [cc]\nnodes: 0..50\n" for i in range(10)]
    return documents("type: backend\nname: cc\ndriver: ec2\n", *fleets, *tasks)


@shape
def zones_of_volumes() -> str:
    zones = ", ".join(f"r-1-z{i}" for i in range(300))
    back = f"type: backend\nname: cc\ndriver: ec2\nregions: [r-1]\navailability_zones: [{zones}]\ncatalog:\n- {{instance_type: t, cpu: 2, memory: 1GB, price: 1}}\n"
    fleet = "type: fleet\nname: ff\nbackends: [cc]\nnodes: 0..9999\n"
    tasks = [
        f"type: task\nname: t{i}\nnodes: 20\nplacement: any\ncommands: [a]\nvolumes: [{{name: 'v{i}-${{{{ node_rank }}}}', path: /m, size: 1GB, backend: cc, region: r-1}}]\n"
        for i in range(480)
    ]
    return documents(back, fleet, *tasks)


@shape
def priorities() -> str:
    fleet = "type: fleet\nname: ff\nnodes: 2000\nresources: {cpu: 64}\nblocks: 64\n"
    return documents(
        fleet,
        fill(
            lambda i: (
                f"type: task\nname: t{i}\nnodes: {i % 80 + 1}\nplacement: any\npriority: {i % 100}\nresources: {{cpu: {i % 60 + 1}}}\ncommands: [a]\n"
            ),
            97_000,
        ),
    )


@shape
def prices() -> str:
    fleet = "type: fleet\nname: ff\nbackends: [cc]\nnodes: 0..9999\nblocks: auto\n"
    return documents(
        cloud(900),
        fleet,
        fill(
            lambda i: (
                f"type: task\nname: t{i}\nnodes: 90\nplacement: any\nresources: {{cpu: {i % 8 + 1}}}\nmax_price: {i + 1}\ncommands: [a]\n"
            ),
            45_000,
        ),
    )


def measure(command: list[str], folder: Path) -> tuple[float, float, int, dict[str, Any]]:
    """CPU seconds, MiB, exit code, and what it said."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (STOP, STOP))
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    env = {k: v for k, v in os.environ.items() if not k.startswith("FLEETFORM_")}
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        child = subprocess.Popen(
            [sys.executable, "-m", "declarative", *command],
            cwd=folder,
            env=env,
            stdout=out,
            stderr=err,
            preexec_fn=limit,
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    try:
        said = json.loads((folder / "out").read_text())
    except ValueError:
        said = {"traceback": (folder / "err").read_text()[-300:]}
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, child.returncode, said


def figures(name: str, text: str, command: list[str]) -> bool:
    """One line; whether it is within the bounds."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "infra.yaml").write_text(text)
        cpu, mib, code, said = measure(command, Path(folder))
    codes = sorted({str(d["code"]) for d in said.get("diagnostics", ()) if d["severity"] == "error"})
    bad = cpu > MOST_CPU or mib > MOST_MIB or "traceback" in said
    what = " ".join(codes)[:50] or str(said.get("result", said.get("valid", said.get("traceback"))))
    print(
        f"{name:36} {command[0]:9} {len(text) / 1000:5.0f} kB {cpu:7.1f} s {mib:6.0f} MB  {code} {what} {'  <-- DEAR' if bad else ''}",
        flush=True,
    )
    return not bad


def main() -> int:
    """The exit code: 1 if any is too dear."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*")
    parser.add_argument("--max-work")
    parser.add_argument("--validate", action="store_true")
    asked = parser.parse_args()
    more = ["--max-work", asked.max_work] if asked.max_work else []
    good = True
    for name, make in SHAPES.items():
        if asked.words and not any(word in name for word in asked.words):
            continue
        text = make()
        assert len(text) <= MOST_BYTES, f"{name} has {len(text)} bytes"
        for command in (["validate", "--json"], ["plan", "--offline", "--assume-empty", "--json"]):
            if command[0] == "plan" or asked.validate:
                good &= figures(name, text, command + more)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
