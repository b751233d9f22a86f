"""A loop that is killed, frozen or cut off while it leads: another one goes on, and nothing is done twice."""

import pytest

from declarative.store.leader import LEASE_SECONDS, RENEWED_EVERY
from declarative.store.postgres import WRITING_LIMITS

postgres = pytest.importorskip("tests.postgres", reason="no psycopg here", exc_type=ImportError)

from tests.cli import fleet  # noqa: E402
from tests.leaders import KINDS, Replicas  # noqa: E402 (needs psycopg)
from tests.rounds import Clock, Here  # noqa: E402


def test_who_is_frozen_in_a_write_keeps_nobody_from_taking_over():
    """The server ends such a transaction no later than the lease."""
    limit = WRITING_LIMITS["idle_in_transaction_session_timeout"]
    assert float(limit.removesuffix("s")) <= LEASE_SECONDS


def test_who_takes_over_begins_at_once(project):
    """And not after what is left of its interval."""
    project.declare({"type": "project", "name": "lab", "reconcile": {"interval": "1h"}}, fleet(nodes=1))
    clock = Clock()
    first, second = Here(project.path, clock), Here(project.path, clock)
    try:
        assert first.step().held
        assert not second.step().held
        second.rounds.keep_lease()
        assert not second.rounds.early()
        first.close()
        second.rounds.keep_lease()
        assert second.rounds.early()
        assert second.step().held
        assert not second.rounds.early()
    finally:
        second.close()


@pytest.mark.slow
def test_a_leader_is_killed_frozen_and_cut_off(project, postgres):
    """People's commands come in between. The times are those that the leases themselves carry."""
    replicas = Replicas(project, postgres, 2)
    try:
        for kind in KINDS:
            found = replicas.disturb(kind)
            replicas.run("apply", "--auto-approve")
            replicas.run("stop", f"job{replicas.tasks - 1}")
            assert found.early <= 0
            assert -found.early <= LEASE_SECONDS + RENEWED_EVERY
        assert replicas.double() == ({}, {})
        assert replicas.missing() == set()
    finally:
        replicas.close()
