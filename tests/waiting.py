"""How tests wait for what others bring about and tell nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 120.0
"""Far above what anything takes on a busy machine: whoever waits so long waits in vain."""
_LOOK_S: Final = 0.02


def until(condition: Callable[[], object], what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> float:
    """Wait for what other processes or threads bring about; `what` they should have, or how to say it then. Returns
    how long that took, in seconds."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() < began_s + patience_s, f"waited in vain: {what if isinstance(what, str) else what()}"
        time.sleep(_LOOK_S)
    return time.monotonic() - began_s


async def eventually(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """The same for what comes by the event loop, which goes on meanwhile."""
    give_up_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < give_up_s, f"waited in vain: {what}"
        await asyncio.sleep(_LOOK_S / 4)
