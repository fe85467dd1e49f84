"""What people watch: the stream of increments says what a fresh look says, and a look costs the same in any pool."""

from __future__ import annotations

import random
import sys
from collections import Counter
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core import views
from controlplane.core.directory import Directory
from controlplane.core.events import HelloReceived, StreamEnded
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.live import Increments, Tables, apply
from controlplane.core.live import runs as prefixes_module
from controlplane.core.live.figures import BUCKET_NS, BUCKETS, EVENTS, Events, NodeFigures, Sources
from controlplane.core.live.runs import Prefixes, Runs
from controlplane.core.switch.target import LostReport
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import CHUNK, SECOND, Scene, facts, hello, key, record

SOURCES = [rpc.SOURCE_LOCAL, rpc.SOURCE_CAST, rpc.SOURCE_SWITCH, rpc.SOURCE_HOLDER, rpc.SOURCE_DISK, rpc.SOURCE_MISS]


def fetch(
    name: object, source: rpc.Source.ValueType = rpc.SOURCE_CAST, holder: int = 0, waited_ms: int = 5
) -> rpc.FetchEvent:
    size = 0 if source in (rpc.SOURCE_LOCAL, rpc.SOURCE_DISK, rpc.SOURCE_MISS) else CHUNK
    return rpc.FetchEvent(key=key(name), source=source, bytes=size, holder=holder, waited_us=waited_ms * 1000)


def chain(count: int, name: str = "c") -> list[rpc.ChunkRecord]:
    return [record(f"{name}{at}", f"{name}{at - 1}" if at else None, at) for at in range(count)]


# -- runs of the prefix tree


def runs_anew(directory: Directory) -> dict[ChunkKey, tuple[ChunkKey, ...]]:
    """The runs by their definition, each by its first chunk."""
    runs: dict[ChunkKey, tuple[ChunkKey, ...]] = {}
    for chunk in directory:
        parent = chunk.facts.parent
        if parent is not None and parent in directory and len(directory.children(parent)) == 1:
            continue
        row = [chunk.key]
        while len(below := directory.children(row[-1])) == 1:
            row += below
        runs[chunk.key] = tuple(row)
    return runs


@pytest.mark.parametrize("seed", range(30))
def test_runs_are_those_of_the_tree(seed: int) -> None:
    rng = random.Random(seed)
    directory = Directory()
    runs = Runs(directory)
    names = 40
    parents: list[int | None] = [None, *(rng.choice([at - 1, rng.randrange(at)]) for at in range(1, names))]
    for _ in range(600):
        name, node = rng.randrange(names), NodeIndex(rng.randrange(2))
        match rng.randrange(6):
            case 0 | 1 | 2:
                # Sometimes another parent or size than before, as of somebody's own idea of the same key.
                odd = rng.random() < 0.1
                size = CHUNK * (1 + odd)
                parent = rng.randrange(names) if odd else parents[name]
                directory.add_copy(node, facts(name, None if parent == name else parent, size=size))
            case 3 | 4:
                directory.remove_copy(node, key(name))
            case _:
                directory.set_served(key(name), rng.random() < 0.5)
        wanted = runs_anew(directory)
        assert sum(map(len, wanted.values())) == len(directory), "the tree has no cycles"
        for first, row in wanted.items():
            run = runs.run_of(first)
            assert run is not None
            assert {runs.run_of(one) for one in row} == {run}
            chunks = [chunk for one in row if (chunk := directory.get(one)) is not None]
            assert (run.first, run.chunks, run.size_bytes, run.served_chunks) == (
                first,
                len(row),
                sum(chunk.facts.size_bytes for chunk in chunks),
                sum(chunk.served for chunk in chunks),
            )


def test_a_branch_costs_the_shorter_side() -> None:
    directory = Directory()
    runs = Runs(directory)
    length = 2000
    for at in range(length):
        directory.add_copy(NodeIndex(0), facts(at, at - 1 if at else None))
    for at in (3, length - 4):
        before = runs.moves
        directory.add_copy(NodeIndex(0), facts("branch", at))
        directory.remove_copy(NodeIndex(0), key("branch"))
        assert runs.moves - before < 20
    assert runs.moves <= length + 40


# -- the stream


