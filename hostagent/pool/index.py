"""What lies where in the pool's memory, written down so that the next agent can take the pool over. Pure.

The index is a second piece of shared memory; whoever keeps both for the next agent lets it go on with the chunks of
this one (`hostagent.pool_opening`). It is a header page, a byte of state for each slot, and a record of one sector
for each slot, in the format of the disk tier (`hostagent.pool.records`).

The process may be killed between any two bytes that it writes. So

* a state is one byte, written last when a chunk becomes READY and first when it stops being so;
* a record is written only while its slot's state says that nobody believes it: FREE, or HELD;
* an extent that is given out is HELD, one that is free has no slot: what lay there before is not believed any more
  before the first byte is overwritten.

A record that is torn fails its checksum and is ignored: its extent was not in use yet, or no longer. What it says of
the chunk's bytes is not trusted: they are compared with their digest before anybody gets them.

Which chunks engines were reading the index does not say: an engine whose agent ended trusts nothing that it copied.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import xxhash

from hostagent.pool.records import RECORD_BYTES, STORE_ID_BYTES, Record, pack_record, unpack_record

HEADER_BYTES: Final = 4096
FORMAT: Final = 2
NO_SLOT: Final = -1
_MAGIC: Final = b"KVCASTPI"
_HEADER: Final = struct.Struct("!8sIIQQ16s")
_CHECKSUM: Final = struct.Struct("!Q")
_STATE: Final = 0x7F
"""The other bit of a state is one that agents up to 0.2 wrote."""


class SlotState(enum.IntEnum):
    """What a slot says of its extent."""

    FREE = 0
    """There is none."""
    HELD = 1
    """It is given out; its bytes are no chunk, or no longer one."""
    READY = 2
    """It holds the whole chunk of the record."""


@dataclass(frozen=True, slots=True)
class Found:
    """An extent that was given out when the index was last written."""

    slot: int
    ready: bool
    record: Record


class Buffer(Protocol):
    """Bytes that outlive this process: an mmap, or in tests a bytearray."""

    def __getitem__(self, part: slice, /) -> bytes | bytearray:
        """Bytes of a part."""

    def __setitem__(self, part: slice, content: bytes, /) -> None:
        """Overwrite a part with as many bytes."""


def index_bytes(slots_count: int) -> int:
    """Size of an index: sparse, only what is used takes memory."""
    return _records_at(slots_count) + slots_count * RECORD_BYTES


def _records_at(slots_count: int) -> int:
    """Behind the header and the states, on a page."""
    return HEADER_BYTES + -(-slots_count // HEADER_BYTES) * HEADER_BYTES


class PoolIndex:
    """The index of one pool; this process is the only one that writes it."""

    def __init__(self, buffer: Buffer, slots_count: int, store_id: bytes) -> None:
        """`store_id`: of the pool that it describes, STORE_ID_BYTES bytes. Use `begin` or `find` next."""
        self._buffer = buffer
        self._slots_count = slots_count
        self._store_id = store_id
        self._records_at = _records_at(slots_count)
        self._used_slots = 0
        """Slots beyond have never been used."""
        self._free: list[int] = []

    # -------------------------------------------------------------- the beginning

    def begin(self, pool_bytes: int) -> None:
        """An empty index; the buffer is all zeros."""
        self._buffer[0:HEADER_BYTES] = _header(pool_bytes, self._slots_count, self._store_id)

    def find(self, pool_bytes: int) -> list[Found] | None:
        """What was given out when the agent before ended; None: this index is of another pool, size or format."""
        if self._buffer[0:HEADER_BYTES] != _header(pool_bytes, self._slots_count, self._store_id):
            return None
        states = bytes(self._buffer[HEADER_BYTES : HEADER_BYTES + self._slots_count])
        self._used_slots = len(states.rstrip(b"\0"))
        self._free = [slot for slot in range(self._used_slots - 1, -1, -1) if states[slot] == SlotState.FREE]
        return list(self._found(states[: self._used_slots]))

    def _found(self, states: bytes) -> Iterator[Found]:
        for slot, state in enumerate(states):
            if state == SlotState.FREE:
                continue
            at = self._records_at + slot * RECORD_BYTES
            try:
                record = unpack_record(bytes(self._buffer[at : at + RECORD_BYTES]), self._store_id, slot)
            except ValueError:
                record = None
            if record is None:
                self.free(slot)
            else:
                yield Found(slot, state & _STATE == SlotState.READY, record)

    # -------------------------------------------------------------- what happens in the pool

    def hold(self, record: Record) -> int:
        """An extent is given out, for the chunk of this record; its slot. Before anybody writes to it."""
        slot = self._free.pop() if self._free else self._used_slots
        if slot >= self._slots_count:
            raise AssertionError("more chunks than pages in the pool")
        self._used_slots = max(self._used_slots, slot + 1)
        self._write(slot, record)
        self._set(slot, SlotState.HELD)
        return slot

    def ready(self, slot: int, record: Record) -> None:
        """The chunk is whole, and its digest known."""
        self._write(slot, record)
        self._set(slot, SlotState.READY)

    def retire(self, slot: int) -> None:
        """The chunk is not to be found any more; its extent is still given out."""
        self._set(slot, SlotState.HELD)

    def free(self, slot: int) -> None:
        """The extent is free. Before it is given out again."""
        self._set(slot, SlotState.FREE)
        self._free.append(slot)

    def _write(self, slot: int, record: Record) -> None:
        at = self._records_at + slot * RECORD_BYTES
        self._buffer[at : at + RECORD_BYTES] = pack_record(record, self._store_id, slot)

    def _set(self, slot: int, state: SlotState) -> None:
        at = HEADER_BYTES + slot
        self._buffer[at : at + 1] = bytes((state,))


def _header(pool_bytes: int, slots_count: int, store_id: bytes) -> bytes:
    if len(store_id) != STORE_ID_BYTES:
        raise ValueError(f"an identity of {len(store_id)} bytes instead of {STORE_ID_BYTES}")
    head = _HEADER.pack(_MAGIC, FORMAT, RECORD_BYTES, pool_bytes, slots_count, store_id)
    return (head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head))).ljust(HEADER_BYTES, b"\0")
