"""What tokens cost: a check for each connection, a look for each read, and reads with and without them, by turns.

Run it alone on a machine: `.venv/bin/python tools/measure_read_tokens.py`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from statistics import median

from controlplane.core.nodes import NodeFacts
from controlplane.core.read_access import ReadTokens
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import Extent, ReadOutcome, ReadRequest, TransportCounters
from hostagent.transport.read_client import ReadClient
from hostagent.transport.read_server import ReadServer
from hostagent.transport.read_tokens import Admitted, TokenBook
from kvchunk.ids import ChunkKey
from kvproto.grants import NamespaceRules

KEY = ChunkKey(bytes(16))
CHUNK_BYTES = 64 * 1024
READS = 2000
TURNS = 7
RULES = NamespaceRules({"acme/*": ["n1"], "globex/*": ["n2"], "acme/old": ["n1", "n2"]})
FACTS = NodeFacts("n1", 1, bytes((127, 0, 0, 1)), bytes(6), "127.0.0.1:4790", 4793, None, 1, frozenset())


class Holder:
    """A sink with one chunk of a tenant's."""

    def casts_queued_bytes(self) -> int:
        """None."""
        return 0

    def namespace_of(self, _key: ChunkKey) -> str | None:
        """A tenant's."""
        return "acme/llama"

    def open_extent(self, _key: ChunkKey) -> Extent | None:
        """The chunk."""
        return Extent(0, CHUNK_BYTES, None)

    def close_extent(self, _extent: Extent) -> None:
        """Nothing is pinned."""


def book() -> TokenBook:
    """Of a node that has heard its controller."""
    made = TokenBook(demands=True)
    made.attached(0.0, gives_tokens=True)
    made.access_given(ReadTokens(bytes(32), 600_000, RULES).access_of(FACTS, 0).read_access, time.monotonic())
    return made


def per_call_us(call: Callable[[], object], count: int) -> float:
    """Median of some rounds."""
    rounds = []
    for _ in range(TURNS):
        began = time.perf_counter()
        for _ in range(count):
            call()
        rounds.append((time.perf_counter() - began) / count * 1e6)
    return median(rounds)


async def reads_us(tokens: TokenBook | None) -> float:
    """What a read of 64 KiB over loopback takes, one after the other, on one connection."""
    memory, counters = PoolMemory(4 << 20, prefault=True), TransportCounters()
    server = ReadServer(memory, Holder(), counters, tokens=tokens)  # type: ignore[arg-type]  # all that is asked for
    host, port = server.listen("127.0.0.1", 0)
    client = ReadClient(memory, counters, stall_timeout_s=30, tokens=tokens)

    async def one() -> None:
        done: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
        client.read(ReadRequest(f"{host}:{port}", KEY, 0, CHUNK_BYTES, 1 << 20, done.set_result))
        if await done is not ReadOutcome.DONE:
            raise RuntimeError("a read failed")

    await one()
    began = time.perf_counter()
    for _ in range(READS):
        await one()
    took_us = (time.perf_counter() - began) / READS * 1e6
    client.close()
    server.close()
    memory.close()
    return took_us


def main() -> None:
    """Print the figures."""
    one, address, now_s = book(), socket.inet_aton("127.0.0.1"), time.monotonic()
    verdict = one.check(one.shown, address, now_s)
    if not isinstance(verdict, Admitted):
        raise SystemExit("the token is not good")
    labels = {"acme/llama": verdict.grant.allows("acme/llama")}
    check_us = per_call_us(lambda: one.check(one.shown, address, now_s), 300)
    print(f"a token: {len(one.shown)} bytes; checked in {check_us:.0f} us")
    print(f"a look for a read: {per_call_us(lambda: labels.get('acme/llama'), 100_000) * 1000:.0f} ns")
    turns = [(asyncio.run(reads_us(None)), asyncio.run(reads_us(book()))) for _ in range(TURNS)]
    without, with_tokens = median(turn[0] for turn in turns), median(turn[1] for turn in turns)
    ratio = median(turn[1] / turn[0] for turn in turns)
    print(f"a read of 64 KiB: {without:.1f} us without tokens, {with_tokens:.1f} with, by turns: {ratio:.3f}")


if __name__ == "__main__":
    main()
