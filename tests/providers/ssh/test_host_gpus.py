"""Which GPUs a host has, which of them are its node's, and which of those a rank gets. See `smi`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.model.blocks import Shape
from declarative.model.state import Address
from declarative.model.status import NodeState, RankState
from declarative.provider import Config, Launch, PermanentError, PermanentKind, TransientError
from providers import containers
from providers.containers import Container
from providers.rank_scripts import prepared
from providers.ranks import Ranks
from providers.runner import Runner
from providers.ssh import gpus, probe
from providers.ssh.gpus import Gpu
from providers.ssh.probe import Declared
from providers.ssh.provider import Ssh, declared_of
from providers.transport import LocalTransport
from tests.support.cli import until
from tests.support.smi import AMD, KINDS, LOST, MIG, MIXED, ONE_LOST, Kind


@pytest.fixture
def host(tmp_path, monkeypatch):
    """This machine as a host of some kind: its looks, by the real script."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    transport: Any = SimpleNamespace(host="h", run=LocalTransport().run)

    def look(kind: Kind | None, **declared: Any) -> probe.Look:
        if kind is not None:
            kind.install(tmp_path / "bin")
        return probe.look(transport, str(tmp_path / "state"), Declared(**declared))

    return look


A6000 = {"gpus": 2, "gpu_name": "A6000", "gpu_memory_mib": 48 * 1024}


# ----------------------------------------------------------------------------------------- what it has


