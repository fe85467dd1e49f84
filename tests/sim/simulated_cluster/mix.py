"""A cluster, its load and all that goes wrong in it, from one seed; `story` tells it to whoever has to find out why."""

from collections.abc import Callable
from dataclasses import replace

from kvchunk.ids import ChunkKey
from kvproto.limits import MS
from kvproto.rpc import control_pb2 as rpc
from kvsim.chance import Chance
from kvsim.link import CLEAN, Faults
from tests.sim.simulated_cluster.checks import violations
from tests.sim.simulated_cluster.cluster import FORBIDDEN, ClusterMember, ClusterSetting, SimulatedCluster
from tests.sim.simulated_cluster.controller import SimulatedController

BEGIN_NS = 1000 * MS
"""Everybody is attached by then."""
LOAD_NS = 9_000 * MS
"""Prompts come, and things go wrong, within this time."""
SETTLED_NS = 16_000 * MS
"""After the last fault: deadlines, leases, graces and what is kept of a directory before a restart are over."""
DEADLINE_S = 2.0
BURSTS = 12
"""Prompts come in so many bursts, some milliseconds each: what is announced together is told together."""
REPLACED_NS = 5_000 * MS
"""A leader that is gone, stands still or cannot renew its lease is replaced within this time."""


class ClusterMix:
    """4 groups of 8 nodes, or 16 of 32."""

    def __init__(
        self, seed: int, groups: int, nodes_of_group: int, prompts: int, faults: int, publish_ns: int = 5 * MS
    ) -> None:
        """`prompts`: of each node; `faults`: at most."""
        self._chance = chance = Chance(seed).fork("cluster")
        self.setting = _random_setting(chance, ClusterSetting(groups, nodes_of_group, publish_ns=publish_ns, seed=seed))
        self.cluster = SimulatedCluster(self.setting)
        self.story: list[str] = []
        self._uncertain: set[ChunkKey] = set()
        self._late: list[str] = []
        self._troubled: set[str] = set()
        for one in self.cluster.members:
            for _ in range(prompts):
                self._prompt(one)
        for _ in range(1 + chance.below(faults)):
            self._happening()
        self._controllers_fail()

    def _moment(self) -> int:
        return BEGIN_NS + self._chance.below(LOAD_NS)

    def _at(self, at_ns: int, what: str, action: Callable[[], None]) -> None:
        self.story.append(f"{at_ns / MS:.0f} ms: {what}")
        self.cluster.engine.at(at_ns, action)

    def _prompt(self, one: ClusterMember) -> None:
        chance = self._chance
        may = [document for document in self.cluster.documents if document.namespace.startswith(one.pattern)]
        document = may[min(chance.below(len(may)), chance.below(len(may)))]
        recompute_s = 0.001 * (1 + chance.below(100)) if not chance.below(6) else None
        at_ns = BEGIN_NS + chance.below(BURSTS) * LOAD_NS // BURSTS + chance.below(8 * MS)
        self.cluster.engine.at(at_ns, lambda: one.engine.want(document, DEADLINE_S, recompute_s))

    # --- agents ------------------------------------------------------------------------------------------------------

    def _happening(self) -> None:
        chance, members = self._chance, self.cluster.members
        one, at_ns, lasts_ns = members[chance.below(len(members))], self._moment(), (1 + chance.below(4000)) * MS
        name = one.node.name
        self._troubled.add(name)
        match chance.below(8):
            case 0 | 1:
                self._at(at_ns, f"{name} dies for {lasts_ns / MS:.0f} ms", lambda: self.cluster.kill(one))
                self.cluster.engine.at(at_ns + lasts_ns, lambda: self.cluster.restart(one))
            case 2:
                self._at(at_ns, f"{name} restarts", lambda: self.cluster.restart(one))
            case 3:
                self._at(
                    at_ns, f"{name} hears no controller for {lasts_ns / MS:.0f} ms", lambda: _cut(one, at_ns + lasts_ns)
                )
            case 4:
                self._at(at_ns, f"{name}'s data link is cut for {lasts_ns / MS:.0f} ms", lambda: _link(one, down=True))
                self.cluster.engine.at(at_ns + lasts_ns, lambda: _link(one, down=False))
            case 5:
                lag_ns = (1 + chance.below(50)) * MS
                self._at(at_ns, f"{name} takes {lag_ns / MS:.0f} ms over each message", lambda: _lag(one, lag_ns))
                self.cluster.engine.at(at_ns + lasts_ns, lambda: _lag(one, 0))
            case 6:
                key = self._key()
                self._at(
                    at_ns, f"{name} has a chunk that it may not have", lambda: one.engine.put(key, None, 0, FORBIDDEN)
                )
            case 7:
                self._operator_at(at_ns)

    def _key(self) -> ChunkKey:
        key = ChunkKey(self._chance.bits().to_bytes(8, "big") * 2)
        self._uncertain.add(key)
        return key

    # --- controllers -------------------------------------------------------------------------------------------------

    def _controllers_fail(self) -> None:
        """One after the other, so that one of them may lead."""
        chance, at_ns = self._chance, BEGIN_NS + self._chance.below(1500 * MS)
        count = chance.below(4)
        for _ in range(count):
            lasts_ns = (1 + chance.below(5000)) * MS
            has_store = self._controller_fails(at_ns, lasts_ns)
            if count == 1 and has_store:
                self.cluster.engine.at(at_ns + REPLACED_NS, self._look_for_leader)
            at_ns += chance.below(6000) * MS
            if at_ns + 5000 * MS > BEGIN_NS + LOAD_NS:
                return

    def _look_for_leader(self) -> None:
        leader = self.cluster.leader
        if leader is None:
            self._late.append(f"nobody leads {REPLACED_NS / MS:.0f} ms after the leader failed")
            return
        # Whoever has troubles of its own has other deadlines.
        well = [one for one in self.cluster.members if one.node.name not in self._troubled]
        away = [one.node.name for one in well if not (one.link.is_attached and one.link.address == leader.name)]
        if away:
            self._late.append(f"{leader.name} leads, and {len(away)} agents have not found it: {away[:4]}")

    def _controller_fails(self, at_ns: int, lasts_ns: int) -> bool:
        """Returns whether the other one can take over."""
        engine, chance, shown = self.cluster.engine, self._chance, f"for {lasts_ns / MS:.0f} ms"
        match kind := chance.below(5):
            case 0:
                self._at(at_ns, f"the leader dies {shown}", lambda: self._with_leader(SimulatedController.kill))
            case 1:
                self._at(at_ns, f"the leader ends {shown}", lambda: self._with_leader(SimulatedController.quit))
            case 2:
                self._at(
                    at_ns,
                    f"the leader stands still {shown}",
                    lambda: self._with_leader(SimulatedController.stand_still),
                )
            case 3:
                self._at(
                    at_ns,
                    f"the leader is cut off from the store {shown}",
                    lambda: self._with_leader(lambda one: _cut_store(one, at_ns + lasts_ns)),
                )
            case 4:
                self._at(
                    at_ns,
                    f"the store answers nobody {shown}",
                    lambda: [_cut_store(one, at_ns + lasts_ns) for one in self.cluster.controllers],
                )
        engine.at(at_ns + lasts_ns, self._revive)
        return kind != 4

    def _with_leader(self, action: Callable[[SimulatedController], None]) -> None:
        leader = self.cluster.leader
        if leader is not None:
            action(leader)

    def _revive(self) -> None:
        for one in self.cluster.controllers:
            if not one.alive:
                one.start()
            elif not one.answers:
                one.go_on()

    def _operator_at(self, at_ns: int) -> None:
        chance = self._chance
        document = self.cluster.documents[chance.below(len(self.cluster.documents))]
        key_hex = document.keys[-1].hex()
        member = self.cluster.members[chance.below(len(self.cluster.members))]
        match chance.below(4):
            case 0:
                verb, asked = "evict", rpc.EvictRequest(key_hex=document.keys[0].hex(), hosts=True)
            case 1:
                verb, asked = "warm", rpc.WarmRequest(key_hex=key_hex, nodes=[member.node.name])
            case 2:
                verb, asked = "pin", rpc.PinRequest(key_hex=key_hex)
            case _:
                verb, asked = "drain", rpc.DrainRequest(node=member.node.name)
        self._at(at_ns, f"an operator: {verb}", lambda: self._with_leader(lambda one: one.operate(verb, asked)))

    # --- the end -----------------------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Run it; what is not as it must be."""
        cluster = self.cluster
        cluster.run(BEGIN_NS + LOAD_NS)
        cluster.run(cluster.engine.now_ns + 5_000 * MS)  # the longest fault
        self._revive()
        cluster.run(cluster.engine.now_ns + SETTLED_NS)
        found = self._late + violations(cluster, frozenset(self._uncertain))
        if not any(one.engine.compared_count for one in cluster.members):
            found.append("no byte was compared")
        return found


def _random_setting(chance: Chance, setting: ClusterSetting) -> ClusterSetting:
    ill = not chance.below(4)
    return replace(
        setting,
        replica_rows=(0, 4, 8, 64)[chance.below(4)],
        etcd=bool(chance.below(2)),
        keeps_pools=bool(chance.below(2)),
        relay_share=0.5 if not chance.below(3) else None,
        pool_chunks=12 + chance.below(24),
        faults=Faults(loss=0.01, reordering=0.01) if ill else CLEAN,
    )


def _cut(one: ClusterMember, until_ns: int) -> None:
    one.link.cut_until_ns = max(one.link.cut_until_ns, until_ns)


def _lag(one: ClusterMember, lag_ns: int) -> None:
    one.link.lag_ns = lag_ns


def _link(one: ClusterMember, *, down: bool) -> None:
    one.node.uplink.down = one.downlink.down = down


def _cut_store(one: SimulatedController, until_ns: int) -> None:
    one.store_cut_until_ns = max(one.store_cut_until_ns, until_ns)
