"""Codes of the planner, and of placement in particular."""

from __future__ import annotations

from declarative.model.codes.entry import Chapter, Code

PLANNING: dict[str, Code] = {
    "blocks-do-not-divide": Code(
        Chapter.PLANNING,
        "the number of blocks does not divide both the CPUs and the GPUs of the fleet's nodes",
        "blocks: 3  # on nodes with 8 CPUs",
        "write one of the numbers in the hint, or `blocks: auto`, the largest of them",
    ),
    "no-offer": Code(
        Chapter.PLANNING,
        "no offer of the backends is within the fleet's limits, so the fleet cannot reach its size",
        "max_price: 0.01",
        "widen the fleet's `resources`, `max_price`, `backends` or `regions`, or lower its `nodes`",
    ),
    "unknown-region": Code(
        Chapter.PLANNING,
        "a fleet or a task names a region that none of its backends has",
        "regions: [us-east-1, us-wset-2]",
        "write the region as the backend has it, or add it to the `regions` of a backend",
    ),
    "no-backend": Code(
        Chapter.PLANNING,
        "a fleet asks for GPUs, and no declared backend could launch its nodes; this machine counts only if"
        " the fleet names it",
        "type: fleet\nname: gpu\nnodes: 1\nresources: {gpu: 8}",
        "declare a cloud (`type: backend`) or hosts (`ssh_config`); to rehearse on this machine, without the "
        "GPUs, write `backends: [local]` in the fleet",
    ),
    "no-partition": Code(
        Chapter.PLANNING,
        "a fleet names a `partition` or `reservation` that its Slurm cluster does not have or does not show",
        "partition: gpuu",
        "write one that `sinfo -s` or `scontrol show reservation` lists for your user on the login node",
    ),
    "rehearsal": Code(
        Chapter.PLANNING,
        "nodes of the driver `local` are declared with GPUs that this machine does not have, or `--offline`"
        " did not look for them; a warning",
        'backends: [local]\nresources: {gpu: "H100:8"}',
        "nothing, if you mean a rehearsal; for real GPUs, name a cloud's backend or declare hosts",
    ),
    "over-limit": Code(
        Chapter.PLANNING,
        "a plan exceeds the project's `limits`, or a price that counts is unknown; a warning if they were "
        "exceeded already and the plan does not add to it",
        "limits: {cost_per_hour: 10}  # and a fleet of ten nodes at 2 USD",
        "declare less, or raise the limit in a change of its own",
    ),
    "protected": Code(
        Chapter.PLANNING,
        "a volume or node with `prevent_destroy`, or in the project's `limits.protected`, would be deleted "
        "or replaced; volumes have it unless they say otherwise",
        "removing a volume's document while the volume exists",
        "undo the change; or set `prevent_destroy: false`, or take the entry out of `limits.protected`, "
        "apply, and plan again; for a volume whose "
        "document is gone, write `removed: [{from: volume/NAME, destroy: false}]` in the project "
        "document to keep its data, or `destroy: true` to delete it",
    ),
    "looks-renamed": Code(
        Chapter.PLANNING,
        "a volume, task or fleet is declared no more, and a new one has the same fields: the plan deletes "
        "one and makes the other; a warning",
        "name: store  # it was `data`",
        "if it was renamed, write the `moved` entry of the message in the `project` document; else nothing",
    ),
    "protection-ends": Code(
        Chapter.PLANNING,
        "a volume or node would be deleted or replaced, and this plan takes away its `prevent_destroy`, or "
        "records that `limits.protected` does not name it any more; it only does that, so that no single "
        "apply ends a protection and uses it; a warning",
        "prevent_destroy: false  # and another `region`, in one change",
        "apply, then plan again: that plan shows what is lost; or undo the change",
    ),
    "skipped-recorded": Code(
        Chapter.PLANNING,
        "something is recorded, and its document exists but was not used, so a plan would delete it",
        "type: service  # of what was a task, and runs",
        "do what the warning beside it says, so that the document is used; or remove the document if what "
        "it declares may be deleted",
    ),
    "drained": Code(
        Chapter.PLANNING,
        "a node takes no new work because somebody drained it; what runs on it goes on; a warning",
        "fleetform drain gpu-3 --reason 'bad NIC'",
        "`fleetform undrain NODE` gives it work again; `fleetform apply --replace node/NAME` makes it anew",
    ),
    "node-mismatch": Code(
        Chapter.PLANNING,
        "a node no longer keeps its fleet's limits, or its fleet has more nodes than its maximum, but "
        "the node is in use; a warning",
        "lowering `max_price` while a task runs",
        "nothing: it is replaced once it is idle, or deleted if it is above the maximum",
    ),
    "gang-address": Code(
        Chapter.PLANNING,
        "hosts of a gang have the same address, or one that no other host reaches: loopback or link-local, "
        "as behind port forwards and on bridges of containers",
        "two hosts behind `ssh -R`, whose sshd sees 127.0.0.1",
        "write `network` in `ssh_config`, or `internal_ip` at each host; or `placement: any`, if ranks need "
        "no others",
    ),
    "host-not-ready": Code(
        Chapter.PLANNING,
        "a host cannot be reached or is not fit for work, so it is not a node for now; or no host was "
        "contacted, so the host's resources are unknown; a warning",
        "a host that is off",
        "fix what the message names; `fleetform plan` shows what becomes of the host then",
    ),
    "host-key-unknown": Code(
        Chapter.PLANNING,
        "hosts offer keys that are neither declared nor in a file of known hosts, so they are not used; the "
        "message has the lines to write; a warning",
        "hosts that nobody of this machine has logged in to",
        "`fleetform hosts trust` shows the fingerprints and, where you agree, writes the keys as "
        "`host_keys`: compare them with those that `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` "
        "shows on the hosts",
    ),
    "host-key-changed": Code(
        Chapter.PLANNING,
        "a host offers another key than the one that is declared, or in the file of known hosts: it was set "
        "up anew, or another machine poses as it; it is not used; a warning in plans, an error of `hosts "
        "trust`",
        "a host that was installed again",
        "ask who runs it; then `fleetform hosts trust --replace` writes the new key in place of the old one",
    ),
    "identity-refused": Code(
        Chapter.PLANNING,
        "hosts refuse the login with the private key at this line, or with those of the agent and `~/.ssh`, "
        "so they are not used; a warning",
        "identity_file: ~/.ssh/of-another-fleet",
        "name the right file, or append its public half to `~/.ssh/authorized_keys` of that user there "
        "(`ssh-copy-id -i FILE USER@HOST`)",
    ),
    "node-not-ready": Code(
        Chapter.PLANNING,
        "a node takes no work, and no action of the plan changes that: it does not answer, is not fit, or "
        "this `apply` has no key for it; `plan --detailed-exitcode` exits 2; a warning",
        "a host that is off; at an `apply`, nodes of a cloud whose private key only another machine has",
        "fix what the message names; `fleetform state rm` forgets a node that is lost for good",
    ),
    "no-node-key": Code(
        Chapter.PLANNING,
        "a plan was made without the private key of a cloud's nodes: they count as they are recorded, and "
        "ranks that ended since the last `apply` count as running; a warning",
        "the plan of a pull request, whose job gets no FLEETFORM_IDENTITY",
        "nothing in CI; elsewhere set FLEETFORM_IDENTITY: docs/clouds.md",
    ),
    "volume-waits": Code(
        Chapter.PLANNING,
        "a volume is not made for now, because it is made for the first rank that mounts it: it is on a "
        "host's disk and has no `host`, or it has an `auto_cleanup_duration`; a warning",
        "type: volume\nname: data\nbackend: ssh\nsize: 100GB",
        "write `host:`, or mount it in a task: it is made on the host of that rank, and stays there",
    ),
    "volume-gone": Code(
        Chapter.PLANNING,
        "a recorded volume is gone; it is not made anew by itself, since a new one would be empty, and tasks "
        "that mount it wait; `plan --detailed-exitcode` exits 2; a warning",
        "somebody deleted the disk in the cloud's console",
        "nothing, if it comes back, as after a wrong listing; `fleetform apply --replace volume/NAME` makes "
        "an empty one; to forget it, remove its document and write `removed: [{from: volume/NAME, destroy: "
        "false}]` in the project document",
    ),
    "cleaned-folder": Code(
        Chapter.PLANNING,
        "the folder of a node or a host, with its volumes and exit codes, is where old files are deleted "
        "(`/tmp`, `/var/tmp`, or by a rule of systemd-tmpfiles), or it is `/var/tmp/fleetform-<uid>`, the "
        "default of earlier versions; a warning",
        "type: backend\nname: ssh\noptions: {root: /var/tmp/fleet}  # and the user is not root there",
        "run the command that the message names: it moves the folder, or excludes it; docs/hosts.md",
    ),
    "blocks-wait": Code(
        Chapter.PLANNING,
        "`blocks` changed, but ranks run on the node; a warning",
        "blocks: 4  # it was 2",
        "nothing: the node is split anew once it is idle",
    ),
    "backend-unreadable": Code(
        Chapter.PLANNING,
        "a backend did not answer, so nothing is known of its things: they count neither as present nor as "
        "gone",
        "a cloud that is down, or credentials that have expired",
        "fix what the message names, and run the command again",
    ),
    "backend-refuses": Code(
        Chapter.PLANNING,
        "a backend was asked whether it would carry out the plan, and it would not; nothing was made",
        "credentials that are wrong, an image that is gone, a clock that is off",
        "fix what the message names, and plan again; `plan --offline` asks no backend",
    ),
    "another-state": Code(
        Chapter.PLANNING,
        "the state is empty, and its backend has things at the addresses of this plan that another state of "
        "the same project made: this state would make them a second time; a warning if they do not say of "
        "which project they are",
        "the file of the state was deleted, or another folder has it",
        "`fleetform state restore` brings the state back, `--state URL` names another one; `state adopt` "
        "records things again (docs/state.md, A lost state); `apply --new-state` makes new ones, once, also "
        "for a loop",
    ),
    "missing-env": Code(
        Chapter.PLANNING,
        "a rank needs an environment variable that is not set; this is checked before anything is made",
        "env: [HF_TOKEN]",
        "`export HF_TOKEN=…`, then run the command again",
    ),
    "taken-up": Code(
        Chapter.PLANNING,
        "a command was interrupted; fleetform asked the backend what it had made, and recorded that",
        "`apply` was killed after it had asked for a volume",
        "nothing: what was done is adopted, and the rest is done with the same token",
    ),
    "orphan-there": Code(
        Chapter.PLANNING,
        "the plan makes something that exists but is not recorded, as after `state restore`: its backend "
        "refuses to make it again",
        "a volume that was made after the backup that was restored",
        "`fleetform state adopt volume/x` records it; `fleetform destroy --orphans` deletes all orphans "
        "that have no `prevent_destroy`",
    ),
    "vanished": Code(
        Chapter.PLANNING,
        "several things of one backend are missing at once, and the backend does not say that they ended: "
        "this is more likely a fault than the truth",
        "credentials of another account",
        "check whether they are gone; if so: `fleetform apply --accept-vanished`",
    ),
    "files-changed-later": Code(
        Chapter.PLANNING,
        "the task has ended, and a folder that its `files` name has changed since. This alone does not run "
        "the task again. A change of its declaration does, and so does a change of a file that `files` "
        "names itself",
        "files: [data]  # and data/new.csv was added",
        "`fleetform apply --replace task/x` runs the task with them; otherwise nothing",
    ),
    "outside-schedule": Code(
        Chapter.PLANNING,
        "the task has ended and its declaration changed, at a time at which its `schedule` lets it not run. "
        "It runs with the change at the next start",
        'schedule: {start: "0 8 * * *", stop: "0 20 * * *"}  # and its `commands` changed at night',
        "wait for the next start, or change the `schedule`",
    ),
    "small-disk": Code(
        Chapter.PLANNING,
        "nodes with GPUs would start from a disk of less than 100 GB. Images of GPU software alone take 20 "
        "and more, and a full disk stops a task in the middle",
        "options: {disk_size: 20}",
        "set a larger `disk_size` in the backend's `options`, or write `resources: {disk: 100GB..}` where "
        "types differ",
    ),
    "never-fits": Code(
        Chapter.PLACEMENT,
        "the task would have no place even if all running tasks had ended, every node were ready and every "
        "fleet had grown to its maximum: waiting does not help",
        "resources: {gpu: 16}  # and no node has more than 8",
        "change the task, the fleets or the `limit` of the offers; the rejections say what",
    ),
    "no-capacity": Code(
        Chapter.PLACEMENT,
        "the task would fit if running tasks had ended, nodes were ready, or others had nodes launched",
        "nodes: 4  # and three nodes are idle",
        "wait until tasks have ended and run `fleetform apply` again, or let the fleet grow",
    ),
    "runs-already": Code(
        Chapter.PLACEMENT,
        "a rank of the task runs and is not recorded, for example after the state was restored from a "
        "backup. A second start would run it twice at once, with the same checkpoints and results",
        "task/train: rank/train-0 runs on node/gpu-0 and is not recorded",
        "`fleetform state adopt rank/train-0` to let it go on, `fleetform stop train` to stop it",
    ),
}

