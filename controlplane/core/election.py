"""An election for a lease that a store keeps: what one candidate asks of the store, and whether it leads. Pure.

    standby --nobody holds the lease, or its holder stands still: TAKE--> leading --its lease runs out--> lapsed
       ^                                                                     ^                               |
       +---------------- somebody else holds it -----------------------------+---- RENEWED, or TAKEN anew ---+

A leader counts its lease from the moment at which it *asked* for it, and gives it up a little early: by its own clock
it has stopped before any other can have begun. A lease that runs out while the store is away makes it *lapsed*: nobody
else is known to lead, so it goes on with what asks for no leadership.

Each leadership has an epoch above those of all before. The store guards it: `Take` names what the candidate has seen,
and whoever was quicker makes it fail.

In one store the holder's lease ends by itself (etcd). In another the holder writes its renewals down, and a lease whose
version stood still for as long as it lasts has ended (Kubernetes): by the clock of who watches it, so clocks need not
agree.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, TypeAlias

from controlplane.core.events import Deposed, Elected

RENEWALS_PER_LEASE: Final = 3
"""Two of them may be lost."""
LOOKS_PER_LEASE: Final = 4
"""A lease that stood still is taken this part of it late at most."""
TRIES_PER_LEASE: Final = 6
"""Of a store that does not answer."""
GUARD_PER_LEASE: Final = 10
"""This part of its lease a leader gives away: clocks do not run equally fast."""

assert RENEWALS_PER_LEASE < TRIES_PER_LEASE <= GUARD_PER_LEASE


@dataclass(frozen=True, slots=True)
class Hold:
    """What the store says of the lease: somebody holds it."""

    holder: str
    epoch: int
    version: int | str
    """Another one after each change: what a change has to find, so that of two only one succeeds."""
    lasts_ns: int = 0
    """The holder counts on its lease for so long, where it has written that down: another configuration than ours."""


@dataclass(frozen=True, slots=True)
class Look:
    """Ask who holds the lease; `looked` answers."""


@dataclass(frozen=True, slots=True)
class Take:
    """Take the lease if it still is as it was seen; `taken` answers."""

    epoch_above: int
    instead_of: Hold | None
    """Whose lease has ended; None: nobody held it."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Say that the holder lives, if the lease still is its own; `renewed` answers."""

    hold: Hold


Request: TypeAlias = Look | Take | Renew


class Standing(enum.Enum):
    """How a candidate stands."""

    STANDBY = "standby"
    """Another one leads, or nobody knows who."""
    LEADING = "leading"
    LAPSED = "lapsed"
    """It led, its lease has run out, and nobody else is known to lead."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How the store keeps leases."""

    lease_ns: int
    ends_by_itself: bool
    """The store forgets a holder that does not renew."""


