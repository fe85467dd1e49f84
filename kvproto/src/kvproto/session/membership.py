"""Joining and leaving: keeps the switch's interest in step with what this reader wants."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from kvchunk.ids import ChunkKey
from kvproto.commands import ReaderCommand, SendControl
from kvproto.ids import Address, Member
from kvproto.session.chunk import Chunk
from kvproto.session.pace import Pace
from kvproto.session.parameters import ReaderParameters
from kvproto.session.phases import Cause, Phase
from kvproto.session.timing import (
    JOIN_RETRY,
    JOIN_TRIES_MAX,
    LEAVE_AGAIN,
    NEWCOMER_ANSWERS,
    NEWCOMER_MAX_NS,
    NEWCOMER_SPAN,
    NO_SWITCH_MEMORY_NS,
    RENEWALS_PER_TTL,
)
from kvproto.wire.control import TAG_LEADS, TAG_YIELDS, Control, Flag, Op

LEFT_REMEMBERED = 256
"""Chunks left most recently, whose stray segments are answered by another LEAVE."""


@dataclass(slots=True, eq=False)
class _Left:
    """A chunk that was left."""

    segments: int
    address: Address
    sent_ns: int
    again: int = 0
    """How often a LEAVE followed the first because segments came."""


LEAVES_AGAIN_MAX = 2
"""So many of them where holders keep interest: segments that others asked for come to whoever shares their groups."""
KEEPER_TRIES_MAX = 3
"""JOINs that a keeper may leave without an answer before the next holder is asked."""


class Membership:
    """JOIN, renewal, announcement, LEAVE and what NOTICE says. It decides nothing about who pulls."""

    __slots__ = (
        "_left",
        "_no_switch_until_ns",
        "_pace",
        "newcomer_since_ns",
        "newcomer_until_ns",
        "parameters",
        "tend_ns",
    )

    def __init__(self, parameters: ReaderParameters, pace: Pace) -> None:
        self.parameters = parameters
        self._pace = pace
        self._left: OrderedDict[ChunkKey, _Left] = OrderedDict()
        self._no_switch_until_ns = -1
        self.tend_ns: int | None = None
        """When `tend` may have something to do, at the earliest; None: never."""
        self.newcomer_until_ns = 0
        """Until then this reader is a newcomer: it joined too recently to know what is under way."""
        self.newcomer_since_ns = -NEWCOMER_SPAN.ceiling_ns
        """When the first JOIN of a newcomer was answered."""

    def newcomer_wait_ns(self, now_ns: int) -> int:
        """How long this reader, if it is a newcomer, waits for the others to react to it before it leads."""
        if now_ns >= self.newcomer_until_ns:
            return 0
        answer_ns = self._pace.answer_ns
        return NEWCOMER_MAX_NS if answer_ns is None else min(NEWCOMER_MAX_NS, NEWCOMER_ANSWERS * answer_ns)

    def open(self, chunk: Chunk, now_ns: int) -> list[ReaderCommand]:
        """Begin with a waiting chunk: join it where that makes sense, else read it directly."""
        holder = chunk.provenance.choose(self.parameters)
        if holder is None:
            chunk.move(Cause.EXHAUSTED)
            return []
        no_switch = holder.readable and now_ns < self._no_switch_until_ns
        if self.parameters.member is None or not holder.castable or no_switch:
            chunk.move(Cause.REFUSED)
            return []
        chunk.interest.join_tries = 0
        chunk.interest.unanswered = False
        return self.join(chunk, now_ns)

    def join(self, chunk: Chunk, now_ns: int, tag: int = 0) -> list[ReaderCommand]:
        """Send a JOIN: first, renewal or announcement (`tag`)."""
        holder = chunk.provenance.choose(self.parameters)
        if holder is None:
            return []
        if chunk.phase in (Phase.WAITING, Phase.JOINING, Phase.JOINED):
            chunk.move(Cause.JOIN)
        chunk.interest.join_sent_ns = now_ns
        chunk.interest.join_tries += 1
        out: list[ReaderCommand] = []
        if self.parameters.by_keepers and chunk.interest.at not in (None, holder.address):
            out += self.leave(chunk, now_ns)  # its last keeper would go on casting to us
        chunk.interest.at = holder.address
        due = self.due_ns(chunk)
        if due is not None and (self.tend_ns is None or due < self.tend_ns):
            self.tend_ns = due
        self._left.pop(chunk.key, None)
        first, tag = chunk.progress.first_missing(), tag | self._pace.code()
        join = Control(Op.JOIN, chunk.key, chunk.segments, segment=first, tag=tag, member=self.parameters.member or 0)
        return [*out, SendControl(join, holder.address)]

    def announce(self, chunk: Chunk, now_ns: int) -> list[ReaderCommand]:
        """Tell every member that this reader pulls the chunk from now on."""
        chunk.interest.led_by(self.parameters.member, now_ns)
        return self.join(chunk, now_ns, TAG_LEADS)

    def yield_lead(self, chunk: Chunk, now_ns: int) -> list[ReaderCommand]:
        """Tell every member that this reader no longer pulls the chunk, though it wants it."""
        chunk.interest.leader = None
        return self.join(chunk, now_ns, TAG_YIELDS)

    def leave(self, chunk: Chunk, now_ns: int) -> list[ReaderCommand]:
        """Send a LEAVE if the switch may keep our interest."""
        address, chunk.interest.at = chunk.interest.at, None
        if address is None:
            return []
        chunk.interest.members = 0
        if len(self._left) >= LEFT_REMEMBERED:
            del self._left[next(iter(self._left))]
        self._left[chunk.key] = _Left(chunk.segments, address, now_ns)
        return [SendControl(Control(Op.LEAVE, chunk.key, chunk.segments), address)]

    def stray(self, key: ChunkKey, now_ns: int, *, is_counted: bool) -> list[ReaderCommand]:
        """Something comes of a chunk that we have left: leave again, not too often. `is_counted`: it says that we are
        counted in; segments say that only where a switch casts them."""
        left, by_keepers = self._left.get(key), self.parameters.by_keepers
        if left is None or now_ns - left.sent_ns < self._pace[LEAVE_AGAIN]:
            return []
        if by_keepers and not is_counted:
            if left.again >= LEAVES_AGAIN_MAX:
                return []
            left.again += 1
        left.sent_ns = now_ns
        return [SendControl(Control(Op.LEAVE, key, left.segments), left.address)]

    def left_at(self, key: ChunkKey, now_ns: int) -> Address | None:
        """Where the interest is of those who still want a chunk that this reader has left; None: there are none by
        now."""
        left = self._left.get(key)
        return None if left is None or now_ns - left.sent_ns >= self.parameters.interest_ttl_ns else left.address

    def on_notice(self, chunk: Chunk, notice: Control, now_ns: int) -> None:
        """Learn from a NOTICE about a chunk that is being fetched."""
        me, interest = self.parameters.member, chunk.interest
        if notice.flags & (Flag.NO_SWITCH | Flag.REFUSED):
            chunk.move(Cause.REFUSED)
            interest.at = None
            interest.members = 0
            if notice.flags & Flag.NO_SWITCH:
                self._no_switch_until_ns = now_ns + NO_SWITCH_MEMORY_NS
            return
        interest.cached = bool(notice.flags & Flag.CACHED)
        interest.members = notice.members
        member = Member(notice.member)
        if member != me:
            self._pace.note_member(member, notice.tag)
        elif interest.join_tries == 1:
            if self._pace.reaction_ns is None:
                self.tend_ns = now_ns  # JOINs that are not answered are due sooner than by the ceiling
            self._pace.note_answer(now_ns - interest.join_sent_ns)
        if me is not None and notice.members >> me & 1 and interest.at is not None:
            if chunk.phase is Phase.JOINING and now_ns >= self.newcomer_until_ns and interest.leader is None:
                self.newcomer_since_ns = now_ns
                self.newcomer_until_ns = now_ns + self._pace[NEWCOMER_SPAN]
            if interest.unanswered and chunk.phase is Phase.DIRECT and not chunk.alone:
                chunk.move(Cause.ANSWERED)
                self._no_switch_until_ns = -1
            elif chunk.castable:
                chunk.move(Cause.ADMITTED)
            if chunk.castable:
                interest.join_tries = 0
                interest.unanswered = False
        if notice.flags & Flag.LEFT or notice.tag & TAG_YIELDS:
            if interest.leader == member or (interest.leader is None and notice.flags & Flag.LEFT and not notice.count):
                interest.over_ns = interest.over_ns if interest.leader is None else now_ns
                interest.leader, interest.left_ns = None, now_ns
        elif notice.tag & TAG_LEADS:
            if interest.leader != member:
                chunk.progress.expect_cast()
            interest.led_by(member, now_ns)
        elif member == me and notice.count and interest.leader is None and notice.count - 1 != me:
            interest.led_by(Member(notice.count - 1), now_ns)

    def note_served(self, chunk: Chunk, *, by_switch: bool) -> None:
        """Segments came: out of the switch, or from the holder."""
        chunk.interest.cached = by_switch

    def tend(self, chunks: Iterable[Chunk], now_ns: int) -> list[ReaderCommand]:
        """Retry or renew the JOINs of open chunks that are due; give up after many tries if there is another way."""
        out: list[ReaderCommand] = []
        if self.tend_ns is None or now_ns < self.tend_ns:
            return out
        self.tend_ns, dues = None, []
        for chunk in chunks:
            due = self.due_ns(chunk)
            if due is not None and now_ns >= due:
                out += self._tend_one(chunk, now_ns)
                due = self.due_ns(chunk)
            if due is not None:
                dues.append(due)
        self.tend_ns = min(dues, default=None)
        return out

    def _tend_one(self, chunk: Chunk, now_ns: int) -> list[ReaderCommand]:
        if self.parameters.by_keepers and chunk.interest.join_tries >= KEEPER_TRIES_MAX:
            silent = chunk.provenance.choose(self.parameters)
            if silent is not None and chunk.provenance.turn_from(silent.node, None):
                chunk.interest.join_tries = 0
                return self.join(chunk, now_ns)
        if chunk.phase is Phase.JOINED:
            if chunk.interest.join_tries >= JOIN_TRIES_MAX:
                chunk.interest.join_tries = 0
            return self.join(chunk, now_ns)
        if chunk.interest.join_tries >= JOIN_TRIES_MAX:
            if not chunk.provenance.any_readable:
                chunk.interest.join_tries = JOIN_TRIES_MAX - 1
                return self.join(chunk, now_ns)
            chunk.move(Cause.UNHEARD)
            chunk.interest.unanswered = True
            self._no_switch_until_ns = now_ns + NO_SWITCH_MEMORY_NS
            return []
        return self.join(chunk, now_ns)

    def due_ns(self, chunk: Chunk) -> int | None:
        """When `tend` has something to do."""
        if chunk.phase is Phase.JOINING:
            return chunk.interest.join_sent_ns + (self._pace[JOIN_RETRY] << max(0, chunk.interest.join_tries - 1))
        if chunk.phase is Phase.JOINED:
            fresh = max(chunk.interest.join_sent_ns, chunk.progress.arrived_ns or 0)
            return fresh + self.parameters.interest_ttl_ns // RENEWALS_PER_TTL
        return None

    def reboot(self, chunk: Chunk, now_ns: int) -> list[ReaderCommand]:
        """The switch forgot everything: join again at once what was joined."""
        self._no_switch_until_ns = -1
        chunk.move(Cause.REBOOT)
        interest = chunk.interest
        interest.members, interest.cached, interest.leader, interest.join_tries = 0, False, None, 0
        interest.over_ns = None
        return self.join(chunk, now_ns) if chunk.phase is Phase.JOINING else []
