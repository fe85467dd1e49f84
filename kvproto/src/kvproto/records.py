"""What agents may tell the controller of a chunk: one check, made where an agent takes something from an engine, and
again where the controller takes it from an agent. Pure. Whoever refuses a record refuses that record alone."""

from __future__ import annotations

from kvchunk.ids import KEY_BYTES, ChunkKey
from kvproto.limits import CHUNK_BYTES_MAX, NAMESPACE_BYTES_MAX, PREFIX_CHUNKS_MAX


class RecordError(ValueError):
    """A record that breaks the contract of control.proto; one line that names the field."""


def chunk_key(raw: bytes, field: str = "key") -> ChunkKey:
    """A key. Raises RecordError that names `field`."""
    if len(raw) != KEY_BYTES:
        raise RecordError(f"{field} has {len(raw)} bytes, not {KEY_BYTES}")
    return ChunkKey(raw)


def check_size(size_bytes: int, field: str = "size_bytes") -> None:
    """Of a chunk. Raises RecordError that names `field`."""
    if not 0 < size_bytes <= CHUNK_BYTES_MAX:
        raise RecordError(f"{field} {size_bytes} is not in 1..{CHUNK_BYTES_MAX}")


def check_namespace(namespace: str) -> None:
    """Raises RecordError for one that is too long."""
    if len(namespace.encode()) > NAMESPACE_BYTES_MAX:
        raise RecordError(f"a namespace of {len(namespace.encode())} bytes: {NAMESPACE_BYTES_MAX} at most")


def check_chunk(key: ChunkKey, parent: ChunkKey | None, size_bytes: int, position: int, namespace: str) -> None:
    """What identifies a chunk, whole. Raises RecordError."""
    if parent == key:
        raise RecordError(f"chunk {key.hex()} is its own parent")
    if not 0 <= position < PREFIX_CHUNKS_MAX:
        raise RecordError(f"position {position} of chunk {key.hex()} is not below {PREFIX_CHUNKS_MAX}")
    if not 0 < size_bytes <= CHUNK_BYTES_MAX:  # no call of its own: engines wait for this
        check_size(size_bytes)
    if len(namespace) * 4 > NAMESPACE_BYTES_MAX:
        check_namespace(namespace)