STRUCTURAL: dict[str, Code] = {
    "fleet": Code(
        Chapter.STRUCTURAL,
        "the task's `fleets` does not name the fleet",
        "fleets: [gpu]",
        "add the fleet to the task's `fleets`, or leave the field out",
    ),
    "not-cluster": Code(
        Chapter.STRUCTURAL,
        "a task whose ranks talk to each other needs a fleet whose nodes are in one network",
        "nodes: 2  # and the fleet has no `placement: cluster`",
        "set `placement: cluster` on the fleet, or `placement: any` on the task",
    ),
    "instance": Code(
        Chapter.STRUCTURAL,
        "the task's `instances` does not name the node; `instances` never launches nodes",
        "instances: [gpu-0]",
        "add the node to the task's `instances`, or leave the field out",
    ),
    "backend": Code(
        Chapter.STRUCTURAL,
        "the task does not allow its backend",
        "backends: [lab]",
        "widen the task's `backends`",
    ),
    "region": Code(
        Chapter.STRUCTURAL,
        "the task does not allow its region, or the task's other ranks are in another one",
        "regions: [us-east-1]",
        "widen the task's `regions`; ranks of a cluster task stay in one fleet, backend and region",
    ),
    "zone": Code(
        Chapter.STRUCTURAL,
        "the other ranks of the cluster lie in another zone",
        'volumes: ["data-${{ node_rank }}:/data"]  # data-0 lies in one zone, data-1 in another',
        "set `same: region` on the task or its fleet if the ranks may lie in several zones",
    ),
    "topology": Code(
        Chapter.STRUCTURAL,
        "the other ranks lie elsewhere at the level of `same`, or the host does not declare its place",
        "same: rack  # and a host has no `topology: {rack: r1}`",
        "declare the `topology` of every host, or choose a wider level such as `zone`",
    ),
    "spread": Code(
        Chapter.STRUCTURAL,
        "another rank of the task is there already, and `spread` demands a different place for each",
        "spread: zone  # of 4 ranks, in a region of 3 zones",
        "ask for fewer `nodes`, choose a narrower level such as `node`, or leave out `spread`",
    ),
    "gpu-vendor": Code(
        Chapter.STRUCTURAL,
        "its GPUs are of another vendor than those of the task's other ranks, or of a model without a known"
        " vendor: a gang does not mix vendors",
        "nodes: 2, where one host has H100 and the other MI300X",
        "to allow a mix: name models of both in `gpu` (`H100,MI300X:8`), or name nodes of both in "
        "`instances`",
    ),
    "spot": Code(
        Chapter.STRUCTURAL,
        "it is spot and the task asks for on-demand, or the other way round",
        "spot_policy: spot",
        "set the task's `spot_policy: auto`",
    ),
    "price": Code(
        Chapter.STRUCTURAL,
        "the node or the offer costs more than `max_price`",
        "max_price: 2",
        "raise `max_price`",
    ),
    "price-unknown": Code(
        Chapter.STRUCTURAL,
        "its price is unknown, so it may be above `max_price`",
        "max_price: 2  # and the backend reports no prices",
        "declare the price in the backend's `catalog`, or leave `max_price` out",
    ),
    "isolation": Code(
        Chapter.STRUCTURAL,
        "the task asks for limits that the kernel enforces, and the host cannot set them, or its backend "
        "cannot promise them: Slurm confines ranks by its own configuration",
        "isolation: hard  # and the host lets its user make no cgroups",
        "make the host's user root, or delegate cgroups to that user; or leave `isolation` out: the host "
        "then limits ranks to their blocks as well as it can",
    ),
    "no-runtime": Code(
        Chapter.STRUCTURAL,
        "the task has an `image`, and the host has neither podman nor docker that this user can use",
        "image: python:3.12  # and podman is not installed",
        "install podman there, or leave `image` out: ranks are then processes of the host",
    ),
    "too-small": Code(
        Chapter.STRUCTURAL,
        "even the whole node has less than a rank asks for",
        'resources: {gpu: "H100:8"}  # and the node has 4',
        "ask for less, or widen the fleet's `resources`; `short` says by how much",
    ),
    "too-large": Code(
        Chapter.STRUCTURAL,
        "every share of the node has more than a rank's upper bounds allow",
        "resources: {cpu: 2}  # exactly 2, and a block has 4",
        "widen the range (`cpu: 2..`); with `exclusive: false` a rank takes single blocks instead of a "
        "whole node",
    ),
    "volume-missing": Code(
        Chapter.STRUCTURAL,
        "a volume that the rank mounts does not exist",
        "volumes: ['data-0:/data']  # and data-0 could not be made",
        "declare it; `--replace` and removals elsewhere in the plan may be the cause",
    ),
    "volume-elsewhere": Code(
        Chapter.STRUCTURAL,
        "a volume that the rank mounts is in another backend, region or zone",
        "a volume in us-east-1 and a node in us-west-2",
        "put the task and its volumes into one place, or name alternatives: `name: [data-a, data-b]`",
    ),
    "no-offer": Code(
        Chapter.STRUCTURAL,
        "no backend offers a node that the fleet's own limits allow",
        "regions: [eu-west-9]",
        "widen the fleet's `resources`, `max_price`, `backends` or `regions`",
    ),
}

