"""Between an agent's transport and its core: facts of the network become events, and effects become reads.

Decides nothing. Owns the reads under way, and who waits for chunks from this node's disk.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.core import AgentCore
from hostagent.lone_gets import LoneGets
from hostagent.memory.pool_memory import PoolMemory
from hostagent.pool.chunks import Chunk
from hostagent.relaying import Relaying, place_of
from hostagent.transport.base import (
    ControlArrival,
    Extent,
    Proof,
    ReadHandle,
    ReadOutcome,
    ReadRequest,
    RelaySink,
    Way,
)
from hostagent.transport.host import HostTransport
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.holder_load import IDLE, HolderLoad
from kvproto import events as protocol
from kvproto.commands import AbortRead, SendControl
from kvproto.ids import ReadId
from kvproto.wire.control import Op


class Network:
    """One agent's `TransportSink`, and what carries out the effects that need the transport."""

    def __init__(
        self,
        core: AgentCore,
        transport: HostTransport,
        memory: PoolMemory,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[events.Event], None],
        lent: Callable[[int], None],
        relaying: Relaying,
        lone_gets: LoneGets | None,
    ) -> None:
        """`handle` feeds the core an event; `lent(now_ns)`: the core lent a chunk, its next timeout may be
        sooner."""
        self._core = core
        self._transport = transport
        self._memory = memory
        self._loop = loop
        self._handle = handle
        self._lent = lent
        self._relaying, self._lone_gets = relaying, lone_gets
        self._reads: dict[ReadId, ReadHandle] = {}
        self._proven: list[events.ReadProven] = []
        """Reads that ended on this turn of the loop, hashed."""
        self._loads_told: dict[str, HolderLoad] = {}
        """What peers said on this turn of the loop, the last word of each."""
        self._peers_waiting: dict[ChunkKey, list[Callable[[], None]]] = defaultdict(list)
        """Callbacks of peers that wait for chunks from this node's disk."""

    def carriers(self) -> Mapping[type, Callable[[Any], None]]:
        """What carries out which effect."""
        return {
            SendControl: self._send_control,
            effects.CastSegments: lambda one: (
                self._transport.casts.cast(place_of(one.chunk), one.first, one.count, one.blocks)
                if not one.rail
                else self._transport.cast_by(one.rail, place_of(one.chunk), one.first, one.count, one.blocks)
            ),
            effects.FillSegments: lambda one: self._transport.casts.fill(
                place_of(one.chunk), one.first, one.count, one.pool_address, cast_too=one.cast_too
            ),
            effects.ExpectCasts: lambda one: self._transport.casts.expect(place_of(one.chunk), one.missing),
            effects.ForgetCasts: lambda one: self._transport.casts.forget(one.key),
            effects.StartRead: self._start_read,
            effects.ReadPieces: self._read_pieces,
            effects.ReadLeaves: self._read_leaves,
            AbortRead: self._abort_read,
            effects.PeerLoadEnded: self._peer_load_ended,
            effects.DatagramsDropped: lambda one: self._transport.counters.drop(one.reason, one.count),
        }

    def _send_control(self, effect: SendControl) -> None:
        if effect.message.op is Op.JOIN:
            self._transport.counters.joins_sent += 1
        self._transport.send_control(effect.message, effect.address, effect.rail)

    # ------------------------------------------------------------------ from the transport (`TransportSink`)

    def controls_received(self, arrivals: Sequence[ControlArrival]) -> None:
        """Control datagrams."""
        received = tuple(protocol.ControlReceived(message, source, rail) for message, source, rail in arrivals)
        self._handle(events.ControlsReceived(received))

    def casts_placed(self, arrivals: Sequence[protocol.SegmentsReceived]) -> None:
        """Segments of chunks, in the pool already."""
        self._handle(events.CastsPlaced(tuple(arrivals)))

    def casts_unexpected(self, arrivals: Sequence[protocol.SegmentsReceived]) -> None:
        """Segments that were thrown away."""
        self._handle(events.CastsUnexpected(tuple(arrivals)))

    def cast_patience_segments(self) -> int:
        """The same patience as `cast_patience_s`, in segments."""
        reader = self._core.fetches.arrivals.reader
        if reader.patient:
            return limits.CAST_FOLLOWER_WAKE_SEGMENTS
        return min(limits.CAST_WAKE_SEGMENTS, reader.half_window)

    def cast_patience_s(self) -> float:
        """While others pull and much is still to come, nothing depends on a segment being seen at once."""
        return limits.CAST_FOLLOWER_POLL_S_MAX if self._core.fetches.arrivals.reader.patient else limits.CAST_POLL_S_MAX

    def segments_sent(self, key: ChunkKey, count: int, rail: int = 0) -> None:
        """Segments left."""
        self._handle(protocol.SegmentsSent(key, count, rail))

    def segments_failed(self, key: ChunkKey, count: int, rail: int = 0) -> None:
        """Segments could not leave."""
        self._handle(protocol.SendFailed(key, count, rail))

    def fill_sent(self, key: ChunkKey, count: int) -> None:
        """Segments of a fill left."""
        self._handle(events.FillSent(key, count))

    def casts_queued_bytes(self) -> int:
        """Of casts that this node was asked for."""
        return sum(serving.queued_bytes for serving in self._core.serving_by_rail)

    def open_extent(self, key: ChunkKey) -> Extent | None:
        """A peer reads."""
        now_ns = time.monotonic_ns()
        chunk = self._core.lend(key, now_ns)
        self._lent(now_ns)
        return Extent(chunk.offset, chunk.size_bytes, chunk) if chunk is not None else None

    def relays(self) -> RelaySink:
        """Peers may read what is still arriving."""
        return self._relaying

    def namespace_of(self, key: ChunkKey) -> str | None:
        """Whose a chunk of this node is."""
        return self._core.namespace_of(key)

    def leaves(self, key: ChunkKey) -> bytes | None:
        """A peer wants to know which part of a chunk it got wrong."""
        chunk = self._core.pool.find(key)
        return chunk.leaves if chunk is not None and chunk.leaves else None

    def way_left(self, endpoint: str, way: Way) -> None:
        """What goes by it is made anew by another one."""
        self._relaying.way_left(endpoint, way)
        if self._lone_gets is not None:
            self._lone_gets.way_left(way)

    def rails_of(self, endpoint: str) -> Sequence[str]:
        """Where else a node is read."""
        return self._core.directory.rails_of(endpoint)

    def close_extent(self, extent: Extent) -> None:
        """A peer has read."""
        if not isinstance(extent.token, Chunk):
            raise TypeError("an extent that was not opened here")
        self._handle(events.PeerReadEnded(extent.token))

    def peers_read(self, keys: Sequence[ChunkKey]) -> None:
        """Peers read these chunks, from the first byte on."""
        self._handle(events.PeersRead(tuple(keys)))

    def prepare(self, key: ChunkKey, then: Callable[[], None]) -> bool:
        """A peer wants a chunk that may lie on this node's disk."""
        if not self._core.can_load_for_peer(key):
            return False
        self._peers_waiting[key].append(then)
        self._handle(events.PeerLoadRequested(key))
        return True

    def _peer_load_ended(self, effect: effects.PeerLoadEnded) -> None:
        for then in self._peers_waiting.pop(effect.key, ()):
            then()
        if effect.chunk is not None:
            self._loop.call_soon(self._handle, events.PeerReadEnded(effect.chunk))

    # ------------------------------------------------------------------ reads

    def _start_read(self, effect: effects.StartRead) -> None:
        proof = Proof() if effect.is_provable else None
        if proof is None:
            ended = partial(self._read_ended, effect.read)
        else:
            ended = partial(self._proven_ended, effect.read, effect.offset, proof)
        progressed = None
        if effect.size_bytes > limits.READ_PROGRESS_BYTES:
            progressed = partial(self._read_progressed, effect.read, effect.segment_bytes)
        chunk, offset = effect.chunk, effect.offset
        self._reads[effect.read] = self._transport.reads.read(
            ReadRequest(
                effect.endpoint,
                chunk.key,
                offset,
                effect.size_bytes,
                chunk.offset + offset,
                ended,
                progressed,
                partial(self._holder_told, effect.node),
                effect.wanted_bytes,
                proof=proof,
            )
        )

    def _read_pieces(self, effect: effects.ReadPieces) -> None:
        self._reads[effect.read] = self._transport.reads.read(
            ReadRequest(
                effect.endpoint,
                effect.into.key,
                effect.offset,
                effect.size_bytes,
                effect.pool_offset,
                partial(self._read_ended, effect.read),
                None,
                partial(self._holder_told, effect.node),
                effect.wanted_bytes,
            )
        )

    def _holder_told(self, node: str, load: HolderLoad) -> None:
        """What a peer has queued for others; whoever waits for what comes with it comes first."""
        if load == IDLE and node not in self._loads_told and node not in self._core.busy_nodes:
            return
        if not self._loads_told:
            self._loop.call_later(0, self._tell_loads)
        self._loads_told[node] = load

    def _tell_loads(self) -> None:
        told, self._loads_told = self._loads_told, {}
        for node, load in told.items():
            self._handle(events.HolderTold(node, load))

    def _abort_read(self, effect: AbortRead) -> None:
        handle = self._reads.pop(effect.read, None)
        if handle is not None:
            handle.cancel()

    def _read_leaves(self, effect: effects.ReadLeaves) -> None:
        leaves = bytearray(effect.size_bytes)
        ended = partial(self._leaves_ended, effect.read, leaves)
        request = ReadRequest(effect.endpoint, effect.key, 0, effect.size_bytes, 0, ended, leaves=leaves)
        self._reads[effect.read] = self._transport.reads.read(request)

    def _leaves_ended(self, read: ReadId, leaves: bytearray, outcome: ReadOutcome) -> None:
        if outcome is ReadOutcome.DONE:
            del self._reads[read]
            self._handle(events.LeavesRead(read, bytes(leaves)))
        else:
            self._read_ended(read, outcome)

    def _read_ended(self, read: ReadId, outcome: ReadOutcome) -> None:
        del self._reads[read]
        if outcome is ReadOutcome.DONE:
            self._handle(protocol.ReadDone(read))
        else:
            self._handle(protocol.ReadFailed(read, gone=outcome is ReadOutcome.ABSENT))

    def _proven_ended(self, read: ReadId, offset: int, proof: Proof, outcome: ReadOutcome) -> None:
        """Those that end together are told together: what follows from them is worked out once."""
        if outcome is not ReadOutcome.DONE or not proof.leaves:
            self._read_ended(read, outcome)
            return
        del self._reads[read]
        if not self._proven:
            self._loop.call_soon(self._tell_proven)
        self._proven.append(events.ReadProven(read, offset, proof.leaves))

    def _tell_proven(self) -> None:
        proven, self._proven = self._proven, []
        self._handle(events.ReadsProven(tuple(proven)))

    def _read_progressed(self, read: ReadId, segment_bytes: int, have_bytes: int) -> None:
        self._handle(protocol.ReadProgress(read, have_bytes // segment_bytes))
