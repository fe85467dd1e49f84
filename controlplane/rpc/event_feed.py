"""The directory as server-sent events, for routers: how it is, then what changes (`/v1/events`).

event: snapshot     forget what you know: what follows is everything
event: chunks       {"chunks": [{"key", "parent", "position", "bytes", "memory": [NODE], "disk": [NODE], "switch"}],
                     "gone": [KEY]}
event: known        with an id: who comes again gives it as `since`, or as Last-Event-ID, and hears what is new
event: standby      this controller no longer leads; the stream ends
:                   nothing changed for a while: so proxies keep the stream, and a router knows that it is alive
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from itertools import islice

from controlplane.core.core import Core
from controlplane.core.directory import Chunk
from controlplane.core.ids import ChunkKey, NodeIndex

LOOK_S = 0.1
HEARTBEAT_S = 10.0
CHUNKS_AT_ONCE = 500
"""Of one event: some milliseconds, after which the controller does other work."""


class EventFeed:
    """For each who follows: what it asks for. Nothing is kept for those who are slow."""

    def __init__(self, core: Core, standby_words: Callable[[], str]) -> None:
        self._core = core
        self._journal = core.publication.journal
        self._standby_words = standby_words

    async def events(self, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Until this controller no longer leads. `since`: the last id that the router knows."""
        controller, _, number = query.get("since", "").partition(":")
        is_known = controller == str(self._core.options.incarnation) and number.isascii() and number.isdigit()
        known = int(number[:20]) if is_known else -1
        quiet_s = 0.0
        yield b"retry: 1000\n\n"
        while not (refusal := self._standby_words()):
            now = self._journal.sequence
            if known == now:
                await asyncio.sleep(LOOK_S)
                quiet_s += LOOK_S
                if quiet_s >= HEARTBEAT_S:
                    quiet_s = 0.0
                    yield b":\n\n"
                continue
            quiet_s = 0.0
            keys = self._journal.since(known)
            if keys is None:
                yield b"event: snapshot\ndata: {}\n\n"
                chunks = iter(self._core.directory)
                while part := list(islice(chunks, CHUNKS_AT_ONCE)):
                    yield self._event(part, ())
            else:
                for at in range(0, len(keys), CHUNKS_AT_ONCE):
                    yield self._changes(keys[at : at + CHUNKS_AT_ONCE])
            known = now  # and what has changed meanwhile is told next
            yield f"id: {self._core.options.incarnation}:{known}\nevent: known\ndata: {{}}\n\n".encode()
        yield f"event: standby\ndata: {json.dumps(refusal)}\n\n".encode()

    def _changes(self, keys: Iterable[ChunkKey]) -> bytes:
        found = {key: self._core.directory.get(key) for key in keys}
        return self._event(
            [chunk for chunk in found.values() if chunk is not None], [key for key, one in found.items() if one is None]
        )

    def _event(self, chunks: Iterable[Chunk], gone: Iterable[ChunkKey]) -> bytes:
        facts = {"chunks": list(map(self._facts, chunks)), "gone": [key.hex() for key in gone]}
        return b"event: chunks\ndata: " + json.dumps(facts, separators=(",", ":")).encode() + b"\n\n"

    def _facts(self, chunk: Chunk) -> Mapping[str, object]:
        facts = chunk.facts
        return {
            "key": facts.key.hex(),
            "parent": facts.parent.hex() if facts.parent else None,
            "position": facts.position,
            "bytes": facts.size_bytes,
            "memory": self._names(chunk.holders),
            "disk": self._names(chunk.disk_holders),
            "switch": chunk.served,
        }

    def _names(self, nodes: Iterable[NodeIndex]) -> list[str]:
        return sorted(node.facts.name for one in nodes if (node := self._core.nodes.get(one)) is not None)
