"""Fills pay where holders are busy, and where fills have brought something."""

from __future__ import annotations

from dataclasses import replace

from controlplane.core.ids import NodeIndex
from controlplane.core.options import SwitchCacheRules
from controlplane.core.switch_cache.fill_price import FillPrice
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.holder_load import HolderLoad
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
        price.load_reported(NODE, HolderLoad(GB, 8), made.now)
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
        price.load_reported(NODE, HolderLoad(GB, 8), made.now)
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
    made.core.switch_cache.heat_reported(ChunkKey(key("a")), 2)
    made.advance()
    assert made.core.decisions["refused_fill_too_dear"] == 1
    made.core.switch_cache.pin([ChunkKey(key("a"))])
    made.advance()
    assert made.core.decisions["admitted"] == 1


def test_a_fill_that_rides_costs_what_of_the_cast_is_over() -> None:
    made = scene()
    fetches(made, 30)
    price = FillPrice(made.core.values)
    chunk = made.core.directory.get(ChunkKey(key("a")))
    assert chunk is not None
    assert not price.pays(chunk, 2, made.now, made.now), "an idle holder is as quick as the switch, even so"
    price.load_reported(NODE, HolderLoad(CHUNK, 2), made.now)
    assert not price.pays(chunk, 2, made.now), "it has been busy for a moment only"
    assert price.pays(chunk, 2, made.now, made.now)
    assert price.pays(chunk, 2, made.now + 1000, made.now)
    late = made.now + 10 * SECOND
    assert not price.pays(chunk, 2, late, made.now), "the cast is over, and so is the queue"


def casting(*, casts_fills: bool) -> Scene:
    made = Scene(rules=SwitchCacheRules())
    made.switch.facts = replace(made.switch.facts, casts_fills=casts_fills)
    made.up()
    made.attach(1, [record("a")])
    made.attach(2)
    made.core.switch_cache.heat_reported(ChunkKey(key("a")), 2)
    made.advance()
    assert made.core.decisions["admitted"] == 0, "the holder has said nothing of a queue"
    made.say(1, load=rpc.HolderLoad(queued_bytes=4 * CHUNK, readers=4))
    made.advance()
    return made


def test_a_hot_chunk_is_admitted_during_its_first_cast() -> None:
    made = casting(casts_fills=True)
    assert made.core.decisions["admitted"] == 1
    made.advance()
    (task,) = [one.fill for one in made.tasks(1, "fill")]
    assert (task.cast_too, task.readers) == (True, 2)


def test_a_program_that_does_not_know_the_flag_is_filled_as_before() -> None:
    made = casting(casts_fills=False)
    assert made.core.decisions["refused_fill_too_dear"] == 1
    made.core.switch_cache.pin([ChunkKey(key("a"))])
    made.advance()
    made.advance()
    (task,) = [one.fill for one in made.tasks(1, "fill")]
    assert not task.cast_too


def test_who_waits_for_nothing_any_more_is_dropped() -> None:
    made = Scene(rules=SwitchCacheRules())
    made.switch.facts = replace(made.switch.facts, casts_fills=True)
    made.up()
    made.attach(1, [record("a")])
    made.attach(2)
    made.core.switch_cache.heat_reported(ChunkKey(key("a")), 2)
    made.advance()
    assert made.core.decisions["refused_fill_too_dear"] == 0, "it is looked at again while its cast may run"
    made.now += 2 * SECOND
    made.advance()
    assert made.core.decisions["refused_fill_too_dear"] == 1
