"""What a chunk looks like in a cold store: a record of RECORD_BYTES, then the chunk's bytes, in one object. Pure.

Objects are named by the chunk's key alone, so any node that knows a key can look for it. The record is the disk tier's
(`hostagent.pool.records`), of a store and slot that stand for "a cold object": it names the key, parent, size and
digest of the object, and fails its own checksum when it is damaged. Every load compares the bytes with the digest. A
writer of the store is trusted like an agent: give its credentials to agents only.
"""

from __future__ import annotations

from typing import Final

from hostagent.pool.records import RECORD_BYTES, Record, pack_record, unpack_record
from kvchunk.ids import ChunkKey

__all__ = ["RECORD_BYTES", "object_name", "packed_record", "record_of"]

_STORE: Final = b"kvcast-cold-v001"
_SLOT: Final = 0


def object_name(key: ChunkKey) -> str:
    """The name of a chunk's object, the same on every node."""
    digits = key.hex()
    return f"kvcast/{digits[:2]}/{digits}"


def packed_record(record: Record) -> bytes:
    """RECORD_BYTES bytes. Raises ValueError for a namespace that is too long."""
    return pack_record(record, _STORE, _SLOT)


def record_of(key: ChunkKey, packed: bytes) -> Record | None:
    """The record of an object; None: it is another chunk's, or damaged."""
    try:
        record = unpack_record(packed, _STORE, _SLOT)
    except ValueError:
        return None
    return record if record is not None and record.key == key else None
