"""The launch of a rank: its commands, the environment of docs/tasks.md, its CPUs, GPUs and volumes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from declarative.apply.bundles import Bundles
from declarative.language.template import env_names, resolve_env
from declarative.model.blocks import cpus_of, gpus_of, share
from declarative.model.inputs import (
    VOLUME_VARIABLE,
    Inputs,
    NodeInputs,
    RankInputs,
    ReservationInputs,
    gang_variables,
    knows_siblings,
)
from declarative.model.spec import Isolation
from declarative.model.spec.values import Duration
from declarative.model.state import Address, Record, State, attempt_id, rank_name
from declarative.planner.inventory import alone_seconds
from declarative.planner.plan import Action, Op, Plan
from declarative.provider import Bind, Launch
from declarative.provider.optional import Terms

GRACE_SECONDS = 300
"""Seconds that a rank gets to stop if its task does not say, or says `off`."""


def grace_of(rank: RankInputs) -> int:
    """Seconds that a rank gets to stop."""
    declared = seconds(rank.stop_duration, GRACE_SECONDS)
    return GRACE_SECONDS if declared is None else declared


def seconds(recorded: Any, default: int | None) -> int | None:
    """A duration as it is recorded, in seconds."""
    return default if recorded is None else Duration.parse(recorded).seconds


MOST_NEAR = 3


def launch_of(
    state: State,
    rank: Record,
    environ: Mapping[str, str],
    files: Bundles | None = None,
    *,
    gate_seconds: int | None = None,
    limits: Mapping[str, float | None] | None = None,
) -> Launch:
    """The launch of a rank whose reservation and attachments are recorded, as those of all its siblings are.
    With `gate_seconds` it waits at most so long for them (`gate`).

    `limits`: see `Backends`.

    Secrets (`${{ env.X }}`) are taken from `environ` here and go nowhere but into the launch; a variable
    that is not set raises `template.MissingEnvError`.
    """
    reservation = state.needed(rank, "reservation")
    node = state.needed(reservation, "node")
    shape, total = node.node.resources, node.node.blocks
    blocks, asked = reservation.reservation.blocks, rank.rank
    attached = [state.records[a] for a in sorted(rank.needs) if a.kind == "attachment"]
    terms = terms_of(state, rank, limits or {})
    gang = _siblings(state, rank) if knows_siblings(asked) else []
    siblings = [(node.node_address or "", len(gpus)) for node, gpus in gang]
    slots: dict[str, int] = {}
    for address, gpus in siblings:
        # No launcher takes an address of IPv6 for a name: Hydra reads a count after a colon, and Open MPI
        # allows none. It has dashes for colons; `rsh.sh` knows whom that means.
        name = address.replace(":", "-") if asked.nodes > 1 else address
        slots[name] = slots.get(name, 0) + gpus
    auth, policy = asked.registry_auth, asked.utilization_policy
    window = seconds(policy["time_window"], None) if policy else None
    env = {n: resolve_env(text, environ) for n, text in {**node.node.variables, **asked.env}.items()}
    # The provider puts in its own path: the declared one need not be mountable.
    variables = {VOLUME_VARIABLE + a.attachment.variable: a.attachment.path for a in attached}
    return Launch(
        attempt=attempt_id(rank),
        commands=(*first_commands(asked), *asked.commands),
        env={
            **(mpi_variables(slots) if asked.nodes > 1 else {}),
            **env,
            **gang_variables(asked.task, asked.rank, asked.nodes, siblings),
            **variables,
        },
        cpus=cpus_of(shape, total, blocks),
        gpus=gpus_of(shape, total, blocks),
        working_dir=asked.working_dir,
        volumes={a.attachment.path: state.needed(a, "volume") for a in attached},
        max_seconds=terms.max_seconds,
        stop_seconds=terms.stop_seconds,
        binds=tuple(
            Bind(source=folder["instance_path"], target=path, optional=bool(folder.get("optional")))
            for path, folder in sorted(asked.instance_paths.items())
        ),
        image=asked.image,
        hostfile=hostfile(slots) if knows_siblings(asked) else None,
        hostfiles=hostfiles(slots) if knows_siblings(asked) else {},
        files=files.of(asked.files) if files and asked.files else None,
        # A rank with the whole node shares it with the node's system alone, which knows what it needs.
        memory_mib=share(shape, total, len(blocks)).memory_mib if len(blocks) < total else None,
        privileged=asked.privileged,
        queue=asked.queue,
        login=(resolve_env(auth["username"], environ), resolve_env(auth["password"], environ))
        if auth
        else None,
        hard=asked.isolation == Isolation.HARD.value,
        gate_seconds=gate_seconds,
        unused=(int(policy["min_gpu_utilization"]), window) if policy and window else None,
        alone_seconds=terms.alone_seconds,
        near=terms.near,
    )


def terms_of(state: State, rank: Record, limits: Mapping[str, float | None]) -> Terms:
    """The terms on which its host ends a rank; `state` as for `launch_of`."""
    node = state.needed(state.needed(rank, "reservation"), "node")
    gang = _siblings(state, rank) if knows_siblings(rank.rank) else []
    near = dict.fromkeys(n.node_address or "" for n, _ in gang if n.address != node.address)
    return Terms(
        stop_seconds=grace_of(rank.rank),
        max_seconds=seconds(rank.rank.max_duration, None),
        alone_seconds=alone_seconds(node.node, rank.rank, limits),
        near=tuple(near)[:MOST_NEAR],
    )


def first_commands(inputs: RankInputs) -> tuple[str, ...]:
    """The commands before a task's own: the clone of its `repos`, its `python`, its `nvcc`."""
    out = []
    for repo in inputs.repos:
        path = repo.get("path", ".")
        where = shlex.quote(path if path.startswith("/") else f"./{path}")
        branch = f" --branch {shlex.quote(repo['branch'])}" if repo.get("branch") else ""
        clone = f"git clone --quiet{branch} -- {shlex.quote(repo['url'])} {where}"
        if repo.get("hash"):
            clone += f" && git -C {where} checkout --quiet --detach {shlex.quote(repo['hash'])}"
        out.append(f"[ -e {where}/.git ] || {{ {clone}; }}")
    if inputs.python is not None:
        out.append(_PYTHON.replace("VERSION", shlex.quote(inputs.python)))
    if inputs.nvcc:
        out.append(_NVCC)
    return tuple(out)


