"""Chunks on their way to readers: which reader leads, which ones follow or are late, and what each still misses.

The rules are the protocol's (docs/explanation/protocol.md) at the level of chunks instead of segments: a node that
wants a chunk gets the part that is under way; a reader without an incoming chunk leads the one that most others want
too; a late reader gets the part that it missed in a later cast, together with all others that miss it. Without
casts every reader reads for itself. A fill of the switch takes what its holder casts of the chunk, and sends by itself
what no cast brings. Owns the readers' wants; time and bytes are the fluid network's.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from kvchunk.sources import ChunkSource
from planner.network.fluid import FluidNetwork, Transfer
from planner.network.terms import (
    ALONE_S,
    CONTROL_BYTES,
    DIGEST_BYTES_PER_S,
    FILL_RIDES_MAX_S,
    FILL_RIDES_S,
    HANDOVER_S,
    NEWCOMER_S,
    WireTerms,
    stream_weight,
)
from planner.network.topology import SWITCH, Topology

Key: TypeAlias = Any
"""A chunk's name: anything that can be a key of a dict."""
Group: TypeAlias = tuple[int, int]
"""(rack, -1): readers that one cast reaches; (-1, node): a reader for itself."""
BACKGROUND_WEIGHT = 0.1
"""Of transfers that give way to those that an engine waits for."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk that a node wants, and from whom."""

    key: Key
    size_bytes: int
    holder: int
    """A node, or SWITCH."""


@dataclass(frozen=True, slots=True)
class Work:
    """One fetch: pieces in prefix order."""

    id: int
    node: int
    pieces: tuple[Piece, ...]
    background: bool = False


@dataclass(frozen=True, slots=True)
class Delivered:
    """A fetch is complete and verified."""

    work: Work
    at_s: float
    origins: Mapping[Key, ChunkSource]


@dataclass(slots=True, eq=False)
class _Want:
    piece: Piece
    node: int
    group: Group
    order: int
    works: list[int]
    background: bool
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """Bytes of the chunk that are missing."""
    parked: bool = False
    """There is nothing to pull now: all that the relay has so far is here, or a fill waits for casts."""
    company: bool = False
    """Another reader got it in the same cast."""


@dataclass(slots=True, eq=False)
class _Session:
    """One chunk, or a part of it, being pulled by a leader."""

    key: Key
    group: Group
    holder: int
    leader: int
    first: float
    """Byte of the chunk where the transfer begins."""
    factor: float
    """Wire bytes per byte of the chunk."""
    transfer: Transfer
    filled_from: float | None = None
    """The transfer's position from which on a fill rides on it."""


@dataclass(slots=True)
class _Pending:
    work: Work
    left: set[Key]
    origins: dict[Key, ChunkSource] = field(default_factory=dict)


