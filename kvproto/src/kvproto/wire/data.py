"""The data datagram (UDP port 4791): RoCEv2 UD SEND-only to the fabric's group, built by holders, decoded in batches.

A datagram here is the UDP payload: BTH, DETH, chunk header, one segment padded to full size, ICRC.
"""

import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey
from kvproto.errors import WireReason
from kvproto.ids import Address, parse_address
from kvproto.limits import CHUNK_SEGMENTS_MAX, SEGMENT_BYTES_MAX
from kvproto.wire import layouts
from kvproto.wire.icrc import (
    BTH_RESERVED_OFFSET,
    ICRC_BYTES,
    icrc_seed,
    is_identification_difference,
    pack_icrc,
)
from kvproto.wire.layouts import BTH_BYTES, BTH_DTYPE, DETH_BYTES, DETH_DTYPE, KV_DATA_BYTES, KV_DATA_DTYPE

DATA_HEADER_BYTES: Final = BTH_BYTES + DETH_BYTES + KV_DATA_BYTES
DATA_OVERHEAD_BYTES: Final = DATA_HEADER_BYTES + ICRC_BYTES
"""What a data datagram has besides its segment, in bytes of UDP payload."""
_HEADER_DTYPE: Final = np.dtype([("bth", BTH_DTYPE), ("deth", DETH_DTYPE), ("chunk", KV_DATA_DTYPE)])
_MIGRATED: Final = 0x40
"""BTH byte 1: path migration state 'migrated', no padding, transport version 0."""
_DEFAULT_PARTITION: Final = 0xFFFF

assert _HEADER_DTYPE.itemsize == DATA_HEADER_BYTES


DEFAULT_GROUP: Final = parse_address("239.75.86.1")


@dataclass(frozen=True, slots=True)
class Fabric:
    """What all data datagrams of one fabric share, and how those that its switch sends are known."""

    group: Address = DEFAULT_GROUP
    qkey: int = 0x1111_1111
    source_qpn: int = 0x10
    segment_bytes: int = 4096
    from_switch_dscp: int = 0x2A
    """Code point (RFC 2474) of the datagrams that the switch sends by itself; all others are nodes'."""

    def __post_init__(self) -> None:
        if not 4 <= self.segment_bytes <= SEGMENT_BYTES_MAX or self.segment_bytes % 4:
            raise ValueError(f"segment_bytes is {self.segment_bytes}: use a multiple of 4 up to {SEGMENT_BYTES_MAX}")

    @property
    def datagram_bytes(self) -> int:
        """UDP payload of every data datagram."""
        return DATA_OVERHEAD_BYTES + self.segment_bytes

    @property
    def message_bytes(self) -> int:
        """The part of it that an RDMA NIC sends and receives as a UD message: chunk header and segment."""
        return KV_DATA_BYTES + self.segment_bytes


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
        self.segments = segments_of(self._size_bytes, fabric)
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


def header_template(key: ChunkKey, size_bytes: int, fabric: Fabric) -> bytes:
    """What stands before a chunk's first segment, were that full; DATA_HEADER_BYTES long.

    Those of the others differ in their PSN, segment and length. Raises ValueError for a size that no chunk has.
    """
    segments = segments_of(size_bytes, fabric)
    bth = layouts.Bth(
        opcode=layouts.BTH_OPCODE_UD_SEND_ONLY,
        mig_request=1,
        partition_key=_DEFAULT_PARTITION,
        qpn=layouts.QPN_MULTICAST,
    )
    deth = layouts.Deth(qkey=fabric.qkey, src_qpn=fabric.source_qpn)
    chunk = layouts.KvData(
        version=layouts.KV_VERSION, op=layouts.OP_DATA, segments=segments, length=fabric.segment_bytes, key=key
    )
    return bth.pack() + deth.pack() + chunk.pack()


