"""Fetches of more chunks than a window: what they give is what one piece of work gives, and others have turns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostagent.core import clock, effects, engines, events, fetches, locks, long_fetches, parts
from hostagent.core.clock import WINDOW, Alarms, Clock, Windows, Work
from hostagent.core.effects import FetchAnswered
from kvchunk.parts import ByteRange
from kvclient.messages import Kind, Status
from kvpolicy.tiers.prefill import Prefill
from tests.digests import hashed
from tests.unit.hostagent.core_harness import ENGINE, PAGE, Scene, entry, key

FEW = 4
"""A window of these, where what is brought is compared."""
MANY = 11
ALL = tuple(range(1, MANY + 1))


def cut(monkeypatch: pytest.MonkeyPatch, window: int = FEW) -> None:
    for module in (clock, fetches, long_fetches, parts, engines, locks):
        monkeypatch.setattr(module, "WINDOW", window)


def elsewhere(scene: Scene, numbers: tuple[int, ...]) -> None:
    for first in range(0, len(numbers), 512):
        scene.directory(*(entry(number, 1, pages=1) for number in numbers[first : first + 512]))
    scene.made.clear()


def ask(scene: Scene, numbers: tuple[int, ...], *, deadline_s: float = 10.0, **terms: bool) -> None:
    scene.request += 1
    prefill = None if terms.get("any_order") else Prefill(1000.0)
    keys = tuple(map(key, numbers))
    scene.say(events.ChunksRequested(ENGINE, scene.request, keys, deadline_s, prefill, **terms))


def ring(scene: Scene) -> bool:
    """One ring of what is due; whether anything was."""
    due_ns = scene.core.next_timeout_ns()
    if due_ns is None or due_ns > scene.now_ns:
        return False
    scene.say(events.TimerFired())
    return True


def bring(scene: Scene) -> None:
    """Other nodes deliver all that they are asked for, and all windows are worked."""
    scene.pass_ms(0)
    while reads := scene.take(effects.StartRead):
        for read in reads:
            scene.say(events.protocol.ReadDone(read.read))
        for asked in scene.take(effects.ComputeDigest):
            scene.say(events.DigestComputed(asked.chunk, hashed(int.from_bytes(asked.chunk.key, "big")), asked.use))
        scene.pass_ms(0)


def answer(scene: Scene) -> FetchAnswered:
    (one,) = scene.take(FetchAnswered)
    return one


def end(scene: Scene) -> None:
    """Nothing is left of any fetch."""
    scene.pass_ms(0)
    assert scene.core.fetches.under_way_count == 0
    assert not scene.core.fetches.arrivals.under_way
    assert not scene.core.windows.is_busy
    scene.close()


# ------------------------------------------------------------------ as in one piece


KINDS = {"fetch": (False, False), "stream": (True, False), "each": (False, True)}


@pytest.mark.parametrize(("streamed", "any_order"), KINDS.values(), ids=KINDS)
@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    absent=st.sets(st.sampled_from((1, 2, FEW, FEW + 1, MANY - 1, MANY)), max_size=3),
    here=st.sets(st.sampled_from(ALL), max_size=8),
    computed=st.sets(st.sampled_from((3, FEW, 7, MANY)), max_size=2),
)
def test_an_engine_gets_what_one_piece_of_work_gives_it(
    absent: set[int], here: set[int], computed: set[int], streamed: bool, any_order: bool
) -> None:
    got = []
    for window in (WINDOW, FEW):
        with pytest.MonkeyPatch.context() as patched:
            cut(patched, window)
            scene = Scene(pool_pages=3 * MANY)
            for number in sorted(here - absent):
                scene.put(number)
            missing = computed - here - absent
            elsewhere(scene, tuple(number for number in ALL if number not in here | absent | missing))
            claimed = tuple(map(key, sorted(missing)))
            scene.say(events.ClaimMade(ENGINE, claimed, PAGE, (0.1,) * len(claimed), 0))
            ask(scene, ALL, streamed=streamed, any_order=any_order)
            bring(scene)
            request = scene.request
            for number in sorted(missing):
                scene.put(number)
                bring(scene)
            scene.pass_ms(20_000)
            bring(scene)
            parts = scene.take(effects.FetchPartAnswered)
            (one,) = (one for one in scene.take(FetchAnswered) if one.request == request)
            told = [(chunk.size_bytes, chunk.source) for part in parts for chunk in part.chunks]
            last = [(chunk.size_bytes, chunk.source) for chunk in one.chunks]
            (ended,) = scene.take(effects.FetchEnded)
            figures = sorted((source.value, *rest) for source, *rest in ended.delivered)
            # What becomes ready in the meantime is decided with it, or by itself.
            decisions = {} if missing else dict(scene.core.gate.counts.decisions)
            got.append((one.status, one.places, told + last, figures, ended.status, decisions))
            for lease in (*(part.lease for part in parts), one.lease):
                scene.say(events.LeaseReleased(ENGINE, lease))
            end(scene)
    assert got[0] == got[1]


def test_a_plan_that_is_traced_says_what_it_says_of_a_short_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    for window in (WINDOW, FEW):
        cut(monkeypatch, window)
        scene = Scene()
        for number in (1, 6):
            scene.put(number)
        elsewhere(scene, tuple(number for number in ALL if number not in (1, 6)))
        ask(scene, ALL, traced=True)
        scene.pass_ms(0)
        said += scene.take(effects.FetchPlanned)
        bring(scene)
        scene.say(events.LeaseReleased(ENGINE, answer(scene).lease))
        end(scene)
    assert len(said) == 2
    assert said[0] == said[1]


# ------------------------------------------------------------------ between two windows


@pytest.fixture
def half_asked(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """All chunks are elsewhere; the first window of three is asked for."""
    cut(monkeypatch)
    scene = Scene()
    elsewhere(scene, ALL)
    ask(scene, ALL)
    while not scene.core.fetches.arrivals.under_way:
        assert ring(scene)
    assert len(scene.core.fetches.arrivals.under_way) == FEW
    return scene


def test_a_put_between_two_windows_is_worked_at_once(half_asked: Scene) -> None:
    half_asked.say(events.ReserveRequested(ENGINE, 99, key(1000), None, PAGE, None, ""))
    (reserved,) = half_asked.take(effects.ReserveAnswered)
    assert reserved.status is Status.OK
    assert len(half_asked.core.fetches.arrivals.under_way) == FEW
    bring(half_asked)
    half_asked.say(events.LeaseReleased(ENGINE, answer(half_asked).lease))
    end(half_asked)


def test_what_others_bring_in_between_is_not_asked_for(half_asked: Scene) -> None:
    request = half_asked.request
    half_asked.put(6)
    bring(half_asked)
    (one,) = (one for one in half_asked.take(FetchAnswered) if one.request == request)
    assert (one.status, len(one.chunks)) == (Status.OK, MANY)
    half_asked.say(events.LeaseReleased(ENGINE, one.lease))
    end(half_asked)


def test_what_goes_in_between_ends_a_prefix_there(half_asked: Scene) -> None:
    half_asked.directory(entry(6, pages=1))
    bring(half_asked)
    one = answer(half_asked)
    assert (one.status, len(one.chunks)) == (Status.NOT_FOUND, 5)
    half_asked.say(events.LeaseReleased(ENGINE, one.lease))
    end(half_asked)


def test_what_is_gone_of_the_first_window_ends_the_asking(half_asked: Scene) -> None:
    half_asked.directory(entry(2, pages=1))
    bring(half_asked)
    for read in half_asked.take(effects.StartRead):
        half_asked.say(events.protocol.ReadFailed(read.read, gone=True))
    half_asked.pass_ms(11_000)
    assert len(answer(half_asked).chunks) <= MANY
    half_asked.core.pool.sweep()
    half_asked.close()


@pytest.mark.parametrize("rings", range(9))
def test_a_fetch_that_is_cancelled_at_any_time_is_answered_once_and_holds_nothing(
    monkeypatch: pytest.MonkeyPatch, rings: int
) -> None:
    cut(monkeypatch)
    scene = Scene()
    for number in (2, 7):
        scene.put(number)
    elsewhere(scene, tuple(number for number in ALL if number not in (2, 7)))
    ask(scene, ALL)
    for _ in range(rings):
        ring(scene)
    scene.say(events.CancelRequested(ENGINE, scene.request))
    assert answer(scene).status is Status.CANCELLED
    scene.pass_ms(0)
    assert scene.core.pool.pins_count == 0
    assert not scene.take(FetchAnswered)
    end(scene)


@pytest.mark.parametrize("rings", range(9))
@pytest.mark.parametrize("how", ["gone", "stopped", "late"])
def test_nothing_stays_whenever_an_engine_or_the_agent_goes_or_time_is_over(
    monkeypatch: pytest.MonkeyPatch, rings: int, how: str
) -> None:
    cut(monkeypatch)
    scene = Scene()
    for number in (2, 7):
        scene.put(number)
    elsewhere(scene, tuple(number for number in ALL if number not in (2, 7)))
    ask(scene, ALL, deadline_s=1.0)
    for _ in range(rings):
        ring(scene)
    if how == "late":
        scene.pass_ms(2000)
        assert len(answer(scene).chunks) == 0
        end(scene)
    elif how == "gone":
        scene.say(events.EngineDisconnected(ENGINE))
        end(scene)
    else:
        scene.say(events.Stopped())
        assert not scene.core.windows.is_busy
        scene.close()


def test_a_chunk_that_is_wanted_again_while_it_is_given_up_still_comes(half_asked: Scene) -> None:
    bring_windows(half_asked)
    half_asked.say(events.CancelRequested(ENGINE, half_asked.request))
    half_asked.take(FetchAnswered)
    ask(half_asked, (1, 2))
    bring(half_asked)
    one = answer(half_asked)
    assert (one.status, len(one.chunks)) == (Status.OK, 2)
    half_asked.say(events.LeaseReleased(ENGINE, one.lease))
    end(half_asked)


def bring_windows(scene: Scene) -> None:
    """All is asked for, and nothing comes."""
    while ring(scene):
        pass


def test_who_goes_gives_back_leases_pins_and_locks_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch)
    scene = Scene()
    scene.say(events.EngineConnected(ENGINE, "red"))
    for number in ALL:
        scene.put(number)
    ask(scene, ALL)
    bring(scene)
    keys = tuple(map(key, ALL))
    scene.say(events.KeysRequested(ENGINE, 1, Kind.PIN, keys))
    scene.say(events.KeysRequested(ENGINE, 2, Kind.LOCK, keys, 100.0))
    assert scene.core.engines.locks.count == MANY
    scene.say(events.EngineDisconnected(ENGINE))
    assert scene.core.pool.pins_count == MANY, "it is about to be given back"
    scene.pass_ms(0)
    assert scene.core.pool.pins_count == 0
    assert scene.core.engines.locks.count == 0
    chunks = [scene.core.pool.find(key(number)) for number in ALL]
    assert all(chunk is not None and not chunk.holds for chunk in chunks)
    end(scene)


# ------------------------------------------------------------------ what one turn costs


class Calls:
    """Calls of Python functions, one event at a time: what an event costs, without a clock."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._count = 0
        self.most = 0

    def say(self, event: events.Event) -> None:
        self._count = 0
        sys.setprofile(self._called)
        try:
            self._scene.say(event)
        finally:
            sys.setprofile(None)
        self.most = max(self.most, self._count)

    def _called(self, _frame: FrameType, event: str, _: object) -> None:
        self._count += event == "call"

    def until_quiet(self) -> None:
        scene = self._scene
        while (due_ns := scene.core.next_timeout_ns()) is not None and due_ns <= scene.now_ns:
            self.say(events.TimerFired())


