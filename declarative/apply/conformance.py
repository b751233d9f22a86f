"""Puts a cloud's driver to the test: nodes and volumes live and end while answers are lost and commands die.

Each step runs in a process of its own, as commands do. A disturbed one dies before one of its requests, or
gets no answer to one. The next step is a command that knows nothing of it. At the end of each life, exactly
one thing was made, and nothing is left.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any

from declarative.model.record import struct
from declarative.model.state import Address, Record, token
from declarative.provider import (
    Config,
    PermanentError,
    Provider,
    ProviderError,
    Thing,
    TransientError,
    TransientKind,
    load,
    optional,
)
from declarative.retry import Policy, call

PATIENCE = Policy(deadline=900.0)
"""As `apply` has it for a step, so that a slow cloud is no fault."""
AT_ONCE = 4
"""Creates of one thing at the same time."""
_KILLED = 86
"""The exit code of a process that was to die."""


class LawOutcome(StrEnum):
    """What became of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@struct(frozen=True, slots=True, kw_only=True)
class Check:
    """One law, and whether the driver keeps it."""

    name: str
    outcome: LawOutcome
    detail: str = ""
    seconds: float = 0.0


@struct(frozen=True, slots=True, kw_only=True)
class Trial:
    """What is to be tried. `node` and `volume` are their inputs, None for none; `larger` is the volume's size
    after it has grown. `lives` is how many disturbed lives each gets. `first` is the generation of the first
    thing, another one in each run: some clouds remember the tokens of things that are gone.
    """

    config: Config
    node: Mapping[str, Any] | None
    volume: Mapping[str, Any] | None = None
    larger: str | None = None
    lives: int = 20
    seed: int = 0
    first: int = 1


class BrokenLawError(Exception):
    """What the driver did wrong, in words."""


@struct(frozen=True, slots=True)
class Disturbance:
    """What goes wrong at a request, counted from 1: `before` it is sent, or before its answer is read. The
    process `dies`, or goes on with a lost connection.
    """

    request: int
    before: bool
    dies: bool


Work = Callable[[Provider], Any]