@pytest.mark.parametrize("name", KINDS)
def test_the_gpus_of_ten_kinds_of_hosts(host, name):
    """Those that work, by name, memory and UUID. One that does not keeps the host from work."""
    kind = KINDS[name]
    look = host(kind)
    assert look.facts
    assert tuple((g.name, g.memory_mib and g.memory_mib // 1024) for g in look.facts.gpus) == kind.models
    assert tuple(g.id for g in look.facts.gpus) == kind.ids
    assert look.readiness.state is (NodeState.NOT_READY if kind.fault else NodeState.READY)
    assert kind.fault in (look.readiness.reason or "")
    if kind.fault and not kind.models:
        assert look.shape is None
    else:
        assert (look.shape.gpus, look.shape.gpu_vendor) == (
            len(kind.models),
            ("amd" if kind.amd else "nvidia") if kind.models else None,
        )


def test_a_host_with_two_models_names_both(host):
    """No rank that asks for one gets the other: a name that lists both is neither."""
    look = host(MIXED)
    assert (look.shape.gpus, look.shape.gpu_name) == (3, "A6000+T400")
    assert look.readiness.reason == "it has 2 A6000, 1 T400: choose with `gpus: [A6000]` at the host"


# ----------------------------------------------------------------------------------- which it is to use


@pytest.mark.parametrize(
    ("choice", "resources", "ids"),
    [
        ((), A6000, ("GPU-b", "GPU-c")),
        (("A6000",), {}, ("GPU-b", "GPU-c")),
        (("RTX A6000",), {}, ("GPU-b", "GPU-c")),
        ((2, 0), {}, ("GPU-a", "GPU-c")),
        (("gpu-C",), {}, ("GPU-c",)),
        ((1,), {"gpus": 1, "gpu_name": "a6000"}, ("GPU-b",)),
        ((), {"gpus": 0}, ()),
        ((), {"gpus": 1, "gpu_name": "A6000"}, ("GPU-b",)),
    ],
)
def test_a_node_has_the_gpus_that_are_chosen_or_declared(host, choice, resources, ids):
    look = host(MIXED, choice=choice, resources=resources)
    declared = Declared(choice=choice, resources=resources)
    assert tuple(gpu.id for gpu in declared.gpus_of(look.facts)) == ids
    assert look.shape.gpus == len(ids)
    assert look.readiness.state is NodeState.READY


models = st.sampled_from(["T400", "A6000", "H100", "A100-3g.20gb"])
cards = st.lists(st.tuples(models, st.sampled_from([4, 48, 80, None])), max_size=8).map(
    lambda found: tuple(
        Gpu(index=i, name=name, memory_mib=gib and gib * 1024, uuid=f"GPU-{i:04}")
        for i, (name, gib) in enumerate(found)
    )
)


@given(
    cards,
    st.lists(
        st.one_of(st.integers(0, 9), models, st.integers(0, 9).map(lambda i: f"GPU-{i:04}")), max_size=4
    ),
    st.one_of(st.none(), st.integers(0, 9)),
    st.one_of(st.none(), models),
)
def test_what_is_chosen_is_there_is_meant_and_keeps_its_order(there, choice, count, name):
    """Never a GPU that the choice does not mean, never one of another model than declared, never more than
    declared; and every card that is meant if no number is declared.
    """
    declared = {} if count is None else {"gpus": count, **({"gpu_name": name} if name else {})}
    found = gpus.chosen(there, choice, declared)
    meant = [g for g in there if not choice or {g.index, g.name, g.uuid} & {*choice}]
    assert list(found) == [g for g in meant if g in found]
    if count is None:
        assert list(found) == meant
    else:
        fit = [g for g in meant if not name or g.name == name]
        assert list(found) == fit[:count]


@pytest.mark.parametrize(
    ("kind", "declared", "words"),
    [
        (ONE_LOST, {"resources": {"gpus": 2, "gpu_name": "A6000"}}, ("1 of the 2 A6000 GPUs", "GPU1")),
        (MIXED, {"resources": {"gpus": 2, "gpu_name": "H100"}}, ("0 of the 2 H100 GPUs", "2 A6000, 1 T400")),
        (MIXED, {"resources": {**A6000, "gpu_memory_mib": 80 * 1024}}, ("0 of the 2 A6000 GPUs",)),
        (KINDS["a driver without cards"], {"resources": {"gpus": 8}}, ("0 of the 8 GPUs", "none")),
        (None, {"resources": {"gpus": 1}}, ("0 of the 1 GPUs",)),
        (
            MIXED,
            {"choice": (7, "T400")},
            ("its `gpus` names 7, and its GPUs are: 0 GPU-a T400, 1 GPU-b A6000",),
        ),
        (MIXED, {"resources": {"cpu": 4096}}, ("of the 4096 CPUs that are declared of it",)),
        (MIXED, {"resources": {"memory_mib": 1 << 40}}, (f"of the {1 << 40} MiB of memory",)),
        (MIXED, {"resources": {"disk_mib": 1 << 40}}, (f"of the {1 << 40} MiB of disk",)),
    ],
)
def test_what_a_host_declares_and_does_not_have_is_said_with_both_numbers(host, kind, declared, words):
    """It takes no work then, unless it is trusted."""
    readiness = host(kind, **declared).readiness
    assert readiness.state is NodeState.NOT_READY
    for word in (*words, "`trust: true`"):
        assert word in (readiness.reason or "")
    assert host(None, trusted=True, **declared).readiness.state is (
        NodeState.READY if kind is not ONE_LOST or "resources" in declared else NodeState.NOT_READY
    )


def short(fault: str | None = None, there: tuple[Gpu, ...] = (), **declared: Any) -> list[str]:
    """What a host with two CPUs and 1,000 MiB has less than is declared of it: without a GPU, or with one
    that works beside one in error.
    """
    there = there or ((Gpu(index=0, name="T4", memory_mib=None),) if fault else ())
    sizes = {"cpus": (0, 1), "memory_mib": 1000, "disk_mib": 1000}
    facts = SimpleNamespace(**sizes, gpus=there, gpus_known=True, gpu_fault=fault)
    return probe._falls_short(cast("probe.Facts", facts), Declared(**declared))


def test_a_host_may_have_just_what_is_declared_of_it():
    assert short(resources={"cpu": 2, "gpus": 0}) == []
    hint = "correct its declaration, or write `trust: true` at the host"
    assert short(resources={"cpu": 3}) == ["it has 2 of the 3 CPUs that are declared of it", hint]


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"gpu_name": "A100"}, "A100 GPUs (GPUs that work: 1 L4)"),
        ({"gpu_name": "A100,H100"}, "A100 or H100 GPUs (GPUs that work: 1 L4)"),
        ({"gpu_name": "A100-80GB"}, "A100-80GB GPUs with 80GB of memory (GPUs that work: 1 L4 with 24GB)"),
        ({"gpu_memory_mib": 40 * 1024}, "GPUs with 40GB of memory (GPUs that work: 1 L4 with 24GB)"),
        ({"gpu_name": "A100-40GB,H100"}, "A100-40GB or H100 GPUs (GPUs that work: 1 L4 with 24GB)"),
    ],
)
def test_gpus_that_are_missing_are_named_with_what_is_asked_of_them(resources, words):
    """And what is there: with its memory if some is asked for."""
    there = (Gpu(index=0, name="L4", memory_mib=24 * 1024),)
    found = short(there=there, resources={"gpus": 8, **resources})
    assert found[0] == f"it has 0 of the 8 {words} that are declared of it"


