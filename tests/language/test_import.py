"""`fleetform import`: converted documents of dstack and SkyPilot load, and name what was lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import CliRunner, Result
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from declarative.cli import cli
from declarative.language.importers.drafts import text_of, yaml_lines
from declarative.language.importers.dstack import from_dstack
from declarative.language.importers.skypilot import from_skypilot
from declarative.language.loader import load
from declarative.language.source import read
from declarative.model.diagnostic import InvalidError
from declarative.model.schema import fields_of, ignored_of
from declarative.model.spec import DOCUMENTS
from declarative.model.spec.values import Gpu
from tests.support.golden import check_golden

DSTACK = Path(__file__).parent / "dstack"
GOLDEN = Path(__file__).parents[1] / "golden" / "import"
SKYPILOT = sorted(path.name for path in GOLDEN.glob("*.sky.yaml"))


def imported(*argv: object, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, ["import", *map(str, argv)])
    assert done.exit_code == code, done.output
    return done


def loads_or_was_told(done: Result, folder: Path) -> None:
    """Each error of the text was told by the import."""
    (folder / "out.yaml").write_text(done.stdout)
    try:
        found = load(folder).diagnostics
    except InvalidError as error:
        found = error.diagnostics
    assert [d.summary for d in found if d.summary not in done.stderr] == []


@pytest.mark.parametrize("name", sorted(path.stem for path in DSTACK.glob("*.yaml")))
def test_what_comes_of_dstack_loads_and_says_what_was_lost(name, tmp_path):
    done = imported("dstack", DSTACK / f"{name}.yaml")
    check_golden(GOLDEN / f"{name}.out.yaml", done.stdout)
    assert "hunter2" not in done.output
    loads_or_was_told(done, tmp_path)


@pytest.mark.parametrize("name", SKYPILOT)
def test_what_comes_of_skypilot_loads_and_says_what_was_lost(name, tmp_path):
    done = imported("skypilot", GOLDEN / name)
    check_golden(GOLDEN / name.replace(".sky.yaml", ".out.yaml"), done.stdout)
    assert "hunter2" not in done.output
    loads_or_was_told(done, tmp_path)


def test_no_file_is_written_over(tmp_path):
    out = tmp_path / "out.yaml"
    assert "Wrote" in imported("dstack", DSTACK / "task.yaml", "--out", out).stdout
    assert list(load(tmp_path).desired.tasks) == ["train"]
    before = out.read_text()
    imported("dstack", DSTACK / "volume.yaml", "--out", out, code=1)
    assert out.read_text() == before


def test_a_strangers_text_stays_what_it_is(tmp_path):
    """No name and no value becomes a line of its own, another type, or a command of the terminal."""
    file = tmp_path / "a.yaml"
    odd = ["yes", "1", "0x10", "1e3", "null", "a: b", "a #b", "- a", "", " a", "a ", "@a", "*a", "a:", "~"]
    env = "".join(f"  A{i}: {text!r}\n" for i, text in enumerate(odd))
    commands = "\n".join(
        f"  - {text}" for text in ('"a\\tb\\n  c\\n"', '"\\x9b31m"', '"|"', '"a\\u2028b: c"', '"\\n a"')
    )
    file.write_text(
        f'type: task\nname: train\n"x\\ntype: fleet": 1\n"\\x9b2J": 2\nenv:\n{env}commands:\n{commands}\n',
        "utf-8",
    )
    text = imported("dstack", file).stdout
    assert "\x9b" not in text
    (document,) = read(text, "out.yaml")
    (given,) = read(file.read_text("utf-8"), "a.yaml")
    for key in ("env", "commands"):
        assert document.data[key] == given.data[key]
    assert set(document.data) == {"type", "name", "env", "commands", "resources"}


def test_bad_yaml_is_an_error(tmp_path):
    (tmp_path / "a.yaml").write_text("a: [")
    done = CliRunner().invoke(cli, ["import", "skypilot", str(tmp_path / "a.yaml")])
    assert done.exit_code == 1
    imported("terraform", tmp_path / "a.yaml", code=2)


@pytest.mark.parametrize(
    ("tool", "text"),
    [("dstack", "type: task\nname: {}\ncommands: [x]\n"), ("skypilot", "name: {}\nrun: x\n")],
)
def test_a_changed_name_is_said(tool, text, tmp_path):
    """Other documents and scripts may go by the old one."""
    for name, new in (("a", "imported"), ("My_Task", "my-task")):
        (tmp_path / "x.yaml").write_text(text.format(name))
        assert f"# the name is now `{new}`: " in imported(tool, tmp_path / "x.yaml").stdout
    (tmp_path / "x.yaml").write_text(text.format("train"))
    assert "the name is now" not in imported(tool, tmp_path / "x.yaml").stdout


def test_a_document_without_a_type(tmp_path):
    """It may be the file of another tool."""
    (tmp_path / "sky.yaml").write_text("run: x\n")
    said = imported("dstack", tmp_path / "sky.yaml").stdout
    assert "# sky.yaml:1: left out a document without a `type`: no counterpart\n" in said


# ------------------------------------------------------------------------------------------- SkyPilot


def of_sky(tmp_path: Path, text: str, *more: str) -> tuple[dict[str, dict[str, Any]], Result]:
    """What a file becomes: the documents by address, and all that was printed."""
    files = []
    for number, content in enumerate((text, *more)):
        files.append(tmp_path / f"sky{number or ''}.yaml")
        files[-1].write_text(content)
    return documents(imported("skypilot", *files))


def of_dstack(tmp_path: Path, text: str) -> tuple[dict[str, dict[str, Any]], Result]:
    (tmp_path / "x.dstack.yml").write_text(text)
    return documents(imported("dstack", tmp_path / "x.dstack.yml"))


def documents(done: Result) -> tuple[dict[str, dict[str, Any]], Result]:
    found = [dict(d.data) for d in read(done.stdout, "out.yaml")]
    out = {f"{d['type']}/{d['name']}": d for d in found}
    assert len(out) == len(found)
    return out, done


def sky(resources: str, **more: str) -> str:
    rest = "".join(f"{key}: {value}\n" for key, value in more.items())
    return f"name: job\nresources: {resources}\n{rest}run: ./run.sh\n"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """The folder has no project."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")


CLOUDS_OF_SKY = (
    *("k8s/prod", "kubernetes", "runpod", "oci", "cudo", "paperspace", "vast", "ibm"),
    *("fluidstack", "scp", "vsphere", "hyperbolic", "seeweb", "no-such"),
)


@pytest.mark.parametrize("infra", CLOUDS_OF_SKY)
def test_what_no_driver_launches_is_refused_and_never_local(infra, tmp_path):
    """The backend stays, and is not declared: nothing can be planned before somebody names another one."""
    found, done = of_sky(tmp_path, sky(f"{{infra: {infra}, cpus: 2+}}"))
    name = {"k8s": "kubernetes"}.get(infra.partition("/")[0], infra.partition("/")[0])
    assert found["fleet/job"]["backends"] == [name]
    assert "regions" not in found["fleet/job"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "p.yaml").write_text(done.stdout)
    with pytest.raises(InvalidError) as error:
        load(tmp_path / "out")
    (refused,) = error.value.diagnostics
    assert f"`{name}`" in refused.summary
    assert refused.summary in done.stderr
    assert "--> sky.yaml:1" in done.stderr
    assert "sky.yaml:2: `resources`" in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        "type: volume\nname: lake\nbackend: runpod\nregion: EU-RO-1\nsize: 100GB\n",
        "type: fleet\nname: lake\nbackends: [kubernetes]\nnodes: 1\n",
        "type: fleet\nname: lake\nbackends: [runpod, vastai]\nnodes: 1\n",
        "type: task\nname: lake\nbackends: [kubernetes]\ncommands: [x]\n",
        "type: fleet\nname: lake\nnodes: 1\n",
    ],
)
def test_no_document_of_dstack_falls_to_this_machine(text, tmp_path):
    _, done = of_dstack(tmp_path, text)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "p.yaml").write_text(done.stdout)
    with pytest.raises(InvalidError) as error:
        load(tmp_path / "out")
    assert {d.code for d in error.value.diagnostics} == {"dangling-reference"}
    assert all(d.summary in done.stderr for d in error.value.diagnostics)


def test_a_task_without_a_place_takes_the_projects_backends_and_never_this_machine(tmp_path, monkeypatch):
    found, _ = of_sky(tmp_path, sky("{cpus: 2+}"))
    assert found["fleet/job"]["backends"] == ["cloud"]
    project = tmp_path / "empty"
    (project / "p.yaml").write_text("type: backend\nname: local\n")
    found, _ = of_sky(tmp_path, sky("{cpus: 2+}"))
    assert found["fleet/job"]["backends"] == ["cloud"]
    (project / "p.yaml").write_text("type: backend\nname: aws\ndriver: ec2\nregions: [us-east-1]\n")
    found, done = of_sky(tmp_path, sky("{cpus: 2+}"))
    assert "backends" not in found["fleet/job"]
    assert done.stderr == ""


