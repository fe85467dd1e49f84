"""Whose an engine is: the user or group of its process, as the configuration names tenants; and whether one more may
connect. Pure.

A user that no tenant names is a tenant of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hostagent import limits
from hostagent.api.access import Access, Peer
from kvclient.messages import Status

BURST_S: Final = 0.1
"""A tenant that was quiet may send so many seconds' worth of requests at once."""
ROUNDING: Final = 1e-6
"""Whoever waits as long as it was told is not told again to wait for the rest of a sum of floats."""


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """One of the `tenants` section."""

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    weight: float = 1.0
    """Its share of the pool, beside the weights of the others."""
    connections_max: int = limits.API_CONNECTIONS_PER_TENANT_MAX
    requests_per_s: float = 0.0
    """More wait; 0: no limit."""
    namespace: str = ""
    """Its chunks go to namespaces below it, NAMESPACE/NAME, and it is told of no others; empty: as engines say, and
    it is told of all that the node may have."""


NO_TERMS: Final = TenantTerms()


class Pace:
    """Requests of one tenant, all its connections together: a token bucket."""

    def __init__(self, requests_per_s: float) -> None:
        """0: no limit."""
        self._per_s = requests_per_s
        self._burst = max(1.0, requests_per_s * BURST_S)
        self._left = self._burst
        self._at_s = 0.0
        self.delayed_count = 0

    @property
    def is_limited(self) -> bool:
        """Whether requests may ever have to wait."""
        return self._per_s > 0

    def wait_s(self, now_s: float) -> float:
        """0: the next request may be handled, and is counted. Else how long it has to wait."""
        if not self._per_s:
            return 0.0
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left >= 1.0 - ROUNDING:
            self._left -= 1.0
            return 0.0
        self.delayed_count += 1
        return (1.0 - self._left) / self._per_s


class Tenancy:
    """All tenants of one agent, as its local API sees them."""

    def __init__(self, terms: Mapping[str, TenantTerms] | None = None) -> None:
        self._terms = dict(terms or {})
        self._paces: dict[str, Pace] = {}

    def tenant_of(self, peer: Peer) -> str:
        """The first tenant that names the user, else the first that names one of its groups, else the user's own."""
        for name, terms in self._terms.items():
            if peer.user in terms.users:
                return name
        for name, terms in self._terms.items():
            if peer.groups & terms.groups:
                return name
        return f"user-{peer.user}"

    def connections_max(self, tenant: str) -> int:
        """Connections of all processes of a tenant."""
        return self._terms.get(tenant, NO_TERMS).connections_max

    def pace_of(self, tenant: str) -> Pace:
        """One for all connections of a tenant."""
        pace = self._paces.get(tenant)
        if pace is None:
            pace = self._paces[tenant] = Pace(self._terms.get(tenant, NO_TERMS).requests_per_s)
        return pace

    def delayed_count(self, tenant: str) -> int:
        """Times that requests of a tenant had to wait."""
        return self._paces[tenant].delayed_count if tenant in self._paces else 0


class Admission:
    """Counts connections and refuses those beyond the limits."""

    def __init__(self, access: Access, tenancy: Tenancy, refused: Callable[[Status], None]) -> None:
        """`tenancy`: whose processes are, and what they may; `refused(why)` hears of every refusal."""
        self.access = access
        self.tenancy = tenancy
        self._refused = refused
        self._by_process: Counter[int] = Counter()
        self._by_tenant: Counter[str] = Counter()

    def admit(self, peer: Peer, tenant: str) -> Status:
        """OK: count the connection, and call `connection_ended` when it ends. Else why not."""
        status = Status.OK
        if not self.access.allows(peer):
            status = Status.FORBIDDEN
        elif (
            self._by_process.total() >= limits.API_CONNECTIONS_MAX
            or self._by_process[peer.process] >= limits.API_CONNECTIONS_PER_PROCESS_MAX
            or self._by_tenant[tenant] >= self.tenancy.connections_max(tenant)
        ):
            status = Status.BUSY
        if status is Status.OK:
            self._by_process[peer.process] += 1
            self._by_tenant[tenant] += 1
        else:
            self._refused(status)
        return status

    def connection_ended(self, peer: Peer, tenant: str) -> None:
        """A connection that was admitted has ended."""
        self._by_tenant[tenant] -= 1
        self._by_process[peer.process] -= 1
        if not self._by_process[peer.process]:
            del self._by_process[peer.process]
