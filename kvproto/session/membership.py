"""Joining and leaving: keeps the switch's interest in step with what this reader wants."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvproto.commands import ReaderCommand, SendControl
from kvproto.ids import Address, ChunkKey, Member
from kvproto.session.chunk import Cause, Chunk, Phase
from kvproto.session.holders import choose_holder
from kvproto.session.parameters import ReaderParameters
from kvproto.session.timing import (
    JOIN_RETRY_NS,
    JOIN_TRIES_MAX,
    LEAVE_AGAIN_NS,
    NEWCOMER_ANSWERS,
    NEWCOMER_MAX_NS,
    NEWCOMER_SPAN_NS,
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


class Membership:
    """JOIN, renewal, announcement, LEAVE and what NOTICE says. It decides nothing about who pulls."""

    __slots__ = ("_answer_ns", "_left", "_no_switch_until_ns", "newcomer_until_ns", "parameters", "tend_ns")

    def __init__(self, parameters: ReaderParameters) -> None:
        self.parameters = parameters
        self._left: dict[ChunkKey, _Left] = {}
        self._no_switch_until_ns = -1
        self.tend_ns: int | None = None
        """When `tend` may have something to do, at the earliest; None: never."""
        self.newcomer_until_ns = 0
        """Until then this reader has joined too recently to know what is under way."""
        self._answer_ns: int | None = None
        """How long answers to JOINs took of late: the way to the switch and back, and how late this host runs."""

    def newcomer_wait_ns(self, now_ns: int) -> int:
        """How long this reader, if it is a newcomer, waits for what the others do about that before it leads."""
        if now_ns >= self.newcomer_until_ns:
            return 0
        if self._answer_ns is None:
            return NEWCOMER_MAX_NS
        return min(NEWCOMER_MAX_NS, NEWCOMER_ANSWERS * self._answer_ns)

    def open(self, chunk: Chunk, now_ns: int) -> list[ReaderCommand]:
        """Begin with a waiting chunk: join it where that makes sense, else read it directly."""
        holder = choose_holder(chunk, self.parameters)
        if holder is None:
            chunk.move(Cause.EXHAUSTED)
            return []
        no_switch = holder.readable and now_ns < self._no_switch_until_ns
        if self.parameters.member is None or not holder.castable or no_switch:
            chunk.move(Cause.REFUSED)
            return []
        chunk.join_tries = 0
        return self.join(chunk, now_ns)

    def join(self, chunk: Chunk, now_ns: int, tag: int = 0) -> list[ReaderCommand]:
        """Send a JOIN: first, renewal or announcement (`tag`)."""
        holder = choose_holder(chunk, self.parameters)
        if holder is None:
            return []
        if chunk.phase in (Phase.WAITING, Phase.JOINING, Phase.JOINED):
            chunk.move(Cause.JOIN)
        chunk.join_sent_ns = now_ns
        chunk.join_tries += 1
        chunk.interest_at = holder.address
        due = self.due_ns(chunk)
        if due is not None and (self.tend_ns is None or due < self.tend_ns):
            self.tend_ns = due
        self._left.pop(chunk.key, None)
        first = chunk.first_missing()
        join = Control(Op.JOIN, chunk.key, chunk.segments, segment=first, tag=tag, member=self.parameters.member or 0)
        return [SendControl(join, holder.address)]

    def announce(self, chunk: Chunk, now_ns: int) -> list[ReaderCommand]:
        """Tell every member that this reader pulls the chunk from now on."""
        chunk.leader, chunk.leader_ns = self.parameters.member, now_ns
        return self.join(chunk, now_ns, TAG_LEADS)

    def yield_lead(self, chunk: Chunk, now_ns: int) -> list[ReaderCommand]:
        """Tell every member that this reader no longer pulls the chunk, though it wants it."""
        chunk.leader = None
        return self.join(chunk, now_ns, TAG_YIELDS)

    def leave(self, chunk: Chunk, now_ns: int) -> list[ReaderCommand]:
        """Send a LEAVE if the switch may keep our interest."""
        address, chunk.interest_at = chunk.interest_at, None
        if address is None:
            return []
        chunk.members = 0
        if len(self._left) >= LEFT_REMEMBERED:
            del self._left[next(iter(self._left))]
        self._left[chunk.key] = _Left(chunk.segments, address, now_ns)
        return [SendControl(Control(Op.LEAVE, chunk.key, chunk.segments), address)]

    def stray(self, key: ChunkKey, now_ns: int) -> list[ReaderCommand]:
        """The switch still counts us in for a chunk that we have left: leave again, not too often."""
        left = self._left.get(key)
        if left is None or now_ns - left.sent_ns < LEAVE_AGAIN_NS:
            return []
        left.sent_ns = now_ns
        return [SendControl(Control(Op.LEAVE, key, left.segments), left.address)]

    def on_notice(self, chunk: Chunk, notice: Control, now_ns: int) -> None:
        """Learn from a NOTICE about a chunk that is being fetched."""
        me = self.parameters.member
        if notice.flags & (Flag.NO_SWITCH | Flag.REFUSED):
            chunk.move(Cause.REFUSED)
            chunk.interest_at = None
            chunk.members = 0
            if notice.flags & Flag.NO_SWITCH:
                self._no_switch_until_ns = now_ns + NO_SWITCH_MEMORY_NS
            return
        chunk.cached = bool(notice.flags & Flag.CACHED)
        chunk.members = notice.members
        member = Member(notice.member)
        if me is not None and notice.members >> me & 1 and chunk.interest_at is not None:
            if chunk.phase is Phase.JOINING and now_ns >= self.newcomer_until_ns and chunk.leader is None:
                self.newcomer_until_ns = now_ns + NEWCOMER_SPAN_NS
            if chunk.phase is Phase.JOINING and chunk.join_tries == 1 and member == me:
                self._note_answer(now_ns - chunk.join_sent_ns)
            if chunk.castable:
                chunk.move(Cause.ADMITTED)
                chunk.join_tries = 0
        if notice.flags & Flag.LEFT or notice.tag & TAG_YIELDS:
            if chunk.leader == member or (chunk.leader is None and notice.flags & Flag.LEFT and not notice.count):
                chunk.leader, chunk.left_ns = None, now_ns
        elif notice.tag & TAG_LEADS:
            if chunk.leader != member:
                chunk.high, chunk.low = 0, chunk.segments
            chunk.leader, chunk.leader_ns = member, now_ns
        elif member == me and notice.count and chunk.leader is None and notice.count - 1 != me:
            chunk.leader, chunk.leader_ns = Member(notice.count - 1), now_ns

    def _note_answer(self, took_ns: int) -> None:
        """Smoothed as in RFC 6298; of a JOIN that was repeated nobody knows which one was answered (Karn)."""
        self._answer_ns = took_ns if self._answer_ns is None else (7 * self._answer_ns + took_ns) // 8

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
        if chunk.phase is Phase.JOINED:
            if chunk.join_tries >= JOIN_TRIES_MAX:
                chunk.join_tries = 0
            return self.join(chunk, now_ns)
        if chunk.join_tries >= JOIN_TRIES_MAX:
            if not chunk.any_readable:
                chunk.join_tries = JOIN_TRIES_MAX - 1
                return self.join(chunk, now_ns)
            chunk.move(Cause.UNHEARD)
            self._no_switch_until_ns = now_ns + NO_SWITCH_MEMORY_NS
            return []
        return self.join(chunk, now_ns)

    def due_ns(self, chunk: Chunk) -> int | None:
        """When `tend` has something to do."""
        if chunk.phase is Phase.JOINING:
            return chunk.join_sent_ns + (JOIN_RETRY_NS << max(0, chunk.join_tries - 1))
        if chunk.phase is Phase.JOINED:
            fresh = max(chunk.join_sent_ns, chunk.arrived_ns or 0)
            return fresh + self.parameters.interest_ttl_ns // RENEWALS_PER_TTL
        return None

    def reboot(self, chunk: Chunk, now_ns: int) -> list[ReaderCommand]:
        """The switch forgot everything: join again at once what was joined."""
        self._no_switch_until_ns = -1
        chunk.move(Cause.REBOOT)
        chunk.members, chunk.cached, chunk.leader, chunk.join_tries = 0, False, None, 0
        return self.join(chunk, now_ns) if chunk.phase is Phase.JOINING else []
