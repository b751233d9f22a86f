"""`logs`: the output of many ranks, in bounded memory, continued after a host was silent."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace
from typing import Any

import pytest

from declarative.cli import logs
from declarative.cli.logs import LONGEST, Follower, LogSource, Printer, begin, dump
from declarative.model.state import Address, Record, State
from declarative.model.status import RankState, RankStatus
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from declarative.provider.optional import LogEnd
from declarative.retry import Policy, call
from tests.support.agents import commands_of


class Counted(io.RawIOBase):
    """Counts what it is given, and keeps the largest piece."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.largest = 0
        self.begin = b""

    def write(self, data: Any) -> int:
        self.total += len(data)
        self.largest = max(self.largest, len(data))
        self.begin = (self.begin + bytes(data))[:20]
        return len(data)


def printed(*pieces: tuple[int, bytes], prefixed: bool = True) -> bytes:
    out = io.BytesIO()
    printer = Printer(out, prefixed=prefixed)
    for rank, data in pieces:
        printer.add(rank, data)
    for rank in sorted({rank for rank, _ in pieces}):
        printer.end(rank)
    return out.getvalue()


def test_lines_of_ranks_are_not_torn():
    """Whatever the pieces: a line is printed when its end has come."""
    found = printed((0, b"a\nb"), (1, b"x"), (0, b"c\n\nd"), (1, b"y\n"))
    assert found == b"0 | a\n0 | bc\n0 | \n1 | xy\n0 | d\n"


def test_one_rank_is_passed_on_as_it_is():
    """But its last line has an end, for the sake of what follows on the screen."""
    assert printed((0, b"50%\r"), (0, b"100%"), prefixed=False) == b"50%\r100%\n"
    assert printed((0, b"a\n\n"), prefixed=False) == b"a\n\n"


@pytest.mark.parametrize(("prefixed", "ranks"), [(False, ("", "")), (True, ("0 | ", "1 | "))])
def test_only_lines_that_come_while_somebody_looks_have_a_time(prefixed, ranks):
    """Lines that were there before have none: nobody knows it."""
    out = io.BytesIO()
    time = "2026-01-31T12:00:00.250Z"
    printer = Printer(out, prefixed=prefixed, stamp=lambda: time)
    printer.add(0, b"before\nhalf a ")
    printer.caught_up(0)
    printer.add(0, b"line\n")
    printer.add(1, b"other\n")
    printer.caught_up(1)
    printer.add(1, b"last")
    printer.end(1)
    none = "-".ljust(24)
    assert out.getvalue().decode().splitlines() == [
        f"{none} {ranks[0]}before",
        f"{time} {ranks[0]}half a line",
        f"{none} {ranks[1]}other",
        f"{time} {ranks[1]}last",
    ]


def test_a_line_that_is_too_long_comes_in_pieces_under_one_prefix():
    long = b"x" * (LONGEST + 1)
    assert printed((0, long), (0, b"end\nmore\n")) == b"0 | " + long + b"end\n0 | more\n"


def test_another_rank_breaks_a_long_line_and_not_itself():
    long = b"x" * (LONGEST + 1)
    assert printed((0, long), (1, b"y\n"), (0, b"z")) == b"0 | " + long + b"\n1 | y\n0 | z\n"


