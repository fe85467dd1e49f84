"""The cold store of this agent: carries out the core's effects on it, and watches whether it answers.

All work on it is done in a thread with an event loop of its own, so that neither the store's client nor copying and
hashing ever holds up the agent. Methods are called on the agent's event loop; events come there, never inside a call.

Every operation ends within `timeout_s`. After COLD_FAILURES_MAX failures in a row the store counts as away (or, where
only writes fail, as taking nothing), which is one line in the log; whatever is under way then ends at once. It is tried
again after COLD_RETRY_S_MIN, then less and less often, with an object of its own; one more line says that it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from hostagent import coding, limits
from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.objects import RECORD_BYTES, object_name, packed_record, record_of
from hostagent.cold.stores import ColdStore, ColdStoreError
from hostagent.core import effects, events
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.events import ColdState, LoadOutcome, SaveOutcome
from hostagent.memory.pool_memory import PoolMemory
from hostagent.pool.records import NAMESPACE_BYTES_MAX, Record
from hostagent.tree import NOT_HASHED, Hashed, hashed
from kvchunk.ids import ChunkKey, Digest
from kvcodec.forms import CodecError, Form, StoredForm
from kvpolicy.tiers.form_costs import FormWork
from kvproto.integrity import algorithm_of

log = logging.getLogger(__name__)
T = TypeVar("T")
NOT_TRIED: Final = "not tried yet"
"""Why a store counts as away before its first trial has ended."""
CLOSE_S: Final = 5.0
"""Closing waits at most this long for the thread; it is a daemon's, so the process ends all the same."""