def test_one_usable_cloud_of_several_is_kept_and_the_others_are_told(tmp_path):
    found, done = of_sky(tmp_path, sky("{any_of: [{infra: aws/us-east-1}, {infra: k8s}, {infra: scp}]}"))
    assert found["fleet/job"]["backends"] == ["aws"]
    assert "left out an alternative of `resources` (kubernetes)" in done.stdout
    assert "left out an alternative of `resources` (scp)" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("resources", "lost"),
    [
        ("{job_recovery: {max_restarts_on_errors: abc}}", "max_restarts_on_errors` (abc)"),
        ("{job_recovery: {max_restarts_on_errors: true}}", "max_restarts_on_errors` (true)"),
        ("{job_recovery: {max_restarts_on_errors: -1}}", "max_restarts_on_errors` (-1)"),
        (f"{{accelerators: 'A100:{'9' * 400}'}}", "resources.accelerators"),
        (f"{{cpus: 8, memory: {'9' * 400}x}}", "resources.memory"),
        (f"{{cpus: {'9' * 400}, memory: 4x}}", "resources.memory"),
    ],
)
def test_a_value_that_is_no_number_or_a_huge_one_is_named(resources, lost, tmp_path):
    (tmp_path / "sky.yaml").write_text(sky(resources))
    assert lost in imported("skypilot", tmp_path / "sky.yaml").output


def test_each_backend_without_a_driver_is_told_at_its_line(tmp_path):
    """It is left out where another one can be used, and else kept, so that nothing runs on this machine."""
    fleet = "type: fleet\nname: lake\nnodes: 1\nbackends:\n- "
    kept, done = of_dstack(tmp_path, fleet + "aws\n- aws\n- kubernetes\n- runpod\n")
    assert kept["fleet/lake"]["backends"] == ["aws"]
    assert "# x.dstack.yml:7: left out `backends` (kubernetes)" in done.stdout
    assert "# x.dstack.yml:8: left out `backends` (runpod)" in done.stdout
    kept, done = of_dstack(tmp_path, fleet + "runpod\n- runpod\n- vastai\n")
    assert kept["fleet/lake"]["backends"] == ["runpod", "vastai"]
    assert "# x.dstack.yml:5: `backends` (runpod): no driver of that name" in done.stdout
    assert "# x.dstack.yml:7: `backends` (vastai): no driver of that name" in done.stdout
    volume = "type: volume\nname: lake\nregion: EU-RO-1\nsize: 100GB\nbackend: runpod\n"
    assert "# x.dstack.yml:5: `backend` (runpod): no driver" in of_dstack(tmp_path, volume)[1].stdout


def test_a_pool_of_hosts_is_a_fleet_to_declare(tmp_path):
    found, done = of_sky(tmp_path, sky("{infra: ssh/rack, cpus: 2+}"))
    assert list(found) == ["task/job"]
    assert found["task/job"]["fleets"] == ["rack"]
    assert "no fleet is named `rack`" in done.stderr


@pytest.mark.parametrize(
    ("accelerators", "gpu"),
    [
        ("L4", "L4:1"),
        ("L4:2", "L4:2"),
        ('"H100:1+"', "H100:1.."),
        ("{A100: 8}", "A100:8"),
        ("{L4:1, A10G:1}", "L4,A10G:1"),
        ("[L4:1, A10G:1]", "L4,A10G:1"),
        ("A100-80GB:8", "A100:80GB:8"),
        ("A100-80GB-SXM:8", "A100:80GB:8"),
        ("RTX6000-Ada:1", "RTX6000Ada:1"),
        ("H100-NVL", "H100:94GB:1"),
        ("H100-MEGA:8", "H100:8"),
        ("V100-32GB:1", "V100:32GB:1"),
        ("RTXA6000:1", "A6000:1"),
        ("Gaudi HL-205:8", "GAUDI:8"),
        ("tpu-v4-16", "tpu-v4-16:1"),
        ("tpu-v5litepod-8:1", "tpu-v5litepod-8:1"),
        ("Quantum-9:4", "Quantum-9:4"),
        ("T4:0.5", "T4:1"),
    ],
)
def test_what_was_asked_for_stays_a_gpu(accelerators, gpu, tmp_path):
    found, done = of_sky(tmp_path, sky(f"{{infra: aws, accelerators: {accelerators}}}"))
    assert found["fleet/job"]["resources"]["gpu"] == gpu
    assert found["task/job"]["resources"]["gpu"] == gpu
    unknown = gpu.startswith(("tpu", "Quantum"))
    told = unknown or any(part in accelerators for part in ("0.5", "SXM", "MEGA"))
    assert (f"`resources.accelerators` ({accelerators}" in done.stdout) == told


@given(
    st.text(alphabet="ABHLTXRv0123456789-. ", min_size=1, max_size=12).filter(str.strip),
    st.one_of(st.integers(1, 16), st.sampled_from(["x", "1+", "", "0.5", "-1", "0"])),
)
def test_no_accelerator_becomes_a_node_without_gpus(name, count):
    """Each document that is not refused asks for GPUs, in its fleets and in its task."""
    text = f'name: job\nresources: {{infra: aws, accelerators: "{name}:{count}"}}\nrun: x\n'
    (document,) = read(text, "sky.yaml", pyyaml=True)
    drafts = from_skypilot(document, "job")
    for draft in drafts:
        if not draft.refused and draft.drop_invalid():
            parsed = Gpu.parse(draft.fields["resources"]["gpu"])
            assert parsed.count.min >= 1


@pytest.mark.parametrize(
    ("resources", "cpu", "memory"),
    [
        ("{}", "8..", "32GB.."),
        ("{infra: aws}", "8..", "32GB.."),
        ("{cpus: 4}", 4, "16GB.."),
        ("{cpus: 4+}", "4..", "16GB.."),
        ("{memory: 64+}", None, "64GB.."),
        ("{accelerators: L4}", None, None),
        ("{accelerators: L4, cpus: 4+}", "4..", None),
        ("{instance_type: m5.large}", None, None),
        ("{infra: k8s}", "2..", "2GB.."),
        ("{infra: slurm/hpc/gpu}", None, None),
    ],
)
def test_the_sizes_that_skypilot_asks_for_by_itself_are_written(resources, cpu, memory, tmp_path):
    found, done = of_sky(tmp_path, sky(resources))
    asked = found["task/job"].get("resources", {})
    assert str(asked.get("cpu")) == str(cpu)
    assert asked.get("memory") == memory
    by_default = [key for key in ("cpus", "memory") if f"{key}:" not in resources]
    assert done.stdout.count("# SkyPilot's default") == 2 * sum(
        value is not None for key, value in (("cpus", cpu), ("memory", memory)) if key in by_default
    )


@pytest.mark.parametrize("given", ["", "gpu: L4:1", "cpu: 4", "memory: 16GB..", "disk: 200GB..", "cpu: null"])
@pytest.mark.parametrize("kind", ["task", "fleet"])
def test_the_sizes_that_dstack_asks_for_by_itself_are_written(given, kind, tmp_path):
    rest = "commands: [x]" if kind == "task" else "nodes: 1\nbackends: [aws]"
    found, _ = of_dstack(tmp_path, f"type: {kind}\nname: job\n{rest}\nresources: {{{given}}}\n")
    asked = found[f"{kind}/job"]["resources"]
    want = {"cpu": "2..", "memory": "8GB..", "disk": "100GB.."}
    key, _, value = given.partition(": ")
    assert {k: str(v) for k, v in asked.items()} == want | ({key: value} if value not in ("", "null") else {})


def test_hosts_have_the_sizes_that_they_have(tmp_path):
    found, _ = of_dstack(
        tmp_path, "type: fleet\nname: rack\nssh_config: {user: u, hosts: [10.0.0.1]}\nresources: {}\n"
    )
    assert not found["fleet/rack"].get("resources")


@pytest.mark.parametrize(
    ("gpu", "want"),
    [
        ("1", "nvidia:1"),
        ("24GB..80GB:1", "nvidia:24GB..80GB:1"),
        ("{memory: 24GB}", {"vendor": "nvidia", "memory": "24GB"}),
        ("amd:1", None),
        ("A100:1", None),
        ("{name: A100}", None),
        ("0", None),
    ],
)
@pytest.mark.parametrize("rest", ["", "image: rocm/pytorch\n"])
def test_gpus_of_dstack_without_a_name_are_nvidias_on_its_default_image(gpu, want, rest, tmp_path):
    text = f"type: task\nname: job\ncommands: [x]\n{rest}resources: {{gpu: {gpu}}}\n"
    found, done = of_dstack(tmp_path, text)
    default = want is not None and not rest
    assert found["task/job"]["resources"]["gpu"] == (want if default else yaml.safe_load(gpu))
    assert ("dstack's default vendor" in done.stdout) == default


def test_gpus_of_dstack_are_never_left_out(tmp_path):
    for gpu, want in (
        ("tpu:v5litepod-8", "google:v5litepod-8"),
        ("{vendor: tpu, name: v2-8}", {"vendor": "google", "name": "v2-8"}),
        ("RTX6000Ada:2", "RTX6000Ada:2"),
    ):
        found, _ = of_dstack(tmp_path, f"type: task\nname: job\ncommands: [x]\nresources: {{gpu: {gpu}}}\n")
        assert found["task/job"]["resources"]["gpu"] == want
    for gpu in ("{total_memory: 80GB..}", "'H100:H200'", "[H100]", "true"):
        found, done = of_dstack(
            tmp_path, f"type: task\nname: job\ncommands: [x]\nresources: {{gpu: {gpu}}}\n"
        )
        assert found == {}
        assert "not-converted" in done.stderr


