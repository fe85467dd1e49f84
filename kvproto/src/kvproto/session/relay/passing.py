"""What a node passes on: proven pieces of chunks that arrive, and, where it has a chunk whole, grants.

Interest is kept by the same table as where holders cast (`kvproto.session.interest`), with two differences that come
from the way. A link is a TCP connection, because what is granted, and who has what, must not get lost, because tokens
are shown once for a connection, and because it goes over IPv6. So its end is a LEAVE, and nothing expires. And whoever
reads is a member by its link, so no number has to be given to it.

A keeper grants each piece once, to whoever has room, and that one passes it on: so its uplink carries a chunk about
once, and readers take parts by how quick they are. What was granted to one who died or stands still is granted again.
Who begs, because the others give it too little, is served when nobody waits for a first grant.

Where nodes stand in racks, a keeper grants to readers of its own rack alone, and names to the others whom they read
from: see `racks`.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kvchunk.ids import ChunkKey
from kvproto.ids import Member, members_of
from kvproto.limits import MS
from kvproto.session.interest import InterestTable
from kvproto.session.relay.pieces import lowest, pieces_of, run_length, runs_of
from kvproto.session.relay.racks import Meeting, RackTree
from kvproto.session.relay.relay_commands import RelayCommand, TellChild
from kvproto.wire.relay_messages import Drop, Gone, Hello, Leaves, Message, Peers, Rate, Room, Run, RunKind, Want

WINDOW_NS: Final = 10 * MS
"""Of what a keeper's uplink carries, so much is granted and not yet done: some reactions of a host."""
WINDOW_PIECES_MIN: Final = 3
RUN_NS: Final = 4 * MS
"""Pieces that together last no longer are granted, and read, at once."""
RUN_PIECES_MAX: Final = 64
STALLED_NS: Final = 200 * MS
"""A grant that is not done by then, or in many times what one takes, is granted again."""
STALLED_TIMES: Final = 16
TOLD_NS: Final = 50 * MS
"""Children hear this often what their keeper's uplink carries while it has room,"""
TOLD_BUSY_NS: Final = 200 * MS
"""and while it has none."""
COALESCED_PIECES: Final = 8
"""What came from peers is announced this many at a time: they give it to others as well."""
COALESCED_NS_MAX: Final = 50 * MS
KEPT_NS: Final = 5_000 * MS
KEPT_MAX: Final = 1 << 14
NEVER_NS: Final = 1 << 62
"""Interest ends with its link, or when it is dropped."""
CHILDREN_MAX: Final = 256
WANTS_MAX: Final = 1 << 14
"""Chunks that one child may want at a time."""
BEGS_MAX: Final = 64
ADOPTED_NS: Final = 100 * MS
"""A piece is not given to yet another child before."""
ORPHANS_MAX: Final = 3
"""Who was granted more pieces than so many that the others did not get is granted no more,"""
ORPHANS_FORGIVEN: Final = 1 / 8
"""until it has other chunks to get; for each piece that it has done, so much is forgiven."""
ROOM_MAX: Final = 1 << 12
REPLACED_ORPHANS: Final = 2.0
"""So many pieces that others did not get weighs a chunk that its rack did not get."""


def run_pieces(piece_ns: float) -> int:
    """How many pieces make a run, where one takes so long."""
    return max(1, min(RUN_PIECES_MAX, int(RUN_NS / piece_ns))) if piece_ns else 1


@dataclass(slots=True, eq=False)
class _Granted:
    wanted: "_Wanted"
    first: int
    count: int
    at_ns: int


@dataclass(slots=True, eq=False)
class _Child:
    link: int
    member: Member
    """By which the interest table knows it."""
    endpoint: str = ""
    rack: str = ""
    room: int = 0
    is_fit: bool = False
    """It has asked to be granted something, and does what it is granted."""
    wants: OrderedDict[int, "_Wanted"] = field(default_factory=OrderedDict)
    kept: OrderedDict[ChunkKey, "_Wanted"] = field(default_factory=OrderedDict)
    """Of those, what it wants of this node as their keeper."""
    granted: deque[_Granted] = field(default_factory=deque)
    begs: deque[Run] = field(default_factory=deque)
    orphans: float = 0.0
    """Of its pieces that others did not get from it, less what is forgiven."""
    is_stalled: bool = False
    """It was granted what it did not do, and has said nothing since."""


