"""Whether nodes' NICs carry the fabric's casts. Pure."""

from __future__ import annotations

from controlplane.core.nodes import NodeFacts
from kvproto.wire.rdma import rdma_segment_bytes_max


class RdmaFits:
    """What was said of each node, by its name."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def news(self, facts: NodeFacts, segment_bytes: int) -> str:
        """What is wrong with a node's NIC, for a person; empty when nothing is, or when it has been said already."""
        problem = _problem(facts, segment_bytes)
        if problem == self._problems.get(facts.name, ""):
            return ""
        self._problems[facts.name] = problem
        return problem


def _problem(facts: NodeFacts, segment_bytes: int) -> str:
    if not facts.rdma_mtu_bytes:
        return ""
    fits_bytes = rdma_segment_bytes_max(facts.rdma_mtu_bytes)
    if fits_bytes >= segment_bytes:
        return ""
    return (
        f"{facts.name}: its RDMA MTU of {facts.rdma_mtu_bytes} bytes takes segments of {fits_bytes} at most,"
        f" the fabric's have {segment_bytes}: its casts go over sockets, its reads over RDMA. Build the"
        f" switch program with SEGMENT_BYTES={fits_bytes} or raise the interface's MTU"
    )
