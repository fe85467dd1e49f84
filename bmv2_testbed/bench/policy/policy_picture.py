"""The picture of policies, for a paper's column: what each finds in a pool, over the pool's size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from bmv2_testbed.bench.policy.compare import BELADY, OURS, WITHOUT_HINTS, PolicyHit
from planner import palette
from planner.report.style import column_figure, paper, save

_NAMES: Final = {
    OURS: "kvcast",
    WITHOUT_HINTS: "kvcast, no hints",
    BELADY: "Belady",
    "lru": "LRU",
    "lfu": "LFU",
    "lfuda-gdsf": "LFUDA, GDSF",
    "arc": "ARC",
    "s3-fifo": "S3-FIFO",
    "sieve": "SIEVE",
    "w-tinylfu": "W-TinyLFU",
    "lfuda-library": "LFUDA (libCacheSim)",
    "w-tinylfu-library": "W-TinyLFU (libCacheSim)",
}
_MARKERS: Final = "ovs^DPX<>"
_LOOKS: Final[Mapping[str, Any]] = {
    OURS: {"color": palette.CAST, "linewidth": 1.6, "marker": "o", "markersize": 3, "zorder": 5},
    WITHOUT_HINTS: {"color": palette.MERGED, "linewidth": 1.2, "marker": "o", "markersize": 2, "zorder": 4},
    BELADY: {"color": palette.LIMIT, "linestyle": "--", "linewidth": 0.8},
}
_PEER_COLOURS: Final = (palette.HOLDER, palette.LOCAL, palette.SWITCH, palette.DISK, palette.COLD, palette.PEER)


def draw(hits: Sequence[PolicyHit], stem: Path) -> list[Path]:
    """Write STEM.svg and STEM.png; returns them. Raises OSError."""
    with paper():
        return save(figure(hits), stem)[1]


def figure(hits: Sequence[PolicyHit]) -> Figure:
    """A line for each policy; of several traces the mean, every trace counted alike."""
    made = column_figure(3.0)
    axes = made.subplots()
    pools = sorted({hit.pool for hit in hits})
    peers = [policy for policy in dict.fromkeys(hit.policy for hit in hits) if policy not in _LOOKS]
    for policy in dict.fromkeys(hit.policy for hit in hits):
        means = []
        for pool in pools:
            found = [hit.hit for hit in hits if hit.policy == policy and hit.pool == pool]
            means.append(100 * sum(found) / len(found))
        look = _LOOKS.get(policy) or _peer_look(peers.index(policy))
        axes.plot([100 * pool for pool in pools], means, label=_NAMES[policy], **look)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([100 * pool for pool in pools]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:g} %")
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.set_xlabel("pool, share of the footprint")
    axes.set_ylabel("tokens found in the pool")
    axes.grid(axis="y", linewidth=0.3, color=palette.lighter(palette.COMPUTED, 0.4))
    made.legend(loc="outside upper center", ncols=3)
    return made


def _peer_look(at: int) -> dict[str, Any]:
    colour = _PEER_COLOURS[at % len(_PEER_COLOURS)]
    return {"color": colour, "linewidth": 0.7, "marker": _MARKERS[at % len(_MARKERS)], "markersize": 2.2}
