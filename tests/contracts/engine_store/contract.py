"""What every adapter of an engine that stores named chunks must do: one suite, run against each of them.

An adapter's own test module subclasses `EngineStoreContract` and says how one is made. Chunks are named by numbers
here; what they contain follows from the number and from the driver's model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pytest

from hostagent.core.chunk_entry import ChunkEntry
from hostagent.pool.tenants import HELD_SHARE_MAX
from kvclient.engines.pieces import Piece, scatter
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster

PIECE_BYTES = 4096
PIECES = 6
"""Of a chunk: as many runs of bytes in an engine's memory."""
POOL_BYTES = 4 * MIB
CHUNK_BYTES = PIECES * PIECE_BYTES


def content_of(number: int, model: str = "m") -> bytes:
    """The bytes of a chunk."""
    return random.Random(f"{model}:{number}").randbytes(CHUNK_BYTES)


class Driver(Protocol):
    """An adapter, as its engine drives it."""

    def put(self, numbers: list[int]) -> list[bool]:
        """Store chunks with their contents, in prompt order; whether each is stored."""
        ...

    def exists(self, number: int) -> bool:
        """Whether the adapter says that a chunk is there."""
        ...

    def load(self, numbers: list[int]) -> list[bytes | None]:
        """The contents that came into the engine's memory; None: the adapter says that it did not come."""
        ...

    def close(self) -> None: ...


MakeDriver = Callable[..., Driver]


class Bench:
    """Two nodes with an agent each, and the adapters on them."""

    def __init__(self, agents: Cluster, make: Callable[[str, str], Driver]) -> None:
        self.agents = agents
        self._make = make
        self._made: list[Driver] = []

    def driver(self, node: int = 0, model: str = "m") -> Driver:
        """A fresh engine on a node."""
        made = self._make(self.agents.agents[node].config.api_socket, model)
        self._made.append(made)
        return made

    def publish(self) -> None:
        """The directory names everything in the pools, as the controller would."""
        entries: dict[bytes, ChunkEntry] = {}
        for index, agent in enumerate(self.agents.agents):
            for chunk in self.agents.call(agent.core.pool.ready_chunks):
                before = entries.get(chunk.key)
                holders = (*before.holders, index) if before is not None else (index,)
                entries[chunk.key] = ChunkEntry(
                    chunk.key, chunk.parent, chunk.size_bytes, chunk.digest, chunk.position, holders
                )
        self.agents.tell(chunks=tuple(entries.values()))

    def stop_last(self) -> None:
        """The agent of the last node ends."""
        self.agents.do(self.agents.agents.pop().stop())

    def close(self) -> None:
        """End all engines."""
        for driver in self._made:
            driver.close()


class EngineStoreContract:
    """Subclass as `Test...` and give `make_driver`."""

    @pytest.fixture
    def make_driver(self) -> Callable[[str, str], Driver]:
        """`make(agent's socket, model)`."""
        raise NotImplementedError

    @pytest.fixture
    def bench(self, make_driver: Callable[[str, str], Driver]) -> Iterator[Bench]:
        with cluster(2, pool_bytes=POOL_BYTES) as agents:
            made = Bench(agents, make_driver)
            yield made
            made.close()

    def test_an_agent_that_ends_during_a_copy_spoils_it(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        driver = bench.driver(1)
        assert driver.put([1]) == [True]
        assert driver.load([1]) == [content_of(1)]

        def interrupted(view: memoryview, pieces: Sequence[Piece]) -> bool:
            done = scatter(view, pieces)
            bench.stop_last()
            return done

        monkeypatch.setattr("kvclient.engines.store.scatter", interrupted)
        assert driver.load([1]) == [None], "the memory may have been another chunk's"

    def test_what_one_engine_stores_another_loads(self, bench: Bench) -> None:
        first, second, elsewhere = bench.driver(0), bench.driver(0), bench.driver(1)
        numbers = list(range(8))
        assert first.put(numbers) == [True] * 8
        bench.publish()
        for reader in (second, elsewhere):
            assert all(reader.exists(number) for number in numbers)
            assert reader.load(numbers) == [content_of(number) for number in numbers]

    def test_a_chunk_is_stored_once(self, bench: Bench) -> None:
        first, second = bench.driver(), bench.driver()
        assert first.put([1, 2]) == second.put([1, 2]) == [True, True]
        assert len(bench.agents.agents[0].core.pool.ready_chunks()) == 2

    def test_a_miss_drops_none_of_the_others(self, bench: Bench) -> None:
        driver = bench.driver()
        driver.put([1])
        driver.put([3])
        assert [driver.exists(number) for number in (1, 2, 3)] == [True, False, True]
        assert driver.load([1, 2, 3]) == [content_of(1), None, content_of(3)]

    def test_another_model_shares_nothing(self, bench: Bench) -> None:
        one, other = bench.driver(model="m"), bench.driver(model="other")
        one.put([1])
        assert not other.exists(1)
        assert other.load([1]) == [None]
        other.put([1])
        assert (one.load([1]), other.load([1])) == ([content_of(1)], [content_of(1, "other")])

    def test_more_than_the_pool_holds_is_stored_as_far_as_it_goes(self, bench: Bench) -> None:
        driver = bench.driver()
        count = 2 * POOL_BYTES // CHUNK_BYTES
        driver.put(list(range(count)))
        found = driver.load(list(range(count)))
        assert sum(one is not None for one in found) > count // 8
        assert all(one in (None, content_of(number)) for number, one in enumerate(found))

    def test_a_pool_without_room_refuses_and_goes_on(self, bench: Bench) -> None:
        driver, keeper = bench.driver(), bench.agents.client(0)
        keeper.put(bytes(16), None, bytes(int(HELD_SHARE_MAX * POOL_BYTES)))
        keeper.pin([bytes(16)])
        assert driver.put([1, 2]) == [False, False]
        assert driver.load([1]) == [None]
        keeper.unpin([bytes(16)])
        assert driver.put([1, 2]) == [True, True]

    def test_without_an_agent_nothing_is_there_and_nothing_is_raised(self, bench: Bench) -> None:
        driver = bench.driver(1)
        driver.put([1])
        bench.stop_last()
        for _ in range(2):
            assert (driver.put([2]), driver.exists(1), driver.load([1, 2])) == ([False], False, [None, None])

    def test_damage_on_the_way_is_a_miss(self, bench: Bench) -> None:
        here, there = bench.driver(0), bench.driver(1)
        there.put([1, 2])
        bench.publish()
        agent = bench.agents.agents[1]
        chunk = min(agent.core.pool.ready_chunks(), key=lambda one: one.position)
        view = np.frombuffer(agent.memory.view(chunk.offset, chunk.size_bytes), dtype=np.uint8)
        view[100] ^= 1
        try:
            found = here.load([1, 2])
        finally:
            view[100] ^= 1
            del view
        assert sorted(one is None for one in found) == [False, True]
        assert all(one in (None, content_of(number)) for number, one in zip((1, 2), found, strict=True))
