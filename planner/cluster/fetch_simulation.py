"""How chunks come from other nodes: a flow-level reader in place of the protocol's, over the simulated network.

Each node's core decides what it fetches and from which tier; its reader here only notes which chunks it is asked for.
The simulation chooses a copy of each, brings it over the network model as one flow, and reports it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Protocol, assert_never

import numpy as np
import numpy.typing as npt

from hostagent.pool.chunks import Chunk
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvpolicy.tiers.holder_load import HolderLoad
from kvproto import events
from kvproto.commands import ChunkGone, ChunkHere, ReaderCommand, VerifyChunk
from kvproto.ids import Address, NodeId
from kvproto.session.choice import Chooser
from kvproto.session.parameters import ReaderParameters
from planner.cluster.clock import VirtualClock
from planner.cluster.controller import VirtualController
from planner.cluster.served import Served
from planner.network.delivery import Delivered, Delivery, Piece, Work
from planner.network.topology import SWITCH


@lru_cache(maxsize=1024)
def _ones(count: int) -> npt.NDArray[np.bool_]:
    return np.ones(count, np.bool_)


class FlowReader:
    """One node's `ReaderMachine`. Chunks arrive whole: `SegmentsReceived` ends a flow, `chunk_arrived` says whose.

    There is no loss in the model.
    """

    def __init__(self, left_bytes: Callable[[ChunkKey], float | None], segment_bytes: int) -> None:
        """`left_bytes(key)`: of a flow under way, still to come; None: it has not begun."""
        self._left_bytes = left_bytes
        self._segment_bytes = segment_bytes
        self._coming: dict[ChunkKey, int] = {}
        """Segments of each chunk on its way."""
        self._dropped: list[ChunkKey] = []
        self._source: dict[ChunkKey, ChunkSource | None] = {}
        """Of flows that have ended; None: no node had the chunk any more."""
        self._asked: list[events.ChunkWanted] = []
        self.choice = Chooser(is_free=False)

    def take_asked(self) -> list[events.ChunkWanted]:
        """Chunks to be brought from elsewhere, in prefix order, since the last call."""
        asked, self._asked = self._asked, []
        return asked

    def take_dropped(self) -> list[ChunkKey]:
        """Chunks asked for that this node wants no more, since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def chunk_arrived(self, key: ChunkKey, source: ChunkSource | None) -> None:
        """From where the chunk came that the next SegmentsReceived reports; None: no node had it."""
        self._source[key] = source

    # -- of `ReaderMachine`

    @property
    def led_count(self) -> int:
        return 0

    @property
    def patient(self) -> bool:
        return True

    @property
    def half_window(self) -> int:
        return 1

    @property
    def wake_ns(self) -> None:
        """Nothing is due by time alone: flows end by themselves."""

    def handle_timer(self, now_ns: int, /) -> list[ReaderCommand]:
        return []

    def left_at(self, _key: ChunkKey, _now_ns: int, _rail: int = 0) -> Address | None:
        """Nobody keeps interest here: flows are not casts."""
        return None

    def configure(self, parameters: ReaderParameters, now_ns: int, /) -> list[ReaderCommand]:
        return []

    def unsettled(self, _key: ChunkKey, /) -> None:
        """Hashing takes no time here."""

    def missing(self, key: ChunkKey, /) -> npt.NDArray[np.bool_] | None:
        segments = self._coming.get(key)
        if segments is None:
            return None
        left = self._left_bytes(key)
        # Which segments are missing makes no difference to anybody here.
        return _ones(segments if left is None else min(segments, math.ceil(left / self._segment_bytes)))

    def handle_all(self, events: Iterable[events.ReaderEvent], now_ns: int, /) -> list[ReaderCommand]:
        return [command for event in events for command in self._handle(event)]

    def _handle(self, event: events.ReaderEvent) -> Sequence[ReaderCommand]:
        match event:
            case events.ChunkWanted(key, segments):
                if key not in self._coming and key not in self._source:
                    self._coming[key] = segments
                    self._asked.append(event)
                return ()
            case events.ChunkUnwanted(key):
                if self._coming.pop(key, None) is not None:
                    self._dropped.append(key)
                else:
                    self._source.pop(key, None)  # it was being verified
                return ()
            case events.SegmentsReceived(key=key):
                return self._flow_ended(key)
            case events.ChunkVerified(key, good) if good:
                source = self._source.pop(key, None)
                # None: the node wants it no more.
                return () if source is None else (ChunkHere(key, source),)
            case events.HoldersChanged() | events.HolderLost() | events.SwitchChanged():
                return ()  # flows that have begun come to their end
            case events.ControlReceived() | events.ReadProgress() | events.ReadDone() | events.ReadFailed():
                raise AssertionError(f"no packets in a flow model: {event}")
            case events.ChunkVerified() | events.ChunkJudged():
                raise AssertionError(f"nothing is lost or damaged in a replay: {event}")
            case _:
                assert_never(event)

    def _flow_ended(self, key: ChunkKey) -> Sequence[ReaderCommand]:
        if self._coming.pop(key, None) is None:
            del self._source[key]  # the node wants it no more
            return ()
        if self._source[key] is not None:
            return (VerifyChunk(key),)
        del self._source[key]
        return (ChunkGone(key),)


