"""Memory barriers that one process makes for others: membarrier(2), Linux 4.16. Standard library only.

An engine that leases a chunk writes its lease and then reads the catalog; the agent that takes a chunk away writes the
catalog and then reads the leases. Each must see what the other wrote first, and processors reorder just that. The
agent makes the barrier for both: `issue` has every running thread of every process that called `register` pass one.
So an engine's lease costs no barrier of its own.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from typing import Final

_NUMBERS: Final = {"x86_64": 324, "aarch64": 283}
"""Of the system call."""
_GLOBAL_EXPEDITED: Final = 1 << 1
_REGISTER_GLOBAL_EXPEDITED: Final = 1 << 2
ORDERS_WRITES: Final = platform.machine() == "x86_64"
"""Whether other processors see this one's writes in order anyway (Intel SDM 3A, 9.2.2)."""


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _membarrier(command: int) -> bool:
    number = _NUMBERS.get(platform.machine())
    return number is not None and _libc().syscall(ctypes.c_long(number), command, 0, 0) == 0


def register() -> bool:
    """This process takes part in the barriers of others from now on; False: the system has none."""
    return _membarrier(_REGISTER_GLOBAL_EXPEDITED)


def issue() -> bool:
    """What processes that are registered did before this call is ordered before what they do after it, and so for
    this process. False: the system has no such barrier."""
    return _membarrier(_GLOBAL_EXPEDITED)
