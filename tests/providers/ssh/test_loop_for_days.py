"""A loop keeps a project as declared for hours in fast motion, on machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.providers.ssh.days import hosts, instances
from tests.support.week import played

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("where", "seed"), [(hosts, 7343), (instances, 5437)])
def test_hours_end_as_declared(allowed: None, tmp_path: Path, where, seed: int):
    """More of it: `python benchmarks/reconcile --only week --where hosts,ec2`."""
    with played(tmp_path, where, days=0.15, a_day=50, interval=600, seed=seed) as days:
        assert days.happened == 1
        assert days.faults == []
        assert dict(days.errors) == {}
