"""One reader alone, links of full speed: throughput and latency of a fetch, of sendfile and of Redis over the same
path, and of a fetch of what is in the reader's own pool already."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich import box
from rich.table import Table

from bmv2_testbed import client
from bmv2_testbed.bench.group import agent_socket, put_prefix
from bmv2_testbed.bench.peer_servers import Peer, missing, peer_running
from bmv2_testbed.bench.sources import PoolSource, RedisSource, Source, TcpSource
from bmv2_testbed.client import Testbed
from bmv2_testbed.content import Prefix, add_prefix_arguments, prefix_arguments, prefix_of, same_content
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import FETCH_DEADLINE_S, START_DEADLINE_S
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import Target, TestbedSpec, data_ip, host_name
from kvclient.client import AgentClient, Where
from kvclient.lone import SLOT_BYTES
from kvproto.units import format_bytes

CHUNK_BYTES = 2**20
LOCAL_REPEAT = 100
"""Fetches of what is here already for one over the network: they take a hundredth of the time."""
PAUSED = "paused"
"""As `tcp`, but before each fetch happens what happens before each fetch from the pool: the chunk is dropped from the
reader's pool, which takes a millisecond of three processes and leaves little of others in the processor's caches."""
WAYS = {
    "pool": "kvcast: holder",
    "asked": "kvcast: holder, by request",
    "switch": "kvcast: switch",
    "local": "kvcast: own pool",
    "tcp": "sendfile",
    "paused": "sendfile, paused",
    "redis": "Redis",
}
PEERS = {"tcp": Peer.TCP, "redis": Peer.REDIS}


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Sizes in bytes; each is fetched `repeat` times, always from the holder's memory."""

    sizes_bytes: Sequence[int]
    repeat: int
    seed: int
    target: Target
    chunks_bytes: Sequence[int] = (CHUNK_BYTES,)
    """Sizes of chunks, one after the other."""


@dataclass(frozen=True, slots=True)
class FetchFigures:
    """One size by one way; times in seconds, from the call to the last byte in the reader's memory."""

    target: str
    source: str
    chunks: int
    """That the pool has it in; 0: a peer has it, as a whole."""
    size_bytes: int
    p50_s: float
    p99_s: float
    best_s: float
    gbytes_s_p50: float
    verified: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_fetch(plan: FetchPlan, say: Callable[[str], None], moved: Callable[[float], None]) -> list[FetchFigures]:
    """Figures on a plain bridge and on the target: from the holder, from the switch, and by sendfile."""
    targets = dict.fromkeys((Target.BRIDGE, plan.target))
    figures: list[FetchFigures] = []
    for step, target in enumerate(targets):
        say(f"{target}: network of 2 hosts")
        # Without admission: fetched again and again, the prefix would move into the switch in the middle of a series.
        spec = TestbedSpec(
            target=target,
            hosts=2,
            seed=plan.seed,
            segment_bytes=plan.target.segment_bytes,
            controller_settings={"policy": {"admission": False}},
        )
        with client.running(spec) as testbed:
            for size, chunk_bytes, is_last in _steps(plan):
                prefix = Prefix(plan.seed, size, chunk_bytes)
                say(f"{target}: {format_bytes(size)} in {prefix.chunks}")
                put_prefix(testbed, prefix)
                figures.append(_run_pool(testbed, prefix, plan.repeat))
                if _is_small(prefix):
                    # Without lone gets, as all others are fetched.
                    figures.append(_run_reader(testbed, "asked", agent_socket(testbed, 1), prefix, plan.repeat))
                if target is not Target.BRIDGE:
                    testbed.serve_from_switch(prefix.chunk_keys()[-1], prefix.chunks, unpinned=True)
                    figures.append(replace(_run_pool(testbed, prefix, plan.repeat), source="switch"))
                figures.append(_run_reader(testbed, "local", agent_socket(testbed, 1), prefix, plan.repeat))
                if is_last:
                    for source in _peers_here():
                        figures += _run_peer(testbed, source, prefix, plan.repeat)
                moved((step + 1) / len(targets))
    return figures


def _steps(plan: FetchPlan) -> Iterator[tuple[int, int, bool]]:
    """(size, size of its chunks, whether it is the last of this size)"""
    for size in plan.sizes_bytes:
        chunks_bytes = list(dict.fromkeys(min(size, chunk_bytes) for chunk_bytes in plan.chunks_bytes))
        for chunk_bytes in chunks_bytes:
            yield size, chunk_bytes, chunk_bytes == chunks_bytes[-1]


