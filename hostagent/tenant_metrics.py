"""Figures of tenants, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from hostagent.api.tenancy import Tenancy
from hostagent.pool.tenants import Tenants
from hostagent.tier_metrics import PREFIX


class WatchedTenants(Collector):
    """Of all tenants that are configured, connected, or have chunks."""

    def __init__(self, tenants: Tenants, tenancy: Tenancy) -> None:
        self._tenants = tenants
        self._tenancy = tenancy

    def describe(self) -> Iterator[Metric]:
        """Nothing ahead of time: the names below cannot collide."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Figures of this moment."""
        label = ["tenant"]
        used = GaugeMetricFamily(f"{PREFIX}_tenant_used_bytes", "Pool bytes of a tenant's chunks", labels=label)
        held = GaugeMetricFamily(f"{PREFIX}_tenant_held_bytes", "Of these, what cannot be evicted now", labels=label)
        share = GaugeMetricFamily(f"{PREFIX}_tenant_share_bytes", "A tenant's share of the pool", labels=label)
        engines = GaugeMetricFamily(f"{PREFIX}_tenant_connections", "Connections of a tenant's engines", labels=label)
        refused = CounterMetricFamily(
            f"{PREFIX}_tenant_refused", "Times that a tenant found no room, or held its share already", labels=label
        )
        delayed = CounterMetricFamily(
            f"{PREFIX}_tenant_delayed", "Times that requests waited for the tenant's pace", labels=label
        )
        for name in self._tenants.names:
            used.add_metric([name], self._tenants.used_bytes[name])
            held.add_metric([name], self._tenants.held_bytes[name])
            share.add_metric([name], self._tenants.share_bytes(name))
            engines.add_metric([name], self._tenants.engines_count(name))
            refused.add_metric([name], self._tenants.refused_count[name])
            delayed.add_metric([name], self._tenancy.delayed_count(name))
        yield from (used, held, share, engines, refused, delayed)