def test_recovery_is_kept_and_what_differs_is_told(tmp_path):
    found, _ = of_sky(tmp_path, sky("{infra: aws, use_spot: true, job_recovery: none}"))
    assert "retry" not in found["task/job"]
    found, done = of_sky(
        tmp_path,
        sky("{infra: aws, job_recovery: {max_restarts_on_errors: 3, recover_on_exit_codes: [33]}}"),
    )
    events = ["no-capacity", "interruption", "error"]
    assert found["task/job"]["retry"] == {"on_events": events, "duration": "off", "max_attempts": 4}
    for told in ("`max_restarts_on_errors` (3)", "`recover_on_exit_codes` ([33])"):
        assert f"sky.yaml:2: {told}" in done.stdout
    found, _ = of_sky(tmp_path, sky("{infra: aws, job_recovery: {strategy: FAILOVER}}"))
    assert found["task/job"]["retry"] == {"on_events": events[:2], "duration": "off"}
    for key, hinted in (("job_recovery", False), ("spot_recovery", False), ("labels", True)):
        value = "{}" if hinted else "FAILOVER"
        _, done = of_sky(tmp_path, sky(f"{{infra: aws, use_spot: true, {key}: {value}}}"))
        assert ("`sky jobs launch` would start it anew" in done.stdout) == hinted


@pytest.mark.parametrize(
    ("choices", "policies"),
    [
        ("[{use_spot: true}, {use_spot: false}]", {"job": "auto"}),
        ("[{use_spot: true}, {}]", {"job": "auto"}),
        ("[{use_spot: false}, {}]", {"job": "on-demand"}),
        ("[{use_spot: true}]", {"job": "spot"}),
        ("[{use_spot: true}, {cpus: 2}]", {"job-1": "spot", "job-2": "on-demand"}),
    ],
)
def test_spot_with_on_demand_as_fallback_is_auto(choices, policies, tmp_path):
    found, _ = of_sky(tmp_path, sky(f"{{infra: aws, any_of: {choices}}}"))
    fleets = [d for d in found.values() if d["type"] == "fleet"]
    assert {d["name"]: d.get("spot_policy", "on-demand") for d in fleets} == policies


def test_alternatives_are_fleets_and_never_multiplied(tmp_path):
    """Two clouds with a region each are two fleets: no cloud gets the other's region."""
    found, done = of_sky(
        tmp_path,
        sky(
            "{ordered: [{infra: aws/us-east-1, accelerators: 'L4:1'}, "
            "{infra: gcp/us-west2, accelerators: 'T4:4'}]}"
        ),
    )
    one, two = found["fleet/job-1"], found["fleet/job-2"]
    assert (one["backends"], one["regions"], one["resources"]["gpu"]) == (["aws"], ["us-east-1"], "L4:1")
    assert (two["backends"], two["regions"], two["resources"]["gpu"]) == (["gcp"], ["us-west2"], "T4:4")
    assert found["task/job"]["fleets"] == ["job-1", "job-2"]
    assert found["task/job"]["resources"]["gpu"] == "L4,T4:1..4"
    assert "`ordered` has no counterpart" in done.stdout
    found, _ = of_sky(
        tmp_path, sky("{any_of: [{infra: aws/us-east-1}, {infra: aws/us-west-2}, {infra: gcp}]}")
    )
    assert found["fleet/job-1"]["regions"] == ["us-east-1", "us-west-2"]
    assert "regions" not in found["fleet/job-2"]


def test_equal_alternatives_are_one_fleet(tmp_path):
    for choices in ("[{}, {}]", "[{cpus: 2}, {cpus: 2}]"):
        found, _ = of_sky(tmp_path, sky(f"{{any_of: {choices}}}"))
        assert list(found) == ["fleet/job", "task/job"]


PLACES = st.fixed_dictionaries(
    {"cloud": st.sampled_from(["aws", "gcp", "azure"])},
    optional={
        "region": st.sampled_from(["r1", "r2", "r3"]),
        "use_spot": st.booleans(),
        "accelerators": st.sampled_from(["L4:1", "A10G:1", "L4:2", "A100-80GB:1"]),
        "cpus": st.sampled_from([2, "4+"]),
    },
)


@given(st.lists(PLACES, min_size=1, max_size=6))
def test_fleets_allow_what_the_alternatives_allow_and_nothing_else(choices):
    text = f"name: job\nresources: {json.dumps({'any_of': choices})}\nrun: x\n"
    (document,) = read(text, "sky.yaml", pyyaml=True)
    fleets = [d.fields for d in from_skypilot(document, "job") if d.kind == "fleet"]

    def allowed_by_file(cloud, region, spot, gpu, cpu):
        return any(
            c["cloud"] == cloud
            and c.get("region", region) == region
            and c.get("use_spot", False) == spot
            and c.get("accelerators", gpu if gpu == "none" else None) == gpu
            and str(c.get("cpus", "none" if "accelerators" in c else "8+")) == cpu
            for c in choices
        )

    def allowed_by_fleets(cloud, region, spot, gpu, cpu):
        model, _, count = gpu.partition(":")
        memory = ":80GB" if model == "A100-80GB" else ""
        model = model.removesuffix("-80GB")

        def fits(fleet):
            asked = fleet.get("resources", {})
            head, *rest = asked.get("gpu", "none").split(":")
            policy = fleet.get("spot_policy", "on-demand")
            return (
                cloud in fleet["backends"]
                and region in fleet.get("regions", [region])
                and policy in ("auto", "spot" if spot else "on-demand")
                and model in head.split(",")
                and ":".join(["", *rest]).removeprefix(":") == f"{memory}:{count}".strip(":")
                and asked.get("cpu", "none").replace("..", "+") == cpu
            )

        return any(map(fits, fleets))

    every = itertools.product(
        ["aws", "gcp", "azure"],
        ["r1", "r2", "r3"],
        [True, False],
        ["none", "L4:1", "A10G:1", "L4:2", "A10G:2", "A100-80GB:1"],
        ["none", "2", "4+", "8+"],
    )
    assert [one for one in every if allowed_by_file(*one) != allowed_by_fleets(*one)] == []


def test_what_ends_nodes_and_limits_their_price(tmp_path):
    for text, idle in (
        ("5", "5m"),
        ("10m", "10m"),
        ("2h", "2h"),
        ("true", "5m"),
        ("false", "off"),
        ("{idle_minutes: 7, down: true}", "7m"),
    ):
        found, done = of_sky(
            tmp_path, sky(f"{{infra: aws, autostop: {text}, max_hourly_cost: 2.5, priority: 500}}")
        )
        assert found["fleet/job"]["idle_duration"] == idle
        assert found["fleet/job"]["max_price"] == 2.5
        assert found["task/job"]["priority"] == 50
        assert ("`idle_duration` deletes both" in done.stdout) == (text != "false" and "down" not in text)
    _, done = of_sky(
        tmp_path, sky("{infra: aws, autostop: {idle_minutes: 5, wait_for: none, hook: git push}}")
    )
    assert "left out `resources.autostop.hook` (git push)" in done.stdout
    assert "left out `resources.autostop.wait_for` (none)" in done.stdout


def test_the_home_of_commands_is_where_the_files_are(tmp_path):
    found, done = of_sky(
        tmp_path,
        "name: job\nresources: {infra: aws}\nworkdir: .\nfile_mounts: {~/data: ./data, code: ./lib}\n"
        "run: ls ~/data/a && ls ~/sky_workdir/code\n",
    )
    task = found["task/job"]
    assert [(f["local_path"], f["path"]) for f in task["files"]] == [
        (".", "sky_workdir"),
        ("data", "data"),
        ("lib", "sky_workdir/code"),
    ]
    assert "`~` is the rank's own folder" in done.stdout
    home = tmp_path / "rank"
    (home / "data").mkdir(parents=True)
    (home / "data" / "a").touch()
    (home / "sky_workdir" / "code").mkdir(parents=True)
    subprocess.run(["bash", "-ec", "\n".join(task["commands"])], cwd=home, check=True)
    plain, _ = of_sky(tmp_path, "name: job\nresources: {infra: aws}\nworkdir: .\nrun: ls\n")
    assert plain["task/job"]["files"] == [{"local_path": ".", "path": "."}]


def test_names_of_several_files_stay_apart(tmp_path):
    text = sky("{infra: aws, cpus: 2}")
    found, done = of_sky(tmp_path, text + "---\n" + text, text)
    assert [address for address in found if "fleet" in address] == ["fleet/job", "fleet/job-2", "fleet/job-3"]
    assert [found[f"task/{name}"]["fleets"] for name in ("job", "job-2", "job-3")] == [
        ["job"],
        ["job-2"],
        ["job-3"],
    ]
    assert "the name is now `job-3`: another task has the name `job`" in done.stdout
    assert done.stderr == ""


def test_an_expression_of_ours_in_commands_of_others_stays_text(tmp_path):
    found, done = of_sky(
        tmp_path, "name: job\nresources: {infra: aws}\nenvs: {A: '${{ b }}'}\nrun: echo '${{ x }}'\n"
    )
    assert found["task/job"]["commands"] == ["echo '$${{ x }}'"]
    assert found["task/job"]["env"] == {"A": "$${{ b }}"}
    assert done.stderr == ""


# --------------------------------------------------------------------------------------------- dstack


