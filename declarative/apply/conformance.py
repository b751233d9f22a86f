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
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import field, replace
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
ROUNDS = 3
"""How often many write on one thing at once."""
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
    after it has grown. `several` says, by kind, how many there are at the same time while a listing is read.
    `lives` is how many disturbed lives each gets. `count`, where somebody can, counts without the driver what
    there is of each kind. `first` is the generation of the first thing, another one in each run: some clouds
    remember the tokens of things that are gone.
    """

    config: Config
    node: Mapping[str, Any] | None
    volume: Mapping[str, Any] | None = None
    larger: str | None = None
    several: Mapping[str, int] = field(default_factory=lambda: {"volume": 5})
    lives: int = 20
    seed: int = 0
    count: Callable[[], Mapping[str, int]] | None = None
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


@struct(frozen=True, slots=True)
class Meanwhile:
    """What another command does while this one is at a request: once its answer is there."""

    request: int
    work: Work


class Processes:
    """The processes of one trial. All have the same owner, and none knows what another one did."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.requests = 0
        """How many requests the last process sent and got an answer to."""

    def run(
        self,
        work: Work,
        disturbance: Disturbance | None = None,
        *,
        lineage: str | None = None,
        meanwhile: Meanwhile | None = None,
    ) -> Any:
        """What `work` returns, as JSON has it; None if its process died as it was to.

        `BrokenLawError` if it failed in any other way.
        """
        config = replace(self._config, lineage=lineage or self._config.lineage)
        answer = self.apart(lambda die: _answer(config, work, disturbance, meanwhile, die))
        if answer is None:
            return None
        self.requests = answer["requests"]
        if answer["error"]:
            raise BrokenLawError(answer["error"])
        return answer["value"]

    def apart(self, command: Callable[[Callable[[], object]], dict[str, Any]]) -> dict[str, Any] | None:
        """What a command answers in a process of its own; None if it died. It is given how to die."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(reading)
                with os.fdopen(writing, "w") as pipe:
                    json.dump(command(partial(os._exit, _KILLED)), pipe)
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
        answer: dict[str, Any] = json.loads(text)
        return answer


def _answer(
    config: Config,
    work: Work,
    disturbance: Disturbance | None,
    meanwhile: Meanwhile | None,
    die: Callable[[], object],
) -> dict[str, Any]:
    """What `work` returned or failed with, and its requests. The process may end here."""
    plain, turn = config, threading.Lock()
    last = 0
    to_come = disturbance

    def disturb(request: int, *, before: bool) -> None:
        """The fence is asked twice before a request, and one may be refused: so answers are counted."""
        nonlocal to_come
        with turn:
            due = to_come
            if due is None or (request, not before) < (due.request, not due.before):
                return
            if not due.dies:
                to_come = None
        if due.dies:
            die()
        kind = TransientKind.NOT_SENT if before else TransientKind.AMBIGUOUS
        raise TransientError(kind, "the connection was lost")

    def note() -> None:
        nonlocal last
        with turn:
            last += 1
            number = last
        if meanwhile is not None and number == meanwhile.request:
            meanwhile.work(load(plain.driver, plain))
        disturb(number, before=False)

    config = replace(config, fence=lambda: disturb(last + 1, before=True), answered=note)
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
        die()  # after all requests, before anything is recorded
    return {"value": value, "error": error, "requests": last}


class Lives:
    """The things of one trial, made and ended by many commands."""

    def __init__(self, trial: Trial, processes: Processes) -> None:
        self._trial = trial
        self._processes = processes
        self._chance = random.Random(trial.seed)  # noqa: S311  # a draw that can be repeated
        self._name = f"trial-{trial.config.lineage[:8]}"
        self._generations = itertools.count(trial.first)

    def record(self, kind: str, name: str = "") -> Record:
        """A thing to be made, with a token of its own."""
        inputs = self._trial.node if kind == "node" else self._trial.volume
        return Record(
            address=Address(kind, name or self._name),
            backend=self._trial.config.backend,
            inputs=inputs or {},
            generation=next(self._generations),
        )

    def hold(self, node: Record, volume: Record) -> Record:
        """An attachment to be made."""
        task, rank = self._name, f"{self._name}-0"
        names = {"task": task, "rank": rank, "node": node.address.name, "volume": volume.address.name}
        return replace(
            self.record("attachment", f"{rank}.{volume.address.name}"),
            inputs={**names, "path": "/data", "variable": "DATA"},
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
        """`BrokenLawError` unless exactly these things are there, each once, and found by their tokens. Some
        clouds keep nothing that an attachment is found by: it is counted alone.
        """
        things = [record for record in records if record.address.kind != "attachment"]

        def work(provider: Provider) -> list[str]:
            for record in things:
                find = partial(provider.find, record.address, self._token(record))
                thing = call(find, policy=PATIENCE)
                if thing is None or thing.outputs.get("id") != record.outputs.get("id"):
                    raise BrokenLawError(f"{_named(record)} is not found by its token")
            listed = call(provider.inventory, policy=PATIENCE)
            return sorted(_named(thing) for thing in listed if thing.address.kind != "attachment")

        listed, expected = self._processes.run(work), sorted(map(_named, things))
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
        here = [record for record in things if record.address.name == self._name]
        if count is not None and count != len(here):
            raise BrokenLawError(f"there are {count} things instead of {len(here)}")
        if self._trial.count is not None:
            kinds = Counter(record.address.kind for record in records)
            counted = {kind: n for kind, n in self._trial.count().items() if n}
            if counted != kinds:
                raise BrokenLawError(f"there are {counted} by count instead of {dict(kinds)}")

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
        """Kills and lost answers at each request of creates and deletes: nothing is lost or made twice."""
        held = kind == "attachment"
        needs = [self._alive(self.record(need)) for need in ("node", "volume")] if held else []
        record = self._alive(self._next(kind, needs), needs)
        creating = self._processes.requests
        self.delete(record)
        deleting = self._processes.requests
        kills = 0
        for number in range(self._trial.lives):
            record = self._next(kind, needs)
            for disturbance in self._drawn(creating, number):
                kills += 1
                self.create(record, needs, disturbance)
            try:
                record = self._alive(record, needs)
                self.check_alone(*needs, record)
                for disturbance in self._drawn(deleting, number):
                    kills += 1
                    self.delete(record, disturbance)
                self.delete(record)
                self.check_alone(*needs)
            except BrokenLawError as error:
                raise BrokenLawError(f"life {number + 1}: {error}") from None
        for need in needs:
            self.delete(need)
        self.check_alone()
        return f"{self._trial.lives} lives, {kills} disturbances"

    def _next(self, kind: str, needs: Sequence[Record]) -> Record:
        return self.hold(*needs) if needs else self.record(kind)

    def _drawn(self, requests: int, number: int) -> Iterator[Disturbance]:
        """One to three, one after the other: the first at each request in turn, the others anywhere."""
        for nth in range(self._chance.randint(1, 3)):
            drawn = self._chance.randint(1, max(1, requests))
            request = drawn if nth else number % max(1, requests) + 1
            before, dies = self._chance.random() < 0.3, self._chance.random() < 0.6
            yield Disturbance(request, before=before, dies=dies)

    def listed(self, kind: str) -> str:
        """A listing has what is there all the time, though things come and go while its pages are read."""
        numbers = itertools.count()
        made = [self._alive(self._nth(kind, numbers)) for _ in range(self._trial.several[kind])]

        def ids(provider: Provider) -> list[str]:
            return [str(thing.outputs.get("id")) for thing in call(provider.inventory, policy=PATIENCE)]

        self._processes.run(ids)
        requests = self._processes.requests
        for request, first in itertools.product(range(1, requests + 1), (True, False)):
            going, coming = made.pop(0 if first else -1), self._nth(kind, numbers)

            def change(provider: Provider, going: Record = going, coming: Record = coming) -> None:
                call(partial(provider.delete, going), policy=PATIENCE)
                made_of = partial(provider.create, coming.address, self._token(coming), coming.inputs, {})
                call(made_of, policy=PATIENCE)

            listed = self._processes.run(ids, meanwhile=Meanwhile(request, change))
            missing = [_named(record) for record in made if record.outputs.get("id") not in listed]
            if missing:
                raise BrokenLawError(f"{', '.join(missing)} is not listed: another went at request {request}")
            made.append(self._alive(coming))
        for record in made:
            self.delete(record)
        self.check_alone()
        return f"{requests} requests, with a change at each"

    def _nth(self, kind: str, numbers: Iterator[int]) -> Record:
        return self.record(kind, f"{self._name}-{next(numbers)}")

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
        held = self.hold(node, volume)
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

    def written_at_once(self) -> str:
        """Attachments and tags are written on one node, and on one volume, at once: all of it stays."""
        numbers = itertools.count()
        node = self._alive(self.record("node"))
        volumes = [self._alive(self._nth("volume", numbers)) for _ in range(AT_ONCE - 1)]
        for number in range(ROUNDS):
            held = [self.hold(node, volume) for volume in volumes]
            write = partial(self._write_at_once, held, (node, *volumes), {"round": f"r{number}"})
            outputs, inputs = self._processes.run(write)
            held = [replace(record, outputs=o) for record, o in zip(held, outputs, strict=True)]
            node, *volumes = (replace(r, inputs=i) for r, i in zip((node, *volumes), inputs, strict=True))
            self._processes.run(partial(_check_written, (node, *volumes), held))
            for record in held:
                self.delete(record)
        for record in (node, *volumes):
            self.delete(record)
        self.check_alone()
        return f"{ROUNDS} times {len(volumes)} attachments and tags at once"

    def _write_at_once(
        self, held: Sequence[Record], things: Sequence[Record], tags: dict[str, str], provider: Provider
    ) -> tuple[list[Any], list[Any]]:
        """The outputs of the attachments, and the inputs that the others have then: some refuse tags."""
        needs = {thing.address: thing for thing in things}
        start = threading.Barrier(len(held) + len(things))

        def attach(record: Record) -> dict[str, Any]:
            start.wait()
            make = partial(provider.create, record.address, self._token(record), record.inputs, needs)
            return {**call(make, policy=PATIENCE)}

        def tag(record: Record) -> dict[str, Any]:
            inputs = {**record.inputs, "tags": tags}
            start.wait()
            try:
                call(partial(provider.update, record, self._token(record), inputs), policy=PATIENCE)
            except PermanentError:
                return {**record.inputs}
            return inputs

        with ThreadPoolExecutor(len(held) + len(things)) as pool:
            attached = [pool.submit(attach, record) for record in held]
            tagged = [pool.submit(tag, thing) for thing in things]
        return [one.result() for one in attached], [one.result() for one in tagged]

    def clear(self) -> str:
        """Delete all that this trial made, whatever happened."""
        known = {"node": self._trial.node, "volume": self._trial.volume}  # some clouds keep no inputs

        def work(provider: Provider) -> int:
            things = sorted(call(provider.inventory, policy=PATIENCE), key=lambda t: t.address.kind)
            for thing in things:  # attachments first
                record = Record(
                    address=thing.address,
                    backend=self._trial.config.backend,
                    inputs=known.get(thing.address.kind) or thing.inputs,
                    outputs=thing.outputs,
                )
                call(partial(provider.delete, record), policy=PATIENCE)
            return len(things)

        count = self._processes.run(work)
        self.check_alone()
        return f"{count} things deleted" if count else "nothing was there"

    def _alive(self, record: Record, needs: Sequence[Record] = ()) -> Record:
        made = self.create(record, needs)
        assert made is not None  # nothing disturbs it
        return made


def _check_written(things: Sequence[Record], held: Sequence[Record], provider: Provider) -> None:
    """`BrokenLawError` if what was written is not listed. A cloud may keep no tags, and no attachments."""
    listed = {thing.address: thing for thing in call(provider.inventory, policy=PATIENCE)}
    missing = [_named(record) for record in held if record.address not in listed]
    if 0 < len(missing) < len(held):
        raise BrokenLawError(f"{', '.join(missing)} was written at the same time as others, and is lost")
    for record in things:
        found = listed.get(record.address)
        if found is None:
            raise BrokenLawError(f"{_named(record)} is not listed once others wrote on it")
        tags = [dict(inputs.get("tags") or {}) for inputs in (found.inputs, record.inputs)]
        if found.actual or (found.known and tags[0] != tags[1]):
            differs = dict(found.actual) or f"the tags {tags[0]}"
            raise BrokenLawError(f"{_named(record)} has {differs} once others wrote on it")


def _named(thing: Thing | Record) -> str:
    return f"{thing.address} ({thing.outputs.get('id')})"


def checks(trial: Trial, processes: Processes | None = None) -> Iterator[Check]:
    """Each law in turn. What is there is deleted after a broken one, and at the end."""
    lives = Lives(trial, processes or Processes(trial.config))
    laws: list[tuple[str, Callable[[], str | None]]] = []
    for kind in ("node", "volume"):
        if trial.node if kind == "node" else trial.volume:
            laws += [
                (f"a {kind} is made once", partial(lives.once, kind)),
                (f"a {kind} that somebody deleted is gone", partial(lives.ended_elsewhere, kind)),
                (f"no {kind} is lost or made twice", partial(lives.disturbed, kind)),
            ]
            if trial.several.get(kind):
                laws.append((f"each {kind} is listed while others come and go", partial(lives.listed, kind)))
    if trial.volume and trial.larger:
        laws.append(("a volume grows in place", lives.grown))
    if trial.volume and trial.node:
        laws += [
            ("a volume is on a node", lives.attached),
            ("no attachment is lost or made twice", partial(lives.disturbed, "attachment")),
            ("what is written at the same time stays", lives.written_at_once),
        ]
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
