"""What follows from the gate's verdicts in an agent: refusals, probes beside them, fetches that are given up."""

from __future__ import annotations

import numpy as np

from hostagent import limits
from hostagent.controller.convert import heartbeat_of
from hostagent.core import effects, events
from hostagent.limits import GIVE_UP_S_MIN
from kvclient.messages import Status
from kvpolicy.value import Tier
from kvproto.events import ReadDone, ReadFailed, SegmentsReceived
from kvproto.ids import Address, Member
from tests.unit.hostagent.core_harness import PAGE, Scene, entry, key

MS = 1_000_000


def test_a_refused_source_that_nobody_has_measured_is_probed_beside_the_request() -> None:
    scene = Scene()
    scene.directory(entry(1, 1), entry(2, 1))
    scene.fetch(1, 2, recompute_s=1e-6)
    (answer,) = scene.take(effects.FetchAnswered)
    assert (answer.status, answer.chunks) == (Status.GATE, ()), "the engine computes and waits for nothing"
    (read,) = scene.take(effects.StartRead)
    assert read.chunk.key == key(1)
    assert not scene.core.fetches.busy
    scene.now_ns += 2 * MS
    scene.say(ReadDone(read.read))
    scene.compute(1)
    assert scene.core.gate.costs.cost_s(Tier.REMOTE_DRAM, 8 * PAGE) < 0.0025, "as the probe measured it"
    assert scene.take(effects.FetchAnswered) == []
    scene.fetch(1, recompute_s=1e-6)
    assert scene.take(effects.FetchAnswered)[0].status is Status.OK, "the probe's chunk is in the pool"
    scene.close()


def test_a_probe_that_brings_nothing_gives_everything_back() -> None:
    scene = Scene()
    scene.directory(entry(1, 1))
    scene.fetch(1, recompute_s=1e-6)
    (read,) = scene.take(effects.StartRead)
    scene.say(ReadFailed(read.read, gone=True))
    assert scene.core.fetches.under_way_count == 0
    scene.fetch(1, recompute_s=1e-6)
    assert scene.take(effects.StartRead) == [], "one probe said enough for a while"
    scene.close()


def test_no_probe_where_the_pool_has_no_room_for_one() -> None:
    scene = Scene(pool_pages=4)
    scene.directory(entry(1, 1, pages=8))
    scene.fetch(1, recompute_s=1e-6)
    assert scene.take(effects.FetchAnswered)[0].status is Status.GATE
    assert scene.take(effects.StartRead) == []
    scene.close()


def test_a_fetch_that_falls_behind_computing_is_given_up_and_what_is_here_is_used() -> None:
    scene = Scene()
    scene.directory(entry(1, 1), entry(2, 1))
    scene.fetch(1, 2, recompute_s=0.4, deadline_s=60.0)
    reads = scene.take(effects.StartRead)
    scene.say(ReadDone(reads[0].read))
    scene.compute(1)
    scene.pass_ms(380)
    assert scene.take(effects.FetchAnswered) == []
    scene.pass_ms(40)
    (answer,) = scene.take(effects.FetchAnswered)
    assert (answer.status, len(answer.chunks)) == (Status.GATE, 1), "its own deadline is far away"
    assert [one.status for one in scene.take(effects.FetchEnded)] == [Status.DEADLINE], "operators see it as late"
    scene.close()


def test_the_jitter_of_a_busy_host_gives_no_fetch_up() -> None:
    scene = Scene()
    scene.directory(entry(1, 1, pages=1))
    scene.fetch(1, recompute_s=0.01, deadline_s=60.0)
    scene.pass_ms(GIVE_UP_S_MIN * 1000 - 5)
    assert scene.take(effects.FetchAnswered) == []
    scene.read()
    scene.compute(1)
    assert scene.take(effects.FetchAnswered)[0].status is Status.OK
    scene.close()


def test_heartbeats_say_what_is_arriving_and_what_the_gate_decided() -> None:
    scene = Scene()
    scene.say(events.Welcomed(1, 0, Member(3), PAGE, None, 0, 1.0))
    scene.directory(entry(1, 1, pages=4))
    (first,) = scene.take(effects.BeatHeart)
    assert (first.arriving, first.gate.last) == ([], None)
    assert not heartbeat_of(first).heartbeat.HasField("gate_verdict")
    scene.fetch(1, recompute_s=1000.0)
    scene.say(SegmentsReceived(key(1), np.array([0, 2, 3], np.uint32), Address(1)))
    scene.pass_ms(1000)
    beat = scene.take(effects.BeatHeart)[-1]
    said = heartbeat_of(beat, 10, 20, {"late": 3}).heartbeat
    assert [(one.key, one.size_bytes, one.left_bytes) for one in said.arriving] == [(key(1), 4 * PAGE, PAGE)]
    assert dict(said.gate_decisions) == {"fetch": 1}
    assert (said.gate_verdict.choice, said.gate_verdict.recompute_us) == ("fetch", 1000 * 10**6)
    assert 0 < said.gate_verdict.expected_us < 1000 * 10**6
    assert dict(said.drops) == {"late": 3}
    assert (said.sent_bytes, said.received_bytes) == (10, 20)
    scene.close()


def test_a_heartbeat_names_no_more_than_its_limits() -> None:
    scene = Scene()
    scene.say(events.Welcomed(1, 0, Member(3), PAGE, None, 0, 1.0))
    many = range(1, limits.ARRIVING_TOLD + 5)
    scene.directory(*(entry(number, 1, pages=1) for number in many))
    scene.fetch(*many)
    scene.pass_ms(1000)
    said = heartbeat_of(scene.take(effects.BeatHeart)[-1], drops={str(reason): 1 for reason in range(100)}).heartbeat
    assert len(said.arriving) == limits.ARRIVING_TOLD
    assert len(said.drops) == limits.DROP_REASONS_TOLD
    scene.close()