@dataclass(slots=True)
class ColdCounters:
    """Running totals, read by metrics."""

    read_bytes: int = 0
    written_bytes: int = 0
    stored_bytes: int = 0
    """What the written ones took in the store."""
    reads_failed: int = 0
    writes_failed: int = 0
    deletes_failed: int = 0
    outages: int = 0
    """Changes of the store to away."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How long the operations on a trial object took."""

    size_bytes: int
    put_s: float
    get_s: float
    lookup_s: float
    undeletable: str = ""
    """Why the object stays; empty: it was deleted."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """How a load ended in the thread."""

    outcome: LoadOutcome
    hashed: Hashed = NOT_HASHED
    work: FormWork | None = None


@dataclass(frozen=True, slots=True)
class _Saved:
    """What was written."""

    record: Record
    works: list[FormWork]


class ColdTier:
    """The cold store of one agent, with the thread that works on it."""

    def __init__(
        self,
        config: ColdConfig,
        store: ColdStore,
        memory: PoolMemory,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[events.Event], None],
        name: str,
    ) -> None:
        """`handle(event)`: takes events for the core; `name`: of this node, part of the name of its trial object."""
        self.config = config
        self.counters = ColdCounters()
        self.state = ColdState.AWAY
        self.reason = NOT_TRIED
        self._store = store
        self._memory = memory
        self._loop = loop
        self._handle = handle
        self._trial_name = f"kvcast/trial-{name}-{os.getpid()}"
        self._trial_bytes = limits.COLD_PROBE_BYTES
        self._failures = {False: 0, True: 0}
        """Failures in a row, by whether they were writes."""
        self._retry_s = dict.fromkeys((ColdState.AWAY, ColdState.READING), limits.COLD_RETRY_S_MIN)
        self._spoken = False
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False
        self._work = asyncio.new_event_loop()
        self._reads: asyncio.Semaphore | None = None
        self._under_way: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._work.run_forever, name="cold-store", daemon=True)

    # ------------------------------------------------------------------ lifetime

    def open(self) -> None:
        """Begin with a trial in the background: the agent does not wait for the store."""
        self._thread.start()
        self._try()

    async def close(self) -> None:
        """Give up whatever is under way."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        if self._thread.is_alive():
            drained = asyncio.run_coroutine_threadsafe(_end(self._store), self._work)
            await asyncio.wrap_future(drained)
            self._work.call_soon_threadsafe(self._work.stop)
            await self._loop.run_in_executor(None, self._thread.join, CLOSE_S)
        if not self._thread.is_alive():
            self._work.close()

    def health(self) -> Mapping[str, object]:
        """For /healthz."""
        return {"state": self.state.value, "reason": self.reason, "service": self.config.scheme}

    # ------------------------------------------------------------------ what the core asks for

    def look_up(self, effect: effects.LookUpCold) -> None:
        """Answered by ColdLookedUp."""
        self._run(self._look_up_all(effect.keys), partial(self._look_up_ended, effect))

    def load(self, effect: effects.LoadCold) -> None:
        """Answered by ColdLoadEnded."""
        into = effect.into
        view = self._memory.view(into.offset, into.size_bytes)
        self._run(self._load(into.key, view, effect.digest, effect.stored), partial(self._load_ended, effect))

    def save(self, effect: effects.SaveCold) -> None:
        """Answered by ColdSaveEnded."""
        chunk = effect.chunk
        record = Record(
            chunk.key,
            chunk.parent,
            chunk.position,
            chunk.namespace if len(chunk.namespace.encode()) <= NAMESPACE_BYTES_MAX else "",
            RECORD_BYTES,
            chunk.size_bytes,
            chunk.digest,
            0,
        )
        view = self._memory.view(chunk.offset, chunk.size_bytes)
        self._run(self._save(record, view, effect.form, chunk.namespace), partial(self._saved, effect))

    def forget(self, effect: effects.ForgetCold) -> None:
        """Has no answer; where the store is away, or lets nobody delete, the object stays."""
        self._run(self._timed(self._store.delete(object_name(effect.key))), self._forgotten)

    def _forgotten(self, error: ColdStoreError | None, _: object) -> None:
        """Says nothing of writes: many stores take objects of those who may not delete any."""
        self.counters.deletes_failed += error is not None

    # ------------------------------------------------------------------ in the thread

    async def _timed(self, operation: Coroutine[Any, Any, T]) -> T:
        return await within(self.config.timeout_s, operation)

    async def _read(self, name: str, *buffers: memoryview) -> bool | None:
        if self._reads is None:
            self._reads = asyncio.Semaphore(limits.COLD_READS_AT_ONCE)
        async with self._reads:
            return await self._timed(self._store.get_into(name, buffers))

    async def _look_up_all(self, keys: tuple[ChunkKey, ...]) -> list[ChunkEntry | bool | ColdStoreError]:
        """For each key: the object's entry; False: there is none; True: the object is not this chunk's."""
        found = await asyncio.gather(*map(self._look_up, keys), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, ColdStoreError):
                raise one
        return found  # type: ignore[return-value]  # other exceptions were raised

    async def _look_up(self, key: ChunkKey) -> ChunkEntry | bool:
        packed = bytearray(RECORD_BYTES)
        got = await self._read(object_name(key), memoryview(packed))
        record = record_of(key, bytes(packed)) if got else None
        if record is None or not record.digest:
            return got is not None
        return ChunkEntry(
            key,
            record.parent,
            record.size_bytes,
            record.digest,
            record.position,
            (),
            namespace=record.namespace,
            stored=record.stored,
        )

    async def _load(self, key: ChunkKey, view: memoryview, expected: Digest, stored: StoredForm | None) -> _Loaded:
        got = await self._read_as(key, view, stored)
        if got is not None and got[0] is not None and got[0].stored != stored and got[0].size_bytes == len(view):
            # Another node has replaced it by another form since the look-up.
            stored = got[0].stored
            got = await self._read_as(key, view, stored)
        if got is None:
            return _Loaded(LoadOutcome.ABSENT)
        record, content = got
        if record is None or content is None or record.size_bytes != len(view) or record.stored != stored:
            return _Loaded(LoadOutcome.DAMAGED)
        work = None
        if stored is not None:
            try:
                work = coding.decode(stored.form, content, view)
            except CodecError:
                return _Loaded(LoadOutcome.DAMAGED)
        found = hashed(view, algorithm_of(expected))
        right = found.digest == expected == record.digest
        return _Loaded(LoadOutcome.DONE if right else LoadOutcome.DAMAGED, found, work)

    async def _read_as(
        self, key: ChunkKey, view: memoryview, stored: StoredForm | None
    ) -> tuple[Record | None, memoryview | None] | None:
        """(an object's record, its bytes, in `view` where they are the chunk's own); None: there is no object. The
        record is None if it is damaged or another chunk's, the bytes are None if the object is shorter than expected.
        No more than that is read."""
        packed = bytearray(RECORD_BYTES)
        content = view if stored is None else memoryview(bytearray(stored.size_bytes))
        got = await self._read(object_name(key), memoryview(packed), content)
        is_whole = got is not False
        if not is_whole:
            # It may be a shorter form of the chunk.
            got = await self._read(object_name(key), memoryview(packed))
        if got is None:
            return None
        return record_of(key, bytes(packed)) if got else None, content if is_whole else None

    async def _save(self, record: Record, view: memoryview, form: Form, namespace: str) -> _Saved:
        encoded = coding.encode(view, form, namespace)
        works = [] if encoded.work is None else [encoded.work]
        if encoded.form is Form.LOSSY:
            back = memoryview(bytearray(len(view)))
            decoding = coding.decode(encoded.form, memoryview(encoded.content), back)
            works += [] if decoding is None else [decoding]
            record = replace(record, digest=hashed(back, algorithm_of(record.digest)).digest)
        if encoded.form is not Form.RAW:
            record = replace(record, stored=encoded.stored)
        content = b"".join((packed_record(record), encoded.content))
        await self._timed(self._store.put(object_name(record.key), content))
        return _Saved(record, works)

    async def _try_out(self) -> Trial | ColdStoreError:
        """See `try_out`."""
        return await try_out(self._store, self._trial_name, self._trial_bytes, self._timed)

    # ------------------------------------------------------------------ answers

    def _look_up_ended(self, effect: effects.LookUpCold, error: ColdStoreError | None, found: Any) -> None:
        answers = dict(zip(effect.keys, [error] * len(effect.keys) if error is not None else found, strict=True))
        failed = [one for one in answers.values() if isinstance(one, ColdStoreError)]
        self._counts(failed[0] if failed else None, writes=False)
        self._handle(
            events.ColdLookedUp(
                effect.number,
                tuple(one for one in answers.values() if isinstance(one, ChunkEntry)),
                tuple(key for key, one in answers.items() if one is False),
                tuple(key for key, one in answers.items() if one is True),
            )
        )

    def _load_ended(self, effect: effects.LoadCold, error: ColdStoreError | None, found: Any) -> None:
        self._counts(error, writes=False)
        loaded: _Loaded = _Loaded(LoadOutcome.FAILED) if error is not None else found
        outcome = loaded.outcome
        if loaded.work is not None:
            self._handle(events.FormMeasured(loaded.work))
        if outcome is LoadOutcome.DONE:
            self.counters.read_bytes += effect.into.size_bytes
        elif outcome is LoadOutcome.DAMAGED:
            log.warning("the copy of %s in the cold store is damaged: it counts as a miss", effect.into.key.hex())
        self._handle(events.ColdLoadEnded(effect.into, outcome, loaded.hashed))

    def _saved(self, effect: effects.SaveCold, error: ColdStoreError | None, saved: Any) -> None:
        self._counts(error, writes=True)
        if error is not None:
            self._trial_bytes = min(limits.COLD_TRIAL_BYTES_MAX, max(self._trial_bytes, effect.chunk.size_bytes))
            self._handle(events.ColdSaveEnded(effect.chunk, SaveOutcome.FAILED))
            return
        record: Record = saved.record
        self.counters.written_bytes += record.size_bytes
        self.counters.stored_bytes += record.stored_bytes
        for work in saved.works:
            self._handle(events.FormMeasured(work))
        self._handle(events.ColdSaveEnded(effect.chunk, SaveOutcome.STORED, record.stored, record.digest))

    # ------------------------------------------------------------------ the store's state

    def _counts(self, error: ColdStoreError | None, writes: bool) -> None:
        """An operation ended."""
        if error is None:
            self._failures[writes] = 0
            self._retry_s[ColdState.READING if writes else ColdState.AWAY] = limits.COLD_RETRY_S_MIN
            return
        if writes:
            self.counters.writes_failed += 1
        else:
            self.counters.reads_failed += 1
        self._failures[writes] += 1
        if self.state is ColdState.AWAY or self._failures[writes] < limits.COLD_FAILURES_MAX:
            return
        if not writes:
            self._turn(ColdState.AWAY, str(error))
        elif self.state is ColdState.ON:
            self._turn(ColdState.READING, str(error))

    def _turn(self, state: ColdState, reason: str) -> None:
        """Change the store's state: log one line, and give the core an event."""
        changed, before = state is not self.state, self.state
        self.state, self.reason = state, reason
        self._failures = {False: 0, True: 0}
        if changed:
            self._handle(events.ColdStateGiven(state))
        if changed or not self._spoken:
            self._spoken = True
            if state is ColdState.AWAY:
                self.counters.outages += before is not ColdState.AWAY
                log.warning("the cold store (%s) is away, the agent goes on without it: %s", self.config.scheme, reason)
            elif state is ColdState.READING:
                log.warning("the cold store (%s) takes nothing, it is only read: %s", self.config.scheme, reason)
        if changed and state is ColdState.AWAY:
            for future in list(self._under_way):
                future.cancel()
        if state is not ColdState.ON and self._retry is None:
            self._retry = self._loop.call_later(self._retry_s[state], self._try)
            self._retry_s[state] = min(2 * self._retry_s[state], limits.COLD_RETRY_S_MAX)

    def _try(self) -> None:
        self._retry = None
        self._run(self._try_out(), self._tried)

    def _tried(self, error: ColdStoreError | None, trial: Any) -> None:
        if error is not None:
            self._turn(ColdState.AWAY, str(error))
        elif isinstance(trial, ColdStoreError):
            self._turn(ColdState.READING, str(trial))
        else:
            log.info(
                "the cold store (%s) is there: put %.1f ms, get %.1f ms, look %.1f ms",
                self.config.scheme,
                trial.put_s * 1e3,
                trial.get_s * 1e3,
                trial.lookup_s * 1e3,
            )
            if trial.undeletable:
                log.warning(
                    "the cold store (%s) deletes nothing: %s; chunks that engines drop stay in it, and trial objects",
                    self.config.scheme,
                    trial.undeletable,
                )
            self._spoken = True
            self._handle(events.ColdProbed(trial.size_bytes, trial.get_s, trial.lookup_s))
            self._turn(ColdState.ON, "")

    # ------------------------------------------------------------------ threads

    def _run(self, work: Coroutine[Any, Any, Any], ended: Callable[[ColdStoreError | None, Any], None]) -> None:
        """Do `work` in the thread, then call `ended(error, result)` on the agent's event loop, unless it is closed."""
        future = asyncio.run_coroutine_threadsafe(work, self._work)
        self._under_way.add(future)
        future.add_done_callback(
            lambda done: None if self._loop.is_closed() else self._loop.call_soon_threadsafe(self._ended, done, ended)
        )

    def _ended(self, future: Future[Any], ended: Callable[[ColdStoreError | None, Any], None]) -> None:
        self._under_way.discard(future)
        if self._closed:
            return
        if future.cancelled():
            ended(ColdStoreError("given up: the store is away"), None)
            return
        error = future.exception()
        if error is None:
            ended(None, future.result())
        elif isinstance(error, ColdStoreError):
            ended(error, None)
        else:
            ended(ColdStoreError(f"a defect: {type(error).__name__}"), None)
            raise error


