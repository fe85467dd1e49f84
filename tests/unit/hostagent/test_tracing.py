"""Traces of fetches: which spans there are, what they say, whose children they are, and that they never disturb."""

from __future__ import annotations

import dataclasses
import gc
import logging
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

import hostagent.tracing.spans as spans_module
import hostagent.tracing.timeline as timeline_module
from hostagent.config import parse
from hostagent.core import effects, events
from hostagent.core.events import LeaseId
from hostagent.tracing import Guarded, TracingConfig
from hostagent.tracing.export import OtlpExporter
from hostagent.tracing.spans import FetchTracer
from hostagent.tracing.timeline import Timeline
from kvclient import messages
from kvclient.client import AgentClient, Status
from kvclient.messages import Frame, Kind, MalformedFrameError
from kvdaemon.errors import ConfigError
from kvpolicy.tiers.prefill import Prefill
from kvproto.commands import SendControl
from kvproto.events import ControlReceived, ReadDone, ReadFailed, SegmentsReceived
from kvproto.ids import Address, Member
from kvproto.wire.control import TAG_LEADS, Control, Flag, Op
from tests.digests import hashed
from tests.ports import free_port
from tests.unit.hostagent.agent_harness import Cluster, cluster, key
from tests.unit.hostagent.collector import attributes, collecting
from tests.unit.hostagent.core_harness import ENGINE, MS, PAGE, Scene, entry

ROOT = Path(__file__).parents[3]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
NOT_SAMPLED = f"00-{TRACE}-{PARENT}-00"
SIZE = 256 * 1024
ME, OTHER = Member(3), Member(5)
HOLDER, SWITCH = Address(1), Address(9)


class Memory:
    """A tracer whose spans stay here."""

    def __init__(self, ratio: float = 1.0, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(ratio)), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = FetchTracer(provider, clock_ns)

    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def timelines() -> list[Timeline]:
    """Those that some tracer still follows."""
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, Timeline)]