def test_an_error_of_gpus_is_the_reason_where_gpus_are_missing():
    """What else is missing has another one."""
    assert "broken" in short("broken", resources={"gpus": 2})
    assert "broken" not in short("broken", resources={"cpu": 3, "gpus": 0})
    assert "broken" not in short("broken", resources={"cpu": 3})
    assert short(choice=(7,))[0] == "its `gpus` names 7, and its GPUs are: none"
    assert short("broken", choice=(7,))[0] == "its `gpus` names 7, and its GPUs are: 0 0 T4 (broken)"


def test_what_is_declared_of_a_host_are_fields_of_a_shape():
    assert declared_of({}) == declared_of({"resources": None, "gpus": None}) == Declared()
    everything = {"resources": {"cpu": 2}, "gpus": [0, "A6000"], "trust": True}
    assert declared_of(everything) == Declared(resources={"cpu": 2}, choice=(0, "A6000"), trusted=True)
    for wrong in ("cpu", ["cpu"], {"cpus": 2}, {"cpu": 2, "x": 1}):
        with pytest.raises(PermanentError) as refused:
            declared_of({"hostname": "h", "resources": wrong})
        assert refused.value.kind is PermanentKind.INVALID


def test_memory_and_disks_are_declared_as_they_are_sold(host):
    facts = host(None).facts
    sold = {"memory_mib": int(facts.memory_mib * 1.1), "disk_mib": int(facts.disk_mib * 1.1)}
    assert host(None, resources=sold).readiness.state is NodeState.READY


def test_one_that_works_may_be_used_beside_one_that_does_not(host):
    for declared in ({"resources": {"gpus": 1}}, {"choice": (0,)}):
        assert host(ONE_LOST, **declared).readiness.state is NodeState.READY


# ------------------------------------------------------------------------------------ what is recorded


TWO = Shape(cpu=1, memory_mib=1, gpus=2)


def test_a_gpu_that_is_gone_is_named_by_its_uuid(host):
    swapped = replace(MIXED, rows=(*MIXED.rows[:2], MIXED.rows[2].replace("GPU-c", "GPU-x")))
    reason = host(swapped, resources=A6000, recorded=TWO, devices=("GPU-b", "GPU-c")).readiness.reason
    assert reason.startswith("it has 1 of the 2 GPUs that are recorded of it (GPU-c missing, GPU-x new)")
    moved = replace(MIXED, rows=tuple(f"{9 - int(row[0])}{row[1:]}" for row in MIXED.rows))
    seen = host(moved, resources=A6000, recorded=TWO, devices=("GPU-b", "GPU-c"))
    assert seen.readiness.state is NodeState.READY


