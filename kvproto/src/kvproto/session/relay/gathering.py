"""How a node gathers chunks from several parents at once: which piece it asks whom for, and when it asks again.

A keeper, who has a chunk whole, grants pieces that nobody has yet; all others come from peers, which announce what
they have proven. Each parent is asked for what it has and nobody else was asked for, the rarest first, a few runs at a
time, so that the quick ones give more. A chain is the case of one peer, a tree that of none but the keeper.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kvchunk.ids import ChunkKey
from kvproto.ids import ReadId
from kvproto.limits import MS
from kvproto.session.choice import Chooser, Way
from kvproto.session.relay.passing import Passing, run_pieces
from kvproto.session.relay.pieces import lowest, pieces_of, run_length, runs_of
from kvproto.session.relay.relay_commands import (
    AbortRun,
    Blamed,
    GaveUp,
    LeaveParent,
    ReadRun,
    RelayCommand,
    TellParent,
    Whole,
)
from kvproto.wire.relay_messages import Drop, Gone, Hello, Leaves, Message, Peers, Rate, Room, Run, RunKind, Want

ROOM_RUNS: Final = 3
"""Of its keeper a reader has so many runs granted or asked for: one arrives, one is on its way, one is being asked."""
READS_PER_PARENT: Final = 2
READS_GRANTED_MAX: Final = 64
GRANTS_MAX: Final = 1 << 10
"""No keeper grants so many runs that wait: a reader gives it room for a few."""
READS_MAX: Final = 6
"""Of peers, in all: what waits in front of this node's own link makes grants wait, too."""
READS_OUTSIDE_MAX: Final = 2
"""Of peers in other racks, besides."""
UNSPREAD_RUNS: Final = 24
"""A reader takes no more grants while more runs that it was granted are with none of its peers: its uplink is slow. So
many for all who read, since they hear of it late."""
OVERDUE_RUNS: Final = 24
"""Pieces come in the order in which they are granted, give or take so many runs."""
ORPHANS_ASKED_MAX: Final = 3
ORPHAN_AGAIN_NS: Final = 100 * MS
LEAF_SHARE: Final = 0.7
"""Who has never got more than this part of what its keeper sends is slow: a leaf, granted nothing to pass on."""
STARVED_SHARE: Final = 0.45
"""A reader that gets less than this part of what its keeper can send begs of it."""
RATE_PIECES: Final = 16
"""Over the last so many pieces a rate is measured."""
SILENCE_NS_MIN: Final = 60 * MS
SILENCE_NS_UNKNOWN: Final = 400 * MS
"""Of a parent that has given nothing yet,"""
SILENCE_TIMES: Final = 4
"""and of others, so many times what a read took of late."""
ORPHAN_NS: Final = 80 * MS
"""A piece that nobody has is begged for when nothing has come for so long; of a keeper in another rack, when nothing
has come of the chunk to anybody, in the time of some pieces."""
KEEPER_SILENT_NS: Final = 1_000 * MS
"""A keeper that says nothing for so long, while pieces are with nobody, is not asked any more."""
HOPELESS_NS: Final = 2_000 * MS
"""A chunk of which nothing comes for so long comes another way."""
LOOK_NS: Final = 5 * MS
"""Between two looks at what silence says, and at whether chunks end sooner if they are read: to look at each piece cost
as much as all else that is decided of it."""
LEFT_TO_READS_MAX: Final = 3
"""Chunks at a time: one is read, one begins as it ends, and one is not begun."""
LINK_IDLE_NS: Final = 5_000 * MS
PARENTS_MAX: Final = 64
PEERS_MAX: Final = 48
"""A parent more is asked as a keeper only."""


_AS_EVER: Final = Chooser(is_free=False)


@dataclass(slots=True, eq=False)
class Arriving:
    """A chunk on its way."""

    key: ChunkKey
    number: int
    """By which parents know it; smaller ones are wanted first."""
    keepers: deque[str]
    """Who has it whole; the first one is asked."""
    pieces: int
    begins: int
    """Where its first piece is among all that were ever wanted here."""
    moved_ns: int
    """When something of it last came, or was begun."""
    told_ns: int
    """When somebody was last heard to have more of it."""
    lacking: int
    """Pieces that are neither proven nor asked for; a set, as those that follow."""
    proven: int = 0
    some: int = 0
    """Pieces that a peer has,"""
    many: int = 0
    """and that several have."""
    owned: int = 0
    """Granted to this node: the others have them from it."""
    has_leaves: bool = False