async def within(timeout_s: float, operation: Coroutine[Any, Any, T]) -> T:
    """An operation with an end. Raises ColdStoreError."""
    try:
        async with asyncio.timeout(timeout_s):
            return await operation
    except TimeoutError:
        raise ColdStoreError(f"no answer within {timeout_s:g} s") from None


async def try_out(
    store: ColdStore, name: str, size_bytes: int, timed: Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]
) -> Trial | ColdStoreError:
    """Look for an object, put it, read it, compare, delete it; `timed(operation)` bounds each step.

    Raises ColdStoreError when the store does not answer, or returns other bytes. Returns one when it answers and takes
    nothing.
    """
    buffer = bytearray(size_bytes)
    content = os.urandom(size_bytes)
    # The first operation connects, too, which no later one does.
    await timed(store.exists(name))
    started_s = time.perf_counter()
    await timed(store.exists(name))
    looked_s = time.perf_counter()
    try:
        await timed(store.put(name, content))
    except ColdStoreError as error:
        return error
    put_s = time.perf_counter()
    got = await timed(store.get_into(name, (memoryview(buffer),)))
    got_s = time.perf_counter()
    undeletable = ""
    try:
        await timed(store.delete(name))
    except ColdStoreError as error:
        undeletable = str(error)
    if not got or buffer != content:
        raise ColdStoreError("it returned other bytes than the agent had put")
    return Trial(size_bytes, put_s - looked_s, got_s - put_s, looked_s - started_s, undeletable)


async def _end(store: ColdStore) -> None:
    """End all tasks of this event loop, then the store. The process's end takes what does not end in time."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CLOSE_S)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(store.close(), CLOSE_S)
