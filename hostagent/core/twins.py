"""Twins: chunks in fewer bytes that cross the network in place of others, under keys of their own (`kvproto.twins`).

In the pool a twin hangs on its chunk, so it goes before it, and it is worth little: it can be made again. Twins
together take TWINS_SHARE of the pool at most. A node that has nothing to do with twins has no `Twins`.

A chunk that comes by its twin is being loaded, as from a disk: the twin is brought as any chunk, and decoded when it is
whole. `load_ended` says how that went; where it went wrong the reader is asked for the chunk itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, Protocol

from hostagent.core import effects
from hostagent.core.arrivals import InboundChunk
from hostagent.core.events import LoadOutcome, TwinDecoded, TwinEncoded, TwinPlaced
from hostagent.core.fetch import FetchObserver, FetchRequest, FetchResult, Purpose
from hostagent.core.forms import Demand, Forms, Smaller, is_twin
from hostagent.core.node import Foreground, Node
from hostagent.core.plan import FetchPlan, Ways, room_wanted
from hostagent.core.sources import Found, StandIn
from hostagent.pool.chunks import Chunk, ChunkState, Refusal
from hostagent.tree import NOT_HASHED, Hashed
from kvchunk.ids import ChunkKey, Digest
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvcodec.forms import Form, StoredForm
from kvpolicy.tiers.gate import Choice, Ticket, Verdict
from kvpolicy.tiers.lane import Lane, LaneLimits
from kvpolicy.value import Tier, Touch
from kvproto.ids import FetchId
from kvproto.integrity import algorithm_of
from kvproto.twins import twin_key

TWINS_SHARE: Final = 1 / 4
"""Of the pool."""
TWIN_COST_SHARE: Final = 1 / 64
"""Of what evicting a chunk of its size costs."""
_WRONG_MAX: Final = 4096
_WAITING_MAX: Final = 256
_PATIENCE_NS: Final = 250_000_000
_USELESS_MAX: Final = 4096
_PUMP_NS_MIN: Final = 1_000_000
_CROSSING: Final = (Tier.SWITCH, Tier.REMOTE_DRAM)
"""Where a chunk crosses the network from, the better first."""


class Brings(Foreground, Protocol):
    """What brings chunks: `Fetches`."""

    @property
    def is_full(self) -> bool:
        """Whether no further fetch may begin."""

    def is_arriving(self, key: ChunkKey, /) -> bool:
        """Whether a chunk is on its way into the pool."""

    def begin_planned(
        self, request: FetchRequest, plan: FetchPlan, ticket: Ticket, ended: Callable[[FetchResult], None], /
    ) -> FetchId | None:
        """Bring what a plan says, on the ticket of another fetch. None: it has ended already."""

    def cancel(self, number: FetchId, /) -> None:
        """Nobody wants a fetch any more."""

    def load_ended(self, into: Chunk, outcome: LoadOutcome, hashed: Hashed, /) -> None:
        """What this node loads by itself is here, or did not come."""


class TwinsHere(dict[ChunkKey, Chunk]):
    """Twins that take room in this node's pool, be they FILLING, those that came first, first. Some may be gone:
    whoever puts a twin into the pool puts it here, and nobody says when the pool evicts it."""

    def present(self) -> list[Chunk]:
        """Those that have not been evicted."""
        for key in [key for key, chunk in self.items() if chunk.state is ChunkState.GONE]:
            del self[key]
        return list(self.values())

    @property
    def size_bytes(self) -> int:
        """Of all twins in the pool."""
        return sum(chunk.size_bytes for chunk in self.present())

    def take_in(self, chunk: Chunk) -> bool:
        """A chunk is READY. Returns whether it is a twin."""
        if not is_twin(chunk):
            return False
        self[chunk.key] = chunk
        return True

    def make_cheap(self, chunks: Sequence[Touch], costs_s: list[float]) -> None:
        """Lower what evicting twins costs."""
        if self:
            for at, chunk in enumerate(chunks):
                if chunk.key in self:
                    costs_s[at] *= TWIN_COST_SHARE


@dataclass(slots=True, eq=False)
class _Decoding:
    inbound: InboundChunk
    twin: Chunk
    form: Form


class Twins:
    """Owns the room that twins may take in the pool, the memory of those that were wrong, the chunks that wait for
    their twins, and those that are being decoded. It says which chunks should come by twins."""

    def __init__(self, ways: Ways, fetches: Brings, observer: FetchObserver) -> None:
        node = ways.node
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._sources = ways.sources
        self._forms = ways.forms
        self._fetches = fetches
        self.here = TwinsHere()
        self.making = TwinMaking(node, ways.forms, self, fetches, observer)
        self._wrong: OrderedDict[tuple[ChunkKey, Digest], None] = OrderedDict()
        """Twins that were not what they should be, and the digest of the chunk."""
        self._waiting: dict[ChunkKey, InboundChunk] = {}
        """By the key of the twin. The memory of each is pinned until `load_ended`."""
        self._brought: dict[FetchId, frozenset[ChunkKey]] = {}
        """Twins by the fetch that brings them."""
        self._decoding: dict[Chunk, _Decoding] = {}
        """By the chunk that is written."""
        self._failed: list[InboundChunk] = []
        self._settle_soon = node.alarms.add(self._settle)
        self.decoded_count = 0
        self.saved_bytes = 0
        self.wrong_count = 0

    def routes(self) -> Mapping[type, Callable[[Any], None]]:
        """Which part takes which event."""
        return {
            TwinEncoded: self.making.twin_encoded,
            TwinPlaced: self.making.twin_placed,
            TwinDecoded: self.chunk_decoded,
        }

    def make_room(self, size_bytes: int, kept: Set[ChunkKey]) -> bool:
        """Drop twins that nobody uses, the oldest first, until there is room for so much; False: there is none."""
        room_bytes = int(self._pool.usage().size_bytes * TWINS_SHARE) - size_bytes
        present = self.here.present()
        used_bytes = sum(chunk.size_bytes for chunk in present)
        for chunk in present:
            if used_bytes <= room_bytes:
                break
            idle = chunk.state is ChunkState.READY and not chunk.pins and not chunk.holds
            if idle and chunk.key not in kept:
                self._pool.drop(chunk.key)
                del self.here[chunk.key]
                used_bytes -= chunk.size_bytes
        return used_bytes <= room_bytes

    # ------------------------------------------------------------------ what a fetch should bring

    def best_way(self, found: Found) -> Found:
        """The same chunk, with the twin by which it should come, if by any."""
        if not self._forms.reads_encoded or (Tier.REMOTE_DRAM not in found.tiers and Tier.SWITCH not in found.tiers):
            return found
        for form in (Form.LOSSY, Form.PLANES):
            key = twin_key(found.entry.key, form)
            if (key, found.entry.digest) in self._wrong:
                continue
            twin = self._here_or_there(key, form, found)
            if twin is not None:
                smaller = StoredForm(form, max(1, twin.size_bytes))
                crossed: dict[Tier, StoredForm] = {tier: smaller for tier in found.tiers if tier in _CROSSING}
                return found._replace(stored={**found.stored, **crossed}, stand_in=twin)
        return found

    def _here_or_there(self, key: ChunkKey, form: Form, found: Found) -> StandIn | None:
        entry = found.entry
        if self._pool.find(key) is not None:
            least = StoredForm(form, 1)  # it crosses no link any more
            takes = self._forms.reads_as(least, entry.namespace, entry.size_bytes, Tier.REMOTE_DRAM, 0)
            return StandIn(key, form, 0) if takes else None
        there = self._sources.find(key)
        if there is None or there.entry.parent != entry.key or there.entry.size_bytes >= entry.size_bytes:
            return None
        source = next((tier for tier in _CROSSING if tier in there.tiers), None)
        if source is None or (Tier.SWITCH in found.tiers and source is not Tier.SWITCH):
            return None  # the switch costs no holder anything
        stored = StoredForm(form, there.entry.size_bytes)
        if self._forms.reads_as(stored, entry.namespace, entry.size_bytes, source, there.load.readers):
            return StandIn(key, form, stored.size_bytes)
        return None

    def settled(self, coming: Sequence[Found], routes: Mapping[ChunkKey, Tier]) -> list[Found]:
        """These chunks come, by their `routes`: by their twins as far as they cross the network and there is room for
        the twins, too."""
        kept = frozenset(found.stand_in.key for found in coming if found.stand_in is not None)
        planned_bytes = 0
        made = []
        for found in coming:
            twin = found.stand_in
            if twin is not None:
                crosses = routes[found.entry.key] in _CROSSING
                if crosses and (not twin.size_bytes or self.make_room(planned_bytes + twin.size_bytes, kept)):
                    planned_bytes += twin.size_bytes
                else:
                    at_rest: dict[Tier, StoredForm] = {
                        tier: form for tier, form in found.stored.items() if tier not in _CROSSING
                    }
                    found = found._replace(stored=at_rest, stand_in=None)
            made.append(found)
        return made

    # ------------------------------------------------------------------ bringing and decoding them

    def bring(self, inbounds: Sequence[InboundChunk], deadline_ns: int, ticket: Ticket) -> None:
        """These chunks, which are on their way since this moment, come by their twins; the ticket is of their fetch."""
        for inbound in inbounds:
            self._pool.pin(inbound.chunk)
            self._waiting[_twin(inbound).key] = inbound
        for inbound in inbounds:
            here = self._pool.find(_twin(inbound).key)
            if here is not None:
                self._twin_arrived(here, ChunkSource.LOCAL)
        missing = [key for inbound in inbounds if (key := _twin(inbound).key) in self._waiting]
        if not missing:
            return
        keys = frozenset(missing)

        def ended(result: FetchResult) -> None:
            self._brought = {number: brought for number, brought in self._brought.items() if brought is not keys}
            for chunk, source in result.chunks:
                self._twin_arrived(chunk, source)
                self._pool.unpin(chunk)
            for key in keys & self._waiting.keys():
                self._fail(key)

        if self._fetches.is_full:
            ended(FetchResult(Status.BUSY, ()))
            return
        plan = self._plan(missing)
        request = FetchRequest(plan.keys, Purpose.STAND_IN, deadline_ns, any_order=True)
        number = self._fetches.begin_planned(request, plan, ticket, ended)
        if number is not None:
            self._brought[number] = keys

    def _plan(self, keys: Sequence[ChunkKey]) -> FetchPlan:
        """Of these twins, those that can be brought; the gate has decided, and asks nothing more."""
        plan = FetchPlan(Verdict(Choice.FETCH, (), 0.0), Status.OK)
        plan.keys = tuple(key for key in keys if self._fetches.is_arriving(key) or self._has_room(plan, key))
        return plan

    def _has_room(self, plan: FetchPlan, key: ChunkKey) -> bool:
        """Whether a twin can be had, and the pool has room for it: then it is among those to come."""
        found = self._sources.find(key)
        route = None if found is None else next((tier for tier in _CROSSING if tier in found.tiers), None)
        if found is None or route is None:
            return False
        (room,) = self._pool.reserve_all([room_wanted(found.entry)])
        if isinstance(room, Refusal):
            return False
        plan.to_come.append((found, room, route))
        self.here[key] = room
        return True

    def chunk_arrived(self, inbound: InboundChunk) -> None:
        """A chunk is whole and right in the pool; perhaps a twin that is waited for."""
        if self._waiting:
            self._twin_arrived(inbound.chunk, inbound.came_as, inbound)

    def _twin_arrived(self, twin: Chunk, source: ChunkSource, arrived: InboundChunk | None = None) -> None:
        """`arrived`: as what the twin came, if it was not here before."""
        inbound = self._waiting.pop(twin.key, None)
        if inbound is None:
            return
        inbound.last_source = None if arrived is None else arrived.last_source
        inbound.decoded_from = source
        self._pool.pin(twin)
        form = _twin(inbound).form
        self._decoding[inbound.chunk] = _Decoding(inbound, twin, form)
        self._emit(effects.DecodeTwin(twin, inbound.chunk, form, algorithm_of(inbound.entry.digest)))

    def chunk_decoded(self, event: TwinDecoded) -> None:
        """What became of DecodeTwin."""
        decoding = self._decoding.pop(event.into, None)
        if decoding is None:
            return
        if event.work is not None:
            self._forms.costs.measured(event.work)
        expected = decoding.inbound.entry.digest
        # What was rounded has another digest; it is what the twin's holder vouched for with the twin's digest.
        is_right = event.whole and (decoding.form is Form.LOSSY or event.hashed.digest == expected)
        if is_right:
            self.decoded_count += 1
            self.saved_bytes += event.into.size_bytes - decoding.twin.size_bytes
        else:
            self._distrust(decoding.twin, expected)
        self._pool.unpin(decoding.twin)
        self._fetches.load_ended(event.into, LoadOutcome.DONE if is_right else LoadOutcome.DAMAGED, event.hashed)

    def _distrust(self, twin: Chunk, digest: Digest) -> None:
        """A twin whose bytes were those announced did not give the chunk with this digest: it is not asked for
        again."""
        self.wrong_count += 1
        self._wrong[twin.key, digest] = None
        if len(self._wrong) > _WRONG_MAX:
            self._wrong.popitem(last=False)
        if self._pool.find(twin.key) is twin:
            self._pool.drop(twin.key)

    def given_up(self, inbound: InboundChunk) -> None:
        """Nobody waits for a chunk any more, or it is here by other means."""
        twin = inbound.stand_in
        if twin is not None and self._waiting.get(twin.key) is inbound:
            del self._waiting[twin.key]
            self._pool.unpin(inbound.chunk)
            self._settle_soon.set(self._clock.now_ns)

    def _fail(self, key: ChunkKey) -> None:
        """A twin did not come. The reader hears of it when the event at hand is over."""
        self._failed.append(self._waiting.pop(key))
        self._settle_soon.set(self._clock.now_ns)

    def _settle(self) -> None:
        failed, self._failed = self._failed, []
        for inbound in failed:
            self._fetches.load_ended(inbound.chunk, LoadOutcome.ABSENT, NOT_HASHED)
        for number, keys in list(self._brought.items()):
            if keys.isdisjoint(self._waiting):
                del self._brought[number]
                self._fetches.cancel(number)

    def close(self) -> None:
        """The chunks were given up. Memory that a thread still writes to is given back without its word."""
        self._brought.clear()
        for decoding in self._decoding.values():
            self._pool.unpin(decoding.twin)
            self._pool.unpin(decoding.inbound.chunk)
        self._decoding.clear()
        for inbound in self._failed:
            self._pool.unpin(inbound.chunk)
        self._failed.clear()
        self.making.close()


def _twin(inbound: InboundChunk) -> StandIn:
    if inbound.stand_in is None:
        raise ValueError(f"chunk {inbound.chunk.key.hex()} does not come by a twin")
    return inbound.stand_in


class TwinMaking:
    """Makes twins of chunks that other nodes read, behind everything else: `hostagent.core.forms` says of which.
    It owns the lane of encoding. Where twins go and who reads them it does not know."""

    def __init__(self, node: Node, forms: Forms, twins: Twins, foreground: Foreground, observer: FetchObserver) -> None:
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._directory = node.directory
        self._forms = forms
        self._twins = twins
        self._fabric = node.fabric
        self._foreground = foreground
        self._observer = observer
        self._demand = Demand()
        self._smaller = Smaller()
        self.lane: Lane[ChunkKey] = Lane(LaneLimits(_WAITING_MAX, 1, _PATIENCE_NS))
        """Encoding: one chunk at a time."""
        self._encoding: set[Chunk] = set()
        self._placing: dict[Chunk, ChunkKey] = {}
        """Twins that are written, with the keys of their chunks."""
        self._useless: OrderedDict[ChunkKey, None] = OrderedDict()
        """Chunks that no form makes smaller."""
        self._alarm = node.alarms.add(self._pump)
        self.made_count = 0
        self.made_bytes = 0

    def chunk_put(self, chunk: Chunk) -> None:
        """An engine here has put a chunk."""
        self._demand.put(chunk.key)
        self._consider(chunk, self._demand.share)

    def peer_asked(self, key: ChunkKey) -> None:
        """Another node reads a chunk of this one, or has asked for a cast of it."""
        self._demand.chunk_requested(key)
        chunk = self._pool.find(key)
        if chunk is not None:
            self._consider(chunk, 1.0)

    def engines_served(self) -> None:
        """No engine waits any more."""
        if self.lane.waiting:
            self._alarm.set(self._clock.now_ns)

    def _consider(self, chunk: Chunk, likely: float) -> None:
        if chunk.key in self.lane or chunk.key in self._useless or is_twin(chunk):
            return
        form = self._forms.for_wire(chunk, likely)
        if form is Form.RAW or self._has_twin(chunk, form):
            return
        if not self._forms.decides_wire or self._smaller.worth_trying():
            self.lane.offer(chunk.key, chunk.size_bytes, self._clock.now_ns)
            self._alarm.set(self._clock.now_ns)

    def _has_twin(self, chunk: Chunk, form: Form) -> bool:
        """Somebody has made it, or this copy has other bytes than those that others are offered first."""
        entry = self._directory.find(chunk.key)
        if entry is not None and entry.digest != chunk.digest:
            return True
        key = twin_key(chunk.key, form)
        return (key in self._twins.here and self._pool.find(key) is not None) or self._directory.find(key) is not None

    def _pump(self) -> None:
        self._alarm.due_ns = None
        busy, now_ns = self._foreground.busy, self._clock.now_ns
        while (key := self.lane.take(busy, now_ns)) is not None:
            self._begin(key)
        due_ns = self.lane.due_ns(busy, now_ns)
        if due_ns is not None:
            self._alarm.set(max(now_ns + _PUMP_NS_MIN, due_ns))

    def _begin(self, key: ChunkKey) -> None:
        chunk = self._pool.find(key)
        form = Form.RAW if chunk is None else self._forms.for_wire(chunk, 1.0)
        if chunk is None or form is Form.RAW or self._has_twin(chunk, form):
            self.lane.ended(key)
            return
        self._pool.pin(chunk)
        self._encoding.add(chunk)
        self._emit(effects.EncodeTwin(chunk, form))

    def twin_encoded(self, event: TwinEncoded) -> None:
        """What became of EncodeTwin."""
        chunk, size_bytes = event.chunk, len(event.content)
        if chunk not in self._encoding:
            return
        self._encoding.remove(chunk)
        if event.work is not None:
            self._forms.costs.measured(event.work)
        self._smaller.tried(event.form is not Form.RAW)
        into = self._room_for(chunk, event.form, size_bytes)
        self._pool.unpin(chunk)
        if into is None:
            self._work_ended(chunk.key)
            return
        self._twins.here[into.key] = into
        self._pool.pin(into)
        self._placing[into] = chunk.key
        self._emit(effects.PlaceTwin(into, event.content, self._fabric.integrity))

    def _room_for(self, chunk: Chunk, form: Form, size_bytes: int) -> Chunk | None:
        if form is Form.RAW:
            self._useless[chunk.key] = None
            if len(self._useless) > _USELESS_MAX:
                self._useless.popitem(last=False)
            return None
        if chunk.state is not ChunkState.READY or not self._twins.make_room(size_bytes, frozenset()):
            return None
        made = self._pool.reserve(twin_key(chunk.key, form), chunk.key, size_bytes, chunk.position + 1, chunk.namespace)
        return None if isinstance(made, Refusal) else made

    def twin_placed(self, event: TwinPlaced) -> None:
        """What became of PlaceTwin."""
        into = event.into
        key = self._placing.pop(into, None)
        if key is None:
            return
        self._pool.commit(into, event.hashed)
        self._pool.unpin(into)
        self.made_count += 1
        self.made_bytes += into.size_bytes
        self._observer.copy_arrived(into, asked_for=True)
        self._work_ended(key)

    def _work_ended(self, key: ChunkKey) -> None:
        self.lane.ended(key)
        self.engines_served()

    def close(self) -> None:
        """Make nothing any more."""
        self._alarm.due_ns = None
        for chunk in self._encoding:
            self._pool.unpin(chunk)
        self._encoding.clear()
        for into in self._placing:
            self._pool.abort(into)
            self._pool.unpin(into)
        self._placing.clear()