def test_a_node_of_before_gpus_were_recorded_is_not_taken_for_another(host):
    """Its blocks count from 0; where its own GPUs do not, it takes no work until it is made anew."""
    seen = host(MIXED, resources=A6000, recorded=TWO).readiness
    assert (seen.state, seen.reshaped) == (NodeState.NOT_READY, True)
    assert (seen.reason or "").startswith("its GPUs are 1, 2, which is not recorded")
    assert host(
        KINDS["instances of MIG"], choice=("GPU-b",), recorded=replace(TWO, gpus=1)
    ).readiness.reshaped
    alike = replace(KINDS["eight alike"], rows=KINDS["eight alike"].rows[:2])
    assert host(alike, recorded=TWO).readiness.state is NodeState.READY


@pytest.mark.parametrize(
    ("recorded", "what"),
    [
        (Shape(cpu=4096, memory_mib=1), "of the 4096 CPUs"),
        (Shape(cpu=1, memory_mib=1 << 40), f"of the {1 << 40} MiB of memory"),
        (Shape(cpu=1, memory_mib=1, gpus=4), "it has 3 of the 4 GPUs"),
    ],
)
def test_what_a_node_lost_can_be_done_without(host, recorded, what):
    """The reason names the way, and it is one."""
    reason = host(MIXED, recorded=recorded).readiness.reason
    assert what in reason
    assert "recorded of it: to go on without, write what it has in the host's `resources`" in reason
    has = {"cpu": 1, "memory_mib": 64, "gpus": 3}
    assert host(MIXED, recorded=recorded, resources=has).readiness.state is NodeState.READY


def test_a_host_with_devices_and_no_tool_says_how_it_can_be_used():
    facts = probe.parse(["device=/dev/nvidia0"], 0.0)
    (reason,) = [r for r in probe._unfit(facts, Declared()) if "nvidia" in r]
    assert reason.startswith(
        "its GPUs are not known now: it has /dev/nvidia0, but no nvidia-smi: install it, or "
    )
    trusted = Declared(resources={"gpus": 1}, trusted=True)
    assert not [r for r in probe._unfit(facts, trusted) if "nvidia" in r]


def test_a_driver_that_came_later_is_noticed(host):
    """Where nothing else is declared."""
    none, found = Shape(cpu=1, memory_mib=1), "it has 2 GPUs, and 0 are recorded of it"
    look = host(MIXED, choice=("A6000",), recorded=none)
    assert look.readiness.reshaped
    assert found in (look.readiness.reason or "")
    assert not host(MIXED, recorded=none, resources={"gpus": 0}).readiness.reshaped
    assert not host(MIXED, choice=("A6000",), recorded=TWO, devices=("GPU-b", "GPU-c")).readiness.reshaped


def _dumb(kind: Kind) -> Kind:
    """A host of that kind whose tool has to be ended before it is done."""
    return replace(kind, code=124)


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (_dumb(MIXED), {}),
        (_dumb(MIXED), {"resources": A6000}),
        (_dumb(MIXED), {"choice": ("A6000",)}),
        (_dumb(MIXED), {"choice": (1, 2)}),
        (_dumb(MIXED), {"resources": A6000, "recorded": TWO, "devices": ("GPU-b", "GPU-c")}),
        (
            replace(_dumb(MIXED), rows=MIXED.rows[:2], uses=()),
            {"recorded": TWO, "devices": ("GPU-b", "GPU-c")},
        ),
        (_dumb(AMD), {"recorded": TWO, "devices": AMD.ids}),
        (KINDS["another driver than the kernel's"], {"resources": A6000, "recorded": TWO}),
    ],
)
def test_a_host_that_does_not_tell_its_gpus_has_not_lost_them(host, kind, declared):
    """It takes no work until it does, its node is not made anew, and nobody is to correct its declaration."""
    look = host(kind, **declared)
    assert (look.readiness.state, look.readiness.reshaped) == (NodeState.NOT_READY, False)
    what = "gave no answer within 10 s" if kind.code == 124 else "gave exit code 18"
    assert (look.readiness.reason or "").startswith(f"its GPUs are not known now: {kind.tool} {what}")
    for word in ("trust", "missing", "recorded", "of the"):
        assert word not in (look.readiness.reason or "")
    assert (look.shape is None) is ("resources" not in declared)


