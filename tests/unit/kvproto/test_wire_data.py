"""Data datagrams: layout and ICRC against vectors made elsewhere, batches against single datagrams, hostile bytes."""

import struct
import zlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchunk.ids import ChunkKey
from kvproto.errors import WireError, WireReason
from kvproto.ids import Address, parse_address
from kvproto.wire.data import (
    DATA_OVERHEAD_BYTES,
    ChunkFraming,
    Fabric,
    chunk_headers,
)
from tests.reference_datagrams import decode_batch, decode_messages
from tests.unit.kvproto.datagrams import decode_datagram

SOURCE = parse_address("10.75.0.1")
PORT = 0xC000
FABRIC = Fabric(segment_bytes=256)
KEY = ChunkKey(bytes(range(16)))


def framing(size_bytes: int = 8 * 256, key: ChunkKey = KEY, fabric: Fabric = FABRIC) -> ChunkFraming:
    payload = (b"abcd" * (size_bytes // 4 + 1))[:size_bytes]
    return ChunkFraming(key, memoryview(payload), fabric, SOURCE, PORT)


def reference_icrc(source: bytes, group: bytes, port: int, transport: bytes) -> bytes:
    """The CRC written out as the annex says, in one piece."""
    length = len(transport) + 4
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0xFF, 28 + length, 0, 0x4000, 0xFF, 17, 0xFFFF, source, group)
    udp = struct.pack("!HHHH", port, 4791, 8 + length, 0xFFFF)
    masked = transport[:4] + b"\xff" + transport[5:]
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + ip + udp + masked))


def test_a_datagram_equals_the_bytes_a_soft_roce_device_accepted() -> None:
    datagram = framing().datagram(3)
    assert datagram[:52].hex() == (
        "6440ffff00ffffff00000003111111110000001001100000000000030000000800000100000102030405060708090a0b0c0d0e0f"
    )
    assert datagram[52:-4] == b"abcd" * 64
    assert datagram[-4:].hex() == "3a0f069f"


@given(
    size_bytes=st.integers(1, 3000),
    port=st.integers(0, 65535),
    source=st.integers(0, 2**32 - 1),
    segment_bytes=st.sampled_from([4, 64, 256, 1024]),
)
def test_icrc_follows_the_annex(size_bytes: int, port: int, source: int, segment_bytes: int) -> None:
    fabric = Fabric(segment_bytes=segment_bytes)
    made = ChunkFraming(KEY, memoryview(bytes(size_bytes)), fabric, Address(source), port)
    last = made.datagram(made.segments - 1)
    assert len(last) == DATA_OVERHEAD_BYTES + segment_bytes
    wanted = reference_icrc(source.to_bytes(4, "big"), fabric.group.to_bytes(4, "big"), port, last[:-4])
    assert last[-4:] == wanted
    assert len(decode_datagram(last, Address(source), port, fabric).payload) == (size_bytes - 1) % segment_bytes + 1


@given(size_bytes=st.integers(1, 5000))
def test_every_byte_comes_back(size_bytes: int) -> None:
    made = framing(size_bytes)
    parts = [decode_datagram(made.datagram(index), SOURCE, PORT, FABRIC) for index in range(made.segments)]
    assert b"".join(part.payload for part in parts) == (b"abcd" * size_bytes)[:size_bytes]
    assert [(part.segment, part.segments, part.key) for part in parts] == [
        (index, made.segments, KEY) for index in range(made.segments)
    ]


def test_icrcs_of_a_range_do_not_depend_on_what_was_computed_before() -> None:
    one, other = framing(), framing()
    one.icrcs(2, 3)
    assert (one.icrcs(0, 8) == other.icrcs(0, 8)).all()


def batch(datagrams: list[bytes], *, width: int = 512) -> tuple[np.ndarray, np.ndarray]:
    rows = np.zeros((len(datagrams), width), np.uint8)
    for row, datagram in zip(rows, datagrams, strict=True):
        row[: len(datagram)] = np.frombuffer(datagram, np.uint8)
    return rows, np.array([len(datagram) for datagram in datagrams])


def test_a_batch_is_grouped_by_chunk_and_source() -> None:
    other_key = ChunkKey(bytes(range(1, 17)))
    one, two = framing(), framing(key=other_key)
    far = ChunkFraming(KEY, memoryview(b"abcd" * 512), FABRIC, Address(SOURCE + 1), PORT)
    rows, lengths = batch([one.datagram(1), two.datagram(0), one.datagram(0), far.datagram(7), two.datagram(5)])
    sources = np.array([SOURCE, SOURCE, SOURCE, SOURCE + 1, SOURCE], np.uint32)
    ports = np.full(5, PORT)
    marks = np.array([True, False, True, False, True])
    decoded = decode_batch(rows, lengths, sources, ports, FABRIC, marks)
    assert [
        (group.key, group.source, group.rows.tolist(), group.segments.tolist(), group.from_switch)
        for group in decoded.groups
    ] == [
        (KEY, SOURCE, [0, 2], [1, 0], 2),
        (other_key, SOURCE, [1, 4], [0, 5], 1),
        (KEY, SOURCE + 1, [3], [7], 0),
    ]
    assert not decoded.dropped


