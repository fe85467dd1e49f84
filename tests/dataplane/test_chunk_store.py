"""FILL, GET and what the switch serves."""

from __future__ import annotations

import dataclasses

import finsy as fy
import pytest

from p4switch_tna.checksums import internet_checksum
from tests.dataplane.bench import ALL_PORTS, STRANGER_PORT, Bench, counts, mask, notices, served
from tests.dataplane.frames import (
    FROM_SWITCH_DSCP,
    GROUP_MAC,
    POOL_IP,
    POOL_MAC,
    Control,
    Drop,
    Flag,
    Host,
    Op,
    Segment,
    parse,
)

FLAGS_AT = 14 + 20 + 8 + 2
"""In the frame of a control datagram."""


def with_udp_checksum(frame: bytes) -> bytes:
    """What a holder's kernel or NIC makes of its datagrams."""
    pseudo = frame[26:34] + bytes((0, 17)) + frame[38:40]
    covered = pseudo + frame[34:40] + b"\0\0" + frame[42:]
    checksum = internet_checksum(covered + b"\0" * (len(covered) % 2)) or 0xFFFF
    return frame[:40] + checksum.to_bytes(2, "big") + frame[42:]


@pytest.mark.parametrize("checksum", [False, True], ids=["plain", "udp checksum"])
def test_fill_is_acknowledged_to_the_holder(bench: Bench, checksum: bool) -> None:
    key = bench.key()
    segments = bench.segments(key)
    bench.insert(bench.chunk(key, "filling", base_slot=0, segments=8, port=1))
    fill = Control(Op.FILL, key, 3, 8, tag=0xBEEF, flags=0x5A, member=7)
    frame = segments[3].fill_frame(control=fill)
    received = bench.exchange((1, with_udp_checksum(frame) if checksum else frame))
    assert counts(received) == {1: 1}
    (frame,) = received[1]
    datagram = parse(frame)
    assert datagram.headers_valid
    assert (datagram.src_mac, datagram.src_ip, datagram.src_port) == (POOL_MAC, POOL_IP, 4793)
    assert (datagram.dst_mac, datagram.dst_ip, datagram.dst_port) == (Host(1).mac, Host(1).ip, 4793)
    assert datagram.payload == Control(Op.FILL_ACK, key, 3, 8, tag=0xBEEF, member=0).pack()


def test_every_segment_is_served_byte_for_byte(bench: Bench) -> None:
    key = bench.key()
    segments = bench.segments(key)
    bench.cache(segments, base_slot=16)
    for segment in segments:
        received = bench.ask(2, bench.get(key, segment.segment))
        assert counts(received) == {2: 1}
        served(received[2][0], segment)


def test_served_bytes_are_the_holders_own_headers(bench: Bench) -> None:
    """Whatever the holder wrote into the fields that the ICRC covers comes back."""
    key = bench.key()
    segments = bench.segments(key, holder=6, src_port=0xABCD, src_qpn=0xF00BA5, partition_key=0x8001, flags=0x5A)
    bench.cache(segments, base_slot=32)
    received = bench.ask(2, bench.get(key, 7), holder=6)
    served(received[2][0], segments[7])


def test_get_goes_to_the_interest_set_and_the_asker(bench: Bench) -> None:
    key = bench.key()
    segments = bench.segments(key)
    bench.cache(segments, base_slot=48)
    bench.join(3, key)
    bench.join(4, key)
    received = bench.ask(2, bench.get(key, 5))
    assert counts(received) == {2: 1, 3: 1, 4: 1}
    for frames in received.values():
        served(frames[0], segments[5])


def test_get_only_me_goes_to_the_asker_alone(bench: Bench) -> None:
    key = bench.key()
    segments = bench.segments(key)
    bench.cache(segments, base_slot=56)
    bench.join(2, key)
    bench.join(3, key)
    received = bench.ask(2, bench.get(key, 1, amount=3, flags=Flag.ONLY_ME), expect=3)
    assert counts(received) == {2: 3}
    for frame, segment in zip(bench.in_order(received[2]), segments[1:4], strict=True):
        served(frame, segment)


def test_get_of_several_segments_reaches_the_whole_interest_set(bench: Bench) -> None:
    """The recirculated part of a GET knows its asker and the interest set (bmv2 forgets port and time)."""
    key = bench.key()
    segments = bench.segments(key)
    bench.cache(segments, base_slot=64)
    bench.join(2, key)
    bench.join(3, key)
    received = bench.ask(4, bench.get(key, 0, amount=8), expect=24)
    assert counts(received) == {2: 8, 3: 8, 4: 8}
    for frames in received.values():
        for frame, segment in zip(bench.in_order(frames), segments, strict=True):
            served(frame, segment)