def test_instances_that_are_not_listed_are_not_known(host, tmp_path):
    """A GPU in MIG mode has only them."""
    declared = {"recorded": replace(TWO, gpus=3), "devices": MIG.ids}
    assert host(MIG, **declared).readiness.state is NodeState.READY
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.write_text(tool.read_text().replace("-L) ", "-L) exit 124;"))
    readiness = host(None, **declared).readiness
    assert (readiness.state, readiness.reshaped) == (NodeState.NOT_READY, False)
    assert readiness.reason == "its GPUs are not known now: nvidia-smi gave no answer within 10 s"


def test_who_declares_no_gpus_or_is_trusted_needs_no_answer(host):
    for declared in ({"resources": {"gpus": 0}}, {"resources": {"gpus": 2}, "trusted": True}):
        assert host(_dumb(MIXED), **declared).readiness.state is NodeState.READY


@pytest.mark.parametrize(
    ("kind", "choice", "devices"),
    [
        (_dumb(MIXED), (1, 2), None),
        (_dumb(MIXED), ("A6000",), None),
        (_dumb(AMD), (1, 2), None),
        (KINDS["another driver than the kernel's"], (4, 5), None),
        (None, (4, 5), ("4", "5")),
        (None, (5, 4, 6), ("4", "5")),
        (None, ("GPU-b", "GPU-c"), None),
        (None, ("A6000",), None),
        (None, (4,), None),
        (MIXED, (4, 5), ("4", "5")),
        (MIXED, (1, 2), ("GPU-b", "GPU-c")),
        (MIXED, ("T400",), None),
        (_dumb(MIXED), (), ()),
    ],
)
def test_a_trusted_host_uses_no_gpus_but_its_own(host, monkeypatch, kind, choice, devices):
    """Where nobody can be asked, they are those that are written; where somebody can, they must be known."""
    fields: dict[str, Any] = {"resources": {"gpus": 2}, "trusted": True}
    look = host(kind, choice=choice, **fields)
    assert look.readiness.state is (NodeState.NOT_READY if devices is None else NodeState.READY)
    assert Declared(choice=choice, **fields).devices_of(look.facts, 2) == devices
    if devices is not None:
        return
    transport: Any = SimpleNamespace(host=SimpleNamespace(hostname="h"), run=LocalTransport().run)
    ssh = Ssh(Config(backend="ssh", project_dir=Path(), lineage="l"))
    monkeypatch.setattr(ssh, "_transport", lambda _: transport)
    taken = {"resources": {"gpus": 2}, "gpus": choice, "trust": True}
    with pytest.raises(TransientError, match="not known now"):
        ssh.take(Address("node", "n"), "t", {"resources": {"gpus": 2}}, taken)


def test_a_trusted_node_that_was_made_without_its_gpus_is_made_anew(host):
    look = host(MIXED, choice=(1, 2), resources={"gpus": 2}, trusted=True, recorded=TWO)
    assert look.readiness.reshaped
    had = host(MIXED, choice=(1, 2), resources={"gpus": 2}, trusted=True, recorded=TWO, devices=("7", "8"))
    assert had.readiness.state is NodeState.READY


def test_a_trusted_choice_without_a_number_of_gpus_is_not_ready_while_they_are_unknown(host):
    """It would be ready without a shape, and nobody could say why it is not used."""
    look = host(_dumb(MIXED), choice=(0, 1), trusted=True)
    assert (look.readiness.state, look.shape) == (NodeState.NOT_READY, None)
    assert "nvidia-smi gave no answer" in (look.readiness.reason or "")