def segments_of(size_bytes: int, fabric: Fabric) -> int:
    """Segments of a chunk. Raises ValueError for a size that no chunk has."""
    if size_bytes < 1:
        raise ValueError("a chunk has at least one byte")
    segments = -(-size_bytes // fabric.segment_bytes)
    if segments > CHUNK_SEGMENTS_MAX:
        raise ValueError(f"{size_bytes} bytes are more than {CHUNK_SEGMENTS_MAX} segments")
    return segments


def _headers(key: ChunkKey, size_bytes: int, segments: int, fabric: Fabric) -> npt.NDArray[np.uint8]:
    """Headers of all segments of a chunk, (segments, DATA_HEADER_BYTES)."""
    rows = np.zeros(segments, _HEADER_DTYPE)
    index = np.arange(segments, dtype=np.uint32)
    bth, deth = rows["bth"], rows["deth"]
    bth["opcode"] = layouts.BTH_OPCODE_UD_SEND_ONLY
    bth["solicited_event_mig_request_pad_count_transport_version"] = _MIGRATED
    bth["partition_key"] = _DEFAULT_PARTITION
    bth["qpn"] = 0xFF
    bth["psn"] = (index & 0xFFFFFF).astype(">u4").view(np.uint8).reshape(segments, 4)[:, 1:]
    deth["qkey"] = fabric.qkey
    deth["src_qpn"] = _qpn_bytes(fabric.source_qpn)
    _fill_chunk_headers(rows["chunk"], key, size_bytes, fabric)
    return rows.view(np.uint8).reshape(segments, DATA_HEADER_BYTES)


def chunk_headers(key: ChunkKey, size_bytes: int, fabric: Fabric) -> npt.NDArray[np.uint8]:
    """(segments, KV_DATA_BYTES): what stands before each segment in a UD message, for NICs that add the rest."""
    rows = np.zeros(-(-size_bytes // fabric.segment_bytes), KV_DATA_DTYPE)
    _fill_chunk_headers(rows, key, size_bytes, fabric)
    return rows.view(np.uint8).reshape(len(rows), KV_DATA_BYTES)


def _fill_chunk_headers(chunk: npt.NDArray[np.void], key: ChunkKey, size_bytes: int, fabric: Fabric) -> None:
    segments = len(chunk)
    chunk["version"] = layouts.KV_VERSION
    chunk["op"] = layouts.OP_DATA
    chunk["segment"] = np.arange(segments, dtype=np.uint32)
    chunk["segments"] = segments
    chunk["length"] = fabric.segment_bytes
    chunk["length"][-1] = size_bytes - (segments - 1) * fabric.segment_bytes
    chunk["key"] = np.frombuffer(key, np.uint8)


def _qpn_bytes(qpn: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(qpn.to_bytes(3, "big"), np.uint8)


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
) -> DecodedBatch:
    """Decode a batch of datagrams, each in one row.

    `rows` (n, >= datagram_bytes), `lengths` (n,) bytes received, `sources` (n,) IPv4 addresses in host order,
    `source_ports` (n,), `from_switch` (n,) whether the from-switch code point was set. The byte that the ICRC masks is
    overwritten in `rows`. Never raises for what the bytes are: bad rows are counted by reason.
    """
    dropped: Counter[WireReason] = Counter()
    if not len(lengths):
        return DecodedBatch((), dropped)
    headers = _view_records(rows, _HEADER_DTYPE)
    bth, deth = headers["bth"], headers["deth"]
    is_other_opcode = (bth["opcode"] != layouts.BTH_OPCODE_UD_SEND_ONLY) | (bth["qpn"] != 0xFF).any(axis=1)
    tests = (
        *_length_tests(lengths, fabric.datagram_bytes),
        (WireReason.OPCODE, is_other_opcode),
        (WireReason.QKEY, deth["qkey"] != fabric.qkey),
        *_chunk_header_tests(headers["chunk"], fabric),
    )
    good = _check_icrcs(rows, _passed(tests, dropped), sources, source_ports, fabric, dropped)
    return DecodedBatch(_group(headers["chunk"], good, sources, from_switch), dropped)


def decode_messages(
    rows: npt.NDArray[np.uint8],
    lengths: npt.NDArray[np.integer],
    sources: npt.NDArray[np.uint32],
    fabric: Fabric,
    from_switch: npt.NDArray[np.bool_] | None = None,
    *,
    offset: int = 0,
) -> DecodedBatch:
    """Decode a batch of UD messages as an RDMA NIC delivers them: without BTH, DETH and ICRC, which it has checked.

    `rows` (n, >= offset + message_bytes), C-contiguous, the chunk header at `offset`; the rest as in `decode_batch`.
    """
    dropped: Counter[WireReason] = Counter()
    if not len(lengths):
        return DecodedBatch((), dropped)
    chunk = _view_records(rows, KV_DATA_DTYPE, offset)
    tests = (*_length_tests(lengths, fabric.message_bytes), *_chunk_header_tests(chunk, fabric))
    return DecodedBatch(_group(chunk, _passed(tests, dropped), sources, from_switch), dropped)


_Tests = tuple[tuple[WireReason, npt.NDArray[np.bool_]], ...]


def _view_records(rows: npt.NDArray[np.uint8], dtype: np.dtype[np.void], offset: int = 0) -> npt.NDArray[np.void]:
    """What stands at `offset` of each row, as records, without a copy."""
    return np.ndarray((rows.shape[0],), dtype, rows, offset, (rows.strides[0],))


def _length_tests(lengths: npt.NDArray[np.integer], whole_bytes: int) -> _Tests:
    return ((WireReason.TRUNCATED, lengths < whole_bytes), (WireReason.OVERSIZED, lengths > whole_bytes))


def _chunk_header_tests(chunk: npt.NDArray[np.void], fabric: Fabric) -> _Tests:
    segment, segments, length = chunk["segment"], chunk["segments"], chunk["length"]
    size = fabric.segment_bytes
    is_last = segment + np.uint64(1) == segments
    return (
        (WireReason.VERSION, chunk["version"] != layouts.KV_VERSION),
        (WireReason.OP, chunk["op"] != layouts.OP_DATA),
        (WireReason.RESERVED, (chunk["flags"] | chunk["reserved"]) != 0),
        (WireReason.SEGMENT, (segment >= segments) | (segments > CHUNK_SEGMENTS_MAX)),
        (WireReason.LENGTH, (length == 0) | (length > size) | ((length != size) & ~is_last)),
    )


def _passed(tests: _Tests, dropped: Counter[WireReason]) -> npt.NDArray[np.intp]:
    """Indices of rows that fail no test, in order; the others are counted by the first that they fail."""
    bad = np.zeros(len(tests[0][1]), np.bool_)
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
    """Those of `good` whose ICRC is right.

    It covers the IP identification, which a UDP socket does not show. Our sockets send 0; what an RDMA NIC puts there
    is its own business, so from one (its source QPN is not the sockets') any identification is accepted that makes
    the ICRC right. That leaves 16 of its 32 bits as a check, in addition to Ethernet's FCS and the chunk's checksum.
    """
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
    source_qpns = _view_records(rows, _HEADER_DTYPE)["deth"]["src_qpn"][good]
    from_nic = (source_qpns != _qpn_bytes(fabric.source_qpn)).any(axis=1)
    right |= from_nic & is_identification_difference(computed ^ said, fabric.datagram_bytes)
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
