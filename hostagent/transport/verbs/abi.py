"""libibverbs as it is: structures, constants and calls of its stable C ABI (IBVERBS_1.1, `infiniband/verbs.h`).

Work requests and completions are numpy records, so that a chain of hundreds is built once and handed over by one
call, and a batch of completions needs no Python object for each. `ibv_post_send`, `ibv_post_recv`, `ibv_poll_cq` and
`ibv_req_notify_cq` are inline functions in C: they call through the context's table of operations, and so do we.
Owns layouts and prototypes; knows nothing of their use.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
from ctypes import POINTER, c_int, c_size_t, c_ssize_t, c_uint8, c_uint16, c_uint32, c_void_p
from typing import Final

import numpy as np

if sys.byteorder != "little" or struct.calcsize("P") != 8:  # pragma: no cover - says so instead of misreading memory
    raise ImportError("hostagent.transport.verbs knows the structures of 64-bit little-endian Linux only")

LIBRARY: Final = "libibverbs.so.1"

# ---------------------------------------------------------------------- constants
QPT_RC: Final = 2
QPT_UD: Final = 4
QPS_INIT: Final = 1
QPS_RTR: Final = 2
QPS_RTS: Final = 3
QPS_ERR: Final = 6

QP_STATE: Final = 1 << 0
QP_ACCESS_FLAGS: Final = 1 << 3
QP_PKEY_INDEX: Final = 1 << 4
QP_PORT: Final = 1 << 5
QP_QKEY: Final = 1 << 6
QP_AV: Final = 1 << 7
QP_PATH_MTU: Final = 1 << 8
QP_TIMEOUT: Final = 1 << 9
QP_RETRY_CNT: Final = 1 << 10
QP_RNR_RETRY: Final = 1 << 11
QP_RQ_PSN: Final = 1 << 12
QP_MAX_QP_RD_ATOMIC: Final = 1 << 13
QP_MIN_RNR_TIMER: Final = 1 << 15
QP_SQ_PSN: Final = 1 << 16
QP_MAX_DEST_RD_ATOMIC: Final = 1 << 17
QP_DEST_QPN: Final = 1 << 20

ACCESS_LOCAL_WRITE: Final = 1
ACCESS_REMOTE_READ: Final = 1 << 2

WR_SEND: Final = 2
WR_RDMA_READ: Final = 4
SEND_SIGNALED: Final = 1 << 1

WC_SUCCESS: Final = 0
WC_STATUS: Final = {
    1: "local length error",
    2: "local queue pair error",
    4: "local protection error",
    5: "flushed",
    9: "remote invalid request",
    10: "remote access error",
    11: "remote operation error",
    12: "retry exceeded",
    13: "receiver-not-ready retry exceeded",
    19: "fatal error",
    20: "response timeout",
    21: "general error",
}


def status_name(status: int) -> str:
    """Of a completion that is no success, as it is counted."""
    return WC_STATUS.get(status, str(status)).replace(" ", "_")


"""`enum ibv_wc_status`, those that these queue pairs can meet."""

PORT_ACTIVE: Final = 4
LINK_LAYER_ETHERNET: Final = 2
GID_TYPE_ROCE_V2: Final = 2
MTU_BYTES: Final = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""`enum ibv_mtu`."""
MULTICAST_QPN: Final = 0xFF_FFFF
GRH_BYTES: Final = 40
"""Bytes before each UD message in its receive buffer. RoCEv2 over IPv4: 20 unused bytes, then the IP header."""