def test_each_note_names_its_line_and_the_value_that_was_lost(tmp_path):
    _, done = of_dstack(
        tmp_path,
        "type: task\nname: many\nfiles:\n  - ~/.gitconfig\n  - a.py\n  - ../lib\n  - /srv/keys\n"
        "commands: [x]\nresources: {cpu: 'x86:8..'}\nregistry_auth: {username: u, password: hunter2}\n",
    )
    for line, value in ((4, "~/.gitconfig"), (6, "../lib"), (7, "/srv/keys")):
        assert f"# x.dstack.yml:{line}: left out `files` ({value})" in done.stdout
    assert "x.dstack.yml:9: left out `resources.cpu: architecture` (x86)" in done.stdout
    assert "  cpu: 8..\n" in done.stdout
    assert "hunter2" not in done.output


def test_folders_where_files_are_not_are_told(tmp_path):
    found, done = of_dstack(
        tmp_path,
        "type: task\nname: job\nrepos: [.]\nworking_dir: /workspace/code\n"
        "commands: [ls /workflow/a, cd /workspace/code]\n",
    )
    assert "working_dir" not in found["task/job"]
    for told in ("left out `working_dir` (/workspace/code)", "`commands` name `/workflow`"):
        assert told in done.stdout
    assert "`commands` name `/workspace/code`" in done.stdout


def test_a_copied_folder_is_sent_and_a_container_is_told_as_one(tmp_path):
    found, done = of_sky(
        tmp_path,
        "name: job\nresources: {infra: aws, image_id: 'nvcr.io/nvidia/pytorch:26.02-py3'}\n"
        "file_mounts: {~/code: {source: ., mode: COPY}}\nsetup: x\n",
    )
    assert found["task/job"]["files"] == [{"local_path": ".", "path": "code"}]
    assert "a container as the task's `image`" in done.stdout
    assert "sky.yaml:3: `file_mounts.~/code`: sent as files" in done.stdout
    assert "there is no `run`" in done.stdout


@pytest.mark.parametrize("text", ["$GPU:1", "H100:many", "':8'", "7:8"])
def test_a_template_for_a_gpu_is_refused(text, tmp_path):
    found, done = of_sky(tmp_path, sky(f"{{infra: aws, accelerators: {text}}}"))
    assert found.keys() <= {"backend/aws"}
    assert done.stderr.count("warning[not-converted]: a fleet and a task were not converted") == 1
    assert "no GPU of that name is known" not in done.stdout
    assert "names no GPUs" in done.stderr


def test_a_clone_lies_where_the_commands_start(tmp_path):
    text = (
        "type: task\nname: job\nworking_dir: /workspace/code\ncommands: [ls /workspace/code_storage]\n"
        "repos: [{}]\n"
    )
    for repo in (
        "https://github.com/a/b",
        "git@github.com:a/b.git",
        "{url: 'https://github.com/a/b', branch: c}",
    ):
        found, done = of_dstack(tmp_path, text.format(repo))
        task = found["task/job"]
        assert (task["working_dir"], task["repos"][0]["path"]) == ("/workspace/code", "/workspace/code")
        assert (done.stderr, "# x.dstack" in done.stdout) == ("", False)
    found, done = of_dstack(tmp_path, text.format("{local_path: .}"))
    assert "working_dir" not in found["task/job"]
    assert "`commands` name" not in done.stdout  # `code_storage` is another folder


def test_a_task_with_one_backend_keeps_it(tmp_path):
    found, done = of_dstack(tmp_path, "type: task\nname: job\ncommands: [x]\nbackend: runpod\n")
    assert found["task/job"]["backends"] == ["runpod"]
    assert "no backend is named `runpod`" in done.stderr


def test_keys_do_not_go_into_the_project_and_empty_variables_are_told(tmp_path):
    _, done = of_sky(
        tmp_path,
        "name: job\nresources: {infra: aws}\nenvs: {HF_TOKEN: '', A: b}\n"
        "file_mounts: {~/.ssh/id_rsa: ~/.ssh/id_rsa}\nrun: x\n",
    )
    assert "a key does not belong into a project" in done.stdout
    assert "sky.yaml:3: `envs` (HF_TOKEN) is empty" in done.stdout


@pytest.mark.parametrize(
    ("crons", "starts"),
    [
        (["0 8 * * *", "0 20 * * *"], ["0 8,20 * * *"]),
        (["0 8 * * *", "30 20 * * *"], ["0 8 * * *", "30 20 * * *"]),
        (["0 8 * * 1", "0 8 * * *"], ["0 8 * * 1", "0 8 * * *"]),
        (["0 8 * * *"], ["0 8 * * *"]),
    ],
)
def test_several_start_times_all_stay(crons, starts, tmp_path):
    found, done = of_dstack(
        tmp_path, f"type: task\nname: job\ncommands: [x]\nschedule: {{cron: {json.dumps(crons)}}}\n"
    )
    assert [d["schedule"]["cron"] for d in found.values()] == starts
    assert done.stderr == ""


# ---------------------------------------------------------------------------------- a project around it

AWS = "type: backend\nname: aws\ndriver: ec2\nregions: [us-east-1]\n"
FOREIGN = {
    "skypilot": "name: job\nresources: {infra: aws, cpus: 2}\nrun: x\n",
    "dstack": "type: fleet\nname: job\nbackends: [aws]\nnodes: 0..1\nretry: true\n",
}


@pytest.mark.parametrize("tool", FOREIGN)
@pytest.mark.parametrize("file", ["job.yaml", ".dstack.yml", "jobs/job.yaml", "link.yaml"])
def test_a_file_inside_of_the_project_does_not_hide_its_backends(tool, file, tmp_path):
    """The project is read without it: read as one of ours, it is an error."""
    project = tmp_path / "empty"
    (project / "jobs").mkdir()
    include = "type: project\ninclude: ['jobs/*.yaml']\n---\n" if "/" in file else ""
    (project / "backends.yaml").write_text(include + AWS)
    (project / "jobs" / "target.txt").write_text(FOREIGN[tool])
    if file == "link.yaml":
        (project / file).symlink_to("jobs/target.txt")
    else:
        (project / file).write_text(FOREIGN[tool])
    found, done = documents(imported(tool, project / file))
    assert "backend/aws" not in found
    assert done.stderr == ""


def test_the_errors_of_the_project_are_told_and_not_those_of_the_documents(tmp_path):
    project = tmp_path / "empty"
    (project / "broken.yaml").write_text("type: fleet\nname: gpu\n")
    done = imported("dstack", DSTACK / "task.yaml")
    assert done.stderr.count("`nodes` is missing") == 1
    assert "this command goes on without what it declares" in done.stderr
    assert "imported.yaml" not in done.stderr


def test_a_name_that_the_project_has_is_told_at_its_line(tmp_path):
    project = tmp_path / "empty"
    (project / "job.yaml").write_text("type: fleet\nname: job\nnodes: 0..1\n")
    (project / "sky.yaml").write_text("\n" + FOREIGN["skypilot"])
    done = imported("skypilot", project / "sky.yaml")
    assert "warning[duplicate-name]" in done.stderr
    assert "--> sky.yaml:2:" in done.stderr


def test_what_is_left_to_do_is_told_at_the_value_that_it_is_about(tmp_path):
    _, done = of_dstack(
        tmp_path, "type: task\nname: job\ncommands:\n- x\nfleets:\n- gpu\n- main/rack\nnodes: 2\n"
    )
    for line in (6, 7):
        assert f"--> x.dstack.yml:{line}:3" in done.stderr


# -------------------------------------------------------------------------------------- what is written

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
    st.text("01.eExXob_:-+~#%@!&*|>{}[],'\"?=< \n\t.\\infaNyYnonul🚀é\u00a0\u0085\u2028\u200d", max_size=10),
    st.sampled_from(
        [
            *(".5", "._5", "-.5", "+.5", "5.", "1_000", "0x1F", "0o17", "017", "0b11", "1e3", "1.0e+3"),
            *(".inf", "-.INF", ".NaN", "NaN", "~", "null", "Null", "NO", "yes", "On", "oFF", "y", "N"),
            *("true", "=", "<<", "1:30", "1:30.5", "2024-01-01", "2024-01-01T00:00:00Z", "-", "--"),
            *("---", "...", "?", ":", "a:b", "{}", "[]", "./x", "../x", ".x", "..", "!x", "&x", "*x"),
            *("12:34:56", "0", "00", "08", "0.0.0.0", "1..2", "8..", "190:20:30", "{{x}}", "${{x}}"),
            *("@x", "`x`", "%", "##", "::set", "|-", ">"),
        ]
    ),
)


@given(st.lists(TEXTS, max_size=4), st.dictionaries(TEXTS, TEXTS, max_size=3))
@example(texts=["\x7f\n"], fields={})
@example(texts=["🚀 start\ndone\n", "a \U0001f469\u200d\U0001f4bb\n\nb"], fields={})
def test_every_reader_of_yaml_reads_the_texts_that_were_written(texts, fields):
    """YAML 1.2 and 1.1, and ours: no text becomes a number, a date or another text."""
    want = {"texts": texts, "fields": fields, "nested": [{"texts": [texts]}]}
    written = "\n".join(yaml_lines(want)) + "\n"
    assert yaml.safe_load(written) == want
    for version in ("1.2", "1.1"):
        other = YAML(typ="safe", pure=True)
        other.version = version
        assert other.load(written) == want
    if all(len(key) < 200 and key != "<<" for key in fields):
        for pyyaml in (False, True):
            assert read(written, "out.yaml", pyyaml=pyyaml)[0].data == want


