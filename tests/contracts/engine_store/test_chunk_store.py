"""The store that adapters share passes their contract, and keeps its promises about locks and sizes."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest

from kvchunk.ids import ChunkKey, KvIdentity
from kvclient.client import AgentClient
from kvclient.engines.core.named_keys import leading, named_keys
from kvclient.engines.link import AgentLink
from kvclient.engines.pieces import Piece, gather, piece_at, scatter
from kvclient.engines.store import ChunkStore, StoredChunk
from tests.contracts.engine_store.contract import (
    PIECE_BYTES,
    PIECES,
    POOL_BYTES,
    Bench,
    Driver,
    EngineStoreContract,
    content_of,
)

LOG = logging.getLogger("test")


class StoreDriver:
    """The store alone, with pieces in memory of its own."""

    def __init__(self, socket: str, model: str) -> None:
        self.model = model
        self.store = ChunkStore(AgentLink(AgentClient, socket, LOG), LOG, namespace=model, deadline_s=5.0)

    def keys(self, numbers: list[int]) -> list[ChunkKey]:
        return named_keys(KvIdentity(self.model).digest(), (b"%d" % number for number in numbers))

    def put(self, numbers: list[int]) -> list[bool]:
        keys = self.keys(numbers)
        return self.store.put(
            [
                StoredChunk(key, pieces_of(content_of(number, self.model)), parent)
                for number, key, parent in zip(numbers, keys, (None, *keys), strict=False)
            ]
        )

    def exists(self, number: int) -> bool:
        return self.store.exists(self.keys([number]))[0]

    def load(self, numbers: list[int]) -> list[bytes | None]:
        into = [pieces_of(bytes(PIECES * PIECE_BYTES)) for _ in numbers]
        loaded = self.store.load(self.keys(numbers), into)
        return [b"".join(bytes(one) for one in each) if came else None for came, each in zip(loaded, into, strict=True)]

    def close(self) -> None:
        self.store.close()


def pieces_of(content: bytes) -> list[Piece]:
    """Copies, each in a place of its own."""
    return [
        np.frombuffer(content[at : at + PIECE_BYTES], dtype=np.uint8).copy()
        for at in range(0, len(content), PIECE_BYTES)
    ]


class TestChunkStore(EngineStoreContract):
    @pytest.fixture
    def make_driver(self) -> Callable[[str, str], Driver]:
        return StoreDriver

    def test_a_chunk_of_another_size_is_left_alone(self, bench: Bench) -> None:
        driver = bench.driver()
        assert isinstance(driver, StoreDriver)
        driver.put([1])
        into = pieces_of(bytes(PIECE_BYTES))
        assert driver.store.load(driver.keys([1]), [into]) == [False]
        assert not into[0].any()

    def test_locks_bring_and_keep(self, bench: Bench) -> None:
        here, there = bench.driver(0), bench.driver(1)
        assert isinstance(here, StoreDriver)
        there.put([1, 2])
        bench.publish()
        keys = here.keys([1, 9, 2])
        assert here.store.lock(keys, hold_s=30) == [True, False, True]
        here.put(list(range(100, 100 + 2 * POOL_BYTES // len(content_of(1)))))
        assert here.load([1, 2]) == [content_of(1), content_of(2)]
        assert here.store.delete(keys) == [False] * 3, "locked"
        assert here.store.unlock(keys) == [True, False, True]
        assert here.store.delete(keys) == [True, False, True]

    def test_the_agent_comes_back(self, bench: Bench) -> None:
        driver = bench.driver()
        assert isinstance(driver, StoreDriver)
        driver.put([1])
        bench.agents.replace(0)
        assert driver.load([1]) == [None], "what the agent before had is gone"
        bench.agents.until(lambda: not driver.store.away)
        driver.put([1])
        assert driver.load([1]) == [content_of(1)]


def test_keys_depend_on_name_and_namespace_alone() -> None:
    one, other = KvIdentity("m").digest(), KvIdentity("n").digest()
    assert named_keys(one, [b"a", b"b"]) == named_keys(one, [b"a", b"b"])
    assert len({*named_keys(one, [b"", b"a", b"b"]), *named_keys(other, [b"a"])}) == 4
    with pytest.raises(ValueError, match="32 bytes"):
        named_keys(b"short", [b"a"])
    assert [leading(here) for here in ([], [True, False, True], [True], [False])] == [0, 1, 1, 0]


def test_pieces_are_gathered_and_scattered_in_order() -> None:
    memory = np.arange(30, dtype=np.uint8)
    pieces = [piece_at(memory.ctypes.data + at, size) for at, size in ((20, 5), (0, 3), (10, 2))]
    chunk = bytearray(10)
    gather(pieces, memoryview(chunk))
    assert list(chunk) == [20, 21, 22, 23, 24, 0, 1, 2, 10, 11]
    assert scatter(memoryview(bytes(10)), pieces)
    assert memory.sum() == np.arange(30).sum() - sum(chunk)
    assert not scatter(memoryview(bytes(9)), pieces)
