"""Traces of real agents behind a real switch: what a cast and the switch's memory look like at a collector."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from bmv2_testbed import client
from bmv2_testbed.bench.group import ReaderGroup, put_prefix
from bmv2_testbed.client import Testbed
from bmv2_testbed.content import Prefix
from bmv2_testbed.spec import CONTROLLER_MANAGEMENT_IP, TestbedSpec
from tests.unit.hostagent.collector import Collector, attributes, collecting

DEADLINE_S = 60.0
CAST = Prefix(seed=7, size_bytes=8 * 256 * 1024, chunk_bytes=256 * 1024)
SERVED = Prefix(seed=8, size_bytes=8 * 256 * 1024, chunk_bytes=256 * 1024)


PORT = 4317
"""Where agents find the collector, on the management network."""
pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("collector") / "otlp.sock"


@pytest.fixture(scope="module")
def collector(socket_path: Path) -> Iterator[Collector]:
    with collecting(path=socket_path) as made:
        yield made


@pytest.fixture(scope="module")
def testbed(collector: Collector, socket_path: Path) -> Iterator[Testbed]:
    """Three agents behind p4switch, all fetches traced, links slow enough for readers to meet."""
    spec = TestbedSpec(
        hosts=3,
        rate_bit_s=100 * 10**6,
        pool_bytes=16 * 2**20,
        slots=1024,
        controller_settings={"policy": {"admission": False}},
        agent_settings={"tracing": {"endpoint": f"http://{CONTROLLER_MANAGEMENT_IP}:{PORT}", "sample_ratio": 1}},
    )
    with client.running(spec) as running:
        relay = [sys.executable, str(Path(__file__).with_name("relay.py"))]
        running.run("relay", "switch", [*relay, CONTROLLER_MANAGEMENT_IP, str(PORT), str(socket_path)])
        yield running


def read(testbed: Testbed, collector: Collector, prefix: Prefix, *hosts: int) -> list[Span]:
    """Spans of what these hosts fetch, all at once and each the whole prefix."""
    before = len(collector.spans)
    with ReaderGroup(testbed, prefix, hosts, deadline_s=DEADLINE_S) as readers:
        readers.start()
        for report in readers.reports():
            assert report is not None
            assert report.verified, report.reason

    def copied(spans: Sequence[Span]) -> list[Span]:
        return [span for span in spans[before:] if span.name == "copy"]

    spans = collector.until(lambda spans: len(copied(spans)) >= len(hosts))
    traces = {span.trace_id for span in copied(spans)}
    return [span for span in spans[before:] if span.trace_id in traces]


def named(spans: Sequence[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def test_a_cast_to_two_readers(testbed: Testbed, collector: Collector) -> None:
    put_prefix(testbed, CAST)
    spans = read(testbed, collector, CAST, 1, 2)
    fetches, casts = named(spans, "fetch"), named(spans, "cast")
    assert [attributes(span)["kvcast.bytes"] for span in fetches] == [CAST.size_bytes] * 2
    assert {span.parent_span_id for span in casts} == {span.span_id for span in fetches}
    for cast in casts:
        assert attributes(cast)["kvcast.bytes"] > 0
        assert attributes(cast)["kvcast.source"] == ["holder"]
    names = {span.name for span in spans}
    assert {"fetch", "lookup", "gate", "join", "cast", "verify", "copy"} <= names
    assert {"lead", "follow"} <= names, "one of the two pulls, the other follows"


def test_the_switch_serves(testbed: Testbed, collector: Collector) -> None:
    put_prefix(testbed, SERVED)
    testbed.serve_from_switch(SERVED.chunk_keys()[-1], len(SERVED.chunk_keys()))
    spans = read(testbed, collector, SERVED, 1, 2)
    sources = {source for span in named(spans, "cast") for source in attributes(span)["kvcast.source"]}
    assert "switch" in sources
    assert all(attributes(span)["kvcast.outcome"] == "OK" for span in named(spans, "fetch"))
