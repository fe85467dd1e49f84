"""Who still wants a chunk, at a holder where no switch keeps that: the rules of p4/v1model/interest.p4. Pure.

Entries are found by their whole key, so no two chunks collide. An entry that neither JOIN, GET nor data has touched for
a time to live is free. It remembers its leader, the member that last sent a GET for everybody, and its sponsor, who has
paid for it: a member pays for so many entries in a window of one time to live, and an entry that lives into the next
one is paid for again. So nothing has to be given back for entries that expire, and a member has at most twice as many.
"""

from collections import OrderedDict
from dataclasses import dataclass

from kvchunk.ids import ChunkKey
from kvproto.ids import Member
from kvproto.limits import INTEREST_OF_MEMBER


@dataclass(slots=True, eq=False)
class Entry:
    """Interest in one chunk."""

    members: int
    """As a bitmap."""
    seen_ns: int
    leader: int = 0
    """1 + the member that sent the last GET for everybody; 0: none did, or it has left."""
    sponsor: Member | None = None
    """Who has paid for it; None: whoever did has left."""


@dataclass(slots=True, eq=False)
class _Budget:
    since_ns: int
    used: int = 0


class InterestTable:
    """One per holder. Entries that are over go when others come: nothing has to be called in time."""

    def __init__(self, ttl_ns: int, entries_of_member: int = INTEREST_OF_MEMBER) -> None:
        self.ttl_ns = ttl_ns
        self._entries_of_member = entries_of_member
        self._entries: OrderedDict[ChunkKey, Entry] = OrderedDict()
        """Those that were not touched for longest come first."""
        self._budgets: dict[Member, _Budget] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: ChunkKey, now_ns: int) -> Entry | None:
        """The entry of a chunk that somebody wants."""
        entry = self._entries.get(key)
        return entry if entry is not None and now_ns - entry.seen_ns < self.ttl_ns else None

    def join(self, key: ChunkKey, member: Member, now_ns: int) -> Entry | None:
        """This member wants the chunk. None: the entry would be one more than it may pay for."""
        entry = self.find(key, now_ns)
        if entry is None:
            self._forget_old(now_ns)
            entry = Entry(0, now_ns)
            if not self._touch(key, entry, member, now_ns):
                return None
            self._entries[key] = entry
            self._entries.move_to_end(key)
        else:
            self._touch(key, entry, member, now_ns)
        entry.members |= 1 << member
        return entry

    def leave(self, key: ChunkKey, member: Member, now_ns: int) -> Entry | None:
        """This member does not want it any more. Returns the entry of those who do; None: nobody else does, or it never
        did."""
        entry = self.find(key, now_ns)
        if entry is None or not entry.members >> member & 1:
            return None
        entry.members &= ~(1 << member)
        if entry.leader == member + 1:
            entry.leader = 0
        if entry.sponsor == member:
            if self._is_paid(entry, now_ns):
                budget = self._budgets[member]
                budget.used = max(0, budget.used - 1)
            entry.sponsor = None
        if not entry.members:
            del self._entries[key]
            return None
        return entry

    def ask(self, key: ChunkKey, member: Member, now_ns: int, *, leads: bool) -> bool:
        """This member sends a GET, for everybody if it `leads`. False: only who waits for a chunk may ask for it."""
        entry = self.find(key, now_ns)
        if entry is None or not entry.members >> member & 1:
            return False
        self._touch(key, entry, member, now_ns)
        if leads:
            entry.leader = member + 1
        return True

    def cast(self, key: ChunkKey, now_ns: int) -> int:
        """Segments of the chunk leave: to whom, as a bitmap."""
        entry = self.find(key, now_ns)
        if entry is None:
            return 0
        if entry.sponsor is not None:
            self._touch(key, entry, entry.sponsor, now_ns)
        return entry.members

    def _is_paid(self, entry: Entry, now_ns: int) -> bool:
        """It counts in the window of its sponsor that is not over."""
        budget = None if entry.sponsor is None else self._budgets.get(entry.sponsor)
        return budget is not None and budget.since_ns <= entry.seen_ns and now_ns < budget.since_ns + self.ttl_ns

    def _touch(self, key: ChunkKey, entry: Entry, payer: Member, now_ns: int) -> bool:
        """Keep an entry alive. False: nobody has paid for it, and this member has paid for as many as it may."""
        if not self._is_paid(entry, now_ns):
            budget = self._budgets.setdefault(payer, _Budget(now_ns))
            if now_ns >= budget.since_ns + self.ttl_ns:
                budget.since_ns, budget.used = now_ns, 0
            if budget.used >= self._entries_of_member:
                return False
            budget.used += 1
            entry.sponsor = payer
        entry.seen_ns = now_ns
        if key in self._entries:
            self._entries.move_to_end(key)
        return True

    def _forget_old(self, now_ns: int) -> None:
        while self._entries:
            key, oldest = next(iter(self._entries.items()))
            if now_ns - oldest.seen_ns < self.ttl_ns:
                return
            del self._entries[key]
