"""Counters, meters, registers, action profiles and idle timeouts, seen by packets and by the control plane."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from p4switch.runtime import Direction, Faults, IdleEvent, Pipeline, Status, Switch
from p4switch.values import ActionCall, ColorCounts, CounterValue, GroupRef, MemberRef, MeterConfig, WeightedMember
from p4switch_runtime.runtime_frames import Op, command, ethernet, mac, reply

FORWARD, DROP = 0, 1
GREEN, YELLOW, RED = 0, 1, 2


def key(number: int) -> list[tuple[int, int]]:
    return [(int.from_bytes(mac(number), "big"), 0)]


def ok(pipeline: Pipeline, *statuses: Status) -> None:
    assert list(statuses) == [Status.OK] * len(statuses)


# ---------------------------------------------------------------------- counters


def test_direct_and_indexed_counters_count_packets_and_bytes(switch: Switch, pipeline: Pipeline) -> None:
    batch = pipeline.batch()
    batch.insert(0, key(5), ActionCall(FORWARD, (3,)))
    handle = batch.commit()[0].handle
    for size in (60, 100, 1500):
        switch.inject(2, ethernet(5, payload=bytes(size - 14)))
    switch.inject(2, ethernet(6))
    entry = pipeline.entry(0, handle)
    assert entry is not None
    assert entry.counter == CounterValue(3, 1660)
    assert pipeline.default_entry(0).counter == CounterValue(1, 60)
    assert pipeline.counters(0, 2, 1) == [CounterValue(4, 1720)]
    batch.set_entry_counter(0, handle, CounterValue(1, 1))
    batch.set_counters(0, 2, [CounterValue(), CounterValue(7, 8)])
    batch.commit()
    entry = pipeline.entry(0, handle)
    assert entry is not None
    assert entry.counter == CounterValue(1, 1)
    assert pipeline.counters(0, 2, 2) == [CounterValue(), CounterValue(7, 8)]


def test_cells_beyond_the_end_are_refused(pipeline: Pipeline) -> None:
    with pytest.raises(IndexError):
        pipeline.counters(0, 500, 13)
    with pytest.raises(IndexError):
        pipeline.registers(0, 1024, 1)
    batch = pipeline.batch()
    batch.set_registers(0, 1023, [1, 2])
    assert batch.commit()[0].status is Status.INVALID


# ---------------------------------------------------------------------- registers


def test_packets_and_control_plane_share_registers(switch: Switch, pipeline: Pipeline) -> None:
    batch = pipeline.batch()
    batch.set_registers(0, 10, [100, 200])
    batch.commit()
    switch.inject(1, command(Op.REGISTER, 10, 2, value=5))
    switch.inject(1, command(Op.REGISTER, 11, 2, value=0xFFFF_FFFF))
    assert [reply(frame).value for _, frame in switch.collect()] == [105, 199]
    assert pipeline.registers(0, 9, 4) == [0, 105, 199, 0]


def test_a_register_index_out_of_range_does_nothing(switch: Switch, pipeline: Pipeline) -> None:
    switch.inject(1, command(Op.REGISTER, 1024, 2, value=5))
    assert [reply(frame).value for _, frame in switch.collect()] == [5]
    assert set(pipeline.registers(0)) == {0}


def test_wide_registers_and_fill(pipeline: Pipeline) -> None:
    wide = (1 << 2047) | 0xABCDEF
    batch = pipeline.batch()
    batch.set_registers(1, 99, [wide])
    batch.fill_register(0, 0xDEADBEEF)
    batch.commit()
    assert pipeline.registers(1, 98, 2) == [0, wide]
    assert set(pipeline.registers(0)) == {0xDEADBEEF}
    with pytest.raises(ValueError, match="2048 bits"):
        batch.set_registers(1, 0, [1 << 2048])


# ---------------------------------------------------------------------- meters


def colors(switch: Switch, count: int, payload_bytes: int) -> list[int]:
    for _ in range(count):
        switch.inject(1, command(Op.METER, 3, 2, payload=bytes(payload_bytes - 30)))
    return [reply(frame).c for _, frame in switch.collect()]


def test_two_rates_three_colours(switch: Switch, pipeline: Pipeline) -> None:
    batch = pipeline.batch()
    batch.set_meters(0, 3, [MeterConfig(cir=1000, cburst=200, pir=2000, pburst=400)])
    batch.commit()
    assert pipeline.meters(0, 2, 2) == [None, MeterConfig(1000, 200, 2000, 400)]
    assert colors(switch, 6, 100) == [GREEN, GREEN, YELLOW, YELLOW, RED, RED]
    two = CounterValue(2, 200)
    assert pipeline.colors(0, 2, 2) == [ColorCounts(), ColorCounts(two, two, two)]
    switch.advance(100_000)  # 100 bytes committed, 200 peak
    assert colors(switch, 3, 100) == [GREEN, YELLOW, RED]
    switch.advance(10_000_000)  # no more than the bursts
    assert colors(switch, 6, 100) == [GREEN, GREEN, YELLOW, YELLOW, RED, RED]
    batch.set_meters(0, 3, [None])
    batch.commit()
    assert colors(switch, 3, 100) == [GREEN, GREEN, GREEN]
    assert pipeline.colors(0, 3, 1)[0].green == CounterValue(8, 800)
    batch.set_colors(0, 3, [ColorCounts(red=CounterValue(1, 7))])
    batch.commit()
    assert pipeline.colors(0, 3, 1) == [ColorCounts(red=CounterValue(1, 7))]


def test_a_slow_meter_loses_no_fractions(switch: Switch, pipeline: Pipeline) -> None:
    batch = pipeline.batch()
    batch.set_meters(0, 3, [MeterConfig(cir=100, cburst=100, pir=100, pburst=100)])
    batch.commit()
    assert colors(switch, 2, 100) == [GREEN, RED]
    for _ in range(999):
        switch.advance(999)  # under a tenth of a byte each
        assert colors(switch, 1, 100) == [RED]
    switch.advance(2000)
    assert colors(switch, 1, 100) == [GREEN]


def test_a_direct_meter_counts_packets(switch: Switch, pipeline: Pipeline) -> None:
    batch = pipeline.batch()
    batch.insert(0, key(5), ActionCall(FORWARD, (3,)), meter=MeterConfig(1, 2, 1, 2))
    handle = batch.commit()[0].handle
    for _ in range(5):
        switch.inject(2, ethernet(5, payload=bytes(1000)))
    assert len(switch.collect()) == 2
    entry = pipeline.entry(0, handle)
    assert entry is not None
    assert entry.meter == MeterConfig(1, 2, 1, 2)
    assert [c.packets for c in (entry.colors.green, entry.colors.yellow, entry.colors.red)] == [2, 0, 3]
    batch.set_entry_colors(0, handle, ColorCounts(yellow=CounterValue(3, 4)))
    batch.commit()
    entry = pipeline.entry(0, handle)
    assert entry is not None
    assert entry.colors == ColorCounts(yellow=CounterValue(3, 4))
    batch.set_entry_meter(0, handle, None)
    batch.commit()
    for _ in range(5):
        switch.inject(2, ethernet(5))
    assert len(switch.collect()) == 5


# ---------------------------------------------------------------------- action profiles and selectors


def ports_used(switch: Switch, count: int) -> Counter[int]:
    rng = random.Random(5)
    for _ in range(count):
        switch.inject(1, ethernet(5, source=rng.randrange(1 << 30)))
    return Counter(port for port, _ in switch.collect())


def with_selector(pipeline: Pipeline, members: list[WeightedMember]) -> int:
    table = pipeline.program.table("select").index
    batch = pipeline.batch()
    for member in (1, 2, 3):
        batch.set_member(0, member, ActionCall(FORWARD, (member + 1,)))
    batch.set_group(0, 7, members)
    batch.insert(table, key(5), GroupRef(7))
    batch.insert(0, key(5), ActionCall(FORWARD, (8,)))
    results = batch.commit()
    assert {result.status for result in results} == {Status.OK}
    return results[4].handle


def test_a_selector_spreads_by_weight(switch: Switch, pipeline: Pipeline) -> None:
    with_selector(pipeline, [WeightedMember(1, 1), WeightedMember(2, 3)])
    used = ports_used(switch, 4000)
    assert used.keys() == {2, 3}
    assert 2.6 < used[3] / used[2] < 3.4


def test_one_flow_stays_on_one_member(switch: Switch, pipeline: Pipeline) -> None:
    with_selector(pipeline, [WeightedMember(1), WeightedMember(2), WeightedMember(3)])
    for _ in range(50):
        switch.inject(1, ethernet(5, source=12345))
    assert len({port for port, _ in switch.collect()}) == 1


def test_a_member_steps_aside_while_its_port_is_down(switch: Switch, pipeline: Pipeline) -> None:
    with_selector(pipeline, [WeightedMember(1, watch_port=2), WeightedMember(2, watch_port=3)])
    assert ports_used(switch, 200).keys() == {2, 3}
    switch.remove_port(3)
    assert ports_used(switch, 200).keys() == {2}
    switch.add_memory(3)
    assert ports_used(switch, 200).keys() == {2, 3}


def test_ports_that_went_before_a_program_was_put_to_use_count_as_gone(switch: Switch, pipeline: Pipeline) -> None:
    prepared = switch.prepare(pipeline.program)
    with_selector(prepared, [WeightedMember(1, watch_port=2), WeightedMember(2, watch_port=3)])
    switch.remove_port(3)
    switch.commit(prepared)
    assert ports_used(switch, 200).keys() == {2}


def test_members_change_under_their_entries(switch: Switch, pipeline: Pipeline) -> None:
    handle = with_selector(pipeline, [WeightedMember(1)])
    table = pipeline.program.table("select").index
    batch = pipeline.batch()
    batch.set_member(0, 1, ActionCall(FORWARD, (6,)))
    batch.commit()
    assert ports_used(switch, 10) == {6: 10}
    batch.modify(table, handle, MemberRef(3))
    batch.commit()
    assert ports_used(switch, 10) == {4: 10}
    entry = pipeline.entry(table, handle)
    assert entry is not None
    assert entry.action == MemberRef(3)


def test_what_is_referred_to_cannot_go(pipeline: Pipeline) -> None:
    handle = with_selector(pipeline, [WeightedMember(1)])
    batch = pipeline.batch()
    batch.delete_member(0, 1)
    batch.delete_group(0, 7)
    batch.delete_member(0, 2)
    assert [result.status for result in batch.commit()] == [Status.IN_USE, Status.IN_USE, Status.OK]
    batch.delete(pipeline.program.table("select").index, handle)
    batch.delete_group(0, 7)
    batch.delete_member(0, 1)
    assert {result.status for result in batch.commit()} == {Status.OK}
    batch.insert(pipeline.program.table("select").index, key(5), GroupRef(7))
    batch.set_group(0, 8, [WeightedMember(1)])
    assert {result.status for result in batch.commit()} == {Status.NOT_FOUND}


def test_a_profile_has_its_size(pipeline: Pipeline) -> None:
    batch = pipeline.batch()
    for member in range(17):
        batch.set_member(0, member, ActionCall(DROP))
    assert [result.status for result in batch.commit()] == [Status.OK] * 16 + [Status.FULL]


def test_an_empty_group_acts_as_a_miss(switch: Switch, pipeline: Pipeline) -> None:
    with_selector(pipeline, [])
    assert ports_used(switch, 3) == {8: 3}  # what the table before it said


# ---------------------------------------------------------------------- idle timeouts


def test_idle_entries_are_reported_until_they_are_hit(switch: Switch, pipeline: Pipeline) -> None:
    table = pipeline.program.table("aged").index
    batch = pipeline.batch()
    batch.insert(table, key(50), ActionCall(FORWARD, (1,)), timeout_us=1_000_000)
    batch.insert(table, key(51), ActionCall(FORWARD, (1,)))
    handle = batch.commit()[0].handle
    switch.advance(900_000)
    assert switch.events(0) == []
    switch.inject(1, ethernet(1, source=50))
    switch.advance(900_000)
    assert switch.events(0) == []
    switch.advance(200_000)
    assert switch.events(0) == [IdleEvent(pipeline, table, handle)]
    switch.advance(1_000_000)
    assert switch.events(0) == [IdleEvent(pipeline, table, handle)]
    entry = pipeline.entry(table, handle)
    assert entry is not None
    assert (entry.timeout_us, entry.idle_us) == (1_000_000, 2_100_000)
    batch.delete(table, handle)
    batch.commit()
    switch.advance(5_000_000)
    assert switch.events(0) == []


def test_faults_need_probabilities(switch: Switch) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        switch.set_faults(1, Direction.RX, Faults(loss=1.5))
