"""Brings the switch to what it should have, one request at a time. Pure: says what to do next, then hears the outcome.

    down --Up--> unread --read--> synchronised <--> writing
                   ^                 |
                   +-- write failed as a whole, or the time for a check has come

`actual` is what the switch is known to have: what was read, plus every update that it acknowledged. An update that
the switch refuses is tried again after a pause, and the owner of the entry is notified.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.limits import WRITE_BATCH_UPDATES_MAX
from controlplane.core.switch.entries import Entry, Identity, SwitchContents
from controlplane.core.switch.target import Operation, SwitchFacts, Update

_ORDER = (
    "digest",
    "clone_session",
    "group",
    "replicate_default",
    "source",
    "address",
    "station",
    "request_limit",
    "segment_limit",
    "port_member",
    "egress_member",
    "dmac",
    "replicate",
    "salt",
    "fabric",
    "kv_cache",
)
"""Kinds of entries in the order in which they are written; deleted in reverse."""
_RANK = {kind: rank for rank, kind in enumerate(_ORDER)}


def difference(
    actual: SwitchContents, desired: SwitchContents, only: Collection[Identity] | None = None
) -> list[Update]:
    """Updates that turn `actual` into `desired`: deletions, then insertions and modifications.

    `only`: look at these identities alone, because nothing else changed on either side.
    """
    identities = (actual.keys() | desired.keys()) if only is None else only
    gone, coming = [], []
    for identity in sorted(identities, key=lambda one: (_rank(one), repr(one[1]))):
        wanted, found = desired.get(identity), actual.get(identity)
        if wanted is None:
            if found is not None:
                gone.append(Update(Operation.DELETE, found))
        elif found is None:
            coming.append(Update(Operation.INSERT, wanted))
        elif found != wanted:
            coming.append(Update(Operation.MODIFY, wanted))
    return gone[::-1] + coming


def apply(actual: SwitchContents, update: Update) -> None:
    """What a successful update does to the contents of a switch."""
    if update.operation is Operation.DELETE:
        actual.pop(update.entry.identity, None)
    else:
        actual[update.entry.identity] = update.entry


def _rank(identity: Identity) -> int:
    return _RANK.get(identity[0], len(_ORDER))


RETRY_NS = 1_000_000_000
"""A refused update waits this long before it is tried again."""


class Phase(enum.Enum):
    """What is known of the switch, and what is under way."""

    DOWN = "down"
    UNREAD = "unread"
    READING = "reading"
    SYNCHRONISED = "synchronised"
    WRITING = "writing"


@dataclass(frozen=True, slots=True)
class ReadSwitch:
    """Everything in the switch is to be read."""


@dataclass(frozen=True, slots=True)
class WriteSwitch:
    """These updates are to be written, in order."""

    updates: tuple[Update, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The switch did not take an update."""

    update: Update
    reason: str


