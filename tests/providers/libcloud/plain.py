# mypy: disable-error-code="override,misc,assignment,arg-type,no-untyped-call"
"""A driver of libcloud's that nobody has wired: machines and disks in memory, known by their names alone."""

from __future__ import annotations

import itertools
from typing import Any, cast

from libcloud.common.types import LibcloudError
from libcloud.compute.base import Node, NodeDriver, NodeLocation, NodeSize, StorageVolume
from libcloud.compute.types import NodeState, StorageVolumeState

NAME = "fleetform_plain"


class PlainDriver(NodeDriver):
    """All of its objects are of one cloud: `Cloud`."""

    type = NAME
    name = "Plain"

    def __init__(self, key: str, secret: str | None = None, project: str = "p") -> None:
        self.key, self.project = key, project

    def list_locations(self) -> list[Any]:
        return [NodeLocation("loc-1", "Here", "XX", self), NodeLocation("loc-2", "There", "XX", self)]

    def list_sizes(self, location: Any = None) -> list[Any]:
        return [
            NodeSize("small", "Small", 1024, 10, 0, 0.5, self, extra={"vcpus": 2}),
            NodeSize("odd", "Odd", 1024, 10, 0, 0.5, self),
        ]

    def list_nodes(self) -> list[Any]:
        return cast("list[Any]", Cloud.call("list_nodes", lambda: list(Cloud.nodes)))

    # An unexpected order.
    def create_node(self, image: Any, size: Any, location: Any, name: str, ex_userdata: str = "") -> Any:
        def make() -> Any:
            Cloud.asked.append(
                {"image": image.id, "size": size.id, "location": location.id, "data": ex_userdata}
            )
            made = Node(str(next(Cloud.ids)), name, NodeState.RUNNING, ["203.0.113.7"], ["10.0.0.7"], self)
            Cloud.nodes.append(made)
            return made

        return Cloud.call("create_node", make)

    def destroy_node(self, node: Any) -> bool:
        Cloud.nodes[:] = [n for n in Cloud.nodes if n.id != node.id]
        return True

    def list_volumes(self) -> list[Any]:
        return cast("list[Any]", Cloud.call("list_volumes", lambda: list(Cloud.volumes)))

    def create_volume(self, size: int, name: str, location: Any = None) -> Any:
        def make() -> Any:
            extra = {"holder": None, "size": size}
            made = StorageVolume(str(next(Cloud.ids)), name, size, self, StorageVolumeState.AVAILABLE, extra)
            Cloud.volumes.append(made)
            return made

        return Cloud.call("create_volume", make)

    def destroy_volume(self, volume: Any) -> bool:
        Cloud.volumes[:] = [v for v in Cloud.volumes if v.id != volume.id]
        return True

    def attach_volume(self, node: Any, volume: Any) -> bool:
        if volume.extra["holder"]:
            raise LibcloudError("it is taken")
        volume.extra["holder"] = node.id
        return True

    def detach_volume(self, volume: Any, ex_node: Any = None) -> bool:
        volume.extra["holder"] = None
        return True


class Things:
    """What there is. `lose` names methods whose next answer is lost, after they did what they do."""

    def __init__(self) -> None:
        self.ids = itertools.count(1)
        self.clear()

    def clear(self) -> None:
        self.nodes: list[Any] = []
        self.volumes: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        self.lose: list[str] = []

    def call(self, name: str, act: Any) -> Any:
        found = act()
        if name in self.lose:
            self.lose.remove(name)
            raise ConnectionResetError("the line is down")
        return found


Cloud = Things()
