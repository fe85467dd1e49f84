"""The pipeline alone: packets from memory, through a compiled program, into ports that only count.

All times are processor time of the measuring thread, so that other work on the machine counts little.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from p4switch.compiler import compile_program
from p4switch.runtime import Batch, Match, Pipeline, Program, Status, Switch
from p4switch.values import ActionCall, Replica

PORTS = 9
GROUP_ALL = 1
PROGRAM = Path(__file__).parent / "programs" / "bench.p4"
_SECONDS = 0.4
_FIRST_COUNT = 20_000
_BATCH = 50_000
_KEYS_TRIED_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure. ``ratio`` is to the figure that ``against`` names (of packet rates), 0.0 where there is none."""

    name: str
    packets_per_second: float
    ns_per_packet: float
    against: str = ""
    ratio: float = 0.0


def load(variant: str | None = None) -> Program:
    """The benchmark program: plain L2, or the variant ROUTE or RULES."""
    defines: Mapping[str, str] = {} if variant is None else {variant: "1"}
    return Program.load(compile_program(PROGRAM, defines).shared_object_path)


def mac(number: int) -> int:
    """A unicast address."""
    return 0x02_0000_000000 + number


def ethernet(destination: int, size: int) -> bytes:
    """A frame of ``size`` bytes, not IP."""
    return destination.to_bytes(6, "big") + mac(0xFFFFFF).to_bytes(6, "big") + b"\x90\x00" + bytes(size - 14)


def udp(destination: int, source: int, size: int = 64) -> bytes:
    """A UDP frame between two IPv4 addresses."""
    header = (
        bytes.fromhex("45000032000040004011") + b"\0\0" + source.to_bytes(4, "big") + destination.to_bytes(4, "big")
    )
    return (
        mac(2).to_bytes(6, "big")
        + mac(1).to_bytes(6, "big")
        + b"\x08\x00"
        + header
        + b"\x04\x00\x08\x00"
        + bytes(size - 38)
    )


@contextmanager
def switch_with(program: Program) -> Iterator[tuple[Switch, Pipeline]]:
    """A switch with discarding ports 1 to 9; group 1 is 2 to 9, group 2 is 2 alone."""
    with Switch() as switch:
        for port in range(1, PORTS + 1):
            switch.add_memory(port, discard=True)
        pipeline = switch.prepare(program)
        batch = pipeline.batch()
        batch.set_multicast_group(GROUP_ALL, [Replica(port, 1) for port in range(2, PORTS + 1)])
        commit(batch)
        switch.commit(pipeline)
        yield switch, pipeline


def commit(batch: Batch) -> None:
    """Applies a batch all of which has to succeed."""
    failed = [result for result in batch.commit() if result.status is not Status.OK]
    if failed:
        raise RuntimeError(f"{len(failed)} operations failed, the first with {failed[0].status.name}")


def fill(pipeline: Pipeline, table: int, entries: Sequence[tuple[Sequence[Match], ActionCall, int]]) -> None:
    """Inserts (match, action, priority) entries."""
    for start in range(0, len(entries), _BATCH):
        batch = pipeline.batch()
        for match, action, priority in entries[start : start + _BATCH]:
            batch.insert(table, match, action, priority)
        commit(batch)


def rate(switch: Switch, frames: list[bytes], port: int = 1) -> float:
    """Processor seconds a packet takes."""
    count = _FIRST_COUNT
    while True:
        seconds = switch.bench(port, frames, count)
        if seconds > _SECONDS / 4:
            count = max(1, int(count * _SECONDS / seconds))
            return switch.bench(port, frames, count) / count
        count *= 4


def measured(name: str, seconds: float, against: Measurement | None = None) -> Measurement:
    """A figure, with its ratio to another one if there is one."""
    if against is None:
        return Measurement(name, 1 / seconds, seconds * 1e9)
    return Measurement(name, 1 / seconds, seconds * 1e9, against.name, 1 / seconds / against.packets_per_second)


