"""A controller made of finsy, for tests that talk P4Runtime to a switch."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, cast

import finsy as fy

START_LIMIT_S = 30.0


class ControlSession:
    """A finsy session on a thread of its own, with blocking calls."""

    def __init__(self, address: str, options: fy.SwitchOptions, digests: Sequence[str]) -> None:
        self._digest_names = digests
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="p4runtime", daemon=True)
        self._thread.start()
        self._digests: dict[str, queue.Queue[dict[str, int]]] = {name: queue.Queue() for name in digests}
        self._up: threading.Event = threading.Event()
        self._failure: BaseException | None = None
        self._stop = asyncio.Event()
        self._switch: fy.Switch
        self._task = asyncio.run_coroutine_threadsafe(self._run(address, options), self._loop)
        self._task.add_done_callback(lambda _: self._up.set())
        if not self._up.wait(START_LIMIT_S) or self._task.done():
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise RuntimeError(f"no P4Runtime session with {address}: {self._failure}")

    async def _run(self, address: str, options: fy.SwitchOptions) -> None:
        try:
            async with fy.Switch("switch", address, options) as switch:
                self._switch = switch
                self._up.set()
                readers = [asyncio.create_task(self._read_digests(name)) for name in self._digest_names]
                await self._stop.wait()
                for reader in readers:
                    reader.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await reader
        except BaseException as failure:
            self._failure = failure
            raise

    async def _read_digests(self, kind: str) -> None:
        async for digest_list in self._switch.read_digests(kind):
            for digest in digest_list.data:
                assert isinstance(digest, dict)
                self._digests[kind].put({name: int(value) for name, value in digest.items()})
            await self._switch.write([digest_list.ack()])

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_LIMIT_S)

    def insert(self, entities: Sequence[Any]) -> None:
        self._call(self._switch.insert(entities))

    def modify(self, entities: Sequence[Any]) -> None:
        self._call(self._switch.modify(entities))

    def delete(self, entities: Sequence[Any]) -> None:
        self._call(self._switch.delete(entities))

    def read(self, entity: Any) -> list[Any]:
        async def collect() -> list[Any]:
            # finsy declares its overloads as coroutines of generators; what comes back is the generator.
            found: AsyncIterator[Any] = cast("Any", self._switch).read([entity])
            return [one async for one in found]

        found: list[Any] = self._call(collect())
        return found

    def registers(self) -> dict[str, list[Any]]:
        """Every cell of every register, where the target can read them."""
        return {
            register.alias: [cell.data for cell in self.read(fy.P4RegisterEntry(register.alias))]
            for register in self._switch.p4info.registers
        }

    def next_digest(self, timeout_s: float, kind: str) -> dict[str, int] | None:
        try:
            return self._digests[kind].get(timeout=timeout_s)
        except queue.Empty:
            return None

    def drain_digests(self) -> None:
        for kind in self._digest_names:
            while self.next_digest(0.0, kind) is not None:
                pass

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        with contextlib.suppress(Exception):
            self._task.result(START_LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_LIMIT_S)
        self._loop.close()