# ------------------------------------------------------------------------------------ what a rank gets


class Node:
    """A folder as a node whose host is of some kind."""

    def __init__(self, folder, kind: Kind, devices: tuple[str, ...]) -> None:
        self.folder, self.devices = folder, devices
        self.ranks = Ranks(Runner(LocalTransport(), str(folder / "ranks")))
        kind.install(folder.parent / "bin")

    def run(self, *commands: str, attempt: str = "a-0.1", **more: Any) -> tuple[Any, str]:
        """To its end."""
        plain: dict[str, Any] = {"env": {}, "cpus": (), "working_dir": None, "volumes": {}}
        asked = Launch(
            attempt=attempt, commands=commands, max_seconds=None, stop_seconds=5, **{**plain, **more}
        )
        self.ranks.start(prepared(str(self.folder), (), asked, {}, devices=self.devices))
        until(lambda: (found := self.ranks.poll([attempt])[attempt]) and found.state.ended)
        return self.ranks.poll([attempt])[attempt], self.ranks.read_log(attempt, 0, 1 << 16).decode()


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return lambda kind, *devices: Node(tmp_path / "node", kind, devices)


SHOW = 'echo "$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER ${ROCR_VISIBLE_DEVICES-unset}"'


@pytest.mark.parametrize(
    ("kind", "devices", "mine", "shown"),
    [
        (MIXED, ("GPU-b", "GPU-c"), (0, 1), "1,2 PCI_BUS_ID unset"),
        (MIXED, ("GPU-b", "GPU-c"), (1,), "2 PCI_BUS_ID unset"),
        (MIXED, (), (1,), "1 PCI_BUS_ID unset"),
        (MIXED, ("GPU-b", "GPU-c"), (), " PCI_BUS_ID unset"),
        (MIG, MIG.ids, (0, 2), f"{MIG.ids[0]},1 PCI_BUS_ID unset"),
        (AMD, AMD.ids, (1,), "0 PCI_BUS_ID 1"),
        (AMD, AMD.ids, (1, 0), "0,1 PCI_BUS_ID 1,0"),
    ],
)
def test_a_rank_gets_the_numbers_that_its_gpus_have_now(node, kind, devices, mine, shown):
    """NVIDIA's in the order of `nvidia-smi`, whatever is declared; MIG's UUIDs; AMD's by ROCm's variable."""
    env = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "7"}
    status, log = node(kind, *devices).run(SHOW, gpus=mine, env=env)
    assert status.state is RankState.SUCCEEDED
    assert log == f"{shown}\n"


def test_a_card_that_was_put_in_before_changes_no_rank(node):
    more = replace(
        MIXED,
        rows=(
            "0, GPU-x, NVIDIA T400 4GB, 4096, 0, [N/A]",
            *(f"{i + 1}{row[1:]}" for i, row in enumerate(MIXED.rows)),
        ),
        uses=(0, 0, 97, 95),
    )
    assert node(more, "GPU-b", "GPU-c").run(SHOW, gpus=(0, 1))[1] == "2,3 PCI_BUS_ID unset\n"


def test_a_rank_whose_gpu_is_gone_does_not_run(node):
    """With the reason, and whether in a container or not."""
    status, log = node(MIXED, "GPU-a", "GPU-x").run("echo ran", gpus=(1,))
    assert (status.state, status.exit_code) == (RankState.FAILED, 125)
    assert "recorded of it" in (status.cause or "")
    assert log == "fleetform: this host does not have GPU GPU-x now, which is recorded of it\n"


