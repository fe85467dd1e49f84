"""Reliable reads over several rails: one `ReadPart` of those of each rail.

Decides nothing but how far a read has come: `kvproto.session.rails` says by which rail each goes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from hostagent import limits
from hostagent.transport.base import ChunkPlace, ReadHandle, ReadOutcome, ReadPart, ReadRequest, TransportCounters, Way
from hostagent.transport.path_probe import connects
from kvchunk.ids import ChunkKey
from kvproto.session.rails import Rails

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _RailRead:
    """A `ReadHandle`: one read, by whichever rail it goes at the moment."""

    peer: _Peer
    number: int
    request: ReadRequest
    on: ReadHandle | None = None
    told_bytes: int = 0
    """Leading bytes of which the asker knows: nobody writes there again."""

    def cancel(self) -> None:
        """See `ReadHandle.cancel`."""
        if self.on is not None:
            self.on.cancel()
            self.peer.rails.forget(self.number, time.monotonic_ns())
            self.over()

    def over(self) -> None:
        """It ends, or is given up."""
        self.on = None
        del self.peer.reads[self.number]

    def start(self, part: ReadPart, way: Way, done: Callable[[ReadOutcome], None]) -> None:
        """Ask for what is still to come."""
        if self.on is not None:
            self.on.cancel()
        request, told = self.request, self.told_bytes
        self.on = part.read(
            replace(
                request,
                endpoint=way.endpoint,
                offset=request.offset + told,
                size_bytes=request.size_bytes - told,
                pool_offset=request.pool_offset + told,
                done=done,
                progressed=partial(self._progressed, told),
                # Leaves of a part alone are of no use; whoever reads hashes it then.
                proof=None if told else request.proof,
            )
        )

    def _progressed(self, before_bytes: int, have_bytes: int) -> None:
        self.peer.rails.progress(self.number, time.monotonic_ns())
        if self.request.progressed is not None and before_bytes + have_bytes < self.request.size_bytes:
            self.told_bytes = before_bytes + have_bytes
            self.request.progressed(self.told_bytes)


@dataclass(slots=True, eq=False)
class _Peer:
    """One node, read on several rails."""

    ways: Sequence[Way]
    rails: Rails
    reads: dict[int, _RailRead] = field(default_factory=dict)


class RailReads:
    """See the module's docstring; the first of `parts` is read by peers that have one rail only."""

    def __init__(
        self,
        parts: Sequence[ReadPart],
        ways_to: Callable[[str], Sequence[Way]],
        counters: TransportCounters,
        way_left: Callable[[str, Way], None],
    ) -> None:
        """`parts`: of the rails, which end after this; `ways_to`: see `HostTransport.ways_to`; `way_left`: see
        `TransportSink.way_left`."""
        self._parts = parts
        self._way_left = way_left
        self._ways_to = ways_to
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self.peers: dict[str, _Peer] = {}
        self.loads = [0] * len(parts)
        self._last_number = 0
        self._open = True
        self._timer: asyncio.TimerHandle | None = None
        self._tries: set[asyncio.Task[None]] = set()

    def show(self, chunk: ChunkPlace, first: int, count: int) -> None:
        """See `ReadPart.show`."""
        for part in self._parts:
            part.show(chunk, first, count)

    def hide(self, key: ChunkKey) -> None:
        """See `ReadPart.hide`."""
        for part in self._parts:
            part.hide(key)

    def read(self, request: ReadRequest) -> ReadHandle:
        """See `ReadPart.read`."""
        ways = self._ways_to(request.endpoint)
        if len(ways) == 1:
            return self._parts[0].read(request)
        peer = self.peers.get(request.endpoint)
        if peer is None or peer.ways != ways:
            self._forget_gone()
            peer = self.peers[request.endpoint] = _Peer(ways, Rails(len(ways), self.loads))
        self._last_number += 1
        read = peer.reads[self._last_number] = _RailRead(peer, self._last_number, request)
        now_ns = time.monotonic_ns()
        self._start(read, peer.rails.begin(read.number, request.size_bytes, now_ns, request.wanted_bytes))
        if self._timer is None:
            self._look_later()
        return read

    def left_of(self, endpoint: str) -> Sequence[int]:
        """Rails by which nothing comes from a peer, as far as is known."""
        peer = self.peers.get(endpoint)
        return () if peer is None else peer.rails.left

    def close(self) -> None:
        """Look no more; reads under way get their outcome from their rail's part."""
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tries:
            task.cancel()

    # -- inside

    def _forget_gone(self) -> None:
        """Peers that the directory does not have there any more."""
        for endpoint, peer in list(self.peers.items()):
            if not peer.reads and self._ways_to(endpoint) != peer.ways:
                del self.peers[endpoint]

    def _start(self, read: _RailRead, rail: int) -> None:
        read.start(self._parts[rail], read.peer.ways[rail], partial(self._ended, read))

    def _ended(self, read: _RailRead, outcome: ReadOutcome) -> None:
        rails, now_ns = read.peer.rails, time.monotonic_ns()
        if outcome is ReadOutcome.FAILED and self._open:
            left = rails.left
            rail = rails.fail(read.number, now_ns)
            self._say_left(read.peer, left)
            if rail is not None:
                read.on = None
                self._start(read, rail)
                return
        elif outcome is ReadOutcome.DONE:
            rails.end(read.number, now_ns)
        else:
            rails.forget(read.number, now_ns)
        read.over()
        read.request.done(outcome)

    def _look_later(self) -> None:
        """As soon as a peer's rails want it."""
        now_ns = time.monotonic_ns()
        dues = [due for peer in self.peers.values() if (due := peer.rails.next_ns(now_ns)) is not None]
        self._timer = None
        if dues:
            self._timer = self._loop.call_later(max(0, min(dues) - now_ns) / 1e9, self._look)

    def _look(self) -> None:
        now_ns = time.monotonic_ns()
        self._forget_gone()
        for peer in list(self.peers.values()):
            left = peer.rails.left
            for number, rail in peer.rails.look(now_ns):
                self._start(peer.reads[number], rail)
            self._say_left(peer, left)
            for rail in peer.rails.to_try(now_ns):
                task = self._loop.create_task(self._try(peer, rail))
                self._tries.add(task)
                task.add_done_callback(self._tries.discard)
        self._look_later()

    async def _try(self, peer: _Peer, rail: int) -> None:
        reached = await connects(peer.ways[rail], limits.RAIL_TRY_S)
        peer.rails.tried(rail, bool(reached), time.monotonic_ns())
        if reached:
            log.info("%s is read at %s again", peer.ways[0].endpoint, peer.ways[rail].endpoint)
        if self._timer is not None:
            self._timer.cancel()
        self._look_later()

    def _say_left(self, peer: _Peer, before: Sequence[int]) -> None:
        for rail in set(peer.rails.left).difference(before):
            self._counters.rails_left += 1
            first, gone = peer.ways[0].endpoint, peer.ways[rail].endpoint
            log.warning("nothing comes from %s at %s: the other rails carry it", first, gone)
            # Not at once: what follows may cancel the read at hand.
            self._loop.call_soon(self._way_left, first, peer.ways[rail])