class Processes:
    """The processes of one trial. All have the same owner, and none knows what another one did."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.requests = 0
        """How many requests the last process sent and got an answer to."""

    def run(self, work: Work, disturbance: Disturbance | None = None, *, lineage: str | None = None) -> Any:
        """What `work` returns, as JSON has it; None if its process died as it was to.

        `BrokenLawError` if it failed in any other way.
        """
        config = replace(self._config, lineage=lineage or self._config.lineage)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(reading)
                with os.fdopen(writing, "w") as pipe:
                    json.dump(_answer(config, work, disturbance), pipe)
                code = 0
            finally:
                os._exit(code)  # whatever happens: an interrupt, too, must not go on as a second command
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == _KILLED:
            return None
        if code or not text:
            raise BrokenLawError(f"a process ended with the exit code {code}")
        answer = json.loads(text)
        self.requests = answer["requests"]
        if answer["error"]:
            raise BrokenLawError(answer["error"])
        return answer["value"]


def _answer(config: Config, work: Work, disturbance: Disturbance | None) -> dict[str, Any]:
    """What `work` returned or failed with, and its requests. The process may end here."""
    sent, answered = itertools.count(1), itertools.count(1)
    last = 0

    def disturb(request: int, *, before: bool) -> None:
        if disturbance is None or (request, before) != (disturbance.request, disturbance.before):
            return
        if disturbance.dies:
            os._exit(_KILLED)
        kind = TransientKind.NOT_SENT if before else TransientKind.AMBIGUOUS
        raise TransientError(kind, "the connection was lost")

    def note() -> None:
        nonlocal last
        last = next(answered)
        disturb(last, before=False)

    config = replace(config, fence=lambda: disturb(next(sent), before=True), answered=note)
    value, error = None, ""
    try:
        value = work(load(config.driver, config))
    except ProviderError as fault:
        error = fault.summary + (f" ({fault.hint})" if fault.hint else "")
    except BrokenLawError as broken:
        error = str(broken)
    except Exception as fault:  # noqa: BLE001  # a driver may raise anything: that is what is to be found
        error = f"{type(fault).__name__}: {fault}"
    if disturbance is not None and disturbance.dies and not error:
        os._exit(_KILLED)  # after all requests, before anything is recorded
    return {"value": value, "error": error, "requests": last}


class Lives:
    """The things of one trial, made and ended by many commands."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._processes = Processes(trial.config)
        self._chance = random.Random(trial.seed)  # noqa: S311  # a draw that can be repeated
        self._name = f"trial-{trial.config.lineage[:8]}"
        self._generations = itertools.count(trial.first)

    def record(self, kind: str) -> Record:
        """A thing to be made, with a token of its own."""
        inputs = self._trial.node if kind == "node" else self._trial.volume
        return Record(
            address=Address(kind, self._name),
            backend=self._trial.config.backend,
            inputs=inputs or {},
            generation=next(self._generations),
        )

    def _token(self, record: Record) -> str:
        lineage, zone = self._trial.config.lineage, record.inputs.get("zone")
        return token(lineage, record.address, record.generation, zone)

    def create(
        self, record: Record, needs: Sequence[Record] = (), disturbance: Disturbance | None = None
    ) -> Record | None:
        """Make it, or find what an earlier try made; None if the process died."""
        by_address = {need.address: need for need in needs}

        def work(provider: Provider) -> dict[str, Any]:
            make = partial(provider.create, record.address, self._token(record), record.inputs, by_address)
            return {**call(make, policy=PATIENCE)}

        outputs = self._processes.run(work, disturbance)
        return None if outputs is None else replace(record, outputs=outputs)

    def delete(self, record: Record, disturbance: Disturbance | None = None) -> None:
        self._processes.run(lambda p: call(partial(p.delete, record), policy=PATIENCE), disturbance)

    def check_alone(self, *records: Record) -> None:
        """`BrokenLawError` unless exactly these things are there, each once, and found by their tokens."""

        def work(provider: Provider) -> list[str]:
            things = call(provider.inventory, policy=PATIENCE)
            for record in records:
                find = partial(provider.find, record.address, self._token(record))
                thing = call(find, policy=PATIENCE)
                if thing is None or thing.outputs.get("id") != record.outputs.get("id"):
                    raise BrokenLawError(f"{_named(record)} is not found by its token")
            return sorted(map(_named, things))

        listed, expected = self._processes.run(work), sorted(map(_named, records))
        if listed != expected:
            summary = (
                f"there is {', '.join(listed) or 'nothing'} instead of {', '.join(expected) or 'nothing'}"
            )
            raise BrokenLawError(summary)

        def others(provider: Provider) -> int | None:
            if not isinstance(provider, optional.FindsOthers):
                return None
            addresses = [Address(kind, self._name) for kind in ("node", "volume")]
            return len(call(partial(provider.others, addresses), policy=PATIENCE))

        # The listing of an owner may leave out the second of two. Others see both.
        count = self._processes.run(others, lineage=f"other-{self._trial.config.lineage}"[:36])
        attachments = sum(record.address.kind == "attachment" for record in records)
        if count is not None and count != len(records) - attachments:
            raise BrokenLawError(f"there are {count} things instead of {len(records)}")

    # --------------------------------------------------------------------------------------- laws

    def once(self, kind: str) -> str:
        """One thing is made by a create that is repeated, and by some at once; it ends once, too."""
        record = self._alive(self.record(kind))
        for _ in range(2):
            if self.create(record) != record:
                raise BrokenLawError("a second create with its token has other outputs")

        def at_once(provider: Provider) -> list[str]:
            make = partial(provider.create, record.address, self._token(record), record.inputs, {})
            with ThreadPoolExecutor(AT_ONCE) as pool:
                tries = [pool.submit(call, make, policy=PATIENCE) for _ in range(AT_ONCE)]
            return [str(t.result().get("id")) for t in tries]

        ids = set(self._processes.run(at_once))
        if ids != {record.outputs.get("id")}:
            raise BrokenLawError(f"{AT_ONCE} creates at once made {', '.join(sorted(ids))}")
        self.check_alone(record)
        self.delete(record)
        self.delete(record)
        self.check_alone()
        new = self._alive(self.record(kind))
        self.delete(record)  # of what was there before
        self.check_alone(new)
        self.delete(new)
        self.check_alone()
        return "created again, at once, and after it was deleted: one each time"

    def disturbed(self, kind: str) -> str:
        """Kills and lost answers at the requests of creates and deletes: nothing is lost or made twice."""
        record = self._alive(self.record(kind))
        creating = self._processes.requests
        self.delete(record)
        deleting = self._processes.requests
        kills = 0
        for number in range(self._trial.lives):
            record = self.record(kind)
            for disturbance in self._drawn(creating):
                kills += 1
                self.create(record, disturbance=disturbance)
            try:
                record = self._alive(record)
                self.check_alone(record)
                for disturbance in self._drawn(deleting):
                    kills += 1
                    self.delete(record, disturbance)
                self.delete(record)
                self.check_alone()
            except BrokenLawError as error:
                raise BrokenLawError(f"life {number + 1}: {error}") from None
        return f"{self._trial.lives} lives, {kills} disturbances"

    def _drawn(self, requests: int) -> Iterator[Disturbance]:
        """One to three of them, one after the other."""
        for _ in range(self._chance.randint(1, 3)):
            request = self._chance.randint(1, max(1, requests))
            before, dies = self._chance.random() < 0.3, self._chance.random() < 0.6
            yield Disturbance(request, before=before, dies=dies)

    def ended_elsewhere(self, kind: str) -> str:
        """What somebody deleted is not believed to be there, and is deleted without a fault."""
        record = self._alive(self.record(kind))
        self.delete(record)

        def recalled(provider: Provider) -> bool:
            if not isinstance(provider, optional.Recalls):
                return False
            return isinstance(
                call(partial(provider.recall, [record]), policy=PATIENCE).get(record.address), Thing
            )

        if self._processes.run(recalled):
            raise BrokenLawError(f"{_named(record)} was deleted, and is recalled")
        self.delete(record)
        self.check_alone()
        return "a deleted one is not recalled"

    def grown(self) -> str | None:
        """A volume that grows keeps its id; None if this cloud's cannot grow."""
        record = self._alive(self.record("volume"))
        inputs = {**record.inputs, "size": self._trial.larger}

        def grow(provider: Provider) -> str | None:
            try:
                outputs = call(partial(provider.update, record, self._token(record), inputs), policy=PATIENCE)
            except PermanentError as error:
                if error.about == "size":
                    return None
                raise
            return str(outputs.get("id"))

        made = self._processes.run(grow)
        if made is not None:
            if made != record.outputs.get("id"):
                raise BrokenLawError(f"{_named(record)} became {made}")
            self._processes.run(grow)
        self.check_alone(record)
        self.delete(record)
        self.check_alone()
        return None if made is None else f"{record.inputs.get('size')} became {self._trial.larger}, twice"

    def attached(self) -> str:
        """A volume is attached once, is not deleted while it is, and outlives its node."""
        node, volume = self._alive(self.record("node")), self._alive(self.record("volume"))
        task, rank = self._name, f"{self._name}-0"
        names = {"task": task, "rank": rank, "node": task, "volume": task}
        held = replace(
            self.record("attachment"),
            address=Address("attachment", f"{rank}.{task}"),
            inputs={**names, "path": "/data", "variable": "DATA"},
        )
        for _ in range(2):
            if self.create(held, [node, volume]) is None:
                raise BrokenLawError("it was not attached")

        def delete_held(provider: Provider) -> bool:
            try:
                provider.delete(volume)
            except ProviderError:
                return False
            return True

        if self._processes.run(delete_held):
            raise BrokenLawError("an attached volume was deleted")
        self.delete(node)
        self.check_alone(volume)
        self.delete(volume)
        self.check_alone()
        return "attached twice, refused to be deleted, and there after its node ended"

    def clear(self) -> str:
        """Delete all that this trial made, whatever happened."""

        def work(provider: Provider) -> int:
            things = sorted(call(provider.inventory, policy=PATIENCE), key=lambda t: t.address.kind)
            for thing in things:  # attachments first
                record = Record(
                    address=thing.address,
                    backend=self._trial.config.backend,
                    inputs=(self._trial.node if thing.address.kind == "node" else thing.inputs) or {},
                    outputs=thing.outputs,
                )
                call(partial(provider.delete, record), policy=PATIENCE)
            return len(things)

        count = self._processes.run(work)
        self.check_alone()
        return f"{count} things deleted" if count else "nothing was there"

    def _alive(self, record: Record) -> Record:
        made = self.create(record)
        assert made is not None  # nothing disturbs it
        return made


