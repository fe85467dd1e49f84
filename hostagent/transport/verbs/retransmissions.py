"""How often a NIC had to ask again: its driver's counters (sysfs), those that count at the reading end.

They belong to the port, not to a connection: they show other programs' losses, too. A look may cost the driver a
command to the NIC's firmware, so we look now and then, and only while reads are in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hostagent import limits

COUNTERS: Final = (
    *("implied_nak_seq_err", "packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans"),
    *("missing_resp", "seq_err_naks_rcvd", "to_retransmits"),
    "completer_retry_err",
)
"""Of mlx5 (ConnectX, BlueField), bnxt_re (Broadcom), and soft-RoCE: a response that is missing, a request that was, a
timeout. A driver has some of them; of one that has none, only timeouts show, as pieces that take that long."""
_WRAP: Final = 1 << 32
_TEXT_BYTES: Final = 32


class Retransmissions:
    """The counters, open to be read at any time."""

    def __init__(self, *directories: Path) -> None:
        """`directories`: where the driver shows counters; the first directory that has a name supplies it."""
        self._files: dict[str, int] = {}
        self._last: dict[str, int] = {}
        for name in COUNTERS:
            for directory in directories:
                with contextlib.suppress(OSError):
                    self._files.setdefault(name, os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC))
                    break
        self.since_last()

    @property
    def names(self) -> tuple[str, ...]:
        """Those that this driver has."""
        return tuple(self._files)

    def since_last(self) -> int:
        """How far they have moved since the last call, together."""
        moved = 0
        for name, descriptor in self._files.items():
            try:
                value = int(os.pread(descriptor, _TEXT_BYTES, 0))
            except (OSError, ValueError):
                # The device is going away, or counts this no more; reads will fail by themselves.
                continue
            moved += (value - self._last.get(name, value)) % _WRAP
            self._last[name] = value
        return moved

    def close(self) -> None:
        """Idempotent."""
        while self._files:
            os.close(self._files.popitem()[1])


class LossWatch:
    """Reports losses while reads were in flight."""

    def __init__(
        self,
        counters: Retransmissions,
        loop: asyncio.AbstractEventLoop,
        in_flight: Callable[[], bool],
        lost: Callable[[int, int, int], None],
        looks: Callable[[], None],
    ) -> None:
        """`lost` hears how many retransmissions there were, and between which times of the loop (nanoseconds). `looks`
        is called each time that the counters are looked at."""
        self._counters = counters
        self._loop = loop
        self._in_flight = in_flight
        self._lost = lost
        self._looks = looks
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Something is in flight from now on; what moved the counters before is nothing to us. Idempotent."""
        if self._timer is None:
            self._counters.since_last()
            self._look_later()

    def close(self) -> None:
        """Look no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        self._counters.close()

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(limits.VERBS_READ_LOSSES_S, self._look, self._now_ns())

    def _look(self, since_ns: int) -> None:
        self._timer = None
        self._looks()
        count = self._counters.since_last()
        if count:
            self._lost(count, since_ns, self._now_ns())
        if self._in_flight():
            self._look_later()

    def _now_ns(self) -> int:
        return int(self._loop.time() * 1e9)
