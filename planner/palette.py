"""One colour for each source of KV, in every picture: the plan's, the benchmarks', the demo's and the live page's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvchunk.sources import ChunkSource

LOCAL: Final = "#4c9f70"
HOLDER: Final = "#3b6ea5"
CAST: Final = "#e8a33d"
SWITCH: Final = "#c8553d"
DISK: Final = "#8a6fb0"
COLD: Final = "#5f8f9f"
COMPUTED: Final = "#a8b0b9"
LIMIT: Final = "#16202b"
"""What cannot be passed: a link's rate, an infinite cache."""

SOURCES: Final[Mapping[str, str]] = {
    ChunkSource.LOCAL.label: LOCAL,
    ChunkSource.HOLDER.label: HOLDER,
    ChunkSource.CAST.label: CAST,
    ChunkSource.SWITCH.label: SWITCH,
    ChunkSource.DISK.label: DISK,
    ChunkSource.COLD.label: COLD,
    "computed": COMPUTED,
}
"""By the source's name, in the order in which bars are stacked."""

REPLICAS: Final = "#7fb0d8"
"""From a holder too, of several."""
RELAY: Final = "#5b5b8c"
"""From another reader."""
MERGED: Final = "#8f5a12"
"""Cast while it was being computed."""
