"""The format of the index on disk: one header page, then records of one sector each. Pure.

`index` is a header page and an array of records; record number `slot` lies at HEADER_BYTES + slot * RECORD_BYTES and
describes one chunk in `slab`, the other file. A record of zeros is free. Records are written and cleared in place, one
sector each, so none is ever half old and half new on a device that writes sectors whole; a record damaged all the same
fails its checksum and is ignored. A record's checksum covers the identity of the store and the slot as well:
a sector that ended up elsewhere, or came from another store, counts as damaged, too.

A record's claims about the chunk's bytes are never trusted: the chunk's digest is compared on each load, so a
record that outlived its bytes (a power failure may undo a later write) costs a miss and nothing else.

| offset | field of the header | bytes |
|---|---|---|
| 0 | magic `KVCASTDI` | 8 |
| 8 | format | 4 |
| 12 | bytes of a record | 4 |
| 16 | identity of the store | 16 |
| 32 | xxh3-64 of the bytes before | 8 |

| offset | field of a record | bytes |
|---|---|---|
| 0 | magic `KVCR` | 4 |
| 4 | bytes of the namespace | 2 |
| 6 | flags: bit 0: the chunk has a parent | 2 |
| 8 | sequence: of two records for the same bytes the higher one counts | 8 |
| 16 | key, parent | 16, 16 |
| 48 | offset in the slab, size | 8, 8 |
| 64 | position in the prefix | 4 |
| 68 | digest of the chunk (`kvproto.integrity`), zero-padded; zeros: none yet | 33 |
| 101 | namespace, zero-padded | 256 |
| 357 | form of the chunk's bytes (`kvcodec.forms`); 0: as they are | 1 |
| 358 | bytes in that form; 0: as many as the chunk has | 8 |
| 504 | xxh3-64 of the bytes before, seeded with identity and slot | 8 |

Integers are big-endian.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final

import xxhash

from kvchunk.ids import ChunkKey, Digest
from kvcodec.forms import Form, StoredForm
from kvproto.integrity import NO_DIGEST, OUTPUT_BYTES, parse_digest

FORMAT: Final = 2
HEADER_BYTES: Final = 4096
RECORD_BYTES: Final = 512
NAMESPACE_BYTES_MAX: Final = 256
STORE_ID_BYTES: Final = 16

_MAGIC = b"KVCASTDI"
_HEADER = struct.Struct("!8sII16s")
_RECORD_MAGIC = b"KVCR"
_RECORD = struct.Struct("!4sHHQ16s16sQQI33s256sBQ")
_CHECKSUM = struct.Struct("!Q")
_CHECKSUM_AT = RECORD_BYTES - _CHECKSUM.size
_HAS_PARENT = 1
_EMPTY = bytes(RECORD_BYTES)

assert _RECORD.size <= _CHECKSUM_AT
assert HEADER_BYTES % RECORD_BYTES == 0


class HeaderFault(enum.Enum):
    """Why an index cannot be read."""

    DAMAGED = "its header is damaged"
    FORMAT = "it has another format"


@dataclass(frozen=True, slots=True)
class Record:
    """One chunk in the slab."""

    key: ChunkKey
    parent: ChunkKey | None
    position: int
    namespace: str
    offset: int
    size_bytes: int
    digest: Digest
    """NO_DIGEST: not all of its bytes are written."""
    sequence: int
    stored: StoredForm | None = None
    """The form of fewer bytes in which it is stored; None: as it is."""

    @property
    def stored_bytes(self) -> int:
        """Its bytes in the store."""
        return self.size_bytes if self.stored is None else self.stored.size_bytes


def pack_header(store_id: bytes) -> bytes:
    """The first page of an index."""
    if len(store_id) != STORE_ID_BYTES:
        raise ValueError(f"an identity of {len(store_id)} bytes instead of {STORE_ID_BYTES}")
    head = _HEADER.pack(_MAGIC, FORMAT, RECORD_BYTES, store_id)
    return (head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head))).ljust(HEADER_BYTES, b"\0")


def unpack_header(page: bytes) -> bytes | HeaderFault:
    """The identity of the store that the index belongs to."""
    if len(page) < HEADER_BYTES:
        return HeaderFault.DAMAGED
    magic, version, record_bytes, store_id = _HEADER.unpack_from(page)
    (checksum,) = _CHECKSUM.unpack_from(page, _HEADER.size)
    if magic != _MAGIC or checksum != xxhash.xxh3_64_intdigest(page[: _HEADER.size]):
        return HeaderFault.DAMAGED
    if version != FORMAT or record_bytes != RECORD_BYTES:
        return HeaderFault.FORMAT
    return bytes(store_id)


def record_at(slot: int) -> int:
    """Where a record lies in the index."""
    return HEADER_BYTES + slot * RECORD_BYTES


def pack_record(record: Record, store_id: bytes, slot: int) -> bytes:
    """RECORD_BYTES bytes. Raises ValueError for a namespace that is too long."""
    namespace = record.namespace.encode()
    if len(namespace) > NAMESPACE_BYTES_MAX:
        raise ValueError(f"a namespace of {len(namespace)} bytes; at most {NAMESPACE_BYTES_MAX} fit")
    body = _RECORD.pack(
        _RECORD_MAGIC,
        len(namespace),
        _HAS_PARENT if record.parent is not None else 0,
        record.sequence,
        record.key,
        record.parent or b"",
        record.offset,
        record.size_bytes,
        record.position,
        record.digest,
        namespace,
        0 if record.stored is None else record.stored.form,
        0 if record.stored is None else record.stored.size_bytes,
    ).ljust(_CHECKSUM_AT, b"\0")
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body, _seed(store_id, slot)))


def unpack_record(sector: bytes, store_id: bytes, slot: int) -> Record | None:
    """The record in a sector; None: the slot is free. Raises ValueError when it is damaged."""
    if sector == _EMPTY:
        return None
    (checksum,) = _CHECKSUM.unpack_from(sector, _CHECKSUM_AT)
    if checksum != xxhash.xxh3_64_intdigest(sector[:_CHECKSUM_AT], _seed(store_id, slot)):
        raise ValueError(f"record {slot} does not match its checksum")
    (
        magic,
        namespace_bytes,
        flags,
        sequence,
        key,
        parent,
        offset,
        size_bytes,
        position,
        raw,
        namespace,
        form,
        stored_bytes,
    ) = _RECORD.unpack_from(sector)
    if magic != _RECORD_MAGIC or namespace_bytes > NAMESPACE_BYTES_MAX or not size_bytes:
        raise ValueError(f"record {slot} is not one of format {FORMAT}")
    return Record(
        ChunkKey(key),
        ChunkKey(parent) if flags & _HAS_PARENT else None,
        position,
        namespace[:namespace_bytes].decode(errors="replace"),
        offset,
        size_bytes,
        _digest(raw),
        sequence,
        _stored(form, stored_bytes, size_bytes),
    )


def _digest(raw: bytes) -> Digest:
    """Raises ValueError."""
    if not raw[0]:
        return NO_DIGEST
    return parse_digest(raw[: 1 + OUTPUT_BYTES.get(raw[0], 0)])


def _stored(form: int, stored_bytes: int, size_bytes: int) -> StoredForm | None:
    """Raises ValueError."""
    if not form and not stored_bytes:
        return None
    stored = StoredForm(Form(form), stored_bytes)
    if stored.form is Form.RAW or stored_bytes >= size_bytes:
        raise ValueError(f"a form that does not make {size_bytes} bytes fewer")
    return stored


def _seed(store_id: bytes, slot: int) -> int:
    return int.from_bytes(store_id[:8], "big") ^ slot
