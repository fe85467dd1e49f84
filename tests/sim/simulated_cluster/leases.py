"""A store of one lease, as etcd or Kubernetes keep it: `controlplane.election` says what they promise."""

from controlplane.core.election import Hold
from controlplane.election.contract import epoch_after
from kvproto.limits import MS

WALL_MS = 1_700_000_000_000
"""When simulations begin."""


class SimulatedLeaseStore:
    """Consistent, never loses what it was told; who reaches it is not its business."""

    def __init__(self, lease_ns: int, *, ends_by_itself: bool) -> None:
        """`ends_by_itself`: a holder that does not renew is forgotten, as by etcd."""
        self.lease_ns = lease_ns
        self.ends_by_itself = ends_by_itself
        self.place = "a simulated etcd" if ends_by_itself else "a simulated Kubernetes"
        self._hold: Hold | None = None
        self._epoch = self._version = 0
        self._ends_ns = 0

    def look(self, now_ns: int) -> Hold | None:
        """Who holds the lease."""
        if self.ends_by_itself and now_ns >= self._ends_ns:
            self._hold = None
        return self._hold

    def take(self, name: str, epoch_above: int, instead_of: Hold | None, now_ns: int) -> Hold | None:
        """Hold the lease, if it is as the candidate has seen it."""
        if self.look(now_ns) != instead_of:
            return None
        self._epoch = epoch_after(max(epoch_above, self._epoch), WALL_MS + now_ns // MS)
        return self._written(name, now_ns)

    def renew(self, hold: Hold, now_ns: int) -> Hold | None:
        """Go on holding it. A renewal of whose answer nobody heard does not end a leadership."""
        found = self.look(now_ns)
        if found is None or (found.holder, found.epoch) != (hold.holder, hold.epoch):
            return None
        if self.ends_by_itself:
            self._ends_ns = now_ns + self.lease_ns
            return found
        return self._written(hold.holder, now_ns)

    def release(self, hold: Hold, now_ns: int) -> None:
        """Hold it no longer."""
        if self.look(now_ns) == hold:
            self._hold = None

    def _written(self, name: str, now_ns: int) -> Hold:
        self._version += 1
        self._ends_ns = now_ns + self.lease_ns
        lasts_ns = 0 if self.ends_by_itself else self.lease_ns
        self._hold = Hold(name, self._epoch, self._version, lasts_ns)
        return self._hold
