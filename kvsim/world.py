"""A simulated fabric: switches, hosts, one prefix that many readers fetch; and the result."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from hostagent.core import effects
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.directory import NodeEntry
from hostagent.core.forms import is_twin
from hostagent.limits import PROBE_DEADLINE_S
from kvchunk.ids import ChunkKey
from kvclient.messages import Status
from kvproto.fanout import Fanout
from kvproto.ids import Address, Member, NodeId
from kvproto.limits import MS
from kvproto.session.parameters import ReaderParameters
from kvsim.chance import Chance
from kvsim.cold import ColdFaults, SimulatedColdStore
from kvsim.disk import DiskFaults
from kvsim.engine import Engine
from kvsim.link import CLEAN, Faults, Link, Packet
from kvsim.node import Node, Place, Scheduling
from kvsim.racks import RackSwitch
from kvsim.relays import RelayWay, endpoint_of
from kvsim.storage import Equipment, hashed_of, right_contents
from kvsim.switch import INTEREST_OF_PORT, Cached, SwitchModel
from kvsim.twins import TwinTraits

PUBLISH_NS = 20 * MS
"""From what a node announces to what others know."""


COLD_RATE_BYTES_PER_S = 50e6
"""Of a simulated cold store."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One simulation. Rates are of payload-and-headers bytes; readers are numbered from 0."""

    readers: int = 8
    """In all racks together."""
    holders: int = 1
    """In each rack."""
    racks: int = 1
    """Each with a switch of its own; a cast does not leave its rack, except with `tunnels`."""
    tunnels: bool = False
    """Switches cast to each other's racks; holders are in the first rack only."""
    core_rate_bytes_per_s: float = 125_000_000.0
    """Of each rack's way from the others; with `named_racks` of its way to them, too."""
    named_racks: bool = False
    """Nodes say which rack they stand in. Holders are in the first rack only."""
    chunks: int = 16
    segments: int = 256
    segment_bytes: int = 4096
    rate_bytes_per_s: float = 12_500_000.0
    slow: dict[int, float] = field(default_factory=dict)
    """Rates of readers whose link differs, in bytes per second."""
    delay_ns: int = 50_000
    queue_ns: int = 21 * MS
    """256 KiB at 100 Mbit/s."""
    stagger_ns: int = 0
    """Readers start uniformly within this time."""
    skew_ns: int = 2 * MS
    """What "at once" means."""
    cached: bool = False
    """The switch serves all chunks from the beginning."""
    plain: bool = False
    """A switch that knows nothing of kvcast."""
    fanout: Fanout = Fanout.SWITCH
    """MULTICAST: with `plain`, and holders keep interest. RELAY: with `is_known_plain`."""
    unasked_weight: float = 0.1
    is_known_plain: bool = False
    """With `plain`: the controller has no switch, so no node is a member of one, and all is read reliably."""
    faults: Faults = CLEAN
    scheduling: Scheduling = field(default_factory=Scheduling)
    scheduling_of: dict[int, Scheduling] = field(default_factory=dict)
    """Of readers whose hosts differ."""
    ttl_ns: int = 10_000 * MS
    interest_entries: int = 65536
    interest_of_port: int = INTEREST_OF_PORT
    deadline_ns: int = 60_000 * MS
    receive_window: int = 1024
    recompute_s: float | None = None
    """How long computing the prefix takes an engine; None: it does not say, and the gate lets everything through."""
    pool_chunks: int | None = None
    """Room in each node's DRAM; None: for the prefix twice over."""
    disk_chunks: int = 0
    """Room on each node's disk; 0: no disk tier."""
    disk_faults: DiskFaults = field(default_factory=DiskFaults)
    cold_faults: ColdFaults | None = None
    """Of a cold store that all nodes share; None: there is none."""
    in_cold: tuple[int, ...] = ()
    """Chunks that are in the cold store and nowhere else."""
    twins: TwinTraits | None = None
    """Of hosts that may have chunks cross the network in fewer bytes, with `announced`; None: they have no codec."""
    announced: bool = False
    """Nodes announce what they have, and the directory says it to all; otherwise it says what holders began with."""
    on_disk: tuple[int, ...] = ()
    """Chunks that holders have on their disks only."""
    to_compute: bool = False
    """With `announced`: no node has a chunk at the beginning; a workload computes and announces them."""
    proves: bool = True
    """Agents hash reads on their way."""
    relay_share: float = 1.0
    """See `CoreOptions.relay_share`."""
    chooses_way: bool = True
    """See `CoreOptions.chooses_way`."""
    cast_ns: int = 0
    """What the switch needs for a segment that it casts, whatever the links take."""
    know_link: bool = False
    """Agents know the rate of their links."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a simulation; S is the payload of the prefix, B the links' rate."""

    times_s: tuple[float, ...]
    """Per reader from its own start; those that did not deliver count until the end."""
    ratios: tuple[float, ...]
    """The same over S/B."""
    outcomes: tuple[Status | None, ...]
    leading: tuple[int, ...]
    holder_tx: float
    """Bytes on the busiest holder's uplink over S."""
    readers_tx: float
    """Bytes on all readers' uplinks over S."""

    @property
    def mean(self) -> float:
        """Mean ratio."""
        return sum(self.ratios) / len(self.ratios)

    @property
    def worst(self) -> float:
        """Largest ratio."""
        return max(self.ratios)

    def mean_without(self, *readers: int) -> float:
        """Mean ratio of the others."""
        kept = [ratio for index, ratio in enumerate(self.ratios) if index not in readers]
        return sum(kept) / len(kept)


