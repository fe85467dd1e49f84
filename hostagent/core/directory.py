"""The local replica of the directory: who holds what. Pure; fed by the controller's deltas, asked by fetches.

A replica outlives the controller: with nobody to refresh it, it still answers from its last state. A
restarted controller knows nothing until all agents have announced themselves again, so its first snapshot is not the
whole truth: earlier entries stay in the replica, marked *stale*, until `forget_stale`. A stale holder that has lost the
chunk says so by itself (NAK, ABSENT).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter

from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.replica_table import ReplicaTable
from hostagent.limits import STALE_AT_ONCE
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.holder_load import HolderLoad
from kvpolicy.value import Tier
from kvproto.ids import Address, Member, parse_address


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """Another agent, as the controller knows it."""

    node: int
    name: str
    address: Address
    read_endpoint: str
    member: int | None
    draining: bool = False
    unreached: bool = False
    """Several others cannot reach it on the data network, says the controller."""
    rail_endpoints: tuple[str, ...] = ()
    """Where it is read on its second and further rails."""
    rack: str = ""
    """That it stands in; empty: nobody said so."""

    rail_addresses: tuple[Address | None, ...] = field(init=False, default=())
    """Where casts for it go on these; None: it has no IPv4 there."""

    def __post_init__(self) -> None:
        if self.rail_endpoints:
            object.__setattr__(self, "rail_addresses", tuple(map(_address_in, self.rail_endpoints)))


def _address_in(endpoint: str) -> Address | None:
    """The IPv4 address in an endpoint of reads."""
    try:
        return parse_address(endpoint.rpartition(":")[0])
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class ClaimedChunk:
    """Claims as the controller has them: one chunk of another node."""

    key: ChunkKey
    size_bytes: int
    eta_s: float


@dataclass(frozen=True, slots=True)
class NodeClaims:
    """What changed of another node's claims."""

    node: int
    made: tuple[ClaimedChunk, ...] = ()
    withdrawn: tuple[ChunkKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """One message of changes."""

    sequence: int
    snapshot: bool = False
    snapshot_end: bool = False
    nodes: tuple[NodeEntry, ...] = ()
    nodes_gone: tuple[int, ...] = ()
    chunks: tuple[ChunkEntry, ...] = ()
    chunks_gone: tuple[ChunkKey, ...] = ()
    claims: tuple[NodeClaims, ...] = ()
    """Not kept in the replica: see `hostagent.core.claims`."""
    loads: tuple[tuple[int, HolderLoad], ...] = ()
    """What nodes have queued for their readers."""
    after: int | None = None
    """The sequence of the change before it; None: the one below."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What a delta changed."""

    changed: tuple[ChunkKey, ...] = ()
    """Keys whose entry changed or went."""
    nodes_lost: tuple[str, ...] = ()


class SequenceGapError(Exception):
    """A delta is missing: the stream must be opened again."""


_Numbers = tuple[tuple[int, ...], tuple[int, ...]]
Copies = tuple[_Numbers | None, _Numbers | None]
"""Numbers of the nodes that hold a chunk in DRAM and on disk; and the same from before the controller's restart."""
NO_COPIES: Copies = (None, None)


@dataclass(slots=True)
class _Content:
    nodes: dict[int, NodeEntry] = field(default_factory=dict)
    named: dict[str, NodeEntry] = field(default_factory=dict)
    at: dict[Address, NodeEntry] = field(default_factory=dict)
    reading_at: dict[str, NodeEntry] = field(default_factory=dict)
    """By the endpoint that others read from it at."""
    numbered: dict[int, NodeEntry] = field(default_factory=dict)
    """By member."""
    chunks: ReplicaTable = field(default_factory=ReplicaTable)
    changed: dict[ChunkKey, None] = field(default_factory=dict)
    """While it is staged: keys that may be known otherwise."""

    def enter(self, node: NodeEntry) -> None:
        """A node is known so from now on."""
        self.leave(node.node)
        self.nodes[node.node] = self.named[node.name] = self.at[node.address] = node
        for address in node.rail_addresses:
            if address is not None:
                self.at.setdefault(address, node)
        self.reading_at[node.read_endpoint] = node
        if node.member is not None:
            self.numbered[node.member] = node

    def leave(self, number: int) -> None:
        """A node is gone; another one may have its name or its address by now."""
        node = self.nodes.pop(number, None)
        if node is not None:
            if self.named.get(node.name) is node:
                del self.named[node.name]
            for address in (node.address, *node.rail_addresses):
                if address is not None and self.at.get(address) is node:
                    del self.at[address]
            if self.reading_at.get(node.read_endpoint) is node:
                del self.reading_at[node.read_endpoint]
            if node.member is not None and self.numbered.get(node.member) is node:
                del self.numbered[node.member]


class DirectoryReplica:
    """Lookup by key; every answer is a hint that the network may contradict."""

    def __init__(self, node_name: str) -> None:
        """`node_name`: the replica's own node, whose copies are not among other nodes' copies."""
        self.own_name = node_name
        self._current = _Content()
        self._staged: _Content | None = None
        self._stale: _Content | None = None
        self._stale_keys: Iterator[ChunkKey] = iter(())
        """Of what is stale, those that are still to be forgotten."""
        self._controller: int | None = None
        self._keep_stale = False
        self.let_go: dict[ChunkKey, int] = {}
        """Chunks that the controller may still tell of although this node asked it not to: out of date when it does."""
        self.sequence = 0
        self._sequence_known = False
        self.unreached: set[str] = set()
        """Nodes that cannot be reached, and whose copies do not count therefore. `hostagent.core.paths` writes it."""

    @property
    def chunks_count(self) -> int:
        """Chunks that the replica knows."""
        return len(self._current.chunks)

    @property
    def has_stale(self) -> bool:
        """Whether something is known only from before the controller's restart."""
        return self._stale is not None

    @property
    def rows_count(self) -> int:
        """`chunks_count`, and chunks of a snapshot that is coming."""
        return self.chunks_count + (len(self._staged.chunks) if self._staged is not None else 0)

    def restart(self, controller: int, *, keep: bool = False) -> None:
        """A stream to a controller (its incarnation) is open: a snapshot follows; until then the old entries answer.
        `keep`: and for a while after it, as those of another controller do."""
        self._keep_stale = keep or (self._controller is not None and controller != self._controller)
        self._controller = controller
        self._staged = None
        self._sequence_known = False

    def forget_stale(self, count: int = STALE_AT_ONCE) -> Applied:
        """All agents have had time to announce themselves to the new controller: only its entries count now. So many
        of the others are forgotten; the rest while `has_stale`."""
        stale = self._stale
        if stale is None:
            return Applied(())
        some = tuple(islice(self._stale_keys, count))
        for key in some:
            stale.chunks.pop(key)
        if len(some) == count:
            return Applied(some)
        self._stale = None
        return Applied(some, tuple(name for name in stale.named if name not in self._current.named))

    def apply(self, delta: Delta) -> Applied:
        """Apply a delta. Raises SequenceGapError when an earlier one was lost."""
        if delta.snapshot:
            return self._apply_snapshot(delta)
        if self._staged is not None or (
            self._sequence_known and self.sequence != (delta.sequence - 1 if delta.after is None else delta.after)
        ):
            raise SequenceGapError(f"delta {delta.sequence} after {self.sequence}")
        self.sequence = delta.sequence
        self._sequence_known = True
        lost = tuple(self._current.nodes[node].name for node in delta.nodes_gone if node in self._current.nodes)
        if self.let_go:
            delta = replace(delta, chunks=tuple(one for one in delta.chunks if one.key not in self.let_go))
        _merge(self._current, delta, self._current.chunks)
        if self._stale is not None:
            for key in delta.chunks_gone:
                self._stale.chunks.pop(key)
        return Applied((*(chunk.key for chunk in delta.chunks), *delta.chunks_gone), lost)

    def answered(self, found: Delta, number: int) -> Applied:
        """The controller was asked for these by question `number`, and says how they are; what was let go later is out
        of date."""
        if self.let_go:
            kept = tuple(one for one in found.chunks if self.let_go.get(one.key, -1) < number)
            found = replace(found, chunks=kept)
        for content in (self._current, self._staged):
            if content is not None:
                _merge(content, found, content.chunks)
        return Applied(tuple(chunk.key for chunk in found.chunks))

    def evict(self, count: int, is_in_use: Callable[[ChunkKey], bool]) -> list[ChunkKey]:
        """Forget so many chunks that are worth least, as far as none of them is in use; returns their keys."""
        gone: list[ChunkKey] = []
        while len(gone) < count and (key := self._current.chunks.least(is_in_use)) is not None:
            self._current.chunks.pop(key)
            gone.append(key)
        return gone

    def find(self, key: ChunkKey) -> ChunkEntry | None:
        """The entry of a chunk, if there is one."""
        chunks = self._current.chunks
        entry = chunks.at_hand.get(key) or chunks.get(key)
        if entry is None and self._stale is not None:
            entry = self._stale.chunks.get(key)
        return entry

    def failed(self, key: ChunkKey) -> None:
        """Nothing of a chunk came: its other bytes are asked for next, if there are any."""
        entry = self._current.chunks.get(key)
        if entry is not None and entry.others:
            self._current.chunks.put(entry.preferring(0))

    def node(self, node: int) -> NodeEntry | None:
        """The entry of a node, if there is one."""
        return self._current.nodes.get(node)

    def node_named(self, name: str) -> NodeEntry | None:
        """The node of this name."""
        node = self._current.named.get(name)
        return node if node is not None or self._stale is None else self._stale.named.get(name)

    def rails_of(self, endpoint: str) -> tuple[str, ...]:
        """Where else the node is read that is read here."""
        node = self.node_reading_at(endpoint)
        return () if node is None else node.rail_endpoints

    def node_names(self) -> Iterable[str]:
        """Of all nodes, this one too."""
        return self._current.named.keys()

    def node_at(self, address: Address) -> NodeEntry | None:
        """The node with this address on the data network, on any rail."""
        node = self._current.at.get(address)
        return node if node is not None or self._stale is None else self._stale.at.get(address)

    def node_reading_at(self, endpoint: str) -> NodeEntry | None:
        """The node that others read from there."""
        node = self._current.reading_at.get(endpoint)
        return node if node is not None or self._stale is None else self._stale.reading_at.get(endpoint)

    def member_at(self, address: Address) -> Member | None:
        """The member with this address on the data network."""
        node = self.node_at(address)
        return None if node is None or node.member is None else Member(node.member)

    def address_of(self, member: Member, rail: int = 0) -> Address | None:
        """Where a member is, on this rail."""
        node = self._current.numbered.get(member)
        if node is None and self._stale is not None:
            node = self._stale.numbered.get(member)
        if node is None or not rail:
            return None if node is None else node.address
        return node.rail_addresses[rail - 1] if rail <= len(node.rail_addresses) else None

    @property
    def members(self) -> int:
        """All members, as a bitmap."""
        return sum(1 << member for member in self._current.numbered)

    def holders_elsewhere(self, key: ChunkKey) -> tuple[list[NodeEntry], list[NodeEntry]]:
        """Other nodes that hold a chunk in DRAM, and others that hold it on disk only; stale ones and those that are
        leaving come last."""
        return self.nodes_with(self.copies(key))

    def copies(self, key: ChunkKey) -> Copies:
        """Who holds a chunk, this node too, as the directory has it: the same for most chunks of a prefix."""
        return self.find_with_copies(key)[1]

    def find_with_copies(self, key: ChunkKey) -> tuple[ChunkEntry | None, Copies]:
        """`find`, and `copies`."""
        chunks = self._current.chunks
        entry = chunks.at_hand.get(key) or chunks.get(key)
        stale = None if self._stale is None else self._stale.chunks.get(key)
        return stale if entry is None else entry, (
            None if entry is None else (entry.holders, entry.disk_holders),
            None if stale is None else (stale.holders, stale.disk_holders),
        )

    def nodes_with(self, copies: Copies) -> tuple[list[NodeEntry], list[NodeEntry]]:
        """As `holders_elsewhere`, of a chunk with such copies."""
        in_dram: dict[str, NodeEntry] = {}
        on_disk: dict[str, NodeEntry] = {}
        for content, held in zip((self._current, self._stale), copies, strict=True):
            if content is None or held is None:
                continue
            for numbers, found in zip(held, (in_dram, on_disk), strict=True):
                for number in numbers:
                    node = content.nodes.get(number)
                    if node is not None and node.name != self.own_name and node.name not in self.unreached:
                        found.setdefault(node.name, node)
        only_on_disk = [node for node in on_disk.values() if node.name not in in_dram]
        return sorted(in_dram.values(), key=_is_draining), sorted(only_on_disk, key=_is_draining)

    def tiers_elsewhere(self, key: ChunkKey) -> list[Tier]:
        """Where the next reader on this node could get a chunk if this node had none."""
        entry = self.find(key)
        if entry is None:
            return []
        tiers = [Tier.SWITCH] if entry.served else []
        for numbers, tier in ((entry.holders, Tier.REMOTE_DRAM), (entry.disk_holders, Tier.REMOTE_DISK)):
            for number in numbers:
                node = self._current.nodes.get(number)
                if node is not None and node.name != self.own_name and node.name not in self.unreached:
                    tiers.append(tier)
                    return tiers
        return tiers

    def entries(self) -> Mapping[ChunkKey, ChunkEntry]:
        """Everything known, for figures and tests."""
        chunks = self._current.chunks
        return {key: entry for key in chunks if (entry := chunks.get(key)) is not None}

    def value(self, key: ChunkKey) -> float:
        """What the controller says that a chunk is worth; not a number: nothing."""
        return self._current.chunks.value(key)

    def _apply_snapshot(self, delta: Delta) -> Applied:
        if self._staged is None:
            self._staged = _Content()
            self._current.chunks.begin_naming()
        known = self._current.chunks
        _merge(self._staged, delta, known)
        different = [chunk.key for chunk in delta.chunks if not known.named(chunk)]
        self._staged.changed |= dict.fromkeys((*different, *delta.chunks_gone))
        if not delta.snapshot_end:
            return Applied()
        before, self._current, self._staged = self._current, self._staged, None
        changed, self._current.changed = self._current.changed, {}
        if self._keep_stale:
            # What nobody named is known as before, until it is forgotten.
            self._stale, self._stale_keys = before, iter(before.chunks)
            self._keep_stale = False
        else:
            changed |= dict.fromkeys(known.not_named())
        self.sequence = delta.sequence
        self._sequence_known = True
        names = {node.name for node in self._current.nodes.values()}
        lost = tuple(node.name for node in before.nodes.values() if node.name not in names)
        if self._stale is not None:
            lost = ()
        return Applied(tuple(changed), lost)


_is_draining = attrgetter("draining")


def _as_known(entry: ChunkEntry, known: ChunkEntry | None) -> ChunkEntry:
    """What was asked for first stays so while it is offered: nobody gets before it by being quick after a failover."""
    if known is None or known.digest == entry.digest:
        return entry
    for place, other in enumerate(entry.others):
        if other.digest == known.digest:
            return entry.preferring(place)
    return entry


def _merge(content: _Content, delta: Delta, known: ReplicaTable) -> None:
    for node in delta.nodes:
        content.enter(node)
    for gone in delta.nodes_gone:
        content.leave(gone)
    for chunk in delta.chunks:
        content.chunks.put(_as_known(chunk, known.get(chunk.key)) if chunk.others else chunk)
    for key in delta.chunks_gone:
        content.chunks.pop(key)
