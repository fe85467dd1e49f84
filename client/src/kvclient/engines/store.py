"""The pool as a store of named chunks: what the adapters of SGLang, LMCache, UCM and the like have in common.

Every call answers one thing per key, in the order of the keys, and never raises for an agent that is away: then nothing
is there, nothing is stored, and the engine computes. A chunk of another size than the engine's pieces is a miss.

A store's keys need no parents. The agent then ranks each chunk by its own use (how often, how lately), as if it began a
prompt; with parents, which SGLang tells, what lies behind a chunk keeps it, and leaves go first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvchunk.ids import ChunkKey
from kvclient.attach import AgentUnavailableError
from kvclient.client import AgentClient, AgentError, ChunkToPut
from kvclient.engines.link import AgentLink
from kvclient.engines.pieces import Piece, gather, scatter, size_of
from kvclient.messages import KEYS_MAX, MalformedFrameError, Where

POOL_SHARE_MAX = 0.25
"""Share of the pool that one fetch may fill: a fetch pins all its chunks."""
_HELD = frozenset({Where.LOCAL, Where.REMOTE, Where.SWITCH})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk to be put."""

    key: ChunkKey
    pieces: Sequence[Piece]
    parent: ChunkKey | None = None
    position: int | None = None
    """In its prompt, in chunks; None: unknown."""


class ChunkStore:
    """One engine process's store. Methods may be called from any thread, several at once."""

    def __init__(self, link: AgentLink[AgentClient], log: logging.Logger, *, namespace: str, deadline_s: float) -> None:
        """`namespace`: what operators see next to chunks; `deadline_s`: of a fetch. `close` closes `link`, too."""
        self._link = link
        self._log = log
        self._namespace = namespace
        self._deadline_s = deadline_s

    @property
    def away(self) -> bool:
        """Whether there is no agent."""
        return self._link.away

    def close(self) -> None:
        """Give everything back."""
        self._link.close()

    # ------------------------------------------------------------------ what is there

    def exists(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Whether some node or the switch has each chunk."""
        return self._each(keys, lambda client, part: [where in _HELD for where in client.contains(part)])

    def lock(self, keys: Sequence[ChunkKey], *, hold_s: float) -> list[bool]:
        """Bring chunks into this node's DRAM and keep them there for `hold_s`, or until `unlock`.

        False: the chunk did not arrive, or too many are locked already.
        """

        def lock(client: AgentClient, part: Sequence[ChunkKey]) -> list[bool]:
            with client.fetch(part, any_order=True, deadline_s=self._deadline_s) as found:
                here = [key for key, present in zip(part, found.present, strict=True) if present]
                locked = dict(zip(here, client.lock(here, hold_s=hold_s), strict=True)) if here else {}
            return [locked.get(key, False) for key in part]

        return self._each(keys, lock)

    def unlock(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Give back one lock of each chunk; False: it is not locked (any more)."""
        return self._each(keys, lambda client, part: client.unlock(part))

    def delete(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Remove this node's copies; False: there is no copy, or it is locked. Copies on other nodes stay."""
        return self._each(keys, lambda client, part: client.drop(part))

    # ------------------------------------------------------------------ bytes

    def put(self, chunks: Sequence[StoredChunk]) -> list[bool]:
        """Store chunks; True: the pool has it now, no matter who put it. False: there was no room, or no agent."""

        def put(client: AgentClient, part: Sequence[StoredChunk]) -> list[bool]:
            wanted = [
                ChunkToPut(
                    chunk.key, chunk.parent, size_of(chunk.pieces), _writer(chunk.pieces), position=chunk.position
                )
                for chunk in part
            ]
            return client.put_each(wanted, namespace=self._namespace)

        return self._ask(chunks, put)

    def load(self, keys: Sequence[ChunkKey], pieces: Sequence[Sequence[Piece]]) -> list[bool]:
        """Fetch chunks, in any order, and copy each into its pieces. False: its pieces are not the chunk's."""
        odd = 0

        def take(place: int, view: memoryview) -> bool:
            nonlocal odd
            fits = scatter(view, pieces[place])
            odd += not fits
            return fits

        loaded = self.read(keys, [size_of(into) for into in pieces], take)
        if odd:
            self._log.warning("kvcast: %d chunks have another size than this engine's and are not loaded", odd)
        return loaded

    def read(
        self, keys: Sequence[ChunkKey], sizes_bytes: Sequence[int], take: Callable[[int, memoryview], bool]
    ) -> list[bool]:
        """Fetch chunks, in any order, and hand each that came to `take`, with its place among the keys; the view lasts
        for the call. False: the chunk did not come, or `take` said so. `sizes_bytes`: about how large each is."""
        taken: list[bool] = []
        for part in self._fetches(sizes_bytes):
            taken += self._read_some(keys[part], part.start, take)
        return taken

    def _read_some(self, keys: Sequence[ChunkKey], first: int, take: Callable[[int, memoryview], bool]) -> list[bool]:
        def read(client: AgentClient, part: Sequence[ChunkKey]) -> list[bool]:
            with client.fetch(part, any_order=True, deadline_s=self._deadline_s) as found:
                return [view is not None and take(place, view) for place, view in enumerate(found.views, first)]

        return self._ask(keys, read)

    def _fetches(self, sizes_bytes: Sequence[int]) -> Iterator[slice]:
        """Split a load into parts of one fetch each."""
        client = self._link.client
        most_bytes = POOL_SHARE_MAX * client.pool_bytes if client is not None else 0
        first, size_bytes = 0, 0
        for place, chunk_bytes in enumerate(sizes_bytes):
            if place > first and (place - first == KEYS_MAX or size_bytes + chunk_bytes > most_bytes):
                yield slice(first, place)
                first, size_bytes = place, 0
            size_bytes += chunk_bytes
        if first < len(sizes_bytes):
            yield slice(first, len(sizes_bytes))

    # ------------------------------------------------------------------ the agent

    def _each(
        self, keys: Sequence[ChunkKey], do: Callable[[AgentClient, Sequence[ChunkKey]], list[bool]]
    ) -> list[bool]:
        """Call `do` with distinct keys, as many at a time as one request takes."""
        distinct = list(dict.fromkeys(keys))
        done: list[bool] = []
        for at in range(0, len(distinct), KEYS_MAX):
            done += self._ask(distinct[at : at + KEYS_MAX], do)
        if len(distinct) == len(keys):
            return done
        answers = dict(zip(distinct, done, strict=True))
        return [answers[key] for key in keys]

    def _ask(self, part: Sequence[T], do: Callable[[AgentClient, Sequence[T]], list[bool]]) -> list[bool]:
        """Call `do` with the agent; all False where there is none, or it refuses."""
        client = self._link.client
        if client is not None and part:
            try:
                return do(client, part)
            except (AgentUnavailableError, MalformedFrameError) as error:
                self._link.connection_lost(client, str(error))
            except AgentError as error:
                self._log.warning("kvcast: %s", error)
        return [False] * len(part)


def _writer(pieces: Sequence[Piece]) -> Callable[[memoryview], None]:
    return lambda view: gather(pieces, view)
