"""States in PostgreSQL: one for a team, with the guarantees of the file.

Everything that is PostgreSQL's own, and the home of psycopg, which is loaded when such a state is opened.

- A read is one REPEATABLE READ transaction, read only: a snapshot, which waits for no writer.
- A write is READ COMMITTED and begins by locking the one row of `writer_lock` (see `lock.check`), so writes
  take turns, and each statement after that sees all that was committed before. SERIALIZABLE would refuse, and
  have us repeat, what this merely lets wait: its snapshot is older than the row that it waited for.
- Leases go by the server's clock: those of its clients may differ.
- Nothing is kept in a session (time limits are each transaction's own, no prepared statements, no session
  locks), so it may be reached through a pooler that gives each transaction another connection.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event, func, select

from declarative.spec.policy import Policy
from declarative.store import tables
from declarative.store.backup import put, write_rows
from declarative.store.database import Opening, Traits, dumps, loads, reading, writing
from declarative.store.faults import StateError, translated
from declarative.store.kept import FOLDER
from declarative.store.migrations import agree, is_there

OPTIONS = frozenset(
    {
        "channel_binding",
        "connect_timeout",
        "gssencmode",
        "host",
        "krbsrvname",
        "load_balance_hosts",
        "port",
        "require_auth",
        "service",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcrl",
        "sslcrldir",
        "sslkey",
        "sslmode",
        "sslnegotiation",
        "sslrootcert",
        "sslsni",
        "target_session_attrs",
    }
)
"""What of libpq's a URL may say: where the server is, and how the way there is kept safe."""

