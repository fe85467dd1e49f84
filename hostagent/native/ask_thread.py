"""The structures of src/asker.h as ctypes sees them: the thread that asks peers' memory for bytes by RDMA READs."""

from __future__ import annotations

import ctypes
import enum
from ctypes import POINTER, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import Final

from hostagent.native.nic_queues import CompletionQueueParts


class AskerConfig(ctypes.Structure):
    """struct dp_asker_config"""

    _fields_ = (
        ("completions", CompletionQueueParts),
        ("post", c_void_p),
        ("wake", c_int32),
        ("reserved", c_uint32),
        ("local_keys", POINTER(c_uint32)),
        ("into", c_uint64),
        ("step_bytes", c_uint64),
    )


class Allowance(ctypes.Structure):
    """struct dp_allowance"""

    _fields_ = (
        ("window_bytes", c_uint64),
        ("piece_bytes", c_uint32),
        ("reserved", c_uint32),
        ("quick_ns", c_int64),
    )


class Range(ctypes.Structure):
    """struct dp_range"""

    _fields_ = (
        ("id", c_uint64),
        ("into", c_uint64),
        ("from_", c_uint64),
        ("size_bytes", c_uint64),
        ("remote_key", c_uint32),
        ("reserved", c_uint32),
    )


class What(enum.IntEnum):
    """enum dp_came_what"""

    BYTES = 0
    PIECE = 1
    BROKEN = 2


class Came(ctypes.Structure):
    """struct dp_came"""

    _fields_ = (
        ("peer", c_uint64),
        ("id", c_uint64),
        ("bytes", c_uint64),
        ("in_flight_bytes", c_uint64),
        ("posted_ns", c_int64),
        ("done_ns", c_int64),
        ("what", c_uint32),
        ("status", c_uint32),
    )


class Asked(ctypes.Structure):
    """struct dp_asked"""

    _fields_ = (("in_flight_bytes", c_uint64), ("oldest_ns", c_int64), ("done_ns", c_int64))


STRUCTURE_BYTES: Final = tuple(map(ctypes.sizeof, (AskerConfig, Allowance, Range, Came, Asked)))
SIGNATURES: Final = {
    "dp_asker_new": (c_void_p, (POINTER(AskerConfig),)),
    "dp_asker_start": (c_int, (c_void_p,)),
    "dp_asker_begin": (c_uint64, (c_void_p, c_void_p, c_uint32, POINTER(Allowance))),
    "dp_asker_allow": (None, (c_void_p, c_uint64, POINTER(Allowance))),
    "dp_asker_add": (c_int, (c_void_p, c_uint64, POINTER(Range))),
    "dp_asker_withdraw": (c_uint32, (c_void_p, c_uint64, c_uint64)),
    "dp_asker_end": (None, (c_void_p, c_uint64)),
    "dp_asker_look": (None, (c_void_p, c_uint64, POINTER(Asked))),
    "dp_asker_take": (None, (c_void_p,)),
    "dp_asker_drain": (c_uint32, (c_void_p, POINTER(Came), c_uint32, POINTER(c_uint32))),
    "dp_asker_free": (None, (c_void_p,)),
}
