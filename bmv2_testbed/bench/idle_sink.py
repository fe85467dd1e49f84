"""The agent's end of a transport, for benchmarks that measure a transport alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hostagent import limits
from hostagent.transport.base import ControlArrival, Extent, Way
from kvchunk.ids import ChunkKey
from kvproto.events import SegmentsReceived


class IdleSink:
    """A `TransportSink` that does nothing with what it receives. It has no trees, no namespaces and no disk."""

    def __init__(self, offered: Extent | None = None) -> None:
        """`offered`: what peers read, whatever chunk they ask for; None: nothing."""
        self._offered = offered

    def controls_received(self, arrivals: Sequence[ControlArrival]) -> None: ...
    def casts_placed(self, arrivals: Sequence[SegmentsReceived]) -> None: ...
    def casts_unexpected(self, arrivals: Sequence[SegmentsReceived]) -> None: ...
    def segments_sent(self, key: ChunkKey, count: int, _rail: int = 0) -> None: ...
    def segments_failed(self, key: ChunkKey, count: int, _rail: int = 0) -> None: ...
    def fill_sent(self, key: ChunkKey, count: int) -> None: ...
    def close_extent(self, extent: Extent) -> None: ...
    def relays(self) -> None: ...
    def way_left(self, endpoint: str, way: Way) -> None: ...

    def peers_read(self, keys: Sequence[ChunkKey]) -> None: ...

    def cast_patience_s(self) -> float:
        return limits.CAST_POLL_S_MAX

    def cast_patience_segments(self) -> int:
        return limits.CAST_WAKE_SEGMENTS

    def casts_queued_bytes(self) -> int:
        return 0

    def open_extent(self, _key: ChunkKey) -> Extent | None:
        return self._offered

    def rails_of(self, _endpoint: str) -> Sequence[str]:
        return ()

    def prepare(self, _key: ChunkKey, _then: Callable[[], None]) -> bool:
        return False

    def namespace_of(self, _key: ChunkKey) -> str | None:
        """Of no namespace."""
        return ""

    def leaves(self, _key: ChunkKey) -> bytes | None:
        """Without a tree all bytes are right."""
        return None
