"""Chunks whose bytes are not those that were promised: which segments are wrong, and who hears of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hostagent.core import effects
from hostagent.core.events import LeavesRead
from hostagent.core.inbound import InboundChunk
from hostagent.core.node import Node
from hostagent.core.sources import SWITCH_NODE
from hostagent.tree import root_of, wrong_segments
from kvchunk.ids import ChunkKey
from kvproto.commands import Blame, ReadLeaves, ReportBadCopy, SegmentsDropped
from kvproto.ids import ReadId
from kvproto.integrity import NO_DIGEST


class WrongBytes:
    """One node's."""

    def __init__(self, node: Node) -> None:
        self._emit = node.emit
        self._directory = node.directory
        self._judging: dict[ReadId, ChunkKey] = {}
        """Leaves that are being read, and the chunks that they are of."""

    def asked(self, command: ReadLeaves) -> None:
        """A holder is asked for the leaves of a chunk."""
        self._judging[command.read] = command.key

    def unasked(self, read: ReadId) -> ChunkKey | None:
        """That read is over; the chunk whose leaves it was for. None: it was for none."""
        return self._judging.pop(read, None)

    @staticmethod
    def judged(inbound: InboundChunk, answer: LeavesRead, segment_bytes: int) -> npt.NDArray[np.uint32] | None:
        """The wrong segments of a chunk that came whole, by leaves that belong to its digest. None: these do not."""
        entry = inbound.entry
        if root_of(answer.leaves, entry.size_bytes) != entry.digest:
            return None
        return wrong_segments(answer.leaves, inbound.found.leaves, entry.size_bytes, segment_bytes)

    def dropped(self, command: SegmentsDropped, inbound: InboundChunk) -> None:
        """Where the switch says to have sent some, its copy may be bad: the controller hears it from all who saw it."""
        self._emit(effects.DatagramsDropped("segment_wrong", command.count))
        if inbound.from_switch:
            inbound.from_switch = 0
            expected, found = inbound.entry.digest, inbound.found.digest
            self._emit(effects.ReportBadCopy(command.key, SWITCH_NODE, 0, Blame.DIGEST, expected, found, True))

    def report(self, command: ReportBadCopy, inbound: InboundChunk | None) -> None:
        """The controller hears of a holder's copy."""
        node = self._directory.node_named(command.holder)
        self._emit(
            effects.ReportBadCopy(
                command.key,
                command.holder,
                node.node if node is not None else 0,
                command.blame,
                inbound.entry.digest if inbound is not None else NO_DIGEST,
                inbound.found.digest if inbound is not None else NO_DIGEST,
                from_switch=False,
            )
        )
