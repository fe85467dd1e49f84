"""Chunks of the directory as messages have them: in columns, or one by one for agents that take no columns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from controlplane.core.directory.records import Chunk
from controlplane.core.directory.tree import Directory
from controlplane.core.ids import ChunkKey
from kvproto.chunk_columns import pack
from kvproto.chunk_table import Rows
from kvproto.rpc import control_pb2 as rpc

VARIANTS_MAX: Final = 4
"""Other bytes of a key that are offered."""

Shows: TypeAlias = Callable[[str], bool]
"""Whether somebody may be told of a namespace."""


def tell(
    delta: rpc.DirectoryDelta, directory: Directory, rows: Sequence[int] | Rows, shows: Shows, *, columns: bool
) -> list[ChunkKey]:
    """Tell of the chunks of these rows that somebody may be told of; returns the keys of the others."""
    namespaces: dict[str, int] = {}
    plain, apart = directory.parted(np.asarray(rows, np.int64))
    unseen: list[ChunkKey] = []
    if not columns:
        apart = [int(row) for row in rows]
    elif len(plain):
        unseen = _in_columns(delta.columns, directory, plain, shows, namespaces)
    for chunk in directory.chunks_of(apart):
        if not _one(delta, chunk, shows, namespaces):
            unseen.append(chunk.key)
    delta.namespaces.extend(namespaces)
    return unseen


def _in_columns(
    message: rpc.ChunkColumns, directory: Directory, told: Rows, shows: Shows, namespaces: dict[str, int]
) -> list[ChunkKey]:
    numbers, places = np.unique(directory.namespace_numbers(told), return_inverse=True)
    names = [directory.table.namespaces.values[number] for number in numbers.tolist()]
    shown = np.array([shows(name) for name in names], np.bool_)[places]
    unseen = directory.table.keys_of(told[~shown])
    told, places = told[shown], places[shown]
    indexes = np.array([namespaces.setdefault(name, len(namespaces)) if shows(name) else 0 for name in names], "<u4")
    columns = directory.gather(told)
    pack(
        message,
        keys=columns.keys,
        parents=columns.parents,
        digests=columns.digests,
        sizes=columns.sizes,
        positions=columns.positions,
        namespace_indexes=indexes[places],
        flags=columns.flags,
    )
    message.values = columns.values
    sets, numbers_of = np.unique(np.concatenate((columns.in_pool, columns.on_disk)), return_inverse=True)
    for number in sets.tolist():
        message.sets.add(nodes=sorted(directory.nodes_numbered(number)))
    of_sets = numbers_of.astype("<u4")
    message.holders, message.disk_holders = of_sets[: len(told)].tobytes(), of_sets[len(told) :].tobytes()
    return unseen


def _one(delta: rpc.DirectoryDelta, chunk: Chunk, shows: Shows, namespaces: dict[str, int]) -> bool:
    """Tell of one chunk; False: it is not to be told of."""
    variants = [one for one in chunk.variants() if shows(one.facts.namespace)]
    if not variants:
        return False
    first, *others = variants
    facts = first.facts
    delta.chunks.add(
        key=facts.key,
        parent=facts.parent or b"",
        size_bytes=facts.size_bytes,
        digest=facts.digest,
        position=facts.position,
        holders=sorted(first.holders),
        served=first.served,
        pinned=chunk.pinned,
        value=chunk.score_told,
        disk_holders=sorted(first.disk_holders),
        namespace_index=namespaces.setdefault(facts.namespace, len(namespaces)),
        others=[
            rpc.Variant(digest=one.facts.digest, size_bytes=one.facts.size_bytes, holders=sorted(one.holders))
            for one in others[:VARIANTS_MAX]
        ],
    )
    return True
