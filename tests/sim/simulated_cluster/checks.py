"""What must hold in a cluster after any simulation, once nothing goes wrong any more. Checkers look at outcomes."""

from collections.abc import Iterator, Sequence

from hostagent.core.chunk_entry import ChunkEntry
from kvchunk.ids import ChunkKey
from kvproto.limits import MS
from tests.sim.checks import nothing_left
from tests.sim.simulated_cluster.cluster import ClusterMember, SimulatedCluster
from tests.sim.simulated_cluster.controller import Role, SimulatedController

SHOWN_MAX = 4
"""Lines of one kind."""


def violations(cluster: SimulatedCluster, uncertain: frozenset[ChunkKey]) -> list[str]:
    """One line for each thing that is not as it must be. `uncertain`: chunks that nobody can say who should have."""
    found = [line for one in cluster.members for line in _of_member(one)]
    found += _leaderships(cluster.roles)
    leader = cluster.leader
    if leader is None:
        return [*found, "nobody leads"]
    if len([one for one in cluster.controllers if one.leader_epoch()]) > 1:
        found.append("two controllers lead")
    found += [f"agents would not take {count} of kind {what}" for what, count in leader.refused.items()]
    found += _nothing_left_at(leader)
    found += _directory(cluster, leader, uncertain)
    return found


def _of_member(one: ClusterMember) -> Iterator[str]:
    one.engine.end()
    name = one.node.name
    yield from one.engine.problems[:SHOWN_MAX]
    yield from (f"{name}: {problem}" for problem in one.link.problems[:SHOWN_MAX])
    for epoch, heard in one.link.epochs:
        if epoch < heard:
            yield f"{name}: took a task of epoch {epoch} after it had heard of {heard}"
    if one.node.dead:
        yield f"{name}: is dead"
        return
    if not one.link.is_attached:
        yield f"{name}: is not attached, {one.link.address} is asked"
    yield from nothing_left(one.node)
    core = one.node.core
    if core.claims:
        yield f"{name}: {core.claims.claims_count} claims are left"
    if core.fetches.look_ups.under_way_count:
        yield f"{name}: {core.fetches.look_ups.under_way_count} look-ups are left"
    if core.directory.has_stale:
        yield f"{name}: still knows what was before the controller's restart"


def _leaderships(roles: Sequence[Role]) -> Iterator[str]:
    """No epoch twice, and nobody leads while another one may believe that it does."""
    owners: dict[int, str] = {}
    beliefs: dict[str, Role] = {}
    for role in roles:
        if role.epoch and owners.setdefault(role.epoch, role.controller) != role.controller:
            yield f"epoch {role.epoch} is {owners[role.epoch]}'s and {role.controller}'s"
        for name, other in beliefs.items():
            if role.epoch and name != role.controller and other.until_ns > role.at_ns:
                yield f"{role.controller} leads at {role.at_ns / MS:.0f} ms, {name} until {other.until_ns / MS:.0f} ms"
            if role.epoch and other.epoch > role.epoch:
                yield f"{role.controller} leads under {role.epoch} after {name} under {other.epoch}"
        beliefs[role.controller] = role


def _nothing_left_at(leader: SimulatedController) -> Iterator[str]:
    core = leader.core
    if core.claims.claims_count:
        yield f"{leader.name}: {core.claims.claims_count} claims are left"
    if len(core.tasks):
        yield f"{leader.name}: {len(core.tasks)} tasks are left"
    if core.directory.is_behind or core.publication.is_behind:
        yield f"{leader.name}: the directory is behind"


def _directory(cluster: SimulatedCluster, leader: SimulatedController, uncertain: frozenset[ChunkKey]) -> Iterator[str]:
    """The controller lists what nodes have; agents know it, each as much as it is told of."""
    core = leader.core
    names = {node.index: node.facts.name for node in core.nodes}
    held: dict[ChunkKey, set[str]] = {}
    for one in cluster.members:
        for chunk in one.node.core.pool.ready_chunks():
            if chunk.key not in uncertain:
                held.setdefault(chunk.key, set()).add(one.node.name)
    listed = {
        chunk.facts.key: {names[index] for index in chunk.holders}
        for chunk in core.directory
        if chunk.facts.key not in uncertain
    }
    yield from _differences(leader.name, listed, held)
    spaces = {key: document.namespace for document in cluster.documents for key in document.keys}
    for one in cluster.members:
        node, look_ups = one.node, one.node.core.fetches.look_ups
        visible = {key: who for key, who in listed.items() if spaces[key].startswith(one.pattern)}
        known = {
            key: _named(node.core.directory.node, entry)
            for key, entry in node.core.directory.entries().items()
            if key not in uncertain
        }
        if not look_ups.is_partial:
            yield from _differences(node.name, known, visible)
            continue
        yield from _differences(node.name, known, {key: visible.get(key, set()) for key in known})
        yield from (f"{node.name}: {key.hex()} is nowhere, it says" for key in look_ups.absent if key in visible)
        if len(known) > look_ups.rows_max:
            yield f"{node.name}: {len(known)} rows, {look_ups.rows_max} at most"
        rows = core.publication.following.rows_of(core.nodes.named(node.name).session)
        kept = set(map(core.directory.table.key, rows))
        # Of its own copies it hears when they change.
        own = {chunk.key for chunk in node.core.pool.ready_chunks()}
        forgotten = kept - known.keys() - look_ups.absent.keys() - own - uncertain
        if forgotten:
            yield f"{node.name}: {leader.name} keeps {len(forgotten)} chunks for it of which it knows nothing"


def _named(node_of, entry: ChunkEntry) -> set[str]:
    return {node.name if (node := node_of(number)) is not None else f"node {number}" for number in entry.holders}


def _differences(who: str, said: dict[ChunkKey, set[str]], true: dict[ChunkKey, set[str]]) -> list[str]:
    found = [
        f"{who}: {key.hex()} is at {sorted(said.get(key, ()))}, it says; in truth at {sorted(true.get(key, ()))}"
        for key in said.keys() | true.keys()
        if said.get(key, set()) != true.get(key, set())
    ]
    return sorted(found)[:SHOWN_MAX]
