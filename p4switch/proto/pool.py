"""Loads the descriptor set into a private pool and hands out its message classes."""

from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

_POOL = descriptor_pool.DescriptorPool()


def _load() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    files.ParseFromString(resources.files("p4switch.proto").joinpath("p4runtime.binpb").read_bytes())
    for file in files.file:
        _POOL.AddSerializedFile(file.SerializeToString())


_load()


def exported_names(path: str) -> dict[str, Any]:
    """What a generated module of the .proto file at `path` exports: messages, enum wrappers, enum values.

    Raises KeyError when the descriptor set has no such file.
    """
    descriptor = _POOL.FindFileByName(path)
    names: dict[str, Any] = {"DESCRIPTOR": descriptor}
    for name, message in descriptor.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for name, enum in descriptor.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        names.update({value.name: value.number for value in enum.values})
    return names
