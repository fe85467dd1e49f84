"""Fetches over the fluid network: times and bytes that can be worked out by hand."""

from __future__ import annotations

import random

import pytest

from kvchunk.sources import ChunkSource
from planner.network.delivery import Delivered, Delivery, Piece, Work, without
from planner.network.fluid import FluidNetwork
from planner.network.terms import ALONE_S, FILL_RIDES_S, NEWCOMER_S, WireTerms, stream_weight
from planner.network.topology import SWITCH, Topology

RATE = 1e6
SIZE = 4096 * 100
TERMS = WireTerms(rtt_s=0.0)


def run(delivery: Delivery, starts: list[tuple[float, Work]]) -> dict[int, Delivered]:
    done: dict[int, Delivered] = {}
    waiting = sorted(starts, key=lambda each: each[0])
    while waiting or not delivery.idle:
        now_s = min(delivery.next_s(), waiting[0][0] if waiting else float("inf"))
        done |= {each.work.id: each for each in delivery.advance(now_s)}
        while waiting and waiting[0][0] <= now_s:
            delivery.fetch(waiting.pop(0)[1], now_s)
    delivery.network.advance_to(now_s)
    return done


def prefix(holder: int, chunks: int = 4) -> tuple[Piece, ...]:
    return tuple(Piece(f"chunk {index}", SIZE, holder) for index in range(chunks))


def test_transfers_share_and_speed_up_when_one_ends() -> None:
    network = FluidNetwork([10.0, 100.0, 100.0])
    network.start((0,), {1: (1,)}, 10.0, 0.0)
    long = network.start((0,), {2: (2,)}, 30.0, 0.0)
    assert network.next_end_s() == pytest.approx(2.0)
    (first,) = network.advance(2.0)
    network.end(first, 2.0)
    assert network.next_end_s() == pytest.approx(4.0)
    assert network.advance(4.0) == [long]
    network.advance_to(4.0)
    assert network.carried == pytest.approx([40.0, 10.0, 30.0])


def test_one_reader_takes_its_link() -> None:
    delivery = Delivery(Topology(2, RATE), TERMS, casts=True)
    done = run(delivery, [(0.0, Work(1, 1, prefix(0)))])
    wire = 4 * SIZE * TERMS.stream_factor()
    assert done[1].at_s == pytest.approx(ALONE_S + wire / RATE, rel=1e-3)
    assert set(done[1].origins.values()) == {ChunkSource.HOLDER}
    assert delivery.network.carried[0] == pytest.approx(wire)


@pytest.mark.parametrize("readers", [2, 8, 30])
def test_a_cast_takes_as_long_as_one_read(readers: int) -> None:
    delivery = Delivery(Topology(readers + 1, RATE), TERMS, casts=True)
    done = run(delivery, [(0.0, Work(node, node, prefix(0))) for node in range(1, readers + 1)])
    wire = 4 * SIZE * TERMS.cast_factor()
    for each in done.values():
        assert each.at_s == pytest.approx(NEWCOMER_S + wire / RATE, rel=1e-3)
        assert set(each.origins.values()) == {ChunkSource.CAST}
    assert delivery.network.carried[0] == pytest.approx(wire)
    assert delivery.casts_joined[-1][1] == tuple(range(1, readers + 1))


def test_without_casts_readers_share_the_uplink() -> None:
    delivery = Delivery(Topology(5, RATE), TERMS, casts=False)
    done = run(delivery, [(0.0, Work(node, node, prefix(0))) for node in range(1, 5)])
    wire = 4 * SIZE * TERMS.stream_factor()
    assert max(each.at_s for each in done.values()) == pytest.approx(4 * wire / RATE, rel=1e-2)
    assert delivery.network.carried[0] == pytest.approx(4 * wire)


def test_who_comes_late_gets_the_rest_first_and_then_what_was_missed() -> None:
    delivery = Delivery(Topology(3, RATE), TERMS, casts=True)
    half_s = 2 * SIZE / RATE
    done = run(delivery, [(0.0, Work(1, 1, prefix(0))), (half_s, Work(2, 2, prefix(0)))])
    alone_s = 4 * SIZE / RATE
    assert done[1].at_s == pytest.approx(alone_s, rel=0.04)
    assert done[2].at_s - half_s == pytest.approx(alone_s, rel=0.04)
    assert delivery.network.carried[0] == pytest.approx(1.5 * 4 * SIZE, rel=0.04)


def test_two_late_readers_share_what_both_missed() -> None:
    delivery = Delivery(Topology(4, RATE), TERMS, casts=True)
    half_s = 2 * SIZE / RATE
    run(delivery, [(0.0, Work(1, 1, prefix(0)))] + [(half_s, Work(node, node, prefix(0))) for node in (2, 3)])
    assert delivery.network.carried[0] == pytest.approx(1.5 * 4 * SIZE, rel=0.04)


