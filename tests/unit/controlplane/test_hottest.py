"""What views show of the pool is kept as news comes: right, and without a look at every chunk."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from controlplane.core import values as module
from controlplane.core import views
from controlplane.core.directory import ChunkFacts, Directory
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.values import ClusterValues, Hottest
from kvpolicy.value import CacheValues
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import SECOND, Scene, facts, key, record

MODELS = ("a", "b", "c")


def of_model(name: int) -> ChunkFacts:
    return replace(facts(name), namespace=MODELS[name % len(MODELS)])


@pytest.mark.parametrize("seed", range(20))
def test_the_first_are_those_of_all_sorted(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 8)
    rng = random.Random(seed)
    directory = Directory()
    values = ClusterValues(directory)
    hottest = Hottest(directory, values)
    now_ns = SECOND
    for _ in range(400):
        now_ns += rng.randrange(SECOND)
        name, node = rng.randrange(60), NodeIndex(rng.randrange(3))
        match rng.randrange(8):
            case 0:
                directory.add_disk_copy(node, of_model(name))
            case 1 | 2:
                directory.add_copy(node, of_model(name))
            case 3:
                directory.remove_copy(node, key(name))
            case 4 if rng.random() < 0.2:
                directory.remove_node(node)
            case 5 if rng.random() < 0.3:
                values.finished([key(name)], now_ns)
            case _:
                values.fetched([key(rng.randrange(60))], now_ns)
        if rng.random() < 0.1:
            rates: list[tuple[float, ChunkKey]] = []
            for chunk in directory:
                score = values.cache.score(chunk.key)
                if score is not None:
                    rates.append((-score, chunk.key))
            count = rng.choice([1, 5, 12, 100])
            in_order = [one for _, one in sorted(rates)]
            assert hottest.first(count) == in_order[:count]
            names = {chunk.key: chunk.facts.namespace for chunk in directory}
            for model in MODELS:
                assert hottest.of(model) == [one for one in in_order if names[one] == model]
        for one in map(NodeIndex, range(3)):
            assert directory.count_last_copies(one) == len(directory.last_copies(one))


def test_a_look_at_the_pool_looks_at_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.attach(1, [record(number, number - 1 if number else None, number) for number in range(3000)])
    # One prefix, so that all of it is fetched in one moment and scores alike.
    fetches = [rpc.FetchEvent(key=key(number), source=rpc.SOURCE_LOCAL) for number in range(3000)]
    scene.say(1, usage=rpc.Usage(fetches=fetches))
    looked: list[ChunkKey] = []
    rate = CacheValues.rate

    def counted(values: CacheValues, one: ChunkKey, now_ns: int) -> float:
        looked.append(one)
        return rate(values, one, now_ns)

    def never(directory: Directory) -> None:
        raise AssertionError("a view goes through all chunks")

    monkeypatch.setattr(CacheValues, "rate", counted)
    monkeypatch.setattr(Directory, "__iter__", never)
    monkeypatch.setattr(Directory, "last_copies", never)
    assert len(views.top(scene.core, 10, scene.now)) == 10
    status = views.status(scene.core, "p4switch", "", scene.now)
    assert status.nodes[0].last_copies == 3000
    assert len(set(looked)) == 10


def test_looking_through_all_of_them_makes_no_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Directory()
    values = ClusterValues(directory)
    hottest = Hottest(directory, values)
    for name in range(30):
        directory.add_copy(NodeIndex(1), of_model(name))
    values.fetched([key(name) for name in range(30)], SECOND)
    monkeypatch.setattr(Directory, "__iter__", lambda _: pytest.fail("a look at every chunk"))
    assert len(hottest.first(20)) == 20
    assert len(hottest.of("a")) == 10
    assert hottest.of("unknown") == []