class Transfers:
    """Works on the simulated network, each with whom to notify of its end."""

    def __init__(self, clock: VirtualClock, delivery: Delivery) -> None:
        self._clock = clock
        self._delivery = delivery
        self._numbers = itertools.count()
        self._then: dict[int, Callable[[Delivered], None]] = {}

    def __len__(self) -> int:
        return len(self._then)

    def start(
        self, node: int, pieces: Sequence[Piece], then: Callable[[Delivered], None], *, background: bool = False
    ) -> int:
        """Begin to bring pieces to a node; returns a number for `abandon`."""
        work = Work(next(self._numbers), node, tuple(pieces), background=background)
        self._then[work.id] = then
        self._delivery.fetch(work, self._clock.now_s)
        return work.id

    def fill(self, sink: int, piece: Piece, readers: int, then: Callable[[Delivered], None]) -> None:
        """Begin to send a chunk into the switch; see `Delivery.fill`."""
        work = Work(next(self._numbers), sink, (piece,), background=True)
        self._then[work.id] = then
        self._delivery.fill(work, readers, self._clock.now_s)

    def abandon(self, number: int) -> None:
        """Stop bringing it; no callback is called."""
        del self._then[number]
        self._delivery.abandon(number, self._clock.now_s)

    def answered(self, then: Callable[[], None]) -> None:
        """Call `then` when a holder that is asked now has begun to answer."""
        self._clock.call_later(self._delivery.rtt_s, then)

    def ended(self, delivered: Delivered) -> None:
        """It arrived; what was abandoned at this very moment has no callback."""
        then = self._then.pop(delivered.work.id, None)
        if then is not None:
            then(delivered)


class Peer(Protocol):
    """A node, as others read from it."""

    @property
    def node(self) -> int: ...
    def lend(self, key: ChunkKey) -> Chunk | None: ...
    def give_back(self, chunk: Chunk) -> None: ...
    def load_for_peer(self, key: ChunkKey, then: Callable[[Chunk | None], None]) -> bool: ...
    def chunk_arrived(self, key: ChunkKey, source: ChunkSource | None, holder: int | None) -> None: ...
    def load_reported(self, holder: int, load: HolderLoad, /) -> None: ...
    @property
    def served(self) -> Served: ...


