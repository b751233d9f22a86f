"""The statements of which every step is made, built once: to build one takes four times as long as to run it.

Parameters of a WHERE begin with `its_`, so that they are no columns' names; values that are written are given
to `execute` by the names of their columns.
"""

from __future__ import annotations

from sqlalchemy import BindParameter, bindparam, delete, func, insert, not_, select, update

from declarative.store import tables as t

_ADDRESS: BindParameter[str] = bindparam("its_address")
_ADDRESSES: BindParameter[list[str]] = bindparam("its_addresses", expanding=True)
_ID: BindParameter[int] = bindparam("its_id")
_NAME: BindParameter[str] = bindparam("its_name")
_NODE: BindParameter[str] = bindparam("its_node")

_meta, _records, _needs, _blocks = t.meta.c, t.resources.c, t.needs.c, t.reserved_blocks.c
_generations, _journal, _holder = t.generations.c, t.operations.c, t.writer_lock.c

LOCK = select(t.writer_lock).with_for_update()
"""SQLite has taken its turn with BEGIN IMMEDIATE; other databases lock the row."""

META = select(_meta.lineage, _meta.serial)
LINEAGE = select(_meta.lineage)
COUNT_UP = update(t.meta).values(serial=_meta.serial + 1)

RECORD = select(t.resources).where(_records.address == _ADDRESS)
RECORDS = select(t.resources).where(_records.address.in_(_ADDRESSES))
RECORDED = select(_records.address).where(_records.address.in_(_ADDRESSES))
OWNER = select(_records.address).where(
    _records.backend == bindparam("its_backend"),
    _records.kind == bindparam("its_kind"),
    _records.external_id == bindparam("its_external_id"),
    _records.address != _ADDRESS,
)
"""Another record of the same thing of a backend."""
ADD_RECORD = insert(t.resources)
CHANGE_RECORD = update(t.resources).where(_records.address == _ADDRESS)
DROP_RECORD = delete(t.resources).where(_records.address == _ADDRESS)

_ATTACHED = select(_needs.needed).where(_needs.needed == _records.address).exists()
DETACHED = update(t.resources).where(
    _records.kind == "volume", _records.detached_since.is_(None), not_(_ATTACHED)
)
"""Volumes of which it is not known since when nothing has them attached, and nothing has."""
DETACHED_ONE = DETACHED.where(_records.address == _ADDRESS)

NEEDED = select(_needs.needed).where(_needs.address == _ADDRESS)
NEEDS = select(t.needs).where(_needs.address.in_(_ADDRESSES))
NEEDED_BY = select(_needs.address).where(_needs.needed == _ADDRESS)
ADD_NEEDS = insert(t.needs)
DROP_NEEDS = delete(t.needs).where(_needs.address == _ADDRESS)

RESERVATIONS_ON = select(_blocks.reservation).where(_blocks.node == _NODE)
HELD_BLOCKS = select(_blocks.node, _blocks.block).where(_blocks.reservation == _ADDRESS)
BLOCK_HOLDERS = select(_blocks.block, _blocks.reservation).where(
    _blocks.node == _NODE, _blocks.block.in_(bindparam("its_blocks", expanding=True))
)
ADD_BLOCKS = insert(t.reserved_blocks)

GENERATION = select(_generations.generation).where(_generations.address == _ADDRESS)
ADD_GENERATION = insert(t.generations)
CHANGE_GENERATION = update(t.generations).where(_generations.address == _ADDRESS)

_WHO = {
    "host": select(_holder.host).scalar_subquery(),
    "doing": select(_holder.doing).scalar_subquery(),
}
"""Who writes an entry, inside a writer's transaction: whoever has the lock."""

LAST_OPERATION = select(func.max(_journal.id))
OPEN_OPERATIONS = select(t.operations).where(_journal.address == _ADDRESS, _journal.ended_at.is_(None))
RESULT = select(_journal.result).where(_journal.id == _ID)
ADD_OPERATION = insert(t.operations).values(_WHO)
ADD_UNLOCKED_OPERATION = insert(t.operations)
"""An entry of one who does not hold the lock and says who it is."""
TAKE_UP_OPERATION = update(t.operations).where(_journal.id == _ID).values(_WHO)
CLOSE_OPERATION = update(t.operations).where(_journal.id == _ID, _journal.ended_at.is_(None))
SUPERSEDE_OPERATIONS = update(t.operations).where(_journal.address == _ADDRESS, _journal.ended_at.is_(None))

ADD_NODE_STATUS = insert(t.node_status)
CHANGE_NODE_STATUS = update(t.node_status).where(t.node_status.c.name == _NAME)
DROP_NODE_STATUS = delete(t.node_status).where(t.node_status.c.name == _NAME)
ADD_RANK_STATUS = insert(t.rank_status)
CHANGE_RANK_STATUS = update(t.rank_status).where(t.rank_status.c.name == _NAME)
DROP_RANK_STATUS = delete(t.rank_status).where(t.rank_status.c.name == _NAME)