@given(
    st.one_of(
        st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False, width=32)
    )
)
@example(10**30)
def test_what_is_no_text_is_written_so_that_it_can_be_read(value):
    (document,) = read("\n".join(yaml_lines({"value": value})), "out.yaml")
    assert document.data["value"] == (str(value) if type(value) is int and abs(value) >= 2**63 else value)


# -------------------------------------------------------------- kept or told, whatever the file's values are


def written(tool: str, data: dict[str, Any]) -> str:
    """What comes of a document in one line, and why it is refused."""
    (document,) = read(json.dumps(data), "one.yaml", pyyaml=True)
    drafts = (from_skypilot if tool == "skypilot" else from_dstack)(document, "job")
    text = text_of(drafts, "")
    return text + "".join(draft.refused for draft in drafts)


SHAPES: list[Any] = [7, 2.5, True, "abc", [1, 2], ["a", "b"], [{"a": 1}], {"a": "b"}, {"a": [1]}]
SKY = {"name": "job", "run": "x", "resources": {"cloud": "aws", "cpus": 2}}
OF_SKY = (
    *("workdir", "num_nodes", "resources", "envs", "secrets", "file_mounts", "volumes", "setup", "run"),
    *("service", "config", "event_callback"),
)
OF_RESOURCES = (
    *("infra", "cloud", "region", "zone", "accelerators", "accelerator_args", "cpus", "memory", "disk_size"),
    *("instance_type", "use_spot", "job_recovery", "spot_recovery", "disk_tier", "network_tier", "ports"),
    *("labels", "autostop", "max_hourly_cost", "priority", "image_id", "any_of", "ordered", "volumes"),
    *("local_disk", "ephemeral_storage", "hooks"),
)


@pytest.mark.parametrize("key", OF_SKY)
def test_no_value_of_a_task_of_skypilot_is_ignored(key):
    without = written("skypilot", {k: v for k, v in SKY.items() if k != key})
    for value in SHAPES:
        assert written("skypilot", {**SKY, key: value}) != without, value


@pytest.mark.parametrize("key", OF_RESOURCES)
@pytest.mark.parametrize("within", ["resources", "any_of"])
def test_no_value_of_resources_of_skypilot_is_ignored(key, within):
    def of(fields):
        rest = {k: v for k, v in {"cloud": "aws", "cpus": 2, **fields}.items() if v is not None}
        asked = rest if within == "resources" else {"any_of": [rest, {"cloud": "gcp"}]}
        return written("skypilot", {**SKY, "resources": asked})

    without = of({key: None})
    for value in SHAPES:
        assert of({key: value}) != without, value


@pytest.mark.parametrize("kind", ["task", "fleet", "volume"])
def test_no_value_of_dstack_is_ignored(kind):
    every: dict[str, dict[str, Any]] = {
        "task": {"commands": ["x"], "resources": {"cpu": 2}, "image": "a/b"},
        "fleet": {"nodes": 1},
        "volume": {"backend": "aws", "region": "r1", "size": "100GB"},
    }
    needed = every[kind]
    cls = DOCUMENTS[kind]
    foreign = getattr(cls, "FOREIGN", {})
    for key in {*(f.name for f in fields_of(cls)), *foreign, *ignored_of(cls)} - {"name"}:
        rest = {"type": kind, "name": "job", **{k: v for k, v in needed.items() if k != key}}
        without = written("dstack", rest)
        for value in SHAPES:
            assert written("dstack", {**rest, key: value}) != without, (key, value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("resources: [1, 2]\n", 3),
        ("envs: [a, b]\n", 3),
        ("file_mounts: abc\n", 3),
        ("resources:\n  use_spot: 'false'\n", 4),
        ("resources:\n  any_of: {infra: aws}\n", 4),
        ("resources:\n  any_of:\n  - {infra: aws}\n  - gcp\n", 6),
        ("resources:\n  infra: aws\n  region: us-east-1\n", 5),
        ("resources:\n  any_of: [{cpus: 2}]\n  ordered: [{cpus: 4}]\n", 5),
    ],
)
def test_a_value_of_another_shape_is_told_at_its_place(text, line, tmp_path):
    found, done = of_sky(tmp_path, f"name: job\nrun: x\n{text}")
    assert found.keys() <= {"backend/aws"}
    assert f"--> sky.yaml:{line}:" in done.stderr
    assert f"# sky.yaml:{line}: " in done.stdout


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        *(("skypilot", f"resources:\n  {key}: 2\n") for key in ("gpu", "gpus", "accelerator", "num_nodes")),
        ("skypilot", "resources: {any_of: [{cpus: 2}, {\n  gpus: 1}]}\n"),
        *(("dstack", f"\n{key}: 2\n") for key in ("gpu", "gpus", "memory")),
    ],
)
def test_what_chooses_nodes_at_another_place_is_never_left_out(tool, text, tmp_path):
    (tmp_path / "x.yaml").write_text(f"type: task\nname: job\ncommands: [x]\n{text}")
    if tool == "skypilot":
        (tmp_path / "x.yaml").write_text(f"name: job\n\nrun: x\n{text}")
    found, done = documents(imported(tool, tmp_path / "x.yaml"))
    assert found == {}
    assert "--> x.yaml:5:" in done.stderr


def test_a_variable_of_the_other_tool_that_ranks_do_not_have_is_told(tmp_path):
    had = "$SKYPILOT_NODE_RANK $SKYPILOT_NUM_NODES ${DSTACK_MASTER_NODE_IP} $DSTACK_RUN_NAME SKYPILOT_X=1"
    found, done = of_sky(
        tmp_path,
        f"name: job\nresources: {{infra: aws}}\nenvs: {{SKYPILOT_MINE: a}}\n"
        f"setup: echo ${{SKYPILOT_TASK_ID}}\nrun: 'echo {had} $SKYPILOT_MINE $SKYPILOT_TASK_IDS'\n",
    )
    notes = [line for line in done.stdout.splitlines() if "ranks do not have it" in line]
    assert [note.partition(": ranks")[0] for note in notes] == [
        "# sky.yaml:4: the commands name `SKYPILOT_TASK_ID`",
        "# sky.yaml:5: the commands name `SKYPILOT_TASK_IDS`",
    ]
    assert "task/job" in found
    _, done = of_dstack(
        tmp_path,
        f"type: task\nname: job\nenv:\n- DSTACK_A=1\ncommands:\n- {had} $DSTACK_A\n- echo $DSTACK_JOB_ID\n",
    )
    assert done.stdout.count("ranks do not have it") == 1
    assert "# x.dstack.yml:7: the commands name `DSTACK_JOB_ID`" in done.stdout


RIGHTS = (
    *(
        "sudo apt-get update",
        "apt install -y git",
        "if ! sudo -n true; then x; fi",
        "A=1 sudo x",
        "yes | sudo x",
    ),
    *(
        "conda activate a",
        "source ~/.bashrc",
        ". $HOME/.profile",
        "mkdir -p /app/out",
        "x && (apt-get update)",
    ),
    *(
        "curl -fsSL a -o /usr/local/bin/a",
        "ln -s a /usr/lib/a",
        "x > /etc/a",
        "sudo shutdown -h +5 2>/dev/null &",
    ),
)
NO_RIGHTS = (
    *("echo sudo", "# sudo apt", "mkdir -p /tmp/a /dev/shm/b out", "cp /etc/hosts .", "cat /etc/hosts > out"),
    *(
        "x 2>/dev/null",
        "echo write --output /results/x",
        "git clone https://a/sudo",
        "./conda.sh",
        "mkdir /data/out",
        "export P=/usr/local/bin:$P",
    ),
)


@pytest.mark.parametrize("command", [*RIGHTS, *NO_RIGHTS])
@pytest.mark.parametrize("tool", ["skypilot", "dstack"])
def test_commands_for_root_or_a_logins_shell_are_told_once_at_the_first(tool, command, tmp_path):
    """Also that dstack's default image is not used."""
    script = f"set -e\n{command}\nsudo -v\n" if command in RIGHTS else f"set -e\n{command}\n"
    block = "".join(f"    {line}\n" for line in script.splitlines())
    if tool == "skypilot":
        text = f"name: job\nresources: {{infra: aws}}\nfile_mounts: {{/data: s3://x}}\nrun:\n   |\n{block}"
        _, done = of_sky(tmp_path, text)
    else:
        text = f"type: task\nname: job\nvolumes: ['v:/data']\ncommands:\n  - |\n{block}"
        _, done = of_dstack(tmp_path, text)
    notes = [line for line in done.stdout.splitlines() if "the commands use" in line]
    assert len(notes) == (command in RIGHTS)
    for note in notes:
        assert re.search(r"yaml:7: |yml:7: ", note)
        assert "write `image: …`" in note
        assert ("dstack's default image" in note) == (tool == "dstack")


