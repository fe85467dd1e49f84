"""What must hold after any simulation, whatever went wrong in it. Checkers look at outcomes, never at rules."""

from kvclient.messages import Status
from kvproto.limits import MS
from kvsim.node import Node
from kvsim.world import World

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
            found += nothing_left(node)
    for switch in world.switches:
        found += [f"interest in {key.hex()} is left: {members:b}" for key, members in switch.interest_left().items()]
    return found


def _answer(world: World, node: Node, start_ns: int) -> list[str]:
    """The right bytes, or a typed miss, before the deadline."""
    answer = node.answer
    if answer is None:
        return [f"{node.name}: no answer"]
    found = []
    if answer.at_ns > start_ns + world.setting.deadline_ns + LATE_NS:
        found.append(f"{node.name}: answer {(answer.at_ns - start_ns) / 1e9:.3f} s after the start")
    if (answer.leading == len(world.keys)) != (answer.outcome is Status.OK):
        found.append(f"{node.name}: {answer.outcome.name} with {answer.leading} chunks")
    found += [f"{node.name}: wrong bytes in {world.keys[place].hex()}" for place in answer.wrong]
    return found


def nothing_left(node: Node) -> list[str]:
    """No fetch, load, task, lease or pin is under way, and no memory of an unfinished chunk is left."""
    found = []
    if not node.core.idle:
        found.append(f"{node.name}: its agent is not idle: {node.core.pool.pins_count} pins")
    if node.core.pool.usage().filling_bytes:
        found.append(f"{node.name}: memory of unfinished chunks is left")
    return found
