"""The content of the rehearsal cloud: a database file that outlives its process, and the operations on it.

Nothing is ever erased: a deleted thing is marked `gone`, so that tests can count what was made, and how
often. Two things may have the same name, as on most clouds. With `names`, tokens have no effect and names are
unique. Changes run one at a time.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TABLES = """
CREATE TABLE IF NOT EXISTS things (
  seq INTEGER PRIMARY KEY, owner TEXT, kind TEXT, name TEXT, token TEXT, inputs TEXT, needs TEXT,
  state TEXT, made REAL, gone REAL);
CREATE TABLE IF NOT EXISTS ranks (
  node INTEGER, attempt TEXT, state TEXT, code INTEGER, started REAL, ended REAL,
  PRIMARY KEY (node, attempt));
CREATE INDEX IF NOT EXISTS by_token ON things (owner, token);
CREATE INDEX IF NOT EXISTS by_name ON things (owner, kind, name);
"""
PREFIX = {"node": "i", "volume": "vol", "attachment": "att"}

Words = dict[str, Any]


class RefusedError(Exception):
    """The request is wrong: its HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class CloudWorld:
    """Nodes, volumes, attachments and ranks of all owners."""

    def __init__(
        self,
        file: Path,
        *,
        names: bool = False,
        boot: float = 0.0,
        page: int = 50,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._now = clock
        self._names = names
        self._boot = boot
        self._page = page
        self._turn = threading.Lock()
        self._db = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.executescript(TABLES)

    # --------------------------------------------------------------------------------------- things

    def listed(self, owner: str, query: Words) -> Words:
        """One page of what is there, oldest first."""
        where, values = "owner = ? AND gone IS NULL AND seq > ?", [owner, int(query.get("after", 0))]
        for key in ("kind", "name", "token"):
            if key in query:
                where += f" AND {key} = ?"
                values.append(query[key])
        with self._turn:
            rows = self._db.execute(
                f"SELECT * FROM things WHERE {where} ORDER BY seq LIMIT ?", [*values, self._page + 1]
            ).fetchall()
        more = len(rows) > self._page
        rows = rows[: self._page]
        return {"things": [self._shown(r) for r in rows], "next": rows[-1]["seq"] if more else None}

    def create(self, owner: str, body: Words) -> Words:
        """Make a thing; what a token made before is given again, with the same request only."""
        kind, name, token = str(body["kind"]), str(body["name"]), str(body["token"])
        if kind not in PREFIX:
            raise RefusedError(400, f"there is no {kind}")
        inputs = json.dumps(body["inputs"], sort_keys=True)
        with self._turn:
            mine = "SELECT * FROM things WHERE owner = ? AND "
            if self._names:
                taken = self._db.execute(
                    f"{mine} kind = ? AND name = ? AND gone IS NULL", (owner, kind, name)
                )
                if taken.fetchone():
                    raise RefusedError(409, f"the name {name} is taken")
            else:
                before = self._db.execute(f"{mine} token = ? ORDER BY seq DESC", (owner, token)).fetchone()
                if before and (before["inputs"], before["gone"]) != (inputs, None):
                    raise RefusedError(409, "the token was used before, for something else")
                if before:
                    return self._shown(before)
            if kind == "attachment":
                self._check_attachment(owner, body["needs"])
            made = self._db.execute(
                "INSERT INTO things (owner, kind, name, token, inputs, needs, state, made)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING *",
                (owner, kind, name, token, inputs, json.dumps(body["needs"]), "ok", self._now()),
            ).fetchone()
            return self._shown(made)

    def _check_attachment(self, owner: str, needs: Words) -> None:
        for kind in ("volume", "node"):
            self._row(owner, str(needs.get(kind)), kind)
        holders = self._attached("volume", str(needs["volume"]))
        if holders:
            raise RefusedError(409, f"{needs['volume']} is attached to {holders[0]['needs']}")

    def _attached(self, kind: str, key: str) -> list[sqlite3.Row]:
        rows = self._db.execute("SELECT * FROM things WHERE kind = 'attachment' AND gone IS NULL").fetchall()
        return [r for r in rows if json.loads(r["needs"]).get(kind) == key]

    def update(self, owner: str, key: str, body: Words) -> Words:
        """New inputs in place."""
        with self._turn:
            row = self._row(owner, key)
            if row["kind"] == "attachment":
                raise RefusedError(400, "an attachment cannot be changed")
            text = json.dumps(body["inputs"], sort_keys=True)
            self._db.execute("UPDATE things SET inputs = ? WHERE seq = ?", (text, row["seq"]))
            return self._shown(self._row(owner, key))

    def delete(self, owner: str, key: str) -> Words:
        """Away with it: a node takes its attachments and ranks along, a volume in use is kept."""
        with self._turn:
            row = self._row(owner, key)
            now = self._now()
            if row["kind"] == "volume" and self._attached("volume", key):
                raise RefusedError(409, f"{key} is attached")
            gone = [row["seq"], *(r["seq"] for r in self._attached("node", key))]
            for seq in gone:
                self._db.execute("UPDATE things SET gone = ? WHERE seq = ?", (now, seq))
            self._db.execute(
                "UPDATE ranks SET state = 'lost', ended = ? WHERE node = ? AND ended IS NULL",
                (now, row["seq"]),
            )
            return {}

    def _row(self, owner: str, key: str, kind: str | None = None) -> sqlite3.Row:
        prefix, _, number = key.rpartition("-")
        row = self._db.execute(
            "SELECT * FROM things WHERE owner = ? AND seq = ? AND gone IS NULL",
            (owner, int(number) if number.isdecimal() else 0),
        ).fetchone()
        if row is None or PREFIX[row["kind"]] != prefix or kind not in (None, row["kind"]):
            raise RefusedError(404, f"{key} is not there")
        found: sqlite3.Row = row
        return found

    def _shown(self, row: sqlite3.Row) -> Words:
        state = row["state"]
        if row["kind"] == "node" and state == "ok":
            state = "ready" if self._now() - row["made"] >= self._boot else "provisioning"
        return {
            "id": f"{PREFIX[row['kind']]}-{row['seq']}",
            "kind": row["kind"],
            "name": row["name"],
            "token": row["token"],
            "inputs": json.loads(row["inputs"]),
            "state": state,
            "address": f"10.0.{row['seq'] // 250}.{row['seq'] % 250 + 1}",
        }

    # ---------------------------------------------------------------------------------------- ranks

    def ranks(self, owner: str, node: str) -> Words:
        """All attempts of a node, by their ids."""
        with self._turn:
            seq = self._row(owner, node, "node")["seq"]
            rows = self._db.execute("SELECT * FROM ranks WHERE node = ?", (seq,)).fetchall()
        return {r["attempt"]: _rank(r) for r in rows}

    def start(self, owner: str, node: str, attempt: str) -> Words:
        """An attempt begins, once."""
        with self._turn:
            seq = self._row(owner, node, "node")["seq"]
            self._db.execute(
                "INSERT OR IGNORE INTO ranks VALUES (?, ?, 'running', NULL, ?, NULL)",
                (seq, attempt, self._now()),
            )
            return _rank(self._attempt(seq, attempt))

    def stop(self, owner: str, node: str, attempt: str) -> Words:
        """An attempt ends; nothing for one that never began."""
        with self._turn:
            seq = self._row(owner, node, "node")["seq"]
            self._db.execute(
                "UPDATE ranks SET state = 'stopped', code = 143, ended = ?"
                " WHERE node = ? AND attempt = ? AND ended IS NULL",
                (self._now(), seq, attempt),
            )
            row = self._attempt(seq, attempt)
            return _rank(row) if row else {}

    def _attempt(self, seq: int, attempt: str) -> Any:
        return self._db.execute(
            "SELECT * FROM ranks WHERE node = ? AND attempt = ?", (seq, attempt)
        ).fetchone()


def _rank(row: Any) -> Words:
    return {key: row[key] for key in ("state", "code", "started", "ended")}