def test_in_an_image_only_what_the_tool_puts_into_it_is_told(tmp_path):
    for command, name in (("sudo x", "`sudo`"), ("conda x", "`conda`"), ("apt-get update", "")):
        _, done = of_sky(
            tmp_path, f"name: job\nresources: {{infra: aws, image_id: 'docker:a/b'}}\nrun: {command}\n"
        )
        assert ("commands are root in an `image`" in done.stdout) == bool(name)
        assert name in done.stdout
        _, done = of_dstack(tmp_path, f"type: task\nname: job\nimage: a/b\ncommands: ['{command}']\n")
        assert "the commands use" not in done.stdout
    for more, one in (("python: 3.12\n", False), ("", True)):
        text = f"type: task\nname: job\n{more}commands: [python a.py]\n"
        assert ("`python`: dstack's default image" in of_dstack(tmp_path, text)[1].stdout) == one


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((f"git {word} x", f"git {word}") for word in ("fetch", "checkout", "remote", "pull", "rev-parse")),
        *(("cd a && git -C . pull", "git pull"), ("A=$(git rev-parse HEAD)", "git rev-parse")),
        *(("dvc pull", "dvc pull"), ("dvc exp run", "dvc exp")),
        *(("git clone https://a/b", ""), ("git config --global a b", ""), ("echo git pull", "")),
    ],
)
def test_what_needs_the_repository_of_a_sent_folder_is_told_at_its_line(command, name, tmp_path):
    script = f"|\n  x\n  {command}\n"
    base = "name: job\nresources: {infra: aws}\n"
    _, done = of_sky(tmp_path, f"{base}workdir: .\nrun: {script}")
    assert (f"# sky.yaml:6: `{name}`: `.git` is never sent" in done.stdout) == bool(name)
    _, done = of_sky(tmp_path, f"{base}workdir: {{url: 'https://a/b'}}\nrun: {script}")
    assert "`.git` is never sent" not in done.stdout
    script = script.replace("\n  ", "\n    ")
    _, done = of_dstack(tmp_path, f"type: task\nname: job\nrepos: [.]\ncommands:\n  - {script}")
    assert (f"# x.dstack.yml:7: `{name}`: `.git` is never sent" in done.stdout) == bool(name)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("repos: [.:/workspace]\nworking_dir: /workspace", {"repos": ["."]}),
        ("repos: .:/workspace\nworking_dir: /workspace/", {"repos": ["."]}),
        ("repos: [{local_path: ., path: /workspace}]", {"repos": ["."]}),
        ("repos: [.:/workspace]\nworking_dir: /workspace/a/b", {"repos": ["."], "working_dir": "a/b"}),
        ("repos: [.]\nworking_dir: /src", {"repos": ["."]}),
        ("files: [a.py:/workflow/a.py]", {"files": [{"local_path": "a.py", "path": "a.py"}]}),
        ("files: [a.py:/x/b/a.py]\nworking_dir: /x", {"files": [{"local_path": "a.py", "path": "b/a.py"}]}),
        ("files: [{local_path: a, path: /workflow}]", {"files": [{"local_path": "a", "path": "."}]}),
        ("files: [a.py:/etc/a.py, b.py]", {"files": ["b.py"]}),
        ("repos: ['https://a/b']", {"repos": ["https://a/b"]}),
        ("repos: ['https://a/b:/x']", {"repos": ["https://a/b:/x"]}),
    ],
)
def test_what_dstack_sends_to_a_folder_of_the_container_is_sent(given, kept, tmp_path):
    (tmp_path / "empty" / "a.py").touch()
    found, done = of_dstack(tmp_path, f"type: task\nname: job\ncommands: [x, cd /workflow]\n{given}\n")
    assert {k: v for k, v in found["task/job"].items() if k in ("repos", "files", "working_dir")} == kept
    assert "nothing is sent" not in done.stdout
    assert "`commands` name `/workflow`" in done.stdout
    if "/etc" in given:
        assert "# x.dstack.yml:4: left out `files` (a.py:/etc/a.py): " in done.stdout
        assert "`a.py:etc/a.py`" in done.stdout


@pytest.mark.parametrize("kind", ["task", "service"])
def test_the_repository_that_dstack_sent_by_itself_is_told(kind, tmp_path):
    text = f"type: {kind}\nname: job\ncommands: [x]\n"
    _, done = of_dstack(tmp_path, text)
    assert "# x.dstack.yml:3: nothing is sent: " in done.stdout
    assert "`repos: [.]`" in done.stdout
    for more in ("repos: []", "files: [a.py]"):
        assert "nothing is sent" not in of_dstack(tmp_path, f"{text}{more}\n")[1].stdout


@pytest.mark.parametrize("key", ["accelerators", "gpus"])
@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(("H100-SXM", "SXM"), ("A100-80GB-SXM", "SXM"), ("A100-PCIe", "PCIE"), ("RTXPRO6000WS", "WS")),
        *(("H100", ""), ("A100-80GB", ""), ("H100-NVL", ""), ("RTXPRO6000", ""), ("L4", "")),
    ],
)
def test_a_board_that_cannot_be_asked_for_is_told(key, name, form, tmp_path):
    """Also under SkyPilot's other name of the field."""
    found, done = of_sky(tmp_path, f"name: job\nrun: x\nresources:\n  infra: aws\n  {key}: {name}:1\n")
    assert found["fleet/job"]["resources"]["gpu"].endswith(":1")
    assert ("# sky.yaml:5: `resources.accelerators`" in done.stdout) == bool(form)
    assert f"{form} has no counterpart" in done.stdout or not form


def test_both_names_of_the_accelerators_exclude_each_other(tmp_path):
    found, done = of_sky(tmp_path, sky("{any_of: [{gpus: L4:1, accelerators: T4:1}, {gpus: L4:1}]}"))
    assert found == {}
    assert "`gpus` and `accelerators` exclude each other" in done.stdout


@pytest.mark.parametrize("infra", ["ssh/rack", "ssh", "slurm/hpc"])
def test_a_task_on_hosts_asks_for_what_it_asked_for(infra, tmp_path):
    found, done = of_sky(
        tmp_path,
        sky(f"{{infra: {infra}, gpus: L4:2, cpus: 4+, disk_size: 10, use_spot: true, labels: {{a: b}}}}"),
    )
    assert found["task/job"]["resources"] == {"gpu": "L4:2", "cpu": "4..", "disk": "10GB.."}
    assert "# sky.yaml:2: left out `resources.use_spot`: the nodes exist already" in done.stdout
    assert "# sky.yaml:2: left out `resources.labels`: the nodes exist already" in done.stdout
    _, done = of_sky(tmp_path, sky(f"{{any_of: [{{infra: {infra}, cpus: 4}}, {{infra: aws, cpus: 8}}]}}"))
    assert "has to have cpu: 4.., memory: " in done.stdout


@pytest.mark.parametrize("infra", ["ssh/rack", "slurm/hpc", "slurm/hpc/gpu"])
def test_a_rank_takes_a_share_of_a_node_that_is_larger(infra, tmp_path):
    found, _ = of_sky(tmp_path, sky(f"{{infra: {infra}, cpus: 4, memory: 8}}"))
    assert found["task/job"]["resources"] == {"cpu": "4..", "memory": "8GB.."}


@pytest.mark.parametrize("infra", ["ssh/rack", "slurm/hpc", "slurm/hpc/gpu"])
def test_spot_of_one_alternative_rules_out_no_nodes_that_exist(infra, tmp_path):
    asked = f"{{infra: {infra}, cpus: 4}}, {{infra: aws, cpus: 4, use_spot: true}}"
    found, _ = of_sky(tmp_path, sky(f"{{ordered: [{asked}]}}"))
    assert "spot_policy" not in found["task/job"]
    assert [f.get("spot_policy") for f in found.values() if f["type"] == "fleet"].count("spot") == 1


@pytest.mark.parametrize("place", ["infra: k8s/prod", "{cloud: kubernetes, region: prod}"])
def test_a_context_of_kubernetes_is_told(place, tmp_path):
    _, done = of_sky(tmp_path, sky(place if place.startswith("{") else f"{{{place}}}"))
    assert "(prod): a context has no counterpart" in done.stdout


@pytest.mark.parametrize("strategy", ["EAGER_NEXT_REGION", "failover", "{strategy: eager_next_region}"])
def test_each_strategy_of_recovery_is_told(strategy, tmp_path):
    _, done = of_sky(tmp_path, sky(f"{{infra: aws, job_recovery: {strategy}}}"))
    assert "# sky.yaml:2: left out `job_recovery.strategy` (" in done.stdout


def test_settings_that_all_have_a_counterpart_are_not_called_lost(tmp_path):
    options = "{slurm: {sbatch_options: {account: gaia, time: 1:00}}}"
    _, done = of_sky(tmp_path, f"name: job\nrun: x\nresources: {{infra: aws}}\nconfig: {options}\n")
    assert "it is the fleet's field `account`" in done.stdout
    assert "no counterpart" not in done.stdout


def test_a_folder_that_a_bucket_brings_is_told_as_a_folder(tmp_path):
    mount = "{/data: {name: b, source: ./data, mode: MOUNT}, /own: {name: b, mode: MOUNT}}"
    _, done = of_sky(tmp_path, f"name: job\nrun: x\nfile_mounts: {mount}\n")
    (one, other) = [line for line in done.stdout.splitlines() if "left out `file_mounts./" in line]
    assert "(./data): SkyPilot copies it into a bucket" in one
    assert "(b): copy the bucket" in other


