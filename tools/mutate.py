"""`./dev mutate [GUARD…]`: break the guards one place at a time, and see whether a test notices.

`tools/guards.toml` lists the guards: their files, functions and tests. Each mutant runs the guard's tests in
a copy of the last commit, so nothing of this clone is changed. A mutant that no test notices has survived.
`tools/survivors.toml` explains those that change nothing anybody can see. The exit code is 1 if one survives
without an explanation.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
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
from cosmic_ray.testing import run_tests
from cosmic_ray.work_item import TestOutcome

HERE = Path(__file__).parent
DECISIONS = {"comparison", "not_test", "and_test", "or_test"}
"""Expressions that are true or false, by parso's names."""

SECONDS = 300
"""For the tests of one mutant: one that makes them hang counts as noticed."""


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
    "other exception": ExceptionReplacer,
}


@dataclass(frozen=True)
class Mutant:
    """One place of a guard and what is done to it. `outcome` is "survived", "killed" or "incompetent"."""

    guard: str
    file: str
    function: str
    line: int
    text: str
    operator: str
    occurrence: int
    tests: tuple[str, ...]
    outcome: str = ""

    @property
    def key(self) -> str:
        """Names it in `tools/survivors.toml`; line numbers are no part of it, since they change."""
        return f"{self.file}:{self.function}: {self.operator}: {self.text}"


def mutants_of(guard: str, wanted: dict[str, Any]) -> Iterator[Mutant]:
    """All mutants of a guard's functions: of a whole file where `guards.toml` names none of its functions."""
    for file, functions in wanted["functions"].items():
        source = (HERE.parent / file).read_text().splitlines()
        named = set()
        counts: Counter[str] = Counter()
        for node in ast_nodes(get_ast_from_path(HERE.parent / file)):
            scope, names = node, []
            while scope := scope.search_ancestor("funcdef", "classdef"):
                names.append(scope.name.value)
            inside = not functions or not set(names).isdisjoint(functions)
            named |= set(names)
            for name, operator in OPERATORS.items():
                for (line, _), _ in operator().mutation_positions(node):
                    if inside and names:
                        function = ".".join(reversed(names))
                        text = source[line - 1].strip()
                        yield Mutant(
                            guard, file, function, line, text, name, counts[name], tuple(wanted["tests"])
                        )
                    counts[name] += 1
        if missing := set(functions) - named:
            names = ", ".join(sorted(missing))
            sys.exit(f"tools/guards.toml: {file} has no {names}; write what it is called now")


def _enter(copies: Any) -> None:
    os.chdir(copies.get())


def _try(mutant: Mutant) -> Mutant:
    command = f".venv/bin/python -m pytest -x -q -p no:cacheprovider {shlex.join(mutant.tests)}"
    with use_mutation(Path(mutant.file), OPERATORS[mutant.operator](), mutant.occurrence) as (_, mutated):
        assert mutated is not None, mutant
        outcome, _ = run_tests(command, SECONDS)
    return replace(mutant, outcome=TestOutcome(outcome).value)


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__)
    parser.add_argument("guards", nargs="*", metavar="GUARD", help="one of tools/guards.toml (default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants a guard, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    jobs = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=jobs, metavar="N", help="copies to work in side by side")
    parser.add_argument("--list", action="store_true", help="count the mutants and run nothing")
    asked = parser.parse_args()
    guards = tomllib.loads((HERE / "guards.toml").read_text())
    if unknown := set(asked.guards) - set(guards):
        parser.error(f"no guard {', '.join(sorted(unknown))}; there are {', '.join(guards)}")
    explained = tomllib.loads((HERE / "survivors.toml").read_text())
    chosen: list[Mutant] = []
    for name in asked.guards or guards:
        all_of_it = list(mutants_of(name, guards[name]))
        count = min(len(all_of_it), asked.sample or len(all_of_it))
        chosen += random.Random(asked.seed).sample(all_of_it, count)
        print(f"{name}: {count} of {len(all_of_it)} mutants")
    if asked.list:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        outcomes = _run(chosen, Path(folder), asked.jobs)
    return _report(outcomes, explained)


def _run(chosen: list[Mutant], folder: Path, jobs: int) -> list[Mutant]:
    copies: Any = multiprocessing.Queue()
    for number in range(jobs):
        copy = folder / str(number)
        subprocess.run(["git", "clone", "-q", str(HERE.parent), str(copy)], check=True)
        subprocess.run(["./dev", "setup"], cwd=copy, check=True)
        copies.put(copy)
    outcomes = []
    with multiprocessing.Pool(jobs, _enter, [copies]) as pool:
        for tests in {m.tests: None for m in chosen}:
            command = [".venv/bin/python", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
            if subprocess.run(command, cwd=folder / "0", capture_output=True, check=False).returncode:
                sys.exit(f"these fail without any mutant: {' '.join(tests)}")
        for mutant in pool.imap_unordered(_try, chosen):
            outcomes.append(mutant)
            count = f"{len(outcomes)}/{len(chosen)}"
            print(f"{count} {mutant.outcome:11} {mutant.line:4} {mutant.key}", flush=True)
    return outcomes


def _report(outcomes: list[Mutant], explained: dict[str, str]) -> int:
    survivors = sorted((m for m in outcomes if m.outcome == "survived"), key=lambda m: (m.file, m.line))
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
        print(f"  {mutant.file}:{mutant.line} in {mutant.function}: {mutant.operator}: {mutant.text}")
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
