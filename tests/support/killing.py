"""Kills `fleetform apply` at the worst moments, runs it again, and counts what exists.

A `Chain` is one project: it is applied and killed again and again until it is complete, then compared with
its backend. Commands are forked from this process, so that imports are done once.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from declarative import cli
from declarative.model.state import State
from declarative.store import StateError, Writer, open_store
from declarative.store.commit_queue import CommitQueue, QueuedWrite
from declarative.store.sql import Connection
from tests.providers.cloud.run import PLUG, RunningCloud
from tests.support.cli import clean_env, fleet, kill_ranks, lines, processes, task, until, volume

MADE = ("node", "volume", "attachment")
APPLY = ("apply", "--auto-approve", "--parallelism", "16")
DESTROY = ("destroy", *APPLY[1:])
NOTED_WITHIN = 20.0
DEFAULT = "sqlite:///.fleetform/state.db"

GROUPED = ("opened", "between", "commit", "during", "committed", "told", "called", "handed")

Act = Callable[[], None]


def die() -> None:
    """SIGKILL, now."""
    os.kill(os.getpid(), signal.SIGKILL)


SOON: Mapping[str, tuple[type, str]] = {"finish": (Writer, "finish_soon"), "_write": (CommitQueue, "leave")}
"""What does the same as a method of the writer, but does not wait until it is committed."""


def at(method: str, acts: Mapping[int, Act], *, after: bool) -> None:
    """Let calls of a method of the writer, by number, do something before or after them."""
    turn = threading.Lock()
    count = 0

    def calls(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: Any, **kwargs: Any) -> object:
            nonlocal count
            with turn:
                count += 1
                act = acts.get(count)
            if act and not after:
                act()
            found = real(*args, **kwargs)
            if act and after:
                act()
            return found

        return call

    for cls, name in ((Writer, method), *([SOON[method]] if method in SOON else [])):
        setattr(cls, name, calls(getattr(cls, name)))


def at_a_group(when: str, step: int) -> None:
    """Die round a group of writes: the first, from number `step` on, of several workers."""
    if when == "opened":
        at_call(Writer, "_begin", step, after=True)
    elif when == "handed":
        at_call(CommitQueue, "_free", step, after=True)
    elif when in ("committed", "told", "called"):
        after_a_group(when, step)
    else:
        in_a_group(when, step)


def at_call(cls: type, method: str, step: int, *, after: bool = False) -> None:
    """Die at call number `step` of a method."""
    real = getattr(cls, method)
    numbers = itertools.count(1)

    def call(*args: Any) -> Any:
        last = next(numbers) >= step
        if last and not after:
            die()
        found = real(*args)
        if last:
            die()
        return found

    setattr(cls, method, call)


def is_group(writes: list[QueuedWrite], count: int, step: int) -> bool:
    """Whether transaction number `count` is the one to die at: one of several writes, if one comes soon."""
    return count >= step and (len(writes) > 1 or count >= step + 40)


def in_a_group(when: str, step: int) -> None:
    """Die with the second write of a transaction, with its last one, or while it is committed."""
    real = CommitQueue._write
    numbers = itertools.count(1)

    def write(queue: CommitQueue, writes: list[QueuedWrite]) -> bool:
        if is_group(writes, next(numbers), step):
            marked = writes[1] if when == "between" and len(writes) > 1 else writes[-1]
            work = marked.work
            assert work is not None

            def dies(connection: Connection) -> object:
                outcome = work(connection)
                if when == "during":
                    threading.Thread(target=die, daemon=True).start()
                else:
                    die()
                return outcome

            marked.work = dies
        return real(queue, writes)

    setattr(CommitQueue, "_write", write)  # noqa: B010 (mypy refuses the assignment)


def after_a_group(when: str, step: int) -> None:
    """Die once a transaction is committed: before its threads know, when half of them do, or all."""
    real = CommitQueue._finish
    numbers = itertools.count(1)

    def finish(queue: CommitQueue, writes: list[QueuedWrite], error: BaseException | None) -> None:
        dies = error is None and is_group(writes, next(numbers), step)
        if dies and when == "committed":
            die()
        some = writes[: len(writes) // 2 + 1] if dies and when == "told" else writes
        real(queue, some, error)
        if dies:
            queue._free()
            die()

    setattr(CommitQueue, "_finish", finish)  # noqa: B010 (mypy refuses the assignment)


@dataclass(frozen=True)
class Kill:
    """How one apply is interrupted."""

    when: str
    step: int = 1
    seconds: float = 0.0
    signals: tuple[signal.Signals, ...] = ()

    def arm(self) -> None:
        """In the child, before the command."""
        if self.when == "time":
            return
        if self.when in GROUPED:
            at_a_group(self.when, self.step)
            return
        acts: dict[int, Act] = {self.step: die}
        if self.signals:
            acts = {self.step + i: _send(number) for i, number in enumerate(self.signals)}
        at("_write" if self.when == "write" else self.when, acts, after=self.when == "begin")


def _send(number: signal.Signals) -> Act:
    def act() -> None:
        os.kill(os.getpid(), number)
        time.sleep(0.05)  # for the main thread's handler; a signal that comes later is no harm

    return act


def _child(args: tuple[str, ...], kill: Kill | None) -> int:
    """The command's exit code. Nothing may come out of it: above are the caller's frames."""
    code = 99
    try:
        # Not those of a test runner, which keeps what is written to them.
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        sys.argv = ["fleetform", *args]
        if kill:
            kill.arm()
        cli.main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  # of whatever kind: it is in the output, and the code is no one's
        traceback.print_exc()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def fork(project: Path, *args: str, kill: Kill | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run a command in a child; its exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        os.chdir(project)
        os.environ.clear()
        os.environ.update(clean_env(**(env or {})))
        # A fork has no new start of Python, in which PYTHONPATH would count.
        sys.path += [folder for folder in os.environ.get("PYTHONPATH", "").split(":") if folder]
        with (project / "output").open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os._exit(_child(args, kill))
    if kill and kill.when == "time":
        time.sleep(kill.seconds)  # an instant like any other
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---------------------------------------------------------------------------------------- the project

ON_SKY: Mapping[str, Any] = {"backends": ["sky"], "resources": {"cpu": 8}, "blocks": 2}
"""Of a fleet there: the instance type is what it offers."""


@dataclass(frozen=True)
class Size:
    """How much of each there is."""

    volumes: int = 150
    nodes: int = 10
    tasks: int = 14

    @property
    def resources(self) -> int:
        """All that is recorded: a rank has a reservation and an attachment."""
        return self.volumes + self.nodes + 3 * self.tasks


def documents(project: Path, size: Size, cloud: RunningCloud | None) -> list[dict[str, Any]]:
    """Volumes, nodes of two blocks, and tasks of one rank with a volume each; ranks note that they began."""
    place: dict[str, Any] = {"backend": "sky"} if cloud else {}
    shape: Mapping[str, Any] = ON_SKY if cloud else {}
    every: list[dict[str, Any]] = [cloud.backend()] if cloud else []
    every.append(fleet(nodes=size.nodes, placement="any", **shape))
    every.append(volume("data", count=size.volumes, **place))
    noted = f"echo $FLEETFORM_TASK_NAME >> {project / 'runs'}; exec sleep 10000"

    def one(i: int) -> dict[str, Any]:
        return task(f"job{i}", noted, resources={"cpu": "1.."}, volumes=[f"data-{i}:/data"])

    return every + [one(i) for i in range(size.tasks)]


@dataclass
class Count:
    """What was seen of one chain, or of many."""

    kills: int = 0
    applies: int = 0
    lost: int = 0
    duplicates: int = 0
    torn: int = 0
    manual: int = 0
    left: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        """Both together."""
        for name in ("kills", "applies", "lost", "duplicates", "torn", "manual", "left"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.notes += other.notes

    @property
    def clean(self) -> bool:
        """Nothing of what must not be."""
        return not (self.lost or self.duplicates or self.torn or self.manual or self.left)


class Chain:
    """One project that is killed again and again."""

    def __init__(
        self,
        folder: Path,
        size: Size,
        cloud: RunningCloud | None = None,
        state: str = DEFAULT,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.project = folder
        self.cloud = cloud
        self.size = size
        self.state = state
        self.env = {**(PLUG if cloud else {}), "FLEETFORM_STATE": state, **(env or {})}
        self.count = Count()
        folder.mkdir(parents=True)
        text = "---\n".join(json.dumps(d) + "\n" for d in self.documents())
        (folder / "main.yaml").write_text(text)

    def documents(self) -> list[dict[str, Any]]:
        """The project."""
        return documents(self.project, self.size, self.cloud)

    def close(self) -> None:
        """End its ranks."""
        kill_ranks(self.project)

    def command(self, *args: str, kill: Kill | None = None) -> int:
        """Run a command to its end, or to its death."""
        return fork(self.project, *args, kill=kill, env=self.env)

    def output(self) -> str:
        """The output of the last command."""
        return (self.project / "output").read_text()

    def kill(
        self, kill: Kill, *, expect: tuple[int, ...] = (-signal.SIGKILL,), args: tuple[str, ...] = APPLY
    ) -> bool:
        """Run an interrupted apply; returns whether it was interrupted. Checks what is left of the state."""
        code = self.command(*args, kill=kill)
        self.count.applies += 1
        if code == 0:
            return False
        self.count.kills += 1
        if code not in expect:
            self.count.manual += 1
            self.count.notes.append(f"{kill} gave {code}: {self.output()[-2000:]}")
        self.check_whole()
        return True

    def check_whole(self) -> None:
        """A state that cannot be read or contradicts itself is a torn one."""
        try:
            with open_store(self.state, read_only=True, root=self.project) as store:
                wrong = store.check()
        except StateError as error:
            wrong = [str(error)]
        if wrong:
            self.count.torn += 1
            self.count.notes += wrong

    def finish(self) -> Count:
        """Apply once more, uncut, and count what is there."""
        self.count.applies += 1
        self._succeed(APPLY, ("plan", "--detailed-exitcode"), ("state", "check"))
        cloud = self.cloud
        if cloud:  # what dead commands have asked for comes as well
            until(lambda: not cloud.control()["busy"], "the cloud has done all that it was asked")
        self.check_whole()
        with open_store(self.state, read_only=True, root=self.project) as store:
            self._compare(store.read())
        return self.count

    def destroy(self, kill: Callable[[int], Kill], most: int) -> None:
        """Run interrupted destroys, then a complete one, and count what still exists."""
        for number in range(most):
            if not self.kill(kill(number), args=DESTROY):
                break
        self._succeed(DESTROY, ("state", "check"))
        left = self.left()
        self.count.left += len(left)
        self.count.notes += [f"left after destroy: {one}" for one in left]

    def left(self) -> list[str]:
        """What is there and runs."""
        ended = time.monotonic() + NOTED_WITHIN
        while (found := processes(self.project)) and time.monotonic() < ended:
            time.sleep(0.05)  # a supervisor takes a moment to end after its rank
        return [*self._there()[0], *(f"{name} {pid}" for pid, name in found.items())]

    def _succeed(self, *commands: tuple[str, ...]) -> None:
        """Each of them has to, without anybody's help."""
        for args in commands:
            code = self.command(*args)
            if code:
                self.count.manual += 1
                self.count.notes.append(f"{args[0]} gave {code}: {self.output()[-3000:]}")

    def _compare(self, state: State) -> None:
        recorded = Counter({str(a): 1 for a in state.records if a.kind in MADE})
        there, made, runs = self._there()
        named = {f"job{i}": 1 for i in range(self.size.tasks)}
        ranks = {name if self.cloud is None else name.rpartition("-")[0]: n for name, n in runs.items()}
        lost = sorted({*there} ^ {*recorded}) + sorted({*named} - {*ranks})
        short = self.size.resources - len(state.records)
        twice = [f"{a} x{n}" for a, n in {**there, **made, **ranks}.items() if n > 1]
        twice += [f"open: {i.op}:{i.address}" for i in state.intents]
        self.count.lost += len(lost) + max(0, short)
        self.count.duplicates += len(twice)
        if lost or short or twice:
            self.count.notes.append(f"lost {lost}, short of {short}, twice {twice}")

    def _there(self) -> tuple[Counter[str], Counter[str], Counter[str]]:
        """What the backend has, what it ever made, and how often each rank began."""
        if self.cloud:
            return self.cloud.things(), self.cloud.made(), self.cloud.runs()
        local = self.project / ".fleetform" / "local"
        found = [json.loads(p.read_text())["address"] for p in local.glob("*/*/*.json")]
        runs = Counter(lines(self.project / "runs"))
        limit = time.monotonic() + NOTED_WITHIN
        while len(runs) < self.size.tasks and time.monotonic() < limit:
            time.sleep(0.05)  # a rank runs a moment before it has noted that
            runs = Counter(lines(self.project / "runs"))
        return Counter(found), Counter(), runs


def steps(chain: Chain, kill: Callable[[int], Kill], most: int, **options: Any) -> Count:
    """Kill again and again, as `kill` says of each number, until nothing is left to kill or it was `most`."""
    for number in range(most):
        if not chain.kill(kill(number), **options):
            break
    return chain.finish()


def at_each_finish(_number: int) -> Kill:
    """One more thing is recorded with each kill, and up to sixteen calls are cut off."""
    return Kill("finish", step=2)


def at_each_begin(number: int) -> Kill:
    """Right after an intent, and before its call."""
    return Kill("begin", step=17 + number % 5)


def at_each_write(number: int) -> Kill:
    """Before any write: of recovery, of the journal, of a lease."""
    return Kill("write", step=1 + number * 7 % 61)


def at_each_group(number: int) -> Kill:
    """Round the end of a group of steps, in each way in turn."""
    return Kill(GROUPED[number % len(GROUPED)], step=1 + number * 5 % 23)


def at_any_time(chance: random.Random, longest: float) -> Callable[[int], Kill]:
    """Whenever."""
    return lambda _number: Kill("time", seconds=chance.uniform(0.02, longest))
