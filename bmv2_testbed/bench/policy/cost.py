"""What `PoolValues` costs: microseconds a fetched chunk and bytes a tracked one, in a pool that is full."""

from __future__ import annotations

import random
import time
import tracemalloc
from dataclasses import dataclass

from kvproto.ids import ChunkKey
from kvproto.value import CANDIDATES, PoolValues, Touch

_PATH_CHUNKS = 16
_RESIDENT_SHARE = 0.1
_MEASURED_FETCHES = 4_000


@dataclass(frozen=True, slots=True)
class Cost:
    """Times are CPU seconds of this process, amortised over fetches of 16 chunks."""

    tracked: int
    resident: int
    hit_us: float
    miss_us: float
    """Fetched, weighed against what it displaces, that removed, itself added."""
    contest_us: float
    """Of a fetched chunk: the shadows, by difference with a single candidate."""
    dict_us: float
    """Beside it, on the same machine: one look-up and one store in a dict of as many keys."""
    bytes_per_chunk: float
    fixed_bytes: int
    sampled_share: float


def _path(session: int) -> list[Touch]:
    keys = [ChunkKey(random.Random(session * _PATH_CHUNKS + at).randbytes(16)) for at in range(_PATH_CHUNKS)]
    return [Touch(key, keys[at - 1] if at else None, at, 1) for at, key in enumerate(keys)]


def measure_cost(chunks: int) -> Cost:
    """Fill a pool so that `chunks` are tracked and a tenth of them resident, then measure."""
    sessions = chunks // _PATH_CHUNKS
    tracemalloc.start()
    values, now_ns = _filled(sessions, CANDIDATES)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    hit_s, miss_s, now_ns = _fetch(values, sessions, now_ns)
    single, single_ns = _filled(sessions, CANDIDATES[:1])
    single_s, _, _ = _fetch(single, sessions, single_ns)
    return Cost(
        tracked=values.tracked_count,
        resident=len(values),
        hit_us=1e6 * hit_s,
        miss_us=1e6 * miss_s,
        contest_us=1e6 * max(0.0, hit_s - single_s),
        dict_us=1e6 * _dict_s(chunks),
        bytes_per_chunk=values.nbytes / values.tracked_count,
        fixed_bytes=max(0, held_bytes - values.nbytes),
        sampled_share=values.sampled_share,
    )


def _filled(sessions: int, candidates: tuple[object, ...]) -> tuple[PoolValues, int]:
    values = PoolValues(int(sessions * _PATH_CHUNKS * _RESIDENT_SHARE), candidates=candidates)  # type: ignore[arg-type]
    now_ns = 0
    for session in range(sessions):
        now_ns += 1_000_000
        path = _path(session)
        values.fetched(path, now_ns)
        if len(values) + _PATH_CHUNKS <= values.capacity_bytes:
            for touch in path:
                values.add(touch, now_ns)
    return values, now_ns


def _fetch(values: PoolValues, sessions: int, now_ns: int) -> tuple[float, float, int]:
    """CPU seconds (a chunk that is here, a chunk that displaces another)."""
    resident = int(sessions * _RESIDENT_SHARE)
    known = [_path(random.Random(at).randrange(resident)) for at in range(_MEASURED_FETCHES)]
    fresh = [_path(sessions + at) for at in range(_MEASURED_FETCHES // 4)]
    began = time.process_time()
    for path in known:
        now_ns += 1_000_000
        values.fetched(path, now_ns)
    hit_s = (time.process_time() - began) / (len(known) * _PATH_CHUNKS)
    began = time.process_time()
    for path in fresh:
        now_ns += 1_000_000
        values.fetched(path, now_ns)
        for touch in path:
            displaced = values.displaced_by(touch, now_ns)
            if displaced is None:
                break
            for victim in displaced:
                values.remove(victim)
            values.add(touch, now_ns)
    miss_s = (time.process_time() - began) / (len(fresh) * _PATH_CHUNKS)
    return hit_s, miss_s, now_ns


def _dict_s(chunks: int) -> float:
    keys = [number.to_bytes(16, "big") for number in range(chunks)]
    table = dict.fromkeys(keys, 0)
    picked = random.Random(1).sample(keys, min(chunks, 100_000))
    began = time.process_time()
    for key in picked:
        table[key] = table.get(key, 0) + 1
    return (time.process_time() - began) / len(picked)
