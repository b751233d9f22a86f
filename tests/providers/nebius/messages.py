"""The messages of Nebius' API: those of the package `nebius`, as classes of protobuf's own.

The package makes classes of its descriptors that suit a client. These here suit a server: what the
descriptors say of a message, its constraints and which fields are immutable, can be asked.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from nebius.base.protos.dynamic import REGISTRY

try:
    import protovalidate
    from protobuf.wkt import FileDescriptorSet
except ImportError:
    protovalidate = None

Json = dict[str, Any]
_PACKAGES = ("billing.v1", "capacity.v1", "common.v1", "compute.v1", "iam.v1", "vpc.v1")
_SERVICES = (
    "billing/v1/calculator",
    "capacity/v1/resource_advice",
    "common/v1/operation",
    "compute/v1/disk",
    "compute/v1/filesystem",
    "compute/v1/gpu_cluster",
    "compute/v1/image",
    "compute/v1/instance",
    "compute/v1/platform",
    "iam/v1/project",
    "iam/v1/token_exchange",
    "vpc/v1/subnet",
)


class Messages:
    """The messages of the package, as classes of protobuf's own."""

    def __init__(self) -> None:
        for name in _PACKAGES:
            importlib.import_module(f"nebius.api.nebius.{name}")
        self.files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
        for name in (*(f"{service}_service" for service in _SERVICES), "common/v1/error"):
            self._read(REGISTRY.file_descriptor(f"nebius/{name}.proto"))
        self.pool = descriptor_pool.DescriptorPool()
        for file in self.files.values():
            self.pool.Add(file)
        self._options = self["google.protobuf.FieldOptions"]
        self._behavior = self.pool.FindExtensionByName("nebius.field_behavior")

    def _read(self, file: Any) -> None:
        if file.name not in self.files:
            for one in file.dependencies:
                self._read(one)
            self.files[file.name] = descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)

    def __getitem__(self, name: str) -> Any:
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))

    def __call__(self, name: str, /, **fields: Any) -> Any:
        """`Instance` of `compute.v1` from plain values."""
        return json_format.ParseDict(fields, self[f"nebius.{name}"](), descriptor_pool=self.pool)

    def immutable(self, field: FieldDescriptor) -> bool:
        options = self._options.FromString(field.GetOptions().SerializeToString())
        names = self._behavior.enum_type.values_by_number
        return "IMMUTABLE" in [names[one].name for one in options.Extensions[self._behavior]]

    @functools.cached_property
    def _judge(self) -> Any:
        if protovalidate is None:
            return None
        files = descriptor_pb2.FileDescriptorSet(file=list(self.files.values()))
        types = FileDescriptorSet.from_binary(files.SerializeToString()).to_registry()
        validator = protovalidate.Validator()

        def judge(message: Message) -> list[tuple[str, str]]:
            of_buf = types.message(message.DESCRIPTOR.full_name).type.from_binary(message.SerializeToString())
            violations = [one.proto for one in validator.collect_violations(of_buf)]
            return [(".".join(e.field_name for e in one.field.elements), one.message) for one in violations]

        return judge

    def violations(self, message: Message) -> list[tuple[str, str]]:
        """The fields of a message that break its own constraints, and how."""
        return self._judge(message) if self._judge else []


@functools.cache
def messages() -> Messages:
    """Those of this process."""
    return Messages()


def plain(message: Message) -> Json:
    """The fields of a message that are not empty."""
    pool = messages().pool
    fields: Json = json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=pool)
    return fields
