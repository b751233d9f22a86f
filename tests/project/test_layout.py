"""Rules for imports that import-linter's contracts cannot express, also for imports inside functions."""

import functools
import re
from collections import defaultdict
from pathlib import Path

import grimp
import pytest

LONGEST = 20
"""Modules of the longest import chain, from one that no module imports down to `model.record`, which imports
none.
"""

MOST_ROOMS = 12
HOUSE = Path(__file__).parents[2] / "declarative"


@pytest.fixture(scope="module")
def imports():
    graph = grimp.build_graph("declarative", "providers", exclude_type_checking_imports=True)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def test_nothing_imports_itself_by_way_of_others(imports):
    """Whatever is imported by none of those that are left is on no circle."""
    left = dict(imports)
    while ends := [name for name, uses in left.items() if not uses & left.keys()]:
        for name in ends:
            del left[name]
    assert sorted(left) == []


def test_the_longest_chain_of_imports(imports):
    @functools.cache
    def chain(name):
        return (name, *max(map(chain, imports[name]), key=len, default=()))

    longest = max(map(chain, imports), key=len)
    assert len(longest) <= LONGEST, "\n".join(longest)


def test_the_house_has_few_rooms():
    rooms = sorted(path.name for path in HOUSE.iterdir() if (path / "__init__.py").exists())
    assert len(rooms) <= MOST_ROOMS, rooms


def test_no_two_classes_have_one_name():
    """A reader meets a class by its name, and seldom by its module."""
    homes = defaultdict(list)
    for path in sorted(HOUSE.rglob("*.py")):
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
            homes[name].append(str(path.relative_to(HOUSE)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
