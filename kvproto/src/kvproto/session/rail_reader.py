"""The reader of a node whose casts come by several rails: one `Reader` for each, which knows nothing of the others.

Which rail a chunk comes by follows from its key and from what the rails of its keeper are worth (`rail_of`), so readers
of one chunk mostly meet on one rail, and it is cast once. A reader names the rail by where its JOIN leaves: the keeper
casts on each rail to those who joined there. A rail that brings nothing of a keeper, or too little, loses its chunks to
the others, with what is here of them. It is tried by a JOIN for a chunk that nobody has, until a NAK answers: no chunk
waits for it. A rail that has nothing to do takes chunks from the others that nobody has begun with.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey
from kvproto.commands import AbortRead, ChunkGone, ChunkHere, ReaderCommand, SendControl, StartRead, VerifyChunk
from kvproto.events import (
    ChunkJudged,
    ChunkUnwanted,
    ChunkVerified,
    ChunkWanted,
    ControlReceived,
    HolderLost,
    HolderRef,
    HoldersChanged,
    ReadDone,
    ReaderEvent,
    ReadFailed,
    ReadProgress,
    SegmentsReceived,
)
from kvproto.ids import Address, NodeId, ReadId
from kvproto.limits import MS
from kvproto.session.choice import Chooser
from kvproto.session.chunk import NO_KEY, keeper_rank
from kvproto.session.parameters import ReaderParameters
from kvproto.session.rails import Rails, rail_of
from kvproto.session.reader import Reader
from kvproto.session.stripes import ReadNumbers
from kvproto.wire.control import Control, Op

TRY_WAIT_NS: Final = 300 * MS
"""So long a rail that was left has to answer."""


@dataclass(slots=True, eq=False)
class _Keeper:
    """A holder that chunks are asked of, by all rails that both have."""

    ref: HolderRef
    """As it was named last."""
    rails: Rails
    shares: list[float] = field(default_factory=list)
    """Of the chunks that were wanted together last: bytes that each rail may get still."""


@dataclass(slots=True, eq=False)
class _Placed:
    """A chunk that is wanted."""

    wanted: ChunkWanted
    rail: int = 0
    keeper: NodeId | None = None
    """By whose rails it is counted as under way; None: it is not, or not any more."""
    number: int = 0
    """Its name there."""


@dataclass(slots=True)
class _Tries:
    """JOINs that ask whether a rail works."""

    sent: dict[tuple[Address, int], tuple[NodeId, int]] = field(default_factory=dict)
    """By the keeper's address and the rail: the keeper, and until when it is awaited."""

    def next_ns(self) -> int | None:
        """When the first of them has not been answered."""
        return min((due_ns for _, due_ns in self.sent.values()), default=None)


