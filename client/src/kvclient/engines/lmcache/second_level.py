"""kvcast's pool as the second level (L2) of LMCache's multi-process server, loaded by its adapter type `plugin`.

LMCache's controllers submit tasks and learn of their ends by event descriptors. Three threads carry tasks out, one for
each kind, so that a long load holds up no store. A look-up fetches what it finds into this node's DRAM and locks it
there, so LMCache can load every object that a look-up reports.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from kvchunk.ids import ChunkKey, KvIdentity
from kvclient.client import AgentClient
from kvclient.engines.core.named_keys import named_keys
from kvclient.engines.link import AgentLink
from kvclient.engines.lmcache.models import Weights, name_of, piece_of
from kvclient.engines.settings import parse_store_settings, tenant_secret
from kvclient.engines.store import ChunkStore, StoredChunk
from kvclient.forks import Threads

log = logging.getLogger("kvcast")

NAMESPACES_MAX = 4096
"""Identity digests kept: models x ranks x groups x salts."""

T = TypeVar("T")


class _Tasks(Generic[T]):
    """Tasks of one kind, one at a time, and their results until they are asked for."""

    def __init__(self, name: str) -> None:
        self._thread = Threads(1, f"kvcast-{name}")
        self._event = create_event_notifier()
        self._lock = threading.Lock()
        self._done: dict[int, T] = {}

    @property
    def event_fd(self) -> int:
        """Readable when a task has ended."""
        return int(self._event.fileno())

    def run(self, task: int, work: Callable[[], T], otherwise: T) -> int:
        """Begin a task; its number. `otherwise`: its result if it fails, because LMCache waits for every task."""

        def carry_out() -> None:
            try:
                result = work()
            except Exception:  # a bug of ours must not leave LMCache waiting for the task; logged in full, and a miss
                log.exception("kvcast: a task of LMCache's failed")
                result = otherwise
            with self._lock:
                self._done[task] = result
            self._event.notify()

        self._thread.submit(carry_out)
        return task

    def post(self, work: Callable[[], object]) -> None:
        """Run `work` after the tasks submitted before. It has no result."""
        self._thread.submit(work)

    def result(self, task: int) -> T | None:
        """The result of a task, once; None: it has not ended."""
        with self._lock:
            return self._done.pop(task, None)

    def results(self) -> dict[int, T]:
        """All results since the last call."""
        with self._lock:
            done, self._done = self._done, {}
        return done

    def close(self) -> None:
        """End; waiting tasks are dropped."""
        self._thread.shutdown(cancel_futures=True)
        self._event.close()


class KvcastL2(L2AdapterInterface):  # type: ignore[misc]  # LMCache is not there where this is checked
    """The adapter of one LMCache server. See docs/how-to/lmcache.md."""

    def __init__(self, config: Mapping[str, Any], l1_memory_desc: Any = None) -> None:
        """`config`: the adapter's `adapter_params`. Raises SettingsError for names that kvcast does not know."""
        super().__init__(max_capacity_bytes=0)
        settings = parse_store_settings(config)
        self._secret = tenant_secret(settings.tenant_secret_file)
        self._weights = Weights(settings.weights_digest)
        self._lock_s = settings.lock_s
        link = AgentLink(AgentClient, settings.socket, log, answer_timeout_s=settings.answer_timeout_s)
        self._store = ChunkStore(link, log, namespace="lmcache", deadline_s=settings.load_deadline_s)
        self._digests: dict[tuple[Any, ...], bytes] = {}
        self._digests_lock = threading.Lock()
        self._stores: _Tasks[Any] = _Tasks("store")
        self._lookups: _Tasks[Any] = _Tasks("lookup")
        self._loads: _Tasks[Any] = _Tasks("load")
        self._number = 0
        self._number_lock = threading.Lock()

    def close(self) -> None:
        """Give everything back."""
        for tasks in (self._stores, self._lookups, self._loads):
            tasks.close()
        self._store.close()

    def get_memory_tags(self) -> Any:
        """LMCache 0.5.7 and later choose by this where to look: in DRAM that other hosts share."""
        from lmcache.v1.distributed.api import MemoryResidency, MemorySegment, MemoryTags  # not in 0.5.6

        return MemoryTags(MemorySegment.DRAM, MemoryResidency.REMOTE)

    # ------------------------------------------------------------------ events

    def get_store_event_fd(self) -> int:
        """Readable when a store has ended."""
        return self._stores.event_fd

    def get_lookup_and_lock_event_fd(self) -> int:
        """Readable when a look-up has ended."""
        return self._lookups.event_fd

    def get_load_event_fd(self) -> int:
        """Readable when a load has ended."""
        return self._loads.event_fd

    # ------------------------------------------------------------------ tasks

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Store objects."""

        def store() -> Any:
            names, pieces = self._keys(keys), [piece_of(each) for each in objects]

            def put(here: list[int]) -> list[bool]:
                chunks = zip(_named(names, here), (pieces[place] for place in here), strict=True)
                return self._store.put([StoredChunk(name, [piece]) for name, piece in chunks])

            stored = _each(names, put)
            done = [place for place, is_stored in enumerate(stored) if is_stored]
            if done:
                self._notify_keys_stored([keys[place] for place in done], [pieces[place].nbytes for place in done])
            return L2StoreResult(all(stored), sum(pieces[place].nbytes for place in done))

        return self._stores.run(self._next(), store, L2StoreResult(False, 0))

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        """Results of stores, once."""
        return self._stores.results()

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Any = None) -> int:
        """Bring objects into this node's DRAM and keep them there until they are unlocked, or for `lock_s`."""

        def look_up() -> Any:
            names = self._keys(keys)
            return _bitmap(_each(names, lambda here: self._store.lock(_named(names, here), hold_s=self._lock_s)))

        return self._lookups.run(self._next(), look_up, Bitmap(len(keys)))

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        """Which objects of a look-up are there, once; None: it has not ended."""
        return self._lookups.result(task_id)

    def submit_unlock(self, keys: list[Any]) -> None:
        """Objects need not be kept any longer."""

        def unlock() -> None:
            names = self._keys(keys)
            _each(names, lambda here: self._store.unlock(_named(names, here)))

        self._lookups.post(unlock)

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Load objects into LMCache's memory."""

        def load() -> Any:
            names, pieces = self._keys(keys), [piece_of(each) for each in objects]
            loaded = _each(
                names, lambda here: self._store.load(_named(names, here), [[pieces[place]] for place in here])
            )
            accessed = [key for key, is_loaded in zip(keys, loaded, strict=True) if is_loaded]
            if accessed:
                self._notify_keys_accessed(accessed)
            return _bitmap(loaded)

        return self._loads.run(self._next(), load, Bitmap(len(keys)))

    def query_load_result(self, task_id: int) -> Any:
        """Which objects of a load arrived, once; None: it has not ended."""
        return self._loads.result(task_id)

    def delete(self, keys: list[Any]) -> None:
        """Remove this node's copies of objects that are not locked."""

        def delete() -> None:
            names = self._keys(keys)
            _each(names, lambda here: self._store.delete(_named(names, here)))

        self._lookups.post(delete)

    # ------------------------------------------------------------------ keys

    def _next(self) -> int:
        with self._number_lock:
            self._number += 1
            return self._number

    def _keys(self, keys: Sequence[Any]) -> list[ChunkKey | None]:
        """Chunk keys of LMCache's ObjectKeys; None: the weights of its model are unknown."""
        named: list[ChunkKey | None] = []
        for key in keys:
            digest = self._digest(key.model_name, key.kv_rank, key.object_group_id, key.cache_salt)
            named.append(named_keys(digest, [key.chunk_hash])[0] if digest is not None else None)
        return named

    def _digest(self, model: str, kv_rank: int, group: int, salt: str) -> bytes | None:
        place = (model, kv_rank, group, salt)
        digest = self._digests.get(place)
        if digest is not None:
            return digest
        with self._digests_lock:
            weights = self._weights.of(model)
            if weights is None:
                return None
            if len(self._digests) >= NAMESPACES_MAX:
                self._digests.clear()
            extra = f"engine=lmcache;kv_rank={kv_rank:#x};group={group}"
            identity = KvIdentity(
                name_of(model), weights_digest=weights, tenant_salt=salt, extra=extra, tenant_secret=self._secret
            )
            return self._digests.setdefault(place, identity.digest())


def _named(names: Sequence[ChunkKey | None], places: Sequence[int]) -> list[ChunkKey]:
    return [name for place in places if (name := names[place]) is not None]


def _each(names: Sequence[ChunkKey | None], do: Callable[[list[int]], list[bool]]) -> list[bool]:
    """Call `do` with the places that have a key; the answer of every other place is False."""
    places = [place for place, name in enumerate(names) if name is not None]
    done = [False] * len(names)
    if places:
        for place, one in zip(places, do(places), strict=True):
            done[place] = one
    return done


def _bitmap(bits: Sequence[bool]) -> Any:
    made = Bitmap(len(bits))
    for place, bit in enumerate(bits):
        if bit:
            made.set(place)
    return made
