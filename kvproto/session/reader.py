"""The reader of a node: fetches chunks by following and leading casts and by reliable reads."""

import numpy as np
import numpy.typing as npt

from kvproto.commands import ReaderCommand
from kvproto.events import ReaderEvent
from kvproto.ids import ChunkKey
from kvproto.session.parameters import ReaderParameters


class Reader:
    """One per node. Deterministic: the same events at the same times give the same commands."""

    def __init__(self, parameters: ReaderParameters) -> None: ...

    def handle(self, event: ReaderEvent, now_ns: int) -> list[ReaderCommand]:
        """Commands that follow from an event; includes timers that are due at `now_ns`."""

    def handle_timer(self, now_ns: int) -> list[ReaderCommand]:
        """Commands that are due. Calling it early or late is safe."""

    def next_timeout_ns(self) -> int | None:
        """When handle_timer should be called next; None: not before another event. May change with every call."""

    def missing(self, key: ChunkKey) -> npt.NDArray[np.bool_] | None:
        """Which segments of a chunk may be placed into memory (a read-only view that changes later); None: none."""

    def configure(self, parameters: ReaderParameters, now_ns: int) -> list[ReaderCommand]:
        """Change the node's parameters (member, receive window, ...) while fetches go on."""
