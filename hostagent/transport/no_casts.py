"""Casts where the data network has no IPv4: there are none, and all is read reliably."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hostagent.transport.base import ChunkPlace
from hostagent.transport.host import Host
from kvchunk.ids import ChunkKey
from kvproto.ids import Address
from kvproto.wire.data import Fabric


class NoCasts:
    """A `CastPart` that sends and receives nothing: the group, the switch's memory and their ICRC are of IPv4."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def use_fabric(self, _: Fabric) -> int:
        """See `CastPart.use_fabric`."""
        return 0

    def cast(self, chunk: ChunkPlace, _first: int, count: int, _blocks: Sequence[int] = ()) -> None:
        """Whoever asked for them reads instead."""
        self._host.loop.call_soon(self._host.sink.segments_failed, chunk.key, count)

    def fill(self, chunk: ChunkPlace, first: int, count: int, _: Address, *, cast_too: bool = False) -> None:
        """See `CastPart.fill`."""
        if cast_too:
            self.cast(chunk, first, count)
            return
        self._host.counters.fill_packets_failed += count
        self._host.loop.call_soon(self._host.sink.fill_sent, chunk.key, count)

    def expect(self, chunk: ChunkPlace, missing: npt.NDArray[np.bool_]) -> None:
        """Nothing comes."""

    def forget(self, key: ChunkKey) -> None:
        """Nothing is expected."""

    def settle(self) -> None:
        """Nothing is being written."""

    def drain_receive(self) -> None:
        """Nothing has come."""

    def data_socket(self) -> socket.socket | None:
        """See `CastPart.data_socket`."""
        return None

    def close(self) -> None:
        """Nothing is open."""
