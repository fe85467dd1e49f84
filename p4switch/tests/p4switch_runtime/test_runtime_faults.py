"""Injected faults and shaping, on a virtual clock: every run is the same."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest

from p4switch.errors import SwitchError
from p4switch.runtime import Direction, Faults, Pipeline, Shape, Switch
from p4switch_runtime.runtime_frames import Op, command, reply

_FRAMES = 2000


def stream(switch: Switch, count: int = _FRAMES, *, gap_us: int = 10) -> list[int]:
    """Numbered frames from port 1 to port 2; the numbers that arrive, in order."""
    for number in range(count):
        switch.inject(1, command(Op.FORWARD, 2, value=number))
        switch.advance(gap_us)
    switch.advance(100_000)
    return [reply(frame).value for _, frame in switch.collect(2)]


@pytest.mark.parametrize("direction", [Direction.RX, Direction.TX])
def test_loss(switch: Switch, pipeline: Pipeline, direction: Direction) -> None:
    port = 1 if direction is Direction.RX else 2
    switch.set_faults(port, direction, Faults(loss=0.1, seed=3))
    seen = stream(switch)
    stats = switch.port_stats(port)
    lost = stats.rx_lost if direction is Direction.RX else stats.tx_lost
    assert len(seen) == _FRAMES - lost
    assert seen == sorted(seen)
    assert 140 < lost < 260
    switch.set_faults(port, direction, Faults(loss=0.1, seed=3))
    assert stream(switch) == seen
    switch.set_faults(port, direction, Faults(loss=0.1, seed=4))
    assert stream(switch) != seen
    switch.set_faults(port, direction, None)
    assert stream(switch) == list(range(_FRAMES))


@pytest.mark.parametrize("direction", [Direction.RX, Direction.TX])
def test_duplication(switch: Switch, pipeline: Pipeline, direction: Direction) -> None:
    port = 1 if direction is Direction.RX else 2
    switch.set_faults(port, direction, Faults(duplicate=0.05))
    seen = stream(switch)
    stats = switch.port_stats(port)
    twice = stats.rx_duplicated if direction is Direction.RX else stats.tx_duplicated
    assert len(seen) == _FRAMES + twice
    assert 60 < twice < 140
    assert sorted(set(seen)) == list(range(_FRAMES))


@pytest.mark.parametrize("direction", [Direction.RX, Direction.TX])
def test_reordering_loses_nothing(switch: Switch, pipeline: Pipeline, direction: Direction) -> None:
    port = 1 if direction is Direction.RX else 2
    switch.set_faults(port, direction, Faults(reorder=0.05, reorder_gap=3))
    seen = stream(switch)
    assert sorted(seen) == list(range(_FRAMES))
    late = sum(1 for before, after in itertools.pairwise(seen) if after < before)
    stats = switch.port_stats(port)
    assert late == (stats.rx_reordered if direction is Direction.RX else stats.tx_reordered)
    assert late > 50
    assert all(abs(place - number) <= 3 for place, number in enumerate(seen))


def test_a_reordered_last_frame_still_comes(switch: Switch, pipeline: Pipeline) -> None:
    switch.set_faults(2, Direction.TX, Faults(reorder=1.0))
    switch.inject(1, command(Op.FORWARD, 2))
    assert switch.collect(2) == []
    switch.advance(5000)
    assert len(switch.collect(2)) == 1


def test_corruption_flips_one_bit(switch: Switch, pipeline: Pipeline) -> None:
    switch.set_faults(2, Direction.TX, Faults(corrupt=0.2))
    original = command(Op.FORWARD, 2, payload=b"c" * 500)
    for _ in range(500):
        switch.inject(1, original)
    frames = [frame for _, frame in switch.collect(2)]
    flipped = [(int.from_bytes(frame) ^ int.from_bytes(original)).bit_count() for frame in frames]
    assert set(flipped) == {0, 1}
    assert sum(flipped) == switch.port_stats(2).tx_corrupted
    assert 60 < sum(flipped) < 140


def test_delay_and_jitter_keep_the_order(switch: Switch, pipeline: Pipeline) -> None:
    switch.set_faults(2, Direction.TX, Faults(delay_us=1000))
    switch.inject(1, command(Op.FORWARD, 2))
    switch.advance(999)
    assert switch.collect(2) == []
    switch.advance(1)
    assert len(switch.collect(2)) == 1
    switch.set_faults(2, Direction.TX, Faults(delay_us=100, jitter_us=5000))
    assert stream(switch) == list(range(_FRAMES))


def test_a_burst_of_delayed_frames_is_bounded(switch: Switch, pipeline: Pipeline) -> None:
    switch.set_faults(2, Direction.TX, Faults(delay_us=1_000_000))
    for _ in range(20_000):
        switch.inject(1, command(Op.FORWARD, 2))
    switch.advance(2_000_000)
    stats = switch.port_stats(2)
    assert stats.tx_packets + stats.tx_queue_dropped == 20_000
    assert stats.tx_packets > 1000
    assert switch.stats().no_buffer == 0
    switch.collect(2)
    switch.set_faults(2, Direction.TX, None)
    assert stream(switch, 100) == list(range(100))


def test_a_removed_port_forgets_what_it_held(switch: Switch, pipeline: Pipeline) -> None:
    switch.set_faults(2, Direction.TX, Faults(delay_us=1000, reorder=0.5))
    for _ in range(100):
        switch.inject(1, command(Op.FORWARD, 2))
    switch.remove_port(2)
    switch.add_memory(2)
    switch.advance(10_000)
    assert stream(switch, 10) == list(range(10))


# ---------------------------------------------------------------------- shaping


def test_a_shaped_port_keeps_its_rate(switch: Switch, pipeline: Pipeline) -> None:
    switch.set_shape(2, Shape(rate_bits=100_000_000, burst_bytes=10_000, queue_bytes=1_000_000))
    frame = command(Op.FORWARD, 2, payload=bytes(970))  # 1000 bytes with headers
    for _ in range(500):
        switch.inject(1, frame)
    assert len(switch.collect(2)) == 10  # the burst
    for ms in range(1, 31):
        switch.advance(1000)
        sent = switch.port_stats(2).tx_bytes
        assert abs(sent - (10_000 + ms * 12_500)) <= 4_000, f"after {ms} ms"
    switch.advance(20_000)
    assert switch.port_stats(2).tx_packets == 500


def test_a_slow_shape_delays_single_frames(switch: Switch, pipeline: Pipeline) -> None:
    switch.set_shape(2, Shape(rate_bits=80_000, burst_bytes=1000, queue_bytes=100_000))  # 10 bytes a ms
    for _ in range(3):
        switch.inject(1, command(Op.FORWARD, 2, payload=bytes(970)))
    assert len(switch.collect(2)) == 1
    switch.advance(99_000)
    assert switch.collect(2) == []
    switch.advance(2_000)
    assert len(switch.collect(2)) == 1
    switch.advance(100_000)
    assert len(switch.collect(2)) == 1


def test_a_frame_above_the_burst_still_passes(switch: Switch, pipeline: Pipeline) -> None:
    switch.set_shape(2, Shape(rate_bits=8_000_000, burst_bytes=100, queue_bytes=100_000))
    switch.inject(1, command(Op.FORWARD, 2, payload=bytes(5000)))
    switch.inject(1, command(Op.FORWARD, 2, payload=bytes(5000)))
    switch.advance(1_000)
    assert len(switch.collect(2)) == 2


def test_the_queue_has_its_bytes(switch: Switch, pipeline: Pipeline) -> None:
    switch.set_shape(2, Shape(rate_bits=1_000_000, burst_bytes=1000, queue_bytes=10_000))
    for _ in range(20):
        switch.inject(1, command(Op.FORWARD, 2, payload=bytes(970)))
    assert switch.port_stats(2).tx_queue_dropped == 9  # one went at once, ten wait
    switch.set_shape(2, None)
    assert switch.port_stats(2).tx_packets == 11


def test_shaping_comes_before_faults(switch: Switch, pipeline: Pipeline) -> None:
    switch.set_shape(2, Shape(rate_bits=8_000_000, burst_bytes=1000, queue_bytes=1_000_000))
    switch.set_faults(2, Direction.TX, Faults(loss=0.5))
    for _ in range(100):
        switch.inject(1, command(Op.FORWARD, 2, payload=bytes(970)))
    switch.advance(50_000)
    stats = switch.port_stats(2)
    assert 48 <= stats.tx_packets + stats.tx_lost <= 52  # lost frames took their time on the wire


# ---------------------------------------------------------------------- capture


def test_captures_hold_what_passed(switch: Switch, pipeline: Pipeline, tmp_path: Path) -> None:
    switch.set_pcap(1, Direction.RX, tmp_path / "in.pcap")
    switch.set_pcap(2, Direction.TX, tmp_path / "out.pcap")
    frames = [command(Op.FORWARD, 2, value=n, payload=bytes(n * 300)) for n in range(10)]
    for frame in frames:
        switch.inject(1, frame)
    switch.set_pcap(1, Direction.RX, None)
    switch.set_pcap(2, Direction.TX, None)
    for name in ("in.pcap", "out.pcap"):
        assert captured((tmp_path / name).read_bytes()) == frames
    with pytest.raises(SwitchError, match="cannot be written"):
        switch.set_pcap(1, Direction.RX, tmp_path / "no" / "such" / "folder.pcap")


def captured(raw: bytes) -> list[bytes]:
    assert struct.unpack_from("<IHH", raw) == (0xA1B2C3D4, 2, 4)
    frames: list[bytes] = []
    at = 24
    while at < len(raw):
        _, _, length, full = struct.unpack_from("<IIII", raw, at)
        assert length == full
        frames.append(raw[at + 16 : at + 16 + length])
        at += 16 + length
    return frames
