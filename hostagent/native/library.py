"""The data path's shared object as ctypes sees it. The wire layouts come from `kvproto.wire.layouts` as macros."""

from __future__ import annotations

import ctypes
import enum
import functools
import logging
import struct
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path

import numpy as np

from hostagent import limits
from hostagent.native import ask_thread, get_thread, pull_thread, read_thread
from hostagent.native.nic_queues import Chain, CompletionQueueParts, ReceiveQueue, SendQueue
from hostagent.tree import PIECE_BYTES
from kvclient import catalog, lone
from kvproto.limits import CHUNK_SEGMENTS_MAX, SEGMENT_BYTES_MAX
from kvproto.wire import layouts
from kvproto.wire.data import DATA_HEADER_BYTES
from kvproto.wire.icrc import BTH_RESERVED_OFFSET, ICRC_BYTES
from p4switch.build import FLAGS_FAST, BuildError, build_shared_object

log = logging.getLogger(__name__)

_SOURCE_DIR = Path(__file__).parent / "src"
PREFIX_BYTES_MAX = 64
"""DP_PREFIX_BYTES_MAX"""


def offset_of(dtype: np.dtype[np.void], field: str) -> int:
    """Where a field begins."""
    assert dtype.fields is not None
    return int(dtype.fields[field][1])


def _macros() -> dict[str, int]:
    """What the C code knows about a datagram, a catalog, a landing and a tree."""
    deth, chunk = layouts.BTH_BYTES, layouts.BTH_BYTES + layouts.DETH_BYTES
    bth = {name: offset_of(layouts.BTH_DTYPE, name) for name in ("opcode", "qpn", "psn")}
    kv = {
        name: chunk + offset_of(layouts.KV_DATA_DTYPE, name)
        for name in ("version", "op", "flags", "reserved", "segment", "segments", "length", "key")
    }
    return {
        "DP_HEADER_BYTES": DATA_HEADER_BYTES,
        "DP_CHUNK_HEADER": chunk,
        "DP_ICRC_BYTES": ICRC_BYTES,
        "DP_SEGMENT_BYTES_MAX": SEGMENT_BYTES_MAX,
        "DP_CHUNK_SEGMENTS_MAX": CHUNK_SEGMENTS_MAX,
        "DP_OPCODE_UD_SEND_ONLY": layouts.BTH_OPCODE_UD_SEND_ONLY,
        "DP_QPN_MULTICAST": layouts.QPN_MULTICAST,
        "DP_WIRE_VERSION": layouts.KV_VERSION,
        "DP_OP_DATA": layouts.OP_DATA,
        "DP_BTH_RESERVED": BTH_RESERVED_OFFSET,
        "DP_DETH_QKEY": deth + offset_of(layouts.DETH_DTYPE, "qkey"),
        "DP_DETH_SOURCE_QPN": deth + offset_of(layouts.DETH_DTYPE, "src_qpn"),
        "DP_CATALOG_HEADER_BYTES": catalog.HEADER_BYTES,
        "DP_CATALOG_WORDS": catalog.ENTRY_WORDS,
        "DP_CATALOG_WAYS": catalog.WAYS,
        "DP_ENTRY_BITS": catalog.ENTRY_BITS,
        "DP_GENERATION_MASK": catalog.GENERATION_MASK,
        "DP_LEASES": catalog.LEASES,
        "DP_LONE_SLOTS": lone.SLOTS,
        "DP_LONE_SLOT_BYTES": lone.SLOT_BYTES,
        "DP_PIECE_BYTES": PIECE_BYTES,
        "DP_LEASES_AT": catalog.LEASES_AT,
        "DP_READ_PIECES_MAX": limits.VERBS_READ_PIECES_MAX,
        **{f"DP_BTH_{name.upper()}": offset for name, offset in bth.items()},
        **{f"DP_KV_{name.upper()}": offset for name, offset in kv.items()},
    }


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
        ("address", c_uint32),
        ("icrc_seed", c_uint32),
        ("port", c_uint16),
        ("prefix_bytes", c_uint16),
        ("prefix_segment", c_uint16),
        ("prefix", c_uint8 * PREFIX_BYTES_MAX),
        ("header", c_uint8 * DATA_HEADER_BYTES),
    )


class Outcome(ctypes.Structure):
    """struct dp_outcome"""

    _fields_ = (("id", c_uint64), ("sent", c_uint32), ("failed", c_uint32), ("over", c_uint32), ("reserved", c_uint32))


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
    "dp_sender_new": (c_void_p, (c_int, c_int)),
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
    "dp_crc": (c_uint32, (c_uint32, c_char_p, c_uint64, c_int)),
}


@functools.cache
def datapath() -> ctypes.CDLL:
    """The data path, built on first use. Raises BuildError: no compiler, or it refuses."""
    defines = [f"-D{name}={value}" for name, value in sorted(_macros().items())]
    path = build_shared_object(
        "datapath", sorted(_SOURCE_DIR.glob("*.c")), include_dirs=(_SOURCE_DIR,), flags=(*FLAGS_FAST, *defines)
    )
    library = ctypes.CDLL(str(path))
    threads = {"dp_read": read_thread, "dp_pull": pull_thread, "dp_get": get_thread, "dp_ask": ask_thread}
    signatures = _SIGNATURES.copy()
    for thread in threads.values():
        signatures |= thread.SIGNATURES
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    structures = (Drained, Job, Outcome, CompletionQueueParts, ReceiveQueue, SendQueue, Chain)
    mirrored = [ctypes.sizeof(ReceiverConfig), REPORT.size, *map(ctypes.sizeof, structures)]
    assert list((c_uint32 * len(mirrored)).in_dll(library, "dp_structure_bytes")) == mirrored
    for name, mirror in ((name, thread.STRUCTURE_BYTES) for name, thread in threads.items()):
        assert tuple((c_uint32 * len(mirror)).in_dll(library, f"{name}_structure_bytes")) == mirror
    return library


def datapath_or_none() -> ctypes.CDLL | None:
    """The same, or None (said in the log) where it cannot be built."""
    try:
        return datapath()
    except BuildError as error:
        _say_once(str(error))
        return None


@functools.cache
def _say_once(reason: str) -> None:
    log.warning("casts and reads without the native data path, at several times the cost: %s", reason)
