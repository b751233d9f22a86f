"""States restored from a backup at random points of a story: see `restoring`.

FLEETFORM_EXAMPLES=many tells stories of 30 applies with 13 restores each, 52 in all.
"""

from __future__ import annotations

import os

import pytest

from tests.support import restoring

pytestmark = pytest.mark.slow
MANY = os.environ.get("FLEETFORM_EXAMPLES") == "many"


@pytest.mark.parametrize("way", restoring.WAYS)
def test_no_restore_makes_a_task_succeed_that_did_not_run(project, way, request):
    """What runs is known, and nothing is left to do after two applies."""
    server = None
    if way == "postgresql":
        request.getfixturevalue("postgres_url")
        server = request.getfixturevalue("postgres")
    seed = int(os.environ.get("FLEETFORM_SEED", "1"))
    applies, restores = (30, 13) if MANY else (3, 1)
    restoring.tell(project, seed, way, applies, restores, server)