class Delivery:
    """Fetches of all nodes over one network."""

    def __init__(self, topology: Topology, terms: WireTerms, *, casts: bool, relays: bool = False) -> None:
        """`relays`: a holder may be a node that is still receiving the chunk itself, and forwards what it has."""
        self.topology = topology
        self.network = FluidNetwork(topology.capacity())
        self.control_bytes = [0.0] * topology.nodes
        """JOINs, GETs, LEAVEs and acknowledgements that each node sent."""
        self.control_packets = 0
        self.casts_joined: list[tuple[Key, tuple[int, ...]]] = []
        """(chunk, readers): interest sets of two or more, for the heat reports; the owner empties it."""
        self._terms = terms
        self._casts = casts
        self._relays = relays
        self._parked: dict[tuple[int, Key], list[_Want]] = {}
        """Relayed to the end of what the relay has: complete when the relay's own copy is."""
        self._wants: list[dict[Key, _Want]] = [{} for _ in range(2 * topology.nodes)]
        """Of nodes, then of the switch from each holder."""
        self._wanters: dict[tuple[Group, Key], dict[int, None]] = {}
        self._sessions: dict[tuple[Group, Key], list[_Session]] = {}
        """Of one chunk several, where readers miss different parts of it."""
        self._by_transfer: dict[Transfer, _Session] = {}
        self._riders: dict[tuple[int, Key], _Want] = {}
        """Fills that may ride on casts, by holder and chunk."""
        self._fed = [0] * (2 * topology.nodes)
        """Sessions that each node receives from."""
        self._pending: dict[int, _Pending] = {}
        self._timers: list[tuple[float, int, partial[None]]] = []
        self._counter = itertools.count()
        self._delivered: list[Delivered] = []

    # -- the owner's side

    def fetch(self, work: Work, now_s: float) -> None:
        """A node begins to fetch. An empty fetch is complete at once."""
        self._pending[work.id] = _Pending(work, {piece.key for piece in work.pieces})
        if not work.pieces:
            self._later(now_s, self._finish, work.id)
            return
        self._later(now_s + self._terms.rtt_s, self._join, work)

    def fill(self, work: Work, readers: int, now_s: float) -> None:
        """A holder begins to fill a chunk into the switch, which casts FILLs; `readers`: nodes that waited for it when
        the controller asked for the fill."""
        (piece,) = work.pieces
        self._pending[work.id] = _Pending(work, {piece.key})
        if (rider := self._rider_of(piece.holder, piece.key)) is not None:
            rider.works.append(work.id)
            return
        want = _Want(piece, work.node, (-1, work.node), next(self._counter), [work.id], work.background, parked=True)
        want.gaps.append((0.0, float(piece.size_bytes)))
        self._wants[work.node][piece.key] = self._riders[piece.holder, piece.key] = want
        self._wanters[want.group, piece.key] = {work.node: None}
        casts = [session for session in self._beside(piece) if len(session.transfer.receivers) > 1]
        for session in casts:
            session.filled_from = self.network.position(session.transfer, now_s)
        if not casts:
            self._later(now_s + (FILL_RIDES_S if readers else 0.0), self._fill_rest, want, now_s)

    @property
    def rtt_s(self) -> float:
        """From a question to the beginning of the answer."""
        return self._terms.rtt_s

    def load(self, holder: int) -> int:
        """Transfers that leave a holder now."""
        return 0 if holder == SWITCH else self.network.load(self.topology.up(holder))

    def left_bytes(self, node: int, key: Key, now_s: float) -> float | None:
        """Bytes of a chunk that are still to come to a node; None: none are on their way yet."""
        want = self._wants[node].get(key)
        if want is None:
            return None
        left = sum(end - first for first, end in want.gaps)
        for session in self._sessions.get((want.group, key), ()):
            if node in session.transfer.receivers:
                left -= self.network.got(session.transfer, node, now_s) / session.factor
        return max(0.0, left)

    def abandon(self, number: int, now_s: float) -> None:
        """A work is given up, and what only it wanted; it is not delivered."""
        pending = self._pending.pop(number, None)
        if pending is None:
            return
        node = pending.work.node
        for key in pending.left:
            want = self._wants[node].get(key)
            if want is not None:
                want.works.remove(number)
                if not want.works:
                    self._leave(want, now_s)
        if not self._fed[node] and self._open(node):
            self._later(now_s, self._lead, node)

    def _leave(self, want: _Want, now_s: float) -> None:
        key, node = want.piece.key, want.node
        self._forget(want)
        if want.parked:
            self._parked[want.piece.holder, key].remove(want)
        for session in list(self._sessions.get((want.group, key), ())):
            receivers = session.transfer.receivers
            if node not in receivers:
                continue
            self._fed[node] -= 1
            if len(receivers) > 1:
                self.network.leave(session.transfer, node, now_s)
                session.leader = min(receivers) if session.leader == node else session.leader
                continue
            del self._by_transfer[session.transfer]
            beside = self._sessions[want.group, key]
            beside.remove(session)
            if not beside:
                del self._sessions[want.group, key]
            self._cast_over(session, now_s)
            self.network.end(session.transfer, now_s)

    def is_receiving(self, node: int, key: Key) -> bool:
        """Whether a chunk is on its way to a node."""
        return key in self._wants[node]

    def receiving(self, key: Key, but: int) -> list[int]:
        """Nodes that a chunk is on its way to, and which do not wait for `but` themselves."""
        found = []
        for node, wants in enumerate(self._wants):
            at, seen = node, {but}
            while at not in seen and at != SWITCH and key in self._wants[at]:
                seen.add(at)
                at = self._wants[at][key].piece.holder
            if key in wants and at != but and node != but:
                found.append(node)
        return found

    def next_s(self) -> float:
        """When something happens next; infinity when nothing is under way."""
        timer_s = self._timers[0][0] if self._timers else float("inf")
        return min(timer_s, self.network.next_end_s())

    def advance(self, now_s: float) -> list[Delivered]:
        """Go to this time (not beyond `next_s`); returns fetches that are complete."""
        for transfer in self.network.advance(now_s):
            if transfer in self._by_transfer:  # otherwise a cast of the same moment took over what it filled
                self._ended(self._by_transfer[transfer], now_s)
        while self._timers and self._timers[0][0] <= now_s:
            _, _, action = heapq.heappop(self._timers)
            action(now_s)
        delivered, self._delivered = self._delivered, []
        return delivered

    @property
    def idle(self) -> bool:
        return not self._pending

    # -- joining

    def _later(self, at_s: float, action: Callable[..., None], *args: object) -> None:
        heapq.heappush(self._timers, (at_s, next(self._counter), partial(action, *args)))

    def _join(self, work: Work, now_s: float) -> None:
        if work.id not in self._pending:
            return  # given up meanwhile
        node = work.node
        wants = self._wants[node]
        for piece in work.pieces:
            want = wants.get(piece.key)
            if want is not None:
                want.works.append(work.id)
                want.background &= work.background
                continue
            self._want(work, piece, now_s)
        if not self._fed[node]:
            self._begin(node, now_s, now_s)

    def _want(self, work: Work, piece: Piece, now_s: float) -> None:
        node = work.node
        # Each reader asks for itself for what the switch serves (ONLY_ME): there is no uplink that sharing would spare.
        castable = self._casts and piece.holder != SWITCH and self.topology.castable(piece.holder, node)
        group = (self.topology.rack(node), -1) if castable else (-1, node)
        want = _Want(piece, node, group, next(self._counter), [work.id], work.background)
        want.gaps.append((0.0, float(piece.size_bytes)))
        self._wants[node][piece.key] = want
        wanters = self._wanters.setdefault((group, piece.key), {})
        wanters[node] = None
        if self._casts:
            self._control(node, 2)  # JOIN now, LEAVE when it is here
        if castable and len(wanters) > 1:
            self.casts_joined.append((piece.key, tuple(wanters)))
        for session in self._sessions.get((group, piece.key), ()):
            self.network.join(session.transfer, node, self.topology.own(session.holder, node), now_s)
            self._fed[node] += 1
            self._mark_company(session)
            self._carry_fill(session, now_s)

    def _begin(self, node: int, joined_s: float, now_s: float) -> None:
        """A newcomer to whom nothing comes yet decides when to lead."""
        if self._fed[node] or not self._open(node):
            return
        want = self._choose(node)
        if want.piece.holder == SWITCH:
            self._lead(node, now_s)
            return
        company = len(self._wanters[want.group, want.piece.key]) > 1
        due_s = joined_s + (NEWCOMER_S if company else ALONE_S)
        if now_s >= due_s:
            self._lead(node, now_s)
        else:
            self._later(due_s, self._begin, node, joined_s)

    # -- leading

    def _open(self, node: int) -> bool:
        """Whether there is something left to pull."""
        return any(not want.parked for want in self._wants[node].values())

    def _choose(self, node: int) -> _Want:
        """The chunk that most readers want, in prefix order."""
        return min(
            (want for want in self._wants[node].values() if not want.parked),
            key=lambda want: (want.background, -len(self._wanters[want.group, want.piece.key]), want.order),
        )

    def _lead(self, node: int, now_s: float) -> None:
        """Pull a chunk, if no cast brings one."""
        if self._fed[node] or not self._open(node):
            return
        self._pull(self._choose(node), None, now_s)

    def _pull(self, want: _Want, goes_on: Transfer | None, now_s: float) -> None:
        """Lead a chunk's first gap. `goes_on`: a transfer that has just ended and may be continued."""
        first, end = want.gaps[0]
        piece = want.piece
        receivers = {
            node: self.topology.own(piece.holder, node)
            for node in self._wanters[want.group, piece.key]
            if any(low < end and high > first for low, high in self._wants[node][piece.key].gaps)
        }
        is_cast = piece.holder == SWITCH or len(receivers) > 1
        factor = self._terms.cast_factor() if is_cast else self._terms.stream_factor()
        weight = 1.0 if is_cast else stream_weight(want.node, piece.holder)
        if is_cast and self._rider_of(piece.holder, piece.key) is not None:
            factor *= self._terms.fill_factor()
        if is_cast:
            factor *= self._terms.repeated(len(receivers))
            self._control(want.node, self._terms.gets(end - first, self.topology.rate(want.node)))
        else:
            self._acknowledge(want.node, end - first)
        if want.background:
            weight *= BACKGROUND_WEIGHT
        length = (end - first) * factor
        shared = self.topology.shared(piece.holder)
        if (
            goes_on is not None
            and goes_on.shared == shared
            and goes_on.weight == weight
            and goes_on.receivers == receivers
        ):
            transfer = goes_on
            self.network.prolong(transfer, length, now_s)
        else:
            if goes_on is not None:
                self.network.end(goes_on, now_s)
            transfer = self.network.start(shared, receivers, length, now_s, weight)
        session = _Session(piece.key, want.group, piece.holder, want.node, first, factor, transfer)
        self._sessions.setdefault((want.group, piece.key), []).append(session)
        self._by_transfer[transfer] = session
        for node in receivers:
            self._fed[node] += 1
        self._mark_company(session)
        self._carry_fill(session, now_s)

    def _acknowledge(self, node: int, size_bytes: float) -> None:
        if not self.topology.is_sink(node):
            self.control_bytes[node] += size_bytes * self._terms.ack_factor()

    # -- fills that ride

    def _rider_of(self, holder: int, key: Key) -> _Want | None:
        """The fill that rides where this is cast: only its own holder's casts carry it."""
        return self._riders.get((holder, key))

    def _beside(self, piece: Piece) -> list[_Session]:
        """What of a chunk goes from its holder to readers in its rack."""
        sessions = self._sessions.get(((self.topology.rack(piece.holder), -1), piece.key), ())
        return [session for session in sessions if session.holder == piece.holder]

    def _carry_fill(self, session: _Session, now_s: float) -> None:
        """What is cast from now on fills the switch, too; what the fill was sending by itself ends.

        Where a read became a cast on the way, the headers of its FILLs (1 %) are left out."""
        rider = self._rider_of(session.holder, session.key)
        if rider is None or len(session.transfer.receivers) < 2 or session.filled_from is not None:
            return
        session.filled_from = self.network.position(session.transfer, now_s)
        rider.parked = True
        for own in self._sessions.pop((rider.group, session.key), ()):
            passed = self.network.position(own.transfer, now_s) / own.factor
            rider.gaps = without(rider.gaps, own.first, own.first + passed)
            self.network.end(own.transfer, now_s)
            del self._by_transfer[own.transfer]
            self._fed[rider.node] -= 1
            self._later(now_s, self._lead, rider.node)  # another fill of this holder
        if not rider.gaps:
            self._here(rider, now_s)

    def _cast_over(self, session: _Session, now_s: float) -> None:
        """A cast has ended, or its last reader has: the fill on it has what was cast."""
        rider = self._rider_of(session.holder, session.key)
        if session.filled_from is None or rider is None:
            return
        low = session.first + session.filled_from / session.factor
        end = session.first + self.network.position(session.transfer, now_s) / session.factor
        rider.gaps = without(rider.gaps, low, end)
        if not rider.gaps:
            self._here(rider, now_s)
        elif all(other.filled_from is None for other in self._beside(rider.piece)):
            self._later(now_s + FILL_RIDES_S, self._fill_rest, rider, now_s)

    def _fill_rest(self, rider: _Want, since_s: float, now_s: float) -> None:
        """No cast was sent for a while: send what is left of a fill by itself, once its holder casts nothing."""
        holder = rider.piece.holder
        if self._rider_of(holder, rider.piece.key) is not rider or not rider.parked:
            return
        if any(session.filled_from is not None for session in self._beside(rider.piece)):
            return  # the end of that cast sees to it
        casting = any(
            session.holder == holder and len(session.transfer.receivers) > 1 for session in self._by_transfer.values()
        )
        if casting and now_s < since_s + FILL_RIDES_MAX_S:
            self._later(now_s + FILL_RIDES_S, self._fill_rest, rider, since_s)
            return
        rider.parked = False
        self._lead(rider.node, now_s)

    def _mark_company(self, session: _Session) -> None:
        if len(session.transfer.receivers) > 1:
            for node in session.transfer.receivers:
                if (want := self._wants[node].get(session.key)) is not None:
                    want.company = True

    # -- ending

    def _ended(self, session: _Session, now_s: float) -> None:
        """What was pulled has passed: note who got what; a reader leads what is next."""
        transfer = session.transfer
        beside = self._sessions[session.group, session.key]
        beside.remove(session)
        if not beside:
            del self._sessions[session.group, session.key]
        del self._by_transfer[transfer]
        self._cast_over(session, now_s)
        receivers = sorted(transfer.receivers)
        for node in receivers:
            self._fed[node] -= 1
            want = self._wants[node].get(session.key)
            if want is None:
                continue  # complete from what ran alongside this
            want.gaps = without(want.gaps, *_passed(session, node))
            if self._relays and session.holder != SWITCH and self.is_receiving(session.holder, session.key):
                self._parked.setdefault((session.holder, session.key), []).append(want)
                want.parked = True
            elif not want.gaps:
                self._here(want, now_s)
        leader = session.leader
        if not self._fed[leader] and self._open(leader):
            self._pull(self._choose(leader), transfer, now_s)
        else:
            self.network.end(transfer, now_s)
        for node in receivers:
            if node != leader and not self._fed[node] and self._open(node):
                self._later(now_s + HANDOVER_S, self._lead, node)

    def _forget(self, want: _Want) -> None:
        key = want.piece.key
        del self._wants[want.node][key]
        wanters = self._wanters[want.group, key]
        del wanters[want.node]
        if not wanters:
            del self._wanters[want.group, key]

    def _here(self, want: _Want, now_s: float) -> None:
        key = want.piece.key
        self._forget(want)
        if self._rider_of(want.piece.holder, key) is want:
            del self._riders[want.piece.holder, key]
        origin = ChunkSource.CAST if want.company else ChunkSource.HOLDER
        if want.piece.holder == SWITCH:
            origin = ChunkSource.SWITCH
        for parked in self._parked.pop((want.node, key), ()):
            self._here(parked, now_s)
        for work in want.works:
            pending = self._pending[work]
            pending.origins[key] = origin
            pending.left.discard(key)
            if not pending.left:
                tail_s = self._terms.repair_tail_s(want.piece.size_bytes) if self._casts else 0.0
                self._later(now_s + want.piece.size_bytes / DIGEST_BYTES_PER_S + tail_s, self._finish, work)

    def _finish(self, work: int, now_s: float) -> None:
        pending = self._pending.pop(work, None)
        if pending is not None:
            self._delivered.append(Delivered(pending.work, now_s, pending.origins))

    def _control(self, node: int, packets: int) -> None:
        self.control_packets += packets
        self.control_bytes[node] += packets * CONTROL_BYTES


def _passed(session: _Session, node: int) -> tuple[float, float]:
    """The part of the chunk that a receiver of a session that has ended took."""
    transfer = session.transfer
    low = session.first + transfer.joined_at[node] / session.factor
    end = session.first + transfer.length / session.factor
    got = transfer.got[node] / session.factor
    # A receiver slower than the cast misses its share of it; where the holes are makes no difference to the sum.
    return low, end if got >= (end - low) * (1 - 1e-6) else low + got


def without(gaps: Sequence[tuple[float, float]], low: float, high: float) -> list[tuple[float, float]]:
    """What remains of ascending gaps once [low, high) has arrived. Slivers of less than a byte count as received."""
    left = []
    for first, end in gaps:
        for start, stop in ((first, min(end, low)), (max(first, high), end)):
            if stop - start > 1.0:
                left.append((start, stop))
    return left