class Core:
    """What joins the racks: one way into each, and one out of it where that has a rate."""

    def __init__(
        self, engine: Engine, ways: Sequence[Link], switches: Sequence[SwitchModel], ways_out: Sequence[Link] = ()
    ) -> None:
        """`ways`, `switches`, `ways_out`: of each rack; those of `switches` may come later."""
        self._engine = engine
        self._ways = ways
        self.ways_out = ways_out
        self._switches = switches
        self.racks: dict[Address, int] = {}

    def rack_of(self, address: Address) -> int | None:
        """The rack of a node."""
        return self.racks.get(address)

    def way(self, rack: int) -> Link:
        """The link from the core into a rack."""
        return self._ways[rack]

    def forward(self, packet: Packet) -> None:
        """Send a packet on to the rack of its destination."""
        rack = self.rack_of(packet.destination) if packet.destination is not None else None
        if rack is None:
            return
        if not self.ways_out:
            self._enter(packet, rack)
            return
        for at in self.ways_out[self.racks[packet.source]].send(packet, self._engine.now_ns):
            self._engine.at(at, lambda: self._enter(packet, rack))

    def _enter(self, packet: Packet, rack: int) -> None:
        switch = self._switches[rack]
        for at in self._ways[rack].send(packet, self._engine.now_ns):
            self._engine.at(at, lambda: switch.receive(packet, None))


