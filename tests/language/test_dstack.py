"""dstack's files: each loads as it is, or every field without a counterpart is named, with what to do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from declarative.apply.launch import first_commands, launch_of, missing_env
from declarative.language.loader import load
from declarative.model.diagnostic import Diagnostic, InvalidError
from declarative.model.inputs import RankInputs
from declarative.model.schema import Problem, decode, fields_of, ignored_of
from declarative.model.spec import Fleet, Gpu, Resources, Task, Volume
from declarative.model.spec.fleet import HostFields, ProxyJump, SshConfig
from declarative.model.spec.task import Mount
from declarative.model.state import Address, State
from declarative.render.plan_document import plan_json
from providers.runner import script
from tests.support.model import World

FILES = Path(__file__).parent / "dstack"

# The notes on each file: (line, code) → the field or value that they are about.
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
        (6, "dstack-field", "`docker`"),
        (8, "dstack-field", "`user`"),
        (13, "bad-credential", "`password`"),
        (10, "dstack-field", "`entrypoint`"),
        (11, "dstack-field", "`shell`"),
        (12, "dstack-field", "`home_dir`"),
        (17, "ignored-field", "`ports`"),
        (27, "dstack-field", "`total_memory`"),
        (28, "dstack-field", "`compute_capability`"),
        (30, "ignored-field", "`shm_size`"),
        (37, "dstack-field", "`availability_zones`"),
        (38, "dstack-field", "`instance_types`"),
        (39, "dstack-field", "`reservation`"),
        (40, "dstack-field", "`idle_duration`"),
        (47, "dstack-field", "`main/h100-pool`"),
        (50, "dstack-field", "`backend_options`"),
        (52, "dstack-field", "`dstack`"),
    ],
    "task-groups": [],
    "other-types": [
        (1, "skipped", "dev-environment"),
        (5, "skipped", "service"),
        (10, "skipped", "gateway"),
    ],
}


@pytest.mark.parametrize("name", sorted(path.stem for path in FILES.glob("*.yaml")))
def test_a_file_of_dstack_loads_or_says_field_by_field_what_does_not(tmp_path, name):
    shutil.copy(FILES / f"{name}.yaml", tmp_path)
    try:
        diagnostics: tuple[Diagnostic, ...] = load(tmp_path).diagnostics
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
        assert field in {f.name for f in fields_of(cls)} or foreign.get(field) or ignored_of(cls)[field]


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
    (Task, "instances", [{"name": "gpu-1"}, {"hostname": "10.0.0.4"}], ["gpu-1", "hostname:10.0.0.4"]),
    (Task, "instances", ["hostname:rack-a.lan"], ["hostname:rack-a.lan"]),
    (Task, "volumes", [{"name": ["a1", "b1"], "path": "/d/"}], [{"name": ["a1", "b1"], "path": "/d"}]),
    (Task, "stop_duration", "off", "off"),
    (Task, "python", 3.12, "3.12"),
    (Task, "python", 3.1, "3.10"),
    (Task, "python", "3.9", "3.9"),
    (Task, "repos", ["https://host/a/b"], [{"url": "https://host/a/b"}]),
    (Task, "repos", ["https://host:8443/a/b:/src"], [{"url": "https://host:8443/a/b", "path": "/src"}]),
    (Task, "repos", ["git@host:a/b.git:code"], [{"url": "git@host:a/b.git", "path": "code"}]),
    (
        Task,
        "repos",
        [{"url": "https://host/b", "branch": "main", "hash": "ab12", "if_exists": "skip"}],
        [{"url": "https://host/b", "branch": "main", "hash": "ab12"}],
    ),
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


# ------------------------------------------------------------------------------- files and documents

TRAIN = "type: task\ncommands: [train]\n"


def codes(loaded):
    return [(d.severity.value, d.code) for d in loaded.diagnostics]


def refusal(directory, **options):
    with pytest.raises(InvalidError) as error:
        load(directory, **options)
    return error.value.diagnostics


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("train.dstack.yml", "train"),
        ("train.yaml", "train"),
        ("Fine_Tune.dstack.yaml", "fine-tune"),
        (".dstack.yml", "dstack"),
        ("examples/llm/.dstack.yml", "llm"),
    ],
)
def test_a_document_without_a_name_has_its_files(tmp_path, file, name):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TRAIN)
    loaded = load(tmp_path, named=[path])
    assert list(loaded.desired.tasks) == [name]
    assert loaded.diagnostics == ()


def test_of_two_documents_of_a_kind_each_needs_a_name(tmp_path):
    (tmp_path / "train.yml").write_text(TRAIN + "---\n" + TRAIN)
    assert [d.code for d in refusal(tmp_path)] == ["missing-field", "missing-field"]


def test_a_file_whose_name_is_none_gives_none(tmp_path):
    (tmp_path / "7.yml").write_text(TRAIN)
    assert [d.summary for d in refusal(tmp_path)] == ["`name` is missing"]


def test_a_hidden_file_is_read_when_it_is_named_and_told_of_otherwise(tmp_path):
    hidden = tmp_path / ".dstack.yml"
    hidden.write_text(TRAIN)
    alone = next(d for d in refusal(tmp_path) if d.severity.value == "error")
    assert (alone.code, alone.hint) == (
        "no-documents",
        "name the hidden file: `-f .dstack.yml`",
    )
    (tmp_path / "fleet.yaml").write_text("type: fleet\nname: gpu\nnodes: 1\n")
    unnamed = load(tmp_path)
    assert (list(unnamed.desired.tasks), codes(unnamed)) == ([], [("warning", "skipped")])
    assert "`-f .dstack.yml`" in (unnamed.diagnostics[0].hint or "")
    assert unnamed.files == ("fleet.yaml",)
    named = load(tmp_path, named=[hidden])
    assert (list(named.desired.tasks), list(named.desired.fleets)) == (["dstack"], ["gpu"])
    assert named.diagnostics == ()
    (tmp_path / "project.yaml").write_text("type: project\ninclude: [.dstack.yml]\n")
    assert codes(load(tmp_path)) == []


def test_a_file_outside_of_the_project_is_not_read(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "train.yml").write_text(TRAIN)
    assert [d.code for d in refusal(tmp_path / "project", named=[tmp_path / "train.yml"])] == [
        "outside-project"
    ]


def test_what_is_excluded_is_not_the_projects(tmp_path):
    """Not even where it is no YAML; what is wrong elsewhere stays wrong."""
    (tmp_path / "project.yaml").write_text("type: project\nexclude: [values.*, 'charts/*']\n")
    (tmp_path / "values.yaml").write_text("{{ if .Values.x }}\n")
    (tmp_path / "train.yml").write_text(TRAIN)
    loaded = load(tmp_path)
    assert (list(loaded.desired.tasks), loaded.diagnostics) == (["train"], ())
    assert loaded.files == ("project.yaml", "train.yml")
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts/a.yaml").write_text("kind: Deployment\n")
    (tmp_path / "project.yaml").write_text(
        "type: project\nexclude: [values.*, 'charts/*']\ninclude: ['**/*.yaml']\n"
    )
    assert codes(load(tmp_path)) == []
    (tmp_path / "other.yaml").write_text("{{ if .Values.x }}\n")
    assert [d.span.file for d in refusal(tmp_path) if d.span] == ["other.yaml"]


def test_the_project_document_cannot_exclude_itself(tmp_path):
    (tmp_path / "project.yaml").write_text("type: project\nname: mine\nexclude: ['*']\n")
    (tmp_path / "train.yml").write_text("]")
    assert load(tmp_path).desired.project.name == "mine"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("train.yml", "type: service\nport: 80\ncommands: [serve]\n"),
        ("more.yml", "type: dev-environment\nname: train\nide: vscode\n"),
        (".dstack.yml", "type: task\nname: train\ncommands: [train]\n"),
    ],
)
def test_what_is_recorded_does_not_go_because_its_document_is_skipped(tmp_path, file, text):
    """A task that became a service, or whose file is not named this time, is not deleted for that."""
    (tmp_path / "fleet.yaml").write_text("type: fleet\nname: gpu\nnodes: 0..1\n")
    (tmp_path / "job.yaml").write_text("type: task\nname: train\ncommands: [train]\n")
    world = World()
    world.apply(world.plan(load(tmp_path).desired))
    (tmp_path / "job.yaml").unlink()
    assert world.plan(load(tmp_path).desired).result == "changes"
    (tmp_path / file).write_text(text)
    plan = world.plan(load(tmp_path).desired)
    assert plan.result == "error"
    assert [(d.code, d.address, d.span.file) for d in plan.diagnostics if d.span] == [
        ("skipped-recorded", "task/train", file)
    ]
    assert "`name`" not in str(plan.diagnostics), "a document without a name has its file's"


# ----------------------------------------------------------------------------- what commands find there


def run(folder, inputs, *commands, path):
    """What a shell prints that runs the commands after those that come first; and its exit code."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    for name in ("mkdir", "sh", "chmod"):
        if not (bin_folder / name).exists():
            (bin_folder / name).symlink_to(str(shutil.which(name)))
    for name, text in path.items():
        (bin_folder / name).write_text("#!/bin/sh\n" + text)
        (bin_folder / name).chmod(0o755)
    env = {"PATH": str(bin_folder), "FLEETFORM_TASK_NAME": "train", "FLEETFORM_NODE_RANK": "1"}
    text = script((*first_commands(RankInputs(task="train", rank=0, **inputs)), *commands), {}, "")
    done = subprocess.run(
        [str(shutil.which("sh")), "-c", text],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


VENV = (
    'for e; do :; done; mkdir -p "$e/bin"; echo "#!/bin/sh" >"$e/bin/python"; chmod +x "$e/bin/python"; echo '
)


def test_python_is_a_virtual_environment_by_uv_or_by_the_interpreter_itself(tmp_path):
    inputs = {"python": "3.12"}
    code, said = run(tmp_path, inputs, "echo no", path={})
    assert (code, said) == (1, "fleetform: neither uv nor python3.12 is here, which the task needs\n")
    own = tmp_path / ".venv-train-1"
    code, said = run(tmp_path, inputs, "command -v python", path={"python3.12": VENV + "$1 $2"})
    assert (code, said) == (0, f"-m venv\n{own}/bin/python\n")
    shutil.rmtree(own)
    code, said = run(tmp_path, inputs, "echo $VIRTUAL_ENV", path={"uv": VENV + "$*"})
    assert (code, said) == (0, f"venv --quiet --seed --python 3.12 {own}\n{own}\n")
    assert run(tmp_path, inputs, "echo again", path={}) == (0, "again\n")


def test_a_repository_is_cloned_once(tmp_path):
    inputs = {"repos": [{"url": "https://host/a b", "branch": "x", "hash": "ab12", "path": "it's"}]}
    git = 'echo "$*"; case $1 in clone) for d; do :; done; mkdir -p "$d/.git" ;; esac'
    first = "clone --quiet --branch x -- https://host/a b ./it's\n-C ./it's checkout --quiet --detach ab12\n"
    assert run(tmp_path, inputs, "echo ran", path={"git": git}) == (0, first + "ran\n")
    assert run(tmp_path, inputs, "echo ran", path={"git": git}) == (0, "ran\n")
    assert run(tmp_path / "it's", inputs, "echo ran", path={"git": "exit 128"}) == (128, "")


def test_nvcc_is_found_or_the_rank_fails(tmp_path):
    assert run(tmp_path, {"nvcc": True}, "nvcc", path={"nvcc": "echo 12.4"}) == (0, "12.4\n")
    (tmp_path / "bin/nvcc").unlink()
    here = Path("/usr/local/cuda/bin/nvcc").exists()
    lacking = (1, "fleetform: no nvcc is here, which the task needs\n")
    assert run(tmp_path, {"nvcc": True}, "echo yes", path={}) == ((0, "yes\n") if here else lacking)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"repos": ["https://me:hunter2@host/a"]}, "bad-credential"),
        ({"repos": [".."]}, "bad-path"),
        ({"repos": [".:/workspace"]}, "bad-path"),
        ({"repos": ["https://host/a", "https://host/b"]}, "out-of-range"),
        ({"repos": [{"url": "https://host/a", "branch": "--upload-pack=x"}]}, "bad-value"),
        ({"repos": ["--upload-pack=x"]}, None),
        ({"repos": [{"url": "https://host/a", "local_path": "."}]}, "wrong-type"),
        ({"utilization_policy": {"min_gpu_utilization": 0, "time_window": 300}}, None),
        ({"utilization_policy": {"min_gpu_utilization": 101, "time_window": "1h"}}, "out-of-range"),
        ({"utilization_policy": {"min_gpu_utilization": 10, "time_window": "4m"}}, "out-of-range"),
        ({"utilization_policy": {"min_gpu_utilization": 10, "time_window": "off"}}, "out-of-range"),
        ({"utilization_policy": {"min_gpu_utilization": 10}}, "missing-field"),
        ({"python": 3}, "bad-value"),
        ({"python": "3.12; rm -r /"}, "bad-value"),
        ({"privileged": True}, "bad-value"),
        ({"privileged": True, "image": "a", "isolation": "hard"}, "bad-value"),
        ({"registry_auth": {"username": "me", "password": "${{ env.TOKEN }}"}}, "bad-value"),
        ({"image": "a", "registry_auth": {"username": "me", "password": "hunter2"}}, "bad-credential"),
        ({"commands": []}, "missing-field"),
    ],
)
def test_what_is_no_such_thing_is_refused(more, code):
    problems: list[Problem] = []
    decode(Task, {"name": "train", "commands": ["x"], **more}, (), problems)
    assert [p.code for p in problems] == ([code] if code else [])
    assert "hunter2" not in str(problems)


