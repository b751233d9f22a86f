"""Objects in a bucket of S3 or of a server that speaks its protocol: what a state needs of them.

An object is made only if its key is free (`put_if_absent`), or replaced only if it is still the version that
was read (`put_if_match`). No write is unconditional. The only home of obstore, loaded with the first bucket.

Each object begins with a token of its own, which is new for each write. It has two uses:

- Where an answer is lost, or a proxy sent the request twice, the object is read back. If it has the token of
  this write, the write happened.
- The version of an object is a digest of its content in S3. With tokens, no two writes have the same digest,
  so a version that comes back is never taken for the one that was read.

Nothing here tries twice: a caller decides that.
"""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from declarative.model.record import struct
from declarative.store.errors import StateError, UnreachableError

if TYPE_CHECKING:
    from obstore.store import S3Store

FORM = "write s3://bucket/prefix, with ?region=…&endpoint=https://… where they are needed"
WHERE_FROM = (
    "leave them out: they come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), "
    "or from the role of the machine"
)
SECONDS = "20s"
"""How long one request may take."""
TOKEN_LENGTH = 32
"""Hexadecimal digits of a token: those of a UUID."""

_OF_LOGIN = re.compile(r"[?&][^=&]*(key|secret|token|pass|sig|cred)[^=&]*=", re.IGNORECASE)

T = TypeVar("T")


class LostAnswerError(UnreachableError):
    """Nobody knows whether a write happened: read, then decide."""


class RefusedWriteError(StateError):
    """What is there comes from another write: the key was taken, or the object is another version by now.

    A replacement may have been there for a moment, where a proxy sent it twice: then another writer has read
    it, and replaced it.
    """


