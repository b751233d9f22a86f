"""Codes of files, of single documents, of templates, and of documents compared with each other."""

from __future__ import annotations

from declarative.model.codes.entry import Chapter, Code

YAML: dict[str, Code] = {
    "yaml-syntax": Code(
        Chapter.YAML,
        "the file is not YAML at this place",
        'name: "gpu',
        "look in this line and the lines above it for an open quote or bracket, for wrong indentation, and "
        "for text with `: ` in it that needs quotes",
    ),
    "unsupported-yaml": Code(
        Chapter.YAML,
        "YAML that fleetform refuses on purpose: tags, merge keys, directives, values that contain "
        "themselves",
        "<<: *defaults",
        "write the fields out; put a value that is meant as text in quotes",
    ),
    "duplicate-key": Code(
        Chapter.YAML,
        "a mapping has the same key twice, or `env` the same variable",
        "nodes: 2\nnodes: 3",
        "remove one of the two",
    ),
    "non-string-key": Code(
        Chapter.YAML,
        "a key that is not text",
        "tags: {1: blue}",
        "put the key in quotes: `'1'`",
    ),
    "not-a-mapping": Code(
        Chapter.YAML,
        "a document that is a list or a plain value",
        "- type: fleet",
        "write `key: value` lines, beginning with `type:`; separate documents with `---`",
    ),
    "bad-encoding": Code(
        Chapter.YAML,
        "the file is not UTF-8 text, or holds control characters",
        "a file in UTF-16, or a picture named `x.yaml`",
        "save it as UTF-8, and keep other files out of the project's directory",
    ),
    "too-deep": Code(
        Chapter.YAML,
        "values are nested too deep",
        "a hundred `[` in a row",
        "nest them less",
    ),
    "too-large": Code(
        Chapter.YAML,
        "a limit is exceeded: of a file (4 MiB, 500,000 values with aliases unfolded, 600,000 lines, commas "
        "and colons, 50,000 documents or items of one list), of the project, or of the number of volumes, "
        "ranks, mounts and offers that it declares (200,000 each, mounts 250,000); of a list of names "
        "(1,000 of 255 characters), a text (4,096 characters, commands aside), of tags (128), or "
        "of the work of a plan (`--max-work`; 250,000 units with `--offline`)",
        "count: 99999\n---\n… twice more",
        "declare less, split the project, or allow it with `--max-work N`",
    ),
    "no-documents": Code(
        Chapter.YAML,
        "the directory has no YAML file of its own",
        "`fleetform plan` in the wrong directory",
        "change into the project's directory, name it with `-C`, or begin with `fleetform init`",
    ),
    "unreadable": Code(
        Chapter.YAML,
        "a file or directory cannot be read",
        "a link that leads nowhere, or a file that you may not read",
        "the message quotes the system; fix or remove the file",
    ),
    "not-a-file": Code(
        Chapter.YAML,
        "something named like a YAML file is a directory, a pipe or a device; or `files` would send a "
        "pipe, a socket or a device",
        "a directory named `fleets.yaml`",
        "rename or remove it",
    ),
    "outside-project": Code(
        Chapter.YAML,
        "a link leads out of the project's directory or out of a folder that `files` sends, or an `include` "
        "leads out of the Git repository; fleetform reads nothing outside",
        "include: ['../../../home/*.yaml']",
        "put the files into the project or its repository, and include them by their path",
    ),
    "missing-file": Code(
        Chapter.YAML,
        "a path that `files` names is not in the project",
        "files: [tarin.py]",
        "correct the path: it lies below the project's directory",
    ),
    "nothing-to-send": Code(
        Chapter.YAML,
        "a folder that `files` names has nothing to send: it is empty, or ignore rules (`.gitignore`, "
        "`.dstackignore`, `.fleetformignore`) leave out everything in it",
        "files: [build], where .gitignore has `build/*`",
        "name the files themselves, which are always sent; or say `!…` in `.fleetformignore`",
    ),
    "never-sent": Code(
        Chapter.YAML,
        "`files` names something that is never sent, because git or fleetform keeps it in the project",
        "files: [.git]",
        "remove it from `files`",
    ),
    "same-place": Code(
        Chapter.YAML,
        "two entries of `files` would go to the same place in the rank's folder",
        "files: ['a/train.py:train.py', 'b/train.py:train.py']",
        "give one of them another place: `src:where`",
    ),
    "files-elsewhere": Code(
        Chapter.LANGUAGE,
        "a task has `files` and an absolute `working_dir`: the files are in the rank's own folder, and its "
        "commands would look elsewhere",
        "files: [train.py]\nworking_dir: /data",
        "leave `working_dir` out and name `/data/…` in `commands`; or write a folder below the rank's own",
    ),
    "nothing-included": Code(
        Chapter.YAML,
        "a pattern of `include` matches no file; a warning, but an error where a plan would delete what is "
        "no longer declared",
        "include: ['fleet/*.yaml']  # the folder is named fleets",
        "correct the pattern, or bring the files back; remove the pattern if what they declared may be "
        "deleted",
    ),
    "too-many-errors": Code(
        Chapter.YAML,
        "there are so many findings that the rest is not shown",
        "a generated file with thousands of wrong fields",
        "fix the ones that are shown first",
    ),
}

