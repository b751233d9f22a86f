"""`./dev mutate [GUARD…]`: break the guards one place at a time, and see whether a test notices.

`tools/guards.toml` lists the guards: their files, functions and tests. All of it happens in copies of the
last commit, so nothing of this clone is changed. A first run of a guard's tests records which test reaches
which line (`tools/reached.py`). A mutant then runs the tests that reach its line, the quickest first, until
one fails; to save time, in a fork of a process that has collected them, unless the line runs while a module
is imported. A mutant that no test notices has survived, and so has one that no test reaches.
`tools/survivors.toml` explains those that change nothing anybody can see. The exit code is 1 if one survives
without an explanation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import marshal
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import use_mutation
from cosmic_ray.operators.boolean_replacer import (
    ReplaceAndWithOr,
    ReplaceFalseWithTrue,
    ReplaceOrWithAnd,
    ReplaceTrueWithFalse,
)
from cosmic_ray.operators.comparison_operator_replacement import (
    ReplaceComparisonOperator_Gt_GtE,
    ReplaceComparisonOperator_GtE_Gt,
    ReplaceComparisonOperator_Lt_LtE,
    ReplaceComparisonOperator_LtE_Lt,
)
from cosmic_ray.operators.exception_replacer import ExceptionReplacer
from cosmic_ray.operators.operator import Operator
from parso.python.tree import Name
from reached import ALL, HUNG, IMPORT, NUMBER, SERVES

HERE = Path(__file__).parent
REACHED = Path(".venv/reached")
"""In a copy: the folder of `tools/reached.py`."""
DECISIONS = {"comparison", "not_test", "and_test", "or_test"}
"""Expressions that are true or false, by parso's names."""

PATIENCE = 30.0
"""Seconds that a test of a mutant may take, beside SLOWER times what it took before. What takes longer
hangs, and that is noticed as well.
"""
SLOWER = 5
PYTEST = (".venv/bin/python", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "reached")
ALIKE = "--hypothesis-profile=ci"
"""The same examples for each mutant."""
ENVIRONMENT = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
"""With that variable, each run would compile all tests anew."""
BODIES = {"suite", "file_input", "if_stmt", "while_stmt", "for_stmt", "try_stmt", "with_stmt", "async_stmt"}
"""What statements stand in, by parso's names: statements, and conditions and the like of compound ones."""


class Decide(Operator):
    """A condition, or a returned decision, that always comes out one way: a guard is gone, or never opens."""

    value: str

    def _condition(self, node: Any) -> int | None:
        """The index, among the node's children, of what is decided there."""
        if node.type in {"if_stmt", "while_stmt"}:
            return 1  # an `elif` has its own place: see `mutation_positions`
        if node.type == "ternary" or (node.type == "test" and len(node.children) == 5):
            return 2
        if node.type in {"comp_if", "return_stmt"} and (
            node.type == "comp_if" or node.children[1].type in DECISIONS
        ):
            return 1
        return None

    def _places(self, node: Any) -> list[int]:
        first = self._condition(node)
        if first is None:
            return []
        if node.type != "if_stmt":
            return [first]
        words = {i: getattr(child, "value", "") for i, child in enumerate(node.children)}
        return [i + 1 for i, word in words.items() if word in {"if", "elif"}]

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Where a condition stands that is not a constant already."""
        for place in self._places(node):
            condition = node.children[place]
            if condition.get_code().strip() != self.value:
                yield condition.start_pos, condition.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The node with its `index`-th condition decided."""
        places = [i for i in self._places(node) if node.children[i].get_code().strip() != self.value]
        node.children[places[index]] = parso.parse(f" {self.value}")
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """None: the class is not one of the library's."""
        return ()


class Always(Decide):
    """Decide for yes."""

    value = "True"


class Never(Decide):
    """Decide for no."""

    value = "False"


