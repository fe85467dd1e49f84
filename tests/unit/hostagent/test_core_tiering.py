"""Background writes and promotions: below what engines wait for, urgent ones first."""

from __future__ import annotations

import pytest

from hostagent.core import effects, events
from hostagent.core.disk_index import DiskState
from hostagent.core.events import SaveOutcome
from hostagent.core.tiering import Tiering
from kvpolicy.value import Touch
from tests.unit.hostagent.core_harness import PAGE, Scene, entry, key


class Stage(Scene):
    """A node with a disk. `engage` has an engine wait for something that does not come."""

    def __init__(self, *, pool_pages: int = 64, disk_pages: int = 64, promote: bool = False) -> None:
        super().__init__(pool_pages=pool_pages, disk_pages=disk_pages, promote=promote)

    @property
    def tiering(self) -> Tiering:
        assert self.core.tiering is not None
        return self.core.tiering

    def engage(self) -> int:
        self.directory(entry(1_000, 1, pages=1))
        return self.fetch(1_000)

    def free(self, request: int) -> None:
        self.say(events.CancelRequested(events.EngineId(1), request))

    def save_all(self) -> None:
        """Until nothing is unsaved; the disk answers at once."""
        for _ in range(1_000):
            self.pass_ms(1)
            self.save()
            if not self.tiering.unsaved_count:
                return
        raise AssertionError("some chunks are never saved")

    def stored(self) -> list[bytes]:
        assert self.disk is not None
        return [chunk.key for chunk in self.disk.stored_chunks()]


def test_writes_wait_for_engines_until_their_patience_ends() -> None:
    stage = Stage()
    request = stage.engage()
    for number in (1, 2, 3):
        stage.put(number)
    stage.pass_ms(100)
    assert (len(stage.tiering.writes), stage.tiering.writes.running_count) == (3, 0)
    stage.pass_ms(200)
    assert stage.tiering.writes.counts.forced == 1
    stage.free(request)
    stage.save_all()
    assert stage.stored() == [key(1), key(2), key(3)]
    assert stage.tiering.writes.counts.taken == 3
    stage.close()


def test_under_pressure_what_would_be_evicted_is_written_first() -> None:
    stage = Stage(pool_pages=42)
    request = stage.engage()
    for number in range(40):
        stage.put(number)
    for number in range(20):
        stage.core.pool.touch([key(number)])
    stage.pass_ms(1)
    # What is queued already goes first; the plan that follows is made under pressure.
    stage.free(request)
    while len(stage.stored()) < 16:
        stage.pass_ms(1)
        stage.save()
    assert set(stage.stored()[8:16]) <= {key(number) for number in range(20, 40)}
    stage.save_all()
    stage.close()


def test_what_goes_before_it_was_written_is_forgotten() -> None:
    stage = Stage()
    request = stage.engage()
    for number in range(50):
        stage.put(number)
    stage.pass_ms(1)
    for number in range(49):
        stage.core.pool.drop(key(number))
    stage.free(request)
    stage.save_all()
    assert stage.stored() == [key(49)]
    stage.close()


def test_a_chunk_larger_than_the_disk_is_refused_and_counted() -> None:
    stage = Stage(disk_pages=2)
    stage.put(1, 3 * PAGE)
    stage.put(2)
    stage.save_all()
    assert (stage.stored(), stage.tiering.refused_count) == ([key(2)], 1)
    stage.close()


@pytest.mark.parametrize("outcome", [SaveOutcome.REFUSED, SaveOutcome.FAILED])
def test_a_write_that_comes_to_nothing_is_not_tried_again(outcome: SaveOutcome) -> None:
    stage = Stage()
    stage.put(1)
    stage.pass_ms(1)
    assert stage.save(outcome) == [key(1)]
    stage.pass_ms(1_000)
    assert (stage.take(effects.SaveChunk), stage.tiering.unsaved_count) == ([], 0)
    assert stage.tiering.refused_count == (outcome is SaveOutcome.REFUSED)
    stage.close()


def test_a_disk_that_takes_nothing_more_is_asked_for_nothing() -> None:
    stage = Stage()
    assert stage.disk is not None
    stage.disk.state = DiskState.READING
    stage.put(1)
    stage.pass_ms(1_000)
    assert (stage.take(effects.SaveChunk), stage.tiering.unsaved_count) == ([], 0)
    stage.close()


def test_a_full_disk_takes_only_what_is_worth_more_than_what_would_go() -> None:
    stage = Stage(disk_pages=4)
    assert stage.disk is not None
    for number in range(6):
        stage.disk.pool.fetched([Touch(key(number), None, 0, PAGE)])
        if number == 4:
            stage.disk.pool.finished([key(4)])
        stage.put(number)
        stage.save_all()
        stage.pass_ms(1_000)
    assert set(stage.stored()) == {key(1), key(2), key(3), key(5)}, "nobody expects 4; 5 took the place of 0"
    assert stage.tiering.refused_count == 1
    stage.close()


def test_a_flush_ends_with_everything_stored() -> None:
    stage = Stage()
    stage.engage()
    for number in range(40):
        stage.put(number)
    stage.say(events.FlushRequested())
    assert stage.take(effects.Flushed) == []
    stage.save_all()
    assert len(stage.stored()) == 40
    stage.pass_ms(1)
    assert stage.take(effects.Flushed) == [effects.Flushed()]
    stage.say(events.FlushRequested())
    assert stage.take(effects.Flushed) == [effects.Flushed()]
    stage.close()


def test_promotions_fill_half_of_the_pool_when_it_is_started() -> None:
    stage = Stage(pool_pages=8, promote=True)
    assert stage.disk is not None
    for number in range(6):
        stage.now_ns += 1_000_000_000
        stage.core.handle(events.TimerFired(), stage.now_ns)
        stage.disk.store(number)
    stage.pass_ms(20_000)
    promoted = []
    while loaded := stage.load():
        promoted += loaded
        stage.pass_ms(1)
    assert promoted == [key(5), key(4), key(3), key(2)], "worth most first, into half of the pool"
    assert stage.core.idle
    stage.close()
