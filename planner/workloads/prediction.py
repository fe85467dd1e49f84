"""What the planner expects of a workload: the same requests, node by node, in its simulated cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.cluster.options import Cluster, Merging, Scenario, Sharing
from planner.cluster.replay import Replay
from planner.cluster.requests import Request, key_of
from planner.cluster.serial import computed_chunks
from planner.workloads.scaled_terms import Terms
from planner.workloads.workload_catalog import CHUNK_TOKENS, NODES, Mode, Prompt, Workload

_SETTLED_S: Final = 2.0
"""Before the first request: nodes put what they hold, and everybody learns of it."""
POOL_BYTES: Final = 192 * 2**20
"""Of each node."""
_WAYS: Final[Mapping[Mode, tuple[Sharing, Merging]]] = {
    Mode.NONE: (Sharing.NONE, Merging.OFF),
    Mode.UNICAST: (Sharing.UNICAST, Merging.OFF),
    Mode.CAST: (Sharing.CAST, Merging.OFF),
    Mode.CAST_SWITCH: (Sharing.CAST_SWITCH, Merging.OFF),
    Mode.MERGED: (Sharing.CAST, Merging.CHUNKS),
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one workload in one mode."""

    ready_s: Sequence[float]
    """From each request's arrival until the KV of its prompt is there; in order of the requests' ends."""
    computed_blocks: int
    """The same one at several nodes included."""
    regret_s: float
    saved_s: float
    decisions: Mapping[str, int]
    given_up: int
    uplink_bytes: int
    """That all nodes send, headers included."""

    @property
    def mean_s(self) -> float:
        return float(np.mean(self.ready_s))

    @property
    def p99_s(self) -> float:
        return float(np.quantile(self.ready_s, 0.99))


def predict(workload: Workload, mode: Mode, terms: Terms, switch_bytes: int = 0) -> Prediction:
    """Run the workload in the planner's cluster, on links scaled down as the testbed's."""
    sharing, merging = _WAYS[mode]
    cluster = Cluster(
        terms.engine,
        nodes=NODES,
        chunk_tokens=CHUNK_TOKENS,
        link_rate=terms.link_bit_s / 8,
        local_dram_bytes=POOL_BYTES,
        switch_bytes=switch_bytes if mode is Mode.CAST_SWITCH else 0,
    )
    scenario = Scenario(cluster, sharing, look_up_again=True, merging=merging, copies_serve=True)
    replay = Replay(scenario)
    held = {
        node: [[key_of(block) for block in prefix] for prefix in prefixes] for node, prefixes in workload.held.items()
    }
    figures = replay.run([_request(prompt) for prompt in workload.prompts], held=held)
    gates = [agent.core.gate.counts for agent in replay.agents]
    names = dict.fromkeys(choice.value for gate in gates for choice in gate.decisions)
    return Prediction(
        ready_s=[outcome.ttft_s for outcome in replay.outcomes],
        computed_blocks=computed_chunks(replay.gpus),
        regret_s=figures.regret_s,
        saved_s=figures.saved_s,
        decisions={
            name: sum(count for gate in gates for choice, count in gate.decisions.items() if choice.value == name)
            for name in sorted(names)
        },
        given_up=figures.given_up,
        uplink_bytes=round(figures.uplink_bytes),
    )


def _request(prompt: Prompt) -> Request:
    keys = tuple(key_of(block) for block in prompt.blocks)
    return Request(_SETTLED_S + prompt.at_s, prompt.tokens, keys, prompt.node, CHUNK_TOKENS)
