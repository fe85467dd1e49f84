"""Rollouts on nodes with one GPU each: what merging of computations brings, in the planner's cluster.

    python tools/measure_merging.py [--speed 4] [--link-gbit 100] [--seconds 60]

The carried trace of rollouts, `speed` times as fast, on 8 nodes with Llama 3 8B and an H100 each. Engines look a prefix
up again when the GPU is free for it. Prints a row for each way to share.
"""

from __future__ import annotations

import argparse
from collections import Counter

from planner.cluster.options import Cluster, Merging, Scenario, Sharing
from planner.cluster.replay import Replay
from planner.cluster.requests import requests_of
from planner.cluster.serial import computed_chunks, distinct_chunks
from planner.hardware import engine_of, find_model
from planner.traces import read_trace
from planner.traces.catalog import CARRIED

WAYS = (
    (Sharing.NONE, Merging.OFF),
    (Sharing.UNICAST, Merging.OFF),
    (Sharing.CAST, Merging.OFF),
    (Sharing.CAST, Merging.WHOLE),
    (Sharing.CAST, Merging.CHUNKS),
    (Sharing.UNICAST, Merging.CHUNKS),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--speed", type=float, default=4.0)
    parser.add_argument("--link-gbit", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the trace")
    options = parser.parse_args()
    engine = engine_of(find_model("llama-3-8b"))
    cluster = Cluster(
        engine, nodes=8, link_rate=options.link_gbit * 1e9 / 8, local_dram_bytes=4000 * engine.model.chunk_bytes(512)
    )
    trace = [one for one in read_trace(CARRIED / "rollout_small.jsonl") if one.arrival_ms < options.seconds * 1000]
    requests = requests_of(trace, options.speed)
    print(f"{len(requests)} requests, {distinct_chunks(requests)} distinct chunks")
    for sharing, merging in WAYS:
        replay = Replay(Scenario(cluster, sharing, look_up_again=True, merging=merging))
        figures = replay.run(requests)
        freed: Counter[str] = Counter()
        for agent in replay.agents:
            freed.update({why.value: count for why, count in agent.core.waits.counts.freed.items()})
        print(
            f"{sharing.value:8} merging {merging.value:6}  mean {figures.ttft_mean_s * 1e3:7.1f} ms"
            f"  p99 {figures.ttft_p99_s * 1e3:7.1f} ms  computed {computed_chunks(replay.gpus):5}"
            f"  waits {sum(agent.core.waits.counts.begun for agent in replay.agents):4}  freed {dict(freed)}"
        )


if __name__ == "__main__":
    main()
