"""Runs a controller and the agents that load it, looks at it from outside, and reckons what bounds it when it grows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from kvcast.errors import UsageError
from kvlab.controller_bench.speaker import Speaker, key_of
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc

PROBE_S: Final = 0.005
"""How often the controller is asked something that takes it no time: its longest answer shows its longest block."""
LOOK_UP_S: Final = 0.01
LOOK_UP_CHUNKS: Final = 64
PAGES_S: Final = 0.5
"""How often Status and Top are asked for."""
PATIENCE_S: Final = 600.0
WAITING_S: Final = 20.0
"""After which the bench says what it waits for."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a controller."""

    agents: int
    chunks: int
    rate: float
    """New chunks a second, of all agents."""
    followers: int
    """Agents that are told of each chunk."""
    claims: int
    seconds: float
    processes: int


async def measure(load: Load, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """All figures. Raises UsageError where the controller does not start."""
    async with _controller(folder) as (process, address), _agents(load, address, say) as crowd:
        pid, watch = process.pid, _Watch(address)
        empty_bytes = _rss_bytes(pid)
        say(f"{load.agents} agents attach")
        attached = await crowd.all("attach")
        attached_bytes, began_s, began_cpu_s = _rss_bytes(pid), time.monotonic(), _cpu_s(pid)
        say(f"{load.chunks} chunks are announced")
        await crowd.all("hold", count=load.chunks // load.agents)
        await watch.until_chunks(load.chunks // load.agents * load.agents, say)
        filled_s, filled_cpu_s, filled_bytes = time.monotonic() - began_s, _cpu_s(pid) - began_cpu_s, _rss_bytes(pid)
        say(f"{load.claims} claims")
        await crowd.all("claim", count=load.claims // load.agents)
        await asyncio.sleep(2.0)
        claimed_bytes = _rss_bytes(pid)
        say(f"{load.rate:g} chunks a second for {load.seconds:g} s")
        before, cpu_s = await crowd.counts(), _cpu_s(pid)
        chunks = (await watch.status()).chunks
        watch.begin()
        asker = asyncio.create_task(_look_up(load, address, watch.took_s["look_up"]))
        began_s = time.monotonic()
        await crowd.all("announce", per_s=load.rate / load.processes, seconds=load.seconds)
        announced_s = time.monotonic() - began_s
        taken = (await watch.status()).chunks - chunks
        asker.cancel()
        await asyncio.gather(asker, return_exceptions=True)
        newcomer = await crowd.one("attach", numbers=[load.agents])
        await watch.end()
        used_cpu_s = _cpu_s(pid) - cpu_s
        after = await crowd.counts()
        say("SIGTERM")
        term_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), PATIENCE_S)
        term_s = time.monotonic() - term_s
    per_chunk_bytes = (filled_bytes - attached_bytes) / load.chunks
    return {
        "attach_s": max(one["seconds"] for one in attached),
        "empty_bytes": empty_bytes,
        "bytes_per_agent": (attached_bytes - empty_bytes) / load.agents,
        "bytes_per_chunk": per_chunk_bytes,
        "fill_s": filled_s,
        "fill_cpu_us_per_chunk": filled_cpu_s / load.chunks * 1e6,
        "claims_asked": load.claims,
        "bytes_per_claim": (claimed_bytes - filled_bytes) / max(1, load.claims),
        "records_refused": after["refused"],
        "announcements_per_s": taken / announced_s,
        "cpu_us_per_chunk": used_cpu_s / max(1, taken) * 1e6,
        "told_per_chunk": (after["told"] - before["told"]) / max(1, taken),
        "new_agent_s": newcomer["seconds"],
        "new_agent_chunks": newcomer["told"],
        **watch.figures(),
        "sigterm_s": term_s,
    }


async def _look_up(load: Load, address: str, took_s: list[float]) -> None:
    """Be an agent that keeps no directory: ask for LOOK_UP_CHUNKS at a time, let them go with the next question."""
    rng, released = random.Random(1), b""
    async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        agent = Speaker(load.agents + 1, "", channel, follows=True)
        try:
            await agent.has_snapshot.wait()
            while True:
                first = rng.randrange(max(1, load.chunks // load.agents - LOOK_UP_CHUNKS))
                owner = rng.randrange(load.agents)
                keys = b"".join(key_of(owner, first + at) for at in range(LOOK_UP_CHUNKS))
                began_s = time.monotonic()
                await agent.look_up(keys, released)
                took_s.append(time.monotonic() - began_s)
                released = keys
                await asyncio.sleep(LOOK_UP_S)
        finally:
            await agent.close()


def at_size(figures: Mapping[str, float], load: Load, agents: int) -> dict[str, float]:
    """What would bound a controller of so many agents, each as busy and as full as in the load that was measured."""
    chunks, rate = load.chunks / load.agents * agents, load.rate / load.agents * agents
    busy = rate * figures["cpu_us_per_chunk"] / 1e6
    return {
        "agents": agents,
        "chunks": chunks,
        "directory_gib": chunks * figures["bytes_per_chunk"] / 2**30,
        "cores_for_announcements": busy,
        "announcements_per_s_of_one_core": 1e6 / figures["cpu_us_per_chunk"],
        "agents_of_one_core": agents / busy,
    }


class _Watch:
    """Asks a controller questions while it works, and notes how long it takes."""

    def __init__(self, address: str) -> None:
        channel = grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self._operator = control_pb2_grpc.OperatorStub(channel)
        self._coordinator = control_pb2_grpc.CoordinatorStub(channel)
        self.took_s: dict[str, list[float]] = {"probe": [], "status": [], "top": [], "look_up": []}
        self._tasks: list[asyncio.Task[None]] = []

    async def status(self) -> rpc.StatusReply:
        """As the controller sees itself."""
        reply: rpc.StatusReply = await self._operator.Status(rpc.StatusRequest())
        return reply

    async def until_chunks(self, wanted: int, say: Callable[[str], None]) -> None:
        """Wait until the controller knows so many; TimeoutError after PATIENCE_S."""
        said_s = time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            while (chunks := (await self.status()).chunks) < wanted:
                if time.monotonic() - said_s >= WAITING_S:
                    said_s = time.monotonic()
                    say(f"{chunks} of {wanted} chunks are known")
                await asyncio.sleep(0.1)

    def begin(self) -> None:
        """Ask from now on."""
        self._tasks = [
            asyncio.create_task(self._ask("probe", PROBE_S, lambda: self._coordinator.Leader(rpc.LeaderRequest()))),
            asyncio.create_task(self._ask("status", PAGES_S, lambda: self._operator.Status(rpc.StatusRequest()))),
            asyncio.create_task(self._ask("top", PAGES_S, lambda: self._operator.Top(rpc.TopRequest(limit=20)))),
        ]

    async def end(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, what: str, pause_s: float, call: Callable[[], Any]) -> None:
        while True:
            began_s = time.monotonic()
            await call()
            self.took_s[what].append(time.monotonic() - began_s)
            await asyncio.sleep(pause_s)

    def figures(self) -> dict[str, float]:
        """Milliseconds that answers took."""
        named = {}
        for what, took_s in self.took_s.items():
            ordered = sorted(took_s) or [float("nan")]
            named[f"{what}_ms_p50"] = ordered[len(ordered) // 2] * 1e3
            named[f"{what}_ms_p99"] = ordered[len(ordered) * 99 // 100] * 1e3
            named[f"{what}_ms_max"] = ordered[-1] * 1e3
        return named


class _Crowd:
    """The processes of the agents."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process], say: Callable[[str], None]) -> None:
        self._processes = processes
        self._say = say

    async def all(self, do: str, **order: Any) -> list[dict[str, Any]]:
        """Give all processes an order; their answers. Says every now and then that it waits for them."""
        orders = [asyncio.create_task(_order(one, do, order)) for one in self._processes]
        began_s = time.monotonic()
        while (await asyncio.wait(orders, timeout=WAITING_S))[1]:
            late = sum(not one.done() for one in orders)
            waited_s = time.monotonic() - began_s
            self._say(f"{do}: {late} of {len(orders)} processes of agents are at it for {waited_s:.0f} s")
        return [one.result() for one in orders]

    async def one(self, do: str, **order: Any) -> dict[str, Any]:
        """Give one process an order."""
        return await _order(self._processes[0], do, order)

    async def counts(self) -> dict[str, int]:
        """What was told and refused, of all."""
        answers = await self.all("counts")
        return {name: sum(answer[name] for answer in answers) for name in answers[0]}


async def _order(process: asyncio.subprocess.Process, do: str, order: Mapping[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
    line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
    if not line:
        raise UsageError("a process of agents has ended: see what it printed")
    answer: dict[str, Any] = json.loads(line)
    return answer


@contextlib.asynccontextmanager
async def _agents(load: Load, address: str, say: Callable[[str], None]) -> AsyncIterator[_Crowd]:
    numbers = [list(range(one, load.agents, load.processes)) for one in range(load.processes)]
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "kvlab.controller_bench.speaker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in numbers
    ]
    try:
        for process, some in zip(processes, numbers, strict=True):
            assert process.stdin is not None
            start = {"address": address, "numbers": some, "followers": load.followers}
            process.stdin.write(json.dumps(start).encode() + b"\n")
        yield _Crowd(processes, say)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def _controller(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ready, config = folder / "ready", folder / "controller.yaml"
    config.write_text(f"listen: {address}\nmetrics: 127.0.0.1:0\nready_file: {ready}\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "controlplane", "--config", str(config), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not ready.exists():
                if process.returncode is not None:
                    raise UsageError(f"the controller ended with status {process.returncode}")
                await asyncio.sleep(0.05)
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def _cpu_s(pid: int) -> float:
    """Processor time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