class OtherException(ExceptionReplacer):
    """As the library's, also for `module.Error`."""

    def mutate(self, node: Any, index: int) -> Any:
        """The node with its `index`-th exception replaced by one that nothing raises."""
        name = self._name_nodes(node)[index]
        if name.type == "name":
            return super().mutate(node, index)
        first = name.get_first_leaf()
        name.children = [Name("CosmicRayTestingException", first.start_pos, first.prefix)]
        return node

    @staticmethod
    def _name_nodes(node: Any) -> Any:
        caught = node.children[1]
        if caught.type != "atom":
            return (caught,)
        listed = caught.children[1]
        return listed.children[::2] if listed.type == "testlist_comp" else (listed,)


OPERATORS: dict[str, type[Any]] = {
    "always": Always,
    "never": Never,
    "and -> or": ReplaceAndWithOr,
    "or -> and": ReplaceOrWithAnd,
    "True -> False": ReplaceTrueWithFalse,
    "False -> True": ReplaceFalseWithTrue,
    "< -> <=": ReplaceComparisonOperator_Lt_LtE,
    "<= -> <": ReplaceComparisonOperator_LtE_Lt,
    "> -> >=": ReplaceComparisonOperator_Gt_GtE,
    ">= -> >": ReplaceComparisonOperator_GtE_Gt,
    "other exception": OtherException,
}


@dataclass(frozen=True)
class Mutant:
    """One place of a guard and what is done to it. `outcome` is "survived", "unreached", "killed" or "hung",
    and `noticed` the test that failed. `lines` are those of its statement; none if that runs at the import.
    `names` lead to the outermost function round it, if there is one, and `whole` are the lines of its body.
    """

    guard: str
    file: str
    function: str
    line: int
    lines: range
    names: tuple[str, ...]
    whole: range
    text: str
    operator: str
    occurrence: int
    outcome: str = ""
    noticed: str = ""

    @property
    def key(self) -> str:
        """Names it in `tools/survivors.toml`; line numbers are no part of it, since they change."""
        return f"{self.file}:{self.function}: {self.operator}: {self.text}"


def mutants_of(guard: str, wanted: dict[str, Any]) -> Iterator[Mutant]:
    """All mutants of a guard's functions: of a whole file where `guards.toml` names none of its functions."""
    for file, functions in wanted["functions"].items():
        source = (HERE.parent / file).read_text().splitlines()
        module = get_ast_from_path(HERE.parent / file)
        named = set()
        counts: Counter[str] = Counter()
        for node in ast_nodes(module):
            scope, names, outer, whole = node, [], 0, range(0)
            while scope := scope.search_ancestor("funcdef", "classdef"):
                names.append(scope.name.value)
                if scope.type == "funcdef":
                    first = scope.children[-1].children[1]  # after the newline
                    outer, whole = len(names), range(first.start_pos[0], scope.end_pos[0] + 1)
            inside = not functions or not set(names).isdisjoint(functions)
            named |= set(names)
            for name, operator in OPERATORS.items():
                for start, _ in operator().mutation_positions(node):
                    if inside and names:
                        lines = _lines(module.get_leaf_for_position(start, include_prefixes=True))
                        yield Mutant(
                            guard=guard,
                            file=file,
                            function=".".join(reversed(names)),
                            line=start[0],
                            lines=lines,
                            names=tuple(reversed(names[outer - 1 :])),
                            whole=whole,
                            text=source[start[0] - 1].strip(),
                            operator=name,
                            occurrence=counts[name],
                        )
                    counts[name] += 1
        if missing := set(functions) - named:
            names = ", ".join(sorted(missing))
            sys.exit(f"tools/guards.toml: {file} has no {names}; write what it is called now")


def _lines(leaf: Any) -> range:
    """The lines of the statement that a leaf stands in, or of the condition of a compound one."""
    node = leaf
    while node.parent.type not in BODIES:
        node = node.parent
        if node.type in {"funcdef", "classdef", "decorated"}:
            return range(0)  # a default or a decorator
    body = leaf.search_ancestor("funcdef", "lambdef", "classdef")
    return range(0) if body.type == "classdef" else range(node.start_pos[0], node.end_pos[0] + 1)


