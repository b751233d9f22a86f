"""Faults of a database as a `StateError`: a stable code, what happened, what to do about it. Also how to go
on after the database was away.

This module knows the faults of every database by their own numbers and words, and imports no driver: a driver
is loaded where its database is used. Messages never repeat a URL or a value, which may hold a secret.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeVar

from declarative.store.lease import LockInfo

FROM_BACKUP = "bring it back from a backup: `fleetform state restore`"
"""What to do about a state that cannot be trusted any more."""


class StateError(Exception):
    """The state cannot be used, or refuses a request. `code` is stable."""

    def __init__(
        self, code: str, summary: str, hint: str | None = None, *, lock: LockInfo | None = None
    ) -> None:
        super().__init__(summary)
        self.code = code
        self.summary = summary
        self.hint = hint
        self.lock = lock
        """The holder of the lock, if the lock is the problem."""


class UnreachableError(StateError):
    """The database is away for now, or had no turn for us: the same again may go through."""


class ConstraintError(StateError):
    """The tables refuse what contradicts them."""


class Fault(NamedTuple):
    """The error for a fault that a database has a name for."""

    code: str
    summary: str
    hint: str | None = None
    passes: bool = False
    """Whether the same again may go through: connections come back, other transactions end."""


_SEE = "see what is there, and who may read and write it"
_BUSY = Fault("busy", "the state's database is busy with another process", "try again")
_FULL = Fault("disk-full", "the state could not be written: its disk is full", "make room and run it again")
_DAMAGED = Fault("damaged", "the state's database is damaged", FROM_BACKUP)
WRITABLE = "make the file and its directory writable, or name another state: `--state URL`"
_READ_ONLY = Fault("read-only", "the state cannot be written by this user", WRITABLE)
_DISK = Fault("disk", "the state's disk failed", "nothing of the last step was recorded; run it again")

_SQLITE: Mapping[str, Fault] = {
    "SQLITE_BUSY": _BUSY,
    "SQLITE_LOCKED": _BUSY,
    "SQLITE_NOTADB": Fault(
        "not-a-state",
        "the state's file is no database; it was left as it is",
        f"name another file if it never was a state; else {FROM_BACKUP}",
    ),
    "SQLITE_CORRUPT": _DAMAGED,
    "SQLITE_FULL": _FULL,
    "SQLITE_READONLY": _READ_ONLY,
    "SQLITE_CANTOPEN": Fault("unreadable", "the state's database cannot be opened", _SEE),
    "SQLITE_IOERR_SHMSIZE": _FULL,  # the file beside the state that readers and writers share
    "SQLITE_IOERR": _DISK,
}
"""The beginning of SQLite's name for a fault → the fault."""

_AWAY = Fault(
    "unreachable",
    "the state's database cannot be reached",
    "see that the server runs and can be reached from here, then run it again: "
    "what was begun is in the journal",
    passes=True,
)
_TURN = _BUSY._replace(passes=True)
_CONNECTIONS = Fault(
    "unreachable",
    "the state's database takes no more connections",
    "try again later, or raise the server's `max_connections` or the role's `CONNECTION LIMIT`",
    passes=True,
)
_LOGIN = Fault(
    "not-authenticated",
    "the state's database does not let this user in",
    "name the user in PGUSER and the password in PGPASSWORD or ~/.pgpass (PGPASSFILE), "
    "or both in a service of PGSERVICE",
)
_CLEAR = Fault(
    "not-authenticated",
    "the state's server asks for the password itself, and only the project's YAML names it",
    "let it use scram-sha-256; or name it yourself, with `--state URL` or FLEETFORM_STATE, or in a policy "
    "(`state_hosts`, docs/security.md)",
)
_RIGHTS = Fault(
    "not-allowed",
    "this user may not do that in the state's database",
    "the first `apply` needs CONNECT on the database and CREATE on its schema, later ones only what was made "
    "there; let its owner GRANT that, or be its owner",
)
_ABSENT = Fault(
    "no-database",
    "the state's database does not exist",
    "make it (`createdb NAME`), or mend the name in `state`; the tables are made by the first `apply`",
)
_TLS = Fault(
    "tls",
    "there is no TLS connection to the state's database that both sides accept",
    "write `sslmode=require` or `sslmode=verify-full&sslrootcert=FILE` into the URL, "
    "or set PGSSLMODE and PGSSLROOTCERT",
)
_STANDBY = Fault(
    "read-only",
    "the state's database takes no writes",
    "name the primary server; with several hosts, `target_session_attrs=read-write` finds it",
)
_OTHERS_TABLES = Fault(
    "not-a-state",
    "the database has tables of these names that are not fleetform's; they were left as they are",
    "use a database of its own, or a schema: `ALTER ROLE … SET search_path = …`",
)