def _named(thing: Thing | Record) -> str:
    return f"{thing.address} ({thing.outputs.get('id')})"


def checks(trial: Trial) -> Iterator[Check]:
    """Each law in turn. What is there is deleted after a broken one, and at the end."""
    lives = Lives(trial)
    laws: list[tuple[str, Callable[[], str | None]]] = []
    for kind in ("node", "volume"):
        if trial.node if kind == "node" else trial.volume:
            laws += [
                (f"a {kind} is made once", partial(lives.once, kind)),
                (f"a {kind} that somebody deleted is gone", partial(lives.ended_elsewhere, kind)),
                (f"no {kind} is lost or made twice", partial(lives.disturbed, kind)),
            ]
    if trial.volume and trial.larger:
        laws.append(("a volume grows in place", lives.grown))
    if trial.volume and trial.node:
        laws.append(("a volume is on a node", lives.attached))
    # A run before this one may have been killed.
    for name, law in [("nothing is there", lives.clear), *laws, ("nothing is left", lives.clear)]:
        started = time.monotonic()
        try:
            detail = law()
            outcome = LawOutcome.PASSED if detail else LawOutcome.SKIPPED
        except BrokenLawError as error:
            outcome, detail = LawOutcome.FAILED, str(error)
            with suppress(BrokenLawError):
                lives.clear()
        detail = detail or "the cloud has none"
        yield Check(name=name, outcome=outcome, detail=detail, seconds=time.monotonic() - started)
