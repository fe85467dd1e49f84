"""The structures of src/reads.h as ctypes sees them: the thread that answers reliable reads."""

from __future__ import annotations

import ctypes
import enum
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Final

REQUEST_HEAD_BYTES: Final = 8
ANSWER_HEAD_BYTES: Final = 6
READ_BYTES: Final = 64 * 48
"""Taken from a socket by one call."""
KEYS_MAX: Final = 1024
KEY_BYTES: Final = 16


class Why(enum.IntEnum):
    """enum dp_returned_why"""

    UNKNOWN = 0
    """The next request is the caller's."""
    ENDED = 1
    STALLED = 2


class ServerConfig(ctypes.Structure):
    """struct dp_server_config"""

    _fields_ = (
        ("pool", c_void_p),
        ("pool_bytes", c_uint64),
        ("catalog", c_void_p),
        ("table", c_void_p),
        ("levels", POINTER(c_uint64)),
        ("stall_ns", c_int64),
        ("tell_ns", c_int64),
        ("pool_file", c_int32),
        ("wake", c_int32),
        ("request_head", c_uint8 * REQUEST_HEAD_BYTES),
        ("answer_head", c_uint8 * ANSWER_HEAD_BYTES),
        ("reserved", c_uint8 * 2),
    )


class Returned(ctypes.Structure):
    """struct dp_returned"""

    _fields_ = (("id", c_uint64), ("why", c_uint32), ("size_bytes", c_uint32), ("bytes", c_uint8 * READ_BYTES))


class Reads(ctypes.Structure):
    """struct dp_reads"""

    _fields_ = (
        ("sent_bytes", c_uint64),
        ("queued_bytes", c_uint64),
        ("readers", c_uint32),
        ("keys_count", c_uint32),
        ("keys", c_uint8 * (KEYS_MAX * KEY_BYTES)),
    )


class Part(ctypes.Structure):
    """struct dp_part"""

    _fields_ = (
        ("key", c_uint8 * KEY_BYTES),
        ("offset", c_uint64),
        ("size_bytes", c_uint64),
        ("first", c_uint64),
        ("count", c_uint64),
    )


STRUCTURE_BYTES: Final = tuple(map(ctypes.sizeof, (ServerConfig, Returned, Reads, Part)))
SIGNATURES: Final = {
    "dp_server_new": (c_void_p, (POINTER(ServerConfig),)),
    "dp_server_start": (c_int, (c_void_p,)),
    "dp_server_lend": (c_int, (c_void_p, c_int, c_uint64)),
    "dp_server_recall": (None, (c_void_p, c_uint64)),
    "dp_server_end": (None, (c_void_p, c_uint64)),
    "dp_server_is_idle": (c_int, (c_void_p, c_uint64, POINTER(c_int64))),
    "dp_server_set_other_load": (None, (c_void_p, c_uint64, c_uint32)),
    "dp_server_show": (c_int, (c_void_p, POINTER(Part))),
    "dp_server_hide": (None, (c_void_p, c_char_p)),
    "dp_server_take_returned": (c_int, (c_void_p, POINTER(Returned))),
    "dp_server_drain": (None, (c_void_p, POINTER(Reads))),
    "dp_server_free": (None, (c_void_p,)),
}