@dataclass
class Reach:
    """What a guard's tests reach: (file, line) → numbers of tests, and the seconds of each, in that order."""

    lines: dict[tuple[str, int], set[int]]
    tests: list[tuple[str, float]]

    def of(self, mutant: Mutant, longest: float) -> tuple[list[tuple[str, float]], bool]:
        """The tests that may notice a mutant, the quickest first, and whether a fork can have it."""
        numbers = set().union(*(self.lines.get((mutant.file, line), ()) for line in mutant.lines))
        around = set().union(*(self.lines.get((mutant.file, line), ()) for line in mutant.whole))
        forks = bool(mutant.lines and mutant.whole) and IMPORT not in around
        if not forks or ALL in numbers:
            numbers = set(range(1, len(self.tests) + 1))
        found = sorted((self.tests[n - 1] for n in numbers), key=lambda test: test[1])
        return [test for test in found if test[1] <= longest], forks


def _enter(copies: Any) -> None:
    os.chdir(copies.get())
    _empty_tmp()


def _run_tests(tests: Sequence[str], seconds: float | None) -> tuple[int | None, str]:
    """The exit code and the output of these tests; None if they did not end in time."""
    with subprocess.Popen(
        [*PYTEST, ALIKE, *tests],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**ENVIRONMENT, "TMPDIR": str(_tmp())},
    ) as process:
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return None, ""
    _empty_tmp()
    return process.returncode, out


def _tmp() -> Path:
    """For the files of tests, which are in no repository."""
    return Path(f"{Path.cwd()}.tmp")


def _empty_tmp() -> None:
    shutil.rmtree(_tmp(), ignore_errors=True)
    _tmp().mkdir(mode=0o711, exist_ok=True)


def _run_chosen(chosen: Sequence[str], seconds: float | None) -> tuple[int | None, str]:
    (REACHED / "chosen").write_text(json.dumps(chosen))
    code, out = _run_tests([*{name.partition("::")[0]: None for name in chosen}], seconds)
    (REACHED / "chosen").unlink()
    assert code in {None, 0, 1, 2}, out  # 2: a module cannot be imported
    return code, out


def _record(files: Sequence[str], tests: Sequence[str]) -> Reach:
    """Run all tests of a guard, and see what they reach."""
    here = f"{Path.cwd()}/"
    (REACHED / "files").write_text("\n".join(here + file for file in files))
    (REACHED / "lines").write_text("")
    (REACHED / "now").write_bytes(NUMBER.pack(ALL))
    code, out = _run_tests(tests, None)
    (REACHED / "now").unlink()
    if code:
        raise RuntimeError(f"these fail without any mutant: {' '.join(tests)}\n{out}")
    lines: dict[tuple[str, int], set[int]] = {}
    for written in (REACHED / "lines").read_text().splitlines():
        number, line, file = written.split(" ", 2)
        lines.setdefault((file.removeprefix(here), int(line)), set()).add(int(number))
    return Reach(lines, json.loads((REACHED / "tests").read_text()))


class Server:
    """A pytest in this folder that has collected a guard's tests, and runs some of them in a fork."""

    def __init__(self, tests: Sequence[str]) -> None:
        asks, self._asks = os.pipe()
        self._answers, answers = os.pipe()
        with (REACHED / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*PYTEST, ALIKE, *tests],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**ENVIRONMENT, SERVES: f"{asks} {answers}", "TMPDIR": str(_tmp())},
                pass_fds=(asks, answers),
                start_new_session=True,
            )
        os.close(asks)
        os.close(answers)
        self._lines = os.fdopen(self._answers)
        if not self._lines.readline():
            raise RuntimeError((REACHED / "log").read_text())

    def run(self, tests: Sequence[tuple[str, float]]) -> tuple[int | None, str]:
        """The exit code, and the test that failed; None for a code if it did not end within its seconds."""
        (REACHED / "failed").write_text("")
        os.write(self._asks, f"{json.dumps(tests)}\n".encode())
        pid, code = int(self._lines.readline()), int(self._lines.readline())
        if code == HUNG:
            for group in (pid, self._process.pid):  # the commands that its tests have started belong to them
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
        _empty_tmp()
        return None if code == HUNG else code, (REACHED / "failed").read_text()

    def close(self) -> None:
        """End it."""
        os.close(self._asks)
        self._lines.close()
        self._process.wait()


