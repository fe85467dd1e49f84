"""What one part of the core stands on, for tests of that part alone."""

from __future__ import annotations

from collections.abc import Callable

from hostagent.core import effects
from hostagent.core.clock import Alarms, Windows
from hostagent.core.node import FabricState, Knowledge, Node
from hostagent.core.options import CoreOptions
from hostagent.pool.chunks import ChunkPool
from kvpolicy.value.costs import PRIORS, SourceCosts
from tests.unit.hostagent.core_harness import PAGE


def make_node(
    options: CoreOptions | None = None,
    emit: Callable[[effects.Effect], None] | None = None,
    costs: SourceCosts | None = None,
) -> Node:
    """Without a disk; the directory is empty. By default what is emitted is lost."""
    options = options or CoreOptions(8 * PAGE, PAGE)
    knowledge = Knowledge("n0", PRIORS)
    if costs is not None:
        knowledge.costs = costs
    alarms = Alarms(knowledge.clock)
    return Node(
        options,
        alarms,
        emit or (lambda _: None),
        ChunkPool(options.pool_bytes, PAGE, knowledge.clock.read),
        None,
        knowledge,
        FabricState(options.pool_address, options.segment_bytes),
        Windows(alarms),
    )
