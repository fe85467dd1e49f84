"""The disk tier of this node: chunks in a slab file, found again after a crash.

The event loop decides and owns the index (`pool`, a `ChunkPool` over the slab's bytes); threads do the I/O: several
read, one writes, in the order of the calls. So the record of an evicted chunk is cleared before its bytes
are overwritten, and a record appears only after the bytes that it describes.

A load ends in exact bytes, compared with their digest, or in a miss that is counted. Trouble with the disk never stops
the agent: a failed write ends writing, repeatedly failing reads end the tier, each with one line in the log.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import mmap
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from hostagent import coding, limits
from hostagent.core.disk_index import DiskState
from hostagent.core.events import LoadOutcome
from hostagent.disk.disk_options import DiskConfig
from hostagent.disk.files import DiskError, StoreFiles
from hostagent.memory.pool_memory import PoolMemory
from hostagent.pool.chunks import Chunk, ChunkPool, DropOutcome
from hostagent.pool.records import Record
from hostagent.tree import NOT_HASHED, Hashed, hashed
from kvchunk.ids import ChunkKey
from kvcodec.forms import CodecError, Form, StoredForm
from kvpolicy.tiers.form_costs import FormWork
from kvproto.integrity import Integrity, algorithm_of

log = logging.getLogger(__name__)

GIVE_WAY_S: Final = 0.02
"""The writer waits at most this long for reads to end before each slice: reads come first, writes never starve."""
READ_FAILURES_MAX: Final = 3
"""Reads that fail in a row before the tier is turned off."""


@dataclass(slots=True)
class DiskCounters:
    """Running totals, read by metrics."""

    restored_chunks: int = 0
    damaged_records: int = 0
    written_bytes: int = 0
    stored_bytes: int = 0
    """Bytes on the disk of the written chunks."""
    read_bytes: int = 0
    damaged_chunks: int = 0
    reads_failed: int = 0
    writes_failed: int = 0
    reading: int = 0
    """Loads under way."""
    writing: int = 0


class DiskStore:
    """The disk tier of one node. Methods and callbacks run on the event loop, callbacks never inside a call."""

    def __init__(
        self,
        config: DiskConfig,
        memory: PoolMemory,
        loop: asyncio.AbstractEventLoop,
        pool: ChunkPool,
        measured: Callable[[FormWork], None] = lambda _: None,
    ) -> None:
        """`pool`: the index of the slab (of `config.size_bytes`), with its order of eviction. Chunks of the DRAM pool
        that are loaded or saved stay pinned by the caller until `done`. `measured(work)`: a chunk was turned into a
        form of fewer bytes, or back; called before `done`."""
        self._measured = measured
        self.config = config
        self.counters = DiskCounters()
        self.state = DiskState.OFF
        self.reason = "not opened"
        self.pool = pool
        self._memory = memory
        self._loop = loop
        self._files: StoreFiles | None = None
        self._slots: dict[ChunkKey, int] = {}
        self._free_slots: list[int] = []
        self._slots_end = 0
        self._sequence = 0
        self._failures = 0
        self._added: dict[ChunkKey, Chunk] = {}
        self._removed: set[ChunkKey] = set()
        self._sync_timer: asyncio.TimerHandle | None = None
        self._way = threading.Condition()
        self._reading = 0
        """Loads under way, as the writing thread sees them; guarded by `_way`."""
        self._readers = ThreadPoolExecutor(config.read_threads, thread_name_prefix="disk-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="disk-write")

    # ------------------------------------------------------------------ lifetime

    async def open(self) -> None:
        """Find what the last agent left. A disk that cannot be used leaves the tier off, with one line in the log."""
        try:
            await self._loop.run_in_executor(self._writer, self._open)
        except (DiskError, OSError) as error:
            self._turn_off(str(error))
            return
        self.state, self.reason = DiskState.ON, ""
        self._collect()
        counters = self.counters
        log.info(
            "disk tier at %s: %d chunks found, %d damaged records",
            self.config.path,
            len(self._slots),
            counters.damaged_records,
        )

    def _open(self) -> None:
        """In the writing thread, before the event loop uses the pool."""
        files = StoreFiles.open(self.config.path, self.config.size_bytes, direct=self.config.direct)
        try:
            self._restore(files)
        except BaseException:
            files.close()
            raise
        self._files = files

    def _restore(self, files: StoreFiles) -> None:
        found: list[tuple[int, Record]] = []
        void: list[int] = []
        for slot, record in files.records():
            self._slots_end = slot + 1
            if record is None:
                void.append(slot)
            else:
                found.append((slot, record))
        self.counters.damaged_records = len(void) + files.was_damaged
        kept, contradicted = without_overlaps(found, self.config.size_bytes)
        void += contradicted
        for slot, record in kept:
            if self.pool.restore(record) is None:
                void.append(slot)
                continue
            self._slots[record.key] = slot
            self._sequence = max(self._sequence, record.sequence)
            self.counters.restored_chunks += 1
        for slot in void:
            files.clear_record(slot)
        taken = set(self._slots.values())
        self._free_slots = [slot for slot in range(self._slots_end) if slot not in taken]

    async def close(self) -> None:
        """Finish all reads and writes, sync, close the files."""
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        self.state, self.reason = DiskState.OFF, "closed"
        await self._loop.run_in_executor(None, self._shut)

    def _shut(self) -> None:
        self._readers.shutdown(wait=True)
        self._writer.shutdown(wait=True)
        if self._files is not None:
            try:
                self._files.sync()
            except OSError as error:
                log.warning("disk tier at %s: the last writes may not last: %s", self.config.path, error.strerror)
            self._files.close()
            self._files = None

    @property
    def direct(self) -> bool:
        """Whether the slab bypasses the page cache."""
        return self._files is not None and self._files.direct

    # ------------------------------------------------------------------ contents

    def find(self, key: ChunkKey) -> Chunk | None:
        """The stored chunk, if loads are possible. Its offset is that in the slab."""
        return self.pool.find(key) if self.state is not DiskState.OFF else None

    def stored_chunks(self) -> list[Chunk]:
        """All chunks that can be loaded."""
        return self.pool.ready_chunks() if self.state is not DiskState.OFF else []

    def take_changes(self) -> tuple[list[Chunk], list[ChunkKey]]:
        """(chunks stored since the last call and still there, keys of chunks lost since then). A key in both was lost
        and stored again."""
        self._collect()
        added, removed = list(self._added.values()), sorted(self._removed)
        self._added.clear()
        self._removed.clear()
        return added, removed

    def _collect(self) -> list[int]:
        """Take note of the pool's changes; returns the slots of evicted chunks."""
        added, removed = self.pool.take_changes()
        freed = []
        # This is called before an evicted chunk can be stored again.
        for key in removed:
            freed.append(self._slots.pop(key))
            if self._added.pop(key, None) is None:
                self._removed.add(key)
        for chunk in added:
            self._added[chunk.key] = chunk
        for slot in freed:
            heapq.heappush(self._free_slots, slot)
        return freed

    @property
    def size_bytes(self) -> int:
        """How much the tier may hold; 0 while it is off."""
        return self.config.size_bytes if self.state is not DiskState.OFF else 0

    def health(self) -> Mapping[str, object]:
        """For /healthz."""
        usage = self.pool.usage()
        return {
            "state": self.state.value,
            "reason": self.reason,
            "size_bytes": usage.size_bytes,
            "free_bytes": usage.free_bytes,
            "chunks": len(self.stored_chunks()),
        }

    # ------------------------------------------------------------------ storing

    def save(self, chunk: Chunk, done: Callable[[bool], None], form: Form = Form.RAW) -> bool:
        """Store a READY chunk of the DRAM pool, evicting others for it; `done(stored)` follows later. False: it is
        stored or being written already, or there is no room. `form`: of its bytes on disk, a lossless one; until its
        size is known, the chunk has room for all bytes."""
        files = self._files
        if self.state is not DiskState.ON or files is None:
            return False
        place = self.pool.reserve(chunk.key, chunk.parent, chunk.size_bytes, chunk.position, chunk.namespace)
        if not isinstance(place, Chunk):
            return False
        cleared = self._collect()
        slot = self._take_slot()
        self._sequence += 1
        record = Record(
            chunk.key,
            chunk.parent,
            chunk.position,
            chunk.namespace,
            place.offset,
            chunk.size_bytes,
            chunk.digest,
            self._sequence,
        )
        self.counters.writing += 1
        view = self._memory.view(chunk.offset, limits.extent_bytes(chunk.size_bytes))
        future = self._writer.submit(self._write, files, view, record, slot, cleared, form)
        future.add_done_callback(partial(self._from_thread, partial(self._written, chunk, place, slot, done)))
        return True

    def _write(
        self, files: StoreFiles, view: memoryview, record: Record, slot: int, cleared: Iterable[int], form: Form
    ) -> FormWork | None:
        for old in cleared:
            files.clear_record(old)
        encoded = coding.encode(view[: record.size_bytes], form, record.namespace)
        if encoded.form is not Form.RAW:
            view = _whole_pages(encoded.content)
            record = replace(record, stored=encoded.stored)
        files.write(view, record.offset, self._give_way)
        files.put_record(record, slot)
        return encoded.work

    def _written(
        self,
        chunk: Chunk,
        place: Chunk,
        slot: int,
        done: Callable[[bool], None],
        error: BaseException | None,
        work: object,
    ) -> None:
        self.counters.writing -= 1
        if error is None:
            self._slots[place.key] = slot
            if isinstance(work, FormWork):
                self.pool.shrink(place, StoredForm(work.form, work.stored_bytes))
                self._measured(work)
            self.counters.stored_bytes += place.room_bytes
            self.pool.commit(place, Hashed(chunk.digest))
            self.counters.written_bytes += chunk.size_bytes
            self._sync_soon()
        else:
            heapq.heappush(self._free_slots, slot)
            self.pool.abort(place)
            self._write_failed(error)
        done(error is None)

    def drop(self, key: ChunkKey) -> bool:
        """Forget a stored chunk; loads of it under way go on. False: it is not here."""
        if self.pool.drop(key, force=True) is DropOutcome.ABSENT:
            return False
        self._clear(self._collect())
        return True

    def _clear(self, slots: list[int]) -> None:
        files = self._files
        if slots and files is not None and self.state is DiskState.ON:
            future = self._writer.submit(_clear_all, files, slots)
            future.add_done_callback(partial(self._from_thread, self._cleared))

    def _cleared(self, error: BaseException | None, _: object) -> None:
        if error is not None:
            self._write_failed(error)

    def _take_slot(self) -> int:
        """The lowest free one, so that the index stays as short as it can."""
        if self._free_slots:
            return heapq.heappop(self._free_slots)
        self._slots_end += 1
        return self._slots_end - 1

    def _give_way(self) -> bool:
        """In the writing thread: let reads go first, for a while; returns whether there still are any."""
        with self._way:
            return bool(self._reading) and not self._way.wait_for(lambda: not self._reading, GIVE_WAY_S)

    # ------------------------------------------------------------------ loading

    def load(self, key: ChunkKey, into: Chunk, done: Callable[[LoadOutcome, Hashed], None]) -> None:
        """Read a stored chunk into a FILLING chunk of the DRAM pool; `done(outcome, what was read)` follows later."""
        stored, files = self.find(key), self._files
        if stored is None or files is None or stored.size_bytes != into.size_bytes:
            self._loop.call_soon(done, LoadOutcome.ABSENT, NOT_HASHED)
            return
        self.pool.pin(stored)
        self.counters.reading += 1
        with self._way:
            self._reading += 1
        view = self._memory.view(into.offset, limits.extent_bytes(into.size_bytes))
        algorithm = algorithm_of(stored.digest)
        future = self._readers.submit(_read, files, view, stored.offset, into.size_bytes, stored.stored, algorithm)
        future.add_done_callback(partial(self._from_thread, partial(self._read_ended, stored, done)))

    def _read_ended(
        self, stored: Chunk, done: Callable[[LoadOutcome, Hashed], None], error: BaseException | None, found: object
    ) -> None:
        with self._way:
            self._reading -= 1
            self._way.notify_all()
        self.counters.reading -= 1
        self.pool.unpin(stored)
        done(*self._judge(stored, error, found))

    def _judge(self, stored: Chunk, error: BaseException | None, found: object) -> tuple[LoadOutcome, Hashed]:
        if not isinstance(found, _Read):
            self.counters.reads_failed += 1
            self._failures += 1
            if self._failures >= READ_FAILURES_MAX:
                self._turn_off(f"reads fail: {_reason(error)}")
            return LoadOutcome.FAILED, NOT_HASHED
        self._failures = 0
        if found.work is not None:
            self._measured(found.work)
        if found.hashed.digest != stored.digest:
            self.counters.damaged_chunks += 1
            log.warning("the copy of %s on disk is damaged: dropped", stored.key.hex())
            if self.pool.find(stored.key) is stored:
                self.drop(stored.key)
            return LoadOutcome.DAMAGED, found.hashed
        self.counters.read_bytes += stored.size_bytes
        return LoadOutcome.DONE, found.hashed

    # ------------------------------------------------------------------ trouble, time, threads

    def _write_failed(self, error: BaseException) -> None:
        self.counters.writes_failed += 1
        if self.state is DiskState.ON:
            self.state, self.reason = DiskState.READING, f"writes fail: {_reason(error)}"
            log.error(
                "disk tier at %s takes no more chunks, serves those it has: %s; make room or repair it, then restart",
                self.config.path,
                _reason(error),
            )

    def _turn_off(self, reason: str) -> None:
        """Make the tier look empty from now on; its files on the disk stay as they are."""
        if self.state is not DiskState.OFF or self._files is None:
            log.error("disk tier off: %s", reason)
        self.state, self.reason = DiskState.OFF, reason
        self._collect()
        self._removed.update(key for key in self._slots if key not in self._added)
        self._added.clear()

    def _sync_soon(self) -> None:
        if self.config.sync_s and self._sync_timer is None and self.state is DiskState.ON:
            self._sync_timer = self._loop.call_later(self.config.sync_s, self._sync)

    def _sync(self) -> None:
        self._sync_timer = None
        files = self._files
        if files is not None and self.state is DiskState.ON:
            future = self._writer.submit(files.sync)
            future.add_done_callback(partial(self._from_thread, self._cleared))

    def _from_thread(self, finish: Callable[[BaseException | None, object], None], future: Future[object]) -> None:
        """Hand a thread's result to the event loop."""
        error = future.exception()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(finish, error, None if error is not None else future.result())


