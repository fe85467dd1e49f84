"""What the protocol adds to bytes and times, from its own constants. Pure.

Nothing here is fitted: headers are the wire formats', waits are `kvproto.session.timing`'s, and TCP's unequal shares
are its own window rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kvproto.limits import SEGMENT_BYTES_DEFAULT
from kvproto.session.timing import (
    BATCH_MAX,
    BATCH_MIN,
    BATCHES_PER_WINDOW,
    EVALUATE,
    FILL_RIDES_MAX_NS,
    FILL_RIDES_NS,
    NEWCOMER_ANSWERS,
    PULL_TIMEOUT_QUIET,
    RANK_STEP,
    REPAIR_DELAY_UNLED,
    WINDOW_DELAY,
)
from kvproto.wire.data import DATA_OVERHEAD_BYTES
from kvproto.wire.layouts import ETHERNET_BYTES, IPV4_BYTES, KV_CONTROL_BYTES, UDP_BYTES

_S: Final = 1e-9
_DATAGRAM_BYTES: Final = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES
CONTROL_BYTES: Final = _DATAGRAM_BYTES + KV_CONTROL_BYTES
TCP_FRAME_BYTES: Final = ETHERNET_BYTES + IPV4_BYTES + 32
"""Headers of a TCP segment with timestamps (RFC 7323), and all of a bare acknowledgement."""
DIGEST_BYTES_PER_S: Final = 10e9
"""BLAKE3 over memory by two threads of 5 to 7 GB/s: 0.1 ms per MiB."""

ALONE_S: Final = EVALUATE.ceiling_ns * _S
"""A reader without company asks for more when its first stripes arrive."""
ANSWER_S: Final = 0.5e-3
"""An agent's JOIN and the switch's answer: nearly all of it is the agent. Its reads of 4 KiB take as long, question and
answer: 0.3 to 0.5 ms."""
NEWCOMER_S: Final = NEWCOMER_ANSWERS * ANSWER_S
"""A reader in company waits for what may be under way before it leads."""
HANDOVER_S: Final = RANK_STEP.ceiling_ns * _S
"""Between the end of what a leader pulled and the first segment of the one that takes over, if that is another."""
FILL_RIDES_S: Final = FILL_RIDES_NS * _S
"""A fill waits for so long for the next cast on which it may ride, before it sends the rest by itself."""
FILL_RIDES_MAX_S: Final = FILL_RIDES_MAX_NS * _S
"""While its holder casts other chunks it waits no longer than this."""
REPAIR_ROUND_S: Final = (REPAIR_DELAY_UNLED.ceiling_ns + PULL_TIMEOUT_QUIET.ceiling_ns) * _S
"""A round of repairs at the end of a fetch, when nothing else is under way to show that something was lost."""


@dataclass(frozen=True, slots=True)
class WireTerms:
    """Bytes of frames (Ethernet header included, preamble not) that chunks become."""

    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    mtu_bytes: int = 9000
    rtt_s: float = 20e-6
    """Between a host and its switch and back: cut-through hops in a rack, with the hosts' stacks."""
    loss: float = 0.0
    """Probability that a packet is lost at each switch port it passes."""

    def segments(self, size_bytes: float) -> int:
        """Of a chunk; the last one is padded."""
        return max(1, math.ceil(size_bytes / self.segment_bytes))

    def cast_factor(self) -> float:
        """Wire bytes of a cast per byte of chunk."""
        return (self.segment_bytes + DATA_OVERHEAD_BYTES + _DATAGRAM_BYTES) / self.segment_bytes

    def fill_factor(self) -> float:
        """Wire bytes of a cast on which a fill rides, per byte of the same cast: each datagram is in a FILL."""
        return 1 + KV_CONTROL_BYTES / (self.segment_bytes + DATA_OVERHEAD_BYTES + _DATAGRAM_BYTES)

    def stream_factor(self) -> float:
        """Wire bytes of a reliable read per byte of chunk."""
        payload = self.mtu_bytes - (TCP_FRAME_BYTES - ETHERNET_BYTES)
        return (payload + TCP_FRAME_BYTES) / payload

    def ack_factor(self) -> float:
        """Bytes of acknowledgements per byte that a reliable read brings: one per full segment (receive offload merges
        what it can, acknowledgements go by segment)."""
        return TCP_FRAME_BYTES / (self.mtu_bytes - (TCP_FRAME_BYTES - ETHERNET_BYTES))

    def gets(self, size_bytes: float, rate_bytes_per_s: float) -> int:
        """GETs that pull `size_bytes` of a chunk: a window spans WINDOW_DELAY, a batch is a quarter of it."""
        window = rate_bytes_per_s * WINDOW_DELAY.ceiling_ns * _S / self.segment_bytes
        batch = min(BATCH_MAX, max(BATCH_MIN, int(window / BATCHES_PER_WINDOW)))
        return math.ceil(self.segments(size_bytes) / batch)

    def repeated(self, receivers: int) -> float:
        """How often a segment is cast until each of `receivers` has it, on average.

        A packet is lost for all on its way to the switch, or for each on its way from it. Of k casts j pass the switch
        with binomial probability, and a receiver then lacks the segment with loss^j; the mean is the sum over k of the
        probability that a reader still lacks it.
        """
        if self.loss == 0:
            return 1.0
        mean, casts = 0.0, 0
        while True:
            all_have = sum(
                math.comb(casts, passed)
                * (1 - self.loss) ** passed
                * self.loss ** (casts - passed)
                * (1 - self.loss**passed) ** receivers
                for passed in range(casts + 1)
            )
            if 1 - all_have < 1e-6:
                return mean
            mean, casts = mean + 1 - all_have, casts + 1

    def repair_tail_s(self, last_chunk_bytes: float) -> float:
        """Time that the repairs of a fetch's last chunk take after its cast: rounds until nothing is missing."""
        lost = 1 - (1 - self.loss) ** 2
        missing, rounds = self.segments(last_chunk_bytes) * lost, 0
        while missing >= 0.5:
            rounds += 1
            missing *= lost
        return rounds * REPAIR_ROUND_S


def stream_weight(reader: int, holder: int) -> float:
    """Share of a TCP connection among others on one bottleneck, 1 to 2.

    A window is somewhere between what it was halved to and what it is halved at (RFC 5681; slow start doubles, loss
    halves), so connections that begin together keep windows spread over a factor of two for about as long as a fetch
    takes. Spread evenly by a low-discrepancy sequence instead of chance (Roberts' R2).
    """
    return float(2.0 ** ((reader * 0.7548776662466927 + holder * 0.5698402909980532) % 1.0))