@dataclass(slots=True, eq=False)
class _Read:
    arriving: Arriving
    first: int
    count: int
    since_ns: int
    is_granted: bool


@dataclass(slots=True, eq=False)
class _Parent:
    endpoint: str
    is_outside: bool
    """It stands in another rack."""
    has: dict[ChunkKey, int] = field(default_factory=dict)
    """As a peer: pieces that it says to have."""
    reads: dict[ReadId, _Read] = field(default_factory=dict)
    granted: deque[Run] = field(default_factory=deque)
    """As a keeper: what may be read and is not asked for."""
    room: int = 0
    """As a keeper: pieces that it may still grant."""
    rate: int = 0
    """As a keeper: what it sends, bytes a second."""
    frontier: int = 0
    """As a keeper: the last piece, among all that were ever wanted, that it is known to have granted to anybody."""
    has_room: bool = False
    """As a keeper: for who begs."""
    begged_ns: int | None = None
    """As a keeper: when it was begged; None: it has granted that."""
    took_ns: float = 0.0
    """A read, of late; 0: none yet."""
    heard_ns: int = 0
    """When it last gave something, or was asked after a pause."""
    said_ns: int = 0
    """When it last said or gave something, or was asked for a chunk."""
    is_silent: bool = False
    """What it has counts for nothing until it gives something."""
    muted_ns: int = 0
    """Until then it is not asked: it fell silent."""


