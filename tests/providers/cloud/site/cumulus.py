"""The provider of the rehearsal cloud (`tests/providers/cloud/server.py`), written and packaged as a third
party would.

It is found by the entry point of the `dist-info` folder beside it, once this folder is on PYTHONPATH. It uses
only the port of fleetform. Each request has its own connection and a time limit, and there are no retries:
all faults are the port's two kinds of error.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from declarative.model.blocks import Shape
from declarative.model.resource import Offer
from declarative.model.state import Address, Record
from declarative.model.status import NodeState, RankState, RankStatus, Readiness
from declarative.provider import (
    Config,
    Launch,
    PermanentError,
    PermanentKind,
    Thing,
    TransientError,
    TransientKind,
)

KINDS = ("node", "volume", "attachment")
REFUSED = {
    400: PermanentKind.INVALID,
    401: PermanentKind.AUTH,
    404: PermanentKind.NOT_FOUND,
    409: PermanentKind.CONFLICT,
}

Words = dict[str, Any]

clock = time.time
"""What time it is; a test may say so."""


class Cumulus:
    """One account of the cloud at `options.url`. `options.timeout`: seconds that an answer may take."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._place = urlsplit(str(config.options["url"]))
        self._timeout = float(config.options.get("timeout", 10))

    # ------------------------------------------------------------------------------------ requests

    def _call(self, method: str, path: str, body: Words | None = None, **query: Any) -> Words:
        """One request: the answer's JSON, or one of the port's errors."""
        text = json.dumps(body).encode() if body is not None else None
        link = http.client.HTTPConnection(self._place.hostname or "", self._place.port, self._timeout)
        try:
            try:
                link.connect()
            except OSError as error:
                raise TransientError(TransientKind.NOT_SENT, f"cumulus cannot be reached: {error}") from error
            try:
                link.request(method, f"{path}?{urlencode(self._mine(query))}", text)
                answer = link.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException) as error:
                summary = f"cumulus gave no answer to {method} {path}: {error!r}"
                raise TransientError(TransientKind.AMBIGUOUS, summary) from error
        finally:
            link.close()
        return _read(answer, data)

    def _mine(self, query: Words) -> Words:
        return {"owner": self._config.lineage, **query}

    def _list(self, **query: Any) -> list[Words]:
        """Every page of a listing."""
        found: list[Words] = []
        after = 0
        while True:
            page = self._call("GET", "/things", None, after=after, **query)
            found += page["things"]
            if page["next"] is None:
                return found
            after = page["next"]

    # -------------------------------------------------------------------------------------- things

    def offers(self) -> tuple[Offer, ...]:
        """One instance type in each region."""
        return tuple(
            Offer(
                backend=self._config.backend,
                region=region,
                instance_type="n8",
                shape=Shape(cpu=8, memory_mib=32768),
                price=1.0,
            )
            for region in self._config.regions or ("local",)
        )

    def inventory(self) -> tuple[Thing, ...]:
        """See the port."""
        return tuple(map(_thing, self._list()))

    def find(self, address: Address, token: str) -> Thing | None:
        """See the port."""
        found = self._list(kind=address.kind, name=address.name, token=token)
        return _thing(found[0]) if found else None

    def create(
        self, address: Address, token: str, inputs: Mapping[str, Any], needs: Mapping[Address, Record]
    ) -> Mapping[str, Any]:
        """See the port. Where the cloud honours no tokens it takes a name once, and the token is a tag."""
        found = self.find(address, token)
        if found is not None:
            return found.outputs
        ids = {a.kind: str(r.outputs.get("id")) for a, r in needs.items() if a.kind in KINDS}
        body = {
            "kind": address.kind,
            "name": address.name,
            "token": token,
            "inputs": dict(inputs),
            "needs": ids,
        }
        try:
            return _thing(self._call("POST", "/things", body)).outputs
        except PermanentError as error:
            if error.kind is not PermanentKind.CONFLICT:
                raise
            found = self.find(address, token)  # an earlier try that was under way has won
            if found is None:
                raise
            return found.outputs

    def update(self, have: Record, token: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the port."""
        return _thing(self._call("PATCH", self._path(have), {"inputs": dict(inputs)})).outputs

    def delete(self, have: Record) -> None:
        """See the port."""
        try:
            self._call("DELETE", self._path(have))
        except PermanentError as error:
            if error.kind is not PermanentKind.NOT_FOUND:
                raise

    def _path(self, have: Record) -> str:
        return f"/things/{quote(str(have.outputs.get('id', 'none')), safe='')}"

    # --------------------------------------------------------------------------------------- nodes

    def readiness(self, nodes: Sequence[Record]) -> Mapping[str, Readiness]:
        """See the port."""
        there = {str(thing["id"]): thing for thing in self._list(kind="node")}
        out = {}
        for record in nodes:
            thing = there.get(str(record.outputs.get("id")))
            state = NodeState(thing["state"]) if thing else NodeState.UNREACHABLE
            reason = None if state is NodeState.READY else "it is not there" if thing is None else state.value
            out[record.address.name] = Readiness(state=state, reason=reason, observed_at=clock())
        return out

    # --------------------------------------------------------------------------------------- ranks

    def start(self, node: Record, launch: Launch) -> RankStatus:
        """See the port. The cloud only says that it runs."""
        return _status(self._call("PUT", self._rank(node, launch.attempt)))

    def poll(self, node: Record, attempts: Sequence[str]) -> Mapping[str, RankStatus | None]:
        """See the port."""
        found = self._call("GET", f"{self._path(node)}/ranks")
        return {a: _status(found[a]) if a in found else None for a in attempts}

    def stop(self, node: Record, attempt: str, grace_seconds: int) -> RankStatus | None:
        """See the port."""
        found = self._call("DELETE", self._rank(node, attempt))
        return _status(found) if found else None

    def change_limit(self, node: Record, attempt: str, seconds: int | None) -> None:
        """Nothing ends by itself here."""

    def read_log(self, node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
        """There is none."""
        return b""

    def _rank(self, node: Record, attempt: str) -> str:
        return f"{self._path(node)}/ranks/{quote(attempt, safe='')}"


def _read(answer: http.client.HTTPResponse, data: bytes) -> Words:
    """What came back, as a value or as the port's error."""
    if answer.status == 429:
        wait = float(answer.headers.get("Retry-After") or 0)
        raise TransientError(TransientKind.THROTTLED, "cumulus is throttling", after=wait)
    if answer.status >= 500:
        raise TransientError(TransientKind.AMBIGUOUS, f"cumulus failed with {answer.status}")
    try:
        found: Words = json.loads(data)
    except ValueError as error:
        raise TransientError(TransientKind.AMBIGUOUS, "cumulus' answer was cut off") from error
    if answer.status >= 400:
        kind = REFUSED.get(answer.status, PermanentKind.INVALID)
        raise PermanentError(kind, f"cumulus refuses: {found.get('error')}")
    return found


def _thing(found: Words) -> Thing:
    outputs = {"id": found["id"]}
    if found["kind"] == "node":
        outputs["address"] = found["address"]
    return Thing(
        address=Address(found["kind"], found["name"]),
        token=found["token"],
        inputs=found["inputs"],
        outputs=outputs,
    )


def _status(found: Words) -> RankStatus:
    return RankStatus(
        state=RankState(found["state"]),
        started_at=found["started"],
        ended_at=found["ended"],
        exit_code=found["code"],
    )
