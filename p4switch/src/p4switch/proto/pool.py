"""Loads P4Runtime's descriptors into a private pool and hands out message classes.

The descriptors are those of PyPI's `p4runtime`, p4lang's own publication of the protocol. Its generated modules cannot
be imported with a current protobuf, so they are read, not run: each holds its file's descriptor as one bytes literal.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from google.protobuf import any_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

_MODULES = (
    ("googleapis-common-protos", "google/rpc/status_pb2.py"),
    ("p4runtime", "p4/config/v1/p4types_pb2.py"),
    ("p4runtime", "p4/config/v1/p4info_pb2.py"),
    ("p4runtime", "p4/v1/p4data_pb2.py"),
    ("p4runtime", "p4/v1/p4runtime_pb2.py"),
)
"""Distributions and files, in the order in which they import each other. google.rpc is not imported either: finsy
brings its own copy of it into the default pool."""

_POOL = descriptor_pool.DescriptorPool()


def serialized_files() -> Iterator[bytes]:
    """Serialized FileDescriptorProtos of P4Runtime and what it imports, each after its own imports.

    Raises ImportError when a distribution is missing or does not look as expected.
    """
    yield any_pb2.DESCRIPTOR.serialized_pb
    for distribution, module in _MODULES:
        yield descriptor_in(_locate(distribution, module))


def _locate(distribution: str, module: str) -> Path:
    try:
        path = Path(str(metadata.distribution(distribution).locate_file(module)))
    except metadata.PackageNotFoundError as missing:
        raise ImportError(f"p4switch needs the package {distribution}: pip install {distribution}") from missing
    if not path.is_file():
        raise ImportError(f"the installed package {distribution} has no {module}: install another version of it")
    return path


_LITERAL = re.compile(
    rb"(?:serialized_pb=|AddSerializedFile\()\s*(b'(?:[^'\\]|\\.)*'|b\"(?:[^\"\\]|\\.)*\")", re.DOTALL
)
"""Found by its name: to parse such a module takes longer than all else that a switch has to import."""


def descriptor_in(path: Path) -> bytes:
    """The serialized descriptor that a generated module passes to protobuf, whichever protoc made it."""
    found = _LITERAL.search(path.read_bytes())
    literal = found and ast.literal_eval(found[1].decode())
    if not isinstance(literal, bytes):
        raise ImportError(f"{path} holds no descriptor: install another version of its package")
    return literal


for _file in serialized_files():
    _POOL.AddSerializedFile(_file)


def exported_names(path: str) -> dict[str, Any]:
    """What a generated module of the .proto file at `path` exports: messages, enum wrappers, enum values.

    Raises KeyError when P4Runtime has no such file.
    """
    descriptor = _POOL.FindFileByName(path)
    names: dict[str, Any] = {"DESCRIPTOR": descriptor}
    for name, message in descriptor.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for name, enum in descriptor.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        names.update({value.name: value.number for value in enum.values})
    return names
