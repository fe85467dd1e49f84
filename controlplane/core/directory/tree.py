"""The prefix tree: chunks by key, linked to their parents, with the nodes that hold them.

Owns which copies exist, and which keys changed since somebody last asked (`take_changes`). Knows nothing of value,
time or the switch beyond the one bit `served`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from controlplane.core.directory.records import AddOutcome, Chunk, ChunkFacts
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.limits import PREFIX_CHUNKS_MAX
from kvproto.twins import TWIN_CODES, twin_key


class UnknownKeyError(LookupError):
    """No chunk of the directory has this key, or these first digits."""


class AmbiguousKeyError(LookupError):
    """Several keys begin with these digits."""


class Directory:
    """All chunks that some node holds or the switch serves.

    A chunk stays while it is available; its place in the tree (who its children are) is remembered while it has
    children, so that prefixes join up again in whatever order nodes announce them.
    """

    def __init__(self, apart: Callable[[str, str], bool] = lambda one, other: False) -> None:
        """`apart(namespace, other)`: whether not the same nodes may have both."""
        self._apart = apart
        self._left: dict[ChunkKey, set[str]] = {}
        """Namespaces that keys were known under, since somebody last asked (`take_left`)."""
        self._chunks: dict[ChunkKey, Chunk] = {}
        self._by_node: dict[NodeIndex, set[ChunkKey]] = {}
        self._on_disk: dict[NodeIndex, set[ChunkKey]] = {}
        self._orphans: dict[ChunkKey, set[ChunkKey]] = {}
        """Children of keys that are not in the directory."""
        self._dissents: dict[NodeIndex, set[ChunkKey]] = {}
        self._unconfirmed: dict[NodeIndex, set[ChunkKey]] = {}
        self._unconfirmed_on_disk: dict[NodeIndex, set[ChunkKey]] = {}
        self._changed: set[ChunkKey] = set()
        self._watchers: list[Callable[[ChunkKey, bool], None]] = []
        self._last_copies: Counter[NodeIndex] = Counter()
        """Chunks that only this node has, in its pool or on its disk."""
        self.copies = 0
        """In hosts' pools, of all chunks together."""
        self.size_bytes = 0
        """Of distinct chunks."""

    # -- reading

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Chunk]:
        """What changes meanwhile may or may not be told."""
        return iter(tuple(self._chunks.values()))

    def get(self, key: ChunkKey) -> Chunk | None:
        """The chunk of this key; None if nobody has it."""
        return self._chunks.get(key)

    def count_held_by(self, node: NodeIndex) -> int:
        """Chunks in the node's pool."""
        return len(self._by_node.get(node, ()))

    def count_on_disk_of(self, node: NodeIndex) -> int:
        """Chunks on the node's disk."""
        return len(self._on_disk.get(node, ()))

    def count_last_copies(self, node: NodeIndex) -> int:
        """How many chunks no other host would have, in its pool or on its disk."""
        return self._last_copies[node]

    def last_copies(self, node: NodeIndex) -> list[ChunkKey]:
        """Keys that no other host would have, in its pool or on its disk, ancestors first; no twins."""
        theirs = self._by_node.get(node, set()) | self._on_disk.get(node, set())
        keys = [key for key in theirs if not (self._chunks[key].holders | self._chunks[key].disk_holders) - {node}]
        keys = [key for key in keys if not self._chunks[key].facts.is_twin]
        return sorted(keys, key=lambda key: (self._chunks[key].facts.position, key))

    def crossing(self, key: ChunkKey) -> ChunkKey:
        """What readers ask for to have a chunk: its twin, the smallest that some node's pool has, or the chunk."""
        for code in reversed(TWIN_CODES):
            twin = self._chunks.get(twin_key(key, code))
            if twin is not None and (twin.holders or twin.served):
                return twin.key
        return key

    def children(self, key: ChunkKey) -> frozenset[ChunkKey]:
        """Keys of the chunks that hang on this one, whether it is here or not."""
        chunk = self._chunks.get(key)
        return frozenset(chunk.children if chunk else self._orphans.get(key, ()))

    def prefix(self, key: ChunkKey) -> list[ChunkKey]:
        """Keys from the first known ancestor to `key`. Raises UnknownKeyError if the directory lacks `key` itself."""
        if key not in self._chunks:
            raise UnknownKeyError(f"no chunk {key.hex()} in the pool")
        path: list[ChunkKey] = []
        at: ChunkKey | None = key
        while at is not None and at in self._chunks and len(path) < PREFIX_CHUNKS_MAX:
            path.append(at)
            at = self._chunks[at].facts.parent
        path.reverse()
        return path

    def is_rooted(self, key: ChunkKey) -> bool:
        """Every chunk from the root to `key` is available: without its ancestors a chunk is of no use."""
        at: ChunkKey | None = key
        for _ in range(PREFIX_CHUNKS_MAX):
            if at is None:
                return True
            chunk = self._chunks.get(at)
            if chunk is None or not chunk.available:
                return False
            at = chunk.facts.parent
        return False

    def subtree(self, key: ChunkKey) -> list[ChunkKey]:
        """`key` and all below it, parents before children. Raises UnknownKeyError."""
        if key not in self._chunks:
            raise UnknownKeyError(f"no chunk {key.hex()} in the pool")
        found = [key]
        for at in found:
            chunk = self._chunks.get(at)
            if chunk is not None:
                found.extend(sorted(chunk.children))
        return found

    def find(self, hex_digits: str) -> ChunkKey:
        """The one key that begins with these digits.

        Raises UnknownKeyError or AmbiguousKeyError, each with one line for a person.
        """
        digits = hex_digits.strip().lower()
        if not digits or len(digits) > 32 or any(digit not in "0123456789abcdef" for digit in digits):
            raise UnknownKeyError(
                f"'{hex_digits}' is not a chunk key: give up to 32 hexadecimal digits, as `kvcast ls` shows"
            )
        matches = [key for key in self._chunks if key.hex().startswith(digits)]
        if not matches:
            raise UnknownKeyError(f"no chunk of the pool begins with {digits}")
        if len(matches) > 1:
            raise AmbiguousKeyError(f"{len(matches)} chunks begin with {digits}: give more digits")
        return matches[0]

    # -- changing

    def add_copy(self, node: NodeIndex, facts: ChunkFacts) -> AddOutcome:
        """A node says that it holds this chunk."""
        self._unconfirmed.get(node, set()).discard(facts.key)
        chunk = self._chunks.get(facts.key)
        if chunk is None:
            if self._closes_cycle(facts):
                return AddOutcome.CYCLE
            self._hold(self._insert(facts), node)
            return AddOutcome.NEW_CHUNK
        if self._differ(chunk.facts, facts):
            if chunk.dissenters.get(node) == facts:
                return AddOutcome.CONFLICT
            if chunk.holders == {node} and not self._closes_cycle(facts):
                # The only holder replaced its copy; nobody else is contradicted.
                self._replace_facts(chunk, facts)
                return AddOutcome.NEW_COPY
            if node in chunk.holders:
                self._hold(chunk, node, holds=False)
            self._leave_dissent(chunk, node)
            chunk.dissenters[node] = facts
            self._dissents.setdefault(node, set()).add(facts.key)
            self._note(facts.key)
            return AddOutcome.CONFLICT
        if node in chunk.holders:
            return AddOutcome.KNOWN
        self._leave_dissent(chunk, node)
        self._hold(chunk, node)
        return AddOutcome.NEW_COPY

    def add_disk_copy(self, node: NodeIndex, facts: ChunkFacts) -> AddOutcome:
        """A node says that it has this chunk on disk. A copy with other bytes than the directory's is not offered."""
        self._unconfirmed_on_disk.get(node, set()).discard(facts.key)
        chunk = self._chunks.get(facts.key)
        outcome = AddOutcome.NEW_COPY
        if chunk is None and self._closes_cycle(facts):
            return AddOutcome.CYCLE
        if chunk is None:
            chunk, outcome = self._insert(facts), AddOutcome.NEW_CHUNK
        elif self._differ(chunk.facts, facts):
            self.remove_disk_copy(node, facts.key)
            return AddOutcome.CONFLICT
        elif node in chunk.disk_holders:
            return AddOutcome.KNOWN
        self._hold(chunk, node, on_disk=True)
        return outcome

    def remove_disk_copy(self, node: NodeIndex, key: ChunkKey) -> bool:
        """A node no longer has this chunk on disk. True if it had."""
        chunk = self._chunks.get(key)
        if chunk is None or node not in chunk.disk_holders:
            return False
        self._hold(chunk, node, on_disk=True, holds=False)
        self._drop_unless_available(chunk)
        return True

    def remove_copy(self, node: NodeIndex, key: ChunkKey) -> bool:
        """A node no longer holds this chunk, or its copy is not to be trusted. True if it was a holder."""
        chunk = self._chunks.get(key)
        if chunk is None or self._leave_dissent(chunk, node) or node not in chunk.holders:
            return False
        self._hold(chunk, node, holds=False)
        self._drop_unless_available(chunk)
        return True

    def remove_node(self, node: NodeIndex) -> list[ChunkKey]:
        """Forget every copy of a node; returns the keys it held in its pool."""
        for key in list(self._dissents.get(node, ())):
            self._leave_dissent(self._chunks[key], node)
        held = sorted(self._by_node.get(node, ()))
        for key in held:
            self.remove_copy(node, key)
        for key in sorted(self._on_disk.get(node, ())):
            self.remove_disk_copy(node, key)
        self._dissents.pop(node, None)
        self._by_node.pop(node, None)
        self._on_disk.pop(node, None)
        self._unconfirmed.pop(node, None)
        self._unconfirmed_on_disk.pop(node, None)
        return held

    def begin_snapshot(self, node: NodeIndex) -> None:
        """The node is about to name all it holds; what it does not name is gone at `end_snapshot`."""
        self._unconfirmed[node] = self._by_node.get(node, set()) | self._dissents.get(node, set())
        self._unconfirmed_on_disk[node] = set(self._on_disk.get(node, ()))

    def end_snapshot(self, node: NodeIndex) -> list[ChunkKey]:
        """Drop the copies that the node did not confirm; returns the keys of those in its pool."""
        for key in sorted(self._unconfirmed_on_disk.pop(node, ())):
            self.remove_disk_copy(node, key)
        stale = sorted(self._unconfirmed.pop(node, ()))
        for key in stale:
            self.remove_copy(node, key)
        return stale

    def set_served(self, key: ChunkKey, served: bool) -> None:
        """The switch began or ceased to serve a chunk. Ignored for a key that is not here."""
        chunk = self._chunks.get(key)
        if chunk is None or chunk.served == served:
            return
        chunk.served = served
        self._note(key)
        self._drop_unless_available(chunk)

    def set_pinned(self, keys: Iterable[ChunkKey], pinned: bool) -> list[ChunkKey]:
        """Returns the keys whose state changed."""
        changed = []
        for key in keys:
            chunk = self._chunks.get(key)
            if chunk is not None and chunk.pinned != pinned:
                chunk.pinned = pinned
                self._note(key)
                changed.append(key)
        return changed

    def touch(self, key: ChunkKey) -> None:
        """Mark for publication: something that is published with the chunk changed elsewhere (its value)."""
        if key in self._chunks:
            self._note(key)

    def take_changes(self) -> tuple[list[Chunk], list[ChunkKey]]:
        """Chunks new or changed, and keys gone, since the last call."""
        keys, self._changed = self._changed, set()
        changed = [chunk for key in keys if (chunk := self._chunks.get(key)) is not None]
        changed.sort(key=lambda chunk: (chunk.facts.position, chunk.key))
        return changed, sorted(key for key in keys if key not in self._chunks)

    @property
    def changes_wait(self) -> bool:
        """Whether `take_changes` has something to return."""
        return bool(self._changed)

    def take_left(self) -> dict[ChunkKey, set[str]]:
        """Keys that are not known any more under namespaces that they were known under, since the last call."""
        left, self._left = self._left, {}
        return left

    def watch(self, changed: Callable[[ChunkKey, bool], None]) -> None:
        """Call `changed(key, is_new_or_lost)` whenever something about a chunk is different."""
        self._watchers.append(changed)

    # -- inside

    def _note(self, key: ChunkKey, is_new_or_lost: bool = False) -> None:
        self._changed.add(key)
        for watcher in self._watchers:
            watcher(key, is_new_or_lost)

    def _closes_cycle(self, facts: ChunkFacts) -> bool:
        """The chunk's parent hangs on the chunk itself. That takes children: without them nothing is looked at."""
        if not self.children(facts.key):
            return False
        at = facts.parent
        while at is not None and at != facts.key:
            above = self._chunks.get(at)
            at = None if above is None else above.facts.parent
        return at is not None

    def _insert(self, facts: ChunkFacts) -> Chunk:
        chunk = Chunk(facts)
        chunk.children = self._orphans.pop(facts.key, set())
        self._chunks[facts.key] = chunk
        self._link(facts)
        self.size_bytes += facts.size_bytes
        self._note(facts.key, is_new_or_lost=True)
        return chunk

    def _link(self, facts: ChunkFacts) -> None:
        if facts.parent is None:
            return
        parent = self._chunks.get(facts.parent)
        (parent.children if parent else self._orphans.setdefault(facts.parent, set())).add(facts.key)

    def _unlink(self, facts: ChunkFacts) -> None:
        if facts.parent is None:
            return
        parent = self._chunks.get(facts.parent)
        siblings = parent.children if parent else self._orphans.get(facts.parent, set())
        siblings.discard(facts.key)
        if not siblings:
            self._orphans.pop(facts.parent, None)

    def _differ(self, known: ChunkFacts, facts: ChunkFacts) -> bool:
        """Whether they are not of the same copy."""
        same = (known.size_bytes, known.digest) == (facts.size_bytes, facts.digest)
        return not same or self._apart(known.namespace, facts.namespace)

    def _leave_dissent(self, chunk: Chunk, node: NodeIndex) -> bool:
        """The node's other bytes are gone, or no longer other. True if it had any."""
        facts = chunk.dissenters.pop(node, None)
        if facts is None:
            return False
        self._dissents[node].discard(chunk.key)
        self._left.setdefault(chunk.key, set()).add(facts.namespace)
        self._note(chunk.key)
        return True

    def _replace_facts(self, chunk: Chunk, facts: ChunkFacts) -> None:
        self._left.setdefault(chunk.key, set()).add(chunk.facts.namespace)
        self._unlink(chunk.facts)
        self.size_bytes += facts.size_bytes - chunk.facts.size_bytes
        chunk.facts = facts
        self._link(facts)
        self._note(facts.key)

    def _hold(self, chunk: Chunk, node: NodeIndex, *, on_disk: bool = False, holds: bool = True) -> None:
        """A node has a copy from now on, or (not `holds`) has it no longer."""
        before = _only_host(chunk)
        holders, keys = (chunk.disk_holders, self._on_disk) if on_disk else (chunk.holders, self._by_node)
        if holds:
            holders.add(node)
            keys.setdefault(node, set()).add(chunk.key)
        else:
            holders.discard(node)
            keys[node].discard(chunk.key)
        if not on_disk:
            self.copies += 1 if holds else -1
        for host, change in ((before, -1), (_only_host(chunk), 1)):
            if host is not None:
                self._last_copies[host] += change
        self._note(chunk.key)

    def _drop_unless_available(self, chunk: Chunk) -> None:
        """A chunk that lost its last copy takes up a dissenter's bytes, or goes."""
        if chunk.available:
            return
        for node in [one for one, facts in chunk.dissenters.items() if self._closes_cycle(facts)]:
            self._leave_dissent(chunk, node)
        if chunk.dissenters:
            node, facts = next(iter(chunk.dissenters.items()))
            self._leave_dissent(chunk, node)
            self._replace_facts(chunk, facts)
            self._hold(chunk, node)
            for other, theirs in list(chunk.dissenters.items()):
                if not self._differ(facts, theirs):
                    self._leave_dissent(chunk, other)
                    self._hold(chunk, other)
            return
        del self._chunks[chunk.key]
        self._left.setdefault(chunk.key, set()).add(chunk.facts.namespace)
        self._unlink(chunk.facts)
        if chunk.children:
            self._orphans[chunk.key] = chunk.children
        self.size_bytes -= chunk.facts.size_bytes
        self._note(chunk.key, is_new_or_lost=True)


def _only_host(chunk: Chunk) -> NodeIndex | None:
    """The host that has the only copies of a chunk; None: there are several, or none."""
    hosts = chunk.holders | chunk.disk_holders
    return next(iter(hosts)) if len(hosts) == 1 else None