_PYTHON = r"""
VIRTUAL_ENV=$PWD/.venv-$FLEETFORM_TASK_NAME-$FLEETFORM_NODE_RANK
if [ -x "$VIRTUAL_ENV/bin/python" ]; then :
elif command -v uv >/dev/null 2>&1; then uv venv --quiet --seed --python VERSION "$VIRTUAL_ENV"
elif command -v pythonVERSION >/dev/null 2>&1; then pythonVERSION -m venv "$VIRTUAL_ENV"
else echo "fleetform: neither uv nor pythonVERSION is here, which the task needs" >&2; false
fi && export VIRTUAL_ENV PATH="$VIRTUAL_ENV/bin:$PATH"
"""
_NVCC = r"""
command -v nvcc >/dev/null 2>&1 || PATH=/usr/local/cuda/bin:$PATH
command -v nvcc >/dev/null 2>&1 || { echo "fleetform: no nvcc is here, which the task needs" >&2; false; }
"""


def missing_env(plan: Plan, state: State, environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Variables that are not set → the tasks of `plan` whose ranks would be started with them."""
    planned = {a.address: a.typed for a in plan.actions if a.after is not None}
    out: dict[str, list[str]] = {}
    for action in plan.actions:
        rank = action.typed
        if action.op is not Op.CREATE or not isinstance(rank, RankInputs):
            continue
        env = {**_node_env(action, planned, state), **rank.env, **rank.registry_auth}
        for name in sorted({n for text in env.values() for n in env_names(text)} - environ.keys()):
            tasks = out.setdefault(name, [])
            if rank.task not in tasks:
                tasks.append(rank.task)
    return dict(sorted(out.items()))


def _node_env(action: Action, planned: Mapping[Address, Inputs], state: State) -> Mapping[str, str]:
    """The environment of the node that a rank will be on."""

    def inputs(address: Address) -> Inputs | None:
        record = state.records.get(address)
        return planned.get(address) or (record.typed if record else None)

    reservation = next((a for a in action.holds if a.kind == "reservation"), None)
    place = inputs(reservation) if reservation else None
    node = inputs(Address("node", place.node)) if isinstance(place, ReservationInputs) else None
    return node.variables if isinstance(node, NodeInputs) else {}


def _siblings(state: State, rank: Record) -> list[tuple[Record, tuple[int, ...]]]:
    """Node and GPUs of every rank of the gang, by rank."""
    out: list[tuple[Record, tuple[int, ...]]] = []
    for index in range(rank.rank.nodes):
        reservation = state.get("reservation", rank_name(rank.rank.task, index))
        if reservation is None:
            continue
        node = state.needed(reservation, "node")
        blocks = reservation.reservation.blocks
        out.append((node, gpus_of(node.node.resources, node.node.blocks, blocks)))
    return out


def hostfile(slots: Mapping[str, int]) -> str:
    """The host file that Open MPI and Hydra read alike: a line with the name for each slot.

    Neither reads the counts of the other. A node whose ranks have no GPU is there once: Open MPI then takes
    a slot for each of its cores.
    """
    return "".join(f"{name}\n" * max(1, n) for name, n in slots.items())


def hostfiles(slots: Mapping[str, int]) -> dict[str, str]:
    """The host file of each launcher, in its own form. Intel's documents no counts."""
    return {
        "openmpi": "".join(f"{name} slots={n}\n" if n else f"{name}\n" for name, n in slots.items()),
        "hydra": "".join(f"{name}:{n}\n" if n else f"{name}\n" for name, n in slots.items()),
        "intel": "".join(f"{name}\n" for name in slots),
    }


def mpi_variables(slots: Mapping[str, int]) -> dict[str, str]:
    """The counts that host files cannot say; a variable that the user declares counts instead."""
    out: dict[str, str] = {}
    if slots and all(slots.values()):
        if 1 in slots.values():  # a host that is named once would have a slot for each of its cores
            out |= dict.fromkeys(("OMPI_MCA_orte_set_default_slots", "PRTE_MCA_prte_set_default_slots"), "1")
        if len(set(slots.values())) == 1:
            out["I_MPI_PERHOST"] = str(next(iter(slots.values())))
    return out
