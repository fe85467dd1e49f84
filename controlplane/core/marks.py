"""Who set something, and when. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Mark:
    """Who set something, and when."""

    by: str = ""
    """The name in a certificate and the host, or the host alone; empty: it is not known."""
    at_ms: int = 0
    """Since 1970."""


NOBODY: Final = Mark()