def corrupt(datagram: bytes, offset: int, value: int) -> bytes:
    changed = bytearray(datagram)
    changed[offset] = value
    return bytes(changed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d[:-1], WireReason.TRUNCATED),
        (lambda d: d[:20], WireReason.TRUNCATED),
        (lambda d: b"", WireReason.TRUNCATED),
        (lambda d: d + b"\0", WireReason.OVERSIZED),
        (lambda d: corrupt(d, 0, 0x04), WireReason.OPCODE),
        (lambda d: corrupt(d, 5, 0), WireReason.OPCODE),
        (lambda d: corrupt(d, 12, 0), WireReason.QKEY),
        (lambda d: corrupt(d, 20, 2), WireReason.VERSION),
        (lambda d: corrupt(d, 21, 3), WireReason.OP),
        (lambda d: corrupt(d, 23, 3), WireReason.RESERVED),
        (lambda d: corrupt(d, 27, 8), WireReason.SEGMENT),
        (lambda d: corrupt(d, 35, 1), WireReason.LENGTH),
        (lambda d: corrupt(d, 34, 2), WireReason.LENGTH),
        (lambda d: corrupt(d, 36, 99), WireReason.ICRC),
        (lambda d: corrupt(d, 100, 99), WireReason.ICRC),
        (lambda d: corrupt(d, len(d) - 1, d[-1] ^ 1), WireReason.ICRC),
    ],
)
def test_bad_rows_are_counted_and_good_rows_beside_them_kept(change, reason) -> None:
    made = framing()
    rows, lengths = batch([made.datagram(2), change(made.datagram(3)), made.datagram(4)])
    decoded = decode_batch(rows, lengths, np.full(3, SOURCE, np.uint32), np.full(3, PORT), FABRIC)
    assert decoded.dropped == Counter({reason: 1})
    (group,) = decoded.groups
    assert group.segments.tolist() == [2, 4]


def test_what_routers_may_change_does_not_matter() -> None:
    datagram = corrupt(framing().datagram(3), 4, 0x7F)
    assert decode_datagram(datagram, SOURCE, PORT, FABRIC).segment == 3


@settings(max_examples=300)
@given(datagram=st.binary(max_size=400))
def test_random_bytes_are_refused_with_a_reason(datagram: bytes) -> None:
    with pytest.raises(WireError):
        decode_datagram(datagram, SOURCE, PORT, FABRIC)


def test_empty_batch() -> None:
    empty = np.zeros((0, 512), np.uint8)
    decoded = decode_batch(empty, np.zeros(0, int), np.zeros(0, np.uint32), np.zeros(0, int), FABRIC)
    assert decoded.groups == ()


def test_segment_size_must_be_usable() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        Fabric(segment_bytes=250)


def from_nic(datagram: bytes, identification: int) -> bytes:
    """The datagram as an RDMA NIC sends it: a queue pair's number of its own, an IP identification of its own."""
    transport = datagram[:17] + b"\x00\x01\x23" + datagram[20:-4]
    length = len(datagram)
    addresses = struct.pack("!II", SOURCE, FABRIC.group)
    ip = struct.pack("!BBHHHBBH", 0x45, 0xFF, 28 + length, identification, 0x4000, 0xFF, 17, 0xFFFF) + addresses
    udp = struct.pack("!HHHH", PORT, 4791, 8 + length, 0xFFFF)
    masked = transport[:4] + b"\xff" + transport[5:]
    return transport + struct.pack("<I", zlib.crc32(b"\xff" * 8 + ip + udp + masked))


@given(identification=st.integers(0, 0xFFFF), segment=st.integers(0, 7))
def test_a_nics_identification_is_its_own_business(identification: int, segment: int) -> None:
    datagram = from_nic(framing().datagram(segment), identification)
    assert decode_datagram(datagram, SOURCE, PORT, FABRIC).segment == segment


@settings(max_examples=60)
@given(identification=st.integers(1, 0xFFFF), place=st.integers(52, 52 + 255), bit=st.integers(0, 7))
def test_damage_is_no_identification(identification: int, place: int, bit: int) -> None:
    """One wrong bit makes a difference that no identification makes: the distance of the CRC sees to that."""
    damaged = bytearray(from_nic(framing().datagram(1), identification))
    damaged[place] ^= 1 << bit
    with pytest.raises(WireError) as refused:
        decode_datagram(bytes(damaged), SOURCE, PORT, FABRIC)
    assert refused.value.reason is WireReason.ICRC


def test_our_sockets_have_no_other_identification() -> None:
    datagram = framing().datagram(1)
    odd = from_nic(datagram, 7)
    ours = odd[:17] + datagram[17:20] + odd[20:]
    with pytest.raises(WireError):
        decode_datagram(ours, SOURCE, PORT, FABRIC)


def test_messages_are_datagrams_without_what_the_nic_takes_off() -> None:
    made = framing(5 * 256 + 3)
    messages = [made.datagram(index)[20:-4] for index in range(6)]
    rows = np.zeros((7, 40 + FABRIC.message_bytes + 1), np.uint8)
    for row, message in zip(rows, messages, strict=False):
        row[40 : 40 + len(message)] = np.frombuffer(message, np.uint8)
    rows[6] = rows[0]
    rows[6, 40] = 9
    lengths = np.full(7, FABRIC.message_bytes)
    lengths[2] -= 1
    sources = np.full(7, SOURCE, np.uint32)
    batch = decode_messages(rows, lengths, sources, FABRIC, offset=40)
    assert batch.dropped == Counter({WireReason.TRUNCATED: 1, WireReason.VERSION: 1})
    (group,) = batch.groups
    assert group.segments.tolist() == [0, 1, 3, 4, 5]
    assert group.segments_in_chunk == 6
    assert [message[:32] for message in messages] == [row.tobytes() for row in chunk_headers(KEY, 5 * 256 + 3, FABRIC)]
