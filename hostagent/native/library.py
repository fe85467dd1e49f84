"""The data path's shared object as ctypes sees it."""

from __future__ import annotations

import ctypes
import enum
import functools
import struct
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path

from hostagent.native import ask_thread, get_thread, pull_thread, read_thread
from hostagent.native.nic_queues import Chain, CompletionQueueParts, ReceiveQueue, SendQueue
from kvcodec.shipped import load
from kvproto.wire.data import DATA_HEADER_BYTES

_PATH = Path(__file__).with_name("datapath.so")
PREFIX_BYTES_MAX = 64
"""DP_PREFIX_BYTES_MAX"""
GROUPS_MAX = 64
"""DP_GROUPS_MAX"""


class ReceiverConfig(ctypes.Structure):
    """struct dp_receiver_config"""

    _fields_ = (
        ("socket", c_int32),
        ("wake", c_int32),
        ("own", c_uint32),
        ("qkey", c_uint32),
        ("source_qpn", c_uint32),
        ("segment_bytes", c_uint32),
        ("from_switch_dscp", c_uint32),
        ("by_groups", c_uint32),
        ("identification", c_uint32 * 2 * 16),
        ("masked", c_uint8 * 36),
    )


class Broken(enum.IntEnum):
    """enum dp_broken"""

    NOT = 0
    QUEUE_PAIR = 1
    """Another one can take its place."""
    COMPLETIONS = 2
    """The queue, its channel, or the whole device."""


class Drained(ctypes.Structure):
    """struct dp_drained"""

    _fields_ = (
        ("reports", c_void_p),
        ("segments", c_void_p),
        ("reports_count", c_uint32),
        ("segments_count", c_uint32),
        ("broken", c_uint32),
        ("reserved", c_uint32),
    )


class Job(ctypes.Structure):
    """struct dp_job"""

    _fields_ = (
        ("chunk", c_void_p),
        ("size_bytes", c_uint64),
        ("id", c_uint64),
        ("segment_bytes", c_uint32),
        ("first", c_uint32),
        ("count", c_uint32),
        ("groups_count", c_uint32),
        ("icrc_seed", c_uint32),
        ("port", c_uint16),
        ("prefix_bytes", c_uint16),
        ("prefix_segment", c_uint16),
        ("prefix", c_uint8 * PREFIX_BYTES_MAX),
        ("header", c_uint8 * DATA_HEADER_BYTES),
        ("groups", c_uint32 * 2 * GROUPS_MAX),
    )


class Outcome(ctypes.Structure):
    """struct dp_outcome"""

    _fields_ = (("id", c_uint64), ("sent", c_uint32), ("failed", c_uint32), ("over", c_uint32), ("refused", c_uint32))


REPORT = struct.Struct("=16sQIIIIII")
"""struct dp_report: key, ticket, source, segments in the chunk, first, count, from switch, reserved"""

COUNTS = (
    "received",
    "from_switch",
    "looks",
    "overflows",
    "duplicates",
    "other_size",
    "own",
    "unasked",
    "unicast",
    "truncated",
    "oversized",
    "opcode",
    "qkey",
    "version",
    "op",
    "reserved",
    "segment",
    "length",
    "icrc",
)
"""enum dp_count, in order"""

_SIGNATURES = {
    "dp_receiver_new": (c_void_p, (POINTER(ReceiverConfig), POINTER(ReceiveQueue))),
    "dp_receiver_renew": (None, (c_void_p, c_void_p, c_uint32)),
    "dp_receiver_start": (c_int, (c_void_p,)),
    "dp_receiver_expect": (c_uint64, (c_void_p, c_char_p, c_void_p, c_uint64, c_void_p)),
    "dp_receiver_forget": (None, (c_void_p, c_uint64)),
    "dp_receiver_settle": (None, (c_void_p,)),
    "dp_receiver_drain_intake": (None, (c_void_p,)),
    "dp_receiver_drain": (None, (c_void_p, POINTER(Drained))),
    "dp_receiver_set_patience": (None, (c_void_p, c_int64, c_uint32)),
    "dp_receiver_read_counts": (None, (c_void_p, POINTER(c_uint64))),
    "dp_receiver_free": (None, (c_void_p,)),
    "dp_sender_new": (c_void_p, (c_int, c_int, c_uint64, c_uint32)),
    "dp_sender_start": (c_int, (c_void_p,)),
    "dp_sender_add": (c_int, (c_void_p, POINTER(Job))),
    "dp_sender_give_up": (None, (c_void_p,)),
    "dp_sender_drain": (c_uint32, (c_void_p, POINTER(Outcome), c_uint32)),
    "dp_sender_free": (None, (c_void_p,)),
    "dp_queue_sender_new": (c_void_p, (POINTER(SendQueue), c_int)),
    "dp_queue_sender_start": (c_int, (c_void_p,)),
    "dp_queue_sender_add": (c_int, (c_void_p, POINTER(Chain))),
    "dp_queue_sender_give_up": (None, (c_void_p,)),
    "dp_queue_sender_drain": (
        c_uint32,
        (c_void_p, POINTER(Outcome), c_uint32, POINTER(c_uint32), POINTER(c_uint32)),
    ),
    "dp_queue_sender_renew": (None, (c_void_p, c_void_p, c_uint32)),
    "dp_queue_sender_free": (None, (c_void_p,)),
    "dp_crc": (c_uint32, (c_uint32, c_char_p, c_uint64)),
    "dp_use_level": (c_int, (c_int,)),
    "dp_pace": (c_uint32, (c_uint64, POINTER(c_int64), POINTER(c_uint64), c_uint32, c_uint32)),
}


@functools.cache
def datapath() -> ctypes.CDLL:
    """The data path. Raises NotShippedError."""
    threads = {"dp_read": read_thread, "dp_pull": pull_thread, "dp_get": get_thread, "dp_ask": ask_thread}
    signatures = _SIGNATURES.copy()
    for thread in threads.values():
        signatures |= thread.SIGNATURES
    library = load(_PATH, signatures)
    structures = (Drained, Job, Outcome, CompletionQueueParts, ReceiveQueue, SendQueue, Chain)
    mirrored = [ctypes.sizeof(ReceiverConfig), REPORT.size, *map(ctypes.sizeof, structures)]
    assert list((c_uint32 * len(mirrored)).in_dll(library, "dp_structure_bytes")) == mirrored
    for name, mirror in ((name, thread.STRUCTURE_BYTES) for name, thread in threads.items()):
        assert tuple((c_uint32 * len(mirror)).in_dll(library, f"{name}_structure_bytes")) == mirror
    return library