_servers: dict[tuple[str, ...], Server] = {}
"""The server of this process, by its tests."""


def _served(tests: Sequence[str]) -> Server:
    if tuple(tests) not in _servers:
        _close_server()
        _servers[tuple(tests)] = Server(tests)
    return _servers[tuple(tests)]


def _close_server() -> None:
    while _servers:
        _servers.popitem()[1].close()


def _code_of(mutant: Mutant) -> bytes:
    """The mutant's function, for `reached`."""
    file = Path(mutant.file)
    code = compile(file.read_text(), str(file.absolute()), "exec", dont_inherit=True)
    for name in mutant.names:
        parts = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name]
        code = max((c for c in parts if c.co_firstlineno <= mutant.line), key=lambda c: c.co_firstlineno)
    return marshal.dumps((mutant.file.removesuffix(".py").replace("/", "."), mutant.names, code))


def _try(job: tuple[int, Mutant, Sequence[str], tuple[Sequence[tuple[str, float]], bool]]) -> Mutant:
    number, mutant, collected, (tests, forks) = job
    if not tests:
        return replace(mutant, outcome="unreached")
    server = _served(collected) if forks else None  # before there is a mutant
    limits = [(name, PATIENCE + SLOWER * seconds) for name, seconds in tests]
    with use_mutation(Path(mutant.file), OPERATORS[mutant.operator](), mutant.occurrence) as (_, mutated):
        assert mutated is not None, mutant
        os.utime(mutant.file, (number, number))  # no two have the same: Python goes by it
        if server is not None:
            (REACHED / "mutant").write_bytes(_code_of(mutant))
            code, noticed = server.run(limits)
            if code is None:
                _close_server()
            (REACHED / "mutant").unlink()
            forks = not (REACHED / "unpatched").exists()
            (REACHED / "unpatched").unlink(missing_ok=True)
        if not forks:
            code, out = _run_chosen([name for name, _ in tests], sum(limit for _, limit in limits))
            failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", out, re.MULTILINE)
            noticed = failed[1] if failed else ""
    outcome = {None: "hung", 0: "survived"}.get(code, "killed")
    return replace(mutant, outcome=outcome, noticed=noticed)


def _without_mutant(collected: Sequence[str], order: Sequence[str]) -> str:
    """The first of these tests that fails without a mutant."""
    return _served(collected).run([(test, 10.0**6) for test in order])[1]


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__)
    parser.add_argument("guards", nargs="*", metavar="GUARD", help="one of tools/guards.toml (default: all)")
    parser.add_argument("-k", default="", metavar="TEXT", help="those with TEXT in their function or line")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants a guard, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    again = "only those that survived by FILE, the output of an earlier run"
    parser.add_argument("--again", type=Path, metavar="FILE", help=again)
    less = "leave out tests that take longer than S seconds: it is quicker, and more mutants survive"
    parser.add_argument("--longest", type=float, default=math.inf, metavar="S", help=less)
    jobs = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=jobs, metavar="N", help="copies to work in side by side")
    parser.add_argument("--copies", type=Path, metavar="DIR", help="keep the copies there, for the next time")
    parser.add_argument("--list", action="store_true", help="count the mutants and run nothing")
    asked = parser.parse_args()
    guards = tomllib.loads((HERE / "guards.toml").read_text())
    if unknown := set(asked.guards) - set(guards):
        parser.error(f"no guard {', '.join(sorted(unknown))}; there are {', '.join(guards)}")
    explained = tomllib.loads((HERE / "survivors.toml").read_text())
    chosen: list[Mutant] = []
    for name in asked.guards or guards:
        all_of_it = [m for m in mutants_of(name, guards[name]) if asked.k in m.key]
        if asked.again:
            before = re.findall(
                r"^\S+ (?:survived|unreached) +\d+ (.*)  \[\]$", asked.again.read_text(), re.MULTILINE
            )
            all_of_it = [m for m in all_of_it if m.key in before]
        count = min(len(all_of_it), asked.sample or len(all_of_it))
        chosen += random.Random(asked.seed).sample(all_of_it, count)
        print(f"{name}: {count} of {len(all_of_it)} mutants")
    if asked.list:
        return 0
    with contextlib.ExitStack() as stack:
        folder = asked.copies or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711)  # a server of PostgreSQL runs as another user
        outcomes = _run(chosen, guards, folder.absolute(), asked.jobs, asked.longest)
    return _report(outcomes, explained)


