"""The forms that a chunk's bytes can be stored in. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class CodecError(ValueError):
    """Stored bytes are damaged or not of their form, or a chunk cannot have the form; one line."""


class Form(enum.IntEnum):
    """How a chunk's bytes are stored. The numbers are part of stored records."""

    RAW = 0
    """As they are."""
    PLANES = 1
    """Fewer bytes, nothing lost (`kvcodec.planes`)."""
    LOSSY = 2
    """Far fewer bytes, numbers rounded (`kvcodec.lossy`): only where a chunk's namespace allows it."""


@dataclass(frozen=True, slots=True)
class StoredForm:
    """How a chunk lies in a store."""

    form: Form
    size_bytes: int
    """Of what is stored; of RAW the chunk's own."""

    def __post_init__(self) -> None:
        if self.size_bytes <= 0:
            raise ValueError(f"something stored of {self.size_bytes} bytes")


SHARE_MAX: Final = 0.97
"""A form that leaves more than this share of the bytes is not worth its name: the chunk stays as it is."""
