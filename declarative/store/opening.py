"""Which database a state's URL means: a file, or a server. Each is imported when a state is in one."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from declarative.store.database import Database, Opening
from declarative.store.faults import StateError


def open_database(url: str, opening: Opening) -> Database | None:
    """The database of the state at `url`; None when there is none and it must not be made.

    Messages do not repeat the URL: it may hold a secret.
    """
    try:
        parts = urlsplit(url)
        secret = parts.password is not None
    except ValueError:
        raise StateError("bad-url", "the state's URL cannot be read", FORMS) from None
    scheme = parts.scheme.partition("+")[0]
    if scheme in ("postgresql", "postgres"):
        from declarative.store.postgres import open_server, target_of, trusted

        return open_server(trusted(target_of(url), opening.policy), opening)
    if secret:
        raise StateError("bad-url", "the state's URL has a password in it", "leave it out")
    if parts.scheme == "sqlite":
        from declarative.store.sqlite import open_file, path_of

        return open_file(path_of(url, opening.root), opening)
    if parts.scheme:
        raise StateError("bad-url", f"states cannot be kept in `{scheme}`", FORMS)
    hint = f"{FORMS}, or name a file that `fleetform state pull` printed"
    raise StateError("bad-url", "the state's URL cannot be read, and there is no such file", hint)


FORMS = "write sqlite:///path/to/state.db or postgresql://host/database"


def file_of(url: str, root: Path) -> Path | None:
    """The file that a state is kept in; None if it is on a server. `StateError` bad-url if it is neither."""
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme in ("postgresql", "postgres"):
        return None
    from declarative.store.sqlite import path_of

    return path_of(url, root)
