"""Codes of templates, variables, and documents compared with each other."""

from __future__ import annotations

from declarative.model.codes.entry import Chapter, Code

TEMPLATES: dict[str, Code] = {
    "template-error": Code(
        Chapter.TEMPLATES,
        "not an expression, or an expression that fails or produces too much",
        "size: ${{ var.size",
        "write an expression of names, constants and operators, such as `${{ var.size }}`",
    ),
    "undefined-variable": Code(
        Chapter.TEMPLATES,
        "a name that has no value anywhere",
        "size: ${{ var.sise }}",
        "declare it in the `project` document: `variables: {size: 500GB}`; or correct the name",
    ),
    "env-here": Code(
        Chapter.TEMPLATES,
        "`env.X` outside of `env`: it would be written to the state and to plans",
        'commands: ["login ${{ env.TOKEN }}"]',
        "write `env: [TOKEN]` in the task, and `$TOKEN` in its commands",
    ),
    "node-rank-here": Code(
        Chapter.TEMPLATES,
        "`node_rank` where there is no rank: only the names of a task's volumes may use it",
        'commands: ["train --rank ${{ node_rank }}"]',
        "in commands the rank is `$FLEETFORM_NODE_RANK`",
    ),
    "missing-variable": Code(
        Chapter.TEMPLATES,
        "a declared variable has no value",
        "variables: {region: {type: string}}",
        "pass `--var region=…`, set `FLEETFORM_VAR_region`, or give it a default",
    ),
    "undeclared-variable": Code(
        Chapter.TEMPLATES,
        "a value is given for a variable that is not declared; a warning if it comes from a `--var-file`",
        "`fleetform plan --var regin=x`",
        "correct the name, or declare it in the `project` document",
    ),
    "bad-variable": Code(
        Chapter.TEMPLATES,
        "a variable's value is not of its type, or not one of those allowed",
        "`fleetform plan --var nodes=many`, where `nodes` is a number",
        "give a value as the message says",
    ),
}

REFERENCES: dict[str, Code] = {
    "duplicate-name": Code(
        Chapter.REFERENCES,
        "two documents of one type have the same name, or two volumes get the same name",
        "type: fleet\nname: gpu\nnodes: 1\n---\ntype: fleet\nname: gpu\nnodes: 2",
        "give one of them another name; the message says where the other one is",
    ),
    "dangling-reference": Code(
        Chapter.REFERENCES,
        "nothing declares this name",
        "fleets: [gpus]  # the fleet is named gpu",
        "correct the name, or declare it; volumes with a `count` are named `data-0`, `data-1`, …",
    ),
    "second-project": Code(
        Chapter.REFERENCES,
        "a project has more than one `project` document",
        "type: project\n---\ntype: project",
        "move the fields into the first one",
    ),
    "still-declared": Code(
        Chapter.REFERENCES,
        "`removed` or `moved` in the project document names what is still declared",
        "removed: [{from: volume/data, destroy: false}]",
        "remove the entry, or what declares it",
    ),
    "volume-of-two-ranks": Code(
        Chapter.REFERENCES,
        "two ranks mount one volume, or one rank mounts it twice; a volume is attached to one node at a time",
        'nodes: 2\nvolumes: ["data:/data"]',
        "give each rank its own: `data-${{ node_rank }}:/data`, and `count:` in the volume",
    ),
    "volume-host": Code(
        Chapter.REFERENCES,
        "a volume has a `host`, but its backend has no hosts; or a volume on a host's disk has a region or "
        "zone",
        "type: volume\nname: data\nbackend: local\nhost: 10.0.0.4\nsize: 100GB",
        "write `backend: ssh` for a volume on a host's disk, and only `host` to say where it is",
    ),
    "public-address": Code(
        Chapter.REFERENCES,
        "the address or network by which ranks reach each other is a public one; a warning",
        "hosts: [{hostname: lab1, internal_ip: 8.8.8.8}]",
        "write an address of the hosts' own network, such as `10.0.0.4`, or remove it",
    ),
    "replaced-variable": Code(
        Chapter.REFERENCES,
        "`env` sets a variable that fleetform sets itself for each rank, so the value never reaches a rank; "
        "a warning",
        "env: [CUDA_VISIBLE_DEVICES=3]",
        "give the variable another name, or remove it",
    ),
    "unset-variable": Code(
        Chapter.REFERENCES,
        "a task's commands use the variable of a volume that the task does not mount, such as after a volume "
        "was renamed; the variable is empty there; a warning",
        'volumes: ["store:/data"]\ncommands: [ls $FLEETFORM_VOLUME_DATA]',
        "use the variable of a volume that the task mounts, here `$FLEETFORM_VOLUME_STORE`; or mount the "
        "volume",
    ),
    "rank-name": Code(
        Chapter.REFERENCES,
        "the names of the ranks' volumes differ in more than the number at the end",
        'volumes: ["${{ node_rank }}-data:/data"]',
        "write `data-${{ node_rank }}`",
    ),
}