class Watcher:
    """Somebody who reads the stream; a look now and then is missed."""

    def __init__(self) -> None:
        self.tables: Tables = {}
        self.sequence = 0
        self.snapshots = 0

    def read(self, increments: Increments) -> None:
        increment = increments.after(self.sequence)
        apply(self.tables, rpc.LiveIncrement.FromString(increment.SerializeToString()))
        self.sequence = increment.sequence
        self.snapshots += increment.snapshot


def step(scene: Scene, rng: random.Random) -> None:
    """Something happens."""
    session = rng.randrange(1, 4)
    name = f"c{rng.randrange(12)}"
    match rng.randrange(10):
        case 0:
            scene.attach(session, chain(rng.randrange(12)))
        case 1 | 2 | 3:
            events = [fetch(f"c{at}", rng.choice(SOURCES), rng.randrange(4)) for at in range(rng.randrange(12))]
            scene.say(session, usage=rpc.Usage(fetches=events))
        case 4:
            scene.heat(name, rng.randrange(1, 16))
        case 5:
            for task in scene.tasks(session, "fill") if session in scene.sent else ():
                scene.finish(session, task, rng.choice([rpc.TaskResult.DONE, rpc.TaskResult.FAILED]))
        case 6:
            scene.say(
                session,
                heartbeat=rpc.Heartbeat(
                    sent_bytes=rng.randrange(10**6),
                    arriving=[rpc.Arriving(key=key(name), size_bytes=CHUNK, left_bytes=rng.randrange(CHUNK))],
                    gate_decisions={"fetch": rng.randrange(5), "recompute": rng.randrange(5)},
                    gate_verdict=rpc.GateVerdict(choice="fetch", expected_us=1500, recompute_us=9000),
                    drops={"bad_version": rng.randrange(3)},
                ),
            )
        case 7:
            scene.announce(session, [record(f"x{rng.randrange(4)}", name, 20)])
        case 8:
            scene.handle(LostReport(key(name), 0))
            scene.advance()
        case _:
            scene.now += rng.randrange(3 * SECOND)
            scene.advance()


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_snapshot_and_increments_are_a_fresh_snapshot(seed: int) -> None:
    rng = random.Random(seed)
    scene = Scene(slots=40)
    scene.attach(1, chain(6))
    scene.up()
    increments = Increments(7)
    always, sometimes = Watcher(), Watcher()
    for _ in range(40):
        step(scene, rng)
        tables = scene.live.tables(scene.now)
        increments.look(tables, views.summary(scene.core, "p4switch", "", scene.now))
        always.read(increments)
        if rng.random() < 0.4:
            sometimes.read(increments)
            assert sometimes.tables == tables
        assert always.tables == tables
        assert always.tables == scene.live.tables(scene.now), "a look changes nothing"
    assert always.snapshots == 1


def test_who_is_slow_gets_a_snapshot() -> None:
    scene = Scene()
    increments = Increments(7)
    watcher = Watcher()
    for looks in (1, 1, 2, 1):
        for _ in range(looks):
            scene.say(1, usage=rpc.Usage())
            increments.look(scene.live.tables(scene.now), rpc.StatusReply())
        watcher.read(increments)
    assert (watcher.sequence, watcher.snapshots) == (5, 2)


# -- what a look costs


def calls_of_a_look(chunks: int, fetched: int) -> Counter[str]:
    """Calls that a look makes, those of iterators and comprehensions included."""
    scene = Scene(slots=64)
    scene.attach(1, chain(chunks))
    scene.attach(2)
    scene.up()
    names = [f"c{at}" for at in range(fetched)]
    scene.say(2, usage=rpc.Usage(fetches=[fetch(name) for name in names]))
    for name in names[:4]:
        scene.fill(name)
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        calls[f"{event} in {frame.f_code.co_name}"] += 1

    scene.live.tables(scene.now)
    sys.setprofile(count)
    try:
        tables = scene.live.tables(scene.now)
        views.summary(scene.core, "p4switch", "", scene.now)
    finally:
        sys.setprofile(None)
    (prefix,) = tables["prefixes"].values()
    assert prefix.chunks == chunks
    assert prefix.delivered.cast_bytes == fetched * CHUNK
    return calls


def test_a_look_costs_the_same_in_any_pool() -> None:
    small, large = calls_of_a_look(chunks=100, fetched=100), calls_of_a_look(chunks=5000, fetched=5000)
    assert large == small


