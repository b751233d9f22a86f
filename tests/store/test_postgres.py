"""A state in PostgreSQL, on a real server: the forms of its URL, faults, and continuing after them."""

from __future__ import annotations

import builtins
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from declarative.model.state import Address, Record, State
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.store import StateError, Store, UnreachableError, journal, open_store
from declarative.store.postgres import target_of
from declarative.store.sql import Write
from tests.support.cli import Project, fleet, task, until, volume
from tests.support.model import of_node

NODE = Address("node", "gpu-0")
SECRET = "hunter2"


def refused(url: str, **options: Any) -> StateError:
    """The refusal of a state, without a secret in it."""
    with pytest.raises(StateError) as caught, open_store(url, **options):
        pass
    assert SECRET not in f"{caught.value}{caught.value.hint}"
    return caught.value


# ------------------------------------------------------------------------------------ URLs


@pytest.mark.parametrize(
    ("url", "parameters"),
    [
        ("postgresql://db/fleet", {"host": "db", "dbname": "fleet"}),
        ("postgres://db:5433/fleet", {"host": "db", "port": "5433", "dbname": "fleet"}),
        ("postgresql://a:1,b/x", {"host": "a,b", "port": "1,", "dbname": "x"}),
        ("postgresql://[::1]:5/x", {"host": "::1", "port": "5", "dbname": "x"}),
        ("postgresql://%2Frun%2Fpg/x", {"host": "/run/pg", "dbname": "x"}),
        ("postgresql:///x?host=/run/pg", {"host": "/run/pg", "dbname": "x"}),
        ("postgresql:///?service=team", {"service": "team"}),
        ("postgresql://db/x?sslmode=require", {"host": "db", "dbname": "x", "sslmode": "require"}),
    ],
)
def test_a_url_names_a_database_of_a_server(url, parameters) -> None:
    assert target_of(url).parameters == parameters


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@db/x",
        "postgresql://hunter2@db/x",
        "postgresql://me:hun/ter2@db/x",
        "postgresql://me:hunter2#@db/x",
        "postgresql://me:hunter2?@db/x",
        "postgresql://db/x?password=hunter2",
        "postgresql://db/x?user=hunter2",
        "postgresql://db/x?passfile=/hunter2",
        "postgresql://db/x?options=-chunter2",
        "postgresql://db/x?hunter2",
        "postgresql://db/x?hunter2=1",
        "postgresql://db:hunter2/x",
        "postgresql://db:99999/x",
        "postgresql://db/",
        "postgresql://db",
        "postgresql://db/x#hunter2",
        "postgresql://db/x?host=other",
        "postgresql+psycopg2://me:hunter2@db/x",
    ],
)
def test_a_url_with_a_user_or_a_secret_is_refused_unrepeated(url) -> None:
    error = refused(url)
    assert error.code == "bad-url"
    assert error.hint
    if "@" in url:
        assert "PGPASSWORD" in error.hint


