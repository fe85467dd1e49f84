"""Casts over several rails: a `CastPart` of each. What is expected may come by any; who casts says by which.

The further rails cast only where holders keep interest: of kvcast switches a node knows the first one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hostagent.transport.base import CastPart, ChunkPlace
from kvchunk.ids import ChunkKey
from kvproto.ids import Address
from kvproto.wire.data import Fabric


class RailCast(CastPart, Protocol):
    """Casts of a further rail."""

    def give_up(self) -> None:
        """Others send from now on: segments that have not left are reported as failed, later."""


class RailCasts:
    """See the module's docstring."""

    def __init__(
        self,
        first: CastPart,
        count: int,
        open_part: Callable[[int], RailCast],
        failed: Callable[[int, ChunkKey, int], None],
    ) -> None:
        """`first`: of the first of `count` rails, which ends after this; `open_part(rail)` raises TransportError;
        `failed(rail, key, count)`: report soon that segments could not leave."""
        self._first = first
        self._count = count
        self._open_part = open_part
        self._failed = failed
        self._further: list[RailCast] = []
        self._fabric: Fabric | None = None

    def use_fabric(self, fabric: Fabric) -> int:
        """See `CastPart.use_fabric`."""
        granted = self._first.use_fabric(fabric)
        self._fabric = fabric
        if not fabric.fanout.keeps:
            self._end()
            return granted
        for rail in range(1 + len(self._further), self._count):
            self._further.append(self._open_part(rail))
        for part in self._further:
            part.use_fabric(fabric)
        return granted

    def bind_anew(self) -> None:
        """The interface of a further rail, or its address, is another one. Raises TransportError, OSError."""
        if self._further and self._fabric is not None:
            self._end()
            self.use_fabric(self._fabric)

    def cast(self, chunk: ChunkPlace, first: int, count: int, blocks: Sequence[int] = ()) -> None:
        """See `CastPart.cast`; by the first rail."""
        self._first.cast(chunk, first, count, blocks)

    def fill(self, chunk: ChunkPlace, first: int, count: int, pool: Address, *, cast_too: bool = False) -> None:
        """See `CastPart.fill`; by the first rail, where the switch is."""
        self._first.fill(chunk, first, count, pool, cast_too=cast_too)

    def data_socket(self) -> socket.socket | None:
        """See `CastPart.data_socket`; of the first rail."""
        return self._first.data_socket()

    def cast_by(self, rail: int, chunk: ChunkPlace, first: int, count: int, blocks: Sequence[int]) -> None:
        """As `CastPart.cast`, by a further rail."""
        if self._further:
            self._further[rail - 1].cast(chunk, first, count, blocks)
        else:
            self._failed(rail, chunk.key, count)

    def expect(self, chunk: ChunkPlace, missing: npt.NDArray[np.bool_]) -> None:
        """See `CastPart.expect`."""
        for part in (self._first, *self._further):
            part.expect(chunk, missing)

    def forget(self, key: ChunkKey) -> None:
        """See `CastPart.forget`."""
        for part in (self._first, *self._further):
            part.forget(key)

    def settle(self) -> None:
        """See `CastPart.settle`."""
        for part in (self._first, *self._further):
            part.settle()

    def drain_receive(self) -> None:
        """See `CastPart.drain_receive`."""
        for part in (self._first, *self._further):
            part.drain_receive()

    def close(self) -> None:
        """End those of the further rails."""
        self._end()

    def _end(self) -> None:
        """Segments that have not left are reported as failed: their chunks are pinned until then."""
        further, self._further = self._further, []
        for part in further:
            part.give_up()
            part.close()
