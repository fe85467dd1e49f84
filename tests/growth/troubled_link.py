"""A TCP port that leads to another one, until the test cuts it off or slows it down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class TroubledLink:
    """Use `leading_to`."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self.address = ""
        self.delay_s = 0.0
        """Of each piece, each way."""
        self._open = asyncio.Event()
        self._open.set()

    def cut(self) -> None:
        """Nothing comes through any more, and nobody hears that."""
        self._open.clear()

    def mend(self) -> None:
        """What was on its way arrives."""
        self._open.set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there: asyncio.StreamWriter | None = None
        try:
            there_reader, there = await asyncio.open_connection(*self._to)
            await asyncio.gather(self._pass_on(reader, there), self._pass_on(there_reader, writer))
        except OSError:
            pass  # nobody listens there: this end closes, too
        finally:
            for end in (writer, there):
                if end is not None:
                    end.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1 << 16):
            await asyncio.sleep(self.delay_s)
            await self._open.wait()
            writer.write(piece)
            await writer.drain()
        writer.write_eof()


@contextlib.asynccontextmanager
async def leading_to(address: str) -> AsyncIterator[TroubledLink]:
    """A port of its own that leads to HOST:PORT."""
    host, _, port = address.rpartition(":")
    link = TroubledLink(host, int(port))
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(link.connected(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    link.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield link
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
