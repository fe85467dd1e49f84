"""Which segments RDMA NICs can cast."""

from kvproto.limits import SEGMENT_BLOCK_BYTES
from kvproto.wire.layouts import KV_DATA_BYTES


def rdma_segment_bytes_max(mtu_bytes: int) -> int:
    """The largest segments of a switch program that go through NICs with this RDMA MTU.

    A UD message is one packet (IBTA 9.8.3), whose payload is the chunk header and one segment: an MTU of 4096 takes
    3840, of 2048 takes 1792, of 1024 takes 768.
    """
    return (mtu_bytes - KV_DATA_BYTES) // SEGMENT_BLOCK_BYTES * SEGMENT_BLOCK_BYTES
