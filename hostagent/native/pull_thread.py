"""The structures of src/pulls.h as ctypes sees them: the thread that asks for reliable reads and takes them in."""

from __future__ import annotations

import ctypes
import enum
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Final

MAGIC_BYTES: Final = 4


class What(enum.IntEnum):
    """enum dp_pulled_what"""

    PART = 0
    ALL = 1
    REFUSED = 2
    MALFORMED = 3
    """From here on: of the connection."""
    VERSION = 4
    ENDED = 5


class PullerConfig(ctypes.Structure):
    """struct dp_puller_config"""

    _fields_ = (
        ("wake", c_int32),
        ("window", c_uint32),
        ("low_water_bytes", c_uint32),
        ("turn_bytes", c_uint32),
        ("tell_bytes", c_uint64),
        ("tell_ns", c_int64),
        ("magic", c_uint8 * MAGIC_BYTES),
        ("version", c_uint8),
        ("provers", c_uint8),
        ("reserved", c_uint8 * 2),
    )


class Pull(ctypes.Structure):
    """struct dp_pull"""

    _fields_ = (
        ("number", c_uint64),
        ("into", c_void_p),
        ("size_bytes", c_uint64),
        ("leaves", c_void_p),
        ("bytes", c_char_p),
        ("bytes_count", c_uint32),
        ("reserved", c_uint32),
    )


class Pulled(ctypes.Structure):
    """struct dp_pulled"""

    _fields_ = (
        ("connection", c_uint64),
        ("number", c_uint64),
        ("have_bytes", c_uint64),
        ("load", c_uint16),
        ("what", c_uint8),
        ("status", c_uint8),
        ("is_proven", c_uint32),
    )


class Pulls(ctypes.Structure):
    """struct dp_pulls"""

    _fields_ = (
        ("received_bytes", c_uint64),
        ("progress_ns", c_int64),
        ("unwanted_bytes", c_uint64),
        ("unanswered", c_uint32),
        ("reserved", c_uint32),
    )


STRUCTURE_BYTES: Final = tuple(map(ctypes.sizeof, (PullerConfig, Pull, Pulled, Pulls)))
SIGNATURES: Final = {
    "dp_puller_new": (c_void_p, (POINTER(PullerConfig),)),
    "dp_puller_start": (c_int, (c_void_p,)),
    "dp_puller_lend": (c_int, (c_void_p, c_int, c_uint64)),
    "dp_puller_ask": (c_int, (c_void_p, c_uint64, POINTER(Pull), c_uint32)),
    "dp_puller_cancel": (None, (c_void_p, c_uint64, c_uint64)),
    "dp_puller_look": (None, (c_void_p, c_uint64, POINTER(Pulls))),
    "dp_puller_end": (None, (c_void_p, c_uint64)),
    "dp_puller_drain": (c_uint32, (c_void_p, POINTER(Pulled), c_uint32)),
    "dp_puller_free": (None, (c_void_p,)),
}
