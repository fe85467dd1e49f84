"""What runs in the guest: each round gives every program one slice of time on the same two ports, by turns."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict

from bmv2_testbed.bench.rdma.ends import KvcastEnds
from bmv2_testbed.bench.rdma.minimal import PyverbsDatagrams, PyverbsReads, ib_read_bw, load_pyverbs
from bmv2_testbed.bench.rdma.slices import Slice
from kvproto.wire.rdma import rdma_segment_bytes_max

SEGMENT_BYTES = rdma_segment_bytes_max(4096)


def main() -> int:
    """Entry point: a line of JSON for each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--slice", type=float, required=True, help="seconds")
    args = parser.parse_args()
    modules = load_pyverbs()
    reads, datagrams = PyverbsReads(modules), PyverbsDatagrams(modules, SEGMENT_BYTES)
    ends = KvcastEnds(SEGMENT_BYTES)
    with asyncio.Runner() as runner:
        runner.run(ends.start())
        programs: list[tuple[str, Callable[[float], Slice]]] = [
            ("read", lambda seconds: runner.run(ends.read(seconds))),
            ("read_pyverbs", reads.run),
            ("read_perftest", ib_read_bw),
            ("ud", lambda seconds: runner.run(ends.cast(seconds))),
            ("ud_pyverbs", datagrams.run),
        ]
        for _ in range(args.rounds):
            print(json.dumps({name: asdict(run(args.slice)) for name, run in programs}), flush=True)
            # Who ran before whom must not matter.
            programs.reverse()
        runner.run(ends.close())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