def test_a_local_repository_is_files():
    problems: list[Problem] = []
    spec = decode(Task, {"name": "train", "commands": ["x"], "repos": ["."], "files": ["a"]}, (), problems)
    assert spec
    assert spec.files
    assert (spec.files.plain(), spec.repos) == (["a", "."], ())


def test_the_password_of_a_registry_is_read_where_the_rank_starts(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "type: fleet\nname: gpu\nnodes: 1\n---\ntype: task\nname: train\nimage: nvcr.io/a/b\nnvcc: true\n"
        "utilization_policy: {min_gpu_utilization: 10, time_window: 1h}\n"
        "registry_auth:\n  username: $oauthtoken\n  password: ${{ env.NGC_API_KEY }}\n"
    )
    world = World()
    plan = world.plan(load(tmp_path).desired)
    assert missing_env(plan, State(), {}) == {"NGC_API_KEY": ["train"]}
    assert missing_env(plan, State(), {"NGC_API_KEY": "hunter2"}) == {}
    world.apply(plan)
    rank = world.state().records[Address("rank", "train-0")]
    launch = launch_of(world.state(), rank, {"NGC_API_KEY": "hunter2"})
    assert (launch.commands, launch.login, launch.unused) == (
        first_commands(RankInputs(task="train", rank=0, nvcc=True)),
        ("$oauthtoken", "hunter2"),
        (10, 3600),
    )
    assert "hunter2" not in repr(launch) + str(plan_json(plan))


