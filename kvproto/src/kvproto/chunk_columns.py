"""Many chunks in one message, column by column (ChunkColumns of control.proto). Pure.

Both ends take columns apart by the same function. A message whose columns do not fit each other is refused whole; a
record that breaks the contract is refused by itself (`check_chunk`, as for records that come one by one).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kvchunk.ids import KEY_BYTES, ROOT_KEY, ChunkKey, Digest
from kvproto.integrity import OUTPUT_BYTES, Integrity, code_of
from kvproto.records import RecordError, check_chunk
from kvproto.rpc import control_pb2 as rpc

PINNED: Final = 1
ON_DISK: Final = 2
SERVED: Final = 4


class Record(NamedTuple):
    """One chunk of a message. A tuple, because making one takes a third of the time that a frozen dataclass takes."""

    key: ChunkKey
    parent: ChunkKey | None
    size_bytes: int
    digest: Digest
    position: int
    namespace: str
    flags: int
    holders: tuple[int, ...] = ()
    disk_holders: tuple[int, ...] = ()
    value: float = 0.0
    """The last three are the controller's to say."""


def pack(
    message: rpc.ChunkColumns,
    keys: bytes,
    parents: bytes,
    digests: bytes,
    sizes: Sequence[int] | npt.NDArray[np.uint64],
    positions: Sequence[int] | npt.NDArray[np.uint32],
    namespace_indexes: Sequence[int] | npt.NDArray[np.uint32],
    flags: bytes,
) -> None:
    """Fill in what every message of columns has."""
    message.keys, message.parents, message.digests, message.flags = keys, parents, digests, flags
    message.sizes = np.asarray(sizes, "<u8").tobytes()
    message.positions = np.asarray(positions, "<u4").tobytes()
    message.namespace_indexes = np.asarray(namespace_indexes, "<u4").tobytes()


def unpack(
    message: rpc.ChunkColumns, namespaces: Sequence[str], integrity: Integrity, refused: Callable[[bytes, str], None]
) -> list[Record]:
    """The chunks of a message, without the records that `refused(key, reason)` was told of. Raises RecordError for
    columns of different lengths: then nobody knows what belongs to what."""
    count = len(message.keys) // KEY_BYTES
    _check_lengths(message, count)
    keys, parents = _cut(message.keys, KEY_BYTES), _cut(message.parents, KEY_BYTES)
    digests = _cut(message.digests, len(message.digests) // count) if count else []
    sizes = np.frombuffer(message.sizes, "<u8").tolist()
    positions = np.frombuffer(message.positions, "<u4").tolist()
    indexes = np.frombuffer(message.namespace_indexes, "<u4").tolist()
    holders, disk_holders = _hosts(message.holders, message), _hosts(message.disk_holders, message)
    values, names = np.frombuffer(message.values, "<f8").tolist(), list(namespaces) or [""]
    begin = bytes((code_of(integrity),))
    wrong_digests = bool(count) and len(digests[0]) != OUTPUT_BYTES[begin[0]] + 1
    records: list[Record] = []
    for at, key in enumerate(keys):
        parent = ChunkKey(parents[at]) if parents[at] != ROOT_KEY else None
        try:
            if indexes[at] >= len(names):
                raise RecordError(f"namespace_index {indexes[at]} of chunk {key.hex()}: {len(names)} are named")
            check_chunk(ChunkKey(key), parent, sizes[at], positions[at], names[indexes[at]])
            if wrong_digests or digests[at][:1] != begin:
                raise RecordError(f"chunk {key.hex()} has no digest by {integrity.value}, as the fabric's are")
        except RecordError as error:
            refused(key, str(error))
            continue
        records.append(
            Record(
                ChunkKey(key),
                parent,
                sizes[at],
                Digest(digests[at]),
                positions[at],
                names[indexes[at]],
                message.flags[at],
                holders[at] if holders else (),
                disk_holders[at] if disk_holders else (),
                values[at] if values else 0.0,
            )
        )
    return records


def _hosts(numbers: bytes, message: rpc.ChunkColumns) -> list[tuple[int, ...]]:
    sets = [tuple(one.nodes) for one in message.sets]
    return [sets[number] if number < len(sets) else () for number in np.frombuffer(numbers, "<u4").tolist()]


def _check_lengths(message: rpc.ChunkColumns, count: int) -> None:
    wanted = {"keys": 16, "parents": 16, "sizes": 8, "positions": 4, "namespace_indexes": 4, "flags": 1}
    optional = {"values": 8, "holders": 4, "disk_holders": 4}
    for name, size_bytes in (wanted | optional).items():
        found = len(getattr(message, name))
        if found != count * size_bytes and (found or name in wanted):
            raise RecordError(f"columns of {count} chunks with {found} bytes of {name}")
    if count and len(message.digests) % count:
        raise RecordError(f"columns of {count} chunks with {len(message.digests)} bytes of digests")


def _cut(column: bytes, size_bytes: int) -> list[bytes]:
    return [column[at : at + size_bytes] for at in range(0, len(column), max(1, size_bytes))]