def typical_fetches(runs: Sequence[Sequence[FetchFigures]]) -> list[FetchFigures]:
    """Of each row the run with the median p50 (the lower one of two in the middle); verified if all runs are."""
    found = []
    for row in zip(*runs, strict=True):
        middle = sorted(row, key=lambda one: one.p50_s)[(len(row) - 1) // 2]
        found.append(replace(middle, verified=all(one.verified for one in row)))
    return found


def _run_pool(testbed: Testbed, prefix: Prefix, repeat: int) -> FetchFigures:
    return _run_reader(testbed, "pool", agent_socket(testbed, 1), prefix, repeat)


def _peers_here() -> list[str]:
    """Those that this machine has."""
    return [source for source, peer in PEERS.items() if not missing(peer)]


def _run_peer(testbed: Testbed, source: str, prefix: Prefix, repeat: int) -> list[FetchFigures]:
    with peer_running(testbed, PEERS[source], prefix):
        figures = [_run_reader(testbed, source, data_ip(0), prefix, repeat)]
        if source == "tcp" and _is_small(prefix):
            figures.append(_run_reader(testbed, PAUSED, data_ip(0), prefix, repeat))
        return [replace(one, chunks=0) for one in figures]


def _is_small(prefix: Prefix) -> bool:
    """Whether lone gets bring it (`kvclient.lone`)."""
    return prefix.size_bytes <= SLOT_BYTES and prefix.chunks == 1


def _run_reader(testbed: Testbed, source: str, address: str, prefix: Prefix, repeat: int) -> FetchFigures:
    words = ["--source", source, "--address", address, "--repeat", str(repeat), *prefix_arguments(prefix)]
    words += ["--agent", agent_socket(testbed, 1)]
    testbed.run("fetch", host_name(1), python_module("bmv2_testbed.bench.fetch", *words))
    report = json.loads(testbed.finish("fetch", START_DEADLINE_S + FETCH_DEADLINE_S).stdout)
    times = sorted(report["times_s"])
    p50_s = statistics.median(times)
    return FetchFigures(
        target=testbed.status()["spec"]["target"],
        source=source,
        chunks=prefix.chunks,
        size_bytes=prefix.size_bytes,
        p50_s=p50_s,
        p99_s=times[min(len(times) - 1, int(len(times) * 0.99))],
        best_s=times[0],
        gbytes_s_p50=prefix.size_bytes / p50_s / 1e9,
        verified=report["verified"],
    )


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.0f}" if seconds >= 1e-4 else f"{seconds * 1e6:.1f}"


def _chunks(figure: FetchFigures) -> str:
    return str(figure.chunks or "-")


def fetch_table(figures: Sequence[FetchFigures]) -> Table:
    """The table that ends a fetch run."""
    right = "every byte compared" if all(figure.verified for figure in figures) else "WRONG BYTES CAME"
    table = Table(
        title="one reader alone, links not shaped",
        box=box.SIMPLE,
        caption=f"ratio: sendfile's p50 over this one; {right}",
    )
    for heading in ("network", "by", "size", "chunks", "p50 µs", "p99 µs", "GB/s", "ratio"):
        table.add_column(heading, justify="left" if heading in ("network", "by") else "right", no_wrap=True)
    sendfile = {(f.target, f.size_bytes): f.p50_s for f in figures if f.source == "tcp"}
    for figure in figures:
        name = WAYS[figure.source]
        base = sendfile.get((figure.target, figure.size_bytes))
        table.add_row(
            figure.target,
            name if figure.verified else f"{name}: WRONG",
            format_bytes(figure.size_bytes),
            _chunks(figure),
            _microseconds(figure.p50_s),
            _microseconds(figure.p99_s),
            f"{figure.gbytes_s_p50:.3f}",
            "-" if base is None else f"{base / figure.p50_s:.2f}",
        )
    return table