def test_thirty_megabytes_without_a_newline_are_never_held():
    out = Counted()
    printer = Printer(out, prefixed=True)
    piece = b"x" * logs.PIECE
    held = 0
    for _ in range(30 * 1024 * 1024 // len(piece)):
        printer.add(0, piece)
        held = max(held, printer.held())
    printer.end(0)
    assert held <= LONGEST
    assert out.largest <= LONGEST + logs.PIECE
    assert (out.begin[:5], out.total) == (b"0 | x", 30 * 1024 * 1024 + len("0 | \n"))


# ------------------------------------------------------------------------------------------- reading


class Host:
    """Logs of ranks, with faults to order."""

    def __init__(self, **logs: bytes) -> None:
        self.logs = {name.replace("_", "-") + ".1": text for name, text in logs.items()}
        self.ended = set(self.logs)
        self.quiet = dict.fromkeys(self.logs, 0.0)
        self.faults: list[Exception] = []
        self.most = 0

    def get(self, _name: str | None) -> Host:
        return self

    def read_log(self, _node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
        if self.faults:
            raise self.faults.pop(0)
        data = self.logs[attempt][offset : offset + limit]
        self.most = max(self.most, len(data))
        return data

    def poll(self, _node: Record, attempts: list[str]) -> dict[str, RankStatus]:
        done, going = RankStatus(state=RankState.SUCCEEDED), RankStatus(state=RankState.RUNNING)
        return {a: done if a in self.ended else going for a in attempts}

    def log_ends(self, _node: Record, attempts: list[str]) -> dict[str, LogEnd]:
        return {a: LogEnd(size=len(self.logs[a]), quiet=self.quiet[a]) for a in attempts if a in self.logs}


def rank(number: int, generation: int = 1) -> Record:
    inputs = {"task": "job", "rank": number, "nodes": 99, "commands": ["true"]}
    return Record(address=Address("rank", f"job-{number}"), backend="x", inputs=inputs, generation=generation)


def source(host: Host, number: int = 0, generation: int = 1) -> LogSource:
    node = Record(address=Address("node", f"n-{number}"), backend="x", inputs={})
    return LogSource(rank(number, generation), node, host)  # type: ignore[arg-type]


def dumped(host: Host, count: int = 1, **options: Any) -> bytes:
    out = io.BytesIO()
    given = {"tail": None, "since": None, "keep": False, **options}
    sources, faults = begin([source(host, n) for n in range(count)], **given)
    assert faults + dump(sources, Printer(out, prefixed=count > 1)) == []
    return out.getvalue()


def test_ranks_come_by_rank_and_in_pieces():
    """More ranks than are read at once."""
    count = logs.AT_ONCE + 5
    host = Host(**{f"job_{n}": b"%d\n" % n * 100_000 for n in range(count)})
    wanted = b"".join(b"%d | %d\n" % (n, n) * 100_000 for n in range(count))
    assert dumped(host, count) == wanted
    assert host.most <= logs.PIECE


@pytest.mark.parametrize(("quick", "reads"), [(60.0, 14), (-1.0, 160)])
def test_a_long_log_takes_few_reads(quick, reads, monkeypatch):
    """Each costs its host a process. From a host that answers slowly, a piece stays small."""
    monkeypatch.setattr(logs, "QUICK", quick)
    sizes: list[int] = []

    class Counted(Host):
        def read_log(self, node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
            sizes.append(limit)
            return super().read_log(node, attempt, offset, limit)

    text = b"0123456789abcde\n" * (160 * logs.PIECE // 16)
    assert dumped(Counted(job_0=text)) == text
    assert len(sizes) <= reads + 1
    assert max(sizes) == (logs.LARGEST if quick > 0 else logs.PIECE)


def test_one_rank_that_cannot_be_read_hides_no_other():
    class Half(Host):
        def read_log(self, node: Record, attempt: str, offset: int, limit: int = 65536) -> bytes:
            if attempt == "job-0.1":
                raise PermanentError(PermanentKind.NOT_FOUND, "it is gone", hint="look for it")
            return super().read_log(node, attempt, offset, limit)

    out = io.BytesIO()
    host = Half(job_0=b"", job_1=b"here\n")
    faults = dump([source(host, 0), source(host, 1)], Printer(out, prefixed=True))
    assert out.getvalue() == b"1 | here\n"
    assert [(f.code, f.hint) for f in faults] == [("backend", "look for it")]
    assert "rank/job-0 on node/n-0 cannot be read: it is gone" in faults[0].summary


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("lines", [0, 1, 2, 5, 6])
def test_tail(end, lines, monkeypatch):
    """Also where lines are longer than a piece, and whether the last one has an end or not."""
    monkeypatch.setattr(logs, "PIECE", 7)
    text = b"\n".join([b"one", b"", b"three" * 10, b"4", b"five"]) + end
    wanted = b"".join(line + b"\n" for line in (text.splitlines()[-lines:] if lines else []))
    assert dumped(Host(job_0=text), tail=lines) == wanted


def test_since_leaves_out_the_quiet_ones():
    host = Host(job_0=b"old\n", job_1=b"a\nb\n")
    host.quiet["job-0.1"] = 601.0
    assert dumped(host, 2, since=600) == b"1 | a\n1 | b\n"
    assert dumped(host, 2, since=600, tail=1) == b"1 | b\n"
    kept, _ = begin([source(host, 0)], tail=None, since=600, keep=True)
    assert kept[0].offset == 4


# ----------------------------------------------------------------------------------------- following


def followed(host: Host, records: list[Record], change: Any = None, **more: Any) -> tuple[bytes, list[Any]]:
    """What `-f` prints; `change` is called at each look at the state."""
    out = io.BytesIO()

    def look() -> tuple[list[Record], State]:
        if change:
            change(out.getvalue())
        return records, State()

    def at(record: Record, _state: State) -> LogSource:
        return source(host, int(record.inputs["rank"]), record.generation)

    follower = Follower(look, at, Printer(out, prefixed=more.get("prefixed", False)))
    faults = follower.follow([at(record, State()) for record in records])
    return out.getvalue(), faults


def test_following_goes_on_after_faults_without_a_gap_or_a_repeat(monkeypatch, capsys):
    """And says so once, however often it is tried."""
    monkeypatch.setattr(logs, "LONGEST_WAIT", 0.01)
    monkeypatch.setattr(logs, "PIECE", 4)
    host = Host(job_0=b"0123456789\n")
    lost = TransientError(TransientKind.AMBIGUOUS, "the cable is cut")
    host.ended = set()

    def change(seen: bytes) -> None:
        if len(seen) == 11 and not host.faults and not host.logs["job-0.1"].endswith(b"again\n"):
            host.faults += [lost, lost, lost]
            host.logs["job-0.1"] += b"again\n"
            host.ended = {"job-0.1"}

    text, faults = followed(host, [rank(0)], change)
    assert (text, faults) == (b"0123456789\nagain\n", [])
    said = capsys.readouterr().err
    assert said.count("the cable is cut; it is tried again until its host answers") == 1
    assert said.count("its host answers again") == 1


def test_a_host_that_stays_silent_is_given_up_where_the_rank_has_ended(monkeypatch):
    monkeypatch.setattr(logs, "LONGEST_WAIT", 0.01)
    monkeypatch.setattr(logs, "GIVE_UP", 0.1)

    class Silent(Host):
        def read_log(self, *_: Any, **__: Any) -> bytes:
            raise TransientError(TransientKind.NOT_SENT, "nobody answers", away=True)

    out = io.BytesIO()
    ended = State(ranks={"job-0": RankStatus(state=RankState.SUCCEEDED)})
    follower = Follower(lambda: ([rank(0)], ended), lambda *_: None, Printer(out, prefixed=False))
    assert ["nobody answers" in f.summary for f in follower.follow([source(Silent())])] == [True]


def test_following_goes_on_with_the_next_attempt(capsys):
    """Of a rank that was started anew while another ran."""
    host = Host(job_0=b"first\n", job_1=b"other\n")
    host.logs["job-0.2"] = b"second\n"
    host.ended = {"job-0.1"}
    records = [rank(0), rank(1)]

    def change(seen: bytes) -> None:
        if b"first" in seen:
            records[0] = rank(0, 2)
        if b"second" in seen:
            host.ended |= {"job-0.2", "job-1.1"}

    text, faults = followed(host, records, change, prefixed=True)
    assert sorted(text.splitlines()) == [b"0 | first", b"0 | second", b"1 | other"]
    assert faults == []
    assert "rank/job-0: attempt 2" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------- retrying


def test_a_machine_that_is_away_is_not_asked_for_minutes(monkeypatch):
    """After other transient faults it is asked; a clock that counts the waits shows how long."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: setattr(clock, "now", clock.now + seconds))

    def took(seconds: float, away: bool) -> float:
        clock.now = 0.0

        def fail() -> None:
            clock.now += seconds
            raise TransientError(TransientKind.NOT_SENT, "no", away=away)

        with pytest.raises(TransientError):
            call(fail, policy=Policy())
        return float(clock.now)

    assert 30 <= took(15.0, away=True) < 46
    assert 10 <= took(0.1, away=True) < 45
    assert 200 <= took(15.0, away=False) < 346  # no wait that would end beyond the deadline is begun


# ---------------------------------------------------------------------------------------- a hostile rank


def shown(*pieces: tuple[int, bytes], **more: Any) -> bytes:
    out = io.BytesIO()
    printer = Printer(out, **more)
    for rank, data in pieces:
        printer.add(rank, data)
    for rank in sorted({rank for rank, _ in pieces}):
        printer.end(rank)
    return out.getvalue()


def cut(rank: int, data: bytes) -> list[tuple[int, bytes]]:
    """Byte by byte: no place to cut at may matter."""
    return [(rank, data[i : i + 1]) for i in range(len(data))]


EVIL = b"50%\r1 | forged\x1b[2J\xc2\x9b1m\xe2\x80\xaex\r\n\r\rlast"


def test_a_rank_cannot_forge_the_line_of_another():
    """Whatever ends a line or goes back to its start, the rank's own prefix comes after it."""
    for pieces in ([(0, EVIL)], cut(0, EVIL)):
        for terminal in (True, False):
            found = shown(*pieces, prefixed=True, terminal=terminal)
            assert b"\r" not in found
            assert all(line.startswith(b"0 | ") for line in found.splitlines())
    assert shown((0, EVIL), prefixed=True, raw=True).count(b"\r") == 4


def test_on_a_terminal_the_output_of_a_rank_obeys_to_nothing():
    for prefixed in (True, False):
        for pieces in ([(0, EVIL)], cut(0, EVIL)):
            found = shown(*pieces, prefixed=prefixed, terminal=True).decode()
            assert not [c for c in found if not c.isprintable() and c != "\n"]
            assert "␛[2J\\u009b1m\\u202ex" in found
    assert shown((0, EVIL), prefixed=False, raw=True, terminal=True) == EVIL + b"\n"
    assert shown((0, "é\t☃\n".encode()), prefixed=False, terminal=True).decode() == "é\t☃\n"


def test_bytes_stay_what_they_are_off_a_terminal():
    every = bytes(range(256)) + b"\n"
    assert shown((0, every), prefixed=False) == every


def test_the_output_of_a_rank_commands_no_ci_agent():
    evil = (
        b"a ##vso[task.prependpath]/x\n \t::set-env name=A::b\n\r::stop-commands::x\n##[set-env name=A;]b\n"
    )
    for pieces in ([(0, evil)], cut(0, evil)):
        for more in ({"prefixed": True}, {"prefixed": False}, {"prefixed": False, "terminal": True}):
            assert commands_of(shown(*pieces, **more).decode()) == []
    assert len(commands_of(shown((0, evil), prefixed=False, raw=True).decode())) == 4


def test_output_that_went_with_its_node_is_missed():
    """A rank that printed nothing does not count."""
    host = Host(job_0=b"", job_1=b"here\n")
    faults = logs.gone([source(host, 0), source(host, 2)])
    assert [(f.code, f.summary) for f in faults] == [
        ("gone", "the output of rank/job-2 is gone: node/n-2 does not have it")
    ]
