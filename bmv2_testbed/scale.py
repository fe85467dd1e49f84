"""How far each target is scaled down from real hardware.

On real hardware a block of a trace is 64 MiB of KV on a link of 100 Gbit/s. All scales divide both alike, so that a
block takes the same 5 ms and seconds stay seconds.

bmv2 forwards some ten thousand packets a second, in segments of 256 bytes. With the program for Tofino, circulating
segments in p4switch must come by within the 5 ms that readers take for reordering (`kvproto.session.timing.GAP_NS`), as
they do on a Tofino: 512 segments take 4.3 ms at the 4 Gbit/s of its recirculation port.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from bmv2_testbed.spec import Target

CORE_BIT_S: Final = 50_000_000
"""Of each rack's link to the others: two cores carry no more of them."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes that suit a target; the defaults of benchmarks and demo."""

    link_bit_s: int
    block_bytes: int
    """One block of a trace."""
    incast_bytes: int
    """The prefix of the incast, and its chunks."""
    chunk_bytes: int
    slots: int
    """Segments that the switch may hold."""


FULL: Final = Scale(
    link_bit_s=100_000_000, block_bytes=64 * 1024, incast_bytes=16 * 2**20, chunk_bytes=2**20, slots=16384
)
_QUARTER: Final = Scale(
    link_bit_s=25_000_000, block_bytes=16 * 1024, incast_bytes=2**20, chunk_bytes=128 * 1024, slots=512
)
_SIXTEENTH: Final = Scale(
    link_bit_s=6_250_000, block_bytes=4 * 1024, incast_bytes=2**20, chunk_bytes=64 * 1024, slots=16384
)

SCALES: Final[Mapping[Target, Scale]] = MappingProxyType(
    {Target.P4SWITCH: FULL, Target.BRIDGE: FULL, Target.TNA: _QUARTER, Target.BMV2: _SIXTEENTH}
)
