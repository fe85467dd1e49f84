"""Readers of one holder whose casts come by several rails, simulated: the product's readers, holders and keepers on
networks that are a rate and a state. The holder's uplinks are all that takes time; what goes to several by one of them
goes by turns. Reads go by the rail that has least to send, as those of the transport do."""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final

import numpy as np

from kvchunk.ids import ChunkKey
from kvproto.commands import (
    AbortRead,
    ChunkHere,
    HolderCommand,
    ReaderCommand,
    SendControl,
    SendSegments,
    StartRead,
    VerifyChunk,
)
from kvproto.events import (
    ChunkVerified,
    ChunkWanted,
    ControlReceived,
    HolderEvent,
    HolderRef,
    ReadDone,
    ReaderEvent,
    ReadProgress,
    SegmentsReceived,
    SegmentsSent,
)
from kvproto.ids import Address, Member, NodeId, ReadId, members_of
from kvproto.limits import MS
from kvproto.session.holder import Holder
from kvproto.session.interest import InterestTable
from kvproto.session.keeper import Keeper
from kvproto.session.parameters import HolderParameters, ReaderParameters
from kvproto.session.rail_reader import RailReader
from kvproto.session.reader import Reader

SEGMENT_BYTES: Final = 4096
_WAY_NS: Final = MS // 10
"""From one host to another, for a datagram that nothing is before."""
_TTL_NS: Final = 10_000 * MS
_HOLDER: Final = 0
_CASTS: Final = 0
_SLICE_SEGMENTS: Final = 8


@dataclass(slots=True, eq=False)
class _Job:
    left: int
    """Segments."""
    sent: Callable[[int], None]
    """Called with how many have left, some at a time."""
    is_wanted: Callable[[], bool] = lambda: True


@dataclass(slots=True, eq=False)
class CastRail:
    """A network: what is on its way when it stops working is lost."""

    rate_bytes_s: float
    works: bool = True
    flows: OrderedDict[int, deque[_Job]] = field(default_factory=OrderedDict)
    """What the holder's uplink has to send, by turns: reads by their reader, casts under _CASTS."""
    is_sending: bool = False
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _RailMembers:
    rail: int

    def member_at(self, address: Address) -> Member | None:
        return Member(address % 100) if address // 100 == self.rail + 1 else None

    def address_of(self, member: Member) -> Address | None:
        return _address(member, self.rail)


@dataclass(frozen=True, slots=True)
class _Inventory:
    segments: int

    def segments_of(self, key: ChunkKey) -> int | None:
        return self.segments if any(key) else None


@dataclass(slots=True, eq=False)
class CastReader:
    """One node that fetches."""

    member: Member
    reader: Reader | RailReader
    wanted: set[ChunkKey] = field(default_factory=set)
    reads: set[ReadId] = field(default_factory=set)
    done_ns: int = 0


