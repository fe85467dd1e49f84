"""The holder of a node: answers GET, JOIN without a switch, and fills the switch."""

from typing import Protocol

from kvproto.commands import HolderCommand
from kvproto.events import HolderEvent
from kvproto.ids import ChunkKey
from kvproto.session.parameters import HolderParameters


class Inventory(Protocol):
    """What this node holds, whole and verified."""

    def segments_of(self, key: ChunkKey) -> int | None:
        """Segments of a chunk that is here; None when it is not."""
        ...


class Holder:
    """One per node. Deterministic: the same events at the same times give the same commands."""

    def __init__(self, parameters: HolderParameters, inventory: Inventory) -> None: ...

    def handle(self, event: HolderEvent, now_ns: int) -> list[HolderCommand]:
        """Commands that follow from an event."""

    def handle_timer(self, now_ns: int) -> list[HolderCommand]:
        """Commands that are due. Calling it early or late is safe."""

    def next_timeout_ns(self) -> int | None:
        """When handle_timer should be called next; None: not before another event."""