LANGUAGE: dict[str, Code] = {
    "missing-type": Code(
        Chapter.LANGUAGE,
        "the document does not say what it is",
        "name: gpu\nnodes: 2",
        "add `type:` with `project`, `backend`, `fleet`, `volume` or `task`",
    ),
    "unknown-type": Code(
        Chapter.LANGUAGE,
        "there is no such type of document",
        "type: flete",
        "write one of the known types",
    ),
    "skipped": Code(
        Chapter.LANGUAGE,
        "a document of dstack that fleetform leaves alone: a service, a dev environment, a gateway, or a "
        "document in a hidden file that no option and no `include` names; a warning",
        "type: service  # beside tasks and fleets",
        "do what the hint says, or name the file in the project's `exclude`",
    ),
    "ignored-field": Code(
        Chapter.LANGUAGE,
        "a field of dstack that is accepted and changes nothing; a warning",
        "ports: [8080]  # in a task",
        "remove it, or leave it for dstack",
    ),
    "unknown-field": Code(
        Chapter.LANGUAGE,
        "a field that this type of document, or this part of it, does not have",
        "type: fleet\nname: gpu\nnods: 2",
        "write the field that the hint names: the nearest one, or one of all that exist",
    ),
    "dstack-field": Code(
        Chapter.LANGUAGE,
        "a field of dstack that fleetform does not have",
        "user: root  # in a task",
        "do what the hint says instead; most can simply be removed",
    ),
    "not-supported-yet": Code(
        Chapter.LANGUAGE,
        "part of the language that does not work in this version; it is refused, never ignored",
        'resources: {cpu: "arm:4.."}',
        "do what the hint says until then",
    ),
    "missing-field": Code(
        Chapter.LANGUAGE,
        "a required field is missing",
        "type: fleet\nname: gpu",
        "add it as the hint says",
    ),
    "wrong-type": Code(
        Chapter.LANGUAGE,
        "the field takes a value of another type",
        "regions: us-east-1  # a list is expected",
        "write what is expected; a number that is meant as text needs quotes",
    ),
    "bad-value": Code(
        Chapter.LANGUAGE,
        "the field does not allow this value",
        "placement: clustr",
        "write one of the values in the message",
    ),
    "out-of-range": Code(
        Chapter.LANGUAGE,
        "a number below or above what the field takes",
        "nodes: 0  # in a task",
        "write a number within the bounds of the message",
    ),
    "bad-range": Code(
        Chapter.LANGUAGE,
        "a range that is empty, or not of whole numbers",
        "nodes: 4..2",
        "write `4`, `2..4`, `2..` or `..8`: both ends belong to the range",
    ),
    "bad-size": Code(
        Chapter.LANGUAGE,
        "not a size, or a size that is not above zero",
        "size: 0GB",
        "write a number with MB, GB or TB; a bare number means GB",
    ),
    "bad-unit": Code(
        Chapter.LANGUAGE,
        "a unit of size that is not MB, GB or TB",
        "size: 500GiB",
        "write MB, GB or TB; they are powers of 1024, so `500GB` is what `500GiB` means elsewhere",
    ),
    "bad-cron": Code(
        Chapter.LANGUAGE,
        "a time that is not a cron expression of five fields, or that never comes",
        'start: "0 25 * * *"',
        'write minute, hour, day, month and weekday: `"0 8 * * 1-5"` is 8:00 on workdays',
    ),
    "bad-timezone": Code(
        Chapter.LANGUAGE,
        "an unknown time zone",
        "timezone: Berlin",
        "write its IANA name, such as `Europe/Berlin` or `UTC`",
    ),
    "bad-duration": Code(
        Chapter.LANGUAGE,
        "not a duration",
        "max_duration: 1h30m",
        "write seconds, or one number with `s`, `m`, `h`, `d` or `w`: `90m`",
    ),
    "bad-gpu": Code(
        Chapter.LANGUAGE,
        "not a description of GPUs",
        'gpu: "H100:8:8"',
        "write a count, a model, or both: `1`, `H100:8`, `A100:80GB:1..4`, `nvidia:A100,H100:2`",
    ),
    "bad-blocks": Code(
        Chapter.LANGUAGE,
        "not a number of blocks",
        "blocks: 0",
        "write a whole number of at least 1, or `auto`",
    ),
    "bad-name": Code(
        Chapter.LANGUAGE,
        "not a name",
        "name: GPU_Pool",
        "write 2 to 41 characters: a lower-case letter, then lower-case letters, digits and `-`; no space or "
        "line break at its end (`name: |` adds one)",
    ),
    "bad-env": Code(
        Chapter.LANGUAGE,
        "not the name of an environment variable",
        "env: ['my-var=1']",
        "write `NAME=value` with letters, digits and `_`, or `NAME` alone to pass on your own value",
    ),
    "bad-tag": Code(
        Chapter.LANGUAGE,
        "a key or value that cannot be a tag",
        "tags: {'a b': x}",
        "use letters, digits, `_` and `-` in keys; values may hold spaces and `.:/=+@` as well",
    ),
    "bad-image": Code(
        Chapter.LANGUAGE,
        "text that cannot be the name of a container image",
        "image: docker://Python:3.12",
        "write `python:3.12`, or with its registry `docker.io/library/python:3.12`",
    ),
    "bad-path": Code(
        Chapter.LANGUAGE,
        "a path that cannot be used: a mount's path is absolute and has no `..`; a path of `files` lies "
        "below the project",
        "volumes: ['data:data']",
        "write `data:/data`",
    ),
    "bad-mount": Code(
        Chapter.LANGUAGE,
        "not a mount",
        "volumes: ['data']",
        "write `name:/path`, or `{name: …, path: …}`",
    ),
    "duplicate-mount": Code(
        Chapter.LANGUAGE,
        "two volumes, or folders of the host, are mounted at one path",
        "volumes: ['data-0:/data', 'data-1:/data']",
        "change one of the paths; `{name: [data-0, data-1], path: /data}` means one or the other",
    ),
    "bad-address": Code(
        Chapter.LANGUAGE,
        "not an IP address or network, or only some hosts have an `internal_ip`",
        "network: 10.0.0.1/8",
        "write a network as `10.0.0.0/8`; give every host an `internal_ip`, or none",
    ),
    "bad-host-key": Code(
        Chapter.LANGUAGE,
        "not a host's public key, or only part of one",
        "host_keys: [ssh-ed25519]",
        "write the first two words of /etc/ssh/ssh_host_ed25519_key.pub on the host: `ssh-ed25519 AAAA…`",
    ),
    "duplicate-host": Code(
        Chapter.LANGUAGE,
        "a host is named twice, in one fleet or in two",
        "hosts: [10.0.0.1, 10.0.0.1]",
        "remove one",
    ),
    "nodes-and-ssh": Code(
        Chapter.LANGUAGE,
        "a fleet has two of `nodes`, `ssh_config`, `instance_ids` and `partition`, or one of the last three "
        "and another field for machines to launch; or it names a backend of another kind",
        "nodes: 2\nssh_config: {hosts: [10.0.0.1]}",
        "keep `nodes` for machines to launch, or `ssh_config` for hosts that exist, or `instance_ids` for a "
        "cloud's instances that exist, or `partition` for the nodes of a Slurm cluster",
    ),
    "bad-credential": Code(
        Chapter.LANGUAGE,
        "a credential that is not the name of an environment variable; it may be the secret itself, so "
        "neither it nor its line is shown",
        "credentials: {key: AKIA…/…}",
        "put the secret into the environment, and write the variable's name: `key: AWS_ACCESS_KEY_ID`; "
        "replace a secret that was committed",
    ),
    "bad-state-url": Code(
        Chapter.LANGUAGE,
        "`state` is not a URL that can be used; it is not shown, since it might hold a password",
        "state: mysql://…",
        "write `state: sqlite:///path`, or leave it out for `.fleetform/state.db`",
    ),
    "schema": Code(
        Chapter.LANGUAGE,
        "the published JSON Schema refuses a document that fleetform itself would accept: a fault of "
        "fleetform",
        "none is known",
        "report it, with the document",
    ),
}

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
