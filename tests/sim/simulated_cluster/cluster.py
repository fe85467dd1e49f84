"""A cluster as it ships, by the cores of controllers and agents: a pair of controllers, groups of nodes behind switches
of their own, and engines that ask for each other's prompts.

The product has no domains of several switches yet: a group is a rack of the network, with a namespace of its own. All
data are read reliably, from rack to rack through a shaped core.
"""

from dataclasses import dataclass, field

from controlplane.core.nodes import Graces
from controlplane.core.options import CoreOptions, FabricParameters
from controlplane.core.switch.entries import FabricEntry
from hostagent import limits
from hostagent.controller.convert import interests_of
from kvchunk.ids import ChunkKey
from kvproto import __version__
from kvproto.ids import Address, Member, NodeId
from kvproto.integrity import Integrity, code_of
from kvproto.limits import MS
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc.versions import PROTOCOL
from kvproto.session.parameters import ReaderParameters
from kvproto.wire.data import Fabric
from kvsim.chance import Chance
from kvsim.engine import Engine
from kvsim.link import CLEAN, Faults, Link
from kvsim.node import Node, Place, Scheduling
from kvsim.relays import RelayWay, endpoint_of
from kvsim.storage import Equipment
from kvsim.switch import SwitchModel
from kvsim.world import Core as Racks
from tests.sim.simulated_cluster.controller import Role, SimulatedController
from tests.sim.simulated_cluster.inference import Document, InferenceEngine
from tests.sim.simulated_cluster.leases import WALL_MS, SimulatedLeaseStore
from tests.sim.simulated_cluster.link import AgentLink

SEGMENT_BYTES = 4096
LEASE_NS = 3000 * MS
"""As controllers have it where nobody says otherwise."""
FORBIDDEN = "forbidden/m"
"""A namespace of which no node may have chunks."""


@dataclass(frozen=True, slots=True)
class ClusterSetting:
    """One simulation."""

    groups: int = 4
    nodes_of_group: int = 8
    documents_of_group: int = 4
    chunks_of_document: int = 3
    segments: int = 16
    pool_chunks: int = 24
    replica_rows: int = 0
    """Bound of what followers know; 0: all agents are told of everything."""
    whole_share: int = 4
    """One of so many nodes is told of everything all the same, and uses all namespaces."""
    publish_ns: int = 5 * MS
    """Changes of the directory wait so long for others: with many agents, longer makes a run cheaper."""
    etcd: bool = True
    """The lease lies in etcd; otherwise in Kubernetes."""
    keeps_pools: bool = True
    relay_share: float | None = None
    rate_bytes_per_s: float = 125e6
    core_rate_bytes_per_s: float = 500e6
    faults: Faults = CLEAN
    scheduling: Scheduling = field(default_factory=lambda: Scheduling(stall_probability=0.0005))
    seed: int = 1


@dataclass(slots=True)
class ClusterMember:
    """One node of the cluster: its host, its stream, its engine."""

    group: int
    node: Node
    link: AgentLink
    engine: InferenceEngine
    downlink: Link
    pattern: str
    """Namespaces that its engine uses begin so; empty: all."""
    starts: int = 1


