"""The data datagram (UDP port 4791): RoCEv2 UD SEND-only to the fabric's group, built by holders, decoded in batches.

A datagram here is the UDP payload: BTH, DETH, chunk header, one segment padded to full size, ICRC.
"""

import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from kvproto.errors import WireError, WireReason
from kvproto.ids import Address, ChunkKey, parse_address
from kvproto.limits import CHUNK_SEGMENTS_MAX, SEGMENT_BYTES_MAX
from kvproto.wire import layouts
from kvproto.wire.icrc import BTH_RESERVED_OFFSET, ICRC_BYTES, icrc, icrc_seed, pack_icrc
from kvproto.wire.layouts import BTH_BYTES, BTH_DTYPE, DETH_BYTES, DETH_DTYPE, KV_DATA_BYTES, KV_DATA_DTYPE

DATA_HEADER_BYTES: Final = BTH_BYTES + DETH_BYTES + KV_DATA_BYTES
DATA_OVERHEAD_BYTES: Final = DATA_HEADER_BYTES + ICRC_BYTES
"""What a data datagram has beside its segment, in bytes of UDP payload."""
_HEADER_DTYPE: Final = np.dtype([("bth", BTH_DTYPE), ("deth", DETH_DTYPE), ("chunk", KV_DATA_DTYPE)])
_MIGRATED: Final = 0x40
"""BTH byte 1: path migration state 'migrated', no padding, transport version 0."""
_DEFAULT_PARTITION: Final = 0xFFFF

assert _HEADER_DTYPE.itemsize == DATA_HEADER_BYTES


DEFAULT_GROUP: Final = parse_address("239.75.86.1")


@dataclass(frozen=True, slots=True)
class Fabric:
    """What all data datagrams of one fabric share."""

    group: Address = DEFAULT_GROUP
    qkey: int = 0x1111_1111
    source_qpn: int = 0x10
    segment_bytes: int = 4096

    def __post_init__(self) -> None:
        if not 4 <= self.segment_bytes <= SEGMENT_BYTES_MAX or self.segment_bytes % 4:
            raise ValueError(f"segment_bytes is {self.segment_bytes}: use a multiple of 4 up to {SEGMENT_BYTES_MAX}")

    @property
    def datagram_bytes(self) -> int:
        """UDP payload of every data datagram."""
        return DATA_OVERHEAD_BYTES + self.segment_bytes


