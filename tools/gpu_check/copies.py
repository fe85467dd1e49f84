"""Checks a to d: registration, rates, bytes, order."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from kvclient.engines.device import DeviceLayers, Staging
from kvclient.engines.pinned import RegisteredMemory
from tools.gpu_check.bench import (
    GIB,
    LAYOUTS,
    LLAMA,
    MIB,
    TINY,
    Machine,
    Pool,
    Report,
    caches,
    layers_of,
    registered,
    shape_of,
    timed,
)

IN_SHARE, OUT_SHARE = 0.8, 0.6
"""Of the rate of a plain copy of 1 GiB pinned: what copies by pages have to reach."""
ORDER_ROUNDS, LOADERS = 1000, 4


def registration(machine: Machine, report: Report) -> None:
    """a: seconds to register a pool by size and pages; again after an agent's restart with the pool kept."""
    if not machine.is_cuda:
        report.left_out("a", "registration", "no GPU")
        return
    for gib in (1,) if machine.is_quick else (1, 8, 32):
        for huge_pages in (False, True):
            what = f"{gib} GiB, pages of {'2 MiB' if huge_pages else '4 KiB'}"
            try:
                pool = Pool(gib * GIB, huge_pages=huge_pages)
            except OSError as error:
                report.left_out("a", what, f"no such pages: {error.strerror}")
                continue
            pool.touch()
            for again in ("", ", mapped again"):
                start = time.perf_counter()
                with registered(machine, [memoryview(pool.clients)]) as memory:
                    assert memory is not None
                    seconds, size, problem = time.perf_counter() - start, memory.registered_bytes, memory.problem
                report.add(
                    "a", what + again, read_only=True, seconds=seconds, share=size / pool.size_bytes, why=problem
                )
                pool.map_again()
            pool.close()


def plain_rates(machine: Machine) -> dict[str, float]:
    """Bytes a second of a plain copy of pinned memory, by direction; on a processor, of memory to memory."""
    size = 64 * MIB if machine.is_quick else GIB
    host = torch.empty(size, dtype=torch.uint8, pin_memory=machine.is_cuda).fill_(1)
    there = torch.empty(size, dtype=torch.uint8, device=machine.device).fill_(2)
    return {
        "in": size / timed(machine, lambda: there.copy_(host, non_blocking=True), 5),
        "out": size / timed(machine, lambda: host.copy_(there, non_blocking=True), 5),
    }


