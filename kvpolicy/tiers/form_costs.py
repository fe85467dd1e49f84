"""In which form a chunk is stored, and what reading it in that form takes. Pure.

A form saves bytes of the store and costs time of the processor, on the way out and on the way in:

    seconds until a stored chunk is here = overhead_s + stored bytes / rate + chunk's bytes / decoding rate

A chunk goes into the form that is here first, if that saves at least GAIN_MIN of the time, and if encoding keeps up
with the writes. Overhead and rate are the source's (`SourceCosts`); how fast a form is encoded and decoded, and what
share of the bytes it leaves, is what this node measured. What was never measured is not used.

The gate reckons with a stored chunk as if it had as many bytes as the store would deliver in the time that reading and
decoding it take (`FormCosts.reckoned_bytes`); what a load teaches of the store is taken by the same measure, so the
store's rate stays the store's.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvcodec.forms import Form, StoredForm
from kvpolicy.value.costs import SourceCost

GAIN_MIN: Final = 0.05
_SMOOTHING: Final = 0.2


class FormChoice(enum.Enum):
    """What an operator says of forms."""

    AUTO = "auto"
    """Whichever is here first."""
    RAW = "raw"
    """Every chunk as it is."""
    LOSSLESS = "lossless"
    """Always fewer bytes, for the room; nothing is ever rounded."""


@dataclass(frozen=True, slots=True)
class FormWork:
    """A chunk that was turned into a form, or back."""

    form: Form
    size_bytes: int
    stored_bytes: int
    encode_s: float | None = None
    decode_s: float | None = None


@dataclass(slots=True)
class _Learned:
    """Of one form; 0: not measured."""

    share: float = 0.0
    encode_s: float = 0.0
    """For a byte of the chunk."""
    decode_s: float = 0.0


class FormCosts:
    """Owns what encoding and decoding have taken on this node, by form."""

    def __init__(self) -> None:
        self._learned: dict[Form, _Learned] = {form: _Learned() for form in Form if form is not Form.RAW}

    def measured(self, work: FormWork) -> None:
        """Somebody encoded or decoded a chunk."""
        learned = self._learned.get(work.form)
        if learned is None or work.size_bytes <= 0:
            return
        learned.share = _moved(learned.share, work.stored_bytes / work.size_bytes)
        if work.encode_s is not None:
            learned.encode_s = _moved(learned.encode_s, work.encode_s / work.size_bytes)
        if work.decode_s is not None:
            learned.decode_s = _moved(learned.decode_s, work.decode_s / work.size_bytes)

    def encode_s(self, form: Form, size_bytes: int) -> float | None:
        """What turning a chunk into a form takes; None: never measured."""
        learned = self._learned.get(form)
        return learned.encode_s * size_bytes if learned is not None and learned.encode_s > 0 else None

    def decode_s(self, form: Form, size_bytes: int) -> float | None:
        """What turning it back takes; None: never measured."""
        learned = self._learned.get(form)
        return learned.decode_s * size_bytes if learned is not None and learned.decode_s > 0 else None

    def best(
        self, choice: FormChoice, allowed: Sequence[Form], size_bytes: int, source: SourceCost, write_bytes_per_s: int
    ) -> Form:
        """The form to store a chunk in. `allowed`: forms besides RAW, those that lose nothing first; `source`: of what
        the store takes; `write_bytes_per_s`: of the lane that writes to it, 0: no limit."""
        if choice is FormChoice.RAW:
            return Form.RAW
        if choice is FormChoice.LOSSLESS:
            return Form.PLANES
        best, best_s = Form.RAW, source.of(size_bytes)
        for form in allowed:
            learned = self._learned[form]
            is_measured = learned.encode_s > 0 and learned.decode_s > 0
            if not is_measured or write_bytes_per_s * learned.encode_s > 1:
                continue
            takes_s = source.of(learned.share * size_bytes) + learned.decode_s * size_bytes
            if takes_s < (1 - GAIN_MIN) * best_s:
                best, best_s = form, takes_s
        return best

    def expected(self, form: Form, size_bytes: int) -> StoredForm:
        """What a chunk will be once it is stored in a form."""
        share = 1.0 if form is Form.RAW else self._learned[form].share or 1.0
        return StoredForm(form, max(1, int(share * size_bytes)))

    def reckoned_bytes(self, stored: StoredForm, size_bytes: int, source: SourceCost) -> int:
        """As many bytes as the store gives in the time that a chunk of `size_bytes` takes from there."""
        if stored.form is Form.RAW:
            return size_bytes
        decode_s = self._learned[stored.form].decode_s * size_bytes
        return max(1, int(stored.size_bytes + decode_s * source.rate_bytes_per_s))


def _moved(learned: float, measured: float) -> float:
    return measured if learned == 0 else learned + _SMOOTHING * (measured - learned)