class SimulatedCluster:
    """Builds it, with everybody attached a moment later."""

    def __init__(self, setting: ClusterSetting) -> None:
        self.setting = setting
        self.engine = Engine()
        self.chance = Chance(setting.seed)
        self.roles: list[Role] = []
        self.controllers = self._controllers()
        self._racks = self._network()
        self._relay_ways: dict[str, RelayWay] = {}
        self.documents = [
            self._document(group, index)
            for group in range(setting.groups)
            for index in range(setting.documents_of_group)
        ]
        self.members = [
            self._member(group, index) for group in range(setting.groups) for index in range(setting.nodes_of_group)
        ]
        directory = {NodeId(one.node.name): one.node.address for one in self.members}
        for one in self.members:
            one.node.directory |= directory
            one.link.start()
            one.engine.connect()

    def _controllers(self) -> list[SimulatedController]:
        store = SimulatedLeaseStore(LEASE_NS, ends_by_itself=self.setting.etcd)
        entry = FabricEntry(bytes(6), bytes((239, 75, 0, 1)), bytes(6), bytes((10, 75, 255, 254)), 10, 10**7, 10**6, 64)
        options = CoreOptions(
            FabricParameters(entry, qkey=1, segment_bytes=SEGMENT_BYTES),
            Graces(1000 * MS, 2000 * MS, 60_000 * MS),
            incarnation=0,
            with_switch=False,
            silence_ms=LEASE_NS // MS,
            publish_ns=self.setting.publish_ns,
            namespaces={FORBIDDEN.replace("/m", "/*"): ("nobody",)},
        )
        made = [
            SimulatedController(
                f"controller-{index}", self.engine, store, options, Fabric(), self.chance.fork(f"c {index}"), self.roles
            )
            for index in range(2)
        ]
        for one in made:
            one.others = [other for other in made if other is not one]
            one.start()
        return made

    def _network(self) -> Racks:
        setting = self.setting
        self.switches = [SwitchModel(self.engine, 1, 10**9, SEGMENT_BYTES, plain=True) for _ in range(setting.groups)]
        ways = [
            Link(setting.core_rate_bytes_per_s, MS // 20, 20 * MS, self.chance.fork(f"core {group}"))
            for group in range(setting.groups)
        ]
        racks = Racks(self.engine, ways, self.switches)
        for switch in self.switches:
            switch.uplink = racks
        return racks

    def _document(self, group: int, index: int) -> Document:
        chance = self.chance.fork(f"document {group} {index}")
        keys = tuple(
            ChunkKey(chance.bits().to_bytes(8, "big") + chance.bits().to_bytes(8, "big"))
            for _ in range(self.setting.chunks_of_document)
        )
        return Document(keys, f"g{group}/m")

    def _member(self, group: int, index: int) -> ClusterMember:
        setting, name = self.setting, f"n{group}-{index}"
        chance = self.chance.fork(name)
        is_whole = not setting.replica_rows or index % setting.whole_share == setting.whole_share - 1
        chunk_bytes = setting.segments * SEGMENT_BYTES
        equipment = Equipment(
            setting.pool_chunks * chunk_bytes,
            keeps_pool=setting.keeps_pools,
            chunk_bytes=chunk_bytes,
            replica_bytes=0 if is_whole else setting.replica_rows * limits.REPLICA_ROW_BYTES,
            namespaces={} if is_whole else {"tenant": f"g{group}"},
            relay_share=setting.relay_share,
        )
        up, down = (
            Link(setting.rate_bytes_per_s, MS // 20, 20 * MS, chance.fork(way), setting.faults)
            for way in ("up", "down")
        )
        link = AgentLink(self.engine, self.controllers, lambda: self._hello(made), chance.fork("link"))
        own = "" if is_whole else f"g{group}"
        inference = InferenceEngine(
            self.engine, name, "" if is_whole else "tenant", own, setting.segments, SEGMENT_BYTES, chance.fork("engine")
        )
        address = Address(0x0A4B0001 + (group << 8) + index)
        node = Node(
            self.engine,
            Place(NodeId(name), address, Member(index), self.switches[group], up),
            ReaderParameters(None, SEGMENT_BYTES, 1024, 10**10, None, False),
            setting.scheduling,
            chance,
            equipment,
            None if setting.relay_share is None else self._relay_ways,
            {**link.carriers(), **inference.carriers()},
        )
        link.host = inference.node = node
        self.switches[group].attach(Member(index), address, down, node)
        self._racks.racks[address] = group
        made = ClusterMember(group, node, link, inference, down, own and f"{own}/")
        return made

    def _hello(self, one: ClusterMember) -> rpc.Hello:
        node, setting = one.node, self.setting
        return rpc.Hello(
            node=node.name,
            incarnation=WALL_MS + one.starts,
            data_ip=node.address.to_bytes(4, "big"),
            data_mac=b"\2\x4b" + node.address.to_bytes(4, "big"),
            read_endpoint=endpoint_of(node.address),
            control_port=4793,
            pool_bytes=setting.pool_chunks * setting.segments * SEGMENT_BYTES,
            segment_bytes=[SEGMENT_BYTES],
            transports=[rpc.TRANSPORT_SOCKETS],
            version=__version__,
            integrities=[rpc.Integrity.ValueType(code_of(each)) for each in Integrity],
            protocol=PROTOCOL,
            interests=interests_of(node.core.engines.interests.current),
            takes_columns=True,
            follows=node.core.fetches.look_ups.rows_max > 0,
        )

    # --- what happens to it ------------------------------------------------------------------------------------------

    @property
    def leader(self) -> SimulatedController | None:
        """Who leads now."""
        return next((one for one in self.controllers if one.leader_epoch()), None)

    def kill(self, one: ClusterMember) -> None:
        """An agent's process dies."""
        if not one.node.dead:
            one.node.kill()
            one.link.end()
            one.engine.lost()

    def restart(self, one: ClusterMember) -> None:
        """Another one begins, on what was kept."""
        self.kill(one)
        one.starts += 1
        one.node.restart()
        one.link.start()
        one.engine.connect()

    def run(self, until_ns: int) -> None:
        """Until this time."""
        self.engine.run(until_ns, lambda: False)
