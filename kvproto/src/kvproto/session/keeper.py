"""The keeper: a holder that keeps the interest in its chunks itself, where no switch consumes JOIN and LEAVE. Pure.

It is a part of `Holder`, which asks it: `join` and `leave` for what members say, `may_ask` for each GET, `cast` for
whom segments go to, `take` for the NOTICEs that leave. A member is who its address in the directory says it is: what a
datagram says of itself counts for nothing. NOTICEs go to each member's address. The first news of others leaves at
once: whoever believes to be alone reads what it could share. Further news wait for a moment, so that many who join at
once are two NOTICEs to each. One's own answer, and who leads, yields or leaves, never wait.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from kvchunk.ids import ChunkKey
from kvproto.commands import SendControl
from kvproto.ids import Address, Member, members_of
from kvproto.session.interest import Entry, InterestTable
from kvproto.wire.control import TAG_LEADS, TAG_YIELDS, Control, Flag, Op

NEWS_WAIT_NS: Final = 250_000
"""News of who else wants a chunk wait so long for more of the same."""
_NEVER_ALONE: Final = TAG_LEADS | TAG_YIELDS


class Members(Protocol):
    """What the directory says of the members of this domain."""

    def member_at(self, address: Address) -> Member | None:
        """The member with this address; None: no member has it."""

    def address_of(self, member: Member) -> Address | None:
        """Where a member is; None: it is gone."""


def nobody_elsewhere(_: ChunkKey) -> Address | None:
    """No other keeper is known to have interest in the chunk."""
    return None


@dataclass(slots=True, eq=False)
class _News:
    """The last of some NOTICEs that all say who else wants a chunk, and whom it is for: nobody right after one left."""

    notice: Control
    to: int
    due_ns: int


class Keeper:
    """Owns the interest table, and the NOTICEs that have not left."""

    def __init__(
        self,
        table: InterestTable,
        members: Members,
        me: Member | None,
        elsewhere: Callable[[ChunkKey], Address | None] = nobody_elsewhere,
    ) -> None:
        """`me`: the holder's own number; `elsewhere(key)`: who keeps interest in a chunk that this node has just had
        from there, if it is still in flight."""
        self._table = table
        self._members = members
        self._me = 0 if me is None else 1 << me
        self._elsewhere = elsewhere
        self._news: OrderedDict[ChunkKey, _News] = OrderedDict()
        """In the order in which they are due."""
        self._out: list[SendControl] = []

    def join(self, join: Control, source: Address, now_ns: int) -> bool:
        """A JOIN for a chunk that is here. False: whoever sent it is no member here."""
        member = self._members.member_at(source)
        if member is None:
            return False
        keeper = None if self._table.find(join.key, now_ns) else self._elsewhere(join.key)
        if keeper is not None:
            named = Control(Op.NAK, join.key, join.segments, join.segment, members=keeper)
            self._out.append(SendControl(named, source))
            return True
        entry = self._table.join(join.key, member, now_ns)
        if entry is not None:
            self._tell(join, member, Flag.JOINED, entry, now_ns)
        return True

    def leave(self, leave: Control, source: Address, now_ns: int) -> None:
        """A LEAVE."""
        member = self._members.member_at(source)
        entry = None if member is None else self._table.leave(leave.key, member, now_ns)
        if member is not None and entry is not None:
            self._tell(leave, member, Flag.LEFT, entry, now_ns)
        elif self._table.find(leave.key, now_ns) is None:
            self._news.pop(leave.key, None)

    def may_ask(self, get: Control, source: Address, now_ns: int) -> Control | None:
        """A GET, with the member that it came from; None: it does not wait for the chunk."""
        member = self._members.member_at(source)
        leads = not get.flags & Flag.ONLY_ME
        if member is None or not self._table.ask(get.key, member, now_ns, leads=leads):
            return None
        return replace(get, member=member)

    def cast(self, key: ChunkKey, now_ns: int) -> int:
        """Segments of a chunk leave: to whom, as a bitmap; 0: nobody wants them any more."""
        return self._table.cast(key, now_ns) & ~self._me

    def take(self, now_ns: int) -> list[SendControl]:
        """The NOTICEs that leave now."""
        while self._news:
            key, news = next(iter(self._news.items()))
            if now_ns < news.due_ns:
                break
            del self._news[key]
            self._send(news.notice, news.to)
        out, self._out = self._out, []
        return out

    def next_timeout_ns(self) -> int | None:
        """When `take` has something, at the latest; None: never."""
        return next(iter(self._news.values())).due_ns if self._news else None

    def _tell(self, cause: Control, member: Member, flag: Flag, entry: Entry, now_ns: int) -> None:
        """Tell all who want the chunk what `member` did."""
        notice = Control(
            Op.NOTICE,
            cause.key,
            cause.segments,
            cause.segment,
            count=entry.leader,
            tag=cause.tag,
            flags=flag,
            member=member,
            members=entry.members,
        )
        if flag is Flag.LEFT or cause.tag & _NEVER_ALONE:
            self._news.pop(cause.key, None)  # who waits for them learns of all from this one
            self._send(notice, entry.members)
            return
        self._send(notice, 1 << member)
        others = entry.members & ~(1 << member)
        known = self._news.get(cause.key)
        if known is not None:
            known.notice, known.to = notice, known.to & ~(1 << member) | others
        elif others:
            self._news[cause.key] = _News(notice, 0, now_ns + NEWS_WAIT_NS)
            self._send(notice, others)

    def _send(self, notice: Control, to: int) -> None:
        for member in members_of(to):
            address = self._members.address_of(member)
            if address is not None:
                self._out.append(SendControl(notice, address))
