"""A port in a testbed's network that leads out of it, to a socket in the file system: `relay.py ADDRESS PORT PATH`."""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Everything, until one of both ends goes."""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    writer.close()


async def main(address: str, port: int, path: str) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(path)
        await asyncio.gather(pass_on(reader, inner_writer), pass_on(inner_reader, writer))

    async with await asyncio.start_server(connected, address, port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
