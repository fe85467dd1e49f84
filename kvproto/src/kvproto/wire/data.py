"""The data datagram (UDP port 4791): RoCEv2 UD SEND-only to the fabric's group, as holders build it.

A datagram here is the UDP payload: BTH, DETH, chunk header, one segment padded to full size, ICRC.
"""

import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey
from kvproto.blocks import blocks_of
from kvproto.fanout import Fanout
from kvproto.ids import Address, Member, parse_address
from kvproto.limits import CHUNK_SEGMENTS_MAX, SEGMENT_BYTES_MAX
from kvproto.wire import layouts
from kvproto.wire.icrc import BTH_RESERVED_OFFSET, ICRC_BYTES, icrc_seed, pack_icrc
from kvproto.wire.layouts import (
    BTH_BYTES,
    BTH_DTYPE,
    DETH_BYTES,
    DETH_DTYPE,
    IPV4_BYTES,
    KV_CONTROL_BYTES,
    KV_DATA_BYTES,
    KV_DATA_DTYPE,
    UDP_BYTES,
)

DATA_HEADER_BYTES: Final = BTH_BYTES + DETH_BYTES + KV_DATA_BYTES
DATA_OVERHEAD_BYTES: Final = DATA_HEADER_BYTES + ICRC_BYTES
"""What a data datagram has besides its segment, in bytes of UDP payload."""
FILL_OVERHEAD_BYTES: Final = IPV4_BYTES + UDP_BYTES + KV_CONTROL_BYTES + DATA_OVERHEAD_BYTES
"""What stands around a segment in a FILL, the largest IP packet there is."""
_HEADER_DTYPE: Final = np.dtype([("bth", BTH_DTYPE), ("deth", DETH_DTYPE), ("chunk", KV_DATA_DTYPE)])
_MIGRATED: Final = 0x40
"""BTH byte 1: path migration state 'migrated', no padding, transport version 0."""
_DEFAULT_PARTITION: Final = 0xFFFF

assert _HEADER_DTYPE.itemsize == DATA_HEADER_BYTES


QPN_NUMBERED: Final = 0x11
"""Source QPN of datagrams that left by one buffer: the kernel or the NIC that cut it has numbered their IP packets."""
DEFAULT_GROUP: Final = parse_address("239.75.86.1")


@dataclass(frozen=True, slots=True)
class Fabric:
    """What all data datagrams of one fabric share, and how those that its switch sends are known."""

    group: Address = DEFAULT_GROUP
    qkey: int = 0x1111_1111
    source_qpn: int = 0x10
    """Of datagrams whose IP identification is 0."""
    segment_bytes: int = 4096
    from_switch_dscp: int = 0x2A
    """Code point (RFC 2474) of the datagrams that the switch sends by itself; all others are nodes'."""
    fanout: Fanout = Fanout.SWITCH
    unasked_weight: float = 0.0
    """Of multicast: see `kvproto.blocks.cover`."""
    member: Member | None = None
    """Of multicast: this node's number, and with it its blocks; None: not known yet."""

    def __post_init__(self) -> None:
        if not 4 <= self.segment_bytes <= SEGMENT_BYTES_MAX or self.segment_bytes % 4:
            raise ValueError(f"segment_bytes is {self.segment_bytes}: use a multiple of 4 up to {SEGMENT_BYTES_MAX}")

    def group_of(self, block: int) -> Address:
        """The group of a block of members: they follow on the fabric's own."""
        return Address(self.group + block)

    @property
    def groups(self) -> tuple[Address, ...]:
        """Where casts for this node go."""
        if self.fanout is not Fanout.MULTICAST:
            return (self.group,)
        return () if self.member is None else tuple(map(self.group_of, blocks_of(self.member)))

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

    def __init__(self, key: ChunkKey, payload: memoryview, fabric: Fabric, source: Address, source_port: int) -> None:
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
