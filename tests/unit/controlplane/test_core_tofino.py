"""The core with a switch whose cached chunks circulate: what it writes, and what becomes of a segment that was lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.config import parse
from controlplane.core.options import SwitchCacheRules
from controlplane.core.switch.bitmap_groups import FLOOD_GROUP, MEMBER_ORDER
from controlplane.core.switch.entries import (
    Bitmap,
    CloneSessionEntry,
    FillingEntry,
    ReplicateByBitmapEntry,
    ReplicateToPortEntry,
    Report,
    ServingEntry,
)
from controlplane.core.switch.target import LostReport, SwitchFacts
from controlplane.p4runtime import ticks
from controlplane.p4runtime.tofino import OrbitOptions, TofinoCodec, frame_bytes
from kvdaemon.errors import ConfigError
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import SECOND, Scene, key, ports, record

ORBIT_PORT = 68


def tofino(*names: str, **changes: object) -> Scene:
    """A scene with two nodes, the first of which holds the named chunks, and a Tofino that serves them."""
    scene = Scene(member_order=MEMBER_ORDER, **changes)
    scene.switch.facts = SwitchFacts(64, 4096, ORBIT_PORT)
    scene.attach(1, [record(name) for name in names])
    scene.attach(2)
    scene.up()
    for name in names:
        scene.fill(name)
    return scene


def lose(scene: Scene, name: str, segment: int = 3) -> None:
    scene.handle(LostReport(key(name), segment))
    scene.advance()


def test_it_is_told_what_its_program_needs() -> None:
    scene = tofino()
    switch = scene.switch.contents
    assert switch["clone_session", 500] == CloneSessionEntry(500, ORBIT_PORT, 86, 1)
    assert switch["replicate_default", None] == ReplicateByBitmapEntry(Bitmap.ONE)
    assert switch["group", FLOOD_GROUP].ports == ports(1, 2)
    assert ("group", 1) in switch, "member 0 alone"
    assert {which for kind, which in switch if kind == "digest"} == set(Report)
    assert not any(isinstance(entry, ReplicateToPortEntry) for entry in switch.values())
    assert scene.core.link.present


def test_both_halves_of_the_members_are_used_alike() -> None:
    scene = tofino()
    for number in range(3, 17):
        scene.attach(number)
    members = sorted(entry.member for entry in scene.switch.contents.values() if entry.identity[0] == "port_member")
    assert members == [*range(8), *range(16, 24)]
    assert scene.switch.contents["replicate_default", None] == ReplicateByBitmapEntry(Bitmap.TWO)
    assert scene.switch.kinds()["group"] == 2 * 255 + 1


def test_a_lost_segment_is_filled_in_again() -> None:
    scene = tofino("a")
    lose(scene, "a")
    assert scene.switch.contents["kv_cache", key("a")] == FillingEntry(key("a"), 0, 8, 1)
    assert not scene.replica(2)[key("a")].served
    _, again = scene.tasks(1, "fill")
    assert (again.fill.key, again.fill.segments) == (key("a"), 8)
    lose(scene, "a", segment=4)
    assert len(scene.tasks(1, "fill")) == 2, "it is being filled already"
    scene.finish(1, again)
    assert scene.switch.contents["kv_cache", key("a")] == ServingEntry(key("a"), 0, 8)
    assert scene.replica(2)[key("a")].served
    assert scene.core.accounting.decisions["segments_lost"] == 2
    assert scene.core.switch_cache.decisions["refilled"] == 1


def test_a_chunk_that_keeps_losing_segments_is_evicted() -> None:
    scene = tofino("a", rules=SwitchCacheRules(price_fills=False, refill_ns=5 * SECOND))
    lose(scene, "a")
    scene.finish(1, scene.tasks(1, "fill")[-1])
    scene.wait(1)
    lose(scene, "a")
    assert ("kv_cache", key("a")) not in scene.switch.contents
    assert scene.core.switch_cache.decisions["lost_again"] == 1
    assert scene.core.switch_cache.slots.used_count == 0


def test_what_it_loses_later_is_filled_in_again() -> None:
    scene = tofino("a", rules=SwitchCacheRules(price_fills=False, refill_ns=SECOND))
    for times in (1, 2, 3):
        lose(scene, "a")
        scene.finish(1, scene.tasks(1, "fill")[-1])
        scene.wait(2)
        assert scene.core.switch_cache.decisions["refilled"] == times
    assert scene.served() == {key("a")}


def test_a_failed_refill_takes_the_chunk_out() -> None:
    scene = tofino("a")
    lose(scene, "a")
    scene.finish(1, scene.tasks(1, "fill")[-1], rpc.TaskResult.FAILED)
    assert ("kv_cache", key("a")) not in scene.switch.contents
    assert not scene.replica(2)[key("a")].served


def test_without_a_holder_a_chunk_with_a_hole_goes() -> None:
    scene = tofino("a")
    scene.say(1, announce=rpc.Announce(removed=[key("a")]))
    lose(scene, "a")
    assert ("kv_cache", key("a")) not in scene.switch.contents
    assert scene.core.switch_cache.decisions["lost_for_good"] == 1


def test_a_report_of_a_chunk_that_is_not_served_is_nothing() -> None:
    scene = tofino("a")
    lose(scene, "b")
    assert scene.served() == {key("a")}


def test_times_are_ticks() -> None:
    assert [ticks.of_us(one) for one in (1, 33, 65, 2_000_000)] == [0, 1, 1, 30518]
    assert all(ticks.of_us(ticks.to_us(one)) == one for one in range(1, 100_000, 37))


# -- configuration


def switch_of(**changes: object) -> dict[str, object]:
    return {"switch": {"target": "tofino", "address": "127.0.0.1:9559"} | changes}


def test_no_more_circulates_than_the_configuration_says() -> None:
    config = parse(switch_of(orbit_bytes=16 << 20, recirculation_port=196), Path("."))
    assert isinstance(config.switch.codec, TofinoCodec)
    assert config.switch.codec.options == OrbitOptions(16 << 20, 4096, 196)
    assert frame_bytes(4096) == 4198


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (switch_of(), "switch.orbit_bytes is missing: how many bytes of the switch's packet buffer"),
        (switch_of(orbit_bytes=4197), "switch.orbit_bytes: 4197 is less than one segment with its headers, 4198 bytes"),
        (switch_of(orbit_bytes="16MiB"), "switch.orbit_bytes: '16MiB' is not a whole number"),
        (switch_of(target="p4switch", orbit_bytes=1 << 20), "switch.orbit_bytes needs switch.target: tofino"),
        (switch_of(orbit_bytes=1 << 20, recirculation_port=0), "switch.recirculation_port: 0 is not a whole number"),
        (switch_of(orbit_bytes=1 << 20, groups_max=70_000), "switch.groups_max: 70000 is not a whole number"),
    ],
)
def test_a_bad_orbit_is_one_line(values: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(values, Path("."))
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)