# ---------------------------------------------------------------------- records for numpy
RECV_WR: Final = np.dtype(
    [("wr_id", "<u8"), ("next", "<u8"), ("sg_list", "<u8"), ("num_sge", "<i4"), ("_", "<i4")], align=True
)
SEND_WR: Final = np.dtype(
    {
        "names": [
            *("wr_id", "next", "sg_list", "num_sge", "opcode", "send_flags"),
            *("ud_ah", "ud_qpn", "ud_qkey", "rdma_address", "rdma_rkey"),
        ],
        "formats": ["<u8", "<u8", "<u8", "<i4", "<u4", "<u4", "<u8", "<u4", "<u4", "<u8", "<u4"],
        "offsets": [0, 8, 16, 24, 28, 32, 40, 48, 52, 40, 48],
        "itemsize": 128,
    }
)
SGE: Final = np.dtype([("address", "<u8"), ("length", "<u4"), ("lkey", "<u4")])
WC: Final = np.dtype(
    {
        "names": ["wr_id", "status", "opcode", "vendor_err", "byte_len", "qp_num", "src_qp", "wc_flags"],
        "formats": ["<u8", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4"],
        "offsets": [0, 8, 12, 16, 20, 28, 32, 36],
        "itemsize": 48,
    }
)


assert RECV_WR.itemsize == 32
assert SGE.itemsize == 16


# ---------------------------------------------------------------------- structures for ctypes
class Context(ctypes.Structure):
    """`struct ibv_context`, up to the last field that we read."""

    _fields_ = [
        ("device", c_void_p),
        ("_0", c_void_p * 11),
        ("poll_cq", c_void_p),
        ("req_notify_cq", c_void_p),
        ("_1", c_void_p * 12),
        ("post_send", c_void_p),
        ("post_recv", c_void_p),
    ]


class DeviceAttr(ctypes.Structure):
    """`struct ibv_device_attr`, with names for what we read."""

    _fields_ = [
        ("_0", c_uint8 * 112),
        ("max_qp_wr", c_int),
        ("_1", c_uint8 * 16),
        ("max_cqe", c_int),
        ("_2", c_uint8 * 8),
        ("max_qp_rd_atom", c_int),
        ("_3", c_uint8 * 8),
        ("max_qp_init_rd_atom", c_int),
        ("_4", c_uint8 * 28),
        ("max_mcast_grp", c_int),
        ("max_mcast_qp_attach", c_int),
        ("_5", c_uint8 * 36),
    ]


class PortAttr(ctypes.Structure):
    """`struct ibv_port_attr`, with names for what we read."""

    _fields_ = [
        ("state", c_int),
        ("_0", c_uint8 * 4),
        ("active_mtu", c_int),
        ("_1", c_uint8 * 16),
        ("qkey_viol_cntr", c_uint32),
        ("_2", c_uint8 * 14),
        ("link_layer", c_uint8),
        ("_3", c_uint8 * 9),
    ]


class GidEntry(ctypes.Structure):
    """`struct ibv_gid_entry`."""

    _fields_ = [
        ("gid", c_uint8 * 16),
        ("gid_index", c_uint32),
        ("port_num", c_uint32),
        ("gid_type", c_uint32),
        ("ndev_ifindex", c_uint32),
    ]


class MemoryRegionStruct(ctypes.Structure):
    """`struct ibv_mr`."""

    _fields_ = [
        ("context", c_void_p),
        ("pd", c_void_p),
        ("addr", c_void_p),
        ("length", c_size_t),
        ("handle", c_uint32),
        ("lkey", c_uint32),
        ("rkey", c_uint32),
    ]


class CompChannelStruct(ctypes.Structure):
    """`struct ibv_comp_channel`."""

    _fields_ = [("context", c_void_p), ("fd", c_int), ("refcnt", c_int)]


class QpCap(ctypes.Structure):
    """`struct ibv_qp_cap`."""

    _fields_ = [
        ("max_send_wr", c_uint32),
        ("max_recv_wr", c_uint32),
        ("max_send_sge", c_uint32),
        ("max_recv_sge", c_uint32),
        ("max_inline_data", c_uint32),
    ]


class QpInitAttr(ctypes.Structure):
    """`struct ibv_qp_init_attr`."""

    _fields_ = [
        ("qp_context", c_void_p),
        ("send_cq", c_void_p),
        ("recv_cq", c_void_p),
        ("srq", c_void_p),
        ("cap", QpCap),
        ("qp_type", c_int),
        ("sq_sig_all", c_int),
    ]


class AhAttr(ctypes.Structure):
    """`struct ibv_ah_attr`, the global route in front."""

    _fields_ = [
        ("dgid", c_uint8 * 16),
        ("flow_label", c_uint32),
        ("sgid_index", c_uint8),
        ("hop_limit", c_uint8),
        ("traffic_class", c_uint8),
        ("_", c_uint8),
        ("dlid", c_uint16),
        ("sl", c_uint8),
        ("src_path_bits", c_uint8),
        ("static_rate", c_uint8),
        ("is_global", c_uint8),
        ("port_num", c_uint8),
    ]


class QpAttr(ctypes.Structure):
    """`struct ibv_qp_attr`."""

    _fields_ = [
        ("qp_state", c_int),
        ("cur_qp_state", c_int),
        ("path_mtu", c_int),
        ("path_mig_state", c_int),
        ("qkey", c_uint32),
        ("rq_psn", c_uint32),
        ("sq_psn", c_uint32),
        ("dest_qp_num", c_uint32),
        ("qp_access_flags", c_uint32),
        ("cap", QpCap),
        ("ah_attr", AhAttr),
        ("alt_ah_attr", AhAttr),
        ("pkey_index", c_uint16),
        ("alt_pkey_index", c_uint16),
        ("en_sqd_async_notify", c_uint8),
        ("sq_draining", c_uint8),
        ("max_rd_atomic", c_uint8),
        ("max_dest_rd_atomic", c_uint8),
        ("min_rnr_timer", c_uint8),
        ("port_num", c_uint8),
        ("timeout", c_uint8),
        ("retry_cnt", c_uint8),
        ("rnr_retry", c_uint8),
        ("alt_port_num", c_uint8),
        ("alt_timeout", c_uint8),
        ("rate_limit", c_uint32),
        ("_", c_uint32),
    ]


class QueuePairStruct(ctypes.Structure):
    """`struct ibv_qp`, up to its number."""

    _fields_ = [
        ("context", c_void_p),
        ("qp_context", c_void_p),
        ("pd", c_void_p),
        ("send_cq", c_void_p),
        ("recv_cq", c_void_p),
        ("srq", c_void_p),
        ("handle", c_uint32),
        ("qp_num", c_uint32),
    ]


_PROTOTYPES: Final = {
    "ibv_get_device_list": (c_void_p, [POINTER(c_int)]),
    "ibv_free_device_list": (None, [c_void_p]),
    "ibv_get_device_name": (ctypes.c_char_p, [c_void_p]),
    "ibv_open_device": (c_void_p, [c_void_p]),
    "ibv_close_device": (c_int, [c_void_p]),
    "ibv_query_device": (c_int, [c_void_p, POINTER(DeviceAttr)]),
    "ibv_query_port": (c_int, [c_void_p, c_uint8, POINTER(PortAttr)]),
    "_ibv_query_gid_table": (c_ssize_t, [c_void_p, POINTER(GidEntry), c_size_t, c_uint32, c_size_t]),
    "ibv_alloc_pd": (c_void_p, [c_void_p]),
    "ibv_dealloc_pd": (c_int, [c_void_p]),
    "ibv_reg_mr": (POINTER(MemoryRegionStruct), [c_void_p, c_void_p, c_size_t, c_int]),
    "ibv_dereg_mr": (c_int, [POINTER(MemoryRegionStruct)]),
    "ibv_create_comp_channel": (POINTER(CompChannelStruct), [c_void_p]),
    "ibv_destroy_comp_channel": (c_int, [POINTER(CompChannelStruct)]),
    "ibv_create_cq": (c_void_p, [c_void_p, c_int, c_void_p, POINTER(CompChannelStruct), c_int]),
    "ibv_destroy_cq": (c_int, [c_void_p]),
    "ibv_get_cq_event": (c_int, [POINTER(CompChannelStruct), POINTER(c_void_p), POINTER(c_void_p)]),
    "ibv_ack_cq_events": (None, [c_void_p, ctypes.c_uint]),
    "ibv_create_qp": (POINTER(QueuePairStruct), [c_void_p, POINTER(QpInitAttr)]),
    "ibv_modify_qp": (c_int, [POINTER(QueuePairStruct), POINTER(QpAttr), c_int]),
    "ibv_destroy_qp": (c_int, [POINTER(QueuePairStruct)]),
    "ibv_create_ah": (c_void_p, [c_void_p, POINTER(AhAttr)]),
    "ibv_destroy_ah": (c_int, [c_void_p]),
    "ibv_attach_mcast": (c_int, [POINTER(QueuePairStruct), c_void_p, c_uint16]),
    "ibv_detach_mcast": (c_int, [POINTER(QueuePairStruct), c_void_p, c_uint16]),
}

PollCq = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)
RequestNotify = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)
Post = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_void_p))


@functools.cache
def load() -> ctypes.CDLL:
    """The library with its prototypes set. Raises OSError where it is not installed."""
    # With this set the library copes with fork(): pages that are registered stay with the parent.
    os.environ.setdefault("RDMAV_FORK_SAFE", "1")
    library = ctypes.CDLL(LIBRARY, use_errno=True)
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library