def test_no_more_prefixes_are_remembered_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes_module, "KEPT", 50)
    directory = Directory()
    runs = Runs(directory)
    prefixes = Prefixes(directory, runs)
    scene = Scene()
    scene.attach(1)
    (node,) = scene.core.nodes
    for name in range(300):
        directory.add_copy(node.index, facts(name))
        prefixes.fetched(node, fetch(name), name * SECOND, rode_along=False)
    rows = list(prefixes.rows(lambda _: [], 300 * SECOND))
    assert [row.first for row in rows] == [key(name) for name in range(299, 299 - prefixes_module.SHOWN, -1)]
    remembered = [run for name in range(300) if (run := runs.run_of(key(name))) is not None and run.activity]
    assert len(remembered) < 2 * 50


# -- what it says


def test_a_cast_and_who_rides_along() -> None:
    scene = Scene()
    scene.attach(1, chain(2))
    scene.attach(2)
    scene.attach(3)
    scene.up()
    scene.heat("c0", members=0b110)
    arriving = rpc.Arriving(key=key("c0"), size_bytes=CHUNK, left_bytes=CHUNK // 4)
    scene.say(2, heartbeat=rpc.Heartbeat(arriving=[arriving]))
    (transfer,) = scene.live.tables(scene.now)["transfers"].values()
    assert transfer.cast
    assert not transfer.ended
    assert {rider.node: rider.arrived_percent for rider in transfer.riders} == {"n2": 75, "n3": 0}
    index = next(node.index for node in scene.core.nodes if node.facts.name == "n1")
    for session in (2, 3):
        scene.say(session, usage=rpc.Usage(fetches=[fetch("c0", holder=index), fetch("c1", rpc.SOURCE_HOLDER)]))
    tables = scene.live.tables(scene.now)
    transfer = tables["transfers"][key("c0").hex()]
    assert transfer.ended
    assert transfer.holder == "n1"
    (prefix,) = tables["prefixes"].values()
    assert (prefix.chunks, prefix.reads, prefix.casts, prefix.riders) == (2, 2, 1, 1)
    assert (prefix.delivered.cast_bytes, prefix.delivered.holder_bytes) == (2 * CHUNK, 2 * CHUNK)
    assert prefix.holders == ["n1"]
    assert prefix.wait_ms == pytest.approx(5)
    assert scene.core.accounting.bytes_kept_off_uplinks == CHUNK
    scene.wait(10)
    assert not scene.live.tables(scene.now)["transfers"]


def test_slots_show_what_is_in_them_and_how_hot_it_is() -> None:
    scene = Scene(slots=64)
    scene.attach(1, chain(3))
    scene.attach(2)
    scene.up()
    scene.fill("c0")
    assert {cell.serving for cell in list(scene.live.tables(scene.now)["slots"].values())[:8]} == {1}
    for _ in range(8):
        scene.say(2, usage=rpc.Usage(fetches=[fetch("c0", rpc.SOURCE_SWITCH)]))
    cells = list(scene.live.tables(scene.now)["slots"].values())
    assert len(cells) == 64
    assert [cell.heat > 0 for cell in cells] == [True] * 8 + [False] * 56
    assert {cell.key for cell in cells[:8]} == {key("c0")}
    scene.core.switch_cache.evict(key("c0"))
    scene.advance()
    assert not any(cell.serving or cell.leaving or cell.key for cell in scene.live.tables(scene.now)["slots"].values())
    texts = [event.text for event in scene.live.tables(scene.now)["events"].values()]
    assert {"admitted", "served by the switch", "evicted"} <= set(texts)


def test_refusals_and_failures_say_why() -> None:
    scene = Scene()
    scene.attach(1, chain(2))
    scene.up()
    scene.heat("c1", members=0b10)
    scene.heat("c0")
    (task,) = scene.tasks(1, "fill")
    scene.say(1, task_result=rpc.TaskResult(task=task.task, status=rpc.TaskResult.FAILED, detail="no route"))
    events = {event.text: event for event in scene.live.tables(scene.now)["events"].values()}
    assert events["not admitted: no evidence of reuse"].key == key("c1")
    assert events["could not be filled: n1: no route"].kind == "switch"
    assert any(event.kind == "cluster" and "n1 is attached" in text for text, event in events.items())


def test_the_gates_decisions_come_with_their_reasons() -> None:
    scene = Scene()
    scene.attach(1)

    def beat(fetches: int, recomputes: int, choice: str) -> None:
        verdict = rpc.GateVerdict(choice=choice, expected_us=3000, recompute_us=12_000)
        counts = {"fetch": fetches, "recompute": recomputes, "local": 5}
        heartbeat = rpc.Heartbeat(
            gate_decisions=counts, gate_verdict=verdict, gate_saved_ms=9, sent_bytes=1000 * fetches, drops={"late": 2}
        )
        scene.say(1, heartbeat=heartbeat)

    beat(1, 0, "fetch")
    scene.now += SECOND
    beat(3, 1, "recompute")
    scene.live.switch_drops = {"hairpin": 4}
    tables = scene.live.tables(scene.now)
    told = {event.text: event.times for event in tables["events"].values() if event.kind == "gate"}
    assert told == {
        "n1 fetches from other nodes": 3,
        "n1 recomputes: computing takes 12 ms, bringing would take longer": 1,
    }
    node = tables["nodes"]["n1"]
    assert dict(node.gate_decisions) == {"fetch": 3, "recompute": 1, "local": 5}
    assert (node.sent_bytes_per_s, node.gate_saved_ms) == (2000, 9)
    assert {row.name: row.count for row in tables["drops"].values()} == {"agents: late": 2, "switch: hairpin": 4}


def test_a_rate_fades_and_does_not_flicker() -> None:
    """A node that sends 3 MB every third second sends 1 MB/s, and a while after the last of it nothing."""
    figures, row, shown = NodeFigures(1), rpc.LiveNode(), []
    for second in range(120):
        sent = 3_000_000 * (min(second, 60) // 3)
        list(figures.beat("n1", rpc.Heartbeat(sent_bytes=sent), second * SECOND))
        figures.show(row)
        shown.append(row.sent_bytes_per_s)
    assert shown[0] == 0
    assert all(500_000 < rate < 1_600_000 for rate in shown[20:60]), shown[20:60]
    assert shown[-1] == 0


@pytest.mark.parametrize(
    "heartbeat",
    [
        rpc.Heartbeat(arriving=[rpc.Arriving(key=b"short")]),
        rpc.Heartbeat(drops={str(number): 1 for number in range(100)}),
        rpc.Heartbeat(gate_decisions={"x" * 100: 1}),
        rpc.Heartbeat(ways=[rpc.WayChoice(readers=1)]),
        rpc.Heartbeat(ways=[rpc.WayChoice(readers=2)] * 65),
    ],
)
def test_heartbeats_that_break_the_contract_are_refused(heartbeat: rpc.Heartbeat) -> None:
    scene = Scene()
    scene.attach(1)
    scene.say(1, heartbeat=heartbeat)
    (refusal,) = scene.refusals(1)
    assert (refusal.what, 1 in scene.closed) == ("message", False)


def test_history_is_bounded() -> None:
    sources, events = Sources(), Events()
    for bucket in range(5 * BUCKETS):
        sources.add(rpc.SOURCE_CAST, 1, bucket * BUCKET_NS, 0)
        events.add("switch", f"event {bucket}", 0)
    assert len(list(sources.rows(0, 0))) <= 2 * BUCKETS
    assert len(list(sources.rows(5 * BUCKETS * BUCKET_NS, 0))) < BUCKETS
    assert [row.number for row in events.rows(0)] == list(range(5 * BUCKETS - EVENTS + 1, 5 * BUCKETS + 1))


def test_an_agent_that_starts_again_counts_from_nothing() -> None:
    scene = Scene()
    scene.attach(1)
    scene.say(1, heartbeat=rpc.Heartbeat(gate_decisions={"fetch": 9}, sent_bytes=5000))
    scene.now += SECOND
    scene.handle(StreamEnded(1))
    scene.handle(HelloReceived(9, hello(1, incarnation=2)))
    scene.sent[9] = []
    scene.say(9, heartbeat=rpc.Heartbeat(gate_decisions={"fetch": 1}))
    told = [event for event in scene.live.tables(scene.now)["events"].values() if event.kind == "gate"]
    assert [event.times for event in told] == [10]
