"""Every stable code that a message can carry. Pure data, below everything else.

`CODES` are those of diagnostics, of errors of the state and of refusals to place a task; `REJECTIONS` are
those by which placement turns down single nodes and offers, which have a name space of their own. A new code
goes into its chapter; `tests/project/test_codes.py` holds the catalogue against the source, and makes
`docs/errors.md` of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from declarative.model.record import struct


class Chapter(StrEnum):
    """The chapters of `docs/errors.md`, in their order."""

    YAML = "YAML and files"
    LANGUAGE = "The language"
    TEMPLATES = "Templates and variables"
    REFERENCES = "References between documents"
    PLANNING = "Planning"
    PLACEMENT = "Placement"
    STRUCTURAL = "Placement: waiting does not help"
    CAPACITY = "Placement: waiting may help"
    SAVED = "Saved plans"
    STATE = "The state"
    COMMAND = "Commands"

    @property
    def about(self) -> str:
        """The chapter's first paragraph."""
        return _ABOUT[self]


_ABOUT = {
    Chapter.YAML: "A file cannot be read, or is not YAML of the kind that a project is written in.",
    Chapter.LANGUAGE: "One document by itself: its type, its fields, their values.",
    Chapter.TEMPLATES: "The text between `${{` and `}}`, and the project's variables.",
    Chapter.REFERENCES: "The documents compared with each other: names that exist, names that are used once, "
    "volumes that are mounted once.",
    Chapter.PLANNING: "The project is right by itself, but does not fit what the backends offer or what is "
    "recorded.",
    Chapter.PLACEMENT: "A task is placed with all of its ranks or not at all. A task that cannot be placed "
    "is shown under `Cannot be placed` (`unplaced` in JSON) with one of these codes, and the exit code is 3 "
    "(not with `allow_unplaced`, nor if the task waits for the `schedule` of a fleet). "
    "For the rank that is the cause, the plan lists every node and every offer that was turned down, with "
    "the first filter that it did not pass (one of the codes of the next two chapters) and with the numbers: "
    "what was wanted, what was there, and how much was missing (`short` in JSON). Structural reasons come "
    "before those of capacity.",
    Chapter.STRUCTURAL: "Why a node or an offer never suits this task, whatever else runs: the declaration "
    "has to change. These are codes of `rejections` in JSON.",
    Chapter.CAPACITY: "Why a node or an offer that would suit the task cannot take it now. These are codes "
    "of `rejections` in JSON.",
    Chapter.SAVED: "A plan that `fleetform plan --out FILE` saved is carried out as it is or not at all. "
    "With each of these codes nothing was done; all differences are named at once.",
    Chapter.STATE: "The state cannot be used, or refuses what was asked of it. A command that meets one of "
    "these codes has changed nothing beyond what it said it did.",
    Chapter.COMMAND: "The command cannot do what it was asked for.",
}


@struct(frozen=True, slots=True)
class Code:
    """What it means, what causes it, what to do about it; clauses without a period at their end."""

    meaning: str
    example: str
    fix: str


_PLAN_AGAIN = "plan again: `fleetform plan --out FILE`"