def test_who_has_not_joined_gets_nothing(bench: Bench) -> None:
    """Neither from the switch nor, through it, from the holder; nor does it cost those who wait anything."""
    served_here, absent = bench.key(), bench.key()
    bench.cache(bench.segments(served_here), base_slot=168)
    for key in (served_here, absent):
        before = bench.drops()[Drop.NOT_JOINED]
        for flags in (0, Flag.ONLY_ME):
            assert counts(bench.control(2, bench.get(key, 0, amount=4, flags=flags))) == {}, "nobody waits"
        bench.join(3, key)
        for flags in (0, Flag.ONLY_ME):
            assert counts(bench.control(2, bench.get(key, 0, amount=4, flags=flags))) == {}, "somebody else waits"
        assert bench.drops()[Drop.NOT_JOINED] == before + 4
        assert notices(bench.join(4, key))[4].count == 0, "it leads nobody"
        bench.leave(4, key)
        received = bench.ask(3, bench.get(key, 0, amount=4), expect=4 if key == served_here else 1)
        assert counts(received) == ({3: 4} if key == served_here else {1: 1})


def test_who_left_or_was_forgotten_gets_nothing(bench: Bench) -> None:
    """Until it joins again: a lost JOIN, a switch that restarted or a pause of its process cost a round trip."""
    key = bench.key()
    bench.cache(bench.segments(key), base_slot=168)
    bench.join(2, key)
    bench.join(3, key)
    bench.leave(3, key)
    assert counts(bench.control(3, bench.get(key, 1))) == {}
    bench.join(3, key)
    assert counts(bench.control(3, bench.get(key, 1))) == {2: 1, 3: 1}
    bench.fabric(ttl_us=1)
    assert counts(bench.control(3, bench.get(key, 1))) == {}
    bench.fabric()
    bench.join(3, key)
    assert 3 in counts(bench.control(3, bench.get(key, 1)))


def test_rest_of_a_get_is_not_flooded_back_to_its_asker(bench: Bench) -> None:
    """The recirculated part of a GET knows its ingress port."""
    key, unknown_holder = bench.key(), 77
    segments = bench.segments(key)
    bench.insert(bench.chunk(key, "filling", base_slot=176, segments=8, port=1))
    bench.exchange((1, segments[0].fill_frame()))
    bench.serve(key, 176, 8)
    echoed = bench.target.profile.circulates  # what comes round from the recirculation port has no other port
    received = bench.ask(2, bench.get(key, 0, amount=8), holder=unknown_holder, expect=10 if echoed else 9)
    assert counts(received) == dict.fromkeys(ALL_PORTS, 1) | {2: 2 if echoed else 1}
    served(next(frame for frame in received[2] if frame[:6] == GROUP_MAC), segments[0])
    assert {parse(frames[0]).control.segment for port, frames in received.items() if port != 2} == {1}


def test_get_beyond_the_end_is_clipped(bench: Bench) -> None:
    key = bench.key()
    segments = bench.segments(key)
    bench.cache(segments, base_slot=72)
    bench.join(2, key)
    before = bench.drops()
    received = bench.ask(2, bench.get(key, 6, amount=100), expect=2)
    assert [
        served(frame, segment).segment for frame, segment in zip(bench.in_order(received[2]), segments[6:], strict=True)
    ] == [6, 7]
    assert counts(received) == {2: 2}
    assert bench.drops() == before


@pytest.mark.parametrize(("segment", "amount"), [(8, 1), (0xFFFFFFFF, 2), (3, 0)])
def test_get_of_no_segment_is_dropped_and_counted(bench: Bench, segment: int, amount: int) -> None:
    key = bench.key()
    bench.cache(bench.segments(key), base_slot=80)
    for asked in (key, bench.key()):
        before = bench.drops()[Drop.BEYOND_END]
        assert counts(bench.ask(2, bench.get(asked, segment, amount=amount))) == {}
        assert bench.drops()[Drop.BEYOND_END] == before + 1


def test_get_while_filling_goes_to_the_holder(bench: Bench) -> None:
    key = bench.key()
    segments = bench.segments(key)
    bench.insert(bench.chunk(key, "filling", base_slot=88, segments=8, port=1))
    for segment in segments[:5]:
        bench.exchange((1, segment.fill_frame()))
    received = bench.ask(2, bench.get(key, 0, amount=8))
    assert counts(received) == {1: 1}
    assert parse(received[1][0]).control.count == 8


