"""Which peers are read over TCP for a while, because RDMA brought nothing from them. Pure.

RDMA can be broken where TCP works: packets of RoCE that a switch drops, a NIC that reports nothing any more. Reads from
such a peer fail again and again, each after the NIC's last retry; so after VERBS_READ_FAILURES_MAX connections in a row
that brought nothing, the next reads take the detour, and after VERBS_READ_DETOUR_S RDMA gets another try.
"""

from __future__ import annotations

from collections import OrderedDict

from hostagent import limits


class Detours:
    """Peers by the endpoint of their reads."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, int] = OrderedDict()
        """Connections in a row that brought nothing."""
        self._until_s: OrderedDict[str, float] = OrderedDict()

    def needed(self, endpoint: str, now_s: float) -> bool:
        """Whether to read from this peer over TCP now."""
        until_s = self._until_s.get(endpoint)
        if until_s is None:
            return False
        if now_s < until_s:
            return True
        del self._until_s[endpoint]
        return False

    def failed(self, endpoint: str, now_s: float) -> bool:
        """A connection broke. Returns whether a detour begins."""
        count = self._failures.pop(endpoint, 0) + 1
        if count >= limits.VERBS_READ_FAILURES_MAX:
            return self.begin(endpoint, now_s)
        while len(self._failures) >= limits.VERBS_PEERS_REMEMBERED_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[endpoint] = count
        return False

    def begin(self, endpoint: str, now_s: float) -> bool:
        """Read from this peer over TCP from now on. Returns True."""
        self._until_s.pop(endpoint, None)
        while len(self._until_s) >= limits.VERBS_PEERS_REMEMBERED_MAX:
            del self._until_s[next(iter(self._until_s))]
        self._until_s[endpoint] = now_s + limits.VERBS_READ_DETOUR_S
        return True

    def worked(self, endpoint: str) -> None:
        """A read by RDMA brought all of its bytes."""
        self._failures.pop(endpoint, None)
