"""What import-linter's contracts cannot say of the imports, those inside of functions included."""

import functools

import grimp
import pytest

LONGEST = 28
"""Modules, from one that nobody imports down to one that imports none of ours. The goal is 20."""


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