class CastWorld:
    """See the module's docstring."""

    def __init__(self, rates_bytes_s: Sequence[float], readers: int, segments: int) -> None:
        self.rails = [CastRail(rate) for rate in rates_bytes_s]
        self.now_ns = 0
        self._segments, self._order = segments, 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        parameters = HolderParameters(SEGMENT_BYTES)
        self._holders = [Holder(parameters, _Inventory(segments)) for _ in self.rails]
        for rail, holder in enumerate(self._holders):
            holder.use_keeper(Keeper(InterestTable(_TTL_NS), _RailMembers(rail), Member(_HOLDER)))
        self.readers = [self._new_reader(Member(1 + index)) for index in range(readers)]

    def _new_reader(self, member: Member) -> CastReader:
        count = len(self.rails)
        parameters = ReaderParameters(
            member,
            SEGMENT_BYTES,
            interest_ttl_ns=_TTL_NS,
            link_rate_bytes_per_s=int(sum(rail.rate_bytes_s for rail in self.rails)),
            rails=count,
            cast_rails=count,
            by_keepers=True,
        )
        return CastReader(member, RailReader(parameters) if count > 1 else Reader(parameters))

    @property
    def left_bytes(self) -> int:
        """Of whole chunks, of all readers."""
        return sum(len(node.wanted) for node in self.readers) * self._segments * SEGMENT_BYTES

    def want(self, starts_ns: Sequence[int], keys: Sequence[ChunkKey]) -> None:
        """Each reader wants these chunks, from its start on."""
        ref = HolderRef(
            NodeId("holder"),
            _address(_HOLDER, 0),
            rail_addresses=tuple(_address(_HOLDER, rail) for rail in range(1, len(self.rails))),
        )
        size = self._segments * SEGMENT_BYTES
        wanted = [ChunkWanted(key, self._segments, size, (ref,), order) for order, key in enumerate(keys, self._order)]
        self._order += len(keys)
        for node, start_ns in zip(self.readers, starts_ns, strict=True):
            node.wanted = set(keys)
            self.at(start_ns, lambda node=node: self._tell(node, wanted))

    def at(self, when_ns: int, call: Callable[[], None]) -> None:
        """Do this then."""
        heapq.heappush(self._heap, (max(when_ns, self.now_ns), next(self._numbers), call))

    def run(self, until: Callable[[], bool], limit_ns: int) -> int:
        """Go on until then; the time. Raises AssertionError where that does not come before the limit."""
        while not until():
            assert self._heap, "nothing happens any more"
            self.now_ns, _, call = heapq.heappop(self._heap)
            assert self.now_ns < limit_ns, f"{self.left_bytes} bytes are still wanted"
            call()
        return self.now_ns

    # -- a reader

    def _tell(self, node: CastReader, happened: Sequence[ReaderEvent]) -> None:
        self._carry_out(node, node.reader.handle_all(happened, self.now_ns))

    def _wake(self, node: CastReader, due_ns: int) -> None:
        if node.reader.wake_ns == due_ns:
            self._carry_out(node, node.reader.handle_timer(self.now_ns))

    def _carry_out(self, node: CastReader, commands: Sequence[ReaderCommand]) -> None:
        for command in commands:
            match command:
                case SendControl(message, _, rail) if self.rails[rail].works:
                    said = ControlReceived(message, _address(node.member, rail), rail)
                    self.at(self.now_ns + _WAY_NS, lambda said=said: self._ask(said.rail, said))
                case StartRead(read, key, _, _, segments):
                    node.reads.add(read)
                    self._serve(node, read, segments)
                case AbortRead(read):
                    node.reads.discard(read)
                case VerifyChunk(key):
                    self.at(self.now_ns, lambda key=key: self._tell(node, [ChunkVerified(key, good=True)]))
                case ChunkHere(key):
                    node.wanted.discard(key)
                    if not node.wanted:
                        node.done_ns = self.now_ns
        due_ns = node.reader.wake_ns
        if due_ns is not None:
            self.at(due_ns, lambda: self._wake(node, due_ns))

    def _serve(self, node: CastReader, read: ReadId, segments: int) -> None:
        rails = [rail for rail in range(len(self.rails)) if self.rails[rail].works]
        rail = min(rails, key=lambda one: sum(job.left for jobs in self.rails[one].flows.values() for job in jobs))
        came = 0

        def sent(count: int) -> None:
            nonlocal came
            came += count
            event = ReadDone(read) if came == segments else ReadProgress(read, came)
            if self.rails[rail].works:
                self.at(self.now_ns + _WAY_NS, lambda: self._read_came(node, event))

        self._send(rail, node.member, _Job(segments, sent, lambda: read in node.reads))

    def _read_came(self, node: CastReader, event: ReadDone | ReadProgress) -> None:
        if event.read in node.reads:
            if isinstance(event, ReadDone):
                node.reads.remove(event.read)
            self._tell(node, [event])

    # -- the holder

    def _ask(self, rail: int, event: HolderEvent) -> None:
        holder = self._holders[rail]
        self._answer(rail, holder.handle(event, self.now_ns))

    def _remind(self, rail: int, due_ns: int) -> None:
        holder = self._holders[rail]
        if holder.next_timeout_ns() == due_ns:
            self._answer(rail, holder.handle_timer(self.now_ns))

    def _answer(self, rail: int, commands: Sequence[HolderCommand]) -> None:
        for command in commands:
            match command:
                case SendControl(message, address) if self.rails[rail].works:
                    node = self.readers[address % 100 - 1]
                    said = ControlReceived(message, _address(_HOLDER, rail), rail)
                    self.at(self.now_ns + _WAY_NS, lambda node=node, said=said: self._tell(node, [said]))
                case SendSegments(key, first, segments, to):
                    assert to is not None
                    self._send(rail, _CASTS, self._cast(rail, key, first, segments, to))
        due_ns = self._holders[rail].next_timeout_ns()
        if due_ns is not None:
            self.at(due_ns, lambda: self._remind(rail, due_ns))

    def _cast(self, rail: int, key: ChunkKey, first: int, segments: int, to: int) -> _Job:
        at = first

        def sent(count: int) -> None:
            nonlocal at
            came = np.arange(at, at + count, dtype=np.uint32)
            at += count
            event = SegmentsReceived(key, came, _address(_HOLDER, rail), rail=rail)
            self.at(self.now_ns + _WAY_NS, lambda: self._came(event, to))
            self._ask(rail, SegmentsSent(key, count))

        return _Job(segments, sent)

    def _came(self, event: SegmentsReceived, to: int) -> None:
        if self.rails[event.rail].works:
            for member in members_of(to):
                self._tell(self.readers[member - 1], [event])

    def _send(self, rail: int, flow: int, job: _Job) -> None:
        self.rails[rail].flows.setdefault(flow, deque()).append(job)
        if not self.rails[rail].is_sending:
            self._send_next(rail)

    def _send_next(self, rail: int) -> None:
        one = self.rails[rail]
        one.is_sending = False
        while one.flows:
            flow, jobs = next(iter(one.flows.items()))
            while jobs and not jobs[0].is_wanted():
                jobs.popleft()
            if not jobs:
                del one.flows[flow]
                continue
            one.flows.move_to_end(flow)
            job = jobs[0]
            count = min(job.left, _SLICE_SEGMENTS)
            job.left -= count
            if not job.left:
                jobs.popleft()
            one.is_sending = True
            one.sent_bytes += count * SEGMENT_BYTES
            left_ns = self.now_ns + int(count * SEGMENT_BYTES * 1e9 / one.rate_bytes_s)
            self.at(left_ns, partial(self._left, rail, job, count))
            return

    def _left(self, rail: int, job: _Job, count: int) -> None:
        job.sent(count)
        self._send_next(rail)


def _address(member: int, rail: int) -> Address:
    return Address(100 * (rail + 1) + member)
