"""The structures of src/gets.h as ctypes sees them: the thread that serves lone gets."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Final

PEERS_MAX: Final = 256
DIGEST_BYTES: Final = 32
REQUEST_HEAD_BYTES: Final = 8
ANSWER_HEAD_BYTES: Final = 6
COUNTS: Final = ("served", "unknown", "unconnected", "dear", "full", "refused", "late", "wrong")
"""enum dp_get_count, in order"""


class GetterConfig(ctypes.Structure):
    """struct dp_getter_config"""

    _fields_ = (
        ("wait_ns", c_int64),
        ("spin_ns", c_int64),
        ("owed_ns", c_int64),
        ("tell_ns", c_int64),
        ("chunks_max", c_uint64),
        ("context", c_char_p),
        ("context_bytes", c_uint32),
        ("buffers", c_uint32),
        ("wake", c_int32),
        ("request_head", c_uint8 * REQUEST_HEAD_BYTES),
        ("answer_head", c_uint8 * ANSWER_HEAD_BYTES),
        ("reserved", c_uint8 * 6),
    )


class Got(ctypes.Structure):
    """struct dp_got"""

    _fields_ = (
        ("key", c_uint8 * 16),
        ("digest", c_uint8 * DIGEST_BYTES),
        ("engine", c_uint64),
        ("size_bytes", c_uint64),
        ("took_ns", c_int64),
        ("bytes", c_void_p),
        ("buffer", c_uint32),
        ("peer", c_uint32),
    )


STRUCTURE_BYTES: Final = tuple(map(ctypes.sizeof, (GetterConfig, Got)))
SIGNATURES: Final = {
    "dp_getter_new": (c_void_p, (POINTER(GetterConfig),)),
    "dp_getter_start": (c_int, (c_void_p,)),
    "dp_getter_admit": (c_int, (c_void_p, c_int, c_void_p, c_uint64)),
    "dp_getter_leave": (None, (c_void_p, c_uint64)),
    "dp_getter_offer": (c_int, (c_void_p, c_char_p, c_uint64, c_char_p, c_uint32)),
    "dp_getter_withdraw": (None, (c_void_p, c_char_p)),
    "dp_getter_connect": (None, (c_void_p, c_uint32, c_int)),
    "dp_getter_part": (None, (c_void_p, c_uint32)),
    "dp_getter_set_costs": (None, (c_void_p, c_double, c_double)),
    "dp_getter_drain": (c_uint32, (c_void_p, POINTER(Got), c_uint32)),
    "dp_getter_take_wishes": (c_uint32, (c_void_p, POINTER(c_uint32))),
    "dp_getter_give_back": (None, (c_void_p, c_uint32)),
    "dp_getter_read_counts": (None, (c_void_p, POINTER(c_uint64))),
    "dp_getter_free": (None, (c_void_p,)),
    "dp_get_digest": (None, (c_char_p, c_uint32, c_char_p, c_uint64, c_char_p)),
}
