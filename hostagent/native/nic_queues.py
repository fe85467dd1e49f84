"""The structures of an RDMA NIC's queues in src/datapath.h as ctypes sees them."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_uint32, c_uint64, c_void_p


class CompletionQueueParts(ctypes.Structure):
    """struct dp_completion_queue"""

    _fields_ = (
        ("queue", c_void_p),
        ("channel", c_void_p),
        ("poll", c_void_p),
        ("request_notify", c_void_p),
        ("get_event", c_void_p),
        ("acknowledge", c_void_p),
        ("fd", c_int32),
        ("reserved", c_uint32),
    )


class ReceiveQueue(ctypes.Structure):
    """struct dp_receive_queue"""

    _fields_ = (
        ("completions", CompletionQueueParts),
        ("queue_pair", c_void_p),
        ("post", c_void_p),
        ("requests", c_void_p),
        ("rows", c_void_p),
        ("rows_count", c_uint32),
        ("row_bytes", c_uint32),
        ("number", c_uint32),
        ("reserved", c_uint32),
    )


class SendQueue(ctypes.Structure):
    """struct dp_send_queue"""

    _fields_ = (
        ("completions", CompletionQueueParts),
        ("queue_pair", c_void_p),
        ("post", c_void_p),
        ("number", c_uint32),
        ("depth", c_uint32),
        ("run_max", c_uint32),
        ("reserved", c_uint32),
    )


class Chain(ctypes.Structure):
    """struct dp_chain"""

    _fields_ = (("requests", c_void_p), ("id", c_uint64), ("first", c_uint32), ("count", c_uint32))