@pytest.mark.parametrize("failing", ["*=index,uuid\\ *", "-L"])
def test_a_gpu_that_a_tool_does_not_list_with_a_fault_is_not_known_to_be_gone(node, tmp_path, failing):
    """The tool may have ended early, in any of its queries; what it lists is there."""
    listed = MIG.ids[0] if failing == "-L" else MIG.ids[2]
    made = node(MIG, listed, MIG.ids[0].replace("c6d4", "ffff"))
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.write_text(tool.read_text().replace(f"{failing}) printf", f"{failing}) trap 'exit 15' EXIT; printf"))
    assert made.run("echo ran", gpus=(0,))[0].state is RankState.SUCCEEDED
    status, log = made.run("echo ran", gpus=(0, 1), attempt="a-0.2")
    assert (status.state, status.exit_code) == (RankState.LOST, 125)
    assert log.startswith("fleetform: nvidia-smi gave exit code 15: ")
    assert "is not known now" in log


def test_a_rank_whose_gpu_is_lost_may_run_elsewhere(node):
    status, log = node(ONE_LOST, "GPU-a", "GPU-b").run("echo ran", gpus=(1,))
    assert status.state is RankState.LOST
    assert log.startswith(
        f"fleetform: nvidia-smi gave exit code 255: {LOST}: whether this host has GPU GPU-b "
    )


SILENT = {
    "without a word": replace(MIXED, rows=(), uses=(), code=124),
    "killed": replace(MIXED, rows=(), uses=(), code=137),
    "after the first": replace(MIXED, rows=MIXED.rows[:1], uses=(), code=124),
    "with another driver": KINDS["another driver than the kernel's"],
    "in MIG mode": replace(MIG, code=124),
    "AMD's": replace(AMD, code=124),
}
"""Hosts whose tool does not tell their GPUs; `timeout` gives these exit codes where it has to end one."""


@pytest.mark.parametrize("name", SILENT)
def test_a_rank_whose_host_cannot_tell_its_gpus_is_lost(node, name):
    """And may run again elsewhere; its GPUs may be there all the same."""
    status, log = node(SILENT[name], *(SILENT[name].ids[-2:-1] or ["GPU-b"])).run("echo ran", gpus=(0,))
    assert (status.state, status.exit_code) == (RankState.LOST, 125)
    assert "could not tell its GPUs" in (status.cause or "")
    what = "gave exit code 18: Failed to" if name == "with another driver" else "gave no answer within 30 s"
    assert log.startswith(f"fleetform: {SILENT[name].tool} {what}")
    assert "does not have" not in log


def test_a_driver_that_has_to_start_is_asked_again(node, tmp_path):
    """Each time for longer."""
    made = node(MIXED, "GPU-b", "GPU-c")
    tool, limits = tmp_path / "bin" / "timeout", tmp_path / "limits"
    tool.write_text(f"""#!/bin/sh
echo "$3" >>{limits}
[ "$(grep -c . {limits})" = 3 ] || exit 124
exec /usr/bin/timeout "$@"
""")
    tool.chmod(0o755)
    assert made.run(SHOW, gpus=(0, 1))[1] == "1,2 PCI_BUS_ID unset\n"
    assert limits.read_text().split() == ["10", "15", "30"]


@pytest.mark.parametrize(
    ("runtime", "vendor", "kind", "devices", "flags"),
    [
        ("docker", "nvidia", MIXED, ("GPU-b", "GPU-c"), '--gpus|"device=1,2"'),
        (
            "podman",
            "nvidia",
            MIXED,
            ("GPU-b", "GPU-c"),
            "--device|nvidia.com/gpu=1|--device|nvidia.com/gpu=2|--env|",
        ),
        ("docker", "nvidia", MIG, MIG.ids[:2], '--gpus|"device=0:0,0:1"'),
        ("podman", "amd", AMD, AMD.ids, "--device|/dev/kfd|--device|/dev/dri"),
    ],
)
def test_a_container_is_given_its_gpus_as_its_runtime_names_them(
    tmp_path, monkeypatch, runtime, vendor, kind, devices, flags
):
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    kind.install(tmp_path / "bin")
    show = 'for flag; do printf "%s|" "$flag"; done'
    lines = (containers.text("gpus.sh"), f"devices {' '.join(devices)}", f"runtime={runtime} vendor={vendor}")
    text = "\n".join((*lines, "set --", containers.GPU_FLAGS, show))
    assert flags in LocalTransport().run(["sh", "-c", text]).stdout.decode()