CAPACITY: dict[str, Code] = {
    "not-ready": Code(
        Chapter.CAPACITY,
        "the node is not ready, or its readiness is unknown, which does not count as idle; or it is a host "
        "that is not ready, so it is not a node yet",
        "a node that cannot be reached",
        "`fleetform status` says why; wait, or repair the node",
    ),
    "drained": Code(
        Chapter.CAPACITY,
        "the node takes no new work: somebody drained it, and the detail says since when and why",
        "fleetform drain gpu-3 --reason 'bad NIC'",
        "`fleetform undrain NODE`, or let the fleet grow",
    ),
    "avoided": Code(
        Chapter.CAPACITY,
        "the task failed on the node at its start, or twice, and avoids it while another place fits",
        "a node whose GPU fails in every attempt",
        "nothing: if the task fits nowhere else, it goes there all the same; `fleetform drain NODE` keeps "
        "every task away",
    ),
    "offers-unknown": Code(
        Chapter.CAPACITY,
        "the backend could not be read, so its offers are not known",
        "a cloud that is down, or credentials that have expired",
        "fix what the warning about the backend names, and plan again",
    ),
    "closed": Code(
        Chapter.CAPACITY,
        "the node takes no new work because it will be replaced or deleted",
        "a node of a fleet whose limits have changed",
        "wait until it is replaced",
    ),
    "not-idle": Code(
        Chapter.CAPACITY,
        "the rank takes a whole node, and something runs on this one",
        "nodes: 2  # exclusive by default",
        "wait, or set `exclusive: false` on the task",
    ),
    "busy": Code(
        Chapter.CAPACITY,
        "too few of the node's blocks are idle",
        "a rank of two blocks, and one is idle",
        "wait, or let the fleet grow; `short` says how many blocks are missing",
    ),
    "volume-gone": Code(
        Chapter.CAPACITY,
        "a volume that the rank mounts is recorded, but gone; no plan makes it anew by itself",
        "volumes: ['data-0:/data']  # and somebody deleted data-0 at the cloud",
        "bring it back, or have an empty one made with `fleetform apply --replace volume/NAME`",
    ),
    "volume-busy": Code(
        Chapter.CAPACITY,
        "a volume that the rank mounts is attached for another rank",
        "two tasks that mount `data-0`",
        "wait until the other task has ended, or give each its own volume",
    ),
    "reuse-only": Code(
        Chapter.CAPACITY,
        "it would have to be launched, and the task only uses nodes that are launched for others",
        "creation_policy: reuse",
        "set `creation_policy: reuse-or-create`, raise the fleet's `nodes`, or wait until another task gets "
        "a node",
    ),
    "fleet-max": Code(
        Chapter.CAPACITY,
        "the fleet has as many nodes as its `nodes` allows",
        "nodes: 0..2  # and both are taken",
        "raise the fleet's `nodes`, or wait",
    ),
    "limit": Code(
        Chapter.CAPACITY,
        "the `limit` of the catalog's offer is reached",
        "limit: 2",
        "raise the `limit`, or wait",
    ),
}
