"""`isolation: hard` where nobody can promise it is refused by the plan: nothing is made for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Project, fleet, task


@pytest.fixture
def soft(tmp_path: Path) -> Iterator[Project]:
    """On a machine whose kernel limits nothing for us."""

    class Soft(Project):
        def start(self, *args, env=None, **options):
            return super().start(
                *args, env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", **(env or {})}, **options
            )

    made = Soft(tmp_path / "project")
    made.path.mkdir()
    (tmp_path / "bin").mkdir()
    shell = tmp_path / "bin" / "sh"
    shell.write_text('#!/bin/sh\ncase "$*" in *able) exit 1 ;; esac\nexec /bin/sh "$@"\n')
    shell.chmod(0o755)
    yield made
    made.clean_up()


@pytest.mark.parametrize("nodes", ["0..1", 1])
def test_the_plan_refuses_what_a_new_node_could_not_do(soft, nodes):
    """Before there is a node to ask; without a task that asks for it, nobody looks."""
    catalog = [{"instance_type": "small", "cpu": 2, "memory": "1GB"}]
    lab = {"type": "backend", "name": "lab", "driver": "local", "catalog": catalog}
    for backends in ((), (lab,)):
        where: dict[str, Any] = {"backends": ["lab"]} if backends else {}
        soft.declare(*backends, fleet(nodes=nodes, **where), task("job", "true", isolation="hard"))
        refused = soft.plan(code=3)["unplaced"]
        details = [r["detail"] for rank in refused[0]["ranks"] for r in rank["rejections"]]
        assert any("its kernel cannot hold a rank to its blocks" in detail for detail in details)
        done = soft.apply(code=3)
        assert "leave out `isolation`" in done.out + done.err
        assert not soft.local.exists()
    soft.declare(lab, fleet(nodes=nodes, backends=["lab"]), task("job", "true"))
    assert soft.plan()["unplaced"] == []
