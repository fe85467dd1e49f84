"""What must hold after any simulation, whatever went wrong in it. Checkers look at outcomes, never at rules."""

import numpy as np

from kvproto.commands import Outcome
from kvproto.limits import MS
from kvproto.sim.bodies import content_of
from kvproto.sim.node import Node
from kvproto.sim.world import FETCH, World

LATE_NS = 100 * MS
"""How late an answer may come after its deadline: what a stalled process takes to see it."""


def violations(world: World) -> list[str]:
    """One line for each thing that is not as it must be, after `World.run`. Runs on until interest has expired."""
    world.engine.run(world.engine.now_ns + world.setting.ttl_ns + LATE_NS, lambda: False)
    found = []
    for node, start in zip(world.readers, world.starts, strict=True):
        if not node.dead:
            found += _answer(world, node, start)
    for node in world.nodes:
        if not node.dead:
            found += _nothing_left(node)
    for switch in world.switches:
        found += [f"interest in {key.hex()} is left: {members:b}" for key, members in switch.interest_left().items()]
    return found


def _answer(world: World, node: Node, start_ns: int) -> list[str]:
    """The right bytes, or a typed miss, before the deadline."""
    if FETCH not in node.delivered:
        return [f"{node.name}: no answer"]
    at_ns, answer = node.delivered[FETCH]
    found = []
    if at_ns > start_ns + world.setting.deadline_ns + LATE_NS:
        found.append(f"{node.name}: answer {(at_ns - start_ns) / 1e9:.3f} s after the start")
    if (answer.leading == len(world.keys)) != (answer.outcome is Outcome.COMPLETE):
        found.append(f"{node.name}: {answer.outcome.name} with {answer.leading} chunks")
    if len(answer.sources) != answer.leading:
        found.append(f"{node.name}: {len(answer.sources)} sources of {answer.leading} chunks")
    for key in world.keys[: answer.leading]:
        memory = node.memory.get(key)
        right = np.array([content_of(key, segment) for segment in range(world.setting.segments)], np.int64)
        if memory is None or not (memory.contents == right).all():
            found.append(f"{node.name}: wrong bytes in {key.hex()}")
    return found


def _nothing_left(node: Node) -> list[str]:
    """No pin, read, fetch or memory of an unfinished chunk is left."""
    found = []
    if node.pins or node.holder.pinned:
        found.append(f"{node.name}: {len(node.pins | node.holder.pinned)} pins are left")
    if not node.reader.idle:
        found.append(f"{node.name}: its reader is not idle")
    found += [
        f"{node.name}: memory of unfinished {key.hex()} is left"
        for key, memory in node.memory.items()
        if not memory.frozen
    ]
    return found
