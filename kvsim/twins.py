"""A simulated host's codec: what encoding and decoding take, and twins that are none.

It stands for hostagent.coding. A twin's contents are those of its chunk's first segments, changed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hostagent.core import effects, events
from hostagent.pool.chunks import Chunk
from hostagent.tree import Hashed
from kvcodec.forms import Form
from kvpolicy.tiers.form_costs import FormChoice, FormWork
from kvsim.chance import Chance

_CHANGED = 1 << 40


@dataclass(frozen=True, slots=True)
class TwinTraits:
    """Of all hosts' processors, and of the operator's mind."""

    form: FormChoice = FormChoice.LOSSLESS
    share: float = 2 / 3
    """That a twin has of its chunk's bytes."""
    encode_bytes_per_s: float = 500e6
    decode_bytes_per_s: float = 1600e6
    wrong: float = 0.0
    """Probability that a twin is another chunk's, under a digest of its own that is right."""

    def work(self, size_bytes: int) -> FormWork:
        """Of one chunk, there and back."""
        encode_s, decode_s = size_bytes / self.encode_bytes_per_s, size_bytes / self.decode_bytes_per_s
        return FormWork(Form.PLANES, size_bytes, int(size_bytes * self.share), encode_s, decode_s)


class TwinHost(Protocol):
    """Whose codec it is."""

    def after(self, delay_ns: int, action: Callable[[], None]) -> None: ...
    def handle(self, event: events.Event) -> None: ...


class TwinWay:
    """One host's. `view(chunk)`: its memory; `hashed(contents)`: their tree."""

    def __init__(
        self,
        host: TwinHost,
        traits: TwinTraits,
        segment_bytes: int,
        view: Callable[[Chunk], npt.NDArray[np.int64]],
        hashed: Callable[[npt.NDArray[np.int64], int], Hashed],
        chance: Chance,
    ) -> None:
        self._host = host
        self._traits = traits
        self._segment_bytes = segment_bytes
        self._view = view
        self._hashed = hashed
        self._chance = chance

    def tell(self, size_bytes: int) -> None:
        """The process has tried out its codec."""
        self._host.handle(events.FormMeasured(self._traits.work(size_bytes)))

    def _numbers(self, chunk: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        count = max(1, int(len(chunk) * self._traits.share))
        return chunk[:count] + _CHANGED

    def encode(self, effect: effects.EncodeTwin) -> None:
        """Answered by TwinEncoded."""
        chunk = effect.chunk
        wrong = self._chance.fraction() < self._traits.wrong
        numbers = self._numbers(self._view(chunk)) + wrong
        content = numbers.tobytes().ljust(len(numbers) * self._segment_bytes, b"\0")
        work = self._traits.work(chunk.size_bytes)
        encoded = events.TwinEncoded(chunk, effect.form, content, work)
        self._host.after(int((work.encode_s or 0) * 1e9), lambda: self._host.handle(encoded))

    def place(self, effect: effects.PlaceTwin) -> None:
        """Answered by TwinPlaced."""
        view = self._view(effect.into)
        view[:] = np.frombuffer(bytes(effect.content[: 8 * len(view)]), np.int64)
        placed = events.TwinPlaced(effect.into, self._hashed(view, self._segment_bytes))
        self._host.after(0, lambda: self._host.handle(placed))

    def decode(self, effect: effects.DecodeTwin, right: npt.NDArray[np.int64]) -> None:
        """Answered by TwinDecoded. `right`: what the chunk must hold; a wrong twin gives something else."""
        view = self._view(effect.into)
        is_right = np.array_equal(self._view(effect.twin), self._numbers(right))
        work = self._traits.work(effect.into.size_bytes)

        def end() -> None:
            view[:] = right if is_right else right + 3
            hashed = self._hashed(view, self._segment_bytes)
            self._host.handle(events.TwinDecoded(effect.into, whole=True, hashed=hashed, work=work))

        self._host.after(int((work.decode_s or 0) * 1e9), end)