def rates(machine: Machine, report: Report) -> None:
    """b: rates by layout, size of chunks, threads, and registered or not, beside a plain copy."""
    plain = plain_rates(machine)
    report.add("b", "plain copy, pinned", gb_s_in=plain["in"] / 1e9, gb_s_out=plain["out"] / 1e9)
    base = TINY if machine.is_quick else LLAMA
    for layout in LAYOUTS:
        for chunk_mib in (1, 8, 32):
            _rates_of(machine, report, plain, layout, max(1, chunk_mib * MIB // shape_of(layout, base).block_bytes))
            if machine.is_quick:
                break


def _rates_of(machine: Machine, report: Report, plain: dict[str, float], layout: str, blocks: int) -> None:
    base = TINY if machine.is_quick else LLAMA
    blocks = min(blocks, 8) if machine.is_quick else blocks
    size = shape_of(layout, base).block_bytes * blocks
    chunks = 8 if machine.is_quick else max(4, 256 * MIB // size)
    cache = caches(machine, layout, base, blocks * 5)
    pool, region = Pool(chunks * size), Pool(5 * size)
    pool.touch()
    views = [memoryview(pool.clients), memoryview(region.agents)]
    for is_registered in (True, False) if machine.is_cuda else (False,):
        with registered(machine, views if is_registered else []) as memory:
            staging = Staging(machine.device, lanes=5, memory=memory)
            staging.prepare(size)
            layers = layers_of(cache, staging)
            for threads in (1, 4):
                found = _run(machine, layers, (pool, region), size, blocks, chunks, threads)
                shares = {name: found[name] * 1e9 / plain[name] for name in ("in", "out")}
                bar: dict[str, Any] = {}
                if is_registered and size >= 8 * MIB and threads == LOADERS:
                    bar = {"reached": shares["in"] >= IN_SHARE and shares["out"] >= OUT_SHARE}
                what = f"{layout}, {size / MIB:.3g} MiB, {threads} threads{', registered' * is_registered}"
                report.add(
                    "b",
                    what,
                    gb_s_in=found["in"],
                    gb_s_out=found["out"],
                    share_in=shares["in"],
                    share_out=shares["out"],
                    cpu_s_gib=found["cpu_s_gib"],
                    **bar,
                )
    pool.close()
    region.close()


def _run(
    machine: Machine, layers: DeviceLayers, files: tuple[Pool, Pool], size: int, blocks: int, chunks: int, threads: int
) -> dict[str, float]:
    """GB/s in and out by so many threads, each with blocks of its own, and processor seconds of a GiB."""
    pool, region = files
    read, write = memoryview(pool.clients), memoryview(region.agents)

    def copy_in(number: int) -> None:
        ids = range(number % threads * blocks, (number % threads + 1) * blocks)
        layers.scatter(read[number * size : (number + 1) * size], blocks, 0, list(ids))

    def copy_out(number: int) -> None:
        at = number % threads
        layers.gather(list(range(at * blocks, (at + 1) * blocks)), write[at * size : (at + 1) * size])

    found = {}
    cpu_start = time.process_time()
    with ThreadPoolExecutor(threads) as executor:
        for name, call in (("in", copy_in), ("out", copy_out)):
            list(executor.map(call, range(min(chunks, threads))))  # the first makes what later ones use again

            def all_of_them(call: Any = call) -> None:
                list(executor.map(call, range(chunks)))

            found[name] = chunks * size / timed(machine, all_of_them, 3) / 1e9
    found["cpu_s_gib"] = (time.process_time() - cpu_start) / (6 * chunks * size / GIB)
    return found


def bytes_are_right(machine: Machine, report: Report) -> None:
    """c: every copy, bit for bit, against `index_select`."""
    blocks, skip = 4, 1
    for layout in LAYOUTS:
        base = TINY if machine.is_quick else LLAMA
        cache = caches(machine, layout, base, 16)
        layers = layers_of(cache)
        ids = [7, 0, 15, 3]
        chunk = bytearray(layers.chunk_bytes(blocks))
        layers.gather(ids, chunk, layers.mark())
        where = torch.tensor(ids, device=machine.device)
        inner = (0, 2, 1, 3) if LAYOUTS[layout].index("N") < LAYOUTS[layout].index("H") else (0, 1, 2, 3)
        expected = b"".join(
            layer.view(torch.uint8).index_select(0, where).permute(inner).contiguous().cpu().numpy().tobytes()
            for layer in cache
        )
        into = caches(machine, layout, base, 16)
        before = [layer.clone() for layer in into]
        places = [2, 9, 4]
        layers_of(into).scatter(bytes(chunk), blocks, skip, places)
        others = [block for block in range(16) if block not in places]
        good = bytes(chunk) == expected
        for source, was, now in zip(cache, before, into, strict=True):
            good &= torch.equal(now.view(torch.uint8)[places], source.view(torch.uint8)[ids[skip:]])
            good &= torch.equal(now.view(torch.uint8)[others], was.view(torch.uint8)[others])
        report.add("c", layout, ok=good, by="one kernel" if layers.by_kernel else "torch")


def order(machine: Machine, report: Report) -> None:
    """d: a kernel writes blocks, a save follows its mark, threads load other blocks, freed blocks are used again."""
    base, blocks = (TINY, 4) if machine.is_quick else (LLAMA, 4)
    rounds = 20 if machine.is_quick else ORDER_ROUNDS
    cache = caches(machine, "LBHNC", base, blocks * (LOADERS + 2))
    size = shape_of("LBHNC", base).block_bytes * blocks
    pool = Pool(LOADERS * size)
    for number in range(LOADERS):
        pool.agents[number * size : (number + 1) * size] = os.urandom(size)
    region = Pool(size)
    wrong = 0
    with registered(machine, [memoryview(pool.clients), memoryview(region.agents)]) as memory:
        staging = Staging(machine.device, lanes=LOADERS + 1, memory=memory)
        layers = layers_of(cache, staging)
        digests = [_digest(pool.clients[number * size : (number + 1) * size]) for number in range(LOADERS)]
        with ThreadPoolExecutor(LOADERS) as executor:
            for number in range(rounds):
                wrong += _one_round(machine, layers, cache, (pool, region), digests, executor, blocks, number)
    report.add("d", f"{rounds} rounds", wrong=wrong, ok=not wrong)
    pool.close()
    region.close()


def _one_round(
    machine: Machine,
    layers: DeviceLayers,
    cache: list[torch.Tensor],
    files: tuple[Pool, Pool],
    digests: list[str],
    executor: ThreadPoolExecutor,
    blocks: int,
    number: int,
) -> int:
    """How many chunks were wrong."""
    pool, region = files
    size = region.size_bytes
    # The saved blocks of one round are those loaded into by the next: freed blocks are used again.
    homes = [(number + at) % (LOADERS + 1) for at in range(LOADERS + 1)]
    ids = [list(range(home * blocks, (home + 1) * blocks)) for home in homes]
    if machine.is_cuda:
        torch.cuda._sleep(10_000_000)  # 5 ms of a step
    for layer in cache:
        layer.view(torch.uint8)[ids[0][0] : ids[0][-1] + 1] = number % 251
    after = layers.mark()
    view = memoryview(pool.clients)
    loads = [
        executor.submit(layers.scatter, view[at * size : (at + 1) * size], blocks, 0, ids[at + 1], None, layers.mark())
        for at in range(LOADERS)
    ]
    layers.gather(ids[0], memoryview(region.agents), after)
    saved = bytes(region.agents)
    # The next owner of the saved blocks writes at once: the save must have read them.
    for layer in cache:
        layer.view(torch.uint8)[ids[0][0] : ids[0][-1] + 1] = 255
    for load in loads:
        load.result()
    wrong = int(saved != bytes([number % 251]) * size)
    landing = bytearray(size)
    for at in range(LOADERS):
        layers.gather(ids[at + 1], landing, layers.mark())
        wrong += _digest(landing) != digests[at]
    return wrong


def _digest(content: Any) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def under_way(
    machine: Machine, memory: RegisteredMemory | None, pool: Pool, region: Pool, *, loads: bool, saves: bool
) -> Any:
    """A context in which threads load and save chunks without end."""
    return _UnderWay(machine, memory, pool, region, loads=loads, saves=saves)


class _UnderWay:
    def __init__(
        self, machine: Machine, memory: RegisteredMemory | None, pool: Pool, region: Pool, *, loads: bool, saves: bool
    ) -> None:
        base = TINY if machine.is_quick else LLAMA
        self._blocks = 4
        self._size = base.block_bytes * self._blocks
        cache = caches(machine, "LBHNC", base, self._blocks * (LOADERS + 1))
        self._layers = layers_of(cache, Staging(machine.device, lanes=LOADERS + 1, memory=memory))
        self._read, self._write = memoryview(pool.clients), memoryview(region.agents)
        self._stopped = threading.Event()
        self.copies_count = 0
        wanted = [*([self._load] * LOADERS if loads else []), *([self._save] if saves else [])]
        self._threads = [threading.Thread(target=call, args=(at,)) for at, call in enumerate(wanted)]

    def _ids(self, at: int) -> list[int]:
        return list(range(at * self._blocks, (at + 1) * self._blocks))

    def _load(self, at: int) -> None:
        while not self._stopped.is_set():
            self._layers.scatter(self._read[: self._size], self._blocks, 0, self._ids(at))
            self.copies_count += 1

    def _save(self, at: int) -> None:
        while not self._stopped.is_set():
            self._layers.gather(self._ids(LOADERS), self._write[: self._size])
            self.copies_count += 1

    def __enter__(self) -> _UnderWay:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