class SwitchProgrammer:
    """Holds desired and actual contents; asks for one read or write at a time."""

    def __init__(self, check_interval_ns: int) -> None:
        self.phase = Phase.DOWN
        self.facts: SwitchFacts | None = None
        self.actual: SwitchContents = {}
        self.write_errors = 0
        self.missed_reads = 0
        """Reads in a row that failed; 0 since the last one that did not."""
        self._check_interval_ns = check_interval_ns
        self.desired: SwitchContents = {}
        self._in_flight: tuple[Update, ...] = ()
        self._not_before: dict[Identity, int] = {}
        self._read_at_ns = 0
        self._pending: set[Identity] = set()
        """Identities whose desired or actual entry changed since they were last seen to agree."""

    # -- what it should have

    def want(self, entry: Entry) -> None:
        """The switch should have this entry."""
        if self.desired.get(entry.identity) != entry:
            self.desired[entry.identity] = entry
            self._mark(entry.identity)

    def want_not(self, identity: Identity) -> None:
        """The switch should have no entry of this identity."""
        if self.desired.pop(identity, None) is not None:
            self._mark(identity)

    def want_exactly(self, kinds: frozenset[str], entries: Sequence[Entry]) -> None:
        """These are all the entries of these kinds."""
        wanted = {entry.identity for entry in entries}
        for identity in [one for one in self.desired if one[0] in kinds and one not in wanted]:
            self.want_not(identity)
        for entry in entries:
            self.want(entry)

    def has(self, entry: Entry) -> bool:
        """The switch is known to have exactly this."""
        return self.actual.get(entry.identity) == entry

    def lacks(self, identity: Identity) -> bool:
        """The switch is known to have nothing of this identity; or there is no switch."""
        return self.phase is Phase.DOWN or (self._known and identity not in self.actual)

    @property
    def synchronised(self) -> bool:
        """Everything wanted is there and nothing else."""
        return self.phase is Phase.SYNCHRONISED and not self._pending

    @property
    def _known(self) -> bool:
        return self.phase in (Phase.SYNCHRONISED, Phase.WRITING)

    # -- what happened

    def up(self, facts: SwitchFacts) -> None:
        """A session began: everything is to be read."""
        self.facts = facts
        self.phase = Phase.UNREAD
        self.missed_reads = 0
        self.actual = {}
        self._not_before.clear()
        self._in_flight = ()

    def down(self) -> None:
        """The session ended: nothing is known."""
        self.phase = Phase.DOWN
        self.actual = {}
        self._in_flight = ()

    def read_done(self, actual: SwitchContents, now_ns: int) -> bool:
        """The switch holds this. Returns False if nobody asked (any more): then it may be older than what we know."""
        if self.phase is not Phase.READING:
            return False
        self.actual = dict(actual)
        self.missed_reads = 0
        self.phase = Phase.SYNCHRONISED
        self._read_at_ns = now_ns
        self._pending = set(actual.keys() | self.desired.keys())
        return True

    def read_failed(self) -> None:
        """The read under way failed: read again."""
        if self.phase is Phase.READING:
            self.missed_reads += 1
            self.phase = Phase.UNREAD

    def write_done(self, refused: Mapping[int, str], now_ns: int) -> list[Refused]:
        """The switch took the updates in flight, but for those refused (index -> reason)."""
        if self.phase is not Phase.WRITING:
            return []
        problems = []
        for index, update in enumerate(self._in_flight):
            reason = refused.get(index)
            identity = update.entry.identity
            if reason is None:
                apply(self.actual, update)
                self._not_before.pop(identity, None)
                if self.desired.get(identity) == self.actual.get(identity):
                    self._pending.discard(identity)
            else:
                self.write_errors += 1
                self._not_before[identity] = now_ns + RETRY_NS
                problems.append(Refused(update, reason))
        self._in_flight = ()
        # A refusal may mean that our picture is wrong: look before the next write.
        self.phase = Phase.UNREAD if problems else Phase.SYNCHRONISED
        return problems

    def write_failed(self) -> None:
        """Nobody knows which of the updates in flight the switch took."""
        if self.phase is Phase.WRITING:
            self.write_errors += 1
            self._in_flight = ()
            self.phase = Phase.UNREAD

    # -- what to do next

    def next(self, now_ns: int) -> ReadSwitch | WriteSwitch | None:
        """The next request, if one is due and none is under way."""
        if self.phase is Phase.SYNCHRONISED and now_ns - self._read_at_ns >= self._check_interval_ns:
            self.phase = Phase.UNREAD
        if self.phase is Phase.UNREAD:
            self.phase = Phase.READING
            return ReadSwitch()
        if self.phase is not Phase.SYNCHRONISED or not self._pending:
            return None
        updates = difference(self.actual, self.desired, self._pending)
        self._pending = {update.entry.identity for update in updates}
        due = [one for one in updates if self._not_before.get(one.entry.identity, 0) <= now_ns]
        if not due:
            return None
        self._in_flight = tuple(due[:WRITE_BATCH_UPDATES_MAX])
        self.phase = Phase.WRITING
        return WriteSwitch(self._in_flight)

    def _mark(self, identity: Identity) -> None:
        self._pending.add(identity)
        self._not_before.pop(identity, None)
