"""What engines do in a soak: put prefixes, fetch those of others, compare every byte. Which prefix when is arithmetic
that every host and every attacker can do."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from typing import Any, Final

from bmv2_testbed.content import Prefix, content_of, same_content
from tests.soak.labels import label_of

EPOCH_S: Final = 4.0
"""Each host puts one prefix in each."""
WINDOW_EPOCHS: Final = 3
"""Prefixes of this epoch and the ones before it are fetched."""
CHUNK_BYTES: Final = 256 * 1024
PREFIX_BYTES: Final = 4 * CHUNK_BYTES
SEGMENT_BYTES: Final = 4096
DEADLINE_S: Final = 10.0
LATE_S: Final = 5.0
"""What a busy machine may take from a deadline to the answer; what hangs takes for ever."""
HUNG_S: Final = 30.0
"""So long after its deadline nobody waits for an answer any more."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Since when (monotonic), with which seed, among how many hosts that put."""

    began_s: float
    seed: int
    hosts: int

    def epoch(self, now_s: float) -> int:
        """Of this moment."""
        return max(0, int((now_s - self.began_s) / EPOCH_S))

    def prefix(self, epoch: int, host: int) -> Prefix:
        """What a host puts in an epoch."""
        return Prefix((self.seed << 24) + epoch * self.hosts + host, PREFIX_BYTES, CHUNK_BYTES)

    def label(self, epoch: int, host: int) -> str:
        """The namespace of that prefix."""
        return label_of(epoch * self.hosts + host)

    def window(self, now_s: float) -> list[Prefix]:
        """What may be fetched now."""
        last = self.epoch(now_s)
        epochs = range(max(0, last - WINDOW_EPOCHS + 1), last + 1)
        return [self.prefix(epoch, host) for epoch in epochs for host in range(self.hosts)]


def wrong_chunks(keys: Sequence[bytes], views: Sequence[memoryview]) -> int:
    """How many of these views do not hold the bytes of their keys."""
    return sum(not same_content(view, content_of(key, CHUNK_BYTES)) for key, view in zip(keys, views, strict=True))


def until_stopped() -> Callable[[], bool]:
    """Whether this process is to go on: until SIGTERM comes."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    return lambda: not stopped


@dataclass(frozen=True, slots=True)
class Diary:
    """Lines of JSON, one for each thing that a process of a host did. `who`: an engine, a loader. Of two threads each
    writes whole lines, and a child that was forked has nothing of its parent's to flush."""

    out: FileIO
    host: int
    who: str

    def tell(self, what: str, **fields: Any) -> None:
        """It did this."""
        line = {"what": what, "host": self.host, "who": self.who, "at_s": time.monotonic()} | fields
        self.out.write(json.dumps(line).encode() + b"\n")