class Gathering:
    """Of one node."""

    def __init__(
        self,
        endpoint: str,
        piece_bytes: int,
        accepts: Callable[[ChunkKey, bytes], bool],
        may_give: Callable[[str], bool],
        passing: Passing,
        out: list[RelayCommand],
        share: float,
        rails: int = 1,
        rack_of: Callable[[str], str] = lambda _endpoint: "",
        choice: Callable[[], Chooser] = lambda: _AS_EVER,
        reads: Callable[[], int] = lambda: 0,
    ) -> None:
        """`endpoint`: where this node answers reads; `accepts(key, leaves)`: whether these make the chunk's digest, to
        be kept; `may_give(endpoint)`: whether a node answers there that the directory knows; `rails`: each has as much
        under way as if it were the only one; `rack_of(endpoint)`: the rack of the node that answers there; `choice()`:
        what was measured of relays and reads; `reads()`: chunks that were left to reads and are not here."""
        self._endpoint = endpoint
        self._piece_bytes = piece_bytes
        self._accepts = accepts
        self._may_give = may_give
        self._passing = passing
        self._out = out
        self._share = share
        self._rails = rails
        self._choice, self._reads = choice, reads
        self._looked_ns: int | None = None
        """When silence was last looked at; None: something has changed since that does not wait."""
        self._rack_of = rack_of
        self.chunks: dict[ChunkKey, Arriving] = {}
        self._by_number: dict[int, Arriving] = {}
        self._parents: dict[str, _Parent] = {}
        self._of_read: dict[ReadId, _Parent] = {}
        self._last_number = 0
        self._last_read = 0
        self._came_ns: deque[int] = deque(maxlen=RATE_PIECES + 1)
        self._best_ns = 0.0
        """How long a piece took when they came quickest; 0: not known."""
        self._run = 1
        """Pieces that a keeper grants at once, of late."""
        self._pieces_wanted = 0
        self.orphans_ns: dict[tuple[int, int], int] = {}
        """When, of late, the keeper was told of a piece that nobody has."""
        self._barred: set[str] = set()
        """Who gave wrong bytes, while anything is gathered."""
        self._idle_ns: int | None = None
        """Since when nothing is on its way, while links are kept."""
        self.wake_ns: int | None = None

    # --- what is wanted ----------------------------------------------------------------------------------------------

    def want(self, key: ChunkKey, pieces: int, keepers: Iterable[str], now_ns: int) -> None:
        """A chunk is wanted of those who have it whole; earlier ones are wanted first."""
        self._last_number += 1
        arriving = self.chunks[key] = self._by_number[self._last_number] = Arriving(
            key,
            self._last_number,
            deque(keepers),
            pieces,
            self._pieces_wanted,
            now_ns,
            now_ns,
            pieces_of(0, pieces),
        )
        self._pieces_wanted += pieces
        self._idle_ns = self._looked_ns = None
        self._ask_keeper(arriving, now_ns)

    def offer(self, key: ChunkKey, keepers: Iterable[str], now_ns: int) -> None:
        """These have a chunk whole by now."""
        arriving = self.chunks.get(key)
        if arriving is None:
            return
        had = len(arriving.keepers)
        for endpoint in keepers:
            parent = self._parents.get(endpoint)
            is_known = parent is not None and key in parent.has
            if not (is_known or endpoint in arriving.keepers or endpoint in self._barred):
                arriving.keepers.append(endpoint)
        if not had:
            self._ask_keeper(arriving, now_ns)

    def unwant(self, key: ChunkKey, now_ns: int) -> None:
        """A chunk is wanted no more. When the commands have been carried out, nothing writes to its memory."""
        arriving = self.chunks.get(key)
        if arriving is not None:
            self._end(arriving, now_ns)
            self._passing.withdrawn(key, now_ns)

    def _ask_keeper(self, arriving: Arriving, now_ns: int) -> None:
        while arriving.keepers and not self._ask(arriving, arriving.keepers[0], now_ns, keeper=True):
            arriving.keepers.popleft()

    def _ask(self, arriving: Arriving, endpoint: str, now_ns: int, *, keeper: bool) -> bool:
        """False: there are too many parents."""
        if endpoint not in self._parents:
            if len(self._parents) >= (PARENTS_MAX if keeper else PEERS_MAX) and not self._leave_useless():
                return False
            is_outside = self._rack_of(endpoint) != self._rack_of(self._endpoint)
            self._parents[endpoint] = _Parent(endpoint, is_outside, heard_ns=now_ns)
            self._tell(endpoint, Hello(self._endpoint))
        self._parents[endpoint].said_ns = now_ns
        self._tell(endpoint, Want(arriving.number, arriving.key, arriving.pieces, keeper))
        return True

    def _leave_useless(self) -> bool:
        """Leave a parent of which nothing is wanted. False: there is none."""
        keepers = {one.keepers[0] for one in self.chunks.values() if one.keepers}
        for endpoint, parent in self._parents.items():
            if not (parent.reads or parent.granted or parent.has or endpoint in keepers):
                del self._parents[endpoint]
                self._out.append(LeaveParent(endpoint))
                return True
        return False

    def _tell(self, endpoint: str, message: Message) -> None:
        self._out.append(TellParent(endpoint, message))

    def _end(self, arriving: Arriving, now_ns: int) -> None:
        """It is gathered no more: reads of it end, parents forget it."""
        key, self._looked_ns = arriving.key, None
        del self.chunks[key], self._by_number[arriving.number]
        for parent in self._parents.values():
            self._give_back(parent, [read for read, one in parent.reads.items() if one.arriving is arriving])
            parent.granted = deque(one for one in parent.granted if one.number != arriving.number)
            if parent.has.pop(key, None) is not None or parent.endpoint in arriving.keepers:
                self._tell(parent.endpoint, Drop(arriving.number))
        if not self.chunks:
            self._idle_ns = now_ns
            self._best_ns = 0.0
            self._came_ns.clear()
            self._barred.clear()
            self.orphans_ns.clear()

    # --- what parents say --------------------------------------------------------------------------------------------

    def heard(self, endpoint: str, message: Message, now_ns: int) -> bool:
        """A parent says something. False: no parent says that, and its link is to end."""
        parent = self._parents.get(endpoint)
        if parent is None:
            return True  # of a link that was just left
        parent.said_ns = now_ns
        if isinstance(message, Rate):
            parent.has_room, parent.rate = message.has_room, message.rate
            return True
        if not isinstance(message, Run | Peers | Leaves | Gone):
            return False
        arriving = self._by_number.get(message.number)
        if arriving is None:
            return True  # it is not wanted any more
        match message:
            case Leaves(_, leaves):
                self._take_leaves(parent, arriving, leaves, now_ns)
            case Peers(_, endpoints):
                self._meet(arriving, endpoints, now_ns)
            case Gone():
                self._forget_source(parent, arriving, now_ns)
            case Run(_, _, first, count) if first + count > arriving.pieces:
                return False
            case Run(RunKind.GRANT) if len(parent.granted) >= GRANTS_MAX:
                return False
            case Run(RunKind.GRANT):
                parent.granted.append(message)
                self._run = message.count
                parent.frontier = max(parent.frontier, arriving.begins + message.first)
                if parent.begged_ns is None:
                    parent.room = max(0, parent.room - message.count)
                    parent.has_room = False
                parent.muted_ns, parent.begged_ns = 0, None
            case Run(RunKind.HAVE, _, first, count):
                has = parent.has.get(arriving.key)
                if has is not None:
                    news = pieces_of(first, count) & ~has
                    parent.has[arriving.key] = has | news
                    news = 0 if parent.is_silent else news
                    if news & ~arriving.some:
                        arriving.told_ns = now_ns
                    arriving.many |= arriving.some & news
                    arriving.some |= news
                    keeper = self._keeper_of(arriving)
                    if keeper is not None:
                        keeper.frontier = max(keeper.frontier, arriving.begins + first + count - 1)
            case _:
                return False
        return True

    def _take_leaves(self, parent: _Parent, arriving: Arriving, leaves: bytes, now_ns: int) -> None:
        if arriving.has_leaves or self._accepts(arriving.key, leaves):
            if not arriving.has_leaves:
                arriving.has_leaves, arriving.moved_ns, self._looked_ns = True, now_ns, None
            return
        self._out.append(Blamed(parent.endpoint, arriving.key))
        self._drop_source(parent, arriving, now_ns)

    def _meet(self, arriving: Arriving, endpoints: Iterable[str], now_ns: int) -> None:
        for endpoint in endpoints:
            parent = self._parents.get(endpoint)
            is_known = parent is not None and arriving.key in parent.has
            is_known |= endpoint == self._endpoint or endpoint in arriving.keepers or endpoint in self._barred
            if is_known or not self._may_give(endpoint):
                continue
            if self._ask(arriving, endpoint, now_ns, keeper=False):
                self._parents[endpoint].has[arriving.key] = 0

    def _drop_source(self, parent: _Parent, arriving: Arriving, now_ns: int) -> None:
        """A parent is asked for a chunk no more, and hears it: it may be asked again."""
        self._tell(parent.endpoint, Drop(arriving.number))
        self._forget_source(parent, arriving, now_ns)

    def _forget_source(self, parent: _Parent, arriving: Arriving, now_ns: int) -> None:
        """A parent has nothing of a chunk, or what it has is not to be had."""
        self._looked_ns = None
        self._give_back(parent, [read for read, one in parent.reads.items() if one.arriving is arriving])
        parent.granted = deque(one for one in parent.granted if one.number != arriving.number)
        if parent.has.pop(arriving.key, None):
            self._count_again(arriving)
        if parent.endpoint in arriving.keepers:
            was_asked = arriving.keepers[0] == parent.endpoint
            arriving.keepers.remove(parent.endpoint)
            if was_asked:
                self._ask_keeper(arriving, now_ns)

    def _count_again(self, arriving: Arriving) -> None:
        """Which pieces there are at peers that are not silent."""
        arriving.some = arriving.many = 0
        for parent in self._parents.values():
            has = 0 if parent.is_silent else parent.has.get(arriving.key, 0)
            arriving.many |= arriving.some & has
            arriving.some |= has

    @property
    def endpoints(self) -> list[str]:
        """Of the nodes that this one has links to."""
        return list(self._parents)

    def leave(self, endpoint: str, now_ns: int) -> None:
        """The link to a parent is to end, if there is one."""
        if endpoint in self._parents:
            self._out.append(LeaveParent(endpoint))
            self.lost(endpoint, now_ns)

    def lost(self, endpoint: str, now_ns: int) -> None:
        """The link to a parent could not be made, or has ended."""
        parent = self._parents.pop(endpoint, None)
        if parent is None:
            return
        for arriving in list(self.chunks.values()):
            self._forget_source(parent, arriving, now_ns)

    # --- what comes --------------------------------------------------------------------------------------------------

    def proven(self, read: ReadId, now_ns: int) -> None:
        """All pieces of a read are here and right."""
        parent = self._of_read.pop(read, None)
        if parent is None:
            return
        one = parent.reads.pop(read)
        arriving, first, count = one.arriving, one.first, one.count
        since_ns = max(one.since_ns, parent.heard_ns)
        took_ns = now_ns - one.since_ns
        parent.took_ns = took_ns if not parent.took_ns else 0.75 * parent.took_ns + 0.25 * took_ns
        parent.heard_ns = max(now_ns, since_ns)
        parent.said_ns = now_ns
        parent.muted_ns = 0
        if parent.is_silent:
            self._set_silent(parent, is_silent=False)
        arriving.proven |= pieces_of(first, count)
        arriving.moved_ns = now_ns
        self._came_ns.extend([now_ns] * count)
        self._best_ns = min(self._best_ns, self._piece_ns) if self._best_ns and self._piece_ns else self._piece_ns
        size_bytes = count * self._piece_bytes
        self._choice().came(Way.FANOUT, self._readers_of(arriving), size_bytes, now_ns, now_ns)
        if one.is_granted:
            self._tell(parent.endpoint, Run(RunKind.DONE, arriving.number, first, count))
        is_owned = one.is_granted or parent.is_outside
        if is_owned or self._share >= 1:
            self._passing.proven(arriving.key, first, count, now_ns, is_owned=is_owned)
        if arriving.proven.bit_count() == arriving.pieces:
            self._out.append(Whole(arriving.key))
            self._end(arriving, now_ns)
            self._passing.whole(arriving.key)

    def wrong(self, read: ReadId, now_ns: int) -> None:
        """Bytes of a read are not the chunk's: who gave them is asked for nothing more."""
        parent = self._of_read.pop(read, None)
        if parent is not None:
            one = parent.reads.pop(read)
            one.arriving.lacking |= pieces_of(one.first, one.count)
            self._out.append(Blamed(parent.endpoint, one.arriving.key))
            self._barred.add(parent.endpoint)
            self.leave(parent.endpoint, now_ns)

    def failed(self, read: ReadId, now_ns: int) -> None:
        """A read ended early."""
        parent = self._of_read.get(read)
        if parent is not None:
            self._failed(read, parent.reads[read].arriving, parent, now_ns)

    def _failed(self, read: ReadId, arriving: Arriving, parent: _Parent, now_ns: int) -> None:
        one = parent.reads.pop(read)
        del self._of_read[read]
        arriving.lacking |= pieces_of(one.first, one.count)
        self._drop_source(parent, arriving, now_ns)

    def _give_back(self, parent: _Parent, reads: Iterable[ReadId]) -> None:
        """Reads are given up, and their pieces are to be had of others."""
        for read in reads:
            one = parent.reads.pop(read)
            del self._of_read[read]
            one.arriving.lacking |= pieces_of(one.first, one.count)
            self._out.append(AbortRun(read))

    # --- who is asked for what ---------------------------------------------------------------------------------------

    def run(self, now_ns: int) -> None:
        """Ask parents as far as there is something to ask for; draw conclusions from silence."""
        looks = self._looked_ns is None or now_ns - self._looked_ns >= LOOK_NS
        if looks:
            self._looked_ns = now_ns
            self._find_silent(now_ns)
            self._leave_to_reads(now_ns)
        for parent in self._parents.values():
            self._read_granted(parent, now_ns)
        # Whoever has the least to do is asked first: so uplinks carry alike.
        outside = sum(len(one.reads) for one in self._parents.values() if one.is_outside)
        left = {True: READS_OUTSIDE_MAX - outside, False: self._rails * READS_MAX + outside - len(self._of_read)}
        most = self._rails * READS_PER_PARENT
        for parent in sorted(self._parents.values(), key=lambda one: (len(one.reads), one.took_ns)):
            if parent.muted_ns <= now_ns:
                while left[parent.is_outside] > 0 and len(parent.reads) < most and self._read_next(parent, now_ns):
                    left[parent.is_outside] -= 1
        self._make_room()
        self._beg(now_ns, looks=looks)
        if looks or self._looked_ns is None:
            self._end_hopeless(now_ns)
            self._set_wake(now_ns)
        else:
            self.wake_ns = self._looked_ns + LOOK_NS

    def choose_again(self) -> None:
        """A chunk is here that was left to reads."""
        self._looked_ns = None

    def _readers_of(self, arriving: Arriving) -> int:
        """How many want a chunk, as far as its keeper said."""
        return 1 + sum(arriving.key in parent.has for parent in self._parents.values())

    def _leave_to_reads(self, now_ns: int) -> None:
        """Chunks of which nothing was asked for are read by each who wants them, a few at a time, where that ends
        sooner. Not where racks are named: each read would cross the links between them."""
        if self._rack_of(self._endpoint):
            return
        left = LEFT_TO_READS_MAX - self._reads()
        for arriving in list(self.chunks.values()):
            is_begun = arriving.proven or arriving.lacking.bit_count() < arriving.pieces
            if is_begun or not arriving.has_leaves:
                continue
            readers, size_bytes = self._readers_of(arriving), arriving.pieces * self._piece_bytes
            if left <= 0 or self._choice().choose(readers, size_bytes, None, now_ns) is not Way.READ:
                return
            left -= 1
            self._out.append(GaveUp(arriving.key, readers))
            self.unwant(arriving.key, now_ns)

    def _read_granted(self, parent: _Parent, now_ns: int) -> None:
        waiting: deque[Run] = deque()
        for run in parent.granted:
            arriving = self._by_number.get(run.number)
            if arriving is None:
                continue
            if not arriving.has_leaves or len(parent.reads) >= READS_GRANTED_MAX:
                waiting.append(run)
                continue
            part = pieces_of(run.first, run.count)
            if arriving.lacking & part == part:
                arriving.owned |= part
                self._read(parent, arriving, run.first, run.count, now_ns, is_granted=True)
            else:  # it came another way meanwhile, or is about to
                self._tell(parent.endpoint, Run(RunKind.DONE, run.number, run.first, run.count))
        parent.granted = waiting

    def _read_next(self, parent: _Parent, now_ns: int) -> bool:
        """Ask a peer for the rarest pieces that it has, of the first chunk of which it has any."""
        for key, has in parent.has.items():
            arriving = self.chunks[key]
            if not arriving.has_leaves:
                continue
            wanted = has & arriving.lacking
            if wanted and parent.is_outside:
                wanted &= ~self._near(arriving)
            if wanted:
                first = self._one_of(arriving, wanted & ~arriving.many or wanted)
                count = run_length(wanted, first, run_pieces(parent.took_ns / READS_PER_PARENT))
                self._read(parent, arriving, first, count, now_ns, is_granted=False)
                return True
        return False

    def _near(self, arriving: Arriving) -> int:
        """Pieces that others of this rack have."""
        near = 0
        for parent in self._parents.values():
            if not (parent.is_outside or parent.is_silent):
                near |= parent.has.get(arriving.key, 0)
        return near

    def _read(
        self, parent: _Parent, arriving: Arriving, first: int, count: int, now_ns: int, *, is_granted: bool
    ) -> None:
        self._last_read += 1
        read = ReadId(self._last_read)
        if not parent.reads:
            parent.heard_ns = now_ns
        parent.reads[read] = _Read(arriving, first, count, now_ns, is_granted)
        self._of_read[read] = parent
        arriving.lacking &= ~pieces_of(first, count)
        self._out.append(ReadRun(read, arriving.key, parent.endpoint, first, count))

    def _make_room(self) -> None:
        if self._is_unspread() or self._has_its_share():
            return
        for parent in self._keepers():
            if self._best_ns and self._piece_bytes * 1e9 / self._best_ns < LEAF_SHARE * parent.rate:
                continue
            asked = sum(one.count for one in parent.reads.values() if one.is_granted)
            asked += sum(one.count for one in parent.granted)
            largest = max((one.count for one in parent.reads.values()), default=1)
            room = self._rails * ROOM_RUNS * largest - parent.room - asked
            if room > 0:
                parent.room += room
                self._tell(parent.endpoint, Room(room))

    def _is_unspread(self) -> bool:
        """Whether this node's uplink has not brought what it was granted to anybody yet."""
        peers = sum(bool(parent.has) for parent in self._parents.values())
        if not peers:
            return False
        unspread = sum(
            (one.owned & one.proven & ~one.some).bit_count() for one in self.chunks.values() if one.owned & ~one.some
        )
        return unspread > UNSPREAD_RUNS * self._run / (1 + peers)

    def _has_its_share(self) -> bool:
        """Whether passing on what it was granted takes what the operator allows."""
        if self._share >= 1:
            return False
        owned = proven = 0
        for one in self.chunks.values():
            owned += one.owned.bit_count()
            proven += one.proven.bit_count()
        peers = sum(bool(one.has) for one in self._parents.values())
        return not self._share or owned * peers > self._share * proven

    def _keeper_of(self, arriving: Arriving) -> _Parent | None:
        return self._parents.get(arriving.keepers[0]) if arriving.keepers else None

    def _keepers(self) -> list[_Parent]:
        asked = {one.keepers[0] for one in self.chunks.values() if one.keepers}
        return [self._parents[one] for one in sorted(asked) if one in self._parents]

    @property
    def _piece_ns(self) -> float:
        """How long a piece takes, from all parents together; 0: too few have come."""
        if len(self._came_ns) <= RATE_PIECES:
            return 0.0
        return (self._came_ns[-1] - self._came_ns[0]) / RATE_PIECES

    def _beg(self, now_ns: int, *, looks: bool) -> None:
        """Of a keeper whose uplink has room, where the others give too little."""
        piece_ns = self._piece_ns
        for parent in self._keepers():
            if looks:
                self._tell_orphans(parent, now_ns)
            begged_ns = parent.begged_ns
            is_asked = begged_ns is not None and now_ns - begged_ns < SILENCE_NS_UNKNOWN
            if not parent.has_room or not piece_ns or parent.reads or parent.granted or is_asked:
                continue
            if self._piece_bytes * 1e9 / piece_ns >= STARVED_SHARE * parent.rate:
                continue
            for arriving in self._kept_by(parent):
                lacking = arriving.lacking
                if lacking:
                    rarest = lacking & ~arriving.some or lacking & ~arriving.many or lacking
                    first = self._one_of(arriving, rarest)
                    parent.begged_ns = now_ns
                    self._tell(parent.endpoint, Run(RunKind.BEG, arriving.number, first, 1))
                    break

    def _one_of(self, arriving: Arriving, pieces: int) -> int:
        """One of several that are as good: not the first, or others that look for some would have the same."""
        turn = hash_of(self._endpoint, arriving.number) % arriving.pieces
        return lowest(pieces >> turn << turn or pieces)

    def _kept_by(self, parent: _Parent) -> Iterator[Arriving]:
        for arriving in self.chunks.values():
            if arriving.has_leaves and arriving.keepers and arriving.keepers[0] == parent.endpoint:
                yield arriving

    def _tell_orphans(self, parent: _Parent, now_ns: int) -> None:
        """Pieces that nobody has though later ones are about: their owner died, or lies."""
        self.orphans_ns = {one: at for one, at in self.orphans_ns.items() if now_ns - at < ORPHAN_AGAIN_NS}
        end = parent.frontier - OVERDUE_RUNS * self._run
        for arriving in self._kept_by(parent):
            orphans = arriving.lacking & ~arriving.some
            news_ns = max(arriving.moved_ns, arriving.told_ns)
            if parent.is_outside and orphans and now_ns - news_ns < max(ORPHAN_NS, RATE_PIECES * self._piece_ns):
                return  # its rack's entry is at work, and has later chunks to bring, too
            if now_ns - self._last_ns(arriving) < ORPHAN_NS:
                orphans &= pieces_of(0, max(0, end - arriving.begins))
            for first, count in runs_of(orphans):
                for piece in range(first, first + count):
                    if len(self.orphans_ns) >= ORPHANS_ASKED_MAX:
                        return
                    if (arriving.number, piece) not in self.orphans_ns:
                        self.orphans_ns[arriving.number, piece] = now_ns
                        self._tell(parent.endpoint, Run(RunKind.ORPHAN, arriving.number, piece, 1))
            if parent.is_outside and orphans:
                return

    # --- time --------------------------------------------------------------------------------------------------------

    def _patience_ns(self, parent: _Parent) -> int:
        if not parent.took_ns:
            return SILENCE_NS_UNKNOWN
        return max(SILENCE_NS_MIN, int(SILENCE_TIMES * parent.took_ns))

    def _find_silent(self, now_ns: int) -> None:
        """A parent that gives nothing for long: its pieces are asked of others, and it is left alone for a while."""
        for parent in self._parents.values():
            patience_ns = self._patience_ns(parent)
            if parent.reads and now_ns - parent.heard_ns >= patience_ns:
                self._give_back(parent, list(parent.reads))
                parent.muted_ns = now_ns + 4 * patience_ns
                parent.took_ns *= 2
                self._set_silent(parent, is_silent=True)

    def _set_silent(self, parent: _Parent, *, is_silent: bool) -> None:
        parent.is_silent = is_silent
        for key in parent.has:
            self._count_again(self.chunks[key])

    def _last_ns(self, arriving: Arriving) -> int:
        """When something last came, of this chunk or of another that its keeper may have given first."""
        return max(arriving.moved_ns, self._came_ns[-1] if self._came_ns and arriving.keepers else 0)

    def _end_hopeless(self, now_ns: int) -> None:
        for arriving in list(self.chunks.values()):
            with_nobody = arriving.lacking & ~arriving.some
            keeper = self._keeper_of(arriving)
            if keeper is not None and with_nobody and now_ns - keeper.said_ns >= KEEPER_SILENT_NS:
                self._drop_source(keeper, arriving, now_ns)
            quiet_ns = now_ns - self._last_ns(arriving)
            has_way = bool(arriving.keepers) or not with_nobody or self._is_asked(arriving)
            has_way |= bool(arriving.some) and quiet_ns < ORPHAN_NS  # others may be about to tell of more
            if quiet_ns >= HOPELESS_NS or not has_way:
                self._out.append(GaveUp(arriving.key))
                self.unwant(arriving.key, now_ns)

    def _is_asked(self, arriving: Arriving) -> bool:
        return any(read.arriving is arriving for parent in self._parents.values() for read in parent.reads.values())

    def _set_wake(self, now_ns: int) -> None:
        due = [one.heard_ns + self._patience_ns(one) for one in self._parents.values() if one.reads]
        due += [one.muted_ns for one in self._parents.values() if one.muted_ns > now_ns]
        due += [at for one in self._keepers() if (at := one.said_ns + KEEPER_SILENT_NS) > now_ns]
        for arriving in self.chunks.values():
            last_ns = self._last_ns(arriving)
            due.append(last_ns + HOPELESS_NS)
            if arriving.has_leaves:
                due.append(last_ns + ORPHAN_NS if now_ns < last_ns + ORPHAN_NS else now_ns + ORPHAN_AGAIN_NS)
        if self._idle_ns is not None:
            if now_ns - self._idle_ns >= LINK_IDLE_NS:
                self._idle_ns = None
                self._out.extend(LeaveParent(endpoint) for endpoint in self._parents)
                self._parents.clear()
            else:
                due.append(self._idle_ns + LINK_IDLE_NS)
        self.wake_ns = min(due, default=None)


def hash_of(endpoint: str, number: int) -> int:
    """The same for the same reader and chunk, on every machine."""
    return sum((place + 1) * byte for place, byte in enumerate(endpoint.encode())) + 7 * number
