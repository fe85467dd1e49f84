"""Background writes and promotions: below what engines wait for, urgent ones first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from disk_harness import PAGE, Bench, key, play

from hostagent.tiering import Tiering
from kvproto.ids import ChunkKey
from kvproto.value import Touch


class Stage:
    """Tiering of a bench; the test says whether an engine waits."""

    def __init__(self, folder: Path, **options: int) -> None:
        self.bench = Bench(folder, **options)
        self.busy = False
        self.changed = 0
        self.promoted: list[ChunkKey] = []
        loop = asyncio.get_running_loop()
        self.tiering = Tiering(self.bench.dram, self.bench.store, self, lambda: self.busy, self._note, loop)

    def _note(self) -> None:
        self.changed += 1

    def promote(self, key: ChunkKey, done: Callable[[], None]) -> None:
        self.promoted.append(key)
        asyncio.get_running_loop().call_soon(done)

    def put(self, *numbers: int, size: int = PAGE) -> None:
        for number in numbers:
            self.tiering.arrived(self.bench.put(number, size))

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        self.tiering.close()
        await self.bench.close()

    def stored(self) -> list[ChunkKey]:
        return [chunk.key for chunk in self.bench.store.stored_chunks()]


def test_writes_wait_for_engines_until_their_patience_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        stage = Stage(tmp_path)
        await stage.bench.store.open()
        stage.busy = True
        stage.put(1, 2, 3)
        await stage.until(lambda: len(stage.tiering.writes) == 3)
        assert stage.tiering.writes.running_count == 0
        await stage.until(lambda: stage.tiering.writes.counts.forced == 1)
        stage.busy = False
        stage.tiering.pump_soon()
        await stage.until(lambda: stage.tiering.unsaved_count == 0)
        assert stage.stored() == [key(1), key(2), key(3)]
        assert stage.tiering.writes.counts.taken == 3
        assert stage.changed
        await stage.close()

    play(scenario)


def test_under_pressure_what_would_be_evicted_is_written_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        stage = Stage(tmp_path, pool_pages=40)
        await stage.bench.store.open()
        stage.busy = True
        for number in range(40):
            stage.bench.put(number)
        for number in range(20):
            stage.bench.dram.touch(key(number))
        for chunk in stage.bench.dram.ready_chunks():
            stage.tiering.arrived(chunk)
        await stage.until(lambda: len(stage.tiering.writes) > 0)
        stage.busy = False
        stage.tiering.pump_soon()
        await stage.until(lambda: stage.bench.store.counters.written_chunks >= 8)
        assert set(stage.stored()[:8]) <= {key(number) for number in range(20, 40)}
        await stage.until(lambda: stage.tiering.unsaved_count == 0)
        await stage.close()

    play(scenario)


def test_what_goes_before_it_was_written_is_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        stage = Stage(tmp_path)
        await stage.bench.store.open()
        stage.busy = True
        stage.put(*range(50))
        await stage.until(lambda: len(stage.tiering.writes) > 0)
        for number in range(49):
            stage.bench.dram.drop(key(number))
        stage.busy = False
        stage.tiering.pump_soon()
        await stage.until(lambda: stage.tiering.unsaved_count == 0)
        assert stage.stored() == [key(49)]
        await stage.close()

    play(scenario)


def test_a_chunk_larger_than_the_disk_is_refused_and_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        stage = Stage(tmp_path, disk_pages=2)
        await stage.bench.store.open()
        stage.put(1, size=3 * PAGE)
        stage.put(2)
        await stage.until(lambda: stage.tiering.unsaved_count == 0)
        assert (stage.stored(), stage.tiering.refused_count) == ([key(2)], 1)
        await stage.close()

    play(scenario)


def test_a_full_disk_takes_only_what_is_worth_more_than_what_would_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        stage = Stage(tmp_path, disk_pages=4)
        await stage.bench.store.open()
        disk = stage.bench.store.pool
        for number in range(6):
            chunk = stage.bench.put(number)
            disk.fetched([Touch(key(number), None, 0, PAGE)])
            if number == 4:
                disk.finished([key(4)])
            stage.tiering.arrived(chunk)
            await stage.until(lambda: stage.tiering.unsaved_count == 0)
        assert set(stage.stored()) == {key(1), key(2), key(3), key(5)}, "nobody expects 4; 5 took the place of 0"
        assert stage.tiering.refused_count == 1
        await stage.close()

    play(scenario)


def test_a_flush_ends_with_everything_stored_or_its_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        stage = Stage(tmp_path)
        await stage.bench.store.open()
        stage.busy = True
        stage.put(*range(40))
        await stage.tiering.flush(10.0)
        assert len(stage.stored()) == 40
        await stage.tiering.flush(10.0)
        stage.put(41)
        await stage.tiering.flush(0.0)
        await stage.close()

    play(scenario)


def test_promotions_are_taken_from_the_disk_when_it_is_started(tmp_path: Path) -> None:
    async def scenario() -> None:
        stage = Stage(tmp_path, pool_pages=8)
        await stage.bench.store.open()
        for number in range(6):
            await stage.bench.save(number)
        stage.tiering.start()
        await stage.until(lambda: len(stage.promoted) == 4 and stage.tiering.promotions.running_count == 0)
        assert stage.promoted == [key(5), key(4), key(3), key(2)], "worth most first, into half of the pool"
        await stage.close()

    play(scenario)