@pytest.mark.parametrize("key", ["config", "experimental"])
def test_settings_of_the_tool_are_named_with_what_to_write(key, tmp_path):
    _, done = of_sky(
        tmp_path,
        f"name: job\nrun: x\nresources: {{infra: aws}}\n{key}:\n"
        "  kubernetes:\n    pod_config:\n      spec:\n        containers:\n"
        "        - volumeMounts:\n          - mountPath: /shared\n            name: nfs\n"
        "  slurm:\n    sbatch_options:\n      account: gaia\n      qos: debug\n      time: '0:05:00'\n"
        "  docker:\n    run_options: [--ipc=host]\n",
    )
    for line, words in (
        (10, f"`{key}` mounts `/shared`: write `volumes: ['/shared:/shared']`"),
        (14, f"left out `{key}.account` (gaia): it is the fleet's field `account`"),
        (15, f"left out `{key}.qos` (debug): it is the fleet's field `qos`"),
        (16, f"left out `{key}.time` (0:05:00): write `max_duration`"),
        (
            4,
            f"left out `{key}`: no counterpart for `kubernetes.pod_config.spec.containers.volumeMounts.name`",
        ),
    ):
        assert f"# sky.yaml:{line}: {words}" in done.stdout
    assert "`backend` document" not in done.stdout


@pytest.mark.parametrize("tool", ["skypilot", "dstack"])
def test_a_key_that_is_there_twice_is_told_with_both_lines(tool, tmp_path):
    """In the order of the file, in each document of it, and not for keys that `<<` brings."""
    one = "name: job\nrun: x\ncommands: [x]\ntype: task\nenv: {\n  A: 1,\n  A: 2}\n"
    two = f"{one}a: &a {{B: 1}}\nb: {{<<: *a, B: 2}}\ntype: task\n"
    (tmp_path / "x.yaml").write_text(f"{one}---\n{two}")
    done = imported(tool, tmp_path / "x.yaml")
    notes = [line for line in done.stdout.splitlines() if "the last counts" in line]
    assert [line.partition(" too")[0] for line in notes] == [
        "# x.yaml:7: `A` is in line 6",
        "# x.yaml:15: `A` is in line 14",
        "# x.yaml:18: `type` is in line 12",
    ]


def test_a_backend_that_nobody_names_is_told_once_a_file(tmp_path):
    task = "name: {}\nrun: x\nresources: {{any_of: [{{accelerators: L4:1}}, {{cpus: 4}}]}}\n"
    _, done = of_sky(tmp_path, "---\n".join(map(task.format, ("aa", "bb"))), task.format("cc"))
    assert done.stdout.count("no backend is named") == 2
    assert done.stdout.count("  - cloud\n") == 6


def test_the_head_points_to_the_defaults_that_differ(tmp_path):
    _, done = of_sky(tmp_path, "name: job\nrun: x\n")
    name = "Defaults that differ"
    assert done.stdout.splitlines()[1] == f'# SkyPilot has other defaults: see docs/import.md, "{name}"'
    assert f"### {name}\n" in (Path(__file__).parents[2] / "docs" / "import.md").read_text("utf-8")
    _, done = of_dstack(tmp_path, "type: volume\nname: vol\nbackend: aws\nregion: r\nsize: 1GB\n")
    assert name not in done.stdout


@pytest.mark.parametrize(
    "image", ["registry.example/a/long/name/of/an/image/of/ours:${{ env.SHA }}", "${{ env.SHA }}"]
)
def test_the_part_of_an_image_that_is_known_too_late_is_shown(image, tmp_path):
    _, done = of_dstack(tmp_path, f"type: task\nname: job\ncommands: [x]\nimage: {image}\n")
    assert "`${{ env.SHA }}` is read when a rank starts" in done.stderr
    assert "write `${{ var.NAME }}`" in done.stderr


@pytest.mark.parametrize("mode", ["COPY", "MOUNT"])
def test_a_bucket_that_is_named_alone_is_no_folder(mode, tmp_path):
    found, done = of_sky(tmp_path, f"name: job\nrun: x\nfile_mounts:\n  ~/in: {{name: demo, mode: {mode}}}\n")
    assert "files" not in found["task/job"]
    assert "# sky.yaml:4: left out `file_mounts.~/in` (demo): copy the bucket" in done.stdout
    assert "sent as files" not in done.stdout


@pytest.mark.parametrize(
    ("volume", "folder"),
    [
        *(("/mnt/a:/a", "/mnt/a"), ("{instance_path: /mnt/a, path: /a}", "/mnt/a"), ("data:/a", "")),
        *(("{instance_path: /mnt/a, path: /a, optional: true}", ""), ("{name: data, path: /a}", "")),
    ],
)
def test_a_folder_of_the_node_that_dstack_would_make_is_told(volume, folder, tmp_path):
    _, done = of_dstack(tmp_path, f"type: task\nname: job\ncommands: [x]\nvolumes:\n- {volume}\n")
    assert (f"# x.dstack.yml:5: `volumes` ({folder}) is a folder of the node" in done.stdout) == bool(folder)
    assert ("is a folder of the node" in done.stdout) == bool(folder)


@pytest.mark.parametrize("field", ["envs", "secrets"])
def test_a_login_without_an_image_is_told_where_the_file_has_it(field, tmp_path):
    _, done = of_sky(tmp_path, f"name: job\nrun: x\n{field}:\n  A: b\n  SKYPILOT_DOCKER_PASSWORD: x\n")
    assert f"# sky.yaml:5: left out `{field}.SKYPILOT_DOCKER_*`: the login to a registry" in done.stdout


def test_an_empty_login_to_a_registry_has_its_own_note(tmp_path):
    _, done = of_sky(tmp_path, "name: job\nrun: x\nenvs: {SKYPILOT_DOCKER_USERNAME: '', A: ''}\n")
    assert "# sky.yaml:3: `envs` (A) is empty" in done.stdout
    assert "left out `envs.SKYPILOT_DOCKER_*`" in done.stdout


def test_an_empty_secret_and_the_old_place_of_the_workdir_are_told(tmp_path):
    _, done = of_sky(
        tmp_path,
        "name: job\nresources: {infra: aws}\nsecrets:\n  A: ''\n  B: x\n  C:\n"
        "envs:\n  PYTHONPATH: /home/sky-user/sky_workdir\nrun: x\n",
    )
    assert "# sky.yaml:4: `secrets.A` is empty: " in done.stdout
    assert done.stdout.count("`secrets.") == 2
    assert "# sky.yaml:8: `envs.PYTHONPATH` names `sky_workdir`" in done.stdout


@pytest.mark.parametrize(("command", "home"), [("cd ..", True), ("x; cd ../b", True), ("cd a; cd ..", False)])
def test_commands_that_leave_the_workdir_start_in_one(command, home, tmp_path):
    found, _ = of_sky(tmp_path, f"name: job\nresources: {{infra: aws}}\nsetup: {command}\nrun: x\n")
    assert found["task/job"]["commands"][0].startswith("export HOME=") == home


@pytest.mark.parametrize(
    ("infra", "backend", "partition"),
    [
        ("infra: slurm/c1/debug", "c1", "debug"),
        ("infra: slurm/aws/gpu", "slurm-aws", "gpu"),
        ("cloud: slurm, region: hpc, zone: gpu", "hpc", "gpu"),
    ],
)
def test_a_partition_of_slurm_is_a_fleet_of_existing_nodes(infra, backend, partition, tmp_path):
    asked = f"{{{infra}, accelerators: 'H100:8', use_spot: true, max_hourly_cost: 3, autostop: 5}}"
    found, done = of_sky(tmp_path, sky(asked, num_nodes="2"))
    fleet = found["fleet/job"]
    assert fleet == {
        "type": "fleet",
        "name": "job",
        "placement": "cluster",
        "backends": [backend],
        "partition": partition,
    }
    assert found[f"backend/{backend}"]["driver"] == "slurm"
    assert found["task/job"]["resources"]["gpu"] == "H100:8"
    assert "left out `resources.use_spot`: the nodes exist already" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("infra", ["infra: slurm", "cloud: slurm", "infra: slurm/c1", "infra: slurm/c1/*"])
def test_a_cluster_without_its_partition_is_a_fleet_to_declare(infra, tmp_path):
    found, done = of_sky(tmp_path, sky(f"{{{infra}}}"))
    (name,) = found["task/job"]["fleets"]
    assert f"a pool of hosts is the fleet `{name}`: declare it: `backends: [{name}]`" in done.stdout
    assert f"no fleet is named `{name}`" in done.stderr


LOGIN = "SKYPILOT_DOCKER_"


@pytest.mark.parametrize(
    ("envs", "image", "user"),
    [
        ("USERNAME: u, {0}PASSWORD: p, {0}SERVER: ghcr.io", "ghcr.io/a/b", "u"),
        ("USERNAME: u, {0}SERVER: ghcr.io", "ghcr.io/a/b", "u"),
        ("SERVER: ghcr.io", "ghcr.io/a/b", None),
        ("SERVER: a", "a/b", None),
        ("SERVER: c/", "c/a/b", None),
        ("SERVER: ''", "a/b", None),
        ("PASSWORD: null", "a/b", "${{{{ env.{0}USERNAME }}}}"),
        ("USERNAME: null, {0}PASSWORD: ''", "a/b", "${{{{ env.{0}USERNAME }}}}"),
    ],
)
def test_a_registry_is_kept_whatever_is_given_of_its_login(envs, image, user, tmp_path):
    given = f"{{{LOGIN}{envs.format(LOGIN)}}}"
    found, done = of_sky(tmp_path, sky("{infra: aws, image_id: 'docker:a/b'}", envs=given))
    task = found["task/job"]
    want = {"username": user.format(LOGIN), "password": f"${{{{ env.{LOGIN}PASSWORD }}}}"} if user else None
    assert (task["image"], task.get("registry_auth")) == (image, want)
    assert ("PASSWORD" in done.stdout.replace(f"env.{LOGIN}PASSWORD", "")) == (
        "PASSWORD: p" in envs or (user is not None and "PASSWORD: null" not in envs)
    )
    assert done.stderr == ""