_STATES: Mapping[str, Fault] = {
    "08": _AWAY,  # connection exceptions
    "57P01": _AWAY,  # shut down by an administrator
    "57P02": _AWAY,  # another process of the server crashed
    "57P03": _AWAY,  # starting up, shutting down, recovering
    "57P05": _AWAY,  # idle for too long
    "25P03": _AWAY,  # idle in a transaction for too long, or stopped in it
    "53300": _CONNECTIONS,
    "53100": _FULL,
    "58030": _DISK,
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
    "40001": _TURN,
    "40P01": _TURN,
    "55P03": _BUSY,  # lock_timeout: it was long enough
    "57014": _BUSY,  # statement_timeout
    "28": _LOGIN,
    "42501": _RIGHTS,
    "3D000": _ABSENT,
    "3F000": _RIGHTS,  # no schema of the search path is there, or may be used
    "25006": _STANDBY,
    "42P07": _OTHERS_TABLES,
    "42P01": _OTHERS_TABLES,
    "42703": _OTHERS_TABLES,
}
"""PostgreSQL's SQLSTATE or its class → the fault; the longest match counts."""

_WORDS: tuple[tuple[str, Fault], ...] = (
    ("authentication method requirement", _CLEAR),
    ("failed to resolve host", _AWAY),
    ("password authentication failed", _LOGIN),
    ("no password supplied", _LOGIN),
    ("authentication failed", _LOGIN),
    ("definition of service", _LOGIN),
    ("service file", _LOGIN),
    ("too many c", _CONNECTIONS),  # connections for a role, a database; clients already
    ("connection slots are reserved", _CONNECTIONS),
    ("permission denied", _RIGHTS),
    ("no encryption", _TLS),
    ("does not support ssl", _TLS),
    ("certificate", _TLS),
    ("sslmode", _TLS),
    ("no pg_hba.conf entry", _LOGIN),
    ('fatal:  role "', _LOGIN),
    ("does not exist", _ABSENT),
    ("session is read-only", _STANDBY),
    ("server is not in hot standby", _STANDBY),
)
"""Words of libpq or the server, tried in this order: without a connection there is no SQLSTATE."""


@contextmanager
def as_state_error(where: object = None) -> Iterator[None]:
    """Faults of the database and of its files as `StateError`; `where` is what to call the place."""
    try:
        yield
    except UnicodeError as error:  # in what SQLite says of a table whose name is damaged
        raise _state_error(_DAMAGED, str(where or "")) from error
    except OSError as error:
        place = where or error.filename or "the state"
        if error.errno == errno.EROFS:
            raise StateError("read-only", f"{place}: {error.strerror}", WRITABLE) from error
        raise StateError("unreadable", f"{place}: {error.strerror}", _SEE) from error
    except Exception as error:
        if not _is_database(error):
            raise
        raise _error_of(error, where) from error


def _is_database(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) or _is_postgres(error)


def _is_postgres(error: BaseException) -> bool:
    return any(kind.__module__.partition(".")[0] == "psycopg" for kind in type(error).__mro__)


def is_integrity(error: Exception) -> bool:
    """Whether a database refuses what contradicts its tables; without its driver, which may not be there."""
    return _is_database(error) and any(kind.__name__ == "IntegrityError" for kind in type(error).__mro__)


def busy() -> UnreachableError:
    """Every connection has been in use for long."""
    return UnreachableError(_BUSY.code, _BUSY.summary, _BUSY.hint)


def _error_of(cause: Exception, where: object) -> StateError:
    if _is_postgres(cause):
        return _error_of_postgres(cause, where)
    name = str(getattr(cause, "sqlite_errorname", ""))
    for prefix, fault in _SQLITE.items():
        if name.startswith(prefix):
            return _state_error(fault, str(where or ""))
    return StateError("database", f"the state's database failed: {cause}")


def _error_of_postgres(cause: BaseException, where: object) -> StateError:
    state, message = str(getattr(cause, "sqlstate", None) or ""), primary(cause)
    if state:
        by_state = _STATES.get(state) or _STATES.get(state[:2])
        if by_state is None or len(state) != 5:
            return StateError("database", f"the state's database failed: {message} ({state})")
        return _state_error(by_state, message)
    # The text has all tries (each host, with TLS and without): a fault other than "away" counts first.
    everything = str(cause).lower()
    fault = next((fault for words, fault in _WORDS if words in everything), None)
    if fault is None and type(cause).__name__ != "OperationalError":
        return StateError("database", f"the state's database failed: {message}")
    return _state_error(fault or _AWAY, "; ".join(filter(None, (str(where or ""), message))))


def _state_error(fault: Fault, detail: str) -> StateError:
    kind = UnreachableError if fault.passes else StateError
    return kind(fault.code, f"{fault.summary} ({detail})" if detail else fault.summary, fault.hint)


def primary(cause: BaseException) -> str:
    """The database's message without its DETAIL, which has values of rows; one line."""
    diagnosis = getattr(cause, "diag", None)
    message = getattr(diagnosis, "message_primary", None) or str(cause)
    return str(message).strip().partition("\n")[0]


T = TypeVar("T")


# Going on after the database was away. A connection that breaks during COMMIT leaves it open whether the
# step was recorded. So each step is such that doing it again is no harm (an open intent is taken up again,
# an ended one stays ended, blocks that are held are held), checks the fence anew in its own transaction, and
# may simply be repeated; if another command has taken the lock meanwhile, it is refused. The caller says how
# often and how long: tenacity has its one home in `declarative.retry`.


class RetryWhileAway(Protocol):
    """Calls a step, perhaps several times; the first result, or the last error."""

    def __call__(self, step: Callable[[], T], /) -> T:
        """The result of the step."""


def once(step: Callable[[], T], /) -> T:
    """Do not retry: raise the first fault."""
    return step()
