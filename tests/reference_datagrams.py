"""How data datagrams are decoded and checked, in numpy: what tests hold the data path in C against."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey
from kvproto.errors import WireReason
from kvproto.ids import Address
from kvproto.limits import CHUNK_SEGMENTS_MAX
from kvproto.wire import layouts
from kvproto.wire.data import DATA_HEADER_BYTES, Fabric
from kvproto.wire.icrc import BTH_RESERVED_OFFSET, ICRC_BYTES, icrc_seed, identification_basis
from kvproto.wire.layouts import BTH_DTYPE, DETH_DTYPE, KV_DATA_DTYPE

_HEADER_DTYPE: Final = np.dtype([("bth", BTH_DTYPE), ("deth", DETH_DTYPE), ("chunk", KV_DATA_DTYPE)])

assert _HEADER_DTYPE.itemsize == DATA_HEADER_BYTES


def icrc(seed: int, transport: bytes | bytearray | memoryview) -> int:
    """ICRC of a datagram from the BTH up to but without the ICRC, continued from `icrc_seed`."""
    state = zlib.crc32(transport[:BTH_RESERVED_OFFSET], seed)
    state = zlib.crc32(b"\xff", state)
    return zlib.crc32(transport[BTH_RESERVED_OFFSET + 1 :], state)


def is_identification_difference(differences: npt.NDArray[np.uint32], payload_bytes: int) -> npt.NDArray[np.bool_]:
    """Which differences between two ICRCs another IP identification explains, for datagrams of one length.

    `payload_bytes`: UDP payload with its ICRC. Of 2^32 differences 2^16 pass.
    """
    rest = differences.astype(np.uint32)
    for lead, pattern in identification_basis(payload_bytes):
        rest ^= np.where(rest & np.uint32(lead), np.uint32(pattern), np.uint32(0))
    explained: npt.NDArray[np.bool_] = rest == 0
    return explained


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
    from_nic = (source_qpns != np.frombuffer(fabric.source_qpn.to_bytes(3, "big"), np.uint8)).any(axis=1)
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