def fetch_spread_tables(runs: Sequence[Sequence[FetchFigures]]) -> list[Table]:
    """How far the runs of each row lie apart, a table a network."""
    tables: dict[str, Table] = {}
    for row in zip(*runs, strict=True):
        table = tables.get(row[0].target)
        if table is None:
            title = f"{len(runs)} runs by turns, {row[0].target}"
            table = tables[row[0].target] = Table(title=title, caption="µs: least / median / greatest of the runs")
            for heading in ("by", "size", "chunks", "p50", "p99"):
                table.add_column(heading, justify="left" if heading == "by" else "right", no_wrap=True)
        p50, p99 = (
            " / ".join(_microseconds(pick(times)) for pick in (min, statistics.median, max))
            for times in ([one.p50_s for one in row], [one.p99_s for one in row])
        )
        table.add_row(WAYS[row[0].source], format_bytes(row[0].size_bytes), _chunks(row[0]), p50, p99)
    return list(tables.values())


def _measure(source: Source, drop: Callable[[], None], prefix: Prefix, repeat: int) -> dict[str, Any]:
    expected = prefix.contents()
    times = []
    verified = True
    for _ in range(repeat):
        drop()
        came: list[tuple[int, memoryview]] = []
        spent_comparing_s = 0.0
        start_s = time.monotonic()
        for one in source.fetch(prefix):
            came.append(one)
            if len(came) == prefix.chunks:
                # Not before all of it is here: while the clock stands still, the network would go on.
                arrived_s = time.monotonic()
                verified = verified and all(same_content(content, expected[index]) for index, content in came)
                verified = verified and sum(len(content) for _, content in came) == prefix.size_bytes
                spent_comparing_s = time.monotonic() - arrived_s
        times.append(time.monotonic() - start_s - spent_comparing_s)
        verified = verified and len(came) == prefix.chunks
    return {"times_s": times, "verified": verified}


def _measure_local(address: str, prefix: Prefix, repeat: int) -> dict[str, Any]:
    """Of chunks that are here: from the call to the views, and until they are given back. The bytes are compared once,
    because reading them is the engine's affair."""
    keys, expected = prefix.chunk_keys(), prefix.contents()
    with AgentClient(address) as agent:
        with agent.fetch(keys, deadline_s=FETCH_DEADLINE_S) as got:
            verified = got.count == prefix.chunks and all(map(same_content, got.views, expected))
        times = []
        for _ in range(LOCAL_REPEAT * repeat):
            start_s = time.perf_counter()
            got = agent.fetch(keys, deadline_s=FETCH_DEADLINE_S)
            verified = verified and len(got.views) == prefix.chunks
            got.release()
            times.append(time.perf_counter() - start_s)
    return {"times_s": times, "verified": verified}


def _drop_from_agent(address: str, prefix: Prefix) -> Callable[[], None]:
    agent = AgentClient(address)
    keys = prefix.chunk_keys()

    def drop() -> None:
        # A chunk that was fetched stays; without this the next fetch would be local.
        agent.drop(keys)
        if Where.LOCAL in agent.contains(keys):
            raise TestbedError("the reader's agent keeps chunks that are to be fetched: they are pinned there")

    return drop


def _fetch_and_drop(address: str, prefix: Prefix) -> Callable[[], None]:
    agent, drop = AgentClient(address), _drop_from_agent(address, prefix)
    keys = prefix.chunk_keys()

    def fetch_and_drop() -> None:
        agent.fetch(keys, deadline_s=FETCH_DEADLINE_S).release()
        drop()

    return fetch_and_drop


def main() -> int:
    """Entry point: the reader's process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=("pool", "asked", "local", PAUSED, *PEERS), required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--agent", required=True, help="the reader's own, by its socket")
    parser.add_argument("--repeat", type=int, required=True)
    add_prefix_arguments(parser)
    args = parser.parse_args()
    prefix = prefix_of(args)
    if args.source == "local":
        print(json.dumps(_measure_local(args.address, prefix, args.repeat)))
        return 0
    if args.source in ("pool", "asked"):
        pool = PoolSource(args.address, FETCH_DEADLINE_S, lone_gets=args.source == "pool")
        pool.await_known(prefix, START_DEADLINE_S / 2)
        source: Source = pool
        drop = _drop_from_agent(args.agent, prefix)
    elif args.source == PAUSED:
        source = TcpSource(args.address)
        drop = _fetch_and_drop(args.agent, prefix)
    else:
        source = TcpSource(args.address) if args.source == "tcp" else RedisSource(args.address)

        def drop() -> None:
            return None

    _measure(source, drop, prefix, 2)
    print(json.dumps(_measure(source, drop, prefix, args.repeat)))
    # The holder has the only copy again.
    drop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