class ChunkFraming:
    """Headers and ICRCs of one chunk for one holder, computed once and only for segments that are sent.

    It reads the chunk's memory but owns none of it: the chunk stays pinned while a framing is in use.
    """

    __slots__ = ("_fabric", "_icrcs", "_known", "_payload", "_seed", "_size_bytes", "headers", "segments")

    def __init__(
        self,
        key: ChunkKey,
        payload: memoryview,
        fabric: Fabric,
        source: Address,
        source_port: int,
    ) -> None:
        """`payload`: all bytes of the chunk that count (C-contiguous bytes); source: what the socket sends from."""
        self._fabric, self._payload, self._size_bytes = fabric, payload, payload.nbytes
        if not self._size_bytes:
            raise ValueError("a chunk has at least one byte")
        self.segments = -(-self._size_bytes // fabric.segment_bytes)
        if self.segments > CHUNK_SEGMENTS_MAX:
            raise ValueError(f"{self._size_bytes} bytes are more than {CHUNK_SEGMENTS_MAX} segments")
        self._seed = icrc_seed(source, fabric.group, source_port, fabric.datagram_bytes)
        self.headers: npt.NDArray[np.uint8] = _headers(key, self._size_bytes, self.segments, fabric)
        """(segments, DATA_HEADER_BYTES): what stands before each segment."""
        self._icrcs: npt.NDArray[np.uint8] = np.zeros((self.segments, ICRC_BYTES), np.uint8)
        self._known: npt.NDArray[np.bool_] = np.zeros(self.segments, np.bool_)

    def payload(self, segment: int) -> memoryview | bytes:
        """The bytes of one segment, padded with zeros to full size."""
        size = self._fabric.segment_bytes
        part = self._payload[segment * size : (segment + 1) * size]
        return part if part.nbytes == size else part.tobytes() + bytes(size - part.nbytes)

    def icrcs(self, first: int, count: int) -> npt.NDArray[np.uint8]:
        """(count, ICRC_BYTES): what ends the datagrams of segments [first, first+count)."""
        known = self._known
        if not known[first : first + count].all():
            seed, headers, icrcs = self._seed, self.headers, self._icrcs
            for segment in range(first, first + count):
                if not known[segment]:
                    # The headers carry zero where the ICRC masks, so this one byte is patched in the CRC's input.
                    head = bytearray(headers[segment])
                    head[BTH_RESERVED_OFFSET] = 0xFF
                    value = zlib.crc32(self.payload(segment), zlib.crc32(head, seed))
                    icrcs[segment] = np.frombuffer(pack_icrc(value), np.uint8)
            known[first : first + count] = True
        return self._icrcs[first : first + count]

    def datagram(self, segment: int) -> bytes:
        """One whole datagram, copied together: for FILL and for tests."""
        return b"".join((self.headers[segment].tobytes(), self.payload(segment), self.icrcs(segment, 1).tobytes()))


def _headers(key: ChunkKey, size_bytes: int, segments: int, fabric: Fabric) -> npt.NDArray[np.uint8]:
    """Headers of all segments of a chunk, (segments, DATA_HEADER_BYTES)."""
    rows = np.zeros(segments, _HEADER_DTYPE)
    index = np.arange(segments, dtype=np.uint32)
    bth, deth, chunk = rows["bth"], rows["deth"], rows["chunk"]
    bth["opcode"] = layouts.BTH_OPCODE_UD_SEND_ONLY
    bth["solicited_event_mig_request_pad_count_transport_version"] = _MIGRATED
    bth["partition_key"] = _DEFAULT_PARTITION
    bth["qpn"] = 0xFF
    bth["psn"] = (index & 0xFFFFFF).astype(">u4").view(np.uint8).reshape(segments, 4)[:, 1:]
    deth["qkey"] = fabric.qkey
    deth["src_qpn"] = np.frombuffer(fabric.source_qpn.to_bytes(3, "big"), np.uint8)
    chunk["version"] = layouts.KV_VERSION
    chunk["op"] = layouts.OP_DATA
    chunk["segment"] = index
    chunk["segments"] = segments
    chunk["length"] = fabric.segment_bytes
    chunk["length"][-1] = size_bytes - (segments - 1) * fabric.segment_bytes
    chunk["key"] = np.frombuffer(key, np.uint8)
    return rows.view(np.uint8).reshape(segments, DATA_HEADER_BYTES)


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Rows of a batch that carry segments of one chunk from one holder's address."""

    key: ChunkKey
    segments_in_chunk: int
    source: Address
    rows: npt.NDArray[np.intp]
    segments: npt.NDArray[np.uint32]
    """Same length as `rows`."""
    from_switch: int


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """What a batch of datagrams carried; nothing refers to the batch's memory."""

    groups: tuple[SegmentGroup, ...]
    dropped: Counter[WireReason] = field(default_factory=Counter)


def decode_batch(
    rows: npt.NDArray[np.uint8],
    lengths: npt.NDArray[np.integer],
    sources: npt.NDArray[np.uint32],
    source_ports: npt.NDArray[np.integer],
    fabric: Fabric,
    from_switch: npt.NDArray[np.bool_] | None = None,
    *,
    check_icrc: bool = True,
) -> DecodedBatch:
    """Decode a batch of datagrams, each in one row.

    `rows` (n, >= datagram_bytes), `lengths` (n,) bytes received, `sources` (n,) IPv4 addresses in host order,
    `source_ports` (n,), `from_switch` (n,) whether the from-switch code point was set. The byte that the ICRC masks is
    overwritten in `rows`. Never raises for what the bytes are: bad rows are counted by reason. An RDMA NIC has
    checked the ICRC already; then `check_icrc` is False.
    """
    dropped: Counter[WireReason] = Counter()
    if not len(lengths):
        return DecodedBatch((), dropped)
    headers = _view_headers(rows)
    good = _check_headers(headers, lengths, fabric, dropped)
    if check_icrc:
        good = _check_icrcs(rows, good, sources, source_ports, fabric, dropped)
    return DecodedBatch(_group(headers["chunk"], good, sources, from_switch), dropped)


def _view_headers(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    """The headers of all rows without a copy."""
    return np.ndarray((rows.shape[0],), _HEADER_DTYPE, rows, 0, (rows.strides[0],))


def _check_headers(
    headers: npt.NDArray[np.void],
    lengths: npt.NDArray[np.integer],
    fabric: Fabric,
    dropped: Counter[WireReason],
) -> npt.NDArray[np.intp]:
    """Indices of rows whose headers are right, in order; the rest is counted by the first thing wrong with it."""
    bth, deth, chunk = headers["bth"], headers["deth"], headers["chunk"]
    segment, segments, length = chunk["segment"], chunk["segments"], chunk["length"]
    size = fabric.segment_bytes
    tests = (
        (WireReason.TRUNCATED, lengths < fabric.datagram_bytes),
        (WireReason.OVERSIZED, lengths > fabric.datagram_bytes),
        (
            WireReason.OPCODE,
            (bth["opcode"] != layouts.BTH_OPCODE_UD_SEND_ONLY) | (bth["qpn"] != 0xFF).any(axis=1),
        ),
        (WireReason.QKEY, deth["qkey"] != fabric.qkey),
        (WireReason.VERSION, chunk["version"] != layouts.KV_VERSION),
        (WireReason.OP, chunk["op"] != layouts.OP_DATA),
        (WireReason.RESERVED, (chunk["flags"] | chunk["reserved"]) != 0),
        (WireReason.SEGMENT, (segment >= segments) | (segments > CHUNK_SEGMENTS_MAX)),
        (
            WireReason.LENGTH,
            (length == 0) | (length > size) | ((length != size) & (segment + np.uint64(1) != segments)),
        ),
    )
    bad = np.zeros(len(lengths), np.bool_)
    for reason, failed in tests:
        if failed.any():
            dropped[reason] += int((failed & ~bad).sum())
            bad |= failed
    return np.flatnonzero(~bad)


def _check_icrcs(
    rows: npt.NDArray[np.uint8],
    good: npt.NDArray[np.intp],
    sources: npt.NDArray[np.uint32],
    source_ports: npt.NDArray[np.integer],
    fabric: Fabric,
    dropped: Counter[WireReason],
) -> npt.NDArray[np.intp]:
    """Those of `good` whose ICRC is right."""
    if not len(good):
        return good
    end = fabric.datagram_bytes - ICRC_BYTES
    said = rows[good, end : end + ICRC_BYTES].view("<u4").reshape(-1)
    rows[good, BTH_RESERVED_OFFSET] = 0xFF
    seeds: dict[tuple[int, int], int] = {}
    computed = np.empty(len(good), np.uint32)
    for place, row in enumerate(good.tolist()):
        sender = (int(sources[row]), int(source_ports[row]))
        seed = seeds.get(sender)
        if seed is None:
            seed = seeds[sender] = icrc_seed(Address(sender[0]), fabric.group, sender[1], fabric.datagram_bytes)
        computed[place] = zlib.crc32(rows[row, :end].data, seed)
    right: npt.NDArray[np.bool_] = computed == said
    if right.all():
        return good
    dropped[WireReason.ICRC] += int((~right).sum())
    passed: npt.NDArray[np.intp] = good[right]
    return passed


def _group(
    chunk: npt.NDArray[np.void],
    good: npt.NDArray[np.intp],
    sources: npt.NDArray[np.uint32],
    from_switch: npt.NDArray[np.bool_] | None,
) -> tuple[SegmentGroup, ...]:
    """The good rows by chunk and source. A batch mostly has one of each, so groups are peeled off one at a time."""
    groups = []
    rest = good
    while len(rest):
        lead = int(rest[0])
        same = (chunk["key"][rest] == chunk["key"][lead]).all(axis=1)
        same &= (sources[rest] == sources[lead]) & (chunk["segments"][rest] == chunk["segments"][lead])
        rows = rest[same]
        groups.append(
            SegmentGroup(
                ChunkKey(chunk["key"][lead].tobytes()),
                int(chunk["segments"][lead]),
                Address(int(sources[lead])),
                rows,
                chunk["segment"][rows].astype(np.uint32),
                int(from_switch[rows].sum()) if from_switch is not None else 0,
            )
        )
        rest = rest[~same]
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class DataDatagram:
    """One data datagram taken apart; for tools and tests (daemons decode in batches)."""

    key: ChunkKey
    segment: int
    segments: int
    payload: bytes
    """The bytes that count, without padding."""


def decode_datagram(datagram: bytes, source: Address, source_port: int, fabric: Fabric) -> DataDatagram:
    """One datagram. Raises WireError; nothing else, whatever the bytes."""
    if len(datagram) < DATA_HEADER_BYTES:
        raise WireError(WireReason.TRUNCATED)
    row = np.frombuffer(datagram, np.uint8).reshape(1, -1).copy()
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


def datagram_icrc(datagram: bytes, source: Address, source_port: int, fabric: Fabric) -> int:
    """The ICRC that a datagram should end with."""
    seed = icrc_seed(source, fabric.group, source_port, len(datagram))
    return icrc(seed, datagram[:-ICRC_BYTES])