def without_overlaps(
    found: Iterable[tuple[int, Record]], size_bytes: int
) -> tuple[list[tuple[int, Record]], list[int]]:
    """(slot, record) in order of their sequence, and slots whose records contradict a later one or leave the slab."""
    kept: list[tuple[int, Record]] = []
    void: list[int] = []
    for slot, record in sorted(found, key=lambda one: (one[1].offset, one[1].sequence)):
        if _end(record) > size_bytes:
            void.append(slot)
            continue
        while kept and _end(kept[-1][1]) > record.offset and kept[-1][1].sequence < record.sequence:
            void.append(kept.pop()[0])
        if kept and _end(kept[-1][1]) > record.offset:
            void.append(slot)
        else:
            kept.append((slot, record))
    by_key: dict[ChunkKey, tuple[int, Record]] = {}
    for slot, record in sorted(kept, key=lambda one: one[1].sequence):
        if record.key in by_key:
            void.append(by_key.pop(record.key)[0])
        by_key[record.key] = (slot, record)
    return list(by_key.values()), void


def _end(record: Record) -> int:
    return record.offset + limits.extent_bytes(record.stored_bytes)


@dataclass(frozen=True, slots=True)
class _Read:
    """The result of a reading thread."""

    hashed: Hashed
    """The chunk's hashes; NOT_HASHED: its form is damaged."""
    work: FormWork | None = None


def _read(
    files: StoreFiles, view: memoryview, offset: int, size_bytes: int, stored: StoredForm | None, algorithm: Integrity
) -> _Read:
    """In a reading thread: read the bytes and hash them."""
    if stored is None:
        files.read(view, offset)
        return _Read(hashed(view[:size_bytes], algorithm))
    content = _pages(stored.size_bytes)
    files.read(content, offset)
    try:
        work = coding.decode(stored.form, content[: stored.size_bytes], view[:size_bytes])
    except CodecError:
        return _Read(NOT_HASHED)
    return _Read(hashed(view[:size_bytes], algorithm), work)


def _pages(size_bytes: int) -> memoryview:
    """Memory on whole pages, which O_DIRECT requires."""
    return memoryview(mmap.mmap(-1, limits.extent_bytes(size_bytes)))


def _whole_pages(content: bytes | memoryview) -> memoryview:
    """The same bytes, and zeros behind them."""
    pages = _pages(len(content))
    pages[: len(content)] = content
    return pages


def _clear_all(files: StoreFiles, slots: Iterable[int]) -> None:
    for slot in slots:
        files.clear_record(slot)


def _reason(error: BaseException | None) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or "unknown"
