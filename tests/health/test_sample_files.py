"""Each sample of an answer of a machine is complete, and a third of them is kept apart."""

import random
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

HERE = Path(__file__).parent
RULES = sorted((HERE / "samples").glob("*/right.toml"))
APART = sorted((HERE / "kept_apart").glob("*/right.toml"))
FAULTS = {"degraded", "unhealthy"}
HARMLESS = {"healthy", "unknown"}


@pytest.fixture(params=[path.parent for path in RULES + APART], ids=lambda folder: folder.name)
def sample(request):
    return request.param


@pytest.fixture
def right(sample):
    return tomllib.loads((sample / "right.toml").read_text())


def names(paths, verdicts):
    return {path.parent.name for path in paths if tomllib.loads(path.read_text())["verdict"] in verdicts}


def test_the_verdict_has_a_reason_and_a_source(right):
    assert right["verdict"] in FAULTS | HARMLESS
    assert right["basis"] in {"printed", "described"}
    assert right["reason"].strip()
    assert right["sources"]
    for source in map(urlsplit, right["sources"]):
        assert source.scheme == "https"
        assert source.netloc
        assert source.path.strip("/")


def test_each_file_has_its_command(sample, right):
    assert right["files"].keys() == {path.name for path in sample.iterdir()} - {"right.toml"}
    for name, file in right["files"].items():
        assert file["command"].strip()
        assert 0 <= file["exit"] <= 255
        assert (sample / name).read_text().strip()


def test_what_is_concerned_is_in_an_answer(sample, right):
    texts = "".join((sample / name).read_text() for name in right["files"])
    assert [place for place in right["where"] if place not in texts] == []


def test_nothing_else_is_known_of_a_sample(right):
    assert right.keys() <= {"verdict", "reason", "where", "sources", "basis", "note", "files"}


def test_a_third_is_kept_apart_by_chance():
    faults, harmless = (names(RULES + APART, kind) for kind in (FAULTS, HARMLESS))
    assert len(faults) >= 40
    assert len(harmless) >= 30
    draw = random.Random(491201)
    apart = {name for kind in (faults, harmless) for name in draw.sample(sorted(kind), len(kind) // 3)}
    assert {path.parent.name for path in APART} == apart
    assert {path.parent.name for path in RULES} == (faults | harmless) - apart
