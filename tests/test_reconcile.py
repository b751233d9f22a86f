"""`fleetform reconcile`: what a person would do with `apply`, done by nobody."""

from pathlib import Path

import pytest

from tests.cli import Project, fleet, task


@pytest.fixture
def project(tmp_path: Path):
    made = Project(tmp_path)
    yield made
    made.clean_up()


def test_a_round_does_what_apply_does(project: Project):
    project.declare(fleet(nodes=2), task("hello", "true"))
    project.run("reconcile", "--once")
    assert project.ranks("hello")[0]["attempt"] == 1
    assert project.ids() == []


def test_a_round_with_nothing_to_do_says_nothing(project: Project):
    project.declare(fleet(nodes=1))
    project.run("reconcile", "--once")
    done = project.run("reconcile", "--once")
    assert (done.out, done.err) == ("", "")


def test_a_broken_file_is_an_error_of_a_single_round(project: Project):
    project.declare(fleet(nodes="many"))
    done = project.run("reconcile", "--once", code=1)
    assert "main.yaml:" in done.err
