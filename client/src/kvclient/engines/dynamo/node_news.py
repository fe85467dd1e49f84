"""Tells Dynamo's router which blocks of prompts a node's agent has, for workers whose engine keeps its KV in the pool.

The engine says which prompts it has seen. The agent, asked from time to time, says which of their chunks it has. So
the router also learns what casts, other engines, warming and eviction changed.

Dynamo itself is not imported: a worker hands its own `KvEventPublisher` in.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvchunk.ids import ChunkKey, KvIdentity, prefix_keys
from kvclient.attach import AgentUnavailableError
from kvclient.client import AgentClient, AgentError
from kvclient.engines.core.watched import Change, WatchedChunks
from kvclient.engines.link import AgentLink
from kvclient.messages import KEYS_MAX, MalformedFrameError, Where

log = logging.getLogger("kvcast")

LOOK_S = 1.0
"""Default time between look-ups at the agent."""
CHUNKS_MAX = 16384
"""Default bound of watched chunks."""


class KvEventPublisher(Protocol):
    """The part of Dynamo's publisher (dynamo.llm) that is used. Hashes are signed, of 64 bits."""

    def publish_stored(
        self, token_ids: list[int], num_block_tokens: list[int], block_hashes: list[int], parent_hash: int | None = None
    ) -> None: ...

    def publish_removed(self, block_hashes: list[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A chunk, as Dynamo knows it."""

    hashes: list[int]
    parent: int | None
    """The last block before it."""
    tokens: list[int]


class NodeNews:
    """Publishes for one worker. Methods may be called from any thread; none waits for the agent."""

    def __init__(
        self,
        publisher: KvEventPublisher,
        socket: str,
        identity: KvIdentity,
        *,
        block_tokens: int,
        look_s: float = LOOK_S,
        chunks_max: int = CHUNKS_MAX,
    ) -> None:
        """`socket`: the agent's; `identity`: of the chunks that the engine puts; `block_tokens`: what the worker
        registers as its block size. Raises ValueError where a chunk is not so many whole blocks. An agent that is away
        raises nothing.
        """
        if block_tokens < 1 or identity.chunk_tokens % block_tokens:
            raise ValueError(
                f"a chunk of {identity.chunk_tokens} tokens is no whole number of blocks of {block_tokens}: "
                "register a block size that divides chunk_tokens"
            )
        self._publisher = publisher
        self._identity = identity
        self._block_tokens = block_tokens
        self._look_s = look_s
        self._link = AgentLink(AgentClient, socket, log)
        self._watched: WatchedChunks[_Blocks] = WatchedChunks(chunks_max)
        self._lock = threading.Lock()
        """Guards the watched chunks and the order of events."""
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kvcast-dynamo-news", daemon=True)
        self._thread.start()

    def saw(self, tokens: Sequence[int]) -> None:
        """Watch a prompt that the engine has had: publish which of its chunks are on this node, now and at each change.

        Not for prompts with images, adapters or a salt: Dynamo distinguishes those by more than their tokens.
        """
        keys = prefix_keys(self._identity, tokens)
        blocks = [self._blocks(keys, chunk, tokens) for chunk in range(len(keys))]
        with self._lock:
            self._publish(self._watched.prompt_seen(keys, blocks))
        self._wake.set()

    def close(self) -> None:
        """Stop publishing. Dynamo forgets the events when the worker ends."""
        self._closed = True
        self._wake.set()
        self._thread.join()
        self._link.close()

    def _blocks(self, keys: Sequence[ChunkKey], chunk: int, tokens: Sequence[int]) -> _Blocks:
        size = self._identity.chunk_tokens
        count = size // self._block_tokens
        return _Blocks(
            hashes=[_block_hash(keys[chunk], block) for block in range(count)],
            parent=_block_hash(keys[chunk - 1], count - 1) if chunk else None,
            tokens=list(tokens[chunk * size : (chunk + 1) * size]),
        )

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._look_s)
            self._wake.clear()
            with self._lock:
                keys = self._watched.keys()
            present = self._present(keys)
            with self._lock:
                self._publish(self._watched.presence_changed(present))

    def _present(self, keys: Sequence[ChunkKey]) -> set[ChunkKey]:
        """Which chunks the agent has; none where there is no agent."""
        client = self._link.client
        present: set[ChunkKey] = set()
        if client is None:
            return present
        try:
            for at in range(0, len(keys), KEYS_MAX):
                part = keys[at : at + KEYS_MAX]
                places = zip(part, client.contains(part), strict=True)
                present.update(key for key, where in places if where is Where.LOCAL)
        except (AgentUnavailableError, MalformedFrameError) as error:
            self._link.connection_lost(client, str(error))
            return set()
        except AgentError as error:
            log.warning("kvcast: the router does not learn of some chunks of this node: %s", error)
        return present

    def _publish(self, changes: Sequence[Change[_Blocks]]) -> None:
        for change in changes:
            blocks = change.facts
            if change.is_here:
                sizes = [self._block_tokens] * len(blocks.hashes)
                self._publisher.publish_stored(blocks.tokens, sizes, blocks.hashes, blocks.parent)
            else:
                self._publisher.publish_removed(blocks.hashes)


def _block_hash(key: ChunkKey, block: int) -> int:
    """A name for a block of a chunk, the same on all nodes."""
    digest = hashlib.blake2b(key + block.to_bytes(4, "big"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