def test_a_reader_at_half_rate_slows_nobody() -> None:
    delivery = Delivery(Topology(4, RATE, {1: RATE / 2}), TERMS, casts=True)
    done = run(delivery, [(0.0, Work(node, node, prefix(0))) for node in (1, 2, 3)])
    alone_s = 4 * SIZE / RATE
    assert done[2].at_s == pytest.approx(alone_s, rel=0.05)
    assert done[1].at_s == pytest.approx(2 * alone_s, rel=0.05)
    assert delivery.network.carried[0] == pytest.approx(1.5 * 4 * SIZE, rel=0.05)


def test_what_the_switch_serves_leaves_no_host() -> None:
    delivery = Delivery(Topology(4, RATE), TERMS, casts=True)
    done = run(delivery, [(0.3 * node, Work(node, node, prefix(SWITCH))) for node in (1, 2, 3)])
    for node, each in done.items():
        assert each.at_s - 0.3 * node == pytest.approx(4 * SIZE * TERMS.cast_factor() / RATE, rel=1e-2)
        assert set(each.origins.values()) == {ChunkSource.SWITCH}
    assert delivery.network.carried[0] == 0.0


def test_a_cast_does_not_leave_its_rack() -> None:
    topology = Topology(66, RATE)
    delivery = Delivery(topology, TERMS, casts=True)
    run(delivery, [(0.0, Work(node, node, prefix(0))) for node in (64, 65)])
    assert delivery.network.carried[topology.up(0)] == pytest.approx(2 * 4 * SIZE, rel=0.02)
    assert delivery.network.carried[topology.core_down(1)] == pytest.approx(2 * 4 * SIZE, rel=0.02)


def test_two_fetches_of_one_node_bring_a_chunk_once() -> None:
    delivery = Delivery(Topology(2, RATE), TERMS, casts=True)
    done = run(delivery, [(0.0, Work(1, 1, prefix(0))), (0.1, Work(2, 1, prefix(0)))])
    assert done[1].at_s == done[2].at_s
    assert delivery.network.carried[0] == pytest.approx(4 * SIZE * TERMS.stream_factor())


def test_a_chain_of_relays_takes_little_longer_than_one_read() -> None:
    delivery = Delivery(Topology(4, RATE), TERMS, casts=False, relays=True)
    done = run(delivery, [(0.001 * node, Work(node, node, prefix(node - 1))) for node in (1, 2, 3)])
    for each in done.values():
        assert each.at_s == pytest.approx(4 * SIZE / RATE, rel=0.03)
    assert delivery.network.carried[0::2][:3] == pytest.approx([4 * SIZE] * 3, rel=0.02)


def test_nobody_relays_to_who_relays_to_it() -> None:
    delivery = Delivery(Topology(4, RATE), TERMS, casts=False, relays=True)
    delivery.fetch(Work(1, 1, prefix(0)), 0.0)
    delivery.fetch(Work(2, 2, prefix(1)), 0.0)
    delivery.advance(delivery.next_s())
    assert delivery.receiving("chunk 0", but=3) == [1, 2]
    assert delivery.receiving("chunk 0", but=1) == []


def test_an_empty_fetch_is_complete_at_once() -> None:
    delivery = Delivery(Topology(2, RATE), TERMS, casts=True)
    assert run(delivery, [(1.0, Work(1, 1, ()))])[1].at_s == 1.0


def test_gaps() -> None:
    assert without([(0.0, 100.0)], 20.0, 50.0) == [(0.0, 20.0), (50.0, 100.0)]
    assert without([(0.0, 20.0), (50.0, 100.0)], 10.0, 100.0) == [(0.0, 10.0)]
    assert without([(0.0, 100.0)], 0.0, 99.5) == []


def test_repeats_and_weights() -> None:
    assert WireTerms().repeated(8) == 1.0
    # One receiver, two ports: 1 / (1 - p)^2 casts on average.
    assert WireTerms(loss=0.1).repeated(1) == pytest.approx(1 / 0.81, rel=1e-4)
    assert WireTerms(loss=0.01).repeated(8) > WireTerms(loss=0.01).repeated(1)
    weights = [stream_weight(reader, 0) for reader in range(1, 9)]
    assert all(1 <= weight <= 2 for weight in weights)
    assert len(set(weights)) == 8


