"""Reliable reads that the protocol's reader asked for: which are under way, and from whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from hostagent.core import effects
from hostagent.core.clock import Alarm
from hostagent.core.directory import NodeEntry
from hostagent.core.events import LeavesRead, ReadProven
from hostagent.core.inbound import InboundChunk
from hostagent.core.node import Node
from hostagent.tree import PIECE_BYTES, leaves_bytes
from kvchunk.ids import ChunkKey
from kvproto import events
from kvproto.commands import AbortRead, ReadLeaves, StartRead
from kvproto.ids import ReadId

ReadNews: TypeAlias = events.ReadProgress | events.ReadDone | events.ReadFailed | LeavesRead | ReadProven


class OutgoingReads:
    """One node's."""

    def __init__(self, node: Node, failed: Callable[[events.ReadFailed], None]) -> None:
        """`failed` gets the reads that could not be started; never inside `start`."""
        self._clock = node.clock
        self._emit = node.emit
        self._directory = node.directory
        self._failed = failed
        self._under_way: dict[ReadId, ChunkKey] = {}
        """And the chunks that they are of."""
        self._unstarted: list[ReadId] = []
        """From nodes that have left the directory."""
        self._fail_unstarted: Alarm = node.alarms.add(self._unstarted_failed)

    def start(
        self, command: StartRead, inbound: InboundChunk, segment_bytes: int, wanted_of: Callable[[NodeEntry], int]
    ) -> None:
        """Ask a holder for segments of a chunk on its way. `wanted_of(holder)`: bytes still to come from it in all."""
        node = self._known(command)
        if node is None:
            return
        inbound.last_source = node.address
        offset = command.first * segment_bytes
        left_bytes = inbound.entry.size_bytes - offset
        size_bytes = min(command.count * segment_bytes, left_bytes)
        is_whole_pieces = not offset % PIECE_BYTES and (size_bytes == left_bytes or not size_bytes % PIECE_BYTES)
        self._emit(
            effects.StartRead(
                command.read,
                node.name,
                node.read_endpoint,
                inbound.chunk,
                command.first,
                command.count,
                offset,
                size_bytes,
                wanted_of(node),
                is_provable=is_whole_pieces and not inbound.is_cast and inbound.is_tree,
            )
        )

    def start_leaves(self, command: ReadLeaves, inbound: InboundChunk) -> None:
        """Ask a holder for the leaves of a chunk's tree."""
        node = self._known(command)
        if node is not None:
            size_bytes = leaves_bytes(inbound.entry.size_bytes)
            self._emit(effects.ReadLeaves(command.read, node.name, node.read_endpoint, command.key, size_bytes))

    def key_of(self, read: ReadId) -> ChunkKey | None:
        """The chunk that a read under way is of; None: it is over."""
        return self._under_way.get(read)

    def _known(self, command: StartRead | ReadLeaves) -> NodeEntry | None:
        """The node to read from; a read from one that has left the directory fails."""
        self._under_way[command.read] = command.key
        node = self._directory.node_named(command.holder)
        if node is None:
            self._unstarted.append(command.read)
            self._fail_unstarted.set(self._clock.now_ns)
        return node

    def abort(self, command: AbortRead) -> None:
        """Give one up; nothing, when it has ended already."""
        if command.read in self._under_way:
            del self._under_way[command.read]
            self._emit(command)

    def abort_all(self) -> None:
        """Give all up."""
        for read in self._under_way:
            self._emit(AbortRead(read))
        self._under_way.clear()

    def heard(self, event: ReadNews) -> bool:
        """A read progressed or ended; False: it was aborted before, and nobody wants to know."""
        if event.read not in self._under_way:
            return False
        if not isinstance(event, events.ReadProgress):
            del self._under_way[event.read]
        return True

    def _unstarted_failed(self) -> None:
        reads, self._unstarted = self._unstarted, []
        for read in reads:
            self._failed(events.ReadFailed(read, gone=False))
