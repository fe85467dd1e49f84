"""Casts that a node expects, told to whatever takes them in at the moment."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hostagent.transport.base import ChunkPlace
from hostagent.transport.native_receiver import NativeIntake
from kvchunk.ids import ChunkKey


class ExpectedCasts:
    """Remembers what is expected while nothing takes casts in."""

    def __init__(self) -> None:
        self._expected: dict[ChunkKey, tuple[ChunkPlace, npt.NDArray[np.bool_]]] = {}

    def _taker(self) -> NativeIntake | ExpectedCasts | None:
        """Of this moment."""
        raise NotImplementedError

    def drain_receive(self) -> None:
        """See `CastPart.drain_receive`."""
        if (taker := self._taker()) is not None:
            taker.drain_receive()

    def settle(self) -> None:
        """See `CastPart.settle`."""
        if (taker := self._taker()) is not None:
            taker.settle()

    def expect(self, chunk: ChunkPlace, missing: npt.NDArray[np.bool_]) -> None:
        """See `CastPart.expect`."""
        self._expected[chunk.key] = chunk, missing
        if (taker := self._taker()) is not None:
            taker.expect(chunk, missing)

    def forget(self, key: ChunkKey) -> None:
        """See `CastPart.forget`."""
        if self._expected.pop(key, None) is not None and (taker := self._taker()) is not None:
            taker.forget(key)
