"""Meters: what a port may ask for, and what it may cause. Rates are zero here: only bursts count and no time does."""

from __future__ import annotations

import finsy as fy
import pytest

from tests.dataplane.bench import Bench, counts, table
from tests.dataplane.frames import Control, Drop, Flag, Host, Op

BURST = 3


def limit(name: str, match: dict[str, int], action: str, burst: int = BURST) -> fy.P4TableEntry:
    """An entry whose meter is red after `burst` packets."""
    entry = table(name, match, action)
    entry.meter_config = fy.P4MeterConfig(cir=0, cburst=burst, pir=0, pburst=burst)
    return entry


def requests(port: int, op: Op) -> fy.P4TableEntry:
    return limit("request_limit", {"ingress_port": port, "op": op}, "limit_requests")


def segments(port: int) -> fy.P4TableEntry:
    return limit("segment_limit", {"leader": Host(port).member + 1}, "limit_segments")


def metered(bench: Bench) -> int:
    return bench.drops()[Drop.METERED]


def test_joins_of_one_port_are_bounded(bench: Bench) -> None:
    """A flood of JOINs takes no more entries than the burst, and others are not hindered."""
    bench.insert(requests(2, Op.JOIN))
    before = metered(bench)
    keys = [bench.key() for _ in range(2 * BURST)]
    assert [counts(bench.join(2, key)) for key in keys] == [{2: 1}] * BURST + [{}] * BURST
    assert metered(bench) == before + BURST
    assert counts(bench.join(3, keys[-1])) == {3: 1}, "another port, and the entry was not taken"
    assert counts(bench.control(2, bench.get(keys[0], 0))) == {1: 1}, "GETs are counted apart"
    assert counts(bench.leave(2, keys[0])) == {}, "who may not join any more may leave"
    assert counts(bench.join(3, keys[0])) == {3: 1}


def test_gets_of_one_port_are_bounded(bench: Bench) -> None:
    bench.insert(requests(2, Op.GET))
    key = bench.key()
    bench.join(2, key)
    bench.join(3, key)
    before = metered(bench)
    asked = [counts(bench.control(2, bench.get(key, number))) for number in range(2 * BURST)]
    assert asked == [{1: 1}] * BURST + [{}] * BURST
    assert metered(bench) == before + BURST
    assert counts(bench.control(3, bench.get(key, 0))) == {1: 1}
    assert counts(bench.join(2, key)) == {2: 1, 3: 1}, "JOINs are counted apart"


def test_what_a_leader_causes_is_bounded(bench: Bench) -> None:
    """Segments that come from a holder because of a member's GETs are that member's, whoever gets them."""
    bench.insert(segments(2))
    key = bench.key()
    chunk = bench.segments(key)
    bench.join(2, key)
    bench.join(3, key)
    before = metered(bench)
    assert counts(bench.exchange((1, chunk[0].frame()))) == {2: 1, 3: 1}, "nobody leads"
    bench.control(2, bench.get(key, 0, amount=8))
    received = bench.exchange(*((1, segment.frame()) for segment in chunk))
    assert counts(received) == {2: BURST, 3: BURST}
    assert metered(bench) == before + 8 - BURST
    bench.control(3, bench.get(key, 0, amount=8))
    assert counts(bench.exchange((1, chunk[0].frame()))) == {2: 1, 3: 1}, "another leader has a limit of its own"


def test_fills_that_are_cast_are_charged_to_the_leader(bench: Bench) -> None:
    """Beyond its limit they are stored and not cast; plain ones are nobody's."""
    bench.insert(segments(2))
    key = bench.key()
    chunk = bench.segments(key)
    bench.insert(bench.chunk(key, "filling", base_slot=224, segments=8, port=1))
    bench.join(2, key)
    bench.join(3, key)
    bench.control(2, bench.get(key, 0, amount=8))
    assert counts(bench.exchange(*((1, segment.fill_frame()) for segment in chunk))) == {1: 8}
    control = [Control(Op.FILL, key, one.segment, 8, flags=Flag.CAST_TOO) for one in chunk]
    frames = [(1, segment.fill_frame(control=fill)) for segment, fill in zip(chunk, control, strict=True)]
    assert counts(bench.exchange(*frames)) == {1: 8, 2: BURST, 3: BURST}
    bench.serve(key, 224, 8)
    assert counts(bench.control(5, bench.get(key, 0, amount=8))) == {}
    bench.join(5, key)
    assert counts(bench.control(5, bench.get(key, 0, amount=8, flags=Flag.ONLY_ME), expect=8)) == {5: 8}


@pytest.mark.parametrize("target", ["p4switch", pytest.param("bmv2", marks=[pytest.mark.bmv2])], indirect=True)
def test_what_is_served_to_a_member_is_bounded(bench: Bench) -> None:
    """Segment by segment: the rest of a GET ends where the limit does."""
    key = bench.key()
    bench.cache(bench.segments(key), base_slot=0)
    bench.join(2, key)
    bench.insert(segments(2))
    before = metered(bench)
    received = bench.control(2, bench.get(key, 0, amount=8, flags=Flag.ONLY_ME), expect=BURST)
    assert counts(received) == {2: BURST}
    assert metered(bench) == before + 1


@pytest.mark.parametrize("amount", [128, 129, 0xFFFF])
def test_a_get_of_too_many_segments_is_refused(bench: Bench, amount: int) -> None:
    key = bench.key()
    bench.join(2, key)
    assert counts(bench.control(2, bench.get(key, 0, segments=1 << 20, amount=127))) == {1: 1}
    before = bench.drops()[Drop.GET_TOO_LARGE]
    assert counts(bench.control(2, bench.get(key, 0, segments=1 << 20, amount=amount))) == {}
    assert bench.drops()[Drop.GET_TOO_LARGE] == before + 1