class Candidate:
    """One candidate, from its first look to its end. One request is under way at a time; each is answered, be it by
    `request_failed`."""

    def __init__(self, name: str, terms: LeaseTerms) -> None:
        """`name`: nobody else has it, nor had it before."""
        self._name = name
        self._terms = terms
        self._request: Request | None = None
        self._asked_ns = 0
        self._due_ns = 0
        self._mine: Hold | None = None
        """What this candidate holds, as far as it knows."""
        self._until_ns = 0
        """Until then nobody else can lead."""
        self._theirs: Hold | None = None
        self._theirs_since_ns = 0
        """When this version was first seen."""
        self._epoch_seen = 0
        self._is_free = False
        """Nobody holds the lease, says the last answer."""
        self._changed = False
        self._led = False
        """It has led, and nobody else is known to have led since."""

    # -- how it stands

    def standing(self, now_ns: int) -> Standing:
        """At this time."""
        if self._mine is not None and now_ns < self._until_ns:
            return Standing.LEADING
        return Standing.LAPSED if self._led else Standing.STANDBY

    @property
    def hold(self) -> Hold | None:
        """What this candidate holds, as far as it knows."""
        return self._mine

    @property
    def until_ns(self) -> int:
        """Until when it leads, unless it renews its lease; in the past: it does not."""
        return self._until_ns

    @property
    def leader(self) -> str:
        """Who else holds the lease; empty: nobody is known to."""
        return "" if self._theirs is None else self._theirs.holder

    def news(self, place: str, now_ns: int) -> Elected | Deposed | None:
        """How it stands, as its controller is told; `place`: which store. None: it led, and nobody else is known to;
        its lease says when that is over."""
        standing = self.standing(now_ns)
        if standing is Standing.LEADING and self._mine is not None:
            epoch = self._mine.epoch
            return Elected(epoch, self._until_ns, f"it has the lease in {place}, epoch {epoch}")
        if standing is Standing.LAPSED:
            return None
        return Deposed(
            f"another one, {self.leader}, has the lease in {place}"
            if self.leader
            else f"{place} has not said who leads"
        )

    # -- what to ask

    def next_request(self, now_ns: int) -> Request | None:
        """What is to be asked of the store now, if anything is."""
        if self._request is not None or now_ns < self._due_ns:
            return None
        self._request, self._asked_ns, self._changed = self._choice(now_ns), now_ns, False
        return self._request

    def due_ns(self) -> int | None:
        """When `next_request` has something; None: an answer is awaited."""
        return None if self._request is not None else self._due_ns

    def _choice(self, now_ns: int) -> Request:
        if self._mine is not None:
            return Renew(self._mine)
        if self._is_free:
            return Take(self._epoch_seen, None)
        if self._theirs is not None and self._has_ended(now_ns):
            return Take(self._epoch_seen, self._theirs)
        return Look()

    def _has_ended(self, now_ns: int) -> bool:
        return not self._terms.ends_by_itself and now_ns >= self._ends_ns()

    def _ends_ns(self) -> int:
        """When the lease of whoever else holds it ends, if it stands still."""
        lasts_ns = 0 if self._theirs is None else self._theirs.lasts_ns
        return self._theirs_since_ns + max(self._terms.lease_ns, lasts_ns)

    # -- what came of it

    def looked(self, hold: Hold | None, now_ns: int) -> None:
        """Who holds the lease."""
        self._answered()
        self._is_free = hold is None
        if hold is None:
            self._theirs, self._due_ns = None, now_ns
            return
        self._epoch_seen = max(self._epoch_seen, hold.epoch)
        if hold.holder == self._name:
            # It took the lease and never heard of it. It leads when it has renewed it.
            self._mine, self._theirs, self._due_ns = hold, None, now_ns
            return
        if hold != self._theirs:
            self._theirs, self._theirs_since_ns = hold, now_ns
        self._led = False
        look_ns = now_ns + self._terms.lease_ns // LOOKS_PER_LEASE
        self._due_ns = look_ns if self._terms.ends_by_itself else min(look_ns, self._ends_ns())
        self._look_again_if_changed(now_ns)

    def taken(self, hold: Hold | None, now_ns: int) -> None:
        """This candidate holds the lease; None: somebody was quicker."""
        self._answered()
        self._is_free, self._theirs = False, None
        if hold is None:
            self._due_ns = now_ns
        else:
            self._holds(hold, now_ns)

    def renewed(self, hold: Hold | None, now_ns: int) -> None:
        """The lease goes on; None: it is not this candidate's any more."""
        self._answered()
        if hold is None:
            self._mine, self._until_ns, self._due_ns = None, 0, now_ns
        else:
            self._holds(hold, now_ns)

    def request_failed(self, now_ns: int) -> None:
        """The store did not answer: nobody knows what came of the request."""
        if isinstance(self._request, Take):
            self._theirs = None
        self._answered()
        self._is_free = False
        self._due_ns = now_ns + self._terms.lease_ns // TRIES_PER_LEASE

    def lease_changed(self, now_ns: int) -> None:
        """The store says that the lease is not as it was."""
        self._changed = True
        if self._request is None:
            self._look_again_if_changed(now_ns)

    # -- inside

    def _answered(self) -> None:
        if self._request is None:
            raise AssertionError("an answer to no request")
        self._request = None

    def _holds(self, hold: Hold, now_ns: int) -> None:
        lease_ns = self._terms.lease_ns
        self._mine, self._led = hold, True
        self._epoch_seen = max(self._epoch_seen, hold.epoch)
        self._until_ns = self._asked_ns + lease_ns - lease_ns // GUARD_PER_LEASE
        self._due_ns = max(now_ns, self._asked_ns + lease_ns // RENEWALS_PER_LEASE)

    def _look_again_if_changed(self, now_ns: int) -> None:
        if self._changed and self._mine is None:
            self._due_ns, self._changed = now_ns, False
