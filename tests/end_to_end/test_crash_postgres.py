"""The same with the state in PostgreSQL: applies that are killed, and a server that stops under an apply."""

import subprocess
from urllib.parse import urlsplit

import pytest

from tests.support.cli import COMMAND, clean_env, ended, until
from tests.support.forked import warm_up
from tests.support.killing import (
    APPLY,
    Chain,
    Kill,
    Size,
    at_each_begin,
    at_each_finish,
    at_each_group,
    steps,
)

postgres = pytest.importorskip("tests.support.postgres", reason="no psycopg here", exc_type=ImportError)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(postgres.missing() is not None, reason=str(postgres.missing())),
]
SIZE = Size(volumes=60, nodes=4, tasks=4)


@pytest.fixture(scope="module")
def server():
    with postgres.running() as server:
        yield server


@pytest.fixture
def chain(tmp_path, server, monkeypatch):
    """A project whose state is a new database."""
    warm_up()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    made = Chain(tmp_path / "project", SIZE, None, server.url(server.database()), server.environment)
    yield made
    made.close()


def clean(count):
    """Nothing of what must not be; else what was noted of it."""
    assert (count.lost, count.duplicates, count.torn, count.manual) == (0, 0, 0, 0), count.notes


@pytest.mark.parametrize("how", [at_each_finish, at_each_begin, at_each_group])
def test_killed(chain, how):
    """SIGKILL at journal steps."""
    count = steps(chain, how, 5)
    clean(count)
    assert count.kills > 1


def test_killed_before_its_first_writes(chain):
    """From nothing."""
    for step in (1, 2, 3, 5, 8):
        assert chain.kill(Kill("write", step))
    clean(chain.finish())


def journal(server, url):
    """How many rows the journal has; none before there is one."""
    name = urlsplit(url).path.strip("/")
    if server.admin("SELECT to_regclass('operations')", name) == [(None,)]:
        return 0
    return server.admin("SELECT count(*) FROM operations", name)[0][0]


def test_the_server_is_restarted_under_an_apply(chain, server):
    """It goes on when the server is back, or ends in a sentence; the next apply does the rest."""
    process = subprocess.Popen(
        [COMMAND, *APPLY],
        cwd=chain.project,
        env=clean_env(**chain.env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: journal(server, chain.state) > 20)
    server.stop("immediate")
    server.start()
    done = ended(process, None)
    assert done.code in (0, 1, 4), done
    clean(chain.finish())
