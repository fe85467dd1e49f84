"""The disk tier: what it keeps, what it gives back, and that it never gives back anything else."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hostagent.core.disk_index import DiskState
from hostagent.core.events import LoadOutcome
from hostagent.disk.store import READ_FAILURES_MAX, without_overlaps
from hostagent.pool.records import FORMAT, HEADER_BYTES, RECORD_BYTES, Record, record_at
from tests.unit.hostagent.disk_harness import INDEX_NAME, PAGE, SLAB_NAME, Bench, content, flip, key, play

SIZES = (1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE + 17)


@pytest.mark.parametrize("direct", [True, False])
def test_chunks_survive_a_restart(tmp_path: Path, direct: bool) -> None:
    async def first() -> None:
        bench = Bench(tmp_path, direct=direct)
        await bench.store.open()
        for number, size in enumerate(SIZES):
            assert await bench.save(number, size, parent=number - 1 if number else None, namespace=f"model/{number}")
            assert await bench.load(number, size) == (LoadOutcome.DONE, content(number, size))
        await bench.close()

    async def second() -> None:
        bench = Bench(tmp_path, direct=direct)
        await bench.store.open()
        assert bench.store.counters.restored_chunks == len(SIZES)
        assert bench.store.counters.damaged_records == 0
        added, removed = bench.store.take_changes()
        assert [(chunk.key, chunk.parent, chunk.size_bytes, chunk.namespace) for chunk in added] == [
            (key(number), key(number - 1) if number else None, size, f"model/{number}")
            for number, size in enumerate(SIZES)
        ]
        assert removed == []
        for number, size in enumerate(SIZES):
            assert await bench.load(number, size) == (LoadOutcome.DONE, content(number, size))
        await bench.close()

    play(first)
    play(second)


def test_space_is_bounded_and_the_first_to_go_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path, disk_pages=256)
        await bench.store.open()
        for number in range(600):
            assert await bench.save(number, PAGE)
        assert (tmp_path / SLAB_NAME).stat().st_size == 256 * PAGE
        # One more slot than chunks at most: a slot is taken before that of what is evicted is free again.
        assert (tmp_path / INDEX_NAME).stat().st_size <= HEADER_BYTES + 257 * RECORD_BYTES
        assert bench.store.pool.evicted_count == 600 - 256
        added, removed = bench.store.take_changes()
        assert [chunk.key for chunk in added] == [key(number) for number in range(344, 600)]
        assert removed == []  # what came and went unsaid is none of the directory's business
        assert (await bench.load(0))[0] is LoadOutcome.ABSENT
        assert await bench.load(599) == (LoadOutcome.DONE, content(599, PAGE))
        await bench.close()
        again = Bench(tmp_path, disk_pages=256)
        await again.store.open()
        assert {chunk.key for chunk in again.store.stored_chunks()} == {key(number) for number in range(344, 600)}
        await again.close()

    play(scenario)


def test_changes_tell_what_came_and_went(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path, disk_pages=2)
        await bench.store.open()
        await bench.save(1)
        await bench.save(2)
        assert [chunk.key for chunk in bench.store.take_changes()[0]] == [key(1), key(2)]
        await bench.save(3)
        added, removed = bench.store.take_changes()
        assert ([chunk.key for chunk in added], removed) == ([key(3)], [key(1)])
        assert bench.store.drop(key(2))
        assert not bench.store.drop(key(2))
        assert bench.store.take_changes() == ([], [key(2)])
        await bench.close()

    play(scenario)


def test_a_chunk_is_stored_once_and_only_where_it_fits(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path, disk_pages=4)
        await bench.store.open()
        chunk = bench.put(1)
        finished: list[bool] = []
        assert bench.store.save(chunk, finished.append)
        assert not bench.store.save(chunk, finished.append), "being written already"
        assert not await bench.save(2, 5 * PAGE), "larger than the disk"
        await bench.close()
        assert not bench.store.save(chunk, finished.append), "closed"

    play(scenario)


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize("place", [0, 1, PAGE - 1, PAGE, 3 * PAGE + 16])
def test_flipped_bytes_of_a_chunk_are_a_miss(tmp_path: Path, place: int) -> None:
    async def scenario() -> None:
        size = 3 * PAGE + 17
        bench = Bench(tmp_path, direct=False)
        await bench.store.open()
        for number in (1, 2, 3):
            await bench.save(number, size)
        stored = bench.store.find(key(2))
        assert stored is not None
        bench.patch(SLAB_NAME, stored.offset + place, flip)
        assert (await bench.load(2, size))[0] is LoadOutcome.DAMAGED
        assert bench.store.counters.damaged_chunks == 1
        assert bench.store.find(key(2)) is None, "a damaged copy is dropped"
        assert (await bench.load(2, size))[0] is LoadOutcome.ABSENT
        for number in (1, 3):
            assert await bench.load(number, size) == (LoadOutcome.DONE, content(number, size))
        await bench.close()
        again = Bench(tmp_path)
        await again.store.open()
        assert {chunk.key for chunk in again.store.stored_chunks()} == {key(1), key(3)}
        await again.close()

    play(scenario)


def test_flipped_bytes_behind_the_end_of_a_chunk_are_none_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path, direct=False)
        await bench.store.open()
        await bench.save(1, 100)
        bench.patch(SLAB_NAME, 101, flip)
        assert await bench.load(1, 100) == (LoadOutcome.DONE, content(1, 100))
        await bench.close()

    play(scenario)


@pytest.mark.parametrize("place", [0, 4, 8, 16, 32, 48, 56, 64, 72, 76, 400, 504, 511])
def test_a_flipped_byte_of_a_record_costs_that_chunk_only(tmp_path: Path, place: int) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        await bench.store.open()
        for number in (1, 2, 3):
            await bench.save(number)
        await bench.close()
        bench.patch(INDEX_NAME, record_at(1) + place, flip)
        again = Bench(tmp_path)
        await again.store.open()
        assert again.store.counters.damaged_records == 1
        assert {chunk.key for chunk in again.store.stored_chunks()} == {key(1), key(3)}
        for number in (1, 3):
            assert await again.load(number) == (LoadOutcome.DONE, content(number, PAGE))
        assert await again.save(4), "the slot is of use again"
        await again.close()
        third = Bench(tmp_path)
        await third.store.open()
        assert (third.store.counters.damaged_records, third.store.counters.restored_chunks) == (0, 3)
        await third.close()

    play(scenario)


@pytest.mark.parametrize("place", [0, 8, 12, 16, 32, 39])
def test_a_damaged_header_means_an_empty_store(tmp_path: Path, place: int) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        await bench.store.open()
        await bench.save(1)
        await bench.close()
        bench.patch(INDEX_NAME, place, flip)
        again = Bench(tmp_path)
        await again.store.open()
        assert again.store.state is DiskState.ON
        assert (again.store.counters.damaged_records, again.store.stored_chunks()) == (1, [])
        assert await again.save(2)
        await again.close()
        third = Bench(tmp_path)
        await third.store.open()
        assert [chunk.key for chunk in third.store.stored_chunks()] == [key(2)]
        await third.close()

    play(scenario)


@pytest.mark.parametrize("cut", [1, 100, RECORD_BYTES, 2 * RECORD_BYTES + 7])
def test_a_cut_index_costs_what_was_cut(tmp_path: Path, cut: int) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        await bench.store.open()
        for number in (1, 2, 3):
            await bench.save(number)
        await bench.close()
        path = tmp_path / INDEX_NAME
        os.truncate(path, path.stat().st_size - cut)
        again = Bench(tmp_path)
        await again.store.open()
        left = 3 - -(-cut // RECORD_BYTES)
        assert {chunk.key for chunk in again.store.stored_chunks()} == {key(number) for number in range(1, left + 1)}
        assert again.store.counters.damaged_records == bool(cut % RECORD_BYTES)
        await again.close()

    play(scenario)


def test_a_cut_slab_is_a_miss(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path)
        await bench.store.open()
        for number in (1, 2, 3):
            await bench.save(number)
        await bench.close()
        os.truncate(tmp_path / SLAB_NAME, PAGE + 10)
        again = Bench(tmp_path)
        await again.store.open()
        found = [(await again.load(number))[0] for number in (1, 2, 3)]
        assert found == [LoadOutcome.DONE, LoadOutcome.DAMAGED, LoadOutcome.DAMAGED]
        await again.close()

    play(scenario)


def test_records_that_outlived_their_bytes_give_nothing_wrong(tmp_path: Path) -> None:
    """As after a power failure that undid later writes of the index, but not those of the slab."""

    async def scenario() -> None:
        bench = Bench(tmp_path, disk_pages=4)
        await bench.store.open()
        for number in range(4):
            await bench.save(number)
        await bench.close()
        shutil.copy(tmp_path / INDEX_NAME, tmp_path / "old")
        bench = Bench(tmp_path, disk_pages=4)
        await bench.store.open()
        for number in (10, 11):
            await bench.save(number)
        await bench.close()
        shutil.copy(tmp_path / "old", tmp_path / INDEX_NAME)
        again = Bench(tmp_path, disk_pages=4)
        await again.store.open()
        assert again.store.counters.restored_chunks == 4
        outcomes = {number: await again.load(number) for number in range(4)}
        for number, (outcome, found) in outcomes.items():
            assert outcome is LoadOutcome.DAMAGED or found == content(number, PAGE)
        assert sorted(outcome.value for outcome, _ in outcomes.values()) == ["damaged", "damaged", "done", "done"]
        await again.close()

    play(scenario)


def record(number: int, offset: int, pages: int, sequence: int) -> tuple[int, Record]:
    return sequence, Record(key(number), None, 0, "", offset * PAGE, pages * PAGE, 0, sequence)


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ([record(1, 0, 2, 1), record(2, 2, 2, 2)], [1, 2]),
        ([record(1, 0, 3, 1), record(2, 2, 2, 2)], [2]),
        ([record(1, 0, 3, 2), record(2, 2, 2, 1)], [1]),
        ([record(1, 0, 8, 1), record(2, 2, 2, 2), record(3, 6, 1, 3)], [2, 3]),
        ([record(1, 2, 1, 1), record(1, 4, 1, 2)], [1]),
        ([record(1, 15, 2, 1), record(2, 0, 1, 2)], [2]),
        ([record(1, 1 << 40, 1, 1)], []),
    ],
)
def test_of_contradicting_records_the_later_one_is_true(found: list[tuple[int, Record]], kept: list[int]) -> None:
    good, void = without_overlaps(found, 16 * PAGE)
    assert [one.key for _, one in good] == [key(number) for number in kept]
    assert sorted(void + [slot for slot, _ in good]) == sorted(slot for slot, _ in found)


# ---------------------------------------------------------------------- disks that do not do


def test_another_format_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import struct

    import xxhash

    head = struct.pack("!8sII16s", b"KVCASTDI", FORMAT + 1, RECORD_BYTES, bytes(16))
    page = (head + struct.pack("!Q", xxhash.xxh3_64_intdigest(head))).ljust(HEADER_BYTES, b"\0")
    (tmp_path / INDEX_NAME).write_bytes(page)

    async def scenario() -> None:
        bench = Bench(tmp_path)
        await bench.store.open()
        assert bench.store.state is DiskState.OFF
        assert not await bench.save(1)
        await bench.close()

    play(scenario)
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert "holds a store of another release's format: remove its files or set disk.path" in line
    assert (tmp_path / INDEX_NAME).read_bytes() == page


def test_two_agents_do_not_share_a_folder(tmp_path: Path) -> None:
    async def scenario() -> None:
        one, two = Bench(tmp_path), Bench(tmp_path)
        await one.store.open()
        await two.store.open()
        assert (one.store.state, two.store.state) == (DiskState.ON, DiskState.OFF)
        assert "another agent uses" in two.store.reason
        await two.close()
        assert await one.save(1)
        await one.close()

    play(scenario)


def test_no_room_is_one_clear_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path, disk_pages=1 << 34)
        await bench.store.open()
        assert bench.store.state is DiskState.OFF
        assert "no room for a slab of" in bench.store.reason
        assert "lower disk.size or make room" in bench.store.reason
        await bench.close()

    play(scenario)
    assert (tmp_path / SLAB_NAME).stat().st_size == 0


@pytest.mark.parametrize("name", [INDEX_NAME, SLAB_NAME])
@pytest.mark.parametrize(
    ("put", "said"),
    [
        (lambda place, other: place.symlink_to(other), "not a regular file"),
        (lambda place, other: place.symlink_to(other.with_name("nothing")), "not a regular file"),
        (lambda place, other: place.hardlink_to(other), "a file with a second name"),
        (lambda place, other: os.mkfifo(place), "not a regular file"),
    ],
    ids=["link", "dangling-link", "hard-link", "pipe"],
)
def test_files_that_are_somebody_elses_stay_as_they_are(
    tmp_path: Path, name: str, put: Callable[[Path, Path], None], said: str
) -> None:
    folder, other = tmp_path / "tier", tmp_path / "other"
    folder.mkdir()
    other.write_bytes(b"precious")
    put(folder / name, other)

    async def scenario() -> None:
        bench = Bench(folder)
        await bench.store.open()
        assert bench.store.state is DiskState.OFF
        assert bench.store.reason.startswith(f"{folder / name} is {said}: remove it")
        await bench.close()

    play(scenario)
    assert other.read_bytes() == b"precious"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.root
def test_a_file_of_another_user_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / SLAB_NAME).write_bytes(b"precious")
    os.chown(tmp_path / SLAB_NAME, 12345, 12345)

    async def scenario() -> None:
        bench = Bench(tmp_path)
        await bench.store.open()
        assert "owned by user 12345, not by 0" in bench.store.reason
        await bench.close()

    play(scenario)
    assert (tmp_path / SLAB_NAME).read_bytes() == b"precious"


def test_a_folder_that_cannot_be_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def scenario() -> None:
        bench = Bench(tmp_path / "file" / "below")
        await bench.store.open()
        assert bench.store.state is DiskState.OFF
        assert bench.store.reason.endswith("make it writable or set disk.path to another folder")
        await bench.close()

    play(scenario)


def test_a_write_that_fails_ends_writing_and_not_reading(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path, disk_pages=16)
        await bench.store.open()
        assert await bench.save(1, 4 * PAGE)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 * PAGE, limits[1]))
        try:
            assert await bench.save(2, 2 * PAGE)
            assert not await bench.save(3, 4 * PAGE), "beyond what a file may have"
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert bench.store.state is DiskState.READING
        assert bench.store.counters.writes_failed == 1
        assert not await bench.save(4)
        assert bench.store.find(key(3)) is None
        for number, pages in ((1, 4), (2, 2)):
            assert await bench.load(number, pages * PAGE) == (LoadOutcome.DONE, content(number, pages * PAGE))
        await bench.close()

    play(scenario)
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(errors) == 1
    assert "takes no more chunks, serves those it has: File too large" in errors[0]


def test_reads_that_fail_again_and_again_end_the_tier(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path, disk_pages=16)
        await bench.store.open()
        for number in range(8):
            await bench.save(number)
        bench.store.take_changes()
        os.truncate(tmp_path / SLAB_NAME, 0)
        for number in range(READ_FAILURES_MAX):
            assert bench.store.state is DiskState.ON
            assert (await bench.load(number))[0] is LoadOutcome.FAILED
        assert bench.store.state is DiskState.OFF
        assert bench.store.reason == "reads fail: the slab is too short"
        assert bench.store.take_changes() == ([], [key(number) for number in range(8)])
        assert bench.store.stored_chunks() == []
        assert (await bench.load(5))[0] is LoadOutcome.ABSENT
        await bench.close()

    play(scenario)


def test_a_load_whose_chunk_is_given_up_harms_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        import asyncio

        bench = Bench(tmp_path, pool_pages=4)
        await bench.store.open()
        await bench.save(1, 2 * PAGE)
        into = bench.dram.reserve(key(1), None, 2 * PAGE)
        ended: asyncio.Future[LoadOutcome] = asyncio.get_running_loop().create_future()
        bench.dram.pin(into)  # type: ignore[arg-type]
        bench.store.load(key(1), into, lambda outcome, _: ended.set_result(outcome))  # type: ignore[arg-type]
        bench.dram.abort(into)  # type: ignore[arg-type]
        other = bench.put(2, 2 * PAGE)
        assert other.offset != into.offset, "the memory that is being read into is nobody else's yet"  # type: ignore[union-attr]
        assert await ended is LoadOutcome.DONE
        bench.dram.unpin(into)  # type: ignore[arg-type]
        assert bytes(bench.memory.view(other.offset, 2 * PAGE)) == content(2, 2 * PAGE)
        assert bench.dram.usage().free_bytes == 2 * PAGE
        await bench.close()

    play(scenario)


def test_a_smaller_size_keeps_what_lies_within_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = Bench(tmp_path, disk_pages=8)
        await bench.store.open()
        for number in range(8):
            await bench.save(number)
        await bench.close()
        smaller = Bench(tmp_path, disk_pages=4)
        await smaller.store.open()
        assert {chunk.key for chunk in smaller.store.stored_chunks()} == {key(number) for number in range(4)}
        assert (tmp_path / SLAB_NAME).stat().st_size == 4 * PAGE
        await smaller.close()

    play(scenario)