def _copy(copy: Path) -> None:
    """A clone of the last commit with an environment of its own."""
    if copy.exists():
        subprocess.run(["git", "fetch", "-q", str(HERE.parent), "HEAD"], cwd=copy, check=True)
        subprocess.run(["git", "reset", "-q", "--hard", "FETCH_HEAD"], cwd=copy, check=True)
    else:
        subprocess.run(["git", "clone", "-q", str(HERE.parent), str(copy)], check=True)
    subprocess.run(["./dev", "setup"], cwd=copy, check=True)
    shutil.rmtree(copy / REACHED, ignore_errors=True)
    (copy / REACHED).mkdir()
    (packages,) = copy.glob(".venv/lib/python*/site-packages")
    shutil.copy(HERE / "reached.py", packages)
    (packages / "reached.pth").write_text("import reached\n")


def _run(
    chosen: list[Mutant], guards: dict[str, Any], folder: Path, jobs: int, longest: float
) -> list[Mutant]:
    copies: Any = multiprocessing.Queue()
    for number in range(jobs):
        _copy(folder / str(number))
        copies.put(folder / str(number))
    outcomes = []
    with multiprocessing.Pool(jobs, _enter, [copies]) as pool:
        for name in {m.guard: None for m in chosen}:
            reach = pool.apply(_record, ([*guards[name]["functions"]], guards[name]["tests"]))
            mine = [m for m in chosen if m.guard == name]
            tests = guards[name]["tests"]
            jobs_of = [(len(outcomes) + i + 1, m, tests, reach.of(m, longest)) for i, m in enumerate(mine)]
            tried = []
            for mutant in pool.imap_unordered(_try, jobs_of):
                tried.append(mutant)
                count = f"{len(tried)}/{len(mine)}"
                print(
                    f"{count} {mutant.outcome:9} {mutant.line:4} {mutant.key}  [{mutant.noticed}]", flush=True
                )
            failed = {m.noticed for m in tried} - {""}
            order = [test for test, _ in sorted(reach.tests, key=lambda test: test[1]) if test in failed]
            if order and (wrong := pool.apply(_without_mutant, (tests, order))):
                sys.exit(f"{wrong} fails without any mutant, if other tests do not run before it")
            outcomes += tried
    return outcomes


def _report(outcomes: list[Mutant], explained: dict[str, str]) -> int:
    survivors = sorted(
        (m for m in outcomes if m.outcome in {"survived", "unreached"}), key=lambda m: (m.file, m.line)
    )
    open_ones = [m for m in survivors if m.key not in explained]
    print(f"\n{'guard':14} mutants survived explained")
    for guard in {m.guard: None for m in outcomes}:
        mine = [m for m in survivors if m.guard == guard]
        count = sum(m.guard == guard for m in outcomes)
        print(f"{guard:14} {count:7} {len(mine):8} {sum(m.key in explained for m in mine):9}")
    share = 100 * len(survivors) / max(1, len(outcomes))
    print(
        f"{len(survivors)} of {len(outcomes)} survived ({share:.1f} %), {len(open_ones)} of them unexplained"
    )
    for mutant in open_ones:
        where = f"{mutant.file}:{mutant.line} in {mutant.function}"
        print(
            f"  {where}: {mutant.operator}: {mutant.text}{' (unreached)' * (mutant.outcome == 'unreached')}"
        )
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
