"""Objects of vLLM that call the connector and hand it no reference to themselves."""

from __future__ import annotations

import sys
from typing import TypeVar

T = TypeVar("T")


def caller_of(kind: type[T]) -> T | None:
    """The nearest object of a class whose method is running, directly or through others; None: there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, kind):
            return caller
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None
