"""Fills pay where holders are busy, and where fills have brought something."""

from __future__ import annotations

from controlplane.fill_price import FillPrice
from controlplane.ids import NodeIndex
from controlplane.switch_cache import SwitchCacheRules
from kvpolicy.tiers.holder_load import HolderLoad
from kvproto.ids import ChunkKey
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import CHUNK, SECOND, Scene, key, record

GB = 10**9
NODE = NodeIndex(0)


def scene() -> Scene:
    made = Scene(with_switch=False)
    made.attach(1, [record("a")])
    made.attach(2)
    return made


def fetches(made: Scene, count: int) -> None:
    """Node 2 reads the chunk from node 1, once a second."""
    for _ in range(count):
        event = rpc.FetchEvent(key=key("a"), source=rpc.SOURCE_HOLDER, bytes=CHUNK, holder=0)
        made.say(2, usage=rpc.Usage(fetches=[event]))
        made.now += SECOND


def pays(price: FillPrice, made: Scene, waiting: int = 2) -> bool:
    chunk = made.core.directory.get(ChunkKey(key("a")))
    assert chunk is not None
    return price.pays(chunk, waiting, made.now)


def test_an_idle_holder_is_as_quick_as_the_switch() -> None:
    made = scene()
    fetches(made, 30)
    assert not pays(FillPrice(made.core.values), made)
    assert pays(FillPrice(made.core.values, free=True), made)


def test_a_holder_that_is_busy_when_others_fetch_makes_fills_pay() -> None:
    made = scene()
    price = FillPrice(made.core.values)
    for _ in range(30):
        price.told(NODE, HolderLoad(GB, 8), made.now)
        price.fetched(NODE, made.now)
        made.now += SECOND
    fetches(made, 30)
    assert pays(price, made)
    for _ in range(100):
        made.now += 20 * SECOND
        price.fetched(NODE, made.now)
    assert not pays(price, made), "its queue was short whenever somebody fetched"


def test_fills_that_bring_little_stop_and_are_tried_again_later() -> None:
    made = scene()
    fetches(made, 30)
    price = FillPrice(made.core.values)
    for _ in range(30):
        price.told(NODE, HolderLoad(GB, 8), made.now)
        price.fetched(NODE, made.now)
    chunk = made.core.directory.get(ChunkKey(key("a")))
    assert chunk is not None
    fills = 0
    while price.pays(chunk, 2, made.now):
        price.fill_began(chunk, 2, made.now)
        fills += 1
        assert fills < 1000
    assert fills > 1
    refused = 0
    while not price.pays(chunk, 2, made.now):
        refused += 1
        assert refused < 10_000
    assert refused > 0
    for _ in range(100):
        price.fill_began(chunk, 2, made.now)
        for _ in range(3):
            price.served()
    assert price.pays(chunk, 2, made.now), "what is fetched from the switch speaks for fills"


def test_an_operators_pin_costs_what_it_costs() -> None:
    made = Scene(rules=SwitchCacheRules())
    made.up()
    made.attach(1, [record("a")])
    made.attach(2)
    made.core.switch_cache.report(ChunkKey(key("a")), 2, made.now)
    made.advance()
    assert made.core.decisions["refused_fill_too_dear"] == 1
    made.core.switch_cache.pin([ChunkKey(key("a"))], made.now)
    made.advance()
    assert made.core.decisions["admitted"] == 1