@struct(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object as it was read."""

    data: bytes
    version: str
    """The server's name for this content of the key."""
    token: str
    """The write that it comes from."""
    modified: float
    """When it was written, in seconds since the epoch by the server's clock."""


@struct(frozen=True, slots=True, kw_only=True)
class BucketPlace:
    """Where the objects of one state are."""

    bucket: str
    prefix: str
    region: str | None = None
    endpoint: str | None = None


def place_of(url: str) -> BucketPlace:
    """The place that an `s3://` URL names; `StateError` (`bad-url`) repeats none of its parts."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise StateError("bad-url", "the state's URL cannot be read", FORM) from None
    if "@" in unquote(url) or _OF_LOGIN.search(url):
        raise StateError("bad-url", "the state's URL names a user, a password or a key", WHERE_FROM)
    if parts.scheme != "s3" or not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts.netloc):
        raise StateError("bad-url", "the state's URL names no bucket", FORM)
    if parts.fragment or not options.keys() <= {"region", "endpoint"}:
        raise StateError("bad-url", "the state's URL has an option that it may not have", FORM)
    prefix = unquote(parts.path).strip("/")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", prefix, re.ASCII) or {".", ".."} & set(prefix.split("/")):
        raise StateError(
            "bad-url", "the state's URL names no prefix of letters, digits, `-`, `_`, `.` and `/`", FORM
        )
    endpoint = options.get("endpoint")
    if endpoint is not None and not _is_safe(endpoint):
        raise StateError("bad-url", "the endpoint of the state's URL is no `https://host`", FORM)
    return BucketPlace(
        bucket=parts.netloc, prefix=prefix, region=options.get("region") or None, endpoint=endpoint
    )


def _is_safe(endpoint: str) -> bool:
    """Whether it is an address with TLS, or one of this machine."""
    try:
        parts = urlsplit(endpoint)
        host = parts.hostname
        parts.port  # noqa: B018 (a ValueError if it is none)
    except ValueError:
        return False
    if not host or parts.query or parts.fragment or parts.path not in ("", "/"):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Bucket:
    """The objects below one prefix. Keys are relative to it. Threads may share it."""

    def __init__(self, place: BucketPlace) -> None:
        """`StateError` (`no-driver`) without obstore. Nothing is asked of the server yet."""
        self.name = f"s3://{place.bucket}/{place.prefix}"
        try:
            from obstore.store import S3Store
        except ImportError as error:
            raise StateError(
                "no-driver",
                f"a state in a bucket needs obstore, which cannot be loaded: {error}",
                "in an environment: pip install obstore",
            ) from None
        options: dict[str, Any] = {"region": place.region, "endpoint": place.endpoint}
        plain = place.endpoint is not None and place.endpoint.startswith("http:")
        self._store: S3Store = S3Store(
            place.bucket,
            prefix=place.prefix,
            client_options={"allow_http": plain, "timeout": SECONDS, "connect_timeout": SECONDS},
            retry_config={"max_retries": 0},
            **{name: value for name, value in options.items() if value is not None},
        )

    def get(self, key: str) -> StoredObject | None:
        """An object; None if there is none. `StateError` if it has no token: it is not ours."""
        import obstore

        def read() -> tuple[bytes, Any]:
            answer = obstore.get(self._store, key)
            return bytes(answer.bytes()), answer.meta

        try:
            content, meta = self._asked(read)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._no_bucket() from None
            return None
        token, separator, data = content.partition(b"\n")
        if not separator or not re.fullmatch(rb"[0-9a-f]{%d}" % TOKEN_LENGTH, token):
            raise StateError("not-a-state", f"{self.name}/{key} is not fleetform's; it stays as it is")
        return StoredObject(
            data=data,
            version=str(meta["e_tag"]),
            token=token.decode("ascii"),
            modified=meta["last_modified"].timestamp(),
        )

    def put_if_absent(self, key: str, data: bytes) -> str:
        """Make an object, unless the key is taken; its version.

        Keys that are made so must never be used twice: whoever reads another token there then knows that this
        write did not happen. `RefusedWriteError`, or `LostAnswerError`.
        """
        return self._put(key, data, "create")

    def put_if_match(self, key: str, data: bytes, version: str) -> str:
        """Replace an object, unless it is not that `version` any more; its new version.

        `RefusedWriteError`, or `LostAnswerError`.
        """
        return self._put(key, data, {"e_tag": version})

    def _put(self, key: str, data: bytes, mode: Any) -> str:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        token = uuid.uuid4().hex
        content = token.encode("ascii") + b"\n" + data
        try:
            made = self._asked(lambda: obstore.put(self._store, key, content, mode=mode, use_multipart=False))
            return str(made["e_tag"])
        except FileNotFoundError:
            raise self._no_bucket() from None
        except (AlreadyExistsError, PreconditionError):
            answered = True
        except UnreachableError:
            answered = False
        lost = LostAnswerError("unreachable", f"{self.name}: the answer to a write was lost", "run it again")
        try:
            stored = self.get(key)
        except UnreachableError:
            raise lost from None
        if stored is not None and stored.token == token:
            return stored.version
        if stored is not None and (answered or mode == "create"):
            raise RefusedWriteError("busy", f"another command has written {self.name}/{key}", "run it again")
        raise lost

    def keys(self, folder: str, after: str = "") -> Iterator[str]:
        """The keys of a folder in their order, those behind the key `after` only; page by page."""
        import obstore

        pages = iter(obstore.list(self._store, folder, offset=after or None, chunk_size=1000))
        while page := self._asked(lambda: next(pages, None)):
            yield from (each["path"] for each in page)

    def delete(self, key: str) -> None:
        """Remove an object that nobody reads any more; it is no fault if it is gone."""
        import obstore

        try:
            self._asked(lambda: obstore.delete(self._store, key))
        except FileNotFoundError:
            return

    def _no_bucket(self) -> StateError:
        return StateError(
            "no-database", f"there is no bucket for {self.name}", "make it, or mend the name in `state`"
        )

    def _asked(self, request: Callable[[], T]) -> T:
        """The answer to one request. Faults are `StateError`s, save those that say what is there."""
        from obstore.exceptions import (
            AlreadyExistsError,
            BaseError,
            PermissionDeniedError,
            PreconditionError,
            UnauthenticatedError,
        )

        try:
            return request()
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            raise
        except UnauthenticatedError:
            raise StateError("not-authenticated", f"{self.name} takes no such login", WHERE_FROM) from None
        except PermissionDeniedError:
            raise StateError(
                "not-allowed",
                f"this user may not do that in {self.name}, or there is no such bucket",
                "see who may read and write it, and that the name in `state` is right",
            ) from None
        except BaseError as error:
            if "NoSuchBucket" in str(error):
                raise self._no_bucket() from None
            raise UnreachableError(
                "unreachable", f"{self.name} cannot be reached, or gave no answer", "run it again"
            ) from None