def test_slot_of_another_chunk_is_never_served(bench: Bench) -> None:
    """A chunk that takes over slots of another one is served only where it was filled itself."""
    old, new = bench.key(), bench.key()
    old_segments, new_segments = bench.segments(old), bench.segments(new)
    bench.cache(old_segments, base_slot=96)
    bench.remove(bench.chunk(old, "filling", base_slot=96, segments=8, port=1))
    bench.insert(bench.chunk(new, "filling", base_slot=96, segments=8, port=1))
    for segment in new_segments[:4]:
        bench.exchange((1, segment.fill_frame()))
    bench.serve(new, 96, 8)  # too early: half of it is missing
    received = bench.ask(2, bench.get(new, 0, amount=8), expect=5)
    assert counts(received) == {1: 1, 2: 4}
    for frame, segment in zip(bench.in_order(received[2]), new_segments[:4], strict=True):
        served(frame, segment)
    rest = parse(received[1][0]).control
    assert (rest.op, rest.segment, rest.count, rest.member) == (Op.GET, 4, 4, Host(2).member)


def test_evicted_chunk_goes_to_its_holder_again(bench: Bench) -> None:
    key = bench.key()
    bench.cache(bench.segments(key), base_slot=104)
    bench.remove(bench.chunk(key, "filling", base_slot=104, segments=8, port=1))
    assert counts(bench.ask(2, bench.get(key, 0))) == {1: 1}


def test_two_chunks_are_served_beside_each_other(bench: Bench) -> None:
    chunks = [bench.segments(bench.key(), holder=holder) for holder in (1, 5)]
    for number, segments in enumerate(chunks):
        bench.cache(segments, base_slot=112 + 8 * number)
    for segments in chunks:
        received = bench.ask(3, bench.get(segments[0].key, 0, amount=8), expect=8)
        for frame, segment in zip(bench.in_order(received[3]), segments, strict=True):
            served(frame, segment)


def test_notice_says_that_the_switch_serves_the_chunk(bench: Bench) -> None:
    key = bench.key()
    bench.insert(bench.chunk(key, "filling", base_slot=128, segments=8, port=1))
    assert notices(bench.join(2, key))[2].flags == Flag.JOINED
    bench.serve(key, 128, 8)
    assert notices(bench.join(3, key))[3].flags == Flag.JOINED | Flag.CACHED
    assert notices(bench.leave(3, key))[2].flags == Flag.LEFT | Flag.CACHED


def refused_fills(segment: Segment) -> dict[str, tuple[int, bytes, Drop]]:
    """FILLs that must change nothing: (port, frame, reason)."""
    other = dataclasses.replace
    good = Control(Op.FILL, segment.key, segment.segment, segment.segments)
    stranger_key = bytes(16)
    return {
        "wrong-port": (3, segment.fill_frame(), Drop.FORGED_SOURCE),
        "wrong-port-and-sender": (3, segment.fill_frame(sender=Host(3)), Drop.FILL_REFUSED),
        "not-a-member": (STRANGER_PORT, segment.fill_frame(sender=Host(STRANGER_PORT)), Drop.NOT_A_MEMBER),
        "chunk-not-filling": (1, other(segment, key=stranger_key).fill_frame(), Drop.FILL_REFUSED),
        "data-of-another-chunk": (1, other(segment, key=stranger_key).fill_frame(control=good), Drop.FILL_MISMATCH),
        "data-of-another-segment": (1, other(segment, segment=0).fill_frame(control=good), Drop.FILL_MISMATCH),
        "beyond-the-end": (1, other(segment, segment=8).fill_frame(), Drop.BEYOND_END),
        "other-chunk-size": (1, other(segment, segments=9).fill_frame(), Drop.FILL_MISMATCH),
        "not-ud-send-only": (1, other(segment, opcode=0x04).fill_frame(), Drop.FILL_MISMATCH),
        "not-the-multicast-queue-pair": (1, other(segment, qpn=5).fill_frame(), Drop.FILL_MISMATCH),
        "data-version": (1, other(segment, version=2).fill_frame(), Drop.FILL_MISMATCH),
        "data-op": (1, other(segment, op=17).fill_frame(), Drop.FILL_MISMATCH),
        "one-byte-too-long": (1, other(segment, payload=segment.payload + b"x").fill_frame(), Drop.BAD_LENGTH),
    }