def test_a_name_that_begins_like_the_registry_is_another_image(tmp_path):
    image = "{infra: aws, image_id: 'docker:ghcr.io.example/a'}"
    found, _ = of_sky(tmp_path, sky(image, envs=f"{{{LOGIN}SERVER: ghcr.io}}"))
    assert found["task/job"]["image"] == "ghcr.io/ghcr.io.example/a"


def test_scalars_that_mean_text_keep_it(tmp_path):
    """YAML 1.1 makes numbers of `3.10` and `010`. What the tool makes of them stays, and is told."""
    found, done = of_dstack(
        tmp_path,
        "type: task\nname: job\ncommands: [x, 1.10]\npython: 3.10\n"
        "env:\n  A: 1.10\n  B: yes\n  C: 8080\n  D: '1.10'\n",
    )
    task = found["task/job"]
    assert task["python"] == "3.10"
    assert task["commands"] == ["x", "1.1"]
    assert task["env"] == {"A": "1.1", "B": "True", "C": "8080", "D": "1.10"}
    assert [line for line in (3, 6, 7, 8, 9) if f"# x.dstack.yml:{line}: " in done.stdout] == [3, 6, 7]
    found, done = of_sky(
        tmp_path,
        "name: job\nrun: x\nresources: {infra: aws, instance_type: 1.10, labels: {v: 1.10, w: x}}\n"
        "workdir: {url: 'https://a/b', ref: 0123456}\nenvs: {A: 1.10, B: on, C: 010, D: 3}\n",
    )
    assert found["fleet/job"]["instance_types"] == ["1.10"]
    assert found["fleet/job"]["tags"] == {"v": "1.10", "w": "x"}
    assert found["task/job"]["repos"][0]["branch"] == "0123456"
    assert found["task/job"]["env"] == {"A": "1.1", "B": "True", "C": "8", "D": "3"}
    for name in "ABCD":
        assert (f"`envs.{name}` has no quotes" in done.stdout) == (name != "D")


@pytest.mark.parametrize("schedule", ["{cron: []}", "{cron: {}}", "[]", "{}", "{cron: [5]}", "{cron: [[]]}"])
def test_no_schedule_makes_a_task_vanish_or_run_at_once(schedule, tmp_path):
    found, done = of_dstack(tmp_path, f"type: task\nname: job\ncommands: [x]\nschedule: {schedule}\n")
    assert found == {}
    assert "--> x.dstack.yml:4:" in done.stderr
    assert "# name: job" in done.stdout


def test_many_alternatives_are_joined_in_one_go():
    """It took half a minute for 200 of them, and the cube of their number."""
    choices = [{"cpus": cpus, "use_spot": spot} for cpus in range(1, 501) for spot in (True, False)]
    (document,) = read(
        json.dumps({"name": "job", "run": "x", "resources": {"any_of": choices}}), "x", pyyaml=True
    )
    fleets = [draft.fields for draft in from_skypilot(document, "job") if draft.kind == "fleet"]
    assert [fleet["spot_policy"] for fleet in fleets] == ["auto"] * 500


# ---------------------------------------------------------------- what is written is valid, or told not to be

WORDS = st.sampled_from(
    ["aws", "gcp", "lambda", "slurm", "kubernetes", "ssh", "us-east-1", "x", "a b", "8", ""]
)
SCALARS = st.one_of(WORDS, st.integers(-1, 9), st.booleans(), st.none(), st.just(2.5))
ANYTHING = st.recursive(
    SCALARS, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(WORDS, v, max_size=3)), max_leaves=4
)
RIGHT: dict[str, list[Any]] = {
    "infra": [
        "aws",
        "aws/us-east-1",
        "k8s",
        "slurm/c1/gpu",
        "slurm",
        "ssh/rack",
        "lambda",
        "*/us-east-1",
        "*",
    ],
    "accelerators": ["L4:1", "A100-80GB:8", ["L4", "T4:2"], {"H100": 8}, "tpu-v4-8", "V100:0.5"],
    "autostop": [True, 5, "2h", {"idle_minutes": 3, "down": True}],
    "job_recovery": ["none", "FAILOVER", {"max_restarts_on_errors": 2}],
    "file_mounts": [{"/data": "s3://x"}, {"~/a": "./a"}, {"~/a": {"source": "a", "mode": "COPY"}}],
    "workdir": [".", "~/x", {"url": "https://a/b", "ref": "main"}],
    "envs": [{"A": None}, {"SKYPILOT_DOCKER_SERVER": "ghcr.io", "SKYPILOT_DOCKER_USERNAME": "u"}],
    "image_id": ["docker:a/b", "ami-1", {"us-east-1": "ami-2"}],
    "disk_size": [100, "1TB"],
    "cpus": ["4+", 8],
    "memory": ["4x", "64+", "64GB"],
    "max_hourly_cost": [1.5],
    "use_spot": [True, False],
    "resources": [{"cpu": "4..", "gpu": "H100:8"}, {"gpu": {"name": "A100", "count": 2}, "memory": "64GB.."}],
    "backends": [["aws", "gcp"], ["runpod"], ["aws", "vastai"], ["slurm"], ["ssh"], ["local"]],
    "regions": [["us-east-1"]],
    "nodes": [2, "0..4", {"min": 0, "max": 2}],
    "schedule": [{"cron": "0 8 * * *"}, {"cron": ["0 8 * * *", "30 9 * * 1"]}],
    "retry": [True, {"on_events": ["error"], "duration": "1h"}],
    "volumes": [["data:/data"], [{"name": "a", "path": "/a"}], {"/data": "a"}],
    "env": [["A=1", "B"], {"A": 1}],
    "fleets": [["gpu"], ["main/gpu"]],
    "image": ["a/b:1", "${{ env.X }}"],
    "files": [["a.py"], [{"local_path": "~/x", "path": "/x"}]],
    "repos": [["."], ["https://a/b"]],
    "ssh_config": [{"user": "u", "hosts": ["10.0.0.1", {"hostname": "10.0.0.2", "blocks": 2}]}],
    "size": ["100GB"],
    "python": [3.1, "3.12"],
}


def fields(keys: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the fields, most of them with values that the tool takes."""
    values = {key: st.sampled_from(RIGHT.get(key, ["x"])) for key in sorted(keys)}
    good = st.lists(st.sampled_from(sorted(values)), max_size=6, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({key: values[key] for key in chosen})
    )
    return st.builds(
        lambda a, b: {**a, **b}, good, st.dictionaries(st.sampled_from(sorted(values)), ANYTHING, max_size=1)
    )


OF_ALTERNATIVES = [key for key in OF_RESOURCES if key not in ("any_of", "ordered")]
SKY_FILES = st.builds(
    lambda task, resources, choices: {
        "name": "job",
        "run": "x",
        "resources": {**resources, **({"any_of": choices} if choices else {})},
        **task,
    },
    fields(key for key in OF_SKY if key != "resources"),
    fields(OF_ALTERNATIVES),
    st.lists(fields(OF_ALTERNATIVES), max_size=2),
)
DSTACK_FILES = st.sampled_from(["task", "fleet", "volume"]).flatmap(
    lambda kind: st.builds(
        lambda rest: {"type": kind, "name": "job", "commands": ["x"], **rest},
        fields({f.name for f in fields_of(DOCUMENTS[kind])} - {"name", "type"}),
    )
)


@settings(max_examples=40)
@given(
    st.one_of(
        st.tuples(st.just("skypilot"), st.lists(SKY_FILES, min_size=1, max_size=2)),
        st.tuples(st.just("dstack"), st.lists(DSTACK_FILES, min_size=1, max_size=2)),
    ),
    st.sampled_from(["", AWS, AWS + "---\ntype: backend\nname: c1\ndriver: slurm\n"]),
)
@example(("dstack", [{"type": "task", "name": "job", "commands": ["x"], "backends": 2.5}]), "")
@example(("dstack", [{"type": "fleet", "name": "job", "partition": "x"}]), "")
def test_each_error_of_validate_was_told_by_import_with_its_place(file, project):
    tool, given_documents = file
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name)
        if project:
            (folder / "project.yaml").write_text(project)
        (folder / "a.txt").touch()
        foreign = folder / "foreign.yaml"
        foreign.write_text("\n---\n".join(map(json.dumps, given_documents)))
        done = imported(tool, foreign)
        foreign.unlink()
        (folder / "out.yaml").write_text(done.stdout)
        stderr = done.stderr.replace("imported.yaml", "out.yaml")
        validated = CliRunner().invoke(cli, ["validate", "--json"])
        errors = [d for d in json.loads(validated.output)["diagnostics"] if d["severity"] == "error"]
    for error in errors:
        assert error["code"] == "no-documents" or f"warning[{error['code']}]: {error['summary']}" in stderr
    assert done.stderr.count("  --> foreign.yaml:") == done.stderr.count("warning[")