def forwarding() -> Iterator[Measurement]:
    """L2 frames to one port and to eight."""
    program = load()
    with switch_with(program) as (switch, pipeline):
        table, forward = program.table("BenchIngress.dmac").index, program.action("BenchIngress.forward").index
        fill(pipeline, table, [([(mac(2), 0)], ActionCall(forward, (2,)), 0)])
        for size in (64, 4200):
            one = measured(f"L2, {size} B, to one port", rate(switch, [ethernet(mac(2), size)]))
            yield one
            yield measured(f"L2, {size} B, to eight ports", rate(switch, [ethernet(mac(99), size)]), one)


def exact(sizes: Sequence[int]) -> Iterator[Measurement]:
    """L2 frames to random addresses of a growing exact table, and to one address of it."""
    program = load()
    rng = random.Random(1)
    with switch_with(program) as (switch, pipeline):
        table, forward = program.table("BenchIngress.dmac").index, program.action("BenchIngress.forward").index
        first: Measurement | None = None
        done = 0
        for size in sizes:
            fill(pipeline, table, [([(mac(n), 0)], ActionCall(forward, (2,)), 0) for n in range(done, size)])
            done = size
            keys = [rng.randrange(size) for _ in range(min(size, _KEYS_TRIED_MAX))]
            any_key = measured(
                f"exact, {size} entries, random keys", rate(switch, [ethernet(mac(n), 64) for n in keys]), first
            )
            yield any_key
            first = first or any_key
            yield measured(f"exact, {size} entries, one key", rate(switch, [ethernet(mac(keys[0]), 64)]), first)


def prefixes(sizes: Sequence[int]) -> Iterator[Measurement]:
    """Packets to random addresses, routed by a growing table of prefixes of 8 to 32 bits."""
    program = load("ROUTE")
    rng = random.Random(2)
    with switch_with(program) as (switch, pipeline):
        table, route = program.table("BenchIngress.routes").index, program.action("BenchIngress.route").index
        batch = pipeline.batch()
        batch.set_default(table, ActionCall(route, (mac(3), 3)))
        commit(batch)
        known: set[tuple[int, int]] = set()
        first: Measurement | None = None
        for size in sizes:
            fresh: list[tuple[int, int]] = []
            while len(known) < size:
                bits = min(32, max(8, round(rng.gauss(22, 4))))
                prefix = (rng.getrandbits(32) >> (32 - bits) << (32 - bits), bits)
                if prefix not in known:
                    known.add(prefix)
                    fresh.append(prefix)
            fill(pipeline, table, [([prefix], ActionCall(route, (mac(3), 3)), 0) for prefix in fresh])
            chosen = [rng.choice(fresh) for _ in range(20_000)]
            frames = [udp(prefix | rng.getrandbits(32) >> bits if bits < 32 else prefix, 1) for prefix, bits in chosen]
            figure = measured(f"lpm, {size} prefixes", rate(switch, frames), first)
            yield figure
            first = first or figure


def ternary(rules: int) -> Iterator[Measurement]:
    """UDP packets behind ``rules`` ternary rules: of a few masks, and every rule with a mask of its own."""
    program = load("RULES")
    rng = random.Random(3)
    full = (1 << 32) - 1
    styles: Mapping[str, Callable[[int], tuple[int, int]]] = {
        "few masks": lambda n: (full << (8 * (n % 4)) & full, full),
        "all masks different": lambda n: (rng.getrandbits(32) | 1 << 31, full ^ n),
    }
    for name, masks_of in styles.items():
        with switch_with(program) as (switch, pipeline):
            table, drop = program.table("BenchIngress.rules").index, program.action("BenchIngress.drop").index
            entries: list[tuple[Sequence[Match], ActionCall, int]] = []
            for n in range(rules):
                source_mask, destination_mask = masks_of(n)
                match = [
                    (rng.getrandbits(32), source_mask),
                    (rng.getrandbits(32) | 1, destination_mask),
                    (17, 255),
                    (0, 0),
                    (n, 65535),
                ]
                entries.append((match, ActionCall(drop), rules - n))
            fill(pipeline, table, entries)
            frames = [udp(rng.getrandbits(32), rng.getrandbits(32)) for _ in range(1000)]
            yield measured(f"ternary, {rules} rules, {name}, no match", rate(switch, frames))
