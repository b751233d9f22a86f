"""Attachments: which rank holds a volume, on which node. A volume has one holder at a time.

An attachment is a file in its volume's folder, and ends with the node that it was made for: one that was
deleted, or made anew under the same name, holds nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from declarative.inputs import BadDataError
from declarative.provider import PermanentError, PermanentKind
from declarative.state import Address
from providers.local.folders import ATTACHMENT, DamagedError, Folders, Meta, load, put, sync


class Attachments:
    """The attachments of all volumes of one owner."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders

    def read(self, address: Address) -> Meta | None:
        """The attachment of that address, if it holds."""
        meta = self.on(_volume_of(address))
        return meta if meta and meta.address == address else None

    def on(self, volume: str) -> Meta | None:
        """The attachment that holds a volume of ours, if one does."""
        owned = self._folders.read(Address("volume", volume))
        if owned is None or owned.owner != self._folders.owner:
            return None
        meta = self._stored(volume)
        if meta is None:
            return None
        node = self._folders.read(Address("node", meta.attachment.node))
        return meta if node and node.id == meta.bound["node"] else None

    def listed(self, things: Iterable[Meta]) -> list[Meta]:
        """All that hold, given all nodes and volumes."""
        things = list(things)
        nodes = {meta.id for meta in things if meta.address.kind == "node"}
        stored = (self._stored(meta.address.name) for meta in things if meta.address.kind == "volume")
        return [meta for meta in stored if meta and meta.bound["node"] in nodes]

    def _stored(self, volume: str) -> Meta | None:
        address = Address("volume", volume)
        path = f"{self._folders.at(address)}/{ATTACHMENT}"
        meta = load(address, path)
        try:
            whole = meta is None or ("node" in meta.bound and meta.attachment.volume == volume)
        except BadDataError:
            whole = False
        if not whole:
            raise DamagedError(address, path, "cannot be read: it is damaged")
        return meta

    def make(self, wanted: Meta) -> Meta:
        """Attach, or find what an earlier call with this token attached."""
        volume, node = wanted.attachment.volume, wanted.attachment.node
        if volume != _volume_of(wanted.address):
            summary = f"{wanted.address} cannot be about volume/{volume}"
            raise PermanentError(PermanentKind.INVALID, summary, about="volume")
        bound = {"node": self._folders.own(Address("node", node)).id}
        wanted = replace(wanted, bound=bound)
        self._folders.own(Address("volume", volume))
        with self._folders.locked(Address("volume", volume)):
            self._folders.own(Address("volume", volume))  # the lock may be one on what was deleted meanwhile
            have = self.on(volume)
            if have is None:
                put(self._folders.folder(Address("volume", volume)) / ATTACHMENT, wanted, new=False)
                return wanted
        if have.address != wanted.address:
            summary = f"volume/{volume} is held by {have.address}, on node/{have.attachment.node}"
            hint = "a volume has one holder at a time: wait for it to end, or stop it"
            raise PermanentError(PermanentKind.CONFLICT, summary, about=f"volume/{volume}", hint=hint)
        self._folders.check(have, wanted.token)
        return have

    def remove(self, address: Address, made: object = None) -> None:
        """Detach; nothing happens if the attachment is absent, or is another one than `made`."""
        volume = Address("volume", _volume_of(address))
        owned = self._folders.read(volume)
        if owned is None or owned.owner != self._folders.owner:
            return
        with self._folders.locked(volume):
            path = self._folders.folder(volume) / ATTACHMENT
            meta = self._stored(volume.name)
            if meta and meta.address == address and made in {None, meta.id}:
                path.unlink(missing_ok=True)
                sync(path.parent)


def _volume_of(address: Address) -> str:
    """`train-2.data-2` is about `data-2`."""
    rank, dot, volume = address.name.partition(".")
    if not rank or not dot:
        raise PermanentError(PermanentKind.INVALID, f"`{address}` is no attachment", about=str(address))
    return volume
