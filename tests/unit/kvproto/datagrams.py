"""One data datagram taken apart, for tests; daemons decode in batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvchunk.ids import ChunkKey
from kvproto.errors import WireError
from kvproto.ids import Address
from kvproto.wire import layouts
from kvproto.wire.data import BTH_BYTES, DATA_HEADER_BYTES, DETH_BYTES, Fabric
from tests.reference_datagrams import decode_batch


@dataclass(frozen=True, slots=True)
class DataDatagram:
    """One data datagram taken apart."""

    key: ChunkKey
    segment: int
    segments: int
    payload: bytes
    """The bytes that count, without padding."""


def decode_datagram(datagram: bytes, source: Address, source_port: int, fabric: Fabric) -> DataDatagram:
    """One datagram as a batch of one. Raises WireError; nothing else, whatever the bytes."""
    row = np.zeros((1, max(len(datagram), fabric.datagram_bytes)), np.uint8)
    row[0, : len(datagram)] = np.frombuffer(datagram, np.uint8)
    batch = decode_batch(
        row,
        np.array([len(datagram)]),
        np.array([source], np.uint32),
        np.array([source_port]),
        fabric,
    )
    for reason in batch.dropped:
        raise WireError(reason)
    (group,) = batch.groups
    length = layouts.KvData.unpack(datagram, BTH_BYTES + DETH_BYTES).length
    payload = datagram[DATA_HEADER_BYTES : DATA_HEADER_BYTES + length]
    return DataDatagram(group.key, int(group.segments[0]), group.segments_in_chunk, payload)
