"""How a daemon imports what it is made of."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Import inside this context: nobody looks for garbage meanwhile.

    Modules and classes stay. Python would visit them again and again as they become more, for a fifth of all that a
    daemon computes until it is ready.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