def most_calls(count: int, then: Callable[[Scene, Calls], None], *, here: bool = False) -> int:
    scene = Scene(pool_pages=2 * count)
    numbers = tuple(range(1, count + 1))
    if here:
        for number in numbers:
            scene.put(number)
    else:
        elsewhere(scene, numbers)
    scene.request += 1
    calls = Calls(scene)
    then(scene, calls)
    scene.say(events.EngineDisconnected(ENGINE))
    end(scene)
    return calls.most


def requested(scene: Scene, calls: Calls, **terms: bool) -> None:
    numbers = range(1, scene.core.pool.usage().size_bytes // PAGE // 2 + 1)
    calls.say(events.ChunksRequested(ENGINE, scene.request, tuple(map(key, numbers)), 10.0, None, **terms))
    calls.until_quiet()


def cancelled(scene: Scene, calls: Calls) -> None:
    requested(scene, Calls(scene))
    calls.say(events.CancelRequested(ENGINE, scene.request))
    calls.until_quiet()


def late(scene: Scene, calls: Calls) -> None:
    requested(scene, Calls(scene))
    scene.now_ns += 11_000_000_000
    calls.until_quiet()


def left(scene: Scene, calls: Calls) -> None:
    requested(scene, Calls(scene), any_order=True)
    calls.say(events.EngineDisconnected(ENGINE))
    calls.until_quiet()


def parts_asked(scene: Scene, calls: Calls) -> None:
    numbers = range(1, scene.core.pool.usage().size_bytes // PAGE // 2 + 1)
    asked = events.PartsRequested(ENGINE, scene.request, tuple(map(key, numbers)), (ByteRange(0, 8),), 10.0)
    calls.say(asked)
    calls.until_quiet()
    calls.say(events.CancelRequested(ENGINE, scene.request))
    calls.until_quiet()


@pytest.mark.parametrize(
    ("then", "here"),
    [(cancelled, False), (late, False), (left, False), (left, True)],
    ids=["cancelled", "late", "gone", "gone with leases"],
)
def test_no_turn_grows_with_the_number_of_chunks(then: Callable[[Scene, Calls], None], here: bool) -> None:
    few, many = (most_calls(count, then, here=here) for count in (3 * WINDOW, 9 * WINDOW))
    assert many < few + 6 * WINDOW, "a chunk more costs a turn one call or so: what hangs on all of them at once"


@pytest.mark.parametrize("then", [requested, parts_asked])
def test_of_one_more_chunk_a_turn_does_no_more_than_decide(then: Callable[[Scene, Calls], None]) -> None:
    few, many = (most_calls(count, then) for count in (3 * WINDOW, 9 * WINDOW))
    assert many - few < 6 * 6 * WINDOW


def test_a_pool_that_is_pinned_whole_refuses_without_looking_for_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(pool_pages=64)
    for number in range(1000, 1064):
        scene.put(number)
    for chunk in scene.core.pool.ready_chunks():
        scene.core.pool.pin(chunk)
    numbers = tuple(range(1, 3 * WINDOW))
    elsewhere(scene, numbers)

    def nobody(*_: object) -> Iterator[bytes]:
        raise AssertionError("victims are looked for")

    monkeypatch.setattr(scene.core.pool.values, "victims", nobody)
    ask(scene, numbers, any_order=True)
    scene.pass_ms(0)
    one = answer(scene)
    assert (one.status, one.chunks) == (Status.POOL_FULL, ())


def test_pieces_of_work_take_turns_and_one_that_fails_stops_no_other() -> None:
    clock = Clock()
    alarms = Alarms(clock)
    work, done = Windows(alarms), list[str]()

    def steps(name: str, count: int, *, fails: bool = False) -> Work:
        for _ in range(count):
            done.append(name)
            yield
        if fails:
            raise ValueError(name)

    work.begin(steps("a", 2))
    work.begin(steps("b", 1, fails=True))
    work.begin(steps("c", 3))
    failed = 0
    while work.is_busy:
        try:
            alarms.ring()
        except ValueError:
            failed += 1
    assert "".join(done) == "abcacc"
    assert failed == 1