class RailReader:
    """One per node, with the methods of `Reader`. Deterministic: the same events at the same times give the same
    commands."""

    def __init__(self, parameters: ReaderParameters) -> None:
        count = parameters.cast_rails
        self._parameters = parameters
        self.readers = tuple(
            [
                Reader(_of_rail(parameters, rail), ReadNumbers(1 + rail, count), self._is_watched)
                for rail in range(count)
            ]
        )
        """By rail."""
        self.keepers: dict[NodeId, _Keeper] = {}
        self._placed: dict[ChunkKey, _Placed] = {}
        self._counted: dict[int, ChunkKey] = {}
        """Chunks under way by their numbers."""
        self._reads: dict[ReadId, ChunkKey] = {}
        """Reliable reads under way: what they bring, rails bring."""
        self._loads = [0] * count
        self._tries = _Tries()
        self._last_number = 0
        self._look_ns: int | None = None
        self._ended = False
        """A chunk has come since rails were last compared."""

    # --- the shell's side --------------------------------------------------------------------------------------------

    def handle_all(self, events: Iterable[ReaderEvent], now_ns: int) -> list[ReaderCommand]:
        """See `Reader.handle_all`."""
        by_rail: list[list[ReaderEvent]] = [[] for _ in self.readers]
        events = tuple(events)
        self._share_out(events, now_ns)
        for event in events:
            for rail, one in self._routed(event, now_ns):
                by_rail[rail].append(one)
        out: list[ReaderCommand] = []
        for rail, some in enumerate(by_rail):
            if some:
                out += self._said(rail, self.readers[rail].handle_all(some, now_ns), now_ns)
        return self._finish(out, now_ns)

    def handle_timer(self, now_ns: int) -> list[ReaderCommand]:
        """See `Reader.handle_timer`."""
        out: list[ReaderCommand] = []
        for rail, reader in enumerate(self.readers):
            if reader.wake_ns is not None and reader.wake_ns <= now_ns:
                out += self._said(rail, reader.handle_timer(now_ns), now_ns)
        return self._finish(out, now_ns)

    @property
    def choice(self) -> Chooser:
        """Everything is fanned out (see `_of_rail`)."""
        return self.readers[0].choice

    @property
    def wake_ns(self) -> int | None:
        """See `Reader.wake_ns`."""
        dues = [*(reader.wake_ns for reader in self.readers), self._look_ns, self._tries.next_ns()]
        return min([due_ns for due_ns in dues if due_ns is not None], default=None)

    @property
    def led_count(self) -> int:
        """See `Reader.led_count`."""
        return sum(reader.led_count for reader in self.readers)

    @property
    def patient(self) -> bool:
        """See `Reader.patient`."""
        patient = [reader.patient for reader in self.readers]
        return any(patient) and all(is_so or reader.idle for is_so, reader in zip(patient, self.readers, strict=True))

    @property
    def half_window(self) -> int:
        """See `Reader.half_window`."""
        return min(reader.half_window for reader in self.readers)

    def missing(self, key: ChunkKey) -> npt.NDArray[np.bool_] | None:
        """See `Reader.missing`."""
        placed = self._placed.get(key)
        return None if placed is None else self.readers[placed.rail].missing(key)

    def unsettled(self, key: ChunkKey) -> npt.NDArray[np.bool_] | None:
        """See `Reader.unsettled`."""
        placed = self._placed.get(key)
        return None if placed is None else self.readers[placed.rail].unsettled(key)

    def left_at(self, key: ChunkKey, now_ns: int, rail: int = 0) -> Address | None:
        """See `Reader.left_at`; of this rail."""
        return self.readers[rail].left_at(key, now_ns)

    def configure(self, parameters: ReaderParameters, now_ns: int) -> list[ReaderCommand]:
        """See `Reader.configure`."""
        self._parameters = parameters
        out: list[ReaderCommand] = []
        for rail, reader in enumerate(self.readers):
            out += self._said(rail, reader.configure(_of_rail(parameters, rail), now_ns), now_ns)
        return self._finish(out, now_ns)

    # --- what happens, by rail ---------------------------------------------------------------------------------------

    def _routed(self, event: ReaderEvent, now_ns: int) -> Iterator[tuple[int, ReaderEvent]]:
        """Whom it concerns, as that rail sees it."""
        match event:
            case ChunkWanted():
                yield self._want(event, now_ns)
            case ChunkUnwanted(key):
                placed = self._placed.pop(key, None)
                if placed is not None:
                    self._uncount(placed, now_ns)
                    yield placed.rail, event
            case ControlReceived(message, source, rail) if message.key == NO_KEY:
                self._answered(source, rail, now_ns)
            case ControlReceived(rail=rail):
                yield rail, event
            case SegmentsReceived():
                yield from self._segments(event, now_ns)
            case ReadProgress(read) | ReadDone(read) | ReadFailed(read) | ChunkJudged(read):
                self._read_event(event, read, now_ns)
                yield (read - 1) % len(self.readers), event
            case ChunkVerified(key):
                placed = self._placed.get(key)
                if placed is not None:
                    yield placed.rail, event
            case HoldersChanged(holders):
                yield from self._holders_changed(holders.items())
            case HolderLost(node):
                self._lose(node, now_ns)
                yield from ((rail, event) for rail in range(len(self.readers)))
            case _:
                yield from ((rail, event) for rail in range(len(self.readers)))

    def _want(self, event: ChunkWanted, now_ns: int) -> tuple[int, ReaderEvent]:
        placed = self._placed.get(event.key)
        if placed is None:
            placed = self._placed[event.key] = _Placed(event)
            self._count(placed, now_ns)
        else:
            placed.wanted = event
        return placed.rail, event._replace(holders=_on_rail(event.holders, placed.rail))

    def _segments(self, event: SegmentsReceived, now_ns: int) -> Iterator[tuple[int, ReaderEvent]]:
        placed = self._placed.get(event.key)
        if placed is not None:
            if placed.rail == event.rail:
                self._heard_of(placed, now_ns)
            yield placed.rail, event
        if placed is None or placed.rail != event.rail:
            yield event.rail, event  # who has left the chunk there says so once more

    def _read_event(self, event: ReadProgress | ReadDone | ReadFailed | ChunkJudged, read: ReadId, now_ns: int) -> None:
        key = self._reads.get(read)
        placed = None if key is None else self._placed.get(key)
        if placed is not None and isinstance(event, ReadProgress | ReadDone):
            self._heard_of(placed, now_ns)
        if not isinstance(event, ReadProgress):
            self._reads.pop(read, None)

    def _holders_changed(
        self, holders: Iterable[tuple[ChunkKey, tuple[HolderRef, ...]]]
    ) -> Iterator[tuple[int, ReaderEvent]]:
        by_rail: list[dict[ChunkKey, tuple[HolderRef, ...]]] = [{} for _ in self.readers]
        for key, refs in holders:
            placed = self._placed.get(key)
            if placed is not None:
                placed.wanted = placed.wanted._replace(holders=refs)
                by_rail[placed.rail][key] = _on_rail(refs, placed.rail)
        for rail, some in enumerate(by_rail):
            if some:
                yield rail, HoldersChanged(some)

    def _lose(self, node: NodeId, now_ns: int) -> None:
        """Its chunks come from others, by the rails that they are on."""
        for placed in [one for one in self._placed.values() if one.keeper == node]:
            self._uncount(placed, now_ns)
        self.keepers.pop(node, None)

    # --- what is under way by which rail -----------------------------------------------------------------------------

    def _keeper_of(self, wanted: ChunkWanted) -> _Keeper | None:
        """Whom a chunk is asked of, if by several rails."""
        parameters = self._parameters
        if not wanted.holders or not parameters.by_keepers or parameters.member is None:
            return None
        ref = min(wanted.holders, key=lambda one: (not one.castable, keeper_rank(wanted.key, one.node)))
        count = min(len(self.readers), 1 + _rails_of(ref))
        if not ref.castable or count == 1:
            return None
        keeper = self.keepers.get(ref.node)
        if keeper is None or (len(keeper.rails.each) != count and not keeper.rails.is_busy):
            keeper = self.keepers[ref.node] = _Keeper(ref, Rails(count, self._loads, hears_all=True))
        keeper.ref = ref
        return keeper

    def _share_out(self, events: Sequence[ReaderEvent], now_ns: int) -> None:
        """Of the chunks that are wanted together, no rail gets more than its share: few would fall unevenly. Who wants
        the same chunks shares them out alike."""
        wanted = [one for one in events if type(one) is ChunkWanted and one.key not in self._placed]
        totals = Counter[NodeId]()
        for one in wanted:
            if (keeper := self._keeper_of(one)) is not None:
                totals[keeper.ref.node] += one.size_bytes
        for node, total_bytes in totals.items():
            keeper = self.keepers[node]
            weights = keeper.rails.weights(now_ns)
            keeper.shares = [total_bytes * weight / sum(weights) for weight in weights]

    def _count(self, placed: _Placed, now_ns: int) -> None:
        """A chunk is wanted: choose its rail."""
        keeper, key, size_bytes = self._keeper_of(placed.wanted), placed.wanted.key, placed.wanted.size_bytes
        if keeper is None:
            return
        self._last_number += 1
        placed.keeper, placed.number = keeper.ref.node, self._last_number
        self._counted[placed.number] = key
        weights = keeper.rails.weights(now_ns)
        left = [
            weight if share >= size_bytes / 2 else 0.0 for weight, share in zip(weights, keeper.shares, strict=True)
        ]
        rail = rail_of(key, left if any(left) else weights)
        keeper.shares[rail] -= size_bytes
        placed.rail = keeper.rails.place(placed.number, size_bytes, rail, now_ns)

    def _uncount(self, placed: _Placed | None, now_ns: int, *, is_whole: bool = False) -> None:
        """It is whole, or does not come any more."""
        if placed is None or placed.keeper is None:
            return
        rails = self.keepers[placed.keeper].rails
        if is_whole:
            rails.end(placed.number, now_ns)
        else:
            rails.forget(placed.number, now_ns)
        del self._counted[placed.number]
        placed.keeper = None
        self._ended = True

    def _heard_of(self, placed: _Placed, now_ns: int) -> None:
        if placed.keeper is not None:
            self.keepers[placed.keeper].rails.progress(placed.number, now_ns)

    def _said(self, rail: int, commands: list[ReaderCommand], now_ns: int) -> list[ReaderCommand]:
        """What the reader of one rail asks for, as the node has to do it."""
        for index, command in enumerate(commands):
            match command:
                case SendControl(message, address) if rail:
                    commands[index] = SendControl(message, address, rail)
                case StartRead(read, key):
                    self._reads[read] = key
                case AbortRead(read):
                    self._reads.pop(read, None)
                case VerifyChunk(key):
                    self._uncount(self._placed.get(key), now_ns, is_whole=True)
                case ChunkHere(key):
                    self._uncount(self._placed.pop(key, None), now_ns, is_whole=True)
                case ChunkGone(key):
                    self._uncount(self._placed.get(key), now_ns)
        return commands

    # --- rails that fail, are slow, come back, or have nothing to do -------------------------------------------------

    def _finish(self, out: list[ReaderCommand], now_ns: int) -> list[ReaderCommand]:
        looks = self._look_ns is not None and self._look_ns <= now_ns
        if self._tries.sent:
            self._give_up_tries(now_ns)
        if looks:
            self._look_ns = None
            for node, keeper in self.keepers.items():
                for number, rail in keeper.rails.look(now_ns):
                    out += self._move(number, rail, now_ns)
                for rail in keeper.rails.to_try(now_ns):
                    out += self._try(node, keeper.ref, rail, now_ns)
        if looks or self._ended:
            self._ended = False
            for keeper in self.keepers.values():
                for number, rail in keeper.rails.steal(self._is_unbegun, now_ns):
                    out += self._move(number, rail, now_ns)
        dues = [due for one in self.keepers.values() if (due := one.rails.next_ns(now_ns)) is not None]
        if self._look_ns is not None:
            dues.append(self._look_ns)
        self._look_ns = min(dues, default=None)
        return out

    def _is_watched(self, key: ChunkKey, now_ns: int) -> bool:
        placed = self._placed.get(key)
        if placed is None or placed.keeper is None:
            return False
        return self.keepers[placed.keeper].rails.others_work(placed.number, now_ns)

    def _is_unbegun(self, number: int) -> bool:
        key = self._counted[number]
        return self.readers[self._placed[key].rail].is_unbegun(key)

    def _move(self, number: int, rail: int, now_ns: int) -> list[ReaderCommand]:
        """A chunk comes by another rail from now on; what is here of it stays."""
        key = self._counted.get(number)
        if key is None:
            return []  # what was moved before has ended it
        placed = self._placed[key]
        before, placed.rail = placed.rail, rail
        missing = self.readers[before].to_come(key)
        out = self._said(before, self.readers[before].handle(ChunkUnwanted(key), now_ns), now_ns)
        wanted = placed.wanted._replace(holders=_on_rail(placed.wanted.holders, rail), missing=missing)
        return out + self._said(rail, self.readers[rail].handle(wanted, now_ns), now_ns)

    def _try(self, node: NodeId, ref: HolderRef, rail: int, now_ns: int) -> list[ReaderCommand]:
        address = _address_on(ref, rail)
        if address is None:
            self.keepers[node].rails.tried(rail, False, now_ns)
            return []
        self._tries.sent[address, rail] = node, now_ns + TRY_WAIT_NS
        join = Control(Op.JOIN, NO_KEY, 1, member=self._parameters.member or 0)
        return [SendControl(join, address, rail)]

    def _answered(self, source: Address, rail: int, now_ns: int) -> None:
        node, _ = self._tries.sent.pop((source, rail), (None, 0))
        keeper = None if node is None else self.keepers.get(node)
        if keeper is not None:
            keeper.rails.tried(rail, True, now_ns)

    def _give_up_tries(self, now_ns: int) -> None:
        for (address, rail), (node, due_ns) in list(self._tries.sent.items()):
            if due_ns <= now_ns:
                del self._tries.sent[address, rail]
                keeper = self.keepers.get(node)
                if keeper is not None:
                    keeper.rails.tried(rail, False, now_ns)