def says(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


# ---------------------------------------------------------------------- one node, and what it is told


class TracedScene(Scene):
    """A core whose every event a tracer sees, as in the agent."""

    def __init__(self, **options: Any) -> None:
        self.memory = Memory(clock_ns=lambda: self.now_ns)
        self.now_ns = 0
        super().__init__(**options)
        self.say(events.Welcomed(1, 0, ME, PAGE, None, 0, 0.0))

    def say(self, event: events.Event) -> None:
        event = self.memory.tracer.begun(event, self.now_ns)
        made = self.core.handle(event, self.now_ns)
        self.memory.tracer.saw(event, made, self.now_ns, self.core.fetches.arrivals.parameters)
        self.made += made

    def notice(self, number: int, member: Member, *others: Member, tag: int = 0) -> None:
        members = sum(1 << one for one in {member, ME, *others})
        message = Control(Op.NOTICE, key(number), 8, member=member, members=members, tag=tag, flags=Flag.JOINED)
        self.say(events.ControlsReceived((ControlReceived(message, SWITCH),)))

    def casts(self, number: int, *segments: int, switch: bool = False) -> None:
        self.now_ns += MS
        from_switch = len(segments) if switch else 0
        self.say(SegmentsReceived(key(number), np.array(segments, np.uint32), HOLDER, from_switch))

    def answer(self) -> effects.FetchAnswered:
        (answer,) = self.take(effects.FetchAnswered)
        return answer


def lasts_ms(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / MS


def test_a_follower_joins_follows_and_verifies() -> None:
    scene = TracedScene()
    scene.directory(entry(1, 1))
    scene.fetch(1)
    scene.now_ns += 2 * MS
    scene.notice(1, OTHER, tag=TAG_LEADS)
    scene.casts(1, 0, 1, 2, 3)
    scene.casts(1, 4, 5, 6, 7)
    scene.now_ns += 3 * MS
    scene.compute(1)
    assert scene.answer().status is Status.OK
    names = [span.name for span in scene.memory.spans()]
    assert sorted(names) == ["cast", "fetch", "follow", "gate", "join", "lookup", "verify"]
    assert lasts_ms(scene.memory.one("join")) == 2
    assert lasts_ms(scene.memory.one("follow")) == 2
    assert lasts_ms(scene.memory.one("cast")) == 1
    assert lasts_ms(scene.memory.one("verify")) == 3
    cast = says(scene.memory.one("cast"))
    assert cast == {
        "kvcast.chunks": 1,
        "kvcast.bytes": 8 * PAGE,
        "kvcast.segments": 8,
        "kvcast.segments.switch": 0,
        "kvcast.source": ("holder",),
    }
    fetch = scene.memory.one("fetch")
    assert fetch.context is not None
    assert all(
        span.parent is not None and span.parent.span_id == fetch.context.span_id
        for span in scene.memory.spans()
        if span is not fetch
    )
    assert says(fetch)["kvcast.source"] == ("cast",)
    scene.close()


def test_a_leader_leads_and_hands_over() -> None:
    scene = TracedScene()
    scene.directory(entry(1, 1))
    scene.fetch(1)
    scene.notice(1, ME, OTHER)
    scene.pass_ms(50)
    led = [one.message for one in scene.take(SendControl) if one.message.op is Op.GET]
    assert led, "nobody else pulls: this node does"
    scene.notice(1, OTHER, tag=TAG_LEADS)
    scene.casts(1, *range(8))
    scene.compute(1)
    assert {"lead", "follow"} <= {span.name for span in scene.memory.spans()}
    lead, follow = scene.memory.one("lead"), scene.memory.one("follow")
    assert lead.end_time == follow.start_time
    scene.close()


def test_what_the_switch_serves_and_what_a_cast_missed() -> None:
    scene = TracedScene()
    scene.directory(entry(1, 1, served=True))
    scene.fetch(1)
    scene.notice(1, ME, OTHER)
    scene.notice(1, OTHER, tag=TAG_LEADS)
    scene.casts(1, 0, 1, 2, 3, switch=True)
    while not (reads := scene.take(effects.StartRead)):
        scene.pass_ms(10)
    for read in reads:
        scene.say(ReadDone(read.read))
    while scene.core.fetches.under_way_count:
        for read in scene.take(effects.StartRead):
            scene.say(ReadDone(read.read))
        scene.compute(1)
        scene.pass_ms(10)
    cast, repair = says(scene.memory.one("cast")), scene.memory.one("repair")
    assert cast["kvcast.source"] == ("switch",)
    assert cast["kvcast.segments.switch"] == 4
    assert repair.kind is SpanKind.CLIENT
    assert says(repair) == {
        "kvcast.chunks": 1,
        "kvcast.bytes": 4 * PAGE,
        "kvcast.node": "n1",
        "server.address": "0.0.0.1",
        "server.port": 1,
    }
    assert not scene.memory.named("read")
    scene.close()


def test_a_fetch_that_fails_says_why() -> None:
    scene = TracedScene()
    scene.directory(entry(1, 1))
    scene.fetch(1)
    scene.notice(1, ME)
    while not (reads := scene.take(effects.StartRead)):
        scene.pass_ms(10)
    for read in reads:
        scene.say(ReadFailed(read.read, gone=True))
    assert scene.answer().status is Status.UNAVAILABLE
    fetch = scene.memory.one("fetch")
    assert fetch.status.status_code is StatusCode.ERROR
    assert says(fetch)["error.type"] == "UNAVAILABLE"
    (event,) = fetch.events
    assert (event.name, dict(event.attributes or {})["kvcast.node"]) == ("bad copy", "n1")
    assert says(scene.memory.one("read"))["kvcast.failed"] == len(reads)
    scene.close()


def test_the_gate_gives_its_reason() -> None:
    scene = TracedScene()
    scene.directory(entry(1, 1))
    scene.fetch(1, recompute_s=1e-6)
    assert scene.answer().status is Status.GATE
    gate = says(scene.memory.one("gate"))
    assert (gate["kvcast.choice"], gate["kvcast.reason"]) == ("recompute", "GATE")
    assert gate["kvcast.recompute_seconds"] == pytest.approx(1e-6)
    assert scene.memory.one("fetch").status.status_code is StatusCode.UNSET, "a decision, no error"
    scene.close()


def test_chunks_from_disk_are_loads() -> None:
    scene = TracedScene(disk_pages=8)
    assert scene.disk is not None
    scene.disk.store(1)
    scene.fetch(1)
    scene.now_ns += MS
    scene.load()
    load = scene.memory.one("load")
    assert (lasts_ms(load), says(load)["kvcast.bytes"]) == (1, PAGE)
    scene.close()


def test_an_engine_that_goes_away_leaves_no_span_open() -> None:
    scene = TracedScene()
    scene.directory(entry(1, 1))
    scene.put(2)
    scene.fetch(2)
    scene.fetch(1)
    scene.say(events.EngineDisconnected(ENGINE))
    assert sorted(str(says(span)["kvcast.outcome"]) for span in scene.memory.named("fetch")) == ["CANCELLED", "OK"]
    assert len(scene.memory.named("copy")) == 1
    assert not timelines()
    scene.close()


def test_a_fetch_of_thousands_of_chunks_is_a_handful_of_spans() -> None:
    scene = TracedScene(pool_pages=2048)
    numbers = range(1, 1001)
    scene.directory(*(entry(number, 1, pages=1) for number in numbers))
    scene.fetch(*numbers)
    while scene.core.fetches.under_way_count:
        for number in numbers:
            scene.notice(number, ME)
        for read in scene.take(effects.StartRead):
            scene.say(ReadDone(read.read))
        for asked in scene.take(effects.ComputeDigest):
            scene.say(events.DigestComputed(asked.chunk, hashed(int.from_bytes(asked.chunk.key, "big")), asked.use))
        scene.pass_ms(10)
    assert len(scene.memory.spans()) < 12
    assert says(scene.memory.one("verify"))["kvcast.chunks"] == 1000
    scene.close()


def test_a_fetch_that_waits_for_what_is_being_computed() -> None:
    scene = TracedScene()
    scene.directory()
    other = events.EngineId(2)
    scene.say(events.ClaimMade(other, (key(1), key(2)), PAGE, (0.1, 0.2)))
    scene.request = 100
    keys = (key(1), key(2))
    scene.say(events.ChunksRequested(ENGINE, 99, keys, 9.0, Prefill(1.0)))
    assert says_nothing(scene)
    for number in (1, 2):
        scene.now_ns += 50 * MS
        scene.put(number)
    assert scene.answer().status is Status.OK
    assert lasts_ms(scene.memory.one("wait")) == 100
    assert says(scene.memory.one("lookup"))["kvcast.chunks.computing"] == 2
    scene.say(events.EngineDisconnected(other))
    scene.close()
    assert not timelines()


def says_nothing(scene: Scene) -> bool:
    return not scene.take(effects.FetchAnswered)


class Broken:
    """A tracer with a bug."""

    def __init__(self, where: str) -> None:
        self._where = where

    def begun(self, event: events.Event, now_ns: int) -> events.Event:
        if self._where == "begun":
            raise ZeroDivisionError(now_ns)
        return event

    def saw(self, event: events.Event, made: object, now_ns: int, _at: object) -> None:
        if self._where == "saw":
            raise ZeroDivisionError(now_ns)


@pytest.mark.parametrize("where", ["begun", "saw"])
def test_a_bug_in_a_tracer_costs_traces_and_no_fetch(where: str) -> None:
    bugs: list[Exception] = []
    with cluster(1) as one:
        one.agents[0].tracer = Guarded(Broken(where), bugs.append)
        client = one.client(0)
        client.put(key(1), None, bytes(SIZE))
        with client.fetch([key(1)], deadline_s=1) as got:
            assert got.count == 1
    assert [type(bug) for bug in bugs] == [ZeroDivisionError], "once"


def test_a_request_number_taken_twice_leaves_nothing_behind() -> None:
    scene = TracedScene()
    scene.directory(entry(1, 1))
    request = scene.fetch(1)
    assert len(timelines()) == 1
    scene.say(events.ChunksRequested(ENGINE, request, (key(1),), 1.0, None))
    scene.say(events.EngineDisconnected(ENGINE))
    assert not timelines()
    scene.close()


# ---------------------------------------------------------------------- real agents


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def pair(memory: Memory) -> Iterator[Cluster]:
    """Two agents; the second one is traced, and misses a chunk that the first has."""
    with cluster(2) as made:
        made.agents[1].tracer = memory.tracer
        made.client(0).put(key(1), None, bytes(SIZE))
        made.publish(1, 0)
        yield made


def test_a_fetch_between_two_agents(pair: Cluster, memory: Memory) -> None:
    client = pair.client(1)
    with client.fetch([key(1), key(2)], deadline_s=10, traceparent=SAMPLED) as got:
        assert (got.count, got.outcome) == (1, Status.NOT_FOUND)
        assert not memory.named("copy"), "the engine still reads"
    pair.until(lambda: bool(memory.named("copy")))
    fetch = memory.one("fetch")
    assert fetch.context is not None
    assert fetch.parent is not None
    assert (f"{fetch.context.trace_id:032x}", f"{fetch.parent.span_id:016x}") == (TRACE, PARENT)
    assert fetch.kind is SpanKind.SERVER
    assert says(fetch) == {
        "kvcast.outcome": "NOT_FOUND",
        "kvcast.chunks.asked": 2,
        "kvcast.chunks": 1,
        "kvcast.bytes": SIZE,
        "kvcast.source": ("holder",),
        "kvcast.chunks.holder": 1,
    }
    read = memory.one("read")
    assert says(read)["kvcast.node"] == "n0"
    assert says(read)["server.address"] == "127.79.0.1"
    assert says(read)["kvcast.bytes"] == SIZE
    assert {span.name for span in memory.spans()} >= {"fetch", "lookup", "gate", "read", "verify", "copy"}
    for span in memory.spans():
        assert span.start_time is not None
        assert span.end_time is not None
        assert fetch.start_time is not None
        assert fetch.start_time <= span.start_time <= span.end_time
        if span.name != "copy":
            assert fetch.end_time is not None
            assert span.end_time <= fetch.end_time
    with client.fetch([key(1)], deadline_s=10) as again:
        assert again.count == 1
    assert len(memory.named("fetch")) == 1, "the agent was not asked"
    asking = AgentClient(pair.agents[1].config.api_socket, local_reads=False)
    with asking, asking.fetch([key(1)], deadline_s=10) as again:
        assert again.count == 1
    assert len(memory.named("fetch")) == 2
    assert says(memory.named("lookup")[1])["kvcast.chunks.local"] == 1


def test_what_the_engine_does_not_sample_is_not_traced(pair: Cluster, memory: Memory) -> None:
    with pair.client(1).fetch([key(1)], deadline_s=10, traceparent=NOT_SAMPLED) as got:
        assert got.count == 1
    assert memory.spans() == []


@pytest.mark.parametrize(
    "garbage", ["", "nonsense", "00-zz-zz-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 500, "ä"]
)
def test_what_is_no_trace_context_begins_a_trace(pair: Cluster, memory: Memory, garbage: str) -> None:
    with pair.client(1).fetch([key(1)], deadline_s=10, traceparent=garbage) as got:
        assert got.count == 1
    assert memory.one("fetch").parent is None


def test_a_ratio_of_zero_traces_only_what_the_engine_samples() -> None:
    memory = Memory(ratio=0.0)
    with cluster(1) as one:
        one.agents[0].tracer = memory.tracer
        client = one.client(0)
        client.fetch([key(1)], deadline_s=1).release()
        assert memory.spans() == []
        client.fetch([key(1)], deadline_s=1, traceparent=SAMPLED).release()
        assert len(memory.named("fetch")) == 1


# ---------------------------------------------------------------------- the local protocol


def test_a_trace_context_travels_behind_the_keys() -> None:
    body, trace = messages.pack_fetch([key(1)], 1.0, {}), messages.pack_traceparent(SAMPLED)
    (frame,) = messages.FrameReader().feed(messages.pack(Kind.FETCH, 1, body + trace, status=len(trace), count=1))
    assert messages.split_traceparent(frame) == (body, SAMPLED)
    assert messages.split_traceparent(Frame(Kind.FETCH, 0, 1, 1, body)) == (body, "")


@pytest.mark.parametrize(
    ("status", "body"), [(200, bytes(400)), (55, bytes(20)), (2, b"\xff\xff")], ids=["long", "short", "no ascii"]
)
def test_a_false_length_is_malformed(status: int, body: bytes) -> None:
    with pytest.raises(MalformedFrameError, match="trace context"):
        messages.split_traceparent(Frame(Kind.FETCH, status, 1, 1, body))


# ---------------------------------------------------------------------- configuration, OTLP


def test_configuration() -> None:
    plain = {"node": "n", "data": {"address": "127.0.0.1"}}
    assert parse(plain).tracing is None
    assert parse({**plain, "tracing": {"sample_ratio": 0.5}}).tracing is None, "off without an endpoint"
    endpoint = "http://127.0.0.1:4317"
    assert parse({**plain, "tracing": {"endpoint": endpoint}}).tracing == TracingConfig(endpoint, 0.01)
    for section, wrong in (
        ({"endpoint": "127.0.0.1:4317"}, "tracing.endpoint: .* is not http://HOST:PORT"),
        ({"endpoint": "http://127.0.0.1"}, "tracing.endpoint"),
        ({"endpoint": endpoint, "sample_ratio": 2}, "tracing.sample_ratio"),
        ({"colour": "red"}, "unknown key 'tracing.colour'"),
    ):
        with pytest.raises(ConfigError, match=wrong):
            parse({**plain, "tracing": section})


def traced(one: Cluster, endpoint: str) -> None:
    """One more agent, traced to a collector."""
    original = one.config

    def config(index: int, **options: object) -> object:
        return dataclasses.replace(original(index, **options), tracing=TracingConfig(endpoint, 1.0))  # type: ignore[arg-type]

    one.config = config  # type: ignore[method-assign, assignment]
    one.add()


def test_spans_reach_a_collector() -> None:
    with collecting() as collector, cluster(0) as one:
        traced(one, collector.endpoint)
        client = one.client(0)
        client.put(key(1), None, bytes(SIZE))
        client.fetch([key(1)], deadline_s=1, traceparent=SAMPLED).release()
        spans = collector.until(lambda spans: any(span.name == "copy" for span in spans))
        (fetch,) = (span for span in spans if span.name == "fetch")
        assert (fetch.trace_id.hex(), fetch.parent_span_id.hex()) == (TRACE, PARENT)
        assert attributes(fetch)["kvcast.source"] == ["local"]
        resource = collector.resources[0]
        assert (resource["service.name"], resource["service.instance.id"]) == ("kvcast-agent", "n0")


def test_an_orderly_stop_sends_what_is_left() -> None:
    with collecting() as collector:
        with cluster(0) as one:
            traced(one, collector.endpoint)
            one.client(0).fetch([key(1)], deadline_s=1).release()
        assert "fetch" in {span.name for span in collector.spans}


def test_a_collector_that_is_away_is_one_line_and_no_fetch_waits(caplog: pytest.LogCaptureFixture) -> None:
    with cluster(0) as one:
        traced(one, f"http://127.0.0.1:{free_port()}")
        client = one.client(0)
        client.put(key(1), None, bytes(SIZE))
        for _ in range(20):
            with client.fetch([key(1)], deadline_s=1) as got:
                assert got.count == 1
    assert [record.message for record in caplog.records if "opentelemetry" in record.name] == []


def test_spans_lost_and_delivered_again_are_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scene = TracedScene()
    scene.fetch(1)
    spans = scene.memory.spans()
    port = free_port()
    exporter = OtlpExporter(f"http://127.0.0.1:{port}", send_s=0.5)
    try:
        exporter.export(spans)
        exporter.export(spans)
        with collecting(port) as collector:
            assert collector.port == port
            # A batch may arrive too late for the exporter, which tries for half a second.
            while exporter.export(spans) is not SpanExportResult.SUCCESS:
                pass
            assert collector.spans
    finally:
        exporter.shutdown()
    said = [record.message for record in caplog.records if record.name.startswith(("hostagent", "opentelemetry"))]
    assert [re.sub(r":\d+", ":PORT", line) for line in said] == [
        "no collector answers at http://127.0.0.1:PORT: traces are lost until one does",
        "the collector at http://127.0.0.1:PORT takes traces again",
    ]
    scene.close()


def test_an_agent_that_is_not_to_trace_does_not_load_opentelemetry() -> None:
    code = "import sys, hostagent.daemon; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_was_leased_is_copied_once() -> None:
    scene = TracedScene()
    scene.put(1)
    scene.fetch(1)
    answer = scene.answer()
    scene.now_ns += 4 * MS
    for _ in range(2):
        scene.say(events.LeaseReleased(ENGINE, answer.lease))
    scene.say(events.LeaseReleased(ENGINE, LeaseId(99)))
    assert lasts_ms(scene.memory.one("copy")) == 4
    scene.close()


def test_every_attribute_is_documented() -> None:
    sources = [Path(module.__file__ or "").read_text() for module in (spans_module, timeline_module)]
    made = {name for text in sources for name in re.findall(r'"kvcast\.([a-z_.]+)"', text)}
    assert len(made) > 12
    page = (ROOT / "docs" / "how-to" / "traces.md").read_text()
    assert {name for name in made - {"agent", "key"} if f"`{name}`" not in page} == set()
    assert {step.value for step in timeline_module.Step if f"`{step.value}`" not in page} == set()