class World:
    """Builds a setting and runs it. Holders come first among a rack's members; each holder has every chunk."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.engine = Engine()
        self.chance = Chance(setting.seed)
        self.switches: list[SwitchModel] = []
        core = setting.core_rate_bytes_per_s, setting.delay_ns, setting.queue_ns
        ways, ways_out = (
            [Link(*core, self.chance.fork(f"{name} {rack}")) for rack in range(setting.racks)]
            for name in ("core", "core out")
        )
        self.core = Core(self.engine, ways, self.switches, ways_out if setting.named_racks else ())
        self._relay_ways: dict[str, RelayWay] = {}
        self._build_switches()
        self._members = [1 if setting.tunnels else 0] * setting.racks
        self.keys = [ChunkKey(self._key(index)) for index in range(setting.chunks)]
        self.cold = self._cold_store()
        """Shared by all nodes; None: there is none."""
        step = setting.racks if setting.tunnels or setting.named_racks else 1
        self.holders = [
            self._node(f"holder-{index // step}", index) for index in range(0, setting.holders * setting.racks, step)
        ]
        self.readers = [
            self._node(
                f"reader-{index}",
                index + setting.named_racks,
                setting.slow.get(index),
                setting.scheduling_of.get(index),
            )
            for index in range(setting.readers)
        ]
        for holder in () if setting.to_compute else self.holders:
            self._furnish(holder)
        holding = set() if setting.to_compute else set(range(len(self.holders)))
        self.nodes = [*self.holders, *self.readers]
        self._copies: dict[tuple[ChunkKey, bool], set[int]] = {
            (key, on_disk): set(holding)
            if on_disk == (index in setting.on_disk) and index not in setting.in_cold
            else set()
            for index, key in enumerate(self.keys)
            for on_disk in (False, True)
        }
        """(chunk, on disk or in DRAM): numbers of the nodes that have it, as the directory knows."""
        self._twins: dict[ChunkKey, ChunkEntry] = {}
        """As the directory knows them, by their keys."""
        for node in self.nodes:
            node.directory |= {other.name: other.address for other in self.nodes}
            self.attach(node)
        self.starts = [self._start() for _ in self.readers]
        if setting.cached:
            self._cache_all()

    def _build_switches(self) -> None:
        """One per rack, each with a way to the others."""
        setting = self.setting
        sizes = (setting.interest_entries, setting.ttl_ns, setting.segment_bytes)
        if not setting.tunnels:
            self.switches += [
                SwitchModel(
                    self.engine,
                    *sizes,
                    entries_of_port=setting.interest_of_port,
                    plain=setting.plain,
                    cast_ns=setting.cast_ns,
                )
                for _ in range(setting.racks)
            ]
        else:
            racks = [RackSwitch(self.engine, *sizes, rack, self.core) for rack in range(setting.racks)]
            for switch in racks:
                for rack, other in enumerate(racks):
                    switch.connect(rack, self.core.way(rack), other)
            self.switches += racks
        for each in self.switches:
            each.uplink = self.core

    @property
    def switch(self) -> SwitchModel:
        """The first rack's switch."""
        return self.switches[0]

    def _key(self, index: int) -> bytes:
        chance = self.chance.fork(f"key {index}")
        return chance.bits().to_bytes(8, "big") + chance.bits().to_bytes(8, "big")

    def _start(self) -> int:
        span = self.setting.stagger_ns or self.setting.skew_ns
        return self.chance.below(span)

    def _node(self, name: str, index: int, rate: float | None = None, scheduling: Scheduling | None = None) -> Node:
        setting = self.setting
        rate = rate if rate is not None else setting.rate_bytes_per_s
        rack = index % setting.racks
        member = Member(self._members[rack])
        self._members[rack] += 1
        address = Address(0x0A4B0001 + (rack << 8) + member)
        self.core.racks[address] = rack
        switch = self.switches[rack]
        up, down = (
            Link(rate, setting.delay_ns, setting.queue_ns, self.chance.fork(f"{name} {way}"), setting.faults)
            for way in ("up", "down")
        )
        parameters = ReaderParameters(
            None if setting.is_known_plain else member,
            setting.segment_bytes,
            setting.receive_window,
            setting.ttl_ns,
            int(rate) if setting.know_link else None,
            setting.fanout.keeps,
        )
        node = Node(
            self.engine,
            Place(NodeId(name), address, member, switch, up),
            parameters,
            scheduling if scheduling is not None else setting.scheduling,
            self.chance.fork(name),
            self._equipment(self._rack_name(rack)),
            self._relay_ways if setting.fanout is Fanout.RELAY else None,
        )
        switch.attach(member, address, down, node)
        return node

    def _cache_all(self) -> None:
        """As after a fill by the first holder."""
        for key in self.keys:
            slots = {segment: self.holders[0].data(key, segment) for segment in range(self.setting.segments)}
            self.switch.cache[key] = Cached(self.setting.segments, None, slots)

    def fill(self, index: int, timeout_s: float = 10.0, *, cast_too: bool = True, readers: int = 0) -> None:
        """The controller has the first holder fill a chunk, and has it served when that is complete.

        `cast_too`: the switch casts FILLs that say so; `readers`: how many nodes wait, as far as it knows.
        """
        holder, key = self.holders[0], self.keys[index]
        self.switch.cache[key] = Cached(self.setting.segments, holder.member)
        holder.fill(key, self.setting.segments, timeout_s, cast_too=cast_too, readers=readers)

    def serve(self, index: int) -> None:
        """The controller has the switch serve a chunk whose fill is complete."""
        cached = self.switch.cache.get(self.keys[index])
        if cached is not None and len(cached.slots) == cached.segments:
            cached.filling_member = None

    # --- the directory -----------------------------------------------------------------------------------------------

    def _rack_name(self, rack: int) -> str:
        return f"rack {rack}" if self.setting.named_racks else ""

    def _equipment(self, rack: str = "") -> Equipment:
        setting = self.setting
        chunk_bytes = setting.segments * setting.segment_bytes
        pool_chunks = 2 * setting.chunks if setting.pool_chunks is None else setting.pool_chunks
        return Equipment(
            pool_chunks * chunk_bytes,
            setting.disk_chunks * chunk_bytes,
            disk_faults=setting.disk_faults,
            cold=self.cold,
            twins=setting.twins,
            proves=setting.proves,
            relay_share=setting.relay_share,
            chooses_way=setting.chooses_way,
            rack=rack,
        )

    def _cold_store(self) -> SimulatedColdStore | None:
        """With what is in it from the beginning."""
        setting = self.setting
        if setting.cold_faults is None:
            return None
        store = SimulatedColdStore(self.engine, COLD_RATE_BYTES_PER_S, setting.cold_faults, self.chance.fork("cold"))
        for index in setting.in_cold:
            key, contents = self.keys[index], right_contents(self.keys[index], setting.segments).copy()
            parent = self.keys[index - 1] if index else None
            size_bytes = setting.segments * setting.segment_bytes
            store.objects[key] = (
                ChunkEntry(key, parent, size_bytes, hashed_of(contents, setting.segment_bytes).digest, index, ()),
                contents,
            )
        return store

    def _furnish(self, holder: Node) -> None:
        """A holder has every chunk, in DRAM or on disk."""
        for index, key in enumerate(self.keys):
            if index in self.setting.in_cold:
                continue
            if index in self.setting.on_disk:
                holder.hold_on_disk(key, self.setting.segments, index)
            else:
                holder.hold(key, self.setting.segments, index)

    def attach(self, node: Node) -> None:
        """The controller takes a node in: it learns all nodes, and what they have."""
        if self.setting.announced:
            number = self.nodes.index(node)
            for copies in self._copies.values():
                copies.discard(number)
            node.announced = lambda effect: self._announced(node, effect)
            node.welcomed(number, self.setting.fanout, self.setting.unasked_weight)
        elif self.setting.fanout is not Fanout.SWITCH:
            node.welcomed(self.nodes.index(node), self.setting.fanout, self.setting.unasked_weight)
        node.learn(self.nodes_for(node), self._entries(self.keys))

    def publish(self, node: Node, holders: Sequence[Node]) -> None:
        """The node's replica learns that these have the prefix."""
        numbers = tuple(self.nodes.index(holder) for holder in holders)
        node.learn(chunks=tuple(replace(entry, holders=numbers) for entry in self._entries(self.keys)))

    def restart(self, node: Node) -> None:
        """A node's process begins again; its engine asks again for what it wanted."""
        node.restart()
        self.attach(node)
        if node in self.readers and node.keys and node.answer is None:
            started_ns = self.starts[self.readers.index(node)]
            node.fetch(node.keys, started_ns + self.setting.deadline_ns, self.setting.recompute_s)

    def nodes_for(self, node: Node) -> tuple[NodeEntry, ...]:
        """All nodes, as one of them may use them."""
        return tuple(
            NodeEntry(
                number,
                other.name,
                other.address,
                endpoint_of(other.address) if self.setting.fanout is Fanout.RELAY else other.name,
                None if self.setting.is_known_plain or not self._reaches(node, other) else other.member,
                rack=self._rack_name(self.core.racks[other.address]),
            )
            for number, other in enumerate(self.nodes)
        )

    def _reaches(self, node: Node, other: Node) -> bool:
        """Whether casts come from one to the other."""
        racks = self.core.racks
        return self.setting.tunnels or racks[other.address] == racks[node.address]

    def _entries(self, keys: Iterable[ChunkKey]) -> tuple[ChunkEntry, ...]:
        """What the directory says of chunks."""
        setting = self.setting
        return tuple(
            ChunkEntry(
                key,
                self.keys[self.keys.index(key) - 1] if key != self.keys[0] else None,
                setting.segments * setting.segment_bytes,
                hashed_of(right_contents(key, setting.segments), setting.segment_bytes).digest,
                self.keys.index(key),
                tuple(sorted(self._copies[key, False])),
                served=setting.cached,
                disk_holders=tuple(sorted(self._copies[key, True])),
            )
            for key in keys
        )

    def _announced(self, node: Node, effect: effects.Announce) -> None:
        """A node announces what it has; a moment later all directories list it."""
        number = self.nodes.index(node)
        entries = self._twins_announced(number, effect)
        added = {chunk.key for chunk in effect.added if chunk.key in self.keys}
        removed = {key for key in effect.removed if key in self.keys}
        for key in added:
            self._copies[key, effect.on_disk].add(number)
        for key in removed:
            self._copies[key, effect.on_disk].discard(number)
        # A node no longer has what its snapshot does not name.
        entries += self._entries(self.keys if effect.snapshot_end else sorted(added | removed))
        if entries:
            for other in self.nodes:
                self.engine.at(self.engine.now_ns + PUBLISH_NS, partial(other.learn, (), entries))

    def _twins_announced(self, number: int, effect: effects.Announce) -> tuple[ChunkEntry, ...]:
        """What has changed of them; a twin with another digest than the first is offered to no node."""
        changed = {}
        for chunk in effect.added:
            if is_twin(chunk):
                known = self._twins.get(chunk.key) or ChunkEntry(
                    chunk.key, chunk.parent, chunk.size_bytes, chunk.digest, chunk.position, ()
                )
                if known.digest == chunk.digest:
                    changed[chunk.key] = replace(known, holders=tuple({*known.holders, number}))
        for key in effect.removed:
            if key in self._twins:
                known = self._twins[key]
                changed[key] = replace(known, holders=tuple({*known.holders} - {number}))
        self._twins |= changed
        return tuple(changed.values())

    def begin(self) -> None:
        """Schedule every reader's fetch."""
        for node, start in zip(self.readers, self.starts, strict=True):
            self._request(node, start)

    def _request(self, node: Node, start_ns: int) -> None:
        setting, keys = self.setting, tuple(self.keys)
        deadline_ns = start_ns + setting.deadline_ns
        self.engine.at(start_ns, lambda: node.fetch(keys, deadline_ns, setting.recompute_s))

    def finished(self) -> bool:
        """Whether every living reader has its answer."""
        return all(node.dead or node.answer is not None for node in self.readers)

    def run(self, linger_ns: int = 200 * MS) -> Report:
        """Begin, run until everybody has an answer, then let everything under way settle."""
        self.begin()
        last = max(self.starts) + self.setting.deadline_ns + 2_000 * MS
        self.engine.run(last, self.finished)
        sent = [node.uplink.sent_bytes for node in self.nodes]
        report = self._report(sent)
        self.engine.run(self.engine.now_ns + linger_ns, lambda: False)
        if self.setting.recompute_s is not None:  # the gate's probes outlive fetches, until their own deadline
            until_ns = self.engine.now_ns + int(PROBE_DEADLINE_S * 1e9)
            self.engine.run(until_ns, lambda: all(node.dead or node.core.idle for node in self.nodes))
        return report

    def _report(self, sent: list[int]) -> Report:
        setting = self.setting
        payload = setting.chunks * setting.segments * setting.segment_bytes
        ideal = payload / setting.rate_bytes_per_s
        times, outcomes, leading = [], [], []
        for node, start in zip(self.readers, self.starts, strict=True):
            answer = node.answer
            times.append(((answer.at_ns if answer is not None else self.engine.now_ns) - start) / 1e9)
            outcomes.append(answer.outcome if answer is not None else None)
            leading.append(answer.leading if answer is not None else 0)
        return Report(
            tuple(times),
            tuple(time / ideal for time in times),
            tuple(outcomes),
            tuple(leading),
            max(sent[: len(self.holders)]) / payload,
            sum(sent[len(self.holders) :]) / payload,
        )
