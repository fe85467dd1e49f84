"""Sending: hands runs of segments to the data path, which reports their outcomes."""

from __future__ import annotations

import ctypes
import errno
import logging
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from hostagent import limits
from hostagent.native.library import DECLARED, NativeThread, structure
from hostagent.transport.base import ChunkPlace
from hostagent.transport.host import Host
from kvchunk.ids import ChunkKey
from kvproto.wire.control import Control, Flag, Op
from kvproto.wire.data import Fabric, header_template, segments_of
from kvproto.wire.icrc import icrc_seed
from kvproto.wire.layouts import KV_CONTROL_BYTES, KV_CONTROL_DTYPE

log = logging.getLogger(__name__)

_OUTCOMES = 64
"""Most outcomes fetched by one call."""
_Job: Final = structure("job")
assert KV_CONTROL_DTYPE.fields is not None
_FILL_SEGMENT_AT = int(KV_CONTROL_DTYPE.fields["segment"][1])

assert DECLARED.constants["DP_PREFIX_BYTES_MAX"] >= KV_CONTROL_BYTES


Told: TypeAlias = Callable[[ChunkKey, int], None]
"""Called with a chunk's key and how many of its segments had this outcome."""


Group: TypeAlias = tuple[int, int]
"""An address, and what it changes in the ICRC of a datagram to the fabric's group."""


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Segments [first, first + count) of a pinned chunk, as one fabric sends them."""

    chunk: ChunkPlace
    fabric: Fabric
    first: int
    count: int
    fill: Flag | None = None
    """Flags of the control header that stores them in a switch; None: without one."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    key: ChunkKey
    sent: Told
    failed: Told


class NativeSender:
    """Sends jobs in order through one socket, as fast as it takes them; several threads nearly in order."""

    def __init__(self, host: Host, sock: socket.socket, link_rate_bytes_s: int, threads: int = 1) -> None:
        """`sock` is bound and outlives this; `link_rate_bytes_s`: until it is measured. Raises MemoryError, OSError."""
        library, loop = host.native, host.loop
        self._library, self._loop, self._memory, self._source = library, loop, host.memory, host.own
        self._source_port: int = sock.getsockname()[1]
        self._pool_address = host.memory.bytes_.ctypes.data
        self._jobs: dict[int, _Waiting] = {}
        self._last_job = 0
        self._jobs_prepared: OrderedDict[tuple[ChunkPlace, Flag | None], tuple[ctypes.Structure, int]] = OrderedDict()
        """By chunk and how it is filled, for the fabric in use."""
        self._outcomes = (structure("outcome") * _OUTCOMES)()
        self._thread = NativeThread(
            library, "sender", loop, lambda wake: (sock.fileno(), wake, link_rate_bytes_s, threads), self._drain
        )
        self._sender = self._thread.pointer
        self._open = True

    def send(self, run: SegmentRun, to: Sequence[Group], port: int, sent: Told, failed: Told) -> None:
        """Queue a run, for each of 1 to GROUPS_MAX groups; its outcome is reported later, maybe in parts. Raises
        ValueError, MemoryError."""
        job, segments = self._prepared(run)
        if not 0 <= run.first < run.first + run.count <= segments:
            raise ValueError(f"segments {run.first}+{run.count} of {segments}")
        self._last_job += 1
        job.id, job.first, job.count = self._last_job, run.first, run.count
        job.port, job.groups_count = port, len(to)
        for place, group in enumerate(to):
            job.groups[place] = group
        if self._library.dp_sender_add(self._sender, ctypes.byref(job)):
            raise MemoryError("no memory for a job of the data path's sender")
        self._jobs[self._last_job] = _Waiting(run.chunk.key, sent, failed)

    def fabric_changed(self) -> None:
        """Forget everything prepared for the old fabric."""
        self._jobs_prepared.clear()

    def give_up(self) -> None:
        """Others send from now on: segments that have not left are reported as failed, later."""
        self._library.dp_sender_give_up(self._sender)
        for (tell, key), count in self._outcomes_now().items():
            self._loop.call_soon(tell, key, count)

    def close(self) -> None:
        """Send and report nothing more, except segments that were given up. Idempotent."""
        self._open = False
        self._thread.close()
        self._jobs.clear()

    # ------------------------------------------------------------------ inside

    def _prepared(self, run: SegmentRun) -> tuple[ctypes.Structure, int]:
        """What all runs of a chunk have in common, prepared before or now; and the chunk's number of segments."""
        chunk, fabric = run.chunk, run.fabric
        known = self._jobs_prepared.get((chunk, run.fill))
        if known is not None:
            return known
        segments = segments_of(chunk.size_bytes, fabric)
        # Checks that it lies in the pool.
        self._memory.view(chunk.offset, chunk.size_bytes)
        prefix = b"" if run.fill is None else Control(Op.FILL, chunk.key, segments, flags=run.fill).encode()
        job = _Job(
            chunk=self._pool_address + chunk.offset,
            size_bytes=chunk.size_bytes,
            segment_bytes=fabric.segment_bytes,
            icrc_seed=icrc_seed(self._source, fabric.group, self._source_port, fabric.datagram_bytes),
            prefix_bytes=len(prefix),
            prefix_segment=_FILL_SEGMENT_AT,
        )
        job.prefix[: len(prefix)] = prefix
        job.header[:] = header_template(chunk.key, chunk.size_bytes, fabric)
        if len(self._jobs_prepared) >= limits.CAST_PREPARED_CHUNKS_MAX:
            del self._jobs_prepared[next(iter(self._jobs_prepared))]
        self._jobs_prepared[chunk, run.fill] = job, segments
        return job, segments

    def _drain(self) -> None:
        for (tell, key), count in self._outcomes_now().items():
            if self._open:
                tell(key, count)

    def _outcomes_now(self) -> Counter[tuple[Told, ChunkKey]]:
        """Outcomes to report, summed so that each callback runs once per chunk: a callback may send more at once."""
        told: Counter[tuple[Told, ChunkKey]] = Counter()
        taken = _OUTCOMES
        while taken == _OUTCOMES:
            taken = self._library.dp_sender_drain(self._sender, self._outcomes, _OUTCOMES)
            if taken and self._outcomes[0].refused:
                _log_refused(self._outcomes[0].refused)
            for outcome in self._outcomes[:taken]:
                job = self._jobs[outcome.id]
                if outcome.sent:
                    told[job.sent, job.key] += outcome.sent
                if outcome.failed:
                    told[job.failed, job.key] += outcome.failed
                if outcome.over:
                    del self._jobs[outcome.id]
        return told


def _log_refused(error: int) -> None:
    name = errno.errorcode.get(error, str(error))
    log.info("casts leave one datagram at a time, at five times the cost: the kernel cuts no buffers here (%s)", name)
