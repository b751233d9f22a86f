"""Records are structs that the rest of the code, and the type checker, can treat as dataclasses."""

import copy
import dataclasses
import pickle
import re
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from declarative.model.record import set_field, struct

ROOT = Path(__file__).parents[2]


@struct(frozen=True, slots=True, kw_only=True)
class Node:
    """A record with all that most of them have."""

    KIND: ClassVar[str] = "node"

    fleet: str = dataclasses.field(metadata={"first": True})
    price: float | None = None
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    blocks: int

    @property
    def is_free(self) -> bool:
        """A method of its own."""
        return self.price == 0


def node(**other: Any) -> Node:
    """A node of fleet `pool` with 8 blocks."""
    return Node(**{"fleet": "pool", "blocks": 8, **other})


def test_it_is_a_struct_with_the_fields_of_a_dataclass():
    assert isinstance(node(), msgspec.Struct)
    assert dataclasses.is_dataclass(Node)
    fleet, price, tags, blocks = dataclasses.fields(Node)
    assert [f.name for f in (fleet, price, tags, blocks)] == ["fleet", "price", "tags", "blocks"]
    assert (fleet.default, price.default, blocks.default) == (dataclasses.MISSING, None, dataclasses.MISSING)
    assert tags.default_factory is dict
    assert dict(fleet.metadata) == {"first": True}
    assert (Node.KIND, Node.__doc__, node(price=0).is_free) == (
        "node",
        "A record with all that most of them have.",
        True,
    )


def test_each_has_its_own_default():
    first, second = node(), node()
    first.tags["team"] = "a"
    assert second.tags == {}


def test_it_is_compared_and_shown_by_class_and_fields():
    @struct(frozen=True, slots=True, kw_only=True)
    class Alike:
        fleet: str
        price: float | None = None
        tags: dict[str, str] = dataclasses.field(default_factory=dict)
        blocks: int

    assert node() == node()
    assert node() != node(blocks=4)
    other: object = Alike(fleet="pool", blocks=8)
    assert node() != other
    assert repr(node()) == "Node(fleet='pool', price=None, tags={}, blocks=8)"


def test_what_dataclasses_does_with_it():
    assert dataclasses.replace(node(), blocks=4) == node(blocks=4)
    assert dataclasses.asdict(node(tags={"a": "b"})) == {
        "fleet": "pool",
        "price": None,
        "tags": {"a": "b"},
        "blocks": 8,
    }
    assert copy.deepcopy(node()) == pickle.loads(pickle.dumps(node())) == node()


def test_it_is_frozen_but_for_who_makes_it():
    made = node()
    with pytest.raises(AttributeError):
        made.blocks = 4  # type: ignore[misc]
    set_field(made, "blocks", 4)
    assert made == node(blocks=4)
    with pytest.raises(TypeError, match="required argument 'blocks'"):
        Node(fleet="pool")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="nonsense"):
        node(nonsense=1)
    with pytest.raises(TypeError):
        Node("pool", blocks=8)  # type: ignore[call-arg]


@struct(frozen=True, slots=True)
class Login:
    """What structs lack: fields that are not shown, compared or filled."""

    user: str
    password: str = dataclasses.field(repr=False)
    seen: float = dataclasses.field(default=0.0, compare=False)
    cache: dict[str, str] = dataclasses.field(default_factory=dict, init=False, hash=False)


def test_what_structs_lack_is_made_by_dataclasses():
    login = Login("ann", "hunter2")
    assert not isinstance(login, msgspec.Struct)
    assert "hunter2" not in repr(login)
    assert login == Login("ann", "hunter2", 1.0)
    set_field(login, "seen", 2.0)
    assert login.seen == 2.0


OF_DATACLASSES = {
    "declarative/model/inputs.py",
    "declarative/model/record.py",
    "providers/local/files.py",
    "providers/ownership.py",
    "providers/slurm/snapshot.py",
    "providers/ssh/claims.py",
}
"""Modules with classes that have a `__dict__`, or a base of their own, and with those bases."""


def test_all_other_records_are_made_here():
    """Each one that is not makes every command start later."""
    direct = re.compile(
        r"^from dataclasses import .*\bdataclass\b|^@dataclasses\.dataclass|dataclasses\.dataclass\(",
        re.MULTILINE,
    )
    files = [path for name in ("declarative", "providers") for path in (ROOT / name).rglob("*.py")]
    assert {str(p.relative_to(ROOT)) for p in files if direct.search(p.read_text())} == OF_DATACLASSES


def test_a_record_cannot_be_the_base_of_another():
    with pytest.raises(AssertionError, match="make Host and its base by `dataclasses` itself"):

        @struct(frozen=True, slots=True, kw_only=True)
        class Host(Node):
            pass