YAML: dict[str, Code] = {
    "yaml-syntax": Code(
        "the file is not YAML at this place",
        'name: "gpu',
        "look in this line and the lines above it for an open quote or bracket, for wrong indentation, and "
        "for text with `: ` in it that needs quotes",
    ),
    "unsupported-yaml": Code(
        "YAML that fleetform refuses on purpose: tags, merge keys, directives, values that contain "
        "themselves",
        "<<: *defaults",
        "write the fields out; put a value that is meant as text in quotes",
    ),
    "duplicate-key": Code(
        "a mapping has the same key twice, or `env` the same variable",
        "nodes: 2\nnodes: 3",
        "remove one of the two",
    ),
    "non-string-key": Code(
        "a key that is not text",
        "tags: {1: blue}",
        "put the key in quotes: `'1'`",
    ),
    "not-a-mapping": Code(
        "a document that is a list or a plain value",
        "- type: fleet",
        "write `key: value` lines, beginning with `type:`; separate documents with `---`",
    ),
    "bad-encoding": Code(
        "the file is not UTF-8 text, or holds control characters",
        "a file in UTF-16, or a picture named `x.yaml`",
        "save it as UTF-8, and keep other files out of the project's directory",
    ),
    "too-deep": Code(
        "values are nested too deep",
        "a hundred `[` in a row",
        "nest them less",
    ),
    "too-large": Code(
        "a limit is exceeded: of a file (4 MiB, 500,000 values with aliases unfolded, 600,000 lines, commas "
        "and colons, 50,000 documents or items of one list), of the project, or of the number of volumes, "
        "ranks, mounts and offers that it declares (200,000 each, mounts 250,000); of a list of names "
        "(1,000 of 255 characters), a text (4,096 characters, commands aside), of tags (128), or "
        "of the work of a plan (`--max-work`; 250,000 units with `--offline`)",
        "count: 99999\n---\n… twice more",
        "declare less, split the project, or allow it with `--max-work N`",
    ),
    "no-documents": Code(
        "the directory has no YAML file of its own",
        "`fleetform plan` in the wrong directory",
        "change into the project's directory, name it with `-C`, or begin with `fleetform init`",
    ),
    "unreadable": Code(
        "a file or directory cannot be read",
        "a link that leads nowhere, or a file that you may not read",
        "the message quotes the system; fix or remove the file",
    ),
    "not-a-file": Code(
        "something named like a YAML file is a directory, a pipe or a device; or `files` would send a "
        "pipe, a socket or a device",
        "a directory named `fleets.yaml`",
        "rename or remove it",
    ),
    "outside-project": Code(
        "a link leads out of the project's directory or out of a folder that `files` sends, or an `include` "
        "leads out of the Git repository; fleetform reads nothing outside",
        "include: ['../../../home/*.yaml']",
        "put the files into the project or its repository, and include them by their path",
    ),
    "missing-file": Code(
        "a path that `files` names is not in the project",
        "files: [tarin.py]",
        "correct the path: it lies below the project's directory",
    ),
    "nothing-to-send": Code(
        "a folder that `files` names has nothing to send: it is empty, or ignore rules (`.gitignore`, "
        "`.dstackignore`, `.fleetformignore`) leave out everything in it",
        "files: [build], where .gitignore has `build/*`",
        "name the files themselves, which are always sent; or say `!…` in `.fleetformignore`",
    ),
    "never-sent": Code(
        "`files` names something that is never sent, because git or fleetform keeps it in the project",
        "files: [.git]",
        "remove it from `files`",
    ),
    "same-place": Code(
        "two entries of `files` would go to the same place in the rank's folder",
        "files: ['a/train.py:train.py', 'b/train.py:train.py']",
        "give one of them another place: `src:where`",
    ),
    "nothing-included": Code(
        "a pattern of `include` matches no file; a warning, but an error where a plan would delete what is "
        "no longer declared",
        "include: ['fleet/*.yaml']  # the folder is named fleets",
        "correct the pattern, or bring the files back; remove the pattern if what they declared may be "
        "deleted",
    ),
    "too-many-errors": Code(
        "there are so many findings that the rest is not shown",
        "a generated file with thousands of wrong fields",
        "fix the ones that are shown first",
    ),
}
LANGUAGE: dict[str, Code] = {
    "files-elsewhere": Code(
        "a task has `files` and an absolute `working_dir`: the files are in the rank's own folder, and its "
        "commands would look elsewhere",
        "files: [train.py]\nworking_dir: /data",
        "leave `working_dir` out and name `/data/…` in `commands`; or write a folder below the rank's own",
    ),
    "missing-type": Code(
        "the document does not say what it is",
        "name: gpu\nnodes: 2",
        "add `type:` with `project`, `backend`, `fleet`, `volume` or `task`",
    ),
    "unknown-type": Code(
        "there is no such type of document",
        "type: flete",
        "write one of the known types",
    ),
    "skipped": Code(
        "a document of dstack that fleetform leaves alone: a service, a dev environment, a gateway, or a "
        "document in a hidden file that no option and no `include` names; a warning",
        "type: service  # beside tasks and fleets",
        "do what the hint says, or name the file in the project's `exclude`",
    ),
    "ignored-field": Code(
        "a field of dstack that is accepted and changes nothing; a warning",
        "ports: [8080]  # in a task",
        "remove it, or leave it for dstack",
    ),
    "unknown-field": Code(
        "a field that this type of document, or this part of it, does not have",
        "type: fleet\nname: gpu\nnods: 2",
        "write the field that the hint names: the nearest one, or one of all that exist",
    ),
    "dstack-field": Code(
        "a field of dstack that fleetform does not have",
        "user: root  # in a task",
        "do what the hint says instead; most can simply be removed",
    ),
    "not-supported-yet": Code(
        "part of the language that does not work in this version; it is refused, never ignored",
        'resources: {cpu: "arm:4.."}',
        "do what the hint says until then",
    ),
    "missing-field": Code(
        "a required field is missing",
        "type: fleet\nname: gpu",
        "add it as the hint says",
    ),
    "wrong-type": Code(
        "the field takes a value of another type",
        "regions: us-east-1  # a list is expected",
        "write what is expected; a number that is meant as text needs quotes",
    ),
    "bad-value": Code(
        "the field does not allow this value",
        "placement: clustr",
        "write one of the values in the message",
    ),
    "out-of-range": Code(
        "a number below or above what the field takes",
        "nodes: 0  # in a task",
        "write a number within the bounds of the message",
    ),
    "bad-range": Code(
        "a range that is empty, or not of whole numbers",
        "nodes: 4..2",
        "write `4`, `2..4`, `2..` or `..8`: both ends belong to the range",
    ),
    "bad-size": Code(
        "not a size, or a size that is not above zero",
        "size: 0GB",
        "write a number with MB, GB or TB; a bare number means GB",
    ),
    "bad-unit": Code(
        "a unit of size that is not MB, GB or TB",
        "size: 500GiB",
        "write MB, GB or TB; they are powers of 1024, so `500GB` is what `500GiB` means elsewhere",
    ),
    "bad-cron": Code(
        "a time that is not a cron expression of five fields, or that never comes",
        'start: "0 25 * * *"',
        'write minute, hour, day, month and weekday: `"0 8 * * 1-5"` is 8:00 on workdays',
    ),
    "bad-timezone": Code(
        "an unknown time zone",
        "timezone: Berlin",
        "write its IANA name, such as `Europe/Berlin` or `UTC`",
    ),
    "bad-duration": Code(
        "not a duration",
        "max_duration: 1h30m",
        "write seconds, or one number with `s`, `m`, `h`, `d` or `w`: `90m`",
    ),
    "bad-gpu": Code(
        "not a description of GPUs",
        'gpu: "H100:8:8"',
        "write a count, a model, or both: `1`, `H100:8`, `A100:80GB:1..4`, `nvidia:A100,H100:2`",
    ),
    "bad-blocks": Code(
        "not a number of blocks",
        "blocks: 0",
        "write a whole number of at least 1, or `auto`",
    ),
    "bad-name": Code(
        "not a name",
        "name: GPU_Pool",
        "write 2 to 41 characters: a lower-case letter, then lower-case letters, digits and `-`; no space or "
        "line break at its end (`name: |` adds one)",
    ),
    "bad-env": Code(
        "not the name of an environment variable",
        "env: ['my-var=1']",
        "write `NAME=value` with letters, digits and `_`, or `NAME` alone to pass on your own value",
    ),
    "bad-tag": Code(
        "a key or value that cannot be a tag",
        "tags: {'a b': x}",
        "use letters, digits, `_` and `-` in keys; values may hold spaces and `.:/=+@` as well",
    ),
    "bad-image": Code(
        "text that cannot be the name of a container image",
        "image: docker://Python:3.12",
        "write `python:3.12`, or with its registry `docker.io/library/python:3.12`",
    ),
    "bad-path": Code(
        "a path that cannot be used: a mount's path is absolute and has no `..`; a path of `files` lies "
        "below the project",
        "volumes: ['data:data']",
        "write `data:/data`",
    ),
    "bad-mount": Code(
        "not a mount",
        "volumes: ['data']",
        "write `name:/path`, or `{name: …, path: …}`",
    ),
    "duplicate-mount": Code(
        "two volumes, or folders of the host, are mounted at one path",
        "volumes: ['data-0:/data', 'data-1:/data']",
        "change one of the paths; `{name: [data-0, data-1], path: /data}` means one or the other",
    ),
    "bad-address": Code(
        "not an IP address or network, or only some hosts have an `internal_ip`",
        "network: 10.0.0.1/8",
        "write a network as `10.0.0.0/8`; give every host an `internal_ip`, or none",
    ),
    "bad-host-key": Code(
        "not a host's public key, or only part of one",
        "host_keys: [ssh-ed25519]",
        "write the first two words of /etc/ssh/ssh_host_ed25519_key.pub on the host: `ssh-ed25519 AAAA…`",
    ),
    "duplicate-host": Code(
        "a host is named twice, in one fleet or in two",
        "hosts: [10.0.0.1, 10.0.0.1]",
        "remove one",
    ),
    "nodes-and-ssh": Code(
        "a fleet has two of `nodes`, `ssh_config`, `instance_ids` and `partition`, or one of the last three "
        "and another field for machines to launch; or it names a backend of another kind",
        "nodes: 2\nssh_config: {hosts: [10.0.0.1]}",
        "keep `nodes` for machines to launch, or `ssh_config` for hosts that exist, or `instance_ids` for a "
        "cloud's instances that exist, or `partition` for the nodes of a Slurm cluster",
    ),
    "bad-credential": Code(
        "a credential that is not the name of an environment variable; it may be the secret itself, so "
        "neither it nor its line is shown",
        "credentials: {key: AKIA…/…}",
        "put the secret into the environment, and write the variable's name: `key: AWS_ACCESS_KEY_ID`; "
        "replace a secret that was committed",
    ),
    "bad-state-url": Code(
        "`state` is not a URL that can be used; it is not shown, since it might hold a password",
        "state: mysql://…",
        "write `state: sqlite:///path`, or leave it out for `.fleetform/state.db`",
    ),
    "schema": Code(
        "the published JSON Schema refuses a document that fleetform itself would accept: a fault of "
        "fleetform",
        "none is known",
        "report it, with the document",
    ),
}
TEMPLATES: dict[str, Code] = {
    "template-error": Code(
        "not an expression, or an expression that fails or produces too much",
        "size: ${{ var.size",
        "write an expression of names, constants and operators, such as `${{ var.size }}`",
    ),
    "undefined-variable": Code(
        "a name that has no value anywhere",
        "size: ${{ var.sise }}",
        "declare it in the `project` document: `variables: {size: 500GB}`; or correct the name",
    ),
    "env-here": Code(
        "`env.X` outside of `env`: it would be written to the state and to plans",
        'commands: ["login ${{ env.TOKEN }}"]',
        "write `env: [TOKEN]` in the task, and `$TOKEN` in its commands",
    ),
    "node-rank-here": Code(
        "`node_rank` where there is no rank: only the names of a task's volumes may use it",
        'commands: ["train --rank ${{ node_rank }}"]',
        "in commands the rank is `$FLEETFORM_NODE_RANK`",
    ),
    "missing-variable": Code(
        "a declared variable has no value",
        "variables: {region: {type: string}}",
        "pass `--var region=…`, set `FLEETFORM_VAR_region`, or give it a default",
    ),
    "undeclared-variable": Code(
        "a value is given for a variable that is not declared; a warning if it comes from a `--var-file`",
        "`fleetform plan --var regin=x`",
        "correct the name, or declare it in the `project` document",
    ),
    "bad-variable": Code(
        "a variable's value is not of its type, or not one of those allowed",
        "`fleetform plan --var nodes=many`, where `nodes` is a number",
        "give a value as the message says",
    ),
}
REFERENCES: dict[str, Code] = {
    "duplicate-name": Code(
        "two documents of one type have the same name, or two volumes get the same name",
        "type: fleet\nname: gpu\nnodes: 1\n---\ntype: fleet\nname: gpu\nnodes: 2",
        "give one of them another name; the message says where the other one is",
    ),
    "dangling-reference": Code(
        "nothing declares this name",
        "fleets: [gpus]  # the fleet is named gpu",
        "correct the name, or declare it; volumes with a `count` are named `data-0`, `data-1`, …",
    ),
    "second-project": Code(
        "a project has more than one `project` document",
        "type: project\n---\ntype: project",
        "move the fields into the first one",
    ),
    "still-declared": Code(
        "`removed` or `moved` in the project document names what is still declared",
        "removed: [{from: volume/data, destroy: false}]",
        "remove the entry, or what declares it",
    ),
    "volume-of-two-ranks": Code(
        "two ranks mount one volume, or one rank mounts it twice; a volume is attached to one node at a time",
        'nodes: 2\nvolumes: ["data:/data"]',
        "give each rank its own: `data-${{ node_rank }}:/data`, and `count:` in the volume",
    ),
    "volume-host": Code(
        "a volume has a `host`, but its backend has no hosts; or a volume on a host's disk has a region or "
        "zone",
        "type: volume\nname: data\nbackend: local\nhost: 10.0.0.4\nsize: 100GB",
        "write `backend: ssh` for a volume on a host's disk, and only `host` to say where it is",
    ),
    "public-address": Code(
        "the address or network by which ranks reach each other is a public one; a warning",
        "hosts: [{hostname: lab1, internal_ip: 8.8.8.8}]",
        "write an address of the hosts' own network, such as `10.0.0.4`, or remove it",
    ),
    "replaced-variable": Code(
        "`env` sets a variable that fleetform sets itself for each rank, so the value never reaches a rank; "
        "a warning",
        "env: [CUDA_VISIBLE_DEVICES=3]",
        "give the variable another name, or remove it",
    ),
    "unset-variable": Code(
        "a task's commands use the variable of a volume that the task does not mount, such as after a volume "
        "was renamed; the variable is empty there; a warning",
        'volumes: ["store:/data"]\ncommands: [ls $FLEETFORM_VOLUME_DATA]',
        "use the variable of a volume that the task mounts, here `$FLEETFORM_VOLUME_STORE`; or mount the "
        "volume",
    ),
    "rank-name": Code(
        "the names of the ranks' volumes differ in more than the number at the end",
        'volumes: ["${{ node_rank }}-data:/data"]',
        "write `data-${{ node_rank }}`",
    ),
}
PLANNING: dict[str, Code] = {
    "blocks-do-not-divide": Code(
        "the number of blocks does not divide both the CPUs and the GPUs of the fleet's nodes",
        "blocks: 3  # on nodes with 8 CPUs",
        "write one of the numbers in the hint, or `blocks: auto`, the largest of them",
    ),
    "no-offer": Code(
        "no offer of the backends is within the fleet's limits, so the fleet cannot reach its size",
        "max_price: 0.01",
        "widen the fleet's `resources`, `max_price`, `backends` or `regions`, or lower its `nodes`",
    ),
    "unknown-region": Code(
        "a fleet or a task names a region that none of its backends has",
        "regions: [us-east-1, us-wset-2]",
        "write the region as the backend has it, or add it to the `regions` of a backend",
    ),
    "no-backend": Code(
        "a fleet asks for GPUs, and no declared backend could launch its nodes; this machine counts only if"
        " the fleet names it",
        "type: fleet\nname: gpu\nnodes: 1\nresources: {gpu: 8}",
        "declare a cloud (`type: backend`) or hosts (`ssh_config`); to rehearse on this machine, without the "
        "GPUs, write `backends: [local]` in the fleet",
    ),
    "no-partition": Code(
        "a fleet names a `partition` or `reservation` that its Slurm cluster does not have or does not show",
        "partition: gpuu",
        "write one that `sinfo -s` or `scontrol show reservation` lists for your user on the login node",
    ),
    "rehearsal": Code(
        "nodes of the driver `local` are declared with an `identity`, or with GPUs that this machine does not"
        " have, or `--offline` did not look for them; a warning",
        'backends: [local]\nresources: {gpu: "H100:8"}',
        "nothing, if you mean a rehearsal; for real GPUs, name a cloud's backend or declare hosts; for an"
        " identity, a backend of EC2, GCE or Azure",
    ),
    "over-limit": Code(
        "a plan exceeds the project's `limits`, or a price that counts is unknown; a warning if they were "
        "exceeded already and the plan does not add to it",
        "limits: {cost_per_hour: 10}  # and a fleet of ten nodes at 2 USD",
        "declare less, or raise the limit in a change of its own",
    ),
    "protected": Code(
        "a volume or node with `prevent_destroy`, or in the project's `limits.protected`, would be deleted "
        "or replaced; volumes have it unless they say otherwise",
        "removing a volume's document while the volume exists",
        "undo the change; or set `prevent_destroy: false`, or take the entry out of `limits.protected`, "
        "apply, and plan again; for a volume whose "
        "document is gone, write `removed: [{from: volume/NAME, destroy: false}]` in the project "
        "document to keep its data, or `destroy: true` to delete it",
    ),
    "looks-renamed": Code(
        "a volume, task or fleet is declared no more, and a new one has the same fields: the plan deletes "
        "one and makes the other; a warning",
        "name: store  # it was `data`",
        "if it was renamed, write the `moved` entry of the message in the `project` document; else nothing",
    ),
    "protection-ends": Code(
        "a volume or node would be deleted or replaced, and this plan takes away its `prevent_destroy`, or "
        "records that `limits.protected` does not name it any more; it only does that, so that no single "
        "apply ends a protection and uses it; a warning",
        "prevent_destroy: false  # and another `region`, in one change",
        "apply, then plan again: that plan shows what is lost; or undo the change",
    ),
    "skipped-recorded": Code(
        "something is recorded, and its document exists but was not used, so a plan would delete it",
        "type: service  # of what was a task, and runs",
        "do what the warning beside it says, so that the document is used; or remove the document if what "
        "it declares may be deleted",
    ),
    "drained": Code(
        "a node takes no new work because somebody drained it; what runs on it goes on; a warning",
        "fleetform drain gpu-3 --reason 'bad NIC'",
        "`fleetform undrain NODE` gives it work again; `fleetform apply --replace node/NAME` makes it anew",
    ),
    "node-mismatch": Code(
        "a node no longer keeps its fleet's limits, or its fleet has more nodes than its maximum, but "
        "the node is in use; a warning",
        "lowering `max_price` while a task runs",
        "nothing: it is replaced once it is idle, or deleted if it is above the maximum",
    ),
    "gang-address": Code(
        "hosts of a gang have the same address, or one that no other host reaches: loopback or link-local, "
        "as behind port forwards and on bridges of containers",
        "two hosts behind `ssh -R`, whose sshd sees 127.0.0.1",
        "write `network` in `ssh_config`, or `internal_ip` at each host; or `placement: any`, if ranks need "
        "no others",
    ),
    "host-not-ready": Code(
        "a host cannot be reached or is not fit for work, so it is not a node for now; or no host was "
        "contacted, so the host's resources are unknown; a warning",
        "a host that is off",
        "fix what the message names; `fleetform plan` shows what becomes of the host then",
    ),
    "host-key-unknown": Code(
        "hosts offer keys that are neither declared nor in a file of known hosts, so they are not used; the "
        "message has the lines to write; a warning",
        "hosts that nobody of this machine has logged in to",
        "`fleetform hosts trust` shows the fingerprints and, where you agree, writes the keys as "
        "`host_keys`: compare them with those that `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` "
        "shows on the hosts",
    ),
    "host-key-changed": Code(
        "a host offers another key than the one that is declared, or in the file of known hosts: it was set "
        "up anew, or another machine poses as it; it is not used; a warning in plans, an error of `hosts "
        "trust`",
        "a host that was installed again",
        "ask who runs it; then `fleetform hosts trust --replace` writes the new key in place of the old one",
    ),
    "identity-refused": Code(
        "hosts refuse the login with the private key at this line, or with those of the agent and `~/.ssh`, "
        "so they are not used; a warning",
        "identity_file: ~/.ssh/of-another-fleet",
        "name the right file, or append its public half to `~/.ssh/authorized_keys` of that user there "
        "(`ssh-copy-id -i FILE USER@HOST`)",
    ),
    "node-not-ready": Code(
        "a node takes no work, and no action of the plan changes that: it does not answer, is not fit, or "
        "this `apply` has no key for it; `plan --detailed-exitcode` exits 2; a warning",
        "a host that is off; at an `apply`, nodes of a cloud whose private key only another machine has",
        "fix what the message names; `fleetform state rm` forgets a node that is lost for good",
    ),
    "no-node-key": Code(
        "a plan was made without the private key of a cloud's nodes: they count as they are recorded, and "
        "ranks that ended since the last `apply` count as running; a warning",
        "the plan of a pull request, whose job gets no FLEETFORM_IDENTITY",
        "nothing in CI; elsewhere set FLEETFORM_IDENTITY: docs/clouds.md",
    ),
    "volume-waits": Code(
        "a volume is not made for now, because it is made for the first rank that mounts it: it is on a "
        "host's disk and has no `host`, or it has an `auto_cleanup_duration`; a warning",
        "type: volume\nname: data\nbackend: ssh\nsize: 100GB",
        "write `host:`, or mount it in a task: it is made on the host of that rank, and stays there",
    ),
    "volume-gone": Code(
        "a recorded volume is gone; it is not made anew by itself, since a new one would be empty, and tasks "
        "that mount it wait; `plan --detailed-exitcode` exits 2; a warning",
        "somebody deleted the disk in the cloud's console",
        "nothing, if it comes back, as after a wrong listing; `fleetform apply --replace volume/NAME` makes "
        "an empty one; to forget it, remove its document and write `removed: [{from: volume/NAME, destroy: "
        "false}]` in the project document",
    ),
    "cleaned-folder": Code(
        "the folder of a node or a host, with its volumes and exit codes, is where old files are deleted "
        "(`/tmp`, `/var/tmp`, or by a rule of systemd-tmpfiles), or it is `/var/tmp/fleetform-<uid>`, the "
        "default of earlier versions; a warning",
        "type: backend\nname: ssh\noptions: {root: /var/tmp/fleet}  # and the user is not root there",
        "run the command that the message names: it moves the folder, or excludes it; docs/hosts.md",
    ),
    "blocks-wait": Code(
        "`blocks` changed, but ranks run on the node; a warning",
        "blocks: 4  # it was 2",
        "nothing: the node is split anew once it is idle",
    ),
    "backend-unreadable": Code(
        "a backend did not answer, so nothing is known of its things: they count neither as present nor as "
        "gone",
        "a cloud that is down, or credentials that have expired",
        "fix what the message names, and run the command again",
    ),
    "backend-refuses": Code(
        "a backend was asked whether it would carry out the plan, and it would not; nothing was made",
        "credentials that are wrong, an image that is gone, a clock that is off",
        "fix what the message names, and plan again; `plan --offline` asks no backend",
    ),
    "another-state": Code(
        "the state is empty, and its backend has things at the addresses of this plan that another state of "
        "the same project made: this state would make them a second time; a warning if they do not say of "
        "which project they are",
        "the file of the state was deleted, or another folder has it",
        "`fleetform state restore` brings the state back, `--state URL` names another one; `state adopt` "
        "records things again (docs/state.md, A lost state); `apply --new-state` makes new ones, once, also "
        "for a loop",
    ),
    "missing-env": Code(
        "a rank needs an environment variable that is not set; this is checked before anything is made",
        "env: [HF_TOKEN]",
        "`export HF_TOKEN=…`, then run the command again",
    ),
    "taken-up": Code(
        "a command was interrupted; fleetform asked the backend what it had made, and recorded that",
        "`apply` was killed after it had asked for a volume",
        "nothing: what was done is adopted, and the rest is done with the same token",
    ),
    "orphan-there": Code(
        "the plan makes something that exists but is not recorded, as after `state restore`: its backend "
        "refuses to make it again",
        "a volume that was made after the backup that was restored",
        "`fleetform state adopt volume/x` records it; `fleetform destroy --orphans` deletes all orphans "
        "that have no `prevent_destroy`",
    ),
    "vanished": Code(
        "several things of one backend are missing at once, and the backend does not say that they ended: "
        "this is more likely a fault than the truth",
        "credentials of another account",
        "check whether they are gone; if so: `fleetform apply --accept-vanished`",
    ),
    "files-changed-later": Code(
        "the task has ended, and a folder that its `files` name has changed since. This alone does not run "
        "the task again. A change of its declaration does, and so does a change of a file that `files` "
        "names itself",
        "files: [data]  # and data/new.csv was added",
        "`fleetform apply --replace task/x` runs the task with them; otherwise nothing",
    ),
    "outside-schedule": Code(
        "the task has ended and its declaration changed, at a time at which its `schedule` lets it not run. "
        "It runs with the change at the next start",
        'schedule: {start: "0 8 * * *", stop: "0 20 * * *"}  # and its `commands` changed at night',
        "wait for the next start, or change the `schedule`",
    ),
    "small-disk": Code(
        "nodes with GPUs would start from a disk of less than 100 GB. Images of GPU software alone take 20 "
        "and more, and a full disk stops a task in the middle",
        "options: {disk_size: 20}",
        "set a larger `disk_size` in the backend's `options`, or write `resources: {disk: 100GB..}` where "
        "types differ",
    ),
}
PLACEMENT: dict[str, Code] = {
    "never-fits": Code(
        "the task would have no place even if all running tasks had ended, every node were ready and every "
        "fleet had grown to its maximum: waiting does not help",
        "resources: {gpu: 16}  # and no node has more than 8",
        "change the task, the fleets or the `limit` of the offers; the rejections say what",
    ),
    "no-capacity": Code(
        "the task would fit if running tasks had ended, nodes were ready, or others had nodes launched",
        "nodes: 4  # and three nodes are idle",
        "wait until tasks have ended and run `fleetform apply` again, or let the fleet grow",
    ),
    "runs-already": Code(
        "a rank of the task runs and is not recorded, for example after the state was restored from a "
        "backup. A second start would run it twice at once, with the same checkpoints and results",
        "task/train: rank/train-0 runs on node/gpu-0 and is not recorded",
        "`fleetform state adopt rank/train-0` to let it go on, `fleetform stop train` to stop it",
    ),
}
STRUCTURAL: dict[str, Code] = {
    "fleet": Code(
        "the task's `fleets` does not name the fleet",
        "fleets: [gpu]",
        "add the fleet to the task's `fleets`, or leave the field out",
    ),
    "not-cluster": Code(
        "a task whose ranks talk to each other needs a fleet whose nodes are in one network",
        "nodes: 2  # and the fleet has no `placement: cluster`",
        "set `placement: cluster` on the fleet, or `placement: any` on the task",
    ),
    "instance": Code(
        "the task's `instances` does not name the node; `instances` never launches nodes",
        "instances: [gpu-0]",
        "add the node to the task's `instances`, or leave the field out",
    ),
    "backend": Code(
        "the task does not allow its backend",
        "backends: [lab]",
        "widen the task's `backends`",
    ),
    "region": Code(
        "the task does not allow its region, or the task's other ranks are in another one",
        "regions: [us-east-1]",
        "widen the task's `regions`; ranks of a cluster task stay in one fleet, backend and region",
    ),
    "zone": Code(
        "the other ranks of the cluster lie in another zone",
        'volumes: ["data-${{ node_rank }}:/data"]  # data-0 lies in one zone, data-1 in another',
        "set `same: region` on the task or its fleet if the ranks may lie in several zones",
    ),
    "topology": Code(
        "the other ranks lie elsewhere at the level of `same`, or the host does not declare its place",
        "same: rack  # and a host has no `topology: {rack: r1}`",
        "declare the `topology` of every host, or choose a wider level such as `zone`",
    ),
    "spread": Code(
        "another rank of the task is there already, and `spread` demands a different place for each",
        "spread: zone  # of 4 ranks, in a region of 3 zones",
        "ask for fewer `nodes`, choose a narrower level such as `node`, or leave out `spread`",
    ),
    "gpu-vendor": Code(
        "its GPUs are of another vendor than those of the task's other ranks, or of a model without a known"
        " vendor: a gang does not mix vendors",
        "nodes: 2, where one host has H100 and the other MI300X",
        "to allow a mix: name models of both in `gpu` (`H100,MI300X:8`), or name nodes of both in "
        "`instances`",
    ),
    "spot": Code(
        "it is spot and the task asks for on-demand, or the other way round",
        "spot_policy: spot",
        "set the task's `spot_policy: auto`",
    ),
    "price": Code(
        "the node or the offer costs more than `max_price`",
        "max_price: 2",
        "raise `max_price`",
    ),
    "price-unknown": Code(
        "its price is unknown, so it may be above `max_price`",
        "max_price: 2  # and the backend reports no prices",
        "declare the price in the backend's `catalog`, or leave `max_price` out",
    ),
    "isolation": Code(
        "the task asks for limits that the kernel enforces, and the host cannot set them, or its backend "
        "cannot promise them: Slurm confines ranks by its own configuration",
        "isolation: hard  # and the host lets its user make no cgroups",
        "make the host's user root, or delegate cgroups to that user; or leave `isolation` out: the host "
        "then limits ranks to their blocks as well as it can",
    ),
    "no-runtime": Code(
        "the task has an `image`, and the host has neither podman nor docker that this user can use",
        "image: python:3.12  # and podman is not installed",
        "install podman there, or leave `image` out: ranks are then processes of the host",
    ),
    "too-small": Code(
        "even the whole node has less than a rank asks for",
        'resources: {gpu: "H100:8"}  # and the node has 4',
        "ask for less, or widen the fleet's `resources`; `short` says by how much",
    ),
    "too-large": Code(
        "every share of the node has more than a rank's upper bounds allow",
        "resources: {cpu: 2}  # exactly 2, and a block has 4",
        "widen the range (`cpu: 2..`); with `exclusive: false` a rank takes single blocks instead of a "
        "whole node",
    ),
    "volume-missing": Code(
        "a volume that the rank mounts does not exist",
        "volumes: ['data-0:/data']  # and data-0 could not be made",
        "declare it; `--replace` and removals elsewhere in the plan may be the cause",
    ),
    "volume-elsewhere": Code(
        "a volume that the rank mounts is in another backend, region or zone",
        "a volume in us-east-1 and a node in us-west-2",
        "put the task and its volumes into one place, or name alternatives: `name: [data-a, data-b]`",
    ),
    "no-offer": Code(
        "no backend offers a node that the fleet's own limits allow",
        "regions: [eu-west-9]",
        "widen the fleet's `resources`, `max_price`, `backends` or `regions`",
    ),
}
CAPACITY: dict[str, Code] = {
    "not-ready": Code(
        "the node is not ready, or its readiness is unknown, which does not count as idle; or it is a host "
        "that is not ready, so it is not a node yet",
        "a node that cannot be reached",
        "`fleetform status` says why; wait, or repair the node",
    ),
    "drained": Code(
        "the node takes no new work: somebody drained it, and the detail says since when and why",
        "fleetform drain gpu-3 --reason 'bad NIC'",
        "`fleetform undrain NODE`, or let the fleet grow",
    ),
    "avoided": Code(
        "the task failed on the node at its start, or twice, and avoids it while another place fits",
        "a node whose GPU fails in every attempt",
        "nothing: if the task fits nowhere else, it goes there all the same; `fleetform drain NODE` keeps "
        "every task away",
    ),
    "offers-unknown": Code(
        "the backend could not be read, so its offers are not known",
        "a cloud that is down, or credentials that have expired",
        "fix what the warning about the backend names, and plan again",
    ),
    "closed": Code(
        "the node takes no new work because it will be replaced or deleted",
        "a node of a fleet whose limits have changed",
        "wait until it is replaced",
    ),
    "not-idle": Code(
        "the rank takes a whole node, and something runs on this one",
        "nodes: 2  # exclusive by default",
        "wait, or set `exclusive: false` on the task",
    ),
    "busy": Code(
        "too few of the node's blocks are idle",
        "a rank of two blocks, and one is idle",
        "wait, or let the fleet grow; `short` says how many blocks are missing",
    ),
    "volume-gone": Code(
        "a volume that the rank mounts is recorded, but gone; no plan makes it anew by itself",
        "volumes: ['data-0:/data']  # and somebody deleted data-0 at the cloud",
        "bring it back, or have an empty one made with `fleetform apply --replace volume/NAME`",
    ),
    "volume-busy": Code(
        "a volume that the rank mounts is attached for another rank",
        "two tasks that mount `data-0`",
        "wait until the other task has ended, or give each its own volume",
    ),
    "reuse-only": Code(
        "it would have to be launched, and the task only uses nodes that are launched for others",
        "creation_policy: reuse",
        "set `creation_policy: reuse-or-create`, raise the fleet's `nodes`, or wait until another task gets "
        "a node",
    ),
    "fleet-max": Code(
        "the fleet has as many nodes as its `nodes` allows",
        "nodes: 0..2  # and both are taken",
        "raise the fleet's `nodes`, or wait",
    ),
    "limit": Code(
        "the `limit` of the catalog's offer is reached",
        "limit: 2",
        "raise the `limit`, or wait",
    ),
}
SAVED: dict[str, Code] = {
    "not-a-plan": Code(
        "the file is not a plan that fleetform saved, or a part of it has the wrong type",
        "`fleetform apply main.yaml`",
        "name a file that `fleetform plan --out FILE` wrote",
    ),
    "not-a-report": Code(
        "`--expect` names neither a digest nor a report of a plan",
        "`fleetform apply --expect plan.txt`",
        "name `sha256:…`, or a report that ends in .md, .html or .json",
    ),
    "not-converted": Code(
        "a document of dstack or SkyPilot that `fleetform import` could not convert without changing what it "
        "means; it is a comment in what was printed, and a warning",
        'resources: {accelerators: "H100:many"}',
        "write the document by hand, from the comment",
    ),
    "not-overwritten": Code(
        "`--out` or `--report` names something that fleetform did not write: a link, a folder, another file",
        "`fleetform plan --out main.py`",
        "name another file, or remove this one",
    ),
    "plan-differs": Code(
        "the plan is neither what `--expect` names nor what is left of that: the message says what differs",
        "a node failed since the pull request was planned, and would be replaced too",
        "look at the new plan, and apply with its digest",
    ),
    "plan-edited": Code(
        "the file's checksum does not match: the file was edited, or damaged",
        "an editor that changed a command in it",
        "change the YAML, and plan again",
    ),
    "plan-files-changed": Code(
        "files that a task sends have changed since the plan was made",
        "`train.py` was edited after `fleetform plan --out FILE`",
        _PLAN_AGAIN + "; or undo the change",
    ),
    "plan-format": Code(
        "another version of fleetform saved the plan, in a format that this one does not carry out",
        "a colleague's newer version",
        "install the version that the message names, or plan again",
    ),
    "plan-gone": Code(
        "a node or volume vanished since the plan was made, or came back",
        "a spot instance that was taken away",
        _PLAN_AGAIN,
    ),
    "plan-key": Code(
        "a key for signing or checking plans cannot be used",
        "`fleetform plan --out FILE --sign ~/.ssh/id_rsa`",
        "use Ed25519 keys: `ssh-keygen -t ed25519`; the private one signs, the public one checks",
    ),
    "plan-node-state": Code(
        "the plan gives work to a node that is no longer ready, or cannot do what the task asks for",
        "a host that went down",
        "wait until it is ready, or plan again",
    ),
    "plan-offer-changed": Code(
        "an offer that the plan launches has changed: its price, its shape, or its number",
        "a spot price that rose",
        _PLAN_AGAIN,
    ),
    "plan-other-state": Code(
        "the plan was made for another state",
        "`fleetform apply FILE` in another project",
        "run it in the project's directory, or name its state with `--state`",
    ),
    "plan-outdated": Code(
        "what is recorded has changed since the plan was made; a plan that was applied is outdated by itself",
        "another `fleetform apply` in the meantime",
        _PLAN_AGAIN,
    ),
    "plan-rank-state": Code(
        "the plan relies on a rank that had ended, or that ran, and this is no longer so; or a rank that it "
        "lets run on has used up its new `max_duration` by now",
        "one rank of a task was to be started again, and the other has failed since then",
        _PLAN_AGAIN,
    ),
    "plan-signature": Code(
        "the signature of the saved plan is not valid: another key made it, or the plan was changed since",
        "a plan that was edited on its way from the review",
        "plan again, review the plan, and let an allowed key sign it",
    ),
    "plan-unsigned": Code(
        "a policy, or the caller, requires a signature, and the saved plan has none",
        "`fleetform apply FILE --signed-by team.pub` without a FILE.sig",
        "`fleetform plan --out FILE --sign KEY`, or `ssh-keygen -Y sign -n fleetform-plan -f KEY FILE`",
    ),
    "plan-recovered": Code(
        "a command was cut short after the plan was made, and had made something",
        "a killed `fleetform apply`",
        "`fleetform apply` records it; or plan again",
    ),
}
STATE: dict[str, Code] = {
    "bad-url": Code(
        "`--state` or `FLEETFORM_STATE` is not a URL that can be used; a user or a password in it is refused",
        "`--state mysql://…`",
        "write `sqlite:///path/to/state.db` or `postgresql://host/database`",
    ),
    "offline-state": Code(
        "the project keeps its state on a server, and a command with `--offline` contacts none",
        "state: postgresql://db.example.com/fleet\n… and `fleetform plan --offline`",
        "`fleetform state pull > state.json` where the server can be reached, then `plan --offline --state "
        "state.json`; or `plan --offline --assume-empty`",
    ),
    "state-moved": Code(
        "the project names a state that is empty, while its default state holds things: all of them would "
        "be made a second time",
        "`state: postgresql://…` was added to a project that had none",
        "move the state with `state pull` and `state push`, or name the right one with `--state`",
    ),
    "no-state": Code(
        "there is no state at that place",
        "a mistyped path in `--state`",
        "`fleetform apply` makes one; if there should be one already, correct the path",
    ),
    "not-a-state": Code(
        "the file is a database of something else; it was left as it is",
        "`--state sqlite:///shop.db`",
        "name another file",
    ),
    "no-driver": Code(
        "a state in PostgreSQL needs psycopg, an extra that is not installed",
        "`state: postgresql://db/fleet` after `pipx install .`",
        "in a clone: `pipx install --force '.[postgresql]'`; "
        "or in its environment: `pip install 'psycopg[binary]'`",
    ),
    "unreachable": Code(
        "the state's server cannot be reached, has stopped, or takes no more connections; a command that "
        "was at work has waited a minute for it",
        "a server that is being restarted, a firewall, a mistyped host",
        "check that it runs and can be reached, and run the command again: the journal has what was started",
    ),
    "no-database": Code(
        "the server has no database of that name",
        "`state: postgresql://db/flet`",
        "correct the name, or make the database (`createdb`); the first `apply` makes its tables",
    ),
    "not-authenticated": Code(
        "the server does not accept this user, or no user is given",
        "a password that has changed",
        "set user and password: PGUSER and PGPASSWORD, `~/.pgpass`, or a service of PGSERVICE",
    ),
    "not-allowed": Code(
        "the user lacks a right in the state's database",
        "the first `apply` by a user who may not make tables",
        "ask the database's owner for `GRANT CREATE ON SCHEMA …`, or for what the message names",
    ),
    "tls": Code(
        "the server and fleetform do not agree on TLS, or the server's certificate is not trusted",
        "`sslmode=disable` where the server wants TLS; `sslmode=verify-full` without `sslrootcert`",
        "set `sslmode` and `sslrootcert` in the URL, or PGSSLMODE and PGSSLROOTCERT",
    ),
    "busy": Code(
        "another process has kept the state's database busy for too long",
        "a backup that holds the file, or a session that holds the lock's row",
        "run the command again; nothing of the last step was recorded",
    ),
    "disk-full": Code(
        "the state could not be written: its disk is full",
        "none is needed",
        "make room and run the command again; nothing of the last step was recorded",
    ),
    "disk": Code(
        "the state's disk failed while it was read or written",
        "none is needed",
        "look into the system's log, and run the command again",
    ),
    "backup": Code(
        "no backup of the state could be made before all of it was to be changed; nothing was changed",
        "a full disk, when an upgrade brings the state to a new format",
        "make room, and make the folder that the message names writable",
    ),
    "newer-format": Code(
        "a newer fleetform wrote the state",
        "a colleague has upgraded",
        "install at least the version that the message names",
    ),
    "older-format": Code(
        "an older fleetform wrote the state, and this command does not change it",
        "`fleetform status` right after an upgrade",
        "`fleetform apply` brings it to the new format",
    ),
    "damaged": Code(
        "the state's file cannot be read, or its records are not those that fleetform wrote",
        "a file that was cut short by a full disk",
        "`fleetform state restore` restores the newest backup (`state list-backups`); what was made "
        "since then still carries its tags, and the next `plan` finds it",
    ),
    "no-backup": Code(
        "there is no backup of the state, or none could be written",
        "a project folder that cannot be written",
        "make `.fleetform/backups` writable, or name a file that `state pull` printed: `state restore FILE`",
    ),
    "database": Code(
        "the database refused the request; the message quotes it",
        "a full disk, or another process that holds the file for long",
        "fix what the message names, and run the command again",
    ),
    "read-only": Code(
        "the state cannot be written",
        "a state of another user",
        "make the file and its directory writable, or name another with `--state`",
    ),
    "constraint": Code(
        "the database refused a record that contradicts others: a fault of fleetform",
        "none is known",
        "report it; nothing was written",
    ),
    "locked": Code(
        "another command writes the state",
        "two `fleetform apply` at once",
        "wait for it, or let the command wait: `--lock-timeout 10m`; if the holder cannot be reached any "
        "more: `fleetform state unlock`",
    ),
    "unknown-digest": Code(
        "no waiting plan has the digest that `fleetform approve` was given, or several digests begin with it",
        "the digest of a plan that has changed since",
        "`fleetform approve` lists the plans that wait: approve one of them",
    ),
    "git-failed": Code(
        "`fleetform reconcile --git` cannot use a repository, a branch or a commit",
        "a branch that does not exist, a login that has lapsed",
        "as the message says; meanwhile the last usable commit stays in force",
    ),
    "lock-changed": Code(
        "`state unlock` was told to take the lock from one holder, and now another one holds it",
        "`fleetform state unlock OWNER` after that command has ended",
        "look again at who holds it",
    ),
    "stale-lease": Code(
        "the lock was taken away while the command ran; it writes nothing more",
        "a machine that slept during `apply`",
        "run the command again: it first reads back what was started",
    ),
    "double-booking": Code(
        "a block would be reserved twice",
        "two writers at once",
        "run the command again; if it stays, report it",
    ),
    "no-such-block": Code(
        "the plan reserves a block that the node does not have",
        "a plan that was made before the node was split anew",
        "plan again",
    ),
    "missing-need": Code(
        "a record needs another one that does not exist",
        "a rank without its node",
        "plan again; if it stays, report it",
    ),
    "still-needed": Code(
        "a record cannot be forgotten because another one needs it",
        "a node with a rank on it",
        "first remove what the message names; `fleetform state rm --cascade` forgets it too",
    ),
    "not-recorded": Code(
        "the thing to change is not recorded",
        "an address that another command has removed",
        "plan again",
    ),
    "exists": Code(
        "the thing is recorded already",
        "`fleetform state mv` to a name that something else has",
        "plan again, or choose another name",
    ),
    "already-owned": Code(
        "one thing of a backend would belong to two addresses",
        "two volumes with one `volume_id`",
        "remove one of the two",
    ),
    "bad-state": Code(
        "the input of `state push` is not what `state pull` prints",
        "a file that was edited by hand, or cut short",
        "pull it again, and push it as it is",
    ),
    "contradiction": Code(
        "the state to push contradicts itself; nothing was changed",
        "a file from which somebody removed a node by hand, but not its reservations",
        "run `fleetform state check` where it comes from; remove a record with `fleetform state rm`",
    ),
    "other-lineage": Code(
        "the state to push has another lineage than the existing one; fleetform would lose track of "
        "everything that the state there records",
        "`fleetform state push` in the wrong project",
        "name an empty state with `--state`; `--force` replaces a state that records nothing",
    ),
    "copied-state": Code(
        "the project's folder is a copy, and must not change what the original made",
        "`cp -r` of a project, a clone of a repository that holds `.fleetform`, or of a machine",
        "`fleetform state adopt-folder` if this folder is the state's place now; otherwise remove the "
        "copy's `.fleetform`",
    ),
    "older-state": Code(
        "the state to push is not newer than the existing one",
        "a backup, after another apply",
        "compare it with `fleetform state pull`; `--force` pushes it anyway, and keeps a backup",
    ),
    "name-in-use": Code(
        "the backend still knows a renamed thing by this name",
        "`fleetform state mv volume/data volume/store`, and then another volume `data`",
        "declare another name, or rename the thing back with the command of the hint",
    ),
    "other-project": Code(
        "the state belongs to a project of another `name`: in the wrong folder or shell, what is declared "
        "here would delete what is recorded there",
        "`fleetform -C staging apply` with FLEETFORM_STATE of prod",
        "change into the folder of that project, or name this one's state; after you renamed the project: "
        "`fleetform state adopt-project`",
    ),
    "open-intent": Code(
        "a call to a backend was started, and its result is not known",
        "a command that was killed",
        "run `fleetform apply`: it first reads back what was started",
    ),
    "closed-intent": Code(
        "the result of a call came twice",
        "a command that lost its lock",
        "run the command again",
    ),
}
COMMAND: dict[str, Code] = {
    "forge": Code(
        "GitHub or GitLab does not answer, or not as it should",
        "a fault of the network in a job that runs `fleetform ci comment`",
        "run the job again",
    ),
    "forge-denied": Code(
        "the job's token may not do what was asked",
        "`fleetform ci approved` in a job without `GITHUB_TOKEN`",
        "give the job a token with the rights that docs/ci.md names",
    ),
    "usage": Code(
        "the command's arguments cannot be understood",
        "`fleetform logs train/x`",
        "write what the hint shows; `--help` has examples",
    ),
    "unknown-address": Code(
        "nothing has that address; a warning for an entry of `moved`, `removed` or `limits.protected` that "
        "names nothing, and was probably mistyped",
        "`fleetform state show node/gpu-9`",
        "`fleetform state list` shows what is recorded",
    ),
    "unknown-attempt": Code(
        "the task has no such attempt, or the state's history does not go back that far",
        "`fleetform logs train --attempt 9`",
        "`fleetform status` shows each rank's last attempt; the message lists those that are remembered",
    ),
    "unknown-rank": Code(
        "the task has no such rank",
        "`fleetform logs train/9`",
        "the hint names the ranks",
    ),
    "unknown-node": Code(
        "there is no node of that name",
        "`fleetform ssh gpu-9`",
        "the hint names the nodes",
    ),
    "not-running": Code(
        "the rank does not run, so no command can run beside it",
        "`fleetform exec train/0` after it has ended",
        "`fleetform logs` has what it printed; `fleetform ssh` leads to its node",
    ),
    "not-run": Code(
        "the task has not run",
        "`fleetform logs train` before `fleetform apply`",
        "the hint names tasks that have",
    ),
    "gone": Code(
        "the node of a rank is gone, and its output with it",
        "`fleetform logs train` after its fleet was removed",
        "write what has to outlive a node to a volume",
    ),
    "backend": Code(
        "a backend did not do what the command needs",
        "a host that cannot be reached",
        "fix what the message names, and run the command again",
    ),
    "backend-busy": Code(
        "an action failed: the backend was asked several times, and did not answer or was busy",
        "a cloud that throttles requests for longer than an action may take",
        "run `fleetform apply` again: it continues where this one ended",
    ),
    "backend-no-capacity": Code(
        "an action failed: the cloud has no capacity for what was to be launched",
        "a spot market that is sold out",
        "run `fleetform apply` later, or allow more `regions` or `instance_types`",
    ),
    "backend-quota": Code(
        "an action failed: the account's quota does not allow it",
        "eight GPUs, in an account with a quota of 0",
        "have the quota raised, or declare fewer",
    ),
    "backend-auth": Code(
        "an action failed: the backend does not allow it with these credentials",
        "a key that may not launch instances",
        "fix the credentials or their rights, and run `fleetform apply` again",
    ),
    "backend-refused": Code(
        "an action failed: the backend refuses the request",
        "a subnet that does not exist",
        "fix what the message names, and run `fleetform apply` again",
    ),
    "action-failed": Code(
        "an action failed, and the backend is not the cause",
        "a rank needs an environment variable that is not set",
        "fix what the message names, and run `fleetform apply` again",
    ),
    "no-forge": Code(
        "the command does not run in a job of GitHub Actions or GitLab CI",
        "`fleetform ci comment plan.md` at a terminal",
        "write the report to a file: `fleetform plan --report plan.md`",
    ),
    "runner-state": Code(
        "a CI job applies an approved plan, and no state is named",
        "`fleetform apply --expect plan.md` in GitHub Actions, where FLEETFORM_STATE is empty",
        "keep the state on a server: `state: postgresql://…` in the project, or FLEETFORM_STATE",
    ),
    "not-approved": Code(
        "the command has to ask, and there is no terminal to ask on",
        "`fleetform apply` in CI",
        "look at the plan, then add `--auto-approve`",
    ),
    "declined": Code(
        "the prompt was not answered with `yes`; nothing was done",
        "Enter at the prompt",
        "answer `yes`, or change the project",
    ),
    "not-empty": Code(
        "`init` needs a directory without YAML files",
        "`fleetform init` twice",
        "run `fleetform plan`, or use an empty directory",
    ),
    "stale-schema": Code(
        "the committed schemas are not those of this version",
        "`fleetform schema --check` after a field was added",
        "run `fleetform schema --write`",
    ),
    "not-edited": Code(
        "`hosts trust` does not write keys into a file: its hosts come from a template or an alias, or it "
        "was changed meanwhile",
        "hosts: ${{ var.hosts }}",
        "write the lines of the message where the hosts come from; or run the command again",
    ),
    "unwritable": Code(
        "a file cannot be written",
        "`fleetform fmt` in a directory that you may only read",
        "the message quotes the system; make it writable",
    ),
    "internal-error": Code(
        "`fmt` would have changed what the file means: a fault of fleetform; the file was left as it is",
        "none is known",
        "report it, with the file",
    ),
}

BY_CHAPTER: Mapping[Chapter, Mapping[str, Code]] = {
    Chapter.YAML: YAML,
    Chapter.LANGUAGE: LANGUAGE,
    Chapter.TEMPLATES: TEMPLATES,
    Chapter.REFERENCES: REFERENCES,
    Chapter.PLANNING: PLANNING,
    Chapter.PLACEMENT: PLACEMENT,
    Chapter.STRUCTURAL: STRUCTURAL,
    Chapter.CAPACITY: CAPACITY,
    Chapter.SAVED: SAVED,
    Chapter.STATE: STATE,
    Chapter.COMMAND: COMMAND,
}
REJECTIONS: dict[str, Code] = {**STRUCTURAL, **CAPACITY}
CODES: dict[str, Code] = {
    code: entry
    for chapter, entries in BY_CHAPTER.items()
    if chapter not in (Chapter.STRUCTURAL, Chapter.CAPACITY)
    for code, entry in entries.items()
}
