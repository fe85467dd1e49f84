"""One reader of a benchmark, a process of its own in its host: ready, start, fetch, compare every byte, report.

The time runs from this reader's own start to the moment when the last byte has been compared with what it must be.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from bmv2_testbed.bench.mooncake import MooncakeSource
from bmv2_testbed.bench.relay import RelaySource
from bmv2_testbed.bench.rendezvous import await_start, meet, send_line
from bmv2_testbed.bench.sources import PoolSource, RedisSource, Source, TcpSource
from bmv2_testbed.content import Prefix, add_prefix_arguments, prefix_of, same_content
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.limits import FETCH_DEADLINE_S, START_DEADLINE_S
from kvdaemon.notify import spare_collections

_PEERS: Mapping[str, Callable[[str], Source]] = {
    "tcp": TcpSource,
    "redis": RedisSource,
    "chain": RelaySource,
    "mooncake": MooncakeSource,
}


def open_source(kind: str, address: str, deadline_s: float) -> Source:
    """`pool` with the agent's socket, `chain` with a place in the chain, other peers with the holder's address."""
    if kind == "pool":
        return PoolSource(address, deadline_s, streams=True)
    return _PEERS[kind](address)


def read_once(source: Source, prefix: Prefix, expected: list[bytes], start_s: float) -> dict[str, Any]:
    """Fetch and compare; returns the report. A miss or a wrong byte is `verified` false with a reason."""
    compared = 0
    reason = ""
    try:
        for index, content in source.fetch(prefix):
            if not same_content(content, expected[index]):
                reason = f"chunk {index} differs"
                break
            compared += len(content)
    except (TestbedError, OSError) as error:
        reason = str(error)
    end_s = time.monotonic()
    return {
        "time_s": end_s - start_s,
        "end_s": end_s,
        "compared_bytes": compared,
        "verified": compared == prefix.size_bytes,
        "reason": reason,
        "origins": source.origins(),
    }


def main() -> int:
    """Entry point: one incast reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--rendezvous", required=True)
    parser.add_argument("--source", choices=("pool", *_PEERS), required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--deadline", type=float, default=FETCH_DEADLINE_S, help="of the fetch, in seconds")
    add_prefix_arguments(parser)
    args = parser.parse_args()
    prefix = prefix_of(args)
    expected = prefix.contents()
    source = open_source(args.source, args.address, args.deadline)
    if isinstance(source, PoolSource):
        source.await_known(prefix, START_DEADLINE_S / 2)
    spare_collections()  # As engines do, whatever the source.
    with meet(args.rendezvous, args.name) as connection:
        start_s = await_start(connection)
        late_s = time.monotonic() - start_s
        cpu_before = os.times()
        report = read_once(source, prefix, expected, start_s)
        cpu = os.times()
        report["cpu_s"] = cpu.user + cpu.system - cpu_before.user - cpu_before.system
        report["late_s"] = late_s
        send_line(connection, report)
    source.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
