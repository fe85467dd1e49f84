"""Memory near the data NIC: the pool's pages are taken from the NIC's NUMA node as long as that has any.

A NIC reaches memory of another node through the link between the sockets, with less rate and more delay. The kernel
says where a NIC is (sysfs-class-net), and takes a preferred node for a range of a shared file (mbind(2), set_mempolicy
in Documentation/admin-guide/mm/numa_memory_policy.rst). Called before the pages are touched.
"""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path
from typing import Final

from hostagent.memory.pool_memory import PoolMemory

_ROOT: Final = Path("/")
_MPOL_PREFERRED: Final = 1
_MBIND: Final = {"x86_64": 237, "aarch64": 235}
"""Number of the system call; glibc has no function for it."""
_NODES_MAX: Final = 1024
"""Bits of the mask that the call is given: what kernels are built with at most."""


def node_of(interface: str | None, root: Path = _ROOT) -> int | None:
    """The NUMA node of an interface's device; None: it has none, or the machine has one node only."""
    if interface is None or len(nodes(root)) < 2:
        return None
    try:
        node = int((root / "sys/class/net" / interface / "device/numa_node").read_text())
    except (OSError, ValueError):
        return None  # no device behind it: a bridge, a VLAN, a veth
    return node if node >= 0 else None


def nodes(root: Path = _ROOT) -> list[int]:
    """NUMA nodes of this machine with memory."""
    try:
        text = (root / "sys/devices/system/node/has_memory").read_text().strip()
    except OSError:
        return []
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def prefer(memory: PoolMemory, node: int) -> None:
    """Take the pool's pages from this node as long as it has some free. Raises OSError."""
    number = _MBIND.get(platform.machine())
    if number is None:
        raise OSError(f"the number of mbind(2) on {platform.machine()} is not known here")
    words = _NODES_MAX // 64
    mask = (ctypes.c_ulong * words)()
    mask[node // 64] = 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(memory.address),
        ctypes.c_ulong(memory.size_bytes),
        ctypes.c_int(_MPOL_PREFERRED),
        mask,
        ctypes.c_ulong(_NODES_MAX),
        ctypes.c_uint(0),
    )
    if done:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
