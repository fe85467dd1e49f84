"""What Dynamo's router is told of a node: the chunks that its agent has, whoever brought or took them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from kvchunk.ids import ChunkKey, KvIdentity, prefix_keys
from kvclient.engines.core.watched import Change, WatchedChunks
from kvclient.engines.dynamo.node_news import NodeNews
from tests.unit.hostagent.agent_harness import Cluster, cluster

BLOCK_TOKENS, CHUNK_TOKENS = 16, 32
NAMESPACE = KvIdentity("m", chunk_tokens=CHUNK_TOKENS)
PATIENCE_S = 60.0
A, B, C, D = (ChunkKey(bytes([number]) * 16) for number in range(1, 5))


def told(*names: str) -> list[Change[str]]:
    """`+a` is here, `-a` is gone."""
    return [Change(name[0] == "+", name[1:]) for name in names]


def test_a_chunk_is_told_behind_the_one_before_it_and_taken_back_before_that() -> None:
    watched: WatchedChunks[str] = WatchedChunks(10)
    assert watched.prompt_seen([A, B, C], ["a", "b", "c"]) == []
    assert watched.presence_changed({C}) == [], "of no use without what comes before"
    assert watched.presence_changed({A, C}) == told("+a")
    assert watched.presence_changed({A, B, C}) == told("+b", "+c")
    assert watched.presence_changed({A, B, C}) == []
    assert watched.presence_changed({B, C}) == told("-c", "-b", "-a")


def test_prompts_share_what_they_begin_with() -> None:
    watched: WatchedChunks[str] = WatchedChunks(10)
    watched.prompt_seen([A, B], ["a", "b"])
    watched.prompt_seen([A, C], ["a", "c"])
    assert watched.presence_changed({A, B, C}) == told("+a", "+b", "+c")
    assert watched.presence_changed({A, C}) == told("-b")


def test_what_was_not_seen_for_longest_is_forgotten_from_its_end_on() -> None:
    watched: WatchedChunks[str] = WatchedChunks(3)
    watched.prompt_seen([A, B], ["a", "b"])
    assert watched.presence_changed({A, B}) == told("+a", "+b")
    assert watched.prompt_seen([C], ["c"]) == []
    assert watched.prompt_seen([D], ["d"]) == told("-b")
    assert watched.prompt_seen([A], ["a"]) == []
    assert set(watched.keys()) == {A, C, D}


def test_a_prompt_longer_than_the_bound_is_watched_as_far_as_it_goes() -> None:
    watched: WatchedChunks[str] = WatchedChunks(2)
    assert watched.prompt_seen([A, B, C], ["a", "b", "c"]) == []
    assert watched.presence_changed({A, B, C}) == told("+a", "+b")


class Router:
    """Keeps what a publisher is told, as Dynamo's indexer: blocks by hash, each behind its parent."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[int | None, tuple[int, ...]]] = {}
        self._changed = threading.Condition()

    def publish_stored(
        self, token_ids: list[int], num_block_tokens: list[int], block_hashes: list[int], parent_hash: int | None = None
    ) -> None:
        assert sum(num_block_tokens) == len(token_ids)
        assert parent_hash is None or parent_hash in self.blocks, "its parent is not known"
        with self._changed:
            at, parent = 0, parent_hash
            for size, one in zip(num_block_tokens, block_hashes, strict=True):
                assert -(1 << 63) <= one < 1 << 63
                self.blocks[one] = parent, tuple(token_ids[at : at + size])
                at, parent = at + size, one
            self._changed.notify_all()

    def publish_removed(self, block_hashes: list[int]) -> None:
        with self._changed:
            for one in block_hashes:
                del self.blocks[one]
            self._changed.notify_all()

    def await_prompt(self, prompt: Sequence[int]) -> None:
        """Until exactly this is known, in whole chunks."""
        blocks = [tuple(prompt[at : at + BLOCK_TOKENS]) for at in range(0, len(prompt), BLOCK_TOKENS)]
        with self._changed:
            assert self._changed.wait_for(lambda: sorted(t for _, t in self.blocks.values()) == blocks, PATIENCE_S)


@pytest.fixture
def agents() -> Iterator[Cluster]:
    with cluster(1, pool_bytes=1 << 20) as made:
        yield made


@pytest.fixture
def news(agents: Cluster) -> Iterator[Callable[[Router], NodeNews]]:
    made: list[NodeNews] = []

    def make(router: Router) -> NodeNews:
        socket = agents.agents[0].config.api_socket
        made.append(NodeNews(router, socket, NAMESPACE, block_tokens=BLOCK_TOKENS, look_s=0.01))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_router_is_told_what_the_agent_has_and_no_more(agents: Cluster, news: Callable[[Router], NodeNews]) -> None:
    prompt = list(range(3 * CHUNK_TOKENS + 5))
    keys = prefix_keys(NAMESPACE, prompt)
    router, engine = Router(), agents.client(0)
    telling = news(router)
    telling.saw(prompt)
    for key, parent in zip(keys, (None, *keys), strict=False):
        engine.put(key, parent, bytes(4096))
    router.await_prompt(prompt[: 3 * CHUNK_TOKENS])
    assert engine.drop(keys[1:2]) == [True]
    router.await_prompt(prompt[:CHUNK_TOKENS])
    engine.put(keys[1], keys[0], bytes(4096))
    router.await_prompt(prompt[: 3 * CHUNK_TOKENS])


def test_an_agent_that_goes_takes_its_chunks_along_and_may_come_back(
    agents: Cluster, news: Callable[[Router], NodeNews]
) -> None:
    prompt = list(range(CHUNK_TOKENS))
    (key,) = prefix_keys(NAMESPACE, prompt)
    router = Router()
    telling = news(router)
    agents.client(0).put(key, None, bytes(4096))
    telling.saw(prompt)
    router.await_prompt(prompt)
    agents.replace(0)
    router.await_prompt([])
    agents.client(0).put(key, None, bytes(4096))
    router.await_prompt(prompt)


@pytest.mark.parametrize("block_tokens", [0, -1, 24, 64])
def test_blocks_that_make_no_chunk_are_refused(block_tokens: int) -> None:
    with pytest.raises(ValueError, match="a chunk of 32 tokens is no whole number of blocks"):
        NodeNews(Router(), "/nowhere", NAMESPACE, block_tokens=block_tokens)
