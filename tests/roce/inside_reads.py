"""Runs inside a guest (see test_transport.py): RDMA reads that fail, reach too far, idle or lose packets."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from bmv2_testbed.spec import data_mac
from hostagent import limits
from hostagent.transport.base import Extent, ReadOutcome, ReadRequest
from hostagent.transport.read_protocol import RemoteExtent
from hostagent.transport.verbs.connections import PoolAccess
from kvproto.session.read_window import ReadWindow
from tests.roce.rdma_pair import (
    ADDRESSES,
    KEY,
    Nics,
    content,
    eventually,
    play,
)


def test_a_broken_queue_pair_fails_its_reads_and_the_next_read_gets_a_fresh_one(nics: Nics) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(100_000))
        assert await two.read(one, KEY, 0, 1000, 0) is ReadOutcome.DONE
        (access,) = nics.accesses
        access.close()  # as when the peer's NIC was reset: nobody answers
        assert await two.read(one, KEY, 0, 100_000, 0) is ReadOutcome.FAILED
        assert two.transport.counters.dropped == {"read_retry_exceeded": 1}
        assert await two.read(one, KEY, 0, 100_000, 0) is ReadOutcome.DONE
        await eventually(lambda: one.sink.open_extents == 0)

    play(scenario)


def wrong_key(access: PoolAccess, number: int, extent: Extent, where: Any = PoolAccess.where) -> RemoteExtent:
    right = where(access, number, extent)
    return dataclasses.replace(right, rkey=right.rkey ^ 0xFF00)


def test_a_peer_whose_connections_break_is_read_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(100_000))
        with monkeypatch.context() as holder:
            holder.setattr(PoolAccess, "where", wrong_key)
            for _ in range(limits.VERBS_READ_FAILURES_MAX):
                assert await two.read(one, KEY, 0, 100_000, 0) is ReadOutcome.FAILED
        assert await two.read(one, KEY, 0, 100_000, 0) is ReadOutcome.DONE
        assert two.transport.counters.read_bytes_rdma == 0
        assert bytes(two.memory.view(0, 100_000)) == content(100_000)

    play(scenario)


def test_a_wrong_key_is_an_access_error_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(100_000))
        with monkeypatch.context() as holder:
            holder.setattr(PoolAccess, "where", wrong_key)
            assert await two.read(one, KEY, 0, 1000, 0) is ReadOutcome.FAILED
        assert list(two.transport.counters.dropped) == ["read_remote_access_error"]
        assert await two.read(one, KEY, 0, 1000, 0) is ReadOutcome.DONE

    play(scenario)


@pytest.mark.parametrize("beside", [-(1 << 20), 1 << 20], ids=["before", "behind"])
def test_a_key_reaches_no_other_chunk(monkeypatch: pytest.MonkeyPatch, beside: int) -> None:
    """A peer has a chunk open and reads with its key what lies beside it in the pool."""
    where = PoolAccess.where

    def moved(access: PoolAccess, number: int, extent: Extent) -> RemoteExtent:
        right = where(access, number, extent)
        return dataclasses.replace(right, address=right.address + beside)

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(100_000))
        with monkeypatch.context() as holder:
            holder.setattr(PoolAccess, "where", moved)
            assert await two.read(one, KEY, 0, 1000, 0) is ReadOutcome.FAILED
        assert list(two.transport.counters.dropped) == ["read_remote_access_error"]
        assert await two.read(one, KEY, 0, 100_000, 0) is ReadOutcome.DONE
        assert bytes(two.memory.view(0, 100_000)) == content(100_000)

    play(scenario)


def test_idle_connections_are_taken_down_on_both_sides(nics: Nics) -> None:
    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        one.hold(KEY, content(5000))
        assert await two.read(one, KEY, 0, 5000, 0) is ReadOutcome.DONE
        assert {pair.address for pair in nics.of_reads()} == set(ADDRESSES)
        await eventually(lambda: not nics.of_reads())
        assert await two.read(one, KEY, 0, 5000, 0) is ReadOutcome.DONE
        assert len(nics.accesses) == 2

    play(scenario, read_idle_s=1.0)


async def set_neighbour(words: str) -> None:
    process = await asyncio.create_subprocess_exec("ip", "neigh", "replace", *words.split())
    assert await process.wait() == 0


def test_a_read_that_lost_packets_ends_and_its_window_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder's packets go to a card that does not exist, until the reader's NIC has asked again."""
    monkeypatch.setattr(limits, "VERBS_READ_TIMEOUT_EXPONENT", 14)
    monkeypatch.setattr(limits, "VERBS_READ_RETRIES", 7)  # which soft-RoCE takes for ever
    windows_told: list[tuple[int, int]] = []
    lost_of = ReadWindow.lost

    def told(window: ReadWindow, since_ns: int, now_ns: int) -> None:
        windows_told.append((since_ns, now_ns))
        lost_of(window, since_ns, now_ns)

    monkeypatch.setattr(ReadWindow, "lost", told)

    async def scenario(one, two) -> None:  # type: ignore[no-untyped-def]
        chunk = content(4 << 20)
        one.hold(KEY, chunk)
        progressed: list[int] = []
        counters, lost = two.transport.counters, asyncio.Event()
        last: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()

        def read(_before: ReadOutcome = ReadOutcome.DONE) -> None:
            # One after the other until packets are lost, so that there always is a READ to lose packets of.
            done = last.set_result if lost.is_set() else read
            two.transport.reads.read(
                ReadRequest(one.facts.read_endpoint, KEY, 0, len(chunk), 0, done, progressed.append)
            )

        read()
        await eventually(lambda: bool(progressed))
        before = counters.read_retransmissions
        neighbour = f"{ADDRESSES[1]} dev eth0"
        await set_neighbour(f"{neighbour} lladdr 02:00:00:00:00:99 nud permanent")
        await eventually(lambda: counters.read_retransmissions > before)
        assert windows_told
        lost.set()
        await set_neighbour(f"{neighbour} lladdr {data_mac(1)} nud reachable")
        assert await last is ReadOutcome.DONE
        assert bytes(two.memory.view(0, len(chunk))) == chunk

    play(scenario)
