"""A leading loop is killed, frozen or cut off: another one takes over, and nothing is done twice."""

import time
from typing import Any
from unittest.mock import Mock

import pytest

from declarative.reconcile import watched_files
from declarative.reconcile.watched_files import unchanged
from declarative.store import lease, lock, open_store
from declarative.store.errors import UnreachableError
from declarative.store.loop_state import LEASE_SECONDS, RENEWED_EVERY
from declarative.store.postgres import WRITING_LIMITS

postgres = pytest.importorskip("tests.support.postgres", reason="no psycopg here", exc_type=ImportError)

from tests.support.cli import fleet  # noqa: E402
from tests.support.leaders import KINDS, Replicas  # noqa: E402 (needs psycopg)
from tests.support.rounds import Clock, Here  # noqa: E402


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


def test_who_lost_its_connection_and_not_its_lease_leads_on(tmp_path, monkeypatch):
    """Once the lease is over it takes another one, or another loop does."""
    with open_store(f"sqlite:///{tmp_path}/state.db") as store, store.lock("test") as writer:
        writer.ensure_lineage()
        first, second, renew, clock = store.loop.leader(), store.loop.leader(), lock.renew, time.clock_gettime
        for slept in (0.0, LEASE_SECONDS + 1):
            assert first.lead()
            before = first.holder()
            monkeypatch.setattr(lock, "renew", Mock(side_effect=UnreachableError("unreachable", "away")))
            with pytest.raises(UnreachableError):
                first.lead()
            monkeypatch.setattr(lock, "renew", renew)
            monkeypatch.setattr(time, "clock_gettime", lambda which, by=slept: clock(which) + by)
            assert first.lead()
            after = first.holder()
            assert before
            assert after
            assert after.fence - before.fence == bool(slept)
            assert after.ends
            assert after.ends > lease.boottime()
            assert not second.lead()


def test_who_waited_for_the_state_undoes_nothing_that_was_applied_meanwhile(project, monkeypatch):
    """It had read the files before a person changed them."""
    rules = {"type": "project", "name": "lab", "reconcile": {"allow": ["create", "delete"]}}
    project.declare(rules, fleet(nodes=1))
    here = Here(project.path, Clock())
    take = here.session.state.lock

    def late(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(here.session.state, "lock", take)
        project.declare(rules, fleet(nodes=2))
        project.apply()
        return take(*args, **options)

    try:
        here.step()
        monkeypatch.setattr(here.session.state, "lock", late)
        done = here.step()
        assert done.held
        assert done.actions == ()
        assert done.status
        assert [n.name for n in done.status.nodes] == ["gpu-0", "gpu-1"]
    finally:
        here.close()


def test_who_slept_before_it_had_the_lock_looks_at_what_is_declared_once_more(project, monkeypatch):
    """A branch may have moved on, which no file shows. It does not go on for ever: to look may take long."""
    project.declare({"type": "project", "name": "lab"}, fleet(nodes=1))
    here, clock = Here(project.path, Clock()), iter(range(0, 1000, int(LEASE_SECONDS) + 1))
    load = Mock(wraps=here.rounds.files.load)
    try:
        here.step()
        monkeypatch.setattr(watched_files, "boottime", lambda: next(clock))
        monkeypatch.setattr(here.rounds.files, "load", load)
        assert here.step().held
        assert load.call_count == 1 + watched_files.TRIES
    finally:
        here.close()


def test_a_file_that_is_written_while_it_is_read_is_read_again():
    read = (("main.yaml", 1, 10, 1),)
    assert unchanged(read, read) == read
    assert unchanged(read, (*read, ("used.txt", 1, 1, 2))) == (*read, ("used.txt", 1, 1, 2))
    assert unchanged(read, (("main.yaml", 2, 10, 1),)) == read


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