@pytest.mark.parametrize("kind", refused_fills(Segment(Host(1), bytes(16), 0, 1, b"")))
def test_refused_fill_changes_nothing(bench: Bench, kind: str) -> None:
    key = bench.key()
    segments = bench.segments(key)
    bench.insert(bench.chunk(key, "filling", base_slot=136, segments=8, port=1))
    for segment in segments:
        bench.exchange((1, segment.fill_frame()))
    forged = dataclasses.replace(segments[5], payload=bytes(bench.segment_bytes))
    port, frame, reason = refused_fills(forged)[kind]
    before = bench.drops()[reason]
    assert counts(bench.exchange((port, frame))) == {}
    assert bench.drops()[reason] == before + 1
    bench.serve(key, 136, 8)
    received = bench.ask(2, bench.get(key, 0, amount=8), expect=8)
    for got, segment in zip(bench.in_order(received[2]), segments, strict=True):
        served(got, segment)


def test_truncated_fill_is_never_served(bench: Bench) -> None:
    """A Tofino learns at egress how long a packet is: it has acknowledged the FILL by then, and misses the segment."""
    key = bench.key()
    segments = bench.segments(key, 6)
    bench.insert(bench.chunk(key, "filling", base_slot=184, segments=6, port=1))
    for segment in segments[:5]:
        bench.exchange((1, segment.fill_frame()))
    late = bench.target.profile.circulates
    before = bench.drops()[Drop.TRUNCATED]
    assert counts(bench.exchange((1, segments[5].fill_frame()[:-8]))) == ({1: 1} if late else {})
    assert bench.drops()[Drop.TRUNCATED] == before + 1
    bench.serve(key, 184, 6)
    received = bench.ask(2, bench.get(key, 0, segments=6, amount=6), expect=5 if late else 6)
    assert counts(received) == ({2: 5} if late else {1: 1, 2: 5})
    for got, segment in zip(bench.in_order(received[2]), segments[:5], strict=True):
        served(got, segment)


def test_fill_after_serving_is_refused(bench: Bench) -> None:
    key = bench.key()
    segments = bench.segments(key)
    bench.cache(segments, base_slot=144)
    before = bench.drops()[Drop.FILL_REFUSED]
    forged = dataclasses.replace(segments[2], payload=bytes(bench.segment_bytes))
    assert counts(bench.exchange((1, forged.fill_frame()))) == {}
    assert bench.drops()[Drop.FILL_REFUSED] == before + 1
    served(bench.ask(2, bench.get(key, 2))[2][0], segments[2])


def test_direct_counter_counts_what_is_served(bench: Bench) -> None:
    key = bench.key()
    bench.cache(bench.segments(key), base_slot=152)
    before = bench.heat(key, 152)
    bench.ask(2, bench.get(key, 0, amount=8), expect=8)
    bench.join(2, key)
    assert bench.heat(key, 152) == before + 8 + 3, "JOIN, LEAVE and JOIN beside them"


def test_set_of_the_asker_alone(bench: Bench) -> None:
    key = bench.key()
    segments = bench.segments(key)
    bench.cache(segments, base_slot=160)
    assert notices(bench.join(2, key))[2].members == mask(2)
    received = bench.ask(2, bench.get(key, 0, amount=2), expect=2)
    assert counts(received) == {2: 2}


# --- a FILL that is cast


def cast_too(segment: Segment) -> bytes:
    return segment.fill_frame(
        control=Control(Op.FILL, segment.key, segment.segment, segment.segments, flags=Flag.CAST_TOO)
    )


def cast_of(frame: bytes, segment: Segment) -> None:
    """A frame is `segment` as its holder casts it: byte for byte, and not marked as the switch's."""
    datagram = parse(frame)
    assert datagram.headers_valid
    assert datagram.icrc_valid
    assert frame[34:] == segment.frame()[34:], "UDP to ICRC differs"
    assert (datagram.src_ip, datagram.dst_ip) == (segment.holder.ip, parse(segment.frame()).dst_ip)
    assert (datagram.dst_mac, datagram.dscp) == (GROUP_MAC, 0)


@pytest.mark.parametrize("waiting", [(), (2,), (2, 5), (2, 3, 4, 5)])
def test_a_fill_that_is_cast_too_reaches_switch_and_set(bench: Bench, waiting: tuple[int, ...]) -> None:
    key = bench.key()
    segments = bench.segments(key)
    bench.insert(bench.chunk(key, "filling", base_slot=192, segments=8, port=1))
    for port in waiting:
        bench.join(port, key)
    for segment in segments:
        received = bench.exchange((1, cast_too(segment)))
        assert counts(received) == dict.fromkeys(waiting, 1) | {1: 1}
        ack = parse(received[1][0])
        assert ack.headers_valid
        assert (ack.src_mac, ack.src_ip, ack.src_port) == (POOL_MAC, POOL_IP, 4793)
        assert (ack.dst_mac, ack.dst_ip, ack.dst_port) == (Host(1).mac, Host(1).ip, 4793)
        assert ack.payload == Control(Op.FILL_ACK, key, segment.segment, 8, member=Host(1).member).pack()
        for port in waiting:
            cast_of(received[port][0], segment)
    bench.serve(key, 192, 8)
    received = bench.ask(6, bench.get(key, 0, amount=8, flags=Flag.ONLY_ME), expect=8)
    assert counts(received) == {6: 8}
    for frame, segment in zip(bench.in_order(received[6]), segments, strict=True):
        served(frame, segment)


