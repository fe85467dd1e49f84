"""One incast in numbers: what `kvcast bench protocol` and the tests of figures simulate, and what they report."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvclient.messages import Status
from kvproto.fanout import Fanout
from kvproto.limits import MS
from kvsim.link import CLEAN, Faults
from kvsim.node import Scheduling
from kvsim.world import Setting, World

QUICK: Final = Scheduling(base_ns=5_000, mean_ns=15_000, stall_probability=0.0005, stall_ns=1 * MS)
"""A host that polls: 20 us late on average, stalls of up to 1 ms."""
SLOW: Final = Scheduling()
"""A host whose kernel wakes an interpreter: 0.45 ms late on average, stalls of up to 20 ms."""
LATE: Final = Scheduling(base_ns=1 * MS, mean_ns=15_000, stall_probability=0.0005, stall_ns=1 * MS)
"""A host that runs 1 ms late, always."""
DELAY_NS: Final = 2_000
"""Of a link: 50 m of cable and a switch's port."""
QUEUE_NS: Final = 21 * MS
"""Of a port, at 100 Mbit/s 256 KiB."""
QUEUE_BYTES_MAX: Final = 8 << 20
"""Of a port on a fast switch: its share of a shared buffer."""
AT_ONCE_FRACTION: Final = 50
"""Readers that begin at once do so within this part of a transfer, and within 2 ms."""
_LINGER_NS: Final = 1 * MS


class Hosts(enum.Enum):
    """Which hosts the readers run on. The holder's is always a quick one, unless all are slow."""

    QUICK = "quick"
    SLOW = "slow"
    MIXED = "mixed"
    """Every other reader's host is a LATE one."""


@dataclass(frozen=True, slots=True)
class Incast:
    """Readers that fetch one prefix from one holder."""

    rate_bit_s: int
    size_bytes: int
    readers: int = 8
    chunk_bytes: int = 1 << 20
    segment_bytes: int = 4096
    stagger: bool = False
    """Readers begin at random times within one transfer, not at once."""
    hosts: Hosts = Hosts.QUICK
    racks: int = 1
    """Readers are spread over so many, the holder is in the first. Their switches cast to each other's racks, over ways
    as fast as one host's link."""
    loss: float = 0.0
    """At each link, as a probability."""
    fanout: Fanout = Fanout.SWITCH
    """What is in the middle: a kvcast switch, one that multicasts, or one that only forwards."""
    seed: int = 1

    def __post_init__(self) -> None:
        if self.size_bytes < self.segment_bytes or self.chunk_bytes < self.segment_bytes:
            raise ValueError(f"prefix and chunk have at least one segment of {self.segment_bytes} bytes")
        if not 1 <= self.racks <= self.readers:
            raise ValueError(f"{self.readers} readers are not in {self.racks} racks")
        if self.racks > 1 and self.fanout is not Fanout.SWITCH:
            raise ValueError(f"racks are simulated with kvcast switches, not by {self.fanout.name.lower()}")

    @property
    def transfer_ns(self) -> int:
        """S/B: what the prefix alone takes on one link."""
        return int(self.size_bytes * 8e9 / self.rate_bit_s)

    @property
    def late_readers(self) -> tuple[int, ...]:
        """Readers on LATE hosts."""
        return tuple(range(1, self.readers, 2)) if self.hosts is Hosts.MIXED else ()

    def setting(self) -> Setting:
        """The same for the simulator. Chunks have equal sizes, so the last one may make the prefix a little longer."""
        chunks = -(-self.size_bytes // self.chunk_bytes)
        rate = self.rate_bit_s / 8
        return Setting(
            readers=self.readers,
            chunks=chunks,
            segments=-(-self.size_bytes // (chunks * self.segment_bytes)),
            segment_bytes=self.segment_bytes,
            plain=self.fanout is not Fanout.SWITCH,
            is_known_plain=self.fanout is Fanout.RELAY,
            fanout=self.fanout,
            racks=self.racks,
            tunnels=self.racks > 1,
            core_rate_bytes_per_s=rate,
            rate_bytes_per_s=rate,
            delay_ns=DELAY_NS,
            queue_ns=int(min(QUEUE_NS, QUEUE_BYTES_MAX / rate * 1e9)),
            stagger_ns=self.transfer_ns if self.stagger else 0,
            skew_ns=max(1, min(2 * MS, self.transfer_ns // AT_ONCE_FRACTION)),
            faults=Faults(loss=self.loss) if self.loss else CLEAN,
            scheduling=SLOW if self.hosts is Hosts.SLOW else QUICK,
            scheduling_of=dict.fromkeys(self.late_readers, LATE),
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class IncastResult:
    """Results of one or several simulated incasts. Ratios are times over S/B."""

    mean_ratio: float
    max_ratio: float
    quick_mean_ratio: float
    """Of the readers that are not on LATE hosts."""
    holder_tx_S: float  # noqa: N815 - S is the prefix, as everywhere
    readers_tx_S: float  # noqa: N815
    complete: bool
    """Every reader has every chunk."""


def simulate(incast: Incast, moved: Callable[[float], None] = lambda _: None) -> IncastResult:
    """Run it; `moved` is called with the share of the readers' chunks that has arrived, now and then."""
    world = World(incast.setting())
    whole_bytes = incast.readers * len(world.keys) * world.setting.segments * world.setting.segment_bytes
    step_ns = max(1, incast.transfer_ns // 50)

    def look() -> None:
        moved(sum(node.core.pool.usage().ready_bytes for node in world.readers) / whole_bytes)
        if not world.finished():
            world.engine.at(world.engine.now_ns + step_ns, look)

    world.engine.at(0, look)
    report = world.run(_LINGER_NS)
    return IncastResult(
        report.mean,
        report.worst,
        report.mean_without(*incast.late_readers),
        report.holder_tx,
        report.readers_tx,
        set(report.outcomes) == {Status.OK},
    )


def combine(results: list[IncastResult]) -> IncastResult:
    """Means over several seeds, and the longest of all readers."""
    count = len(results)
    return IncastResult(
        sum(result.mean_ratio for result in results) / count,
        max(result.max_ratio for result in results),
        sum(result.quick_mean_ratio for result in results) / count,
        sum(result.holder_tx_S for result in results) / count,
        sum(result.readers_tx_S for result in results) / count,
        all(result.complete for result in results),
    )
