"""Mooncake Store: a pool that copies what is hot to several nodes (https://kvcache-ai.github.io/Mooncake).

The master runs at the holder. REPLICAS hosts, the holder first, lend memory, and the prefix is put with as many
replicas; readers take any of them. Its wheel for CPUs is mooncake-transfer-engine-non-cuda; kvcast does without it.
"""

from __future__ import annotations

import argparse
import signal
import socket
from collections.abc import Iterator
from typing import Any, Final

from bmv2_testbed.bench.mooncake_servers import LENT_BYTES_MIN, start_master
from bmv2_testbed.content import Prefix, add_prefix_arguments, prefix_of
from bmv2_testbed.errors import TestbedError
from kvdaemon.notify import notify_ready

REPLICAS: Final = 3
_MASTER_PORT: Final = 5505
_READER_BYTES: Final = 256 * 2**20
"""Memory of a client for what it reads."""


class MooncakeSource:
    """A client that lends no memory."""

    def __init__(self, host: str) -> None:
        """`host`: the holder's address."""
        with socket.create_connection((host, _MASTER_PORT)) as probe:
            address = probe.getsockname()[0]
        self._store = _client(address, host, lent_bytes=0, read_bytes=_READER_BYTES)
        self._fetched = 0

    def fetch(self, prefix: Prefix) -> Iterator[tuple[int, memoryview]]:
        """As `Source.fetch`: one request for all chunks."""
        names = [key.hex() for key in prefix.chunk_keys()]
        for index, got in enumerate(self._store.batch_get_buffer(names)):
            if got is None:
                raise TestbedError(f"mooncake has no chunk {index}")
            self._fetched += 1
            yield index, memoryview(got).cast("B")

    def origins(self) -> dict[str, int]:
        return {"mooncake": self._fetched}

    def close(self) -> None:
        self._store.close()


def _client(address: str, master: str, *, lent_bytes: int, read_bytes: int) -> Any:
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    status = store.setup(address, "P2PHANDSHAKE", lent_bytes, read_bytes, "tcp", "", f"{master}:{_MASTER_PORT}")
    if status != 0:
        raise TestbedError(f"mooncake's client does not start at {address}: status {status}")
    return store


def _serve(address: str, master: str, prefix: Prefix) -> None:
    """Lend memory until the end; at the holder run the master, too."""
    if address == master:
        start_master(address, _MASTER_PORT)
    store = _client(address, master, lent_bytes=max(LENT_BYTES_MIN, 2 * prefix.size_bytes), read_bytes=16 * 2**20)
    notify_ready()
    signal.pause()
    store.close()


def _load(address: str, master: str, prefix: Prefix) -> None:
    from mooncake.store import ReplicateConfig

    store = _client(address, master, lent_bytes=0, read_bytes=_READER_BYTES)
    config = ReplicateConfig()
    config.replica_num = REPLICAS
    for key, content in zip(prefix.chunk_keys(), prefix.contents(), strict=True):
        if (status := store.put(key.hex(), content, config)) != 0:
            raise TestbedError(f"mooncake refused a put: status {status}")
    store.close()


def main() -> int:
    """Entry point: `serve` at hosts that lend memory, `load` at the holder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=("serve", "load"))
    parser.add_argument("--address", required=True, help="of this host")
    parser.add_argument("--master", required=True, help="the holder's")
    add_prefix_arguments(parser)
    args = parser.parse_args()
    (_serve if args.job == "serve" else _load)(args.address, args.master, prefix_of(args))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