GROUPS = """\
type: task
name: ray
resources: {gpu: 8}
groups:
  - name: head
    commands: ["echo head", "echo 'it is' $FLEETFORM_NODE_RANK"]
  - nodes: 2
    commands:
      - echo "to ${{ groups[0].nodes[0].IP_ADDRESS }}:6379 and ${{ groups[1].nodes[1].IP_ADDRESS }}"
    resources: {gpu: 8}
    ports: [8265]
"""


def test_groups_are_one_gang_whose_ranks_run_their_own_groups_commands(tmp_path):
    (tmp_path / "a.yaml").write_text(GROUPS)
    spec = load(tmp_path).desired.tasks["ray"].spec
    assert (spec.nodes, spec.cluster, spec.resources.gpu) == (3, True, Gpu.parse(8))
    env = {"FLEETFORM_MASTER_NODE_IP": "10.0.0.1", "FLEETFORM_NODES_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3"}
    said = []
    for rank in range(3):
        text = script(spec.commands, {**env, "FLEETFORM_NODE_RANK": str(rank)}, "")
        said.append(subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout)
    workers = "to 10.0.0.1:6379 and 10.0.0.3\n"
    assert said == ["head\nit is 0\n", workers, workers]


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("resources: {gpu: 8}\n    ports", "resources: {gpu: 4}\n    ports", "not-supported-yet"),
        ("name: ray\n", "name: ray\nnodes: 2\n", "bad-value"),
        ("nodes[1].IP", "nodes[2].IP", "template-error"),
        ('echo "to', "echo 'to", "template-error"),
    ],
)
def test_groups_that_cannot_be_one_gang_are_refused(tmp_path, old, new, code):
    (tmp_path / "a.yaml").write_text(GROUPS.replace(old, new))
    assert [d.code for d in refusal(tmp_path) if d.severity.value == "error"] == [code]