def _of_rail(parameters: ReaderParameters, rail: int) -> ReaderParameters:
    """Casts come by one link. Reads go by all, whoever asks: the first reader has enough under way for all of them. So
    what one rail's casts bring says nothing against reads: everything is fanned out."""
    rate, rails = parameters.link_rate_bytes_per_s, parameters.rails
    return replace(
        parameters,
        link_rate_bytes_per_s=None if rate is None else rate // rails,
        rails=1 if rail else rails,
        chooses=False,
    )


def _rails_of(ref: HolderRef) -> int:
    """How many further rails, one after the other, casts of a holder come by."""
    return next((at for at, address in enumerate(ref.rail_addresses) if address is None), len(ref.rail_addresses))


def _address_on(ref: HolderRef, rail: int) -> Address | None:
    """Where a holder is on a rail; None: casts do not come from there."""
    if not rail:
        return ref.address
    return ref.rail_addresses[rail - 1] if rail <= len(ref.rail_addresses) else None


def _on_rail(holders: tuple[HolderRef, ...], rail: int) -> tuple[HolderRef, ...]:
    """Holders as the reader of a rail knows them."""
    if not rail:
        return holders
    seen: list[HolderRef] = []
    for one in holders:
        address = _address_on(one, rail)
        seen.append(
            replace(one, castable=False) if address is None else replace(one, address=address, rail_addresses=())
        )
    return tuple(seen)