@pytest.mark.parametrize("seed", range(30))
def test_whoever_comes_when_gets_everything(seed: int) -> None:
    """Readers with overlapping prefixes, at random moments, from several holders: parts of one chunk are pulled side by
    side where different readers miss different parts of it."""
    rng = random.Random(seed)
    delivery = Delivery(Topology(12, RATE), TERMS, casts=True)
    starts = []
    for number in range(60):
        node = rng.randrange(3, 12)
        first = rng.randrange(4)
        pieces = tuple(Piece(f"chunk {one}", SIZE, one % 3) for one in range(first, first + rng.randint(1, 4)))
        starts.append((rng.random() * 3, Work(number, node, pieces)))
    done = run(delivery, starts)
    assert sorted(done) == list(range(60))
    assert all(set(done[work.id].origins) == {piece.key for piece in work.pieces} for _, work in starts)
    assert delivery.network.carried[0] > 0


CHUNK = Piece("chunk", SIZE, 0)
TOPOLOGY = Topology(4, RATE)
CAST_S = SIZE * TERMS.cast_factor() / RATE


def cast_with_fill(asked_s: float, readers: int = 3) -> tuple[Delivery, dict[int, Delivered]]:
    """Readers want a chunk at once; the controller asks its holder for a fill then. The fill is work 9."""
    delivery = Delivery(TOPOLOGY, TERMS, casts=True)
    fill = Work(9, TOPOLOGY.sink(0), (CHUNK,), background=True)
    done: dict[int, Delivered] = {}
    for node in range(1, readers + 1):
        delivery.fetch(Work(node, node, (CHUNK,)), 0.0)
    while not delivery.idle or fill is not None:
        now_s = delivery.next_s()
        if fill is not None and asked_s <= now_s:
            delivery.fill(fill, readers, asked_s)
            fill = None
            continue
        done |= {each.work.id: each for each in delivery.advance(now_s)}
    delivery.network.advance_to(now_s)
    return delivery, done


def test_a_fill_asked_for_before_a_cast_costs_its_headers_alone() -> None:
    delivery, done = cast_with_fill(0.0)
    assert delivery.network.carried[0] == pytest.approx(SIZE * TERMS.cast_factor() * TERMS.fill_factor())
    assert done[9].at_s == done[1].at_s, "the switch has it when the readers have it"
    assert set(done[1].origins.values()) == {ChunkSource.CAST}


@pytest.mark.parametrize("over", [0.25, 0.75])
def test_a_fill_costs_what_had_left_before_it_was_asked_for(over: float) -> None:
    delivery, done = cast_with_fill(NEWCOMER_S + over * CAST_S)
    assert delivery.network.carried[0] == pytest.approx((1 + over) * SIZE * TERMS.cast_factor(), rel=1e-2)
    assert done[9].at_s == pytest.approx(NEWCOMER_S + (1 + over) * CAST_S + FILL_RIDES_S, rel=1e-2)


def test_a_fill_does_not_ride_on_the_read_of_a_single_reader() -> None:
    delivery, done = cast_with_fill(0.0, readers=1)
    assert delivery.network.carried[0] == pytest.approx(2 * SIZE * TERMS.stream_factor())
    assert done[1].at_s < done[9].at_s


def test_a_cast_that_begins_takes_over_what_a_fill_was_sending() -> None:
    delivery = Delivery(TOPOLOGY, TERMS, casts=True)
    delivery.fill(Work(9, TOPOLOGY.sink(0), (CHUNK,), background=True), 0, 0.0)
    half_s = 0.5 * SIZE / RATE
    done = run(delivery, [(half_s, Work(node, node, (CHUNK,))) for node in (1, 2)])
    assert delivery.network.carried[0] == pytest.approx(1.5 * SIZE, rel=0.03), (
        "the first half left for the switch alone"
    )
    assert done[9].at_s <= done[1].at_s


def test_a_fill_rides_on_its_own_holders_casts_only() -> None:
    delivery = Delivery(TOPOLOGY, TERMS, casts=True)
    delivery.fill(Work(9, TOPOLOGY.sink(3), (Piece("chunk", SIZE, 3),), background=True), 2, 0.0)
    run(delivery, [(0.0, Work(node, node, (CHUNK,))) for node in (1, 2)])
    assert delivery.network.carried[TOPOLOGY.up(0)] == pytest.approx(SIZE * TERMS.cast_factor())
    assert delivery.network.carried[TOPOLOGY.up(3)] == pytest.approx(SIZE * TERMS.stream_factor())


def test_readers_that_give_up_leave_the_fill_to_its_holder() -> None:
    delivery = Delivery(TOPOLOGY, TERMS, casts=True)
    for node in (1, 2):
        delivery.fetch(Work(node, node, (CHUNK,)), 0.0)
    delivery.fill(Work(9, TOPOLOGY.sink(0), (CHUNK,), background=True), 2, 0.0)
    while delivery.next_s() < CAST_S / 2:
        delivery.advance(delivery.next_s())
    for node in (1, 2):
        delivery.abandon(node, CAST_S / 2)
    done = run(delivery, [])
    assert set(done) == {9}
    assert delivery.network.carried[0] == pytest.approx(SIZE, rel=0.03), "nothing of it leaves twice"
