"""What `CacheValues` costs: microseconds per fetched chunk and bytes per tracked one, in pools that are full."""

from __future__ import annotations

import math
import random
import time
import tracemalloc
from dataclasses import dataclass

from kvchunk.ids import ChunkKey
from kvpolicy.value import POLICIES, CacheValues, Policy, Touch

_PATH_CHUNKS = 16
_RESIDENT_SHARE = 0.1
_BETWEEN_NS = 100_000_000
_MEASURED_FETCHES = 4_000
_SMALL_TRACKED = 16
"""Chunks tracked for each that a small pool has room for."""
_BATCHES = 8
"""Parts of a measurement; the figure is the smallest of their means, which leaves out other work on the machine."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Times are CPU seconds of this process, amortised over fetches of 16 chunks."""

    tracked: int
    resident: int
    hit_us: float
    """A fetched chunk that is here."""
    new_us: float
    """A fetched chunk that nobody has heard of."""
    displace_us: float
    """In addition, for a chunk that comes in: weighing it against what it displaces, removing that, adding it."""
    selection_us: float
    """Of a fetched chunk: the shadows, by difference with a single policy."""
    dict_us: float
    """For comparison, on the same machine: one look-up and one store in a dict with as many keys."""
    bytes_per_chunk: float
    fixed_bytes: int
    sampled_share: float


@dataclass(frozen=True, slots=True)
class SmallPoolCost:
    """As `Cost`, for a pool so small that its shadows see most fetched chunks."""

    room: int
    hit_us: float
    new_us: float
    displace_us: float
    sampled_share: float


@dataclass(frozen=True, slots=True)
class _Times:
    hit_us: float
    new_us: float
    displace_us: float


def _path(session: int) -> list[Touch]:
    keys = [ChunkKey(random.Random(session * _PATH_CHUNKS + at).randbytes(16)) for at in range(_PATH_CHUNKS)]
    return [Touch(key, keys[at - 1] if at else None, at, 1) for at, key in enumerate(keys)]


def measure_cost(chunks: int) -> Cost:
    """Fill a pool so that `chunks` are tracked and a tenth of them resident, then measure."""
    sessions = chunks // _PATH_CHUNKS
    tracemalloc.start()
    values, now_ns = _filled(sessions, POLICIES)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    tracked, resident, table_bytes = values.tracked_count, len(values), values.nbytes
    times = _measure(values, sessions, now_ns)
    single, single_ns = _filled(sessions, POLICIES[:1])
    return Cost(
        tracked=tracked,
        resident=resident,
        hit_us=times.hit_us,
        new_us=times.new_us,
        displace_us=times.displace_us,
        selection_us=max(0.0, times.hit_us - _measure(single, sessions, single_ns).hit_us),
        dict_us=1e6 * _dict_s(chunks),
        bytes_per_chunk=table_bytes / tracked,
        fixed_bytes=max(0, held_bytes - table_bytes),
        sampled_share=values.sampled_share,
    )


def measure_small_pool(room: int) -> SmallPoolCost:
    """The same in a pool with room for `room` chunks that tracks `_SMALL_TRACKED` times as many."""
    sessions = max(_BATCHES, room * _SMALL_TRACKED // _PATH_CHUNKS)
    values, now_ns = _filled(sessions, POLICIES, room)
    times = _measure(values, sessions, now_ns)
    return SmallPoolCost(room, times.hit_us, times.new_us, times.displace_us, values.sampled_share)


def _filled(sessions: int, policies: tuple[Policy, ...], room: int | None = None) -> tuple[CacheValues, int]:
    values = CacheValues(room or int(sessions * _PATH_CHUNKS * _RESIDENT_SHARE), policies=policies)
    now_ns = 0
    for session in range(sessions):
        now_ns += _BETWEEN_NS
        path = _path(session)
        values.fetched(path, now_ns)
        if len(values) + _PATH_CHUNKS <= values.capacity_bytes:
            values.add(path, now_ns)
    return values, now_ns


def _measure(values: CacheValues, sessions: int, now_ns: int) -> _Times:
    """CPU time by kind of fetch, of equal parts of the measurement the least."""
    resident = max(1, len(values) // _PATH_CHUNKS // 2)  # the other half is there to be displaced
    batch = _MEASURED_FETCHES // _BATCHES
    least = [math.inf] * 3
    for part in range(_BATCHES):
        known = [_path(random.Random(part * batch + at).randrange(resident)) for at in range(batch)]
        fresh = [_path(sessions + part * batch + at) for at in range(batch)]
        began = time.process_time()
        for path in known:
            now_ns += _BETWEEN_NS
            values.fetched(path, now_ns)
        hit_s = (time.process_time() - began) / (batch * _PATH_CHUNKS)
        new_s, displace_s, displaced = 0.0, 0.0, 0
        for path in fresh:
            now_ns += _BETWEEN_NS
            began = time.process_time()
            values.fetched(path, now_ns)
            new_s += time.process_time() - began
            now_ns += _BETWEEN_NS
            values.fetched(path, now_ns)  # a second time, so that the policy lets them in
            began = time.process_time()
            displaced += _displace(values, path, now_ns)
            displace_s += time.process_time() - began
        parts = (hit_s, new_s / (batch * _PATH_CHUNKS), displace_s / displaced if displaced else math.inf)
        least = [min(before, now) for before, now in zip(least, parts, strict=True)]
    return _Times(*(1e6 * seconds for seconds in least))


def _displace(values: CacheValues, path: list[Touch], now_ns: int) -> int:
    """Bring in chunks that are worth more than what they displace; returns how many came in."""
    own = {touch.key for touch in path}
    for came, touch in enumerate(path):
        displaced = values.displaced_by(touch, now_ns, lambda key: key not in own)
        if displaced is None:
            return came
        for victim in displaced:
            values.remove(victim)
        values.add([touch], now_ns)
    return len(path)


def _dict_s(chunks: int) -> float:
    keys = [number.to_bytes(16, "big") for number in range(chunks)]
    table = dict.fromkeys(keys, 0)
    picked = random.Random(1).sample(keys, min(chunks, 100_000))
    began = time.process_time()
    for key in picked:
        table[key] = table.get(key, 0) + 1
    return (time.process_time() - began) / len(picked)
