"""A real PostgreSQL server for the tests: a folder, a port, TLS and passwords; removed after the run."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.support.cli import lines, until

USER = "fleet"
PASSWORD = "correct horse"
HBA = """\
local    all,replication  admin     trust
hostssl  all  all    127.0.0.1/32   scram-sha-256
"""
SETTINGS = """\
listen_addresses = '127.0.0.1'
fsync = off
full_page_writes = off
shared_buffers = 16MB
max_connections = 60
ssl = on
log_min_messages = fatal
autovacuum = off
"""

END_SESSIONS = """\
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()"""
POOLER = """\
[databases]
* = host=127.0.0.1 port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {pooler}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/users
server_tls_sslmode = require
pool_mode = transaction
default_pool_size = 2
logfile = {folder}/log
pidfile = {folder}/pid
"""


def binaries() -> Path | None:
    """Where the server's programs are: on PATH, or in the folder of Debian's newest version."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent  # beside its siblings: the name may be a link
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = sorted(debian, key=lambda p: float(p.parts[-3]))
    return newest[-1].parent if newest else None


def missing() -> str | None:
    """Why no server can be started here; None if it can."""
    if binaries() is None:
        return "no PostgreSQL server here (Debian: apt-get install postgresql)"
    return None if shutil.which("openssl") else "no openssl here, which makes the server's certificate"


def free_port() -> int:
    """An unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A server in a folder of its own. It refuses to run as root, so as root it is somebody else's."""

    def __init__(self, folder: Path) -> None:
        found = binaries()
        assert found
        self.folder, self._programs = folder, found
        self._numbers = itertools.count()
        self._free: list[str] = []
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            entry = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            self._as = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        self.port = free_port()
        self._initialise()

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            command,
            cwd=self.folder,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            **self._as,
        )
        assert done.returncode == 0, f"{command[0]}: {done.stdout}"

    def _initialise(self) -> None:
        data = self.folder / "data"
        self._run(
            self._programs / "initdb",
            *("--pgdata", data, "--username", "admin", "--auth", "trust", "--no-sync"),
            *("--encoding", "UTF8", "--locale", "C"),
        )
        self._run(
            "openssl",
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(data / "server.key"), "-out", str(data / "server.crt")),
        )
        self.certificate = self.folder / "root.crt"
        shutil.copy(data / "server.crt", self.certificate)
        self.certificate.chmod(0o644)
        self.folder.chmod(0o755)
        (data / "pg_hba.conf").write_text(HBA)
        with (data / "postgresql.conf").open("a") as settings:
            settings.write(f"{SETTINGS}port = {self.port}\nunix_socket_directories = '{self.folder}'\n")
        self.start()
        self.admin(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(USER), PASSWORD))

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        data, log = self.folder / "data", self.folder / "log"
        self._run(self._programs / "pg_ctl", "start", "-w", "-s", "-D", data, "-l", log)

    def stop(self, mode: str = "immediate") -> None:
        """Stop it; `immediate`: as if it were killed."""
        self._run(self._programs / "pg_ctl", "stop", "-w", "-s", "-D", self.folder / "data", "-m", mode)

    @contextmanager
    def standby(self) -> Iterator[int]:
        """A copy of it that follows it and takes no writes; its port."""
        data, port = self.folder / "standby", free_port()
        where = ("--host", self.folder, "--port", str(self.port), "--username", "admin")
        self._run(
            self._programs / "pg_basebackup",
            *where,
            "--pgdata",
            data,
            "--write-recovery-conf",
            "--no-sync",
            "--checkpoint=fast",
        )
        control = (self._programs / "pg_ctl", "-w", "-s", "-D", data)
        self._run(*control, "-l", self.folder / "log-standby", "-o", f"-p {port}", "start")
        try:
            yield port
        finally:
            self._run(*control, "-m", "immediate", "stop")
            shutil.rmtree(data)

    @contextmanager
    def pooled(self) -> Iterator[tuple[int, Path]]:
        """PgBouncer in front of it, which gives each transaction any of two connections; its port and log."""
        folder, port = self.folder / "pooler", free_port()
        folder.mkdir()
        (folder / "users").write_text(f'"{USER}" "{PASSWORD}"\n')
        (folder / "pgbouncer.ini").write_text(POOLER.format(port=self.port, pooler=port, folder=folder))
        if self._as:
            for path in (folder, *folder.iterdir()):
                os.chown(path, self._as["user"], self._as["group"])
        self._run("pgbouncer", "--daemon", folder / "pgbouncer.ini")
        until(lambda: any("process up" in line for line in lines(folder / "log")))
        try:
            yield port, folder / "log"
        finally:
            os.kill(int((folder / "pid").read_text()), signal.SIGTERM)
            until(lambda: not (folder / "pid").exists())  # it takes that away itself as it ends
            shutil.rmtree(folder)

    def admin(self, statement: str | sql.Composed, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement as the server's superuser."""
        with psycopg.connect(
            host=str(self.folder), port=self.port, user="admin", password="", dbname=database, autocommit=True
        ) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def database(self) -> str:
        """An empty database of `USER`; its name.

        Making one takes ten times as long as emptying one that was given back, and its 300 files have to be
        removed.
        """
        if not self._free:
            name = f"state_{next(self._numbers)}"
            self.admin(f"CREATE DATABASE {name} OWNER {USER}")
            return name
        name = self._free.pop()
        self.admin(f"{END_SESSIONS}; DROP OWNED BY {USER}", name)
        return name

    def give_back(self, *databases: str) -> None:
        """Databases in which nothing was changed but what `USER` made: others may have them now."""
        self._free += databases

    @contextmanager
    def lent(self) -> Iterator[str]:
        """The URL of a state in an empty database, which others may have afterwards."""
        name = self.database()
        yield self.url(name)
        self.give_back(name)

    def url(self, database: str, **options: str) -> str:
        """The URL of a state there, over TLS."""
        given = {"sslmode": "verify-full", "sslrootcert": str(self.certificate), **options}
        query = "&".join(f"{name}={value}" for name, value in given.items())
        return f"postgresql://127.0.0.1:{self.port}/{database}?{query}"

    @property
    def environment(self) -> dict[str, str]:
        """Where user and password come from."""
        return {"PGUSER": USER, "PGPASSWORD": PASSWORD}


@contextmanager
def running() -> Iterator[Server]:
    """A server that is there while this lasts. Not in pytest's folders: those are closed to other users."""
    folder = Path(tempfile.mkdtemp(prefix="fleetform-postgres-"))
    server: Server | None = None
    try:
        server = Server(folder)
        yield server
    finally:
        if server is not None and (folder / "data" / "postmaster.pid").exists():
            server.stop()
        shutil.rmtree(folder)
