"""Relays: the shipping cores on modelled links. Ratios are times over S/B."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kvproto.session.relay.pieces import lowest, pieces_of, run_length, runs_of
from kvproto.session.relay.racks import are_peers
from tests.unit.kvproto.relay_network import PIECE_BYTES, Host, Network, key_of

RATE = 12.5e6
CHUNKS, PIECES = 8, 16
TOTAL = CHUNKS * PIECES
IDEAL_S = TOTAL * PIECE_BYTES / RATE


@dataclass(frozen=True)
class Result:
    network: Network
    holder: Host
    readers: list[Host]
    ratios: list[float | None]
    """None: the reader does not have everything."""

    def ratio(self, reader: int) -> float:
        found = self.ratios[reader]
        assert found is not None
        return found

    @property
    def holder_tx(self) -> float:
        return self.holder.sent_pieces / TOTAL

    @property
    def busiest_tx(self) -> float:
        return max(reader.sent_pieces for reader in self.readers) / TOTAL


def incast(
    readers: int = 8,
    *,
    rates: dict[int, float] | None = None,
    uplinks: float | None = None,
    offsets_s: list[float] | None = None,
    happens: Callable[[Network, list[Host]], None] = lambda _network, _readers: None,
) -> Result:
    """`rates`: of links that differ, by reader; `uplinks`: of all readers; `happens`: at 0.4 S/B."""
    network = Network()
    holder = network.host("holder:1", RATE)
    chunks = [(key_of(number), PIECES) for number in range(1, CHUNKS + 1)]
    holder.whole.update(chunks)
    hosts = []
    starts = offsets_s or [0.0] * readers
    for reader, start_s in enumerate(starts):
        rate = (rates or {}).get(reader, RATE)
        host = network.host(f"r{reader}:1", uplinks or rate, rate)
        network.fetch(host, chunks, ["holder:1"], int(start_s * 1e9))
        hosts.append(host)
    network.at(int(0.4 * IDEAL_S * 1e9), lambda: happens(network, hosts))
    network.run()
    ratios = [
        (host.ended_ns / 1e9 - start_s) / IDEAL_S if len(host.whole) == CHUNKS else None
        for host, start_s in zip(hosts, starts, strict=True)
    ]
    return Result(network, holder, hosts, ratios)


def test_at_once() -> None:
    found = incast()
    assert max(map(found.ratio, range(8))) < 1.10
    assert found.holder_tx < 1.05
    assert found.busiest_tx < 1.15


def test_one_reader_reads_from_the_holder_alone() -> None:
    found = incast(1)
    assert found.ratio(0) < 1.05
    assert found.holder_tx == 1.0


def test_late_readers_get_the_beginning_from_those_who_have_it() -> None:
    chance = random.Random(1)
    found = incast(offsets_s=[0.0, *(chance.random() * IDEAL_S for _ in range(7))])
    assert None not in found.ratios
    assert sum(map(found.ratio, range(8))) / 8 < 1.10
    assert found.holder_tx < 1.1, "unicast would be 8"


@pytest.mark.parametrize("slow", [0, 7])
def test_one_reader_at_half_rate(slow: int) -> None:
    found = incast(rates={slow: RATE / 2})
    others = [found.ratio(reader) for reader in range(8) if reader != slow]
    assert sum(others) / 7 < 1.15, "a slow one first in a chain costs the others 2.3"
    assert found.holder_tx < 1.25


def test_slow_uplinks_are_used_together() -> None:
    found = incast(uplinks=RATE / 4)
    assert max(map(found.ratio, range(8))) < 3.2, "2.7 is the limit; one parent at a time gives 7"


def test_a_reader_that_dies_costs_the_others_little() -> None:
    found = incast(happens=lambda network, hosts: network.kill(hosts[3]))
    others = [found.ratio(reader) for reader in range(8) if reader != 3]
    assert max(others) < 1.2


def test_a_reader_that_stands_still_costs_the_others_little() -> None:
    def stall(_network: Network, hosts: list[Host]) -> None:
        hosts[3].is_stalled = True

    found = incast(happens=stall)
    assert max(found.ratio(reader) for reader in range(8) if reader != 3) < 1.35


def test_only_the_liar_is_blamed() -> None:
    def lie(_network: Network, hosts: list[Host]) -> None:
        hosts[3].lies = True

    found = incast(happens=lie)
    assert max(found.ratio(reader) for reader in range(8) if reader != 3) < 1.25
    assert {name for host in found.readers for name in host.blamed} == {"r3:1"}


def test_without_its_keeper_what_nobody_has_comes_another_way() -> None:
    found = incast(happens=lambda network, _hosts: network.kill(network.hosts["holder:1"]))
    for host in found.readers:
        assert len(host.whole) + len(host.gave_up) == CHUNKS
        assert host.whole, "what was granted is passed on"
        assert not host.blamed


def test_another_holder_goes_on_as_keeper() -> None:
    network = Network()
    chunks = [(key_of(number), PIECES) for number in range(1, CHUNKS + 1)]
    for name in ("a:1", "b:1"):
        network.host(name, RATE).whole.update(chunks)
    readers = [network.host(f"r{reader}:1", RATE) for reader in range(4)]
    for reader in readers:
        network.fetch(reader, chunks, ["a:1", "b:1"])
    network.at(int(0.4 * IDEAL_S * 1e9), lambda: network.kill(network.hosts["a:1"]))
    network.run()
    assert all(len(reader.whole) == CHUNKS and not reader.gave_up for reader in readers)
    assert network.hosts["b:1"].sent_pieces < 1.2 * TOTAL


def test_a_keeper_that_lies_is_left() -> None:
    network = Network()
    for name in ("a:1", "b:1"):
        network.host(name, RATE).whole[key_of(1)] = PIECES
    network.hosts["a:1"].lies = True
    reader = network.host("r:1", RATE)
    network.fetch(reader, [(key_of(1), PIECES)], ["a:1", "b:1"])
    network.run()
    assert reader.blamed == ["a:1"]
    assert key_of(1) in reader.whole


def test_what_is_wanted_no_more_is_not_written() -> None:
    network = Network()
    network.host("a:1", RATE).whole[key_of(1)] = PIECES
    reader = network.host("r:1", RATE)
    network.fetch(reader, [(key_of(1), PIECES)], ["a:1"])
    network.at(20_000_000, lambda: network.carry_out(reader, reader.relay.unwant([key_of(1)], network.now_ns)))
    network.run()
    assert not reader.reads
    assert key_of(1) not in reader.whole


def test_few_members_all_read_from_each_other_and_many_from_some() -> None:
    assert all(are_peers(one, other) for one in range(9) for other in range(9) if one != other)
    assert not are_peers(5, 5)
    assert max(sum(are_peers(one, other) for other in range(64)) for one in range(64)) < 30


def test_sets_of_pieces() -> None:
    pieces = pieces_of(2, 3) | pieces_of(9, 1)
    assert list(runs_of(pieces)) == [(2, 3), (9, 1)]
    assert lowest(pieces) == 2
    assert run_length(pieces, 2, 2) == 2
    assert run_length(pieces, 2, 9) == 3
