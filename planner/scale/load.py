"""What one node asks of the control plane, counted in a trace. Exact, and pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import PlanError
from planner.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class Load:
    """Of one node, per second. `uses` and `new` are of chunks."""

    requests_per_s: float
    uses_per_s: float
    new_per_s: float
    """First uses: computed, stored, announced. In the long run as many are evicted, which is announced too."""


def load_of(trace: Sequence[TraceRequest], nodes: int, speed: float = 1.0) -> Load:
    """Spread a trace over the nodes that serve it. Raises PlanError for one without duration."""
    duration_s = (trace[-1].arrival_ms - trace[0].arrival_ms) / 1000 / speed if trace else 0.0
    if duration_s <= 0:
        raise PlanError("the trace has no duration: it needs two requests at different times at least")
    uses = sum(len(request.blocks) for request in trace)
    new = len({block for request in trace for block in request.blocks})
    per = nodes * duration_s
    return Load(len(trace) / per, uses / per, new / per)
