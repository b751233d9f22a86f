"""Nebius' messages: those of the package `nebius`, as classes of protobuf's own.

The package's own classes suit its client. A field that they do not know, as from a newer server, makes them
load all of Nebius' API: seconds, and 200 MB.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from google.protobuf import descriptor_pool, message_factory

_FILES = (
    *("billing/v1/calculator_service", "capacity/v1/resource_advice_service", "common/v1/error"),
    *("common/v1/operation_service", "compute/v1/disk_service", "compute/v1/instance_service"),
    *("compute/v1/gpu_cluster_service", "compute/v1/platform_service", "iam/v1/project_service"),
    *("iam/v1/token_exchange_service", "vpc/v1/subnet_service"),
)


def _pool() -> Any:
    pool, known = descriptor_pool.DescriptorPool(), set()

    def add(file: Any) -> None:
        if file.name not in known:
            known.add(file.name)
            for one in file.dependencies:
                add(one)
            pool.AddSerializedFile(file.serialized_pb)

    for name in _FILES:
        module = import_module(f"nebius.api.nebius.{name.rpartition('/')[0].replace('/', '.')}")
        add(module.REGISTRY.file_descriptor(f"nebius/{name}.proto"))
    return pool


_POOL = _pool()


def message(name: str) -> Any:
    """The class of a message, such as `google.rpc.Status`."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


def types(method: str) -> tuple[Any, Any]:
    """The classes of a method's request and answer: `nebius.compute.v1.DiskService/Get`."""
    service, _, name = method.partition("/")
    found = _POOL.FindServiceByName(service).methods_by_name[name]
    return tuple(message_factory.GetMessageClass(one) for one in (found.input_type, found.output_type))


def word(message: Any, field: str) -> str:
    """The name of an enum's value in a field; empty if it is not known here."""
    found = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(getattr(message, field))
    return found.name if found else ""
