"""Between the core's relays and the network: links, and reads of pieces with their leaves.

Decides nothing: carries out effects, and feeds the core what comes of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hostagent.core import effects, events
from hostagent.memory.pool_memory import PoolMemory
from hostagent.pool.chunks import Chunk
from hostagent.transport.base import (
    ChildLink,
    ChunkPlace,
    Extent,
    Proof,
    ReadHandle,
    ReadOutcome,
    ReadRequest,
    Way,
)
from hostagent.transport.host import HostTransport
from hostagent.transport.read_tokens import TokenBook
from hostagent.transport.relay_link import RelayLink, connect
from hostagent.tree import PIECE_BYTES, leaves_of
from kvchunk.ids import ChunkKey
from kvproto.ids import ReadId
from kvproto.session.relay.relay_commands import AbortRun, EndChild, LeaveParent, TellChild, TellParent
from kvproto.wire.relay_messages import Message


def place_of(chunk: Chunk) -> ChunkPlace:
    """Where it lies."""
    return ChunkPlace(chunk.key, chunk.offset, chunk.size_bytes)


class Relaying:
    """Of one agent."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[events.Event], None],
        transport: HostTransport,
        memory: PoolMemory,
        tokens: TokenBook,
        lend: Callable[[ChunkKey, int, int, int], Chunk | None],
    ) -> None:
        """`lend`: see `AgentCore.lend_part`."""
        self._loop = loop
        self._handle = handle
        self._transport = transport
        self._memory = memory
        self._tokens = tokens
        self._lend = lend
        self._parents: dict[str, tuple[RelayLink, Way]] = {}
        self._children: dict[int, ChildLink] = {}
        self._last_child = 0
        self._reads: dict[ReadId, ReadHandle | None] = {}
        """None: it is over, and the core does not know it yet."""
        self._happened: list[events.RelayHeard | events.RelayReadEnded] = []
        """In this turn of the event loop."""

    def carriers(self) -> Mapping[type, Callable[[Any], None]]:
        """What carries out which effect."""
        return {
            TellParent: self._tell_parent,
            TellChild: self._tell_child,
            LeaveParent: self._leave_parent,
            EndChild: self._end_child,
            effects.RelayRead: self._read,
            AbortRun: self._abort,
            effects.ShowPieces: lambda one: self._transport.reads.show(place_of(one.chunk), one.first, one.count),
            effects.HidePieces: lambda one: self._transport.reads.hide(one.key),
        }

    def close(self) -> None:
        """End all links; reads end with the transport."""
        for parent, _ in self._parents.values():
            parent.close()
        self._parents.clear()
        for child in list(self._children.values()):
            child.close()

    # ------------------------------------------------------------------ from the transport (`RelaySink`)

    def open_part(self, key: ChunkKey, offset: int, size_bytes: int) -> Extent | None:
        """A peer reads from a chunk that is on its way."""
        chunk = self._lend(key, offset, size_bytes, time.monotonic_ns())
        return Extent(chunk.offset, chunk.size_bytes, chunk, arriving=key) if chunk is not None else None

    def link_made(self, link: ChildLink) -> int:
        """A peer wants what this node passes on."""
        self._last_child += 1
        self._children[self._last_child] = link
        return self._last_child

    def link_told(self, link: int, messages: tuple[Message, ...]) -> None:
        """A peer says something over its link."""
        self._note(events.RelayHeard(link, messages))

    def link_lost(self, link: int) -> None:
        """A peer's link has ended."""
        if self._children.pop(link, None) is not None:
            self._note(events.RelayHeard(link, lost=True))

    def _note(self, event: events.RelayHeard | events.RelayReadEnded) -> None:
        if not self._happened:
            self._loop.call_soon(self._deliver)
        self._happened.append(event)

    def _deliver(self) -> None:
        """The core decides once of what happened in one turn: at full load a link or a read has news in each."""
        happened, self._happened = self._happened, []
        self._handle(
            events.RelaysHappened(
                tuple(
                    one
                    for one in happened
                    if isinstance(one, events.RelayHeard) or self._reads.pop(one.read, self) is not self
                )
            )
        )

    # ------------------------------------------------------------------ links

    def _tell_parent(self, effect: TellParent) -> None:
        endpoint = effect.endpoint
        link, way = self._parents.get(endpoint, (None, None))
        if link is None:
            way = self._transport.way_to(endpoint)
            link = connect(
                self._loop,
                way,
                self._tokens.shown,
                lambda messages: self._note(events.RelayHeard(endpoint, messages)),
                partial(self._parent_lost, endpoint),
            )
            if link is None:
                self._note(events.RelayHeard(endpoint, lost=True))
                return
            self._parents[endpoint] = link, way
        link.send(effect.message)

    def _parent_lost(self, endpoint: str, why: str) -> None:
        if why:
            self._transport.counters.drop(why)
        self._parents.pop(endpoint, None)
        self._note(events.RelayHeard(endpoint, lost=True))

    def _leave_parent(self, effect: LeaveParent) -> None:
        link, _ = self._parents.pop(effect.endpoint, (None, None))
        if link is not None:
            link.close()

    def way_left(self, endpoint: str, left: Way) -> None:
        """See `TransportSink.way_left`: a link by it has ended; the next one goes by another way."""
        link, way = self._parents.get(endpoint, (None, None))
        if link is not None and way == left:
            link.close()
            self._parent_lost(endpoint, "")

    def _tell_child(self, effect: TellChild) -> None:
        child = self._children.get(effect.link)
        if child is not None:
            child.tell(effect.message)

    def _end_child(self, effect: EndChild) -> None:
        child = self._children.pop(effect.link, None)
        if child is not None:
            self._transport.counters.drop("relay_message_illegal")
            child.close()

    # ------------------------------------------------------------------ pieces

    def _read(self, effect: effects.RelayRead) -> None:
        run, chunk, proof = effect.run, effect.chunk, Proof()
        offset = run.first * PIECE_BYTES
        size_bytes = min(run.count * PIECE_BYTES, chunk.size_bytes - offset)
        place = chunk.offset + offset
        self._reads[run.read] = self._transport.reads.read(
            ReadRequest(
                run.endpoint,
                chunk.key,
                offset,
                size_bytes,
                place,
                partial(self._read_ended, effect, place, size_bytes, proof),
                proof=proof,
                over_tcp=True,
            )
        )

    def _read_ended(
        self, effect: effects.RelayRead, place: int, size_bytes: int, proof: Proof, outcome: ReadOutcome
    ) -> None:
        run, leaves = effect.run, None
        self._reads[run.read] = None
        if outcome is ReadOutcome.DONE:
            leaves = proof.leaves or leaves_of(self._memory.view(place, size_bytes))
        self._note(events.RelayReadEnded(run.read, run.key, run.first, leaves))

    def _abort(self, effect: AbortRun) -> None:
        handle = self._reads.pop(effect.read, None)
        if handle is not None:
            handle.cancel()
