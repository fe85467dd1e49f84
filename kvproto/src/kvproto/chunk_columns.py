"""Many chunks in one message, column by column (ChunkColumns of control.proto). Pure.

Both ends take columns apart by the same function. A message whose columns do not fit each other is refused whole; a
record that breaks the contract is refused by itself (`check_chunk`, as for records that come one by one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from kvchunk.ids import KEY_BYTES, ROOT_KEY, ChunkKey, Digest
from kvproto.integrity import OUTPUT_BYTES, Integrity, code_of
from kvproto.limits import CHUNK_BYTES_MAX, NAMESPACE_BYTES_MAX, PREFIX_CHUNKS_MAX
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


class Columns(NamedTuple):
    """Chunks of a message that may be taken, column by column."""

    keys: list[ChunkKey]
    parents: npt.NDArray[np.uint64]
    """Two words a chunk, as the keys have them in memory; zeros: none."""
    digests: npt.NDArray[np.uint8]
    """A row a chunk."""
    sizes: npt.NDArray[np.uint64]
    positions: npt.NDArray[np.uint32]
    names: list[str]
    indexes: npt.NDArray[np.uint32]
    """Of the names of namespaces."""
    flags: npt.NDArray[np.uint8]

    def take(self, places: npt.NDArray[np.int64]) -> Columns:
        """Those of these places."""
        keys = list(map(self.keys.__getitem__, places.tolist()))
        parents, digests, sizes, positions, names, indexes, flags = self[1:]
        return Columns(
            keys, parents[places], digests[places], sizes[places], positions[places], names, indexes[places],
            flags[places],
        )  # fmt: skip

    def parents_of(self, places: npt.NDArray[np.int64]) -> list[ChunkKey]:
        """Parents of the chunks of these places, ROOT_KEY for none."""
        return cast("list[ChunkKey]", _cut(self.parents[places].tobytes(), KEY_BYTES))

    def records(self, *more: Iterable[Any]) -> list[Record]:
        """One by one; `more`: columns of what the controller alone says."""
        parents, digests = _cut(self.parents.tobytes(), KEY_BYTES), self.digests.tobytes()
        return list(
            map(
                Record,
                self.keys,
                [ChunkKey(parent) if parent != ROOT_KEY else None for parent in parents],
                self.sizes.tolist(),
                map(Digest, _cut(digests, self.digests.shape[1])),
                self.positions.tolist(),
                map(self.names.__getitem__, self.indexes.tolist()),
                self.flags.tolist(),
                *more,
            )
        )


def columns_of(
    message: rpc.ChunkColumns, namespaces: Sequence[str], integrity: Integrity, refused: Callable[[bytes, str], None]
) -> tuple[Columns, npt.NDArray[np.int64] | None]:
    """The chunks of a message, without the records that `refused(key, reason)` was told of; and their places in it,
    where not all are taken. Raises RecordError for columns of different lengths: then nobody knows what belongs to
    what."""
    count = len(message.keys) // KEY_BYTES
    _check_lengths(message, count)
    said = Columns(
        cast("list[ChunkKey]", _cut(message.keys, KEY_BYTES)),
        np.frombuffer(message.parents, np.uint64).reshape(-1, 2),
        np.frombuffer(message.digests, np.uint8).reshape(count, -1 if count else 0),
        np.frombuffer(message.sizes, "<u8"),
        np.frombuffer(message.positions, "<u4"),
        list(namespaces) or [""],
        np.frombuffer(message.namespace_indexes, "<u4"),
        np.frombuffer(message.flags, np.uint8),
    )
    # Whatever may break the contract is looked at by itself.
    wrong_digests = said.digests.shape[1] != OUTPUT_BYTES[code_of(integrity)] + 1
    doubtful = (said.parents == np.frombuffer(message.keys, np.uint64).reshape(-1, 2)).all(axis=1)
    doubtful |= (said.positions >= PREFIX_CHUNKS_MAX) | (said.sizes - np.uint64(1) >= CHUNK_BYTES_MAX)
    doubtful |= said.indexes >= len(said.names)
    if count:
        doubtful |= wrong_digests or said.digests[:, 0] != code_of(integrity)
    doubtful |= any(len(name) * 4 > NAMESPACE_BYTES_MAX for name in said.names)
    if not doubtful.any():
        return said, None
    for at in np.flatnonzero(doubtful).tolist():
        try:
            _check(said, at, integrity, wrong_digests=wrong_digests)
            doubtful[at] = False
        except RecordError as error:
            refused(said.keys[at], str(error))
    taken = np.flatnonzero(~doubtful)
    return said.take(taken), taken


def _check(said: Columns, at: int, integrity: Integrity, *, wrong_digests: bool) -> None:
    """One record. Raises RecordError."""
    key, parent, index = said.keys[at], said.parents[at].tobytes(), int(said.indexes[at])
    if index >= len(said.names):
        raise RecordError(f"namespace_index {index} of chunk {key.hex()}: {len(said.names)} are named")
    above = ChunkKey(parent) if parent != ROOT_KEY else None
    check_chunk(key, above, int(said.sizes[at]), int(said.positions[at]), said.names[index])
    if wrong_digests or said.digests[at][0] != code_of(integrity):
        raise RecordError(f"chunk {key.hex()} has no digest by {integrity.value}, as the fabric's are")


def unpack(
    message: rpc.ChunkColumns, namespaces: Sequence[str], integrity: Integrity, refused: Callable[[bytes, str], None]
) -> list[Record]:
    """The chunks of a message one by one, with what the controller alone says of them: see `columns_of`."""
    said, taken = columns_of(message, namespaces, integrity, refused)
    places = range(len(message.flags)) if taken is None else taken.tolist()
    values = np.frombuffer(message.values, "<f8").tolist()
    told = (_hosts(message.holders, message), ()), (_hosts(message.disk_holders, message), ()), (values, 0.0)
    return said.records(*([column[at] for at in places] if column else repeat(none) for column, none in told))


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