def test_a_container_counts_its_gpus_anew(tmp_path):
    """Those of NVIDIA; a MIG instance is known by its UUID everywhere."""
    for shown, counted in (("5,6", "0,1"), (MIG.ids[0], MIG.ids[0])):
        text = f"CUDA_VISIBLE_DEVICES={shown}\n{containers.recounted(2)}\necho $CUDA_VISIBLE_DEVICES"
        assert LocalTransport().run(["sh", "-c", text]).stdout.decode().strip() == counted
    text = containers.script(Container(image="a", name="n", gpus=("GPU-b",)), [], [], "echo $X")
    assert re.search(r"sent\(\) \{ exports; ", text)
    assert "devices GPU-b\n" in text


def test_the_lost_one_is_the_one_of_the_case():
    assert LOST in ONE_LOST.script


# ------------------------------------------------------------------------------- what is a value in a table

HEALTHY = ("0", "GPU-a", "NVIDIA H100 80GB HBM3", "81559", "0", "Disabled")
FAULTS = (
    "[Unknown Error]",
    "[GPU is lost]",
    "[GPU requires reset]",
    "ERR!",
    "Unknown Error",
    "[Anything new]",
)
NO_VALUES = ("[N/A]", "N/A", "[Not Supported]", "Not Supported", "[Insufficient Permissions]")


@pytest.mark.parametrize("column", range(6))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_place_of_any_value_is_no_working_gpu(column, fault):
    other = "1, GPU-b, NVIDIA H100 80GB HBM3, 81559, 0, Disabled"
    row = ", ".join((*HEALTHY[:column], fault, *HEALTHY[column + 1 :]))
    with pytest.raises(gpus.BrokenGpuError, match=re.escape(fault)) as caught:
        gpus.nvidia([row, other], 0)
    assert [gpu.uuid for gpu in caught.value.working] == ["GPU-b"]


@pytest.mark.parametrize("column", [1, 3, 4, 5])
@pytest.mark.parametrize("word", NO_VALUES)
def test_a_value_that_a_gpu_does_not_have_or_show_is_no_fault(column, word):
    (gpu,) = gpus.nvidia([", ".join((*HEALTHY[:column], word, *HEALTHY[column + 1 :]))], 0)
    assert (gpu.name, gpu.used_mib) == ("H100", 0)
    assert (gpu.memory_mib is None, gpu.uuid is None) == (column == 3, column == 1)


ROCM_HEAD = "device,Unique ID,VRAM Total Memory (B),VRAM Total Used Memory (B),Card Series,Card Model"
RADEON = "card0,0xaaaa,21458059264,27856896,Radeon RX 7900 XT,0x744c"


@pytest.mark.parametrize("name", ["Raphael", "AMD Radeon Graphics", "N/A"])
@pytest.mark.parametrize("mib", [64, 512])
def test_what_a_cpu_has_for_its_display_is_no_gpu_to_hand_out(name, mib):
    own = f"card1,N/A,{mib * 1024 * 1024},25432064,{name},0x164e"
    (gpu,) = gpus.rocm([ROCM_HEAD, RADEON, own], 0)
    assert (gpu.name, gpu.memory_mib, gpu.uuid) == ("RX7900XT", 20 * 1024, "0xaaaa")
    assert gpus.rocm([ROCM_HEAD, own], 0) == ()


def test_a_card_without_a_series_has_the_name_of_its_model():
    (gpu,) = gpus.rocm([ROCM_HEAD, "card0,N/A,21458059264,0,N/A,Radeon RX 7900 XT"], 0)
    assert gpu.name == "RX7900XT"
