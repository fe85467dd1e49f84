"""What the daemon asks of an election, whoever decides it, and what an election by lease asks of its store.

The contract of `Election` (`tests/growth/test_elections.py` checks those by lease on their stores):

* `run` campaigns until it is cancelled, and tells the sink: Elected when this controller leads, and again before the
  time that the last one named, for as long as it leads; Deposed when another leads or nobody knows who.
* Of two Elected of different controllers the later one has the higher epoch. The only controller there is has none.
* `resign` lets others lead at once. It is called after `run` has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from controlplane.core.election import Hold
from controlplane.core.events import ElectionEvent

VALUE_BYTES_MAX: Final = 1_000_000
"""Of one value in a store: etcd takes 1.5 MiB in a request, a ConfigMap has 1 MiB."""

Sink: TypeAlias = Callable[[ElectionEvent], None]


class StoreUnavailableError(Exception):
    """The store does not answer, or not as it should; one line."""


class Election(Protocol):
    """Says whether this controller leads."""

    async def run(self, sink: Sink) -> None:
        """Campaign. Ends only by cancellation."""

    async def resign(self) -> None:
        """Give the leadership up, if it is this controller's."""


class LeaseStore(Protocol):
    """Keeps one lease. Every method but `watch` and `close` raises StoreUnavailableError."""

    @property
    def place(self) -> str:
        """For people: which store, where."""

    @property
    def ends_by_itself(self) -> bool:
        """The store forgets a holder that does not renew."""

    async def look(self) -> Hold | None:
        """Who holds the lease; None: nobody."""

    async def take(self, epoch_above: int, instead_of: Hold | None) -> Hold | None:
        """Hold the lease, under an epoch above this one and above all before; None: it is not as `instead_of` says."""

    async def renew(self, hold: Hold) -> Hold | None:
        """Go on holding it; None: it is somebody else's."""

    async def release(self, hold: Hold) -> None:
        """Hold it no longer."""

    async def watch(self, tell: Callable[[], None]) -> None:
        """Call `tell` when the lease has changed, where the store says so. Ends only by cancellation."""

    async def close(self) -> None:
        """End connections."""


class StatePlace(Protocol):
    """Keeps one document that all controllers share. Raises StoreUnavailableError."""

    @property
    def place(self) -> str:
        """For people: which store, where."""

    async def load(self) -> bytes | None:
        """What is there; None: nothing."""

    async def save(self, content: bytes, hold: Hold) -> None:
        """Replace it, as the leader that holds the lease."""

    async def close(self) -> None:
        """End connections."""


def epoch_after(before: int, wall_ms: int) -> int:
    """The epoch of a leadership after one with epoch `before`: milliseconds since 1970 where the clock allows, so that
    epochs go on rising when a store loses what it knew, or another one takes its place."""
    return max(before + 1, wall_ms)
