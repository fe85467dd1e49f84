"""Named limits of the testbed, and how they relate."""

from __future__ import annotations

from typing import Final

LINK_MTU_BYTES: Final = 9000
"""Data links carry jumbo frames: a 4096-byte segment and its headers make an IP packet of 4164 bytes."""

MEMBERS_MAX: Final = 64
"""Members that one switch can distinguish (bits of `members` in a NOTICE)."""

HOSTS_MAX: Final = MEMBERS_MAX
INTERFACE_NAME_CHARS_MAX: Final = 15

SEGMENT_BYTES: Final = 4096
BMV2_SEGMENT_BYTES_MAX: Final = 256
"""bmv2 grows a packet by 512 bytes at most when it turns a GET into a data datagram."""

SHAPER_BURST_BYTES_MIN: Final = 2 * (LINK_MTU_BYTES + 14)
"""A token bucket smaller than a frame would drop it for ever; two let a frame go while the next one waits."""

SHAPER_BURST_S: Final = 0.002
SHAPER_QUEUE_S: Final = 0.02
SHAPER_QUEUE_BYTES_MIN: Final = 256 * 1024

START_DEADLINE_S: Final = 180.0
"""Longest wait for network, switch, controller and agents together (a switch program may have to
be compiled, on a machine that does ten other things)."""

GUEST_BOOT_DEADLINE_S: Final = 600.0
GUEST_START_DEADLINE_S: Final = 1200.0
"""The same with guests: software emulation is some twenty times slower than the machine that it runs on, and three
guests on a machine with a load of 30 have taken 260 s."""

RPC_LINE_BYTES_MAX: Final = 16 * 1024 * 1024
STOP_GRACE_S: Final = 3.0
LOG_TAIL_BYTES: Final = 4096


def shaper_burst_bytes(rate_bit_s: int) -> int:
    """Bucket of a token-bucket shaper: two jumbo frames or 2 ms, whichever is more."""
    return max(SHAPER_BURST_BYTES_MIN, round(rate_bit_s / 8 * SHAPER_BURST_S))


def shaper_queue_bytes(rate_bit_s: int) -> int:
    """Queue of a shaper: 20 ms, at least 256 KiB."""
    return max(SHAPER_QUEUE_BYTES_MIN, round(rate_bit_s / 8 * SHAPER_QUEUE_S))


FETCH_DEADLINE_S: Final = 60.0

assert SHAPER_QUEUE_BYTES_MIN > SHAPER_BURST_BYTES_MIN
