"""Fetches of many chunks: what is here is kept in slices, and they end as if it had been one piece of work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.effects import FetchAnswered, FetchPartAnswered
from hostagent.pool.chunks import Chunk
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvpolicy.tiers.prefill import Prefill
from tests.digests import hashed
from tests.unit.hostagent.core_harness import ENGINE, PAGE, Scene, entry, key

SLICE = 4
"""What the shell makes of it, the core does not know."""
MANY = 11
ALL = tuple(range(1, MANY + 1))


def named(scene: Scene, numbers: tuple[int, ...], first: int, **terms: bool) -> bool:
    """Name one slice; whether the core wants the next."""
    keys = tuple(map(key, numbers[first : first + SLICE]))
    scene.say(events.ChunksNamed(ENGINE, scene.request, first, keys, 10.0, **terms))
    (kept,) = scene.take(effects.ChunksKept)
    return kept.goes_on


def requested(scene: Scene, numbers: tuple[int, ...], *, streamed: bool = False, any_order: bool = False) -> None:
    keys = tuple(map(key, numbers))
    prefill = None if any_order else Prefill(100.0)
    request = events.ChunksRequested(ENGINE, scene.request, keys, 10.0, prefill, streamed=streamed, any_order=any_order)
    scene.say(request)


def long_fetch(scene: Scene, numbers: tuple[int, ...], *, streamed: bool = False, any_order: bool = False) -> None:
    """As the shell has it."""
    scene.request += 1
    for first in range(0, len(numbers), SLICE):
        if not named(scene, numbers, first, any_order=any_order):
            break
        scene.pass_ms(0)
    requested(scene, numbers, streamed=streamed, any_order=any_order)


def carry_on(scene: Scene) -> None:
    """Other nodes deliver all that they are asked for."""
    while reads := scene.take(effects.StartRead):
        for read in reads:
            scene.say(events.protocol.ReadDone(read.read))
        for asked in scene.take(effects.ComputeDigest):
            scene.say(events.DigestComputed(asked.chunk, hashed(int.from_bytes(asked.chunk.key, "big")), asked.use))


def full(*, pool_pages: int = MANY + 8, here: tuple[int, ...] = ALL) -> Scene:
    scene = Scene(pool_pages=pool_pages)
    for number in here:
        scene.put(number)
    scene.made.clear()
    return scene


def answer(scene: Scene) -> FetchAnswered:
    (one,) = scene.take(FetchAnswered)
    return one


def give_back(scene: Scene, *answers: FetchAnswered | FetchPartAnswered) -> None:
    for one in answers:
        scene.say(events.LeaseReleased(ENGINE, one.lease))
    assert scene.core.pool.pins_count == 0


# ------------------------------------------------------------------ as in one piece


KINDS = {"fetch": (False, False), "stream": (True, False), "each": (False, True)}


@pytest.mark.parametrize(("streamed", "any_order"), KINDS.values(), ids=KINDS)
@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    absent=st.sets(st.sampled_from((1, 2, SLICE, SLICE + 1, MANY - 1, MANY)), max_size=3),
    elsewhere=st.sets(st.sampled_from((1, 7, SLICE, SLICE + 1, MANY - 1, MANY)), max_size=3),
)
def test_an_engine_gets_what_one_piece_of_work_gives_it(
    absent: set[int], elsewhere: set[int], streamed: bool, any_order: bool
) -> None:
    got = []
    for fetch in (whole, long_fetch):
        scene = full(here=tuple(number for number in ALL if number not in absent | elsewhere))
        scene.directory(*(entry(number, 1, pages=1) for number in sorted(elsewhere - absent)))
        fetch(scene, ALL, streamed=streamed, any_order=any_order)
        carry_on(scene)
        parts, end = scene.take(FetchPartAnswered), answer(scene)
        (ended,) = scene.take(effects.FetchEnded)
        told = [[(one.size_bytes, one.source) for one in part.chunks] for part in parts]
        sources = [(one.size_bytes, one.source) for one in end.chunks]
        figures = sorted((source.value, count, size_bytes) for source, count, size_bytes in ended.delivered)
        got.append((told, end.status, sources, end.places, ended.status, figures))
        give_back(scene, *parts, end)
        assert scene.core.fetches.under_way_count == 0
        scene.close()
    assert got[0] == got[1]


def whole(scene: Scene, numbers: tuple[int, ...], *, streamed: bool, any_order: bool) -> None:
    scene.request += 1
    requested(scene, numbers, streamed=streamed, any_order=any_order)


def test_chunks_come_in_the_order_of_their_keys() -> None:
    scene = full()
    backwards = ALL[::-1]
    offsets = {number: chunk.offset for number in ALL if (chunk := scene.core.pool.find(key(number)))}
    for any_order in (False, True):
        long_fetch(scene, backwards, any_order=any_order)
        end = answer(scene)
        assert [one.offset for one in end.chunks] == [offsets[number] for number in backwards]
        assert end.places == (tuple(range(MANY)) if any_order else None)
        give_back(scene, end)
    scene.close()


def test_a_gate_reckons_with_what_is_kept_as_with_chunks_before_the_rest() -> None:
    verdicts = []
    for fetch in (whole, long_fetch):
        scene = full(here=ALL[:-3])
        scene.directory(*(entry(number, 1, pages=1) for number in ALL[-3:]))
        fetch(scene, ALL, streamed=False, any_order=False)
        last = scene.core.gate.counts.last
        assert last is not None
        verdicts.append((last.choice, last.expected_s, last.recompute_s, last.compute_left_s, last.give_up_s))
        carry_on(scene)
        give_back(scene, answer(scene))
        scene.close()
    assert verdicts[0] == verdicts[1]


def test_every_chunk_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = full()
    asked: list[int] = [0]
    find: Callable[[ChunkKey], Chunk | None] = scene.core.pool.find

    def counted(one: ChunkKey) -> Chunk | None:
        asked[-1] += 1
        return find(one)

    monkeypatch.setattr(scene.core.pool, "find", counted)
    scene.request += 1
    for first in range(0, MANY, SLICE):
        asked.append(0)
        assert named(scene, ALL, first)
    asked.append(0)
    requested(scene, ALL)
    assert asked[1:] == [SLICE, SLICE, 3, 0]
    give_back(scene, answer(scene))
    scene.close()


# ------------------------------------------------------------------ between two slices


def test_what_was_kept_stays_when_others_need_room() -> None:
    scene = full(pool_pages=MANY)
    scene.request += 1
    assert named(scene, ALL, 0)
    kept = [scene.core.pool.find(key(number)) for number in ALL[:SLICE]]
    for number in range(1000, 1000 + MANY - SLICE):
        request = scene.request
        scene.put(number)
        scene.request = request
    assert all(scene.core.pool.find(key(number)) is None for number in ALL[SLICE:]), "nothing else could go"
    assert not named(scene, ALL, SLICE)
    requested(scene, ALL)
    end = answer(scene)
    assert end.status is Status.NOT_FOUND
    assert [one.offset for one in end.chunks] == [chunk.offset for chunk in kept if chunk is not None]
    assert all(chunk is scene.core.pool.find(key(number)) for number, chunk in zip(ALL, kept, strict=False))
    give_back(scene, end)
    scene.close()


def test_who_goes_between_two_slices_leaves_no_pin() -> None:
    scene = full()
    scene.request += 1
    assert named(scene, ALL, 0)
    assert scene.core.pool.pins_count == SLICE
    scene.say(events.EngineDisconnected(ENGINE))
    assert scene.core.pool.pins_count == 0
    scene.close()


@pytest.mark.parametrize("slices", [1, 3])
def test_a_fetch_that_is_cancelled_between_two_slices_holds_nothing_and_is_answered_once(slices: int) -> None:
    scene = full()
    scene.request += 1
    for first in range(0, slices * SLICE, SLICE):
        assert named(scene, ALL, first)
    scene.say(events.CancelRequested(ENGINE, scene.request))
    assert scene.core.pool.pins_count == 0
    if slices == 1:
        assert not named(scene, ALL, SLICE)
    requested(scene, ALL)
    end = answer(scene)
    assert (end.status, end.chunks) == (Status.CANCELLED, ())
    assert scene.core.pool.pins_count == 0
    (ended,) = scene.take(effects.FetchEnded)
    assert (ended.status, ended.delivered) == (Status.CANCELLED, ())
    long_fetch(scene, ALL)
    assert len(answer(scene).chunks) == MANY, "the next one is none the worse"
    scene.close()


def test_a_fetch_that_is_cancelled_while_others_bring_the_rest_gives_back_what_it_kept() -> None:
    scene = full(here=ALL[:-1])
    scene.directory(entry(MANY, 1, pages=1))
    long_fetch(scene, ALL)
    assert scene.core.pool.pins_count >= MANY - 1
    scene.say(events.CancelRequested(ENGINE, scene.request))
    assert answer(scene).status is Status.CANCELLED
    assert scene.core.pool.pins_count == 0
    scene.close()


def test_a_deadline_that_passes_between_two_slices_ends_the_fetch_with_what_is_kept() -> None:
    scene = full()
    scene.request += 1
    assert named(scene, ALL, 0)
    scene.pass_ms(10_000)
    assert not named(scene, ALL, SLICE)
    requested(scene, ALL)
    end = answer(scene)
    assert (end.status, len(end.chunks)) == (Status.DEADLINE, SLICE)
    (ended,) = scene.take(effects.FetchEnded)
    assert ended == (Status.DEADLINE, 10.0, ((ChunkSource.LOCAL, SLICE, SLICE * PAGE),))
    give_back(scene, end)
    scene.close()


def test_who_gives_no_time_gets_all_that_is_here() -> None:
    scene = full()
    scene.request += 1
    for first in range(0, MANY, SLICE):
        keys = tuple(map(key, ALL[first : first + SLICE]))
        scene.say(events.ChunksNamed(ENGINE, scene.request, first, keys, 0.0))
        scene.pass_ms(5)
    scene.say(events.ChunksRequested(ENGINE, scene.request, tuple(map(key, ALL)), 0.0, None))
    end = answer(scene)
    assert (end.status, len(end.chunks)) == (Status.OK, MANY)
    scene.close()


# ------------------------------------------------------------------ refusals


def test_a_key_named_twice_in_two_slices_is_malformed_and_nothing_stays_pinned() -> None:
    scene = full()
    long_fetch(scene, (*ALL[:-1], 1))
    end = answer(scene)
    assert (end.status, end.chunks) == (Status.MALFORMED, ())
    assert scene.core.pool.pins_count == 0
    scene.close()


def test_one_request_too_many_is_busy_and_nothing_stays_pinned() -> None:
    scene = full()
    scene.directory(entry(9999, 1))
    for _ in range(limits.API_REQUESTS_IN_FLIGHT_MAX):
        scene.fetch(9999)
    pins = scene.core.pool.pins_count
    long_fetch(scene, ALL)
    assert answer(scene).status is Status.BUSY
    assert scene.core.pool.pins_count == pins
    scene.close()


def test_a_number_that_is_in_use_is_refused_and_its_fetch_goes_on() -> None:
    scene = full(here=ALL[:-1])
    scene.directory(entry(MANY, 1, pages=1))
    long_fetch(scene, ALL)
    scene.request -= 1
    long_fetch(scene, ALL)
    assert answer(scene).status is Status.MALFORMED
    carry_on(scene)
    end = answer(scene)
    assert (end.status, len(end.chunks)) == (Status.OK, MANY)
    give_back(scene, end)
    scene.close()


# ------------------------------------------------------------------ leases


def test_a_lease_of_many_chunks_ends_in_slices() -> None:
    scene = full()
    long_fetch(scene, ALL)
    lease = answer(scene).lease
    left = []
    for _ in range(3):
        scene.say(events.LeaseReleased(ENGINE, lease, SLICE))
        left.append((scene.core.pool.pins_count, [one.lease for one in scene.take(effects.LeaseLeft)]))
    assert left == [(MANY - SLICE, [lease]), (3, [lease]), (0, [])]
    scene.say(events.LeaseReleased(ENGINE, lease, SLICE))
    assert not scene.take(effects.LeaseLeft), "it is over"
    scene.close()


def test_who_goes_in_the_middle_of_a_release_leaves_no_pin() -> None:
    scene = full()
    long_fetch(scene, ALL)
    scene.say(events.LeaseReleased(ENGINE, answer(scene).lease, SLICE))
    scene.say(events.EngineDisconnected(ENGINE))
    assert scene.core.pool.pins_count == 0
    scene.close()