@dataclass(slots=True, eq=False)
class _Wanted:
    child: _Child
    number: int
    key: ChunkKey
    pieces: int
    keeper: bool


@dataclass(slots=True, eq=False)
class _Kept:
    """A chunk that this node is keeper of."""

    free: int
    """Pieces that nobody was given."""
    tree: RackTree
    """Who reads it from whom."""
    owners: dict[int, int] = field(default_factory=dict)
    """By piece: the link of the child that it was granted to last."""
    adopted: dict[int, int] = field(default_factory=dict)
    """By piece: when it was last given to another because the others had not got it."""


@dataclass(slots=True, eq=False)
class _News:
    """Pieces of an arriving chunk that are proven and not announced."""

    pieces: int = 0
    since_ns: int = 0


class Passing:
    """Of one node."""

    def __init__(
        self,
        whole_pieces: Callable[[ChunkKey], int],
        leaves: Callable[[ChunkKey], bytes],
        arriving: Callable[[ChunkKey], tuple[int, int] | None],
        piece_bytes: int,
        out: list[RelayCommand],
        endpoint: str,
        rack_of: Callable[[str], str],
    ) -> None:
        """`whole_pieces(key)`: of a chunk that is here whole and may be had, 0: it is not; `leaves`: of such a one;
        `arriving(key)`: how many pieces one has that is on its way, and which of them are proven; `endpoint`,
        `rack_of`: see `Gathering`."""
        self._whole_pieces = whole_pieces
        self._leaves = leaves
        self._arriving = arriving
        self._piece_bytes = piece_bytes
        self._out = out
        self._endpoint = endpoint
        self._rack_of = rack_of
        self._trees = 0
        """That were made."""
        self._children: OrderedDict[int, _Child] = OrderedDict()
        self._by_member: dict[Member, _Child] = {}
        self._followers: dict[ChunkKey, list[_Wanted]] = {}
        """Who reads what this node has as a peer of theirs."""
        self._interest = InterestTable(NEVER_NS, WANTS_MAX)
        """Who reads what this node is keeper of."""
        self._kept: dict[ChunkKey, _Kept] = {}
        self._idle: OrderedDict[ChunkKey, int] = OrderedDict()
        """Since when nobody reads some of these, in order."""
        self._news: dict[ChunkKey, _News] = {}
        self._turns: deque[_Child] = deque()
        """Children in the order in which they are granted next."""
        self._granted_pieces = 0
        self._piece_ns = 0.0
        """What one takes on this node's uplink, as grants are done; 0: not known."""
        self._done_ns = 0
        self._done_pieces = 0
        """Since nothing was granted."""
        self._told_ns = 0
        """When children heard what this node's uplink carries."""
        self.wake_ns: int | None = None

    # --- links -------------------------------------------------------------------------------------------------------

    def heard(self, link: int, message: Message, now_ns: int) -> bool:
        """A child says something. False: no child says that, and its link is to end."""
        child = self._children.get(link)
        if child is None:
            if len(self._children) >= CHILDREN_MAX:
                return False
            member = next(Member(one) for one in range(CHILDREN_MAX) if one not in self._by_member)
            child = self._children[link] = self._by_member[member] = _Child(link, member)
            self._turns.append(child)
        if child.is_stalled:
            child.is_stalled = False
            self._set_fit(child, now_ns, is_fit=True)
        match message:
            case Hello(endpoint) if not child.endpoint:
                child.endpoint, child.rack = endpoint, self._rack_of(endpoint)
            case Want():
                if not child.endpoint or message.number in child.wants or len(child.wants) >= WANTS_MAX:
                    return False
                if message.keeper and message.key in child.kept:
                    return False
                self._want(child, message, now_ns)
            case Drop(number):
                self._drop(child, number, now_ns)
            case Room(count):
                child.room = min(child.room + count, ROOM_MAX)
                if not child.is_fit:
                    self._set_fit(child, now_ns, is_fit=True)
            case Run(RunKind.DONE, number, first, count):
                self._done(child, number, first, count, now_ns)
            case Run(RunKind.ORPHAN, number, first, count):
                self._adopt(child, number, first, count, now_ns)
            case Run(RunKind.BEG):
                if len(child.begs) < BEGS_MAX:
                    child.begs.append(message)
            case _:
                return False
        return True

    def lost(self, link: int, now_ns: int) -> None:
        """A child's link has ended: what it was granted and has not is granted to others."""
        child = self._children.pop(link, None)
        if child is None:
            return
        self._turns.remove(child)
        del self._by_member[child.member]
        for granted in child.granted:
            self._take_back(granted)
        child.granted.clear()
        for wanted in list(child.wants.values()):
            self._forget(wanted, now_ns)
            kept = self._kept.get(wanted.key)
            if kept is not None and wanted.keeper:
                self._introduce(wanted.key, kept.tree.leave(child.endpoint, child.rack, now_ns), now_ns)

    def _want(self, child: _Child, want: Want, now_ns: int) -> None:
        whole = self._whole_pieces(want.key)
        proven = None if whole or want.keeper else self._arriving(want.key)
        known = whole or (0 if proven is None else proven[0])
        if known != want.pieces:
            self._out.append(TellChild(child.link, Gone(want.number)))
            return
        wanted = child.wants[want.number] = _Wanted(child, want.number, want.key, want.pieces, want.keeper)
        if want.keeper:
            self._keep(wanted, now_ns)
            return
        self._followers.setdefault(want.key, []).append(wanted)
        if proven is None:
            self._out.append(TellChild(child.link, Run(RunKind.HAVE, want.number, 0, want.pieces)))
        else:
            for first, count in runs_of(proven[1]):
                self._out.append(TellChild(child.link, Run(RunKind.HAVE, want.number, first, count)))

    def _keep(self, wanted: _Wanted, now_ns: int) -> None:
        """One more reader of a chunk that is here: it gets the leaves and its peers, and these hear of it."""
        child, key = wanted.child, wanted.key
        child.kept[key] = wanted
        entry = self._interest.join(key, child.member, now_ns)
        assert entry is not None, "it pays for no more than it may want"
        kept = self._kept.get(key)
        if kept is None:
            self._trees += 1
            tree = RackTree(self._rack_of(self._endpoint), self._trees)
            kept = self._kept[key] = _Kept(pieces_of(0, wanted.pieces), tree)
        for piece, link in kept.owners.items():
            if link not in self._children:  # whoever it gave it to may be gone, too
                kept.free |= pieces_of(piece, 1)
        self._idle.pop(key, None)
        self._out.append(TellChild(child.link, Leaves(wanted.number, self._leaves(key))))
        met = kept.tree.join(child.endpoint, child.rack, now_ns)
        if not child.is_fit:
            met += kept.tree.set_fit(child.endpoint, child.rack, now_ns, is_fit=False)
        self._introduce(key, met, now_ns)

    def _introduce(self, key: ChunkKey, met: list[Meeting], now_ns: int) -> None:
        """Tell readers of a chunk whom they may read it from."""
        entry = self._interest.find(key, now_ns) if met else None
        if entry is None:
            return
        readers = {one.endpoint: one for one in map(self._by_member.__getitem__, members_of(entry.members))}
        for reader, sources in met:
            if (child := readers.get(reader)) is not None:
                self._out.append(TellChild(child.link, Peers(child.kept[key].number, sources)))

    def _set_fit(self, child: _Child, now_ns: int, *, is_fit: bool) -> None:
        """Whether it may read from other racks for its own."""
        is_fit = is_fit and child.orphans <= ORPHANS_MAX
        if child.is_fit != is_fit:
            child.is_fit = is_fit
            for key in child.kept:
                tree = self._kept[key].tree
                self._introduce(key, tree.set_fit(child.endpoint, child.rack, now_ns, is_fit=is_fit), now_ns)

    def _drop(self, child: _Child, number: int, now_ns: int) -> None:
        wanted = child.wants.get(number)
        if wanted is None:
            return
        for granted in [one for one in child.granted if one.wanted is wanted]:
            child.granted.remove(granted)
            self._take_back(granted)
        del child.wants[number]
        if not child.wants:
            child.orphans = 0.0
        self._forget(wanted, now_ns)

    def _forget(self, wanted: _Wanted, now_ns: int) -> None:
        if wanted.keeper:
            del wanted.child.kept[wanted.key]
            if self._interest.leave(wanted.key, wanted.child.member, now_ns) is None:
                self._idle[wanted.key] = now_ns
            return
        others = self._followers[wanted.key]
        others.remove(wanted)
        if not others:
            del self._followers[wanted.key]
            self._news.pop(wanted.key, None)

    # --- grants ------------------------------------------------------------------------------------------------------

    @property
    def _window(self) -> int:
        """How many pieces may be granted and not done: what the uplink carries for a while, or a run for each child.
        It grows with what is done, so that the first children do not share the uplink with all others."""
        most = int(WINDOW_NS / self._piece_ns) if self._piece_ns else 0
        most = max(WINDOW_PIECES_MIN, most, (1 + len(self._children)) * run_pieces(self._piece_ns))
        return min(most, WINDOW_PIECES_MIN + self._done_pieces)

    @property
    def rate(self) -> int:
        """What this node's uplink carries, bytes a second; 0: not known."""
        return int(self._piece_bytes * 1e9 / self._piece_ns) if self._piece_ns else 0

    def _done(self, child: _Child, number: int, first: int, count: int, now_ns: int) -> None:
        for granted in child.granted:
            if (granted.wanted.number, granted.first, granted.count) == (number, first, count):
                break
        else:
            return  # it was granted again meanwhile
        since_ns = max(granted.at_ns, self._done_ns)
        took_ns = (now_ns - since_ns) / count
        self._piece_ns = took_ns if not self._piece_ns else 0.8 * self._piece_ns + 0.2 * took_ns
        self._done_ns = now_ns
        self._done_pieces += count
        child.granted.remove(granted)
        child.orphans = max(0.0, child.orphans - ORPHANS_FORGIVEN * count)
        self._granted_pieces -= count

    def _take_back(self, granted: _Granted) -> None:
        self._granted_pieces -= granted.count
        kept = self._kept.get(granted.wanted.key)
        if kept is not None:
            kept.free |= pieces_of(granted.first, granted.count)

    def _grant(self, now_ns: int) -> None:
        """Whoever has room gets what nobody was given; then who begs."""
        if not self._kept:
            return  # it is keeper of nothing
        run, window = run_pieces(self._piece_ns), self._window
        for begs in (False, True):
            idle = 0
            while self._granted_pieces < window and idle < len(self._turns):
                child = self._turns[0]
                self._turns.rotate(-1)
                is_given = self._serve_beg(child, now_ns) if begs else self._serve_room(child, run, now_ns)
                idle = 0 if is_given else idle + 1
        if not self._granted_pieces:
            self._done_pieces = 0
        self._tell_rate(now_ns)

    def _tell_rate(self, now_ns: int) -> None:
        has_room = self._granted_pieces < self._window
        again_ns = TOLD_NS if has_room else TOLD_BUSY_NS
        if self._piece_ns and now_ns - self._told_ns >= again_ns:
            self._told_ns = now_ns
            for child in self._children.values():
                if child.kept:
                    self._out.append(TellChild(child.link, Rate(self.rate, has_room)))

    def _serve_room(self, child: _Child, run: int, now_ns: int) -> bool:
        if not child.room or child.is_stalled or child.orphans > ORPHANS_MAX:
            return False
        for wanted in child.kept.values():
            kept = self._kept[wanted.key]
            if not kept.free or not kept.tree.is_granted(child.endpoint, child.rack):
                continue
            self._introduce(wanted.key, kept.tree.begin(now_ns), now_ns)
            first = lowest(kept.free)
            count = run_length(kept.free, first, min(run, child.room))
            kept.free &= ~pieces_of(first, count)
            child.room -= count
            self._give(wanted, first, count, now_ns)
            return True
        return False

    def _adopt(self, child: _Child, number: int, first: int, count: int, now_ns: int) -> None:
        """Pieces that were granted have not come to others: this child gets them, unless another just did."""
        wanted = child.wants.get(number)
        kept = None if wanted is None else self._kept.get(wanted.key)
        if wanted is None or kept is None or not wanted.keeper or first + count > wanted.pieces:
            return
        if not kept.tree.is_granted(child.endpoint, child.rack):
            if not kept.free & pieces_of(first, 1):
                self._missed(child, wanted.key, first, now_ns)
            return
        if any(now_ns - kept.adopted.get(piece, -ADOPTED_NS) < ADOPTED_NS for piece in range(first, first + count)):
            return
        fresh = [piece for piece in range(first, first + count) if piece not in kept.adopted]
        owners = {kept.owners.get(piece) for piece in fresh} - {child.link}
        for owner in owners:
            lost = self._children.get(owner) if owner is not None else None
            if lost is not None and lost.wants:
                lost.orphans += 1
                self._set_fit(lost, now_ns, is_fit=lost.is_fit)
        kept.adopted |= dict.fromkeys(range(first, first + count), now_ns)
        kept.free &= ~pieces_of(first, count)
        self._give(wanted, first, count, now_ns)

    def _missed(self, child: _Child, key: ChunkKey, piece: int, now_ns: int) -> None:
        """A reader of another rack lacks what it should have by now."""
        replaced, met = self._kept[key].tree.missed(child.endpoint, child.rack, piece, now_ns)
        self._introduce(key, met, now_ns)
        for other in self._children.values():
            if other.endpoint == replaced and other.wants:
                other.orphans += REPLACED_ORPHANS
                self._set_fit(other, now_ns, is_fit=other.is_fit)

    def _serve_beg(self, child: _Child, now_ns: int) -> bool:
        while child.begs:
            beg = child.begs.popleft()
            wanted = child.wants.get(beg.number)
            if wanted is None or not wanted.keeper or beg.first + beg.count > wanted.pieces:
                continue
            if self._kept[wanted.key].tree.is_granted(child.endpoint, child.rack):
                self._give(wanted, beg.first, beg.count, now_ns)
                return True
        return False

    def _give(self, wanted: _Wanted, first: int, count: int, now_ns: int) -> None:
        wanted.child.granted.append(_Granted(wanted, first, count, now_ns))
        self._granted_pieces += count
        kept = self._kept[wanted.key]
        kept.owners |= dict.fromkeys(range(first, first + count), wanted.child.link)
        self._out.append(TellChild(wanted.child.link, Run(RunKind.GRANT, wanted.number, first, count)))

    # --- what arrives here -------------------------------------------------------------------------------------------

    def proven(self, key: ChunkKey, first: int, count: int, now_ns: int, *, is_owned: bool) -> None:
        """Pieces are proven here; `is_owned`: nobody else may have them, so all hear of it at once."""
        if key not in self._followers:
            return
        news = self._news.setdefault(key, _News())
        if not news.pieces:
            news.since_ns = now_ns
        news.pieces |= pieces_of(first, count)
        if is_owned or news.pieces.bit_count() >= COALESCED_PIECES:
            self._announce(key, news)

    def whole(self, key: ChunkKey) -> None:
        """All of a chunk is here: what was not announced is."""
        news = self._news.pop(key, None)
        if news is not None and news.pieces:
            self._announce(key, news)

    def withdrawn(self, key: ChunkKey, now_ns: int) -> None:
        """A chunk that was arriving is given up: nothing of it is here any more."""
        self._news.pop(key, None)
        for wanted in self._followers.get(key, []).copy():
            self._out.append(TellChild(wanted.child.link, Gone(wanted.number)))
            del wanted.child.wants[wanted.number]
            self._forget(wanted, now_ns)

    def _forget_idle(self, now_ns: int) -> None:
        """Who has a chunk is known for a while after its last reader: those who come then have it from them."""
        while self._idle:
            key, since_ns = self._idle.popitem(last=False)
            if now_ns - since_ns < KEPT_NS and len(self._kept) <= KEPT_MAX:
                self._idle[key] = since_ns
                self._idle.move_to_end(key, last=False)
                return
            del self._kept[key]

    def _announce(self, key: ChunkKey, news: _News) -> None:
        runs = list(runs_of(news.pieces))
        for wanted in self._followers.get(key, ()):
            for first, count in runs:
                self._out.append(TellChild(wanted.child.link, Run(RunKind.HAVE, wanted.number, first, count)))
        news.pieces = 0

    # --- time --------------------------------------------------------------------------------------------------------

    def run(self, now_ns: int) -> None:
        """What is due, and grants as far as there is room."""
        self._forget_idle(now_ns)
        due: list[int] = []
        for key, news in self._news.items():
            if news.pieces and now_ns - news.since_ns >= COALESCED_NS_MAX:
                self._announce(key, news)
            elif news.pieces:
                due.append(news.since_ns + COALESCED_NS_MAX)
        patience_ns = max(STALLED_NS, int(STALLED_TIMES * self._piece_ns * self._window))
        for child in self._children.values():
            while child.granted and now_ns - child.granted[0].at_ns >= patience_ns:
                self._take_back(child.granted.popleft())
                child.is_stalled = True
                self._set_fit(child, now_ns, is_fit=False)
        self._grant(now_ns)
        oldest = [child.granted[0].at_ns for child in self._children.values() if child.granted]
        if oldest:
            due.append(min(oldest) + patience_ns)
        self.wake_ns = min(due, default=None)
