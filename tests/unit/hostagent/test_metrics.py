"""The agent's metrics follow Prometheus' conventions, and no sum over labels counts anything twice."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from hostagent.disk.disk_options import DiskConfig
from hostagent.metrics import AgentMetrics
from kvdaemon.http import metrics_page
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key

SIZE = 64 * 1024


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two agents with a disk each, after a put on the first and a fetch by the second."""
    with cluster(0) as made:
        for name in ("a", "b"):
            made.add(disk=DiskConfig(str(tmp_path_factory.mktemp(name)), 4 * MIB))
        made.client(0).put(key(1), None, bytes(SIZE))
        made.publish(1, 0)
        with made.client(1).fetch([key(1)], deadline_s=10) as got:
            assert got.count == 1
        yield made


def families(two: Cluster, node: int = 1) -> dict[str, Metric]:
    return {one.name: one for one in two.agents[node].metrics.registry.collect()}


def value(two: Cluster, node: int, name: str, **labels: str) -> float:
    found = two.agents[node].metrics.registry.get_sample_value(f"kvcast_agent_{name}", labels)
    assert found is not None, name
    return found


def test_names_say_what_and_in_which_base_unit(two: Cluster) -> None:
    for name, family in families(two).items():
        assert re.fullmatch(r"[a-z][a-z_]*[a-z]", name), name
        assert name.startswith("kvcast_"), name
        assert family.documentation, name
        assert not re.search(r"_(ms|us|ns|milliseconds|kib|mib|percent|per_s|count|total)(_|$)", name), name
        if "seconds" in name or "bytes" in name:
            assert re.search(r"_(seconds|bytes|bytes_per_second)$", name), name
        assert "state" not in family.name or family.type == "gauge"
        assert family.type in ("counter", "gauge", "histogram"), name


def test_no_label_is_a_total_of_others(two: Cluster) -> None:
    totals = {"all", "any", "size", "sum", "total", "received_from_switch"}
    for name, family in families(two).items():
        values = {word for sample in family.samples for word in sample.labels.values()}
        assert not values & totals, name


def test_states_of_the_pool_add_up_to_its_size(two: Cluster) -> None:
    parts = sum(value(two, 0, "pool_bytes", state=state) for state in ("free", "ready", "filling"))
    assert parts == value(two, 0, "pool_size_bytes")
    assert value(two, 0, "pool_bytes", state="ready") == SIZE


def test_what_one_sent_the_other_received(two: Cluster) -> None:
    received = sum(value(two, 1, "read_received_bytes_total", transport=one) for one in ("tcp", "rdma"))
    received += 4096 * sum(value(two, 1, "cast_received_segments_total", source=one) for one in ("holder", "switch"))
    assert received >= SIZE

    def sent() -> float:
        casts = value(two, 0, "cast_sent_segments_total", target="readers")
        return value(two, 0, "read_sent_bytes_total") + 4096 * casts

    two.until(lambda: sent() >= SIZE)  # what a thread in C sends is counted a little later


def test_the_page_has_the_build_and_nothing_of_when_counters_were_made() -> None:
    page = metrics_page(AgentMetrics().registry, "agent")().body.decode()
    assert "_created" not in page
    names = {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}
    assert "kvcast_build_info" in names
    assert 'kvcast_build_info{component="agent"' in page