def test_a_fill_that_is_cast_twice_reaches_the_set_twice_and_is_kept_once(bench: Bench) -> None:
    """Its acknowledgement was lost, or its reader's copy: what circulates already is cast all the same."""
    key = bench.key()
    (segment,) = bench.segments(key, 1)
    bench.insert(bench.chunk(key, "filling", base_slot=200, segments=1, port=1))
    bench.join(3, key)
    for _ in range(2):
        received = bench.exchange((1, cast_too(segment)))
        assert counts(received) == {1: 1, 3: 1}
        cast_of(received[3][0], segment)
    bench.serve(key, 200, 1)
    received = bench.ask(3, bench.get(key, 0, segments=1), expect=1)
    assert counts(received) == {3: 1}
    served(received[3][0], segment)


def test_a_fill_that_is_cast_never_goes_back_as_data(bench: Bench) -> None:
    """Its sender is in the set, too: it gets the acknowledgement."""
    key = bench.key()
    (segment,) = bench.segments(key, 1)
    bench.insert(bench.chunk(key, "filling", base_slot=204, segments=1, port=1))
    bench.join(1, key)
    bench.join(4, key)
    received = bench.exchange((1, cast_too(segment)))
    assert counts(received) == {1: 1, 4: 1}
    assert parse(received[1][0]).control.op == Op.FILL_ACK
    cast_of(received[4][0], segment)


def test_a_fill_that_is_cast_is_never_marked_as_the_switchs(bench: Bench) -> None:
    """Whatever its sender wrote: readers would take it for served."""
    key = bench.key()
    (segment,) = bench.segments(key, 1)
    bench.insert(bench.chunk(key, "filling", base_slot=206, segments=1, port=1))
    bench.join(2, key)
    frame = bytearray(cast_too(segment))
    frame[15] = FROM_SWITCH_DSCP << 2
    frame[24:26] = bytes(2)
    frame[24:26] = internet_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    received = bench.exchange((1, bytes(frame)))
    assert counts(received) == {1: 1, 2: 1}
    cast_of(received[2][0], segment)


@pytest.mark.parametrize("kind", refused_fills(Segment(Host(1), bytes(16), 0, 1, b"")))
def test_a_refused_fill_is_not_cast(bench: Bench, kind: str) -> None:
    key = bench.key()
    segments = bench.segments(key)
    bench.insert(bench.chunk(key, "filling", base_slot=208, segments=8, port=1))
    bench.join(2, key)
    bench.join(4, key)
    port, frame, reason = refused_fills(dataclasses.replace(segments[5], payload=bytes(bench.segment_bytes)))[kind]
    flagged = bytearray(frame)
    flagged[FLAGS_AT] |= Flag.CAST_TOO
    before = bench.drops()[reason]
    assert counts(bench.exchange((port, bytes(flagged)))) == {}
    assert bench.drops()[reason] == before + 1
    bench.serve(key, 208, 8)
    asked = counts(bench.ask(2, bench.get(key, segments[5].segment)))
    assert asked == {1: 1}, "it was not stored either: its holder is asked"


@pytest.mark.parametrize("target", ["p4switch"], indirect=True)
def test_a_fill_that_is_cast_keeps_its_set_alive_as_data_does(bench: Bench) -> None:
    """On v1model, where registers can be read; on Tofino only JOINs do."""
    key = bench.key()
    (segment,) = bench.segments(key, 1)
    bench.insert(bench.chunk(key, "filling", base_slot=216, segments=1, port=1))
    bench.join(2, key)

    def last_seen() -> int:
        entry = fy.P4RegisterEntry("interest_last_seen", index=bench.interest_index(key))
        (found,) = bench.target.control.read(entry)
        return int(found.data)

    before = last_seen()
    bench.exchange((1, segment.fill_frame()))
    assert last_seen() == before, "a plain FILL has nothing to do with it"
    bench.exchange((1, cast_too(segment)))
    assert last_seen() > before
