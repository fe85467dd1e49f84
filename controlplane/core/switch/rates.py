"""How much a member's port may ask for in a second, and how that follows from what the port carries. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controlplane.core.ids import Member, SwitchPort
from controlplane.core.switch.entries import Entry, Request, RequestLimitEntry, SegmentLimitEntry

LIMIT_KINDS = frozenset({"request_limit", "segment_limit"})
_WIRE_BYTES: Final = 122
"""Of a segment beside its payload: headers 98, FCS 4, preamble and gap 20."""
_SEGMENTS_SPARE: Final = 2
"""A leader asks for what its own link takes; twice that, for segments that were lost and asked for again."""
_SEGMENTS_A_GET: Final = 4
"""A GET at line rate asks for 16 segments at least, and repairs of single ones are a tenth of all at most: one GET for
every six segments. Four leave room."""
_SEGMENTS_A_JOIN: Final = 32
"""Chunks of 64 segments, the least that is worth a cast, with a JOIN and an announcement each."""
_JOINS_LEAST: Final = 4096
"""128 chunks joined at a time, renewed three times within a time to live, asked for again where answers are lost."""
_BURST_S: Final = 0.1
"""A host may stand still for this long, and then do all at once."""
_BURST_LEAST: Final = 1024


@dataclass(frozen=True, slots=True)
class PortLimits:
    """What each member's port may cause, packets a second."""

    joins_per_s: int
    gets_per_s: int
    segments_per_s: int
    """Cast because of this member: those of chunks that it leads, and those that the switch serves to it."""

    @classmethod
    def of_rate(cls, rate_bit_s: int, segment_bytes: int) -> PortLimits:
        """Limits that no honest host meets whose port carries `rate_bit_s`."""
        segments = max(1, rate_bit_s // (8 * (segment_bytes + _WIRE_BYTES)))
        return cls(
            joins_per_s=max(_JOINS_LEAST, segments // _SEGMENTS_A_JOIN),
            gets_per_s=max(_JOINS_LEAST, segments // _SEGMENTS_A_GET),
            segments_per_s=max(_JOINS_LEAST, segments * _SEGMENTS_SPARE),
        )

    def entries(self, members: Mapping[Member, SwitchPort]) -> Iterable[Entry]:
        """Limits of these members at these ports."""
        for member, port in members.items():
            for request, per_s in ((Request.JOIN, self.joins_per_s), (Request.GET, self.gets_per_s)):
                yield RequestLimitEntry(port, request, per_s, _burst(per_s))
            yield SegmentLimitEntry(member, self.segments_per_s, _burst(self.segments_per_s))


def _burst(per_s: int) -> int:
    return max(_BURST_LEAST, round(per_s * _BURST_S))