def test_without_its_driver_it_says_what_to_install(monkeypatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "psycopg":
            raise ImportError("No module named 'psycopg'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    error = refused("postgresql://db/x")
    assert (error.code, ".[postgresql]" in str(error.hint)) == ("no-driver", True)


def test_offline_a_strangers_state_is_not_connected_to(project: Project) -> None:
    """Its YAML names a server that nobody vouches for; `plan --offline` does not contact it."""
    stranger = {"type": "project", "name": "strange", "state": "postgresql://127.0.0.1:1/x"}
    project.declare(stranger, fleet(nodes=1))
    assert "error[offline-state]" in project.run("plan", "--offline", code=1).err
    assert "unreachable" in project.run("plan", code=1).err


def test_a_state_on_a_server_is_planned_with_offline(project: Project, postgres_url) -> None:
    """Pulled where the server can be reached, it is read where nothing may be contacted."""
    env = {name: value for name, value in os.environ.items() if name.startswith("PG")}
    shared = {"type": "project", "state": postgres_url()}
    project.declare(shared, fleet(nodes=1))
    project.apply(env=env)
    project.write("state.json", project.run("state", "pull", env=env).out)
    project.declare(shared, fleet(nodes=2))
    assert "error[offline-state]" in project.run("plan", "--offline", env=env, code=1).err
    assert project.ids("--offline", "--state", "state.json") == ["create:node/gpu-1"]


# ------------------------------------------------------------------------------------ faults


def test_who_may_only_read_plans(project: Project, postgres, postgres_url) -> None:
    """As the job of a pull request does: docs/state.md names the rights."""
    url = postgres_url()
    project.declare(fleet(nodes=1, resources={"cpu": 1}), volume("data"))
    project.apply("--state", url, env=postgres.environment)
    name = url.partition("?")[0].rpartition("/")[2]
    # Roles are the server's, and so all tests': `fleet_plan` is that of tests/project/test_github_action.py.
    postgres.admin("CREATE ROLE fleet_reader LOGIN PASSWORD 'reads'")
    postgres.admin("GRANT SELECT ON ALL TABLES IN SCHEMA public TO fleet_reader", name)
    reader = {"PGUSER": "fleet_reader", "PGPASSWORD": "reads"}
    project.declare(fleet(nodes=1, resources={"cpu": 1}), volume("data"), volume("more"))
    assert "1 to create" in project.run("plan", "--state", url, env=reader).out
    for command in (("status",), ("state", "check"), ("state", "pull")):
        project.run(*command, "--state", url, env=reader)
    refused = project.run("apply", "--auto-approve", "--state", url, env=reader, code=1)
    assert "error[not-allowed]" in refused.err


def test_each_fault_has_its_code_and_its_hint(postgres, postgres_url, monkeypatch) -> None:
    def at(name: str, **options: str) -> StateError:
        error = refused(postgres.url(name, **options), read_only=True)
        assert error.hint
        return error

    name = postgres.database()
    assert at("absent").code == "no-database"
    assert at(name, sslmode="disable").code == "tls"
    assert at(name, sslrootcert="/nowhere").code == "tls"
    assert refused("postgresql:///x?host=/nowhere").code == "unreachable"
    assert refused("postgresql://host.invalid/x").code == "unreachable"
    assert refused("postgresql:///?service=nix").code == "not-authenticated"
    monkeypatch.setenv("PGPASSWORD", SECRET)
    assert at(name).code == "not-authenticated"
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("PGPASSFILE", "/nowhere")
    assert at(name).code == "not-authenticated"


def test_too_many_connections_pass(postgres, postgres_url) -> None:
    url = postgres_url()
    postgres.admin("ALTER ROLE fleet CONNECTION LIMIT 0")
    try:
        error = refused(url)
    finally:
        postgres.admin("ALTER ROLE fleet CONNECTION LIMIT -1")
    assert isinstance(error, UnreachableError)
    assert "no more connections" in error.summary


def test_rights_that_are_missing(postgres, postgres_url) -> None:
    """To make the tables, and to read them; another's tables of the same names are left alone."""
    name = postgres.database()
    url = postgres.url(name)
    postgres.admin(f"ALTER DATABASE {name} OWNER TO admin")
    assert refused(url).code == "not-allowed"
    postgres.admin("CREATE TABLE meta (format_version int, tool text)", name)
    assert refused(url, read_only=True).code == "not-allowed"
    postgres.admin("GRANT SELECT ON meta TO fleet", name)
    assert refused(url, read_only=True).code == "damaged"
    postgres.admin("ALTER TABLE meta DROP COLUMN tool", name)
    assert refused(url, read_only=True).code == "not-a-state"


def test_another_programs_tables(postgres, postgres_url) -> None:
    """A database may have others; ones of our names are not taken for ours, and nothing is half made."""
    name = postgres.database()
    postgres.admin("CREATE TABLE orders (id int); CREATE TABLE resources (id int)", name)
    assert refused(postgres.url(name)).code == "not-a-state"
    assert postgres.admin("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1", name) == [
        ("orders",),
        ("resources",),
    ]
    postgres.admin("DROP TABLE resources", name)
    with open_store(postgres.url(name)) as store, store.lock("test") as writer:
        writer.ensure_lineage()


def test_a_schema_of_its_own(postgres, postgres_url, monkeypatch) -> None:
    name = postgres.database()
    postgres.admin("CREATE SCHEMA team AUTHORIZATION fleet", name)
    monkeypatch.setenv("PGOPTIONS", "-csearch_path=team")
    with open_store(postgres.url(name)) as store, store.lock("test") as writer:
        lineage = writer.ensure_lineage()
    monkeypatch.setenv("PGOPTIONS", "-csearch_path=public")
    with open_store(postgres.url(name), read_only=True) as store:
        assert store.read() == State()
    assert postgres.admin("SELECT lineage FROM team.meta", name) == [(lineage,)]


def takes_no_writes(url: str) -> None:
    with open_store(url, read_only=True) as store:
        assert store.read().lineage
    with open_store(url) as store:
        for _ in range(2):  # a connection that has read before, too
            with pytest.raises(StateError) as caught, store.lock("test"):
                pass
            assert caught.value.code == "read-only"
            assert "primary" in str(caught.value.hint)


def test_a_server_that_takes_no_writes(postgres, postgres_url) -> None:
    """What is there is read; a write is refused with what to do."""
    name = postgres.database()
    with open_store(postgres.url(name)) as store, store.lock("test") as writer:
        writer.ensure_lineage()
    postgres.admin(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    takes_no_writes(postgres.url(name))


@pytest.mark.slow
def test_a_standby_is_read_and_not_written(postgres, postgres_url) -> None:
    """And where several hosts are named, the one that takes writes is found."""
    name = postgres.database()
    with open_store(postgres.url(name)) as store, store.lock("test") as writer:
        lineage = writer.ensure_lineage()
    with postgres.standby() as port:
        own = postgres.url(name)
        takes_no_writes(own.replace(f":{postgres.port}/", f":{port}/"))
        both = own.replace(f":{postgres.port}/", f":{port},127.0.0.1:{postgres.port}/")
        with open_store(f"{both}&target_session_attrs=read-write") as store, store.lock("test") as writer:
            assert writer.ensure_lineage() == lineage


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("53100", "disk-full"),
        ("58030", "disk"),
        ("XX001", "damaged"),
        ("42501", "not-allowed"),
        ("55P03", "busy"),
        ("57014", "busy"),
        ("22000", "database"),
        ("40001", "busy"),
        ("57P03", "unreachable"),
    ],
)
def test_what_the_server_says_in_the_middle(postgres, postgres_url, state, expected) -> None:
    """The step is undone as a whole, and its values are not repeated."""
    name = postgres.database()
    with open_store(postgres.url(name)) as store, store.lock("test") as writer:
        before = store.pull()
        postgres.admin(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'it broke' USING ERRCODE = '{state}', DETAIL = 'hunter2'; END $$; "
            "CREATE TRIGGER fail AFTER INSERT ON operations FOR EACH ROW EXECUTE FUNCTION fail()",
            name,
        )
        with pytest.raises(StateError) as caught:
            writer.begin("create", NODE, "local", {"x": SECRET})
        assert caught.value.code == expected
        assert isinstance(caught.value, UnreachableError) == (state in ("40001", "57P03"))
        assert "it broke" in caught.value.summary
        assert SECRET not in f"{caught.value}{caught.value.hint}"
        assert store.pull()["records"] == before["records"]


def test_nothing_hangs_for_ever(postgres_url) -> None:
    """Each transaction has its time limits, whatever the server's are, and a name for its administrator."""
    with open_store(postgres_url()) as store, store.lock("test"):
        for way in (store.writable().reading, store.writable().writing):
            with way() as connection:
                limits = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
                for name in limits:
                    assert connection.execute(f"SHOW {name}").scalar() != "0"
                assert connection.execute("SHOW application_name").scalar() == "fleetform"
                tls = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
                assert connection.execute(tls).scalar()


def test_who_is_stopped_in_the_middle_of_a_write_keeps_no_lock(postgres_url) -> None:
    """The server begins with what a group of steps wrote once it has all of it."""
    url = postgres_url()
    free = []

    class Values(list[dict[str, Any]]):
        """They come one by one, and before each it is looked whether others could write."""

        def __iter__(self) -> Iterator[dict[str, Any]]:
            for value in list(self.copy()):
                time.sleep(0.05)  # what was sent has come
                with open_store(url) as other, other.writable().writing() as connection:
                    connection.execute("SELECT id FROM writer_lock FOR UPDATE NOWAIT")
                    free.append(value)
                yield value

    with open_store(url) as store, store.lock("test") as writer:
        writer.ensure_lineage()
        names = Values([{"name": "a"}, {"name": r"50% of; 'b' \\"}])
        write = Write("UPDATE meta SET project = :name", names, 2)
        database: Any = store.writable()
        with database.reading() as connection:
            found = journal.last_id(connection)
        assert database.send([write], writer.lease, found)
        assert not database.send([write], writer.lease, found + 1)
        assert store.project() == names[1]["name"]
    assert len(free) == 4


# ------------------------------------------------------------------------------------ going on


def steps(store: Store) -> None:
    """All that a writer does, once."""
    with store.lock("apply") as writer:
        held = Address("reservation", "train-0")
        rank = Address("rank", "train-0")
        writer.ensure_lineage()
        made = writer.begin("create", NODE, "local", of_node(blocks=2))
        writer.finish(made, {"id": "n"})
        writer.adopt(Record(address=Address("volume", "v"), backend="local", inputs={}))
        writer.reserve(
            Record(address=held, backend=None, inputs={"node": "gpu-0", "blocks": [0]}), "gpu-0", (0,)
        )
        writer.finish(writer.begin("create", rank, "local", {}, [held]), {"id": "r"})
        writer.observe_ranks({"train-0": RankStatus(state=RankState.SUCCEEDED)})
        writer.observe_nodes({"gpu-0": Readiness(state=NodeState.READY)})
        writer.set_needs(rank, ())
        writer.release(held, 5.0)
        writer.fail(writer.begin("update", NODE, "local", of_node(blocks=2)), "quota")
        writer.finish(writer.begin("delete", rank, "local", {}))
        writer.forget(Address("volume", "v"))
        writer.begin("create", Address("volume", "w"), "local", {"zone": "a"})


def outcome(store: Store) -> dict[str, Any]:
    data = store.pull()
    data.pop("lineage")
    for intent in data["intents"]:
        intent.pop("token")
    return data


def test_a_pooler_may_stand_between_that_gives_each_transaction_another_connection(
    postgres, postgres_url, tmp_path
) -> None:
    """Nor does a command end while the pooler waits for the server: it would give up the connection."""
    if not shutil.which("pgbouncer"):
        pytest.skip("no pgbouncer here (Debian: apt-get install pgbouncer)")
    with open_store(f"sqlite:///{tmp_path}/state.db") as beside:
        steps(beside)
        wanted = outcome(beside)
    url = postgres_url()
    with postgres.pooled() as (port, log):
        pooled = f"{url.partition('?')[0].replace(str(postgres.port), str(port))}?sslmode=disable"
        with open_store(pooled) as store:
            with ThreadPoolExecutor(4) as readers:
                reads = [readers.submit(store.read) for _ in range(20)]
                steps(store)
            assert {read.result().lineage for read in reads} <= {None, store.lineage()}
            assert outcome(store) == wanted
        for _ in range(5):
            with open_store(pooled, read_only=True) as store:
                assert store.check() == []
        until(lambda: log.read_text().count("client close request") >= 6)
        assert "server was not ready" not in log.read_text()


class Breaking:
    """Ends the connection at the `number`th COMMIT: before it, or after it and before that is heard."""

    def __init__(self, store: Store, number: int, *, after: bool) -> None:
        self.number, self.after, self.seen = number, after, 0
        database: Any = store.writable()
        self.commit = database.commit
        database.commit = self.broken

    def broken(self, connection: Any, *before: Any) -> Any:
        self.seen += 1
        if self.seen != self.number:
            return self.commit(connection, *before)
        if self.after:
            self.commit(connection, *before)
        connection.close()
        return self.commit(connection, *before)  # as it is heard of: a fault of the driver's own


def again(step: Callable[[], Any]) -> Any:
    """A `RetryWhileAway` that goes on at once."""
    for _ in range(5):
        try:
            return step()
        except UnreachableError:
            pass
    raise AssertionError("it never came back")


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_connection_lost_at_any_commit_changes_nothing(postgres, postgres_url, after) -> None:
    """It is then unknown whether it was committed: each step is repeated, and done once."""
    with open_store(postgres_url()) as store:
        counting = Breaking(store, 0, after=after)
        steps(store)
        expected, commits = outcome(store), counting.seen
    assert commits > 15
    for number in range(1, commits + 1):
        with postgres.lent() as url, open_store(url, retry=again) as store:
            Breaking(store, number, after=after)
            steps(store)
            assert (number, outcome(store)) == (number, expected)
            assert store.check() == []
            assert store.lock_info() is None


def test_without_patience_it_stops_cleanly(postgres, postgres_url) -> None:
    """The server is killed and comes back: what was begun is in the journal, and taken up from there."""
    url = postgres_url()
    with open_store(url) as store:
        with store.lock("apply") as writer:
            intent = writer.begin("create", NODE, "local", {})
            postgres.stop()
            with pytest.raises(UnreachableError) as caught:
                writer.finish(intent, {"id": "n"})
            postgres.start()
        assert caught.value.code == "unreachable"
        assert "journal" in str(caught.value.hint)
        assert store.read().intents == (intent,)
        with store.lock("apply") as writer:
            again_ = writer.begin("create", NODE, "local", {})
            assert again_ == intent
            writer.finish(again_, {"id": "n"})


def test_it_waits_for_a_server_that_is_restarted(postgres, postgres_url) -> None:
    """With patience the same step goes through once the server is there; others' leases are respected."""
    faults: list[str] = []

    def patient(step: Callable[[], Any]) -> Any:
        for _ in range(3):
            try:
                return step()
            except UnreachableError as error:
                faults.append(error.code)
                if len(faults) == 2:
                    postgres.start()
        raise AssertionError

    with open_store(postgres_url(), retry=patient) as store, store.lock("apply") as writer:
        intent = writer.begin("create", NODE, "local", {})
        postgres.stop()
        writer.finish(intent, {"id": "n"})
        assert faults == ["unreachable"] * 2
        assert set(store.read().records) == {NODE}
        assert store.read().serial == 1


@pytest.mark.slow
def test_an_apply_goes_on_when_the_server_was_restarted(project: Project, postgres, postgres_url) -> None:
    """Killed while a rank runs that the apply follows, and started again: the apply ends well."""
    project.declare(
        fleet(nodes=1),
        task("job", f"echo up > {project.path}/up; read -r line < {project.path}/go", nodes=1),
    )
    for name in ("up", "go"):
        os.mkfifo(project.path / name)
    env = {**postgres.environment, "FLEETFORM_STATE": postgres_url()}
    running = project.start("apply", "--auto-approve", "--wait", env=env)
    assert (project.path / "up").read_text() == "up\n"
    postgres.stop()
    # The rank ends while there is no state to write it to.
    (project.path / "go").write_text("\n")
    postgres.start()
    out, err = running.communicate(timeout=120)
    assert running.returncode == 0, out + err
    assert project.run("plan", "--detailed-exitcode", env=env).code == 0
    project.run("state", "check", env=env)


@pytest.mark.slow
def test_eight_applies_at_once(project: Project, new_state) -> None:
    """Each ends well or says who has the lock; the world is as one of them would leave it."""
    project.declare(fleet(nodes=2), volume("data", count=3))
    env = {"FLEETFORM_STATE": new_state(), **{k: v for k, v in os.environ.items() if k.startswith("PG")}}
    running = [
        project.start("apply", "--auto-approve", *(["--lock-timeout=5m"] if n % 2 else []), env=env)
        for n in range(8)
    ]
    ends = []
    for process in running:
        out, err = process.communicate(timeout=300)
        ends.append(process.returncode)
        if process.returncode:
            assert process.returncode == 1
            assert "error[locked]" in err, out + err
    assert ends.count(0) >= 4
    assert project.run("plan", "--detailed-exitcode", env=env).code == 0
    project.run("state", "check", env=env)
    assert sorted(p.name for p in (project.local / "nodes").iterdir()) == ["gpu-0", "gpu-1"]
    listed = project.run("state", "list", env=env).out.split()
    assert sorted(listed) == ["node/gpu-0", "node/gpu-1", "volume/data-0", "volume/data-1", "volume/data-2"]
