"""The `volume` document: disks that outlive nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, ClassVar

from declarative.model.record import struct
from declarative.model.schema import (
    BadValueError,
    Doc,
    InPlace,
    Is,
)
from declarative.model.spec.values import MAX_COUNT, IdleDuration, Name, Size, Tags


@struct(frozen=True, slots=True, kw_only=True)
class Volume:
    """A disk that outlives nodes; `count: 4` declares `<name>-0` … `<name>-3`."""

    name: Annotated[Name, Doc("The volume's name.")]
    count: Annotated[
        int | None, Is(minimum=1, maximum=MAX_COUNT), Doc("How many volumes: `<name>-0`, `<name>-1`, ….")
    ] = None
    size: Annotated[Size | None, InPlace(), Doc("`500GB`; can grow in place, never shrink.")] = None
    backend: Annotated[Name | None, Doc("The volume's backend; default: the only one declared.")] = None
    region: Annotated[str | None, Doc("The backend's region.")] = None
    availability_zone: Annotated[str | None, Doc("The region's zone.")] = None
    tags: Annotated[Tags, InPlace(), Doc("Tags on the volume.")] = field(default_factory=Tags)
    prevent_destroy: Annotated[
        bool | None,
        InPlace(),
        Doc(
            "A plan that would destroy or replace it is an error; default: true, unless there is an "
            "`auto_cleanup_duration`."
        ),
    ] = None
    volume_id: Annotated[
        str | None,
        Doc("An existing volume of a cloud to adopt; it is never deleted, nor formatted with data."),
    ] = None
    volume_type: Annotated[str | None, Doc("A cloud's type of disk, as `gp3`; default: the driver's.")] = None
    host: Annotated[
        str | None,
        Doc(
            "The host with the disk (`backend: ssh`), as in a fleet's `ssh_config.hosts`; default: "
            "the host of the rank that mounts it first."
        ),
    ] = None
    auto_cleanup_duration: Annotated[
        IdleDuration | None,
        InPlace(),
        Doc(
            "The volume is made for the first task that mounts it, and deleted by the first `apply` "
            "after it was attached to nothing for so long; default: made at once, and kept."
        ),
    ] = None

    DEFAULTED: ClassVar[tuple[str, ...]] = ("name",)
    FOREIGN: ClassVar[Mapping[str, str]] = {
        "claim_name": "Kubernetes claims have no counterpart; use `volume_id` on a supported backend",
        "storage_class_name": "use `volume_type`",
        "access_modes": "a volume is attached to one node at a time; remove it",
        "read_only": "remove it; volumes are attached for reading and writing",
    }

    ELSEWHERE: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("capacity", "storage", "size_gb", "disk_size"), "size"),
        **dict.fromkeys(("zone", "availability_zones"), "availability_zone"),
        **dict.fromkeys(("replicas", "nodes"), "count"),
        **dict.fromkeys(("labels", "metadata"), "tags"),
        **dict.fromkeys(("mount_path", "path"), "remove it; a task says where: `volumes: ['<name>:/path']`"),
    }

    def __post_init__(self) -> None:
        if self.size is None and self.volume_id is None:
            raise BadValueError("missing-field", "`size` is missing", "add `size: 100GB`")
        if self.volume_id is not None and self.count is not None:
            hint = "leave `count` out, and write a document for each volume"
            raise BadValueError("bad-value", "`volume_id` is one volume, and `count` makes several", hint)
        if self.prevent_destroy and self.cleanup is not None and self.volume_id is None:
            raise BadValueError(
                "bad-value",
                "`auto_cleanup_duration` deletes the volume, and `prevent_destroy: true` forbids it",
                "remove one of the two",
                ("auto_cleanup_duration",),
                at_key=True,
            )

    @property
    def cleanup(self) -> int | None:
        """For how many seconds it is kept while nothing has it attached; None to keep it for ever."""
        return self.auto_cleanup_duration.seconds if self.auto_cleanup_duration else None

    @property
    def protected(self) -> bool:
        """Whether a plan may not destroy or replace it."""
        return self.cleanup is None if self.prevent_destroy is None else self.prevent_destroy