NO_HANGING: Mapping[str, str | int] = {
    "connect_timeout": 10,
    # A server that has vanished without a word is given up after half a minute.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}

TIME_LIMITS = {
    "lock_timeout": "30s",
    "statement_timeout": "120s",
    # A holder that was stopped in the middle of a write must not keep all others waiting.
    "idle_in_transaction_session_timeout": "60s",
}

MAKING = 0x666C656574666F72
"""The number of the advisory lock under which the tables are made."""

WHERE_FROM = (
    "leave them out: they come from the environment (PGUSER, PGPASSWORD, PGSERVICE) "
    "or from libpq's own files (~/.pgpass, ~/.pg_service.conf)"
)
FORM = "write postgresql://host/database or postgresql://host:port/database?sslmode=verify-full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which database of which server, and how to get there."""

    name: str
    parameters: Mapping[str, str]


def target_of(url: str) -> Target:
    """What a `postgresql://` URL names. Nothing that is wrong with it is repeated: it may be a password."""
    # Anywhere: a password may hold `/`, `?` or `#`, and the URL is then taken apart in the wrong places.
    if "@" in url:
        raise StateError("bad-url", "the state's URL names a user or a password", WHERE_FROM)
    parts = urlsplit(url)
    options = _options(parts.query)
    database = unquote(parts.path.removeprefix("/"))
    if parts.fragment or "/" in database or not (database or "service" in options):
        raise StateError("bad-url", "the state's URL names no database", FORM)
    parameters = {**options, **_hosts(parts.netloc)}
    if set(options) & set(_hosts(parts.netloc)):
        raise StateError("bad-url", "the state's URL names its host twice", FORM)
    if database:
        parameters["dbname"] = database
    where = ", ".join(f"{host}{':' + port if port else ''}" for host, port in _pairs(parameters))
    return Target(
        name=f"`{database or options['service']}`" + (f" on {where}" if where else ""), parameters=parameters
    )


def _options(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise StateError("bad-url", "the options of the state's URL cannot be read", FORM) from None
    for name, _ in pairs:
        if name in ("user", "password", "passfile", "sslpassword"):
            raise StateError("bad-url", "the state's URL names a user or a password", WHERE_FROM)
        if name not in OPTIONS:
            what = f"`{name}`" if re.fullmatch(r"[a-z_]{1,40}", name) else "one that is none"
            raise StateError(
                "bad-url",
                f"the state's URL has an option that it may not have: {what}",
                f"it may have {', '.join(sorted(OPTIONS))}",
            )
    return dict(pairs)


def _hosts(netloc: str) -> dict[str, str]:
    """`host`, `host:port`, `[::1]:port`, or several of them with commas, as libpq takes them."""
    found: list[tuple[str, str]] = []
    for text in netloc.split(",") if netloc else ():
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*)(?::([0-9]{1,5}))?", text)
        if match is None or int(match[2] or 1) not in range(1, 65536):
            raise StateError("bad-url", "the state's URL names no host that can be read", FORM)
        found.append((unquote(match[1].strip("[]")), match[2] or ""))
    if not found:
        return {}
    out = {"host": ",".join(host for host, _ in found)}
    return {**out, "port": ",".join(port for _, port in found)} if any(port for _, port in found) else out


def _pairs(parameters: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    hosts = parameters.get("host", "").split(",")
    ports = parameters.get("port", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return ((host, port) for host, port in zip(hosts, ports, strict=False) if host)


OUTRANKED = {
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "sslcrl": "PGSSLCRL",
    "sslcrldir": "PGSSLCRLDIR",
    "ssl_min_protocol_version": "PGSSLMINPROTOCOLVERSION",
    "ssl_max_protocol_version": "PGSSLMAXPROTOCOLVERSION",
    "channel_binding": "PGCHANNELBINDING",
    "require_auth": "PGREQUIREAUTH",
    "gssencmode": "PGGSSENCMODE",
}
"""How the way is kept safe, and the variables by which the user says so: these outrank the URL."""
NO_CLEAR_TEXT = "scram-sha-256,gss,sspi,none"
"""Logins by which a server does not get to know the password, nor what would do in its place."""


def trusted(target: Target, policy: Policy | None) -> Target:
    """A target as the user's environment and the policy allow it; `StateError` if they do not.

    A server that the YAML names may be anybody's: without a policy that names it, it gets no password, in
    clear or as MD5, but only the proof of one. Servers have asked for no more by default since PostgreSQL 14.
    """
    given = {k: v for k, v in target.parameters.items() if not os.environ.get(OUTRANKED.get(k, ""))}
    if policy is None:
        return replace(target, parameters=given)
    hosts = [host for host, _ in _pairs(given)] or [""]
    hosts += [given["hostaddr"]] if "hostaddr" in given else []
    for host in hosts:
        if why := policy.refused_state(host):
            hint = (
                "name it yourself (`--state URL` or FLEETFORM_STATE), or see docs/security.md (`state_hosts`)"
            )
            raise StateError("not-allowed", why, hint)
    if policy.state_hosts is None and not os.environ.get("PGREQUIREAUTH"):
        given["require_auth"] = NO_CLEAR_TEXT
    return replace(target, parameters=given)


def engine(target: Target, root: Path) -> Engine:
    """An engine; it connects when it is first used."""
    try:
        import psycopg
    except ImportError as error:
        raise StateError(
            "no-driver",
            f"a state in PostgreSQL needs psycopg, which cannot be loaded: {error}",
            "in a clone: pipx install --force '.[postgresql]'; "
            "in an environment: pip install 'psycopg[binary]'",
        ) from None

    def connect() -> psycopg.Connection[Any]:
        # No prepared statements: they live in a session, which is not ours behind a pooler.
        return psycopg.connect(
            **{**NO_HANGING, "application_name": "fleetform", **target.parameters},  # type: ignore[arg-type]
            prepare_threshold=None,
        )

    made = create_engine(
        "postgresql+psycopg://",
        creator=connect,
        poolclass=QueuePool,
        pool_size=4,
        max_overflow=8,
        pool_timeout=30,
        pool_pre_ping=True,  # a connection that was lost while nobody used it is replaced in silence
        pool_use_lifo=True,
        use_native_hstore=False,  # or each connection would begin with a question about it
        json_serializer=dumps,
        json_deserializer=loads,
        hide_parameters=True,  # what is stored has no place in messages and tracebacks
        execution_options={
            "traits": Traits(
                name=target.name,
                reading={"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
                writing={"isolation_level": "READ COMMITTED"},
                now=_now,
                backup=functools.partial(_backup, root),
            )
        },
    )

    _obey(made)
    return made


def _obey(made: Engine) -> None:
    """What holds for each connection and each transaction."""

    @event.listens_for(made, "checkout")
    def checkout(connection: Any, _record: object, _proxy: object) -> None:
        # SQLAlchemy leaves it at `False` after a read, and a write would then ask for READ WRITE: a server
        # that was told to take no writes is obeyed.
        connection.read_only = None

    @event.listens_for(made, "begin")
    def begin(connection: Connection) -> None:
        limits = (func.set_config(name, value, True) for name, value in TIME_LIMITS.items())
        connection.execute(select(*limits))


def open_server(target: Target, opening: Opening) -> Engine | None:
    """The engine of the state there; None when there is none and it must not be made."""
    made = engine(target, opening.root)
    try:
        with translated(target.name):
            if not _found(made, target, opening):
                made.dispose()
                return None
            agree(made, read_only=opening.read_only, tell=opening.tell)
    except BaseException:
        made.dispose()
        raise
    return made


def _found(database: Engine, target: Target, opening: Opening) -> bool:
    """Whether there are tables, made now if that is wanted."""
    with reading(database) as connection:
        if is_there(connection):
            return True
    if opening.read_only:
        return False
    if not opening.create:
        raise StateError("no-state", f"there is no state in {target.name}", "`fleetform apply` makes one")
    with writing(database) as connection:
        connection.execute(select(func.pg_advisory_xact_lock(MAKING)))
        if not is_there(connection):  # by another first `apply`, while this one waited
            tables.create(connection)
    return True


def _now(connection: Connection) -> float:
    # Not now(): that is when the transaction began, before it waited for its turn.
    return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())


def _backup(root: Path, connection: Connection, which: str) -> Path:
    """All rows as JSON, in the project: what the server loses or refuses does not concern it."""
    fill = functools.partial(write_rows, connection)
    return put(root.absolute() / FOLDER, f"state-format-{which}.json", fill)