class FetchSimulation:
    """Of all nodes: brings what their readers ask for."""

    def __init__(
        self,
        delivery: Delivery,
        transfers: Transfers,
        controller: VirtualController | None,
        peers: Sequence[Peer],
        *,
        relays: bool,
    ) -> None:
        """`relays`: every copy serves whatever the directory says, from the moment its first bytes arrive."""
        self._delivery = delivery
        self._transfers = transfers
        self._controller = controller
        self._peers = peers
        self._relays = relays
        self._under_way: dict[tuple[int, ChunkKey], tuple[int, Callable[[], None]]] = {}
        """By reader and chunk: the work, and what gives back what it took."""

    def abandon(self, reader: Peer, keys: Sequence[ChunkKey]) -> None:
        """A reader wants no more of these; one that a holder still loads from its disk comes all the same."""
        for key in keys:
            number, give_back = self._under_way.pop((reader.node, key), (None, None))
            if number is not None and give_back is not None:
                self._transfers.abandon(number)
                give_back()

    def bring(self, reader: Peer, asked: Sequence[events.ChunkWanted], *, background: bool) -> None:
        """Bring chunks, in prefix order. `background`: no engine waits for them."""
        for place, wanted in enumerate(asked):
            self._bring_one(reader, wanted, reader.node + place, background=background)

    def _bring_one(self, reader: Peer, wanted: events.ChunkWanted, start: int, *, background: bool) -> None:
        """From the switch if it serves the chunk, else from the least busy copy, else from a node's disk. Among
        equals every reader begins at another one and chunks do too, as `Provenance.choose` has it."""
        key = wanted.key
        if self._is_served(key) and not wanted.read_alone:
            self._start(reader, wanted, SWITCH, None, background=background)
            return
        nodes = [number for ref in wanted.holders if (number := node_of(ref.node)) is not None]
        for holder in self._by_load(self._receiving(reader, key) + nodes, start):
            chunk = self._peers[holder].lend(key)
            if chunk is not None or (self._relays and self._delivery.is_receiving(holder, key)):
                self._start(reader, wanted, holder, chunk, background=background)
                return
        for holder in self._by_load(nodes, start):
            loaded = partial(self._loaded, reader, wanted, holder, background=background)
            if self._peers[holder].load_for_peer(key, loaded):
                return
        reader.chunk_arrived(key, None, None)

    def _is_served(self, key: ChunkKey) -> bool:
        entry = self._controller.core.directory.get(key) if self._controller is not None else None
        return entry is not None and entry.served

    def _receiving(self, reader: Peer, key: ChunkKey) -> list[int]:
        return self._delivery.receiving(key, reader.node) if self._relays else []

    def _by_load(self, holders: Sequence[int], start: int) -> list[int]:
        start %= max(1, len(holders))
        return sorted([*holders[start:], *holders[:start]], key=self._delivery.load)

    def _loaded(
        self, reader: Peer, wanted: events.ChunkWanted, holder: int, chunk: Chunk | None, *, background: bool
    ) -> None:
        """A holder has loaded the chunk from its disk, or has lost it."""
        if chunk is None:
            reader.chunk_arrived(wanted.key, None, None)
        else:
            self._start(reader, wanted, holder, chunk, background=background)

    def _report_load(self, reader: Peer, holder: int) -> None:
        """The head of the holder's answer is here."""
        reader.load_reported(holder, self._peers[holder].served.load_but(reader.node))

    def _start(
        self, reader: Peer, wanted: events.ChunkWanted, holder: int, lent: Chunk | None, *, background: bool
    ) -> None:
        served = None if holder == SWITCH else self._peers[holder].served

        def give_back() -> None:
            if served is not None:
                served.ended(reader.node, wanted.key)
            if lent is not None:
                self._peers[holder].give_back(lent)

        def arrived(delivered: Delivered) -> None:
            del self._under_way[reader.node, wanted.key]
            give_back()
            reader.chunk_arrived(wanted.key, delivered.origins[wanted.key], None if holder == SWITCH else holder)

        if served is not None:
            served.began(reader.node, wanted.key, wanted.size_bytes)
            self._transfers.answered(partial(self._report_load, reader, holder))
        piece = Piece(wanted.key, wanted.size_bytes, holder)
        number = self._transfers.start(reader.node, [piece], arrived, background=background)
        self._under_way[reader.node, wanted.key] = (number, give_back)


def node_name(node: int) -> NodeId:
    """What a node is called."""
    return NodeId(f"node{node}")


def node_of(name: NodeId) -> int | None:
    """The node of this name; None for the switch."""
    return int(name.removeprefix("node")) if name.startswith("node") else None
