"""Chunks that come by relays: readers of one chunk pass on to each other what they have proven while the rest comes.

Runs the protocol's relay (`kvproto.session.relay`), which decides who is asked for which piece, and has each piece
compared with its leaf as soon as it is here: nothing unproven is passed on. What has no tree of pieces comes as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from hostagent.core import effects
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.directory import NodeEntry
from hostagent.core.events import RelayHeard, RelayReadEnded, RelaysHappened
from hostagent.core.node import Node
from hostagent.pool.chunks import Chunk
from hostagent.tree import LEAF_BYTES, PIECE_BYTES, ROOT_CODE, Hashed, root_of
from kvchunk.ids import ChunkKey
from kvproto.commands import Blame
from kvproto.events import HolderRef
from kvproto.ids import NodeId
from kvproto.integrity import NO_DIGEST
from kvproto.session.choice import Chooser
from kvproto.session.chunk import keeper_rank
from kvproto.session.relay.pieces import pieces_of
from kvproto.session.relay.relay_commands import (
    AbortRun,
    Blamed,
    EndChild,
    GaveUp,
    LeaveParent,
    ReadRun,
    RelayCommand,
    TellChild,
    TellParent,
    Whole,
)
from kvproto.session.relay.relay_node import Relay

PIECES_MIN = 2
Ended = Callable[[ChunkKey, bytes | None, int], None]
"""Takes a chunk that the relay gathers no more: its leaves when it is whole and right, None when it has to come another
way; and how many nodes each read it, if that was chosen."""


def pieces_in(size_bytes: int) -> int:
    """Of a chunk of this size."""
    return -(-size_bytes // PIECE_BYTES)


class Relays:
    """Of one node."""

    def __init__(self, node: Node, ended: Ended, choice: Callable[[], Chooser], reads: Callable[[], int]) -> None:
        """`choice()`, `reads()`: see `Gathering`."""
        self._choice, self._reads = choice, reads
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._directory = node.directory
        self._share, self._rails, self._rack = node.options.relay_share, node.options.rails, node.options.rack
        self._ended = ended
        self.is_way = False
        """Chunks come by relays: it is the fabric's way to fan out."""
        self._alarm = node.alarms.add(self._due)
        self._relay: Relay | None = None
        """None until the transport listens."""
        self.coming: dict[ChunkKey, tuple[Chunk, ChunkEntry]] = {}
        """What comes by relays."""
        self._leaves: dict[ChunkKey, bytes] = {}
        """Of those that are coming, once they are known to be right."""
        self._endpoints: dict[str, str] = {}
        """Of nodes that were keepers, by their names."""

    def listens(self, endpoint: str) -> None:
        """The transport answers peers there from now on. What was coming to another place comes another way."""
        if self._relay is not None:
            self._carry_out(self._relay.leave_all(self._clock.now_ns))
        self._relay = Relay(
            endpoint,
            PIECE_BYTES,
            share=self._share,
            rails=self._rails,
            whole_pieces=self._whole_pieces,
            leaves=lambda key: self._leaves_here(key),
            accepts=self._accepts,
            may_give=lambda peer: self._node_at(peer) is not None,
            choice=self._choice,
            reads=self._reads,
            rack_of=lambda peer: self._rack if peer == endpoint else self._rack_of(self._node_at(peer)),
        )

    # ------------------------------------------------------------------ what is wanted

    def take(self, wanted: Iterable[tuple[Chunk, ChunkEntry, Sequence[HolderRef]]]) -> set[ChunkKey]:
        """Gather those chunks that can come by relays; the others are the caller's."""
        taken: list[tuple[ChunkKey, int, list[str]]] = []
        for chunk, entry, holders in wanted:
            key = entry.key
            if self._relay is None or key in self.coming or not entry.digest.startswith(ROOT_CODE):
                continue
            keepers = self._keepers(key, holders)
            if keepers and entry.size_bytes >= PIECES_MIN * PIECE_BYTES:
                self.coming[key] = chunk, entry
                taken.append((key, pieces_in(entry.size_bytes), keepers))
        if taken and self._relay is not None:
            self._carry_out(self._relay.want(taken, self._clock.now_ns))
        return {key for key, _, _ in taken}

    def _keepers(self, key: ChunkKey, holders: Sequence[HolderRef]) -> list[str]:
        """Where holders answer, those in this rack first; the first one, its keeper, is the same for all of a rack."""
        names = sorted((one.node for one in holders if one.readable), key=lambda name: keeper_rank(key, name))
        nodes = [node for name in names if (node := self._directory.node_named(name)) is not None]
        nodes.sort(key=lambda node: node.rack != self._rack)
        self._endpoints |= {node.name: node.read_endpoint for node in nodes}
        return [node.read_endpoint for node in nodes]

    def holders_changed(self, key: ChunkKey, holders: Sequence[HolderRef]) -> None:
        """Other nodes hold a chunk, as the directory says."""
        if key in self.coming and self._relay is not None:
            self._carry_out(self._relay.offer(key, self._keepers(key, holders), self._clock.now_ns))

    def give_up(self, keys: Iterable[ChunkKey]) -> None:
        """These are wanted no more: nothing writes to their memory from now on."""
        ours = [key for key in keys if key in self.coming]
        if ours and self._relay is not None:
            self._carry_out(self._relay.unwant(ours, self._clock.now_ns))
        for key in ours:
            self._forget(key)
            self._emit(effects.HidePieces(key))

    def left_bytes(self, key: ChunkKey) -> int:
        """Bytes of a chunk that are not here."""
        _, entry = self.coming[key]
        return max(0, entry.size_bytes - self._proven(key).bit_count() * PIECE_BYTES)

    def _proven(self, key: ChunkKey) -> int:
        found = None if self._relay is None else self._relay.proven_pieces(key)
        return 0 if found is None else found[1]

    def lend(self, key: ChunkKey, offset: int, size_bytes: int) -> Chunk | None:
        """A peer reads a range of a chunk that is on its way: it stays pinned until PeerReadEnded. None: not all of it
        is proven."""
        found = self.coming.get(key)
        if found is None or offset + size_bytes > found[1].size_bytes:
            return None
        first = offset // PIECE_BYTES
        part = pieces_of(first, pieces_in(offset + size_bytes) - first)
        if self._proven(key) & part != part:
            return None
        self._pool.pin(found[0])
        return found[0]

    # ------------------------------------------------------------------ what happens

    def happened(self, event: RelaysHappened) -> None:
        """Several of the following."""
        if self._relay is None:
            return
        self._relay.is_held = True
        for one in event.events:
            if isinstance(one, RelayHeard):
                self.heard(one)
            else:
                self.read_ended(one)
        self._relay.is_held = False
        self._due()

    def heard(self, event: RelayHeard) -> None:
        """A link brought messages, or has ended."""
        relay, now_ns = self._relay, self._clock.now_ns
        if relay is None:
            return
        link, messages = event.link, event.messages
        if isinstance(link, str):
            made = relay.parent_lost(link, now_ns) if event.lost else relay.heard_parent(link, messages, now_ns)
        elif event.lost:
            made = relay.child_lost(link, now_ns)
        else:
            made = relay.heard_child(link, messages, now_ns)
        self._carry_out(made)

    def nodes_lost(self, names: Iterable[str]) -> None:
        """These have left, or cannot be reached: nothing more comes from them."""
        lost = [self._endpoints.pop(name) for name in names if name in self._endpoints]
        if lost and self._relay is not None:
            self._carry_out(self._relay.leave_parents(lost, self._clock.now_ns))

    def read_ended(self, event: RelayReadEnded) -> None:
        """A read of pieces is over; it is right when its leaves are the chunk's."""
        if self._relay is None:
            return
        is_right = None
        if event.leaves is not None:
            at = event.first * LEAF_BYTES
            is_right = self._leaves[event.key][at : at + len(event.leaves)] == event.leaves
            if is_right:
                count = len(event.leaves) // LEAF_BYTES
                self._emit(effects.ShowPieces(self.coming[event.key][0], event.first, count))
        self._carry_out(self._relay.read_ended(event.read, is_right, self._clock.now_ns))

    def chunk_read(self) -> None:
        """A chunk is here that was left to reads: the next one may be."""
        if self._relay is not None and self.coming:
            self._relay.gathering.choose_again()
            self._alarm.set(self._clock.now_ns)

    def close(self) -> None:
        """Nothing is gathered or passed on any more."""
        self._alarm.due_ns = None
        self.give_up(list(self.coming))
        self._relay = None

    def _due(self) -> None:
        if self._relay is not None:
            self._carry_out(self._relay.handle_timer(self._clock.now_ns))

    # ------------------------------------------------------------------ what the relay asks

    def _whole_pieces(self, key: ChunkKey) -> int:
        chunk = self._pool.find(key)
        return pieces_in(chunk.size_bytes) if chunk is not None and chunk.leaves else 0

    def _leaves_here(self, key: ChunkKey) -> bytes:
        chunk = self._pool.find(key)
        return chunk.leaves if chunk is not None else b""

    def _accepts(self, key: ChunkKey, leaves: bytes) -> bool:
        found = self.coming.get(key)
        if found is None or root_of(leaves, found[1].size_bytes) != found[1].digest:
            return False
        self._leaves[key] = leaves
        return True

    def _node_at(self, endpoint: str) -> NodeEntry | None:
        """The node that answers there, as the directory knows it."""
        return self._directory.node_reading_at(endpoint)

    @staticmethod
    def _rack_of(node: NodeEntry | None) -> str:
        return "" if node is None else node.rack

    def _carry_out(self, commands: list[RelayCommand]) -> None:
        ended: list[tuple[ChunkKey, bytes | None, int]] = []
        for command in commands:
            match command:
                case TellParent() | TellChild() | LeaveParent() | EndChild() | AbortRun():
                    self._emit(command)
                case ReadRun():
                    self._emit(effects.RelayRead(command, self.coming[command.key][0]))
                case Blamed(endpoint, key):
                    self._blame(endpoint, key)
                case Whole(key):
                    ended.append((key, self._leaves[key], 0))
                    self._forget(key)
                case GaveUp(key, readers):
                    ended.append((key, None, readers))
                    self._forget(key)
                case _:
                    assert_never(command)
        self._alarm.set(self._relay.wake_ns if self._relay is not None else None)
        for key, leaves, readers in ended:
            if leaves is None:  # others may write there from now on
                self._emit(effects.HidePieces(key))
            self._ended(key, leaves, readers)
            if leaves is not None:
                self._emit(effects.HidePieces(key))

    def _forget(self, key: ChunkKey) -> None:
        self.coming.pop(key, None)
        self._leaves.pop(key, None)

    def _blame(self, endpoint: str, key: ChunkKey) -> None:
        """The controller hears of wrong bytes that a node gave over its own connection."""
        node, found = self._node_at(endpoint), self.coming.get(key)
        if node is not None and found is not None:
            self._emit(
                effects.ReportBadCopy(
                    key, NodeId(node.name), node.node, Blame.DIGEST, found[1].digest, NO_DIGEST, from_switch=False
                )
            )


def found_of(entry: ChunkEntry, leaves: bytes) -> Hashed:
    """What the bytes of a chunk are whose pieces have all been proven."""
    return Hashed(entry.digest, leaves)
