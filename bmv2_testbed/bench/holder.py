"""What stands at the holder: puts the prefix into the pool, into Redis, or serves it with sendfile."""

from __future__ import annotations

import argparse
import os
import socket
import threading
from pathlib import Path

from bmv2_testbed.bench.sources import TCP_PEER_PORT, PoolSource, RedisSource
from bmv2_testbed.content import Prefix, add_prefix_arguments, prefix_of
from bmv2_testbed.limits import START_DEADLINE_S
from kvclient.client import AgentClient
from kvdaemon.notify import notify_ready


def put_into_pool(prefix: Prefix, agent_socket: str) -> None:
    """Put every chunk into the pool through the holder's agent."""
    with AgentClient(agent_socket) as agent:
        parent = None
        for key, content in zip(prefix.chunk_keys(), prefix.contents(), strict=True):
            agent.put(key, parent, content)
            parent = key


def await_in_directory(prefix: Prefix, agent_socket: str) -> None:
    """Wait until an agent knows of the whole prefix, and of its twins if there are to be any."""
    source = PoolSource(agent_socket, START_DEADLINE_S)
    source.await_known(prefix, START_DEADLINE_S)
    source.close()


def serve_file(path: Path, address: str) -> None:
    """Answer `offset length` lines with that stretch of the file, for ever; one thread a connection."""
    listener = socket.create_server((address, TCP_PEER_PORT), backlog=128)
    notify_ready()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve_connection, args=(path, connection), daemon=True).start()


def _serve_connection(path: Path, connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, path.open("rb") as served, connection.makefile("rb") as requests:
        try:
            for line in requests:
                offset, length = (int(word) for word in line.split())
                while length > 0:
                    sent = os.sendfile(connection.fileno(), served.fileno(), offset, length)
                    offset += sent
                    length -= sent
        except (BrokenPipeError, ConnectionResetError):
            return


def main() -> int:
    """Entry point: `put`, `await`, `redis` or `serve`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=("put", "await", "redis", "serve"))
    parser.add_argument("--address", required=True, help="agent socket, or address to serve on or to reach redis at")
    parser.add_argument("--file", type=Path, help="where `serve` keeps the prefix")
    add_prefix_arguments(parser)
    args = parser.parse_args()
    prefix = prefix_of(args)
    if args.job == "put":
        put_into_pool(prefix, args.address)
    elif args.job == "await":
        await_in_directory(prefix, args.address)
    elif args.job == "redis":
        RedisSource(args.address).store(prefix)
    else:
        args.file.write_bytes(b"".join(prefix.contents()))
        serve_file(args.file, args.address)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
