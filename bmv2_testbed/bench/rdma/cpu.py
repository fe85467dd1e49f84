"""CPU time of the RDMA transport's own code, without a NIC.

Receiving: a ring that is filled once goes through the data path into the pool. Sending: preparing each segment of a
chunk once, and posting those of a prepared one. Reading: asking for one piece. The time that a NIC's own library takes
to post and poll (some 20 to 50 ns per message) is not included.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from bmv2_testbed.bench.rdma.cpu_native import receive_native_ns
from bmv2_testbed.bench.rdma.cpu_reads import lesson_ns, read_piece_ns
from bmv2_testbed.bench.rdma.cpu_sends import send_ns
from hostagent.transport.verbs import abi
from kvchunk.ids import ChunkKey
from kvproto.ids import parse_address
from kvproto.session.read_window import READ_PIECE_BYTES_MAX
from kvproto.wire.data import Fabric, chunk_headers
from kvproto.wire.layouts import KV_DATA_BYTES

_KEY = ChunkKey(b"benchmark chunk!")
_ROWS = 2048
_SECONDS = 1.0
_SOURCE = parse_address("10.75.0.1")


def _seconds_each(work: Callable[[], int]) -> float:
    """CPU seconds for each unit of work; `work` returns how many it did. The clock is looked at rarely: it is slow."""
    repeat = 1
    while True:
        start_s = time.process_time()
        done = sum(work() for _ in range(repeat))
        spent_s = time.process_time() - start_s
        if spent_s >= _SECONDS:
            return spent_s / done
        repeat *= 2


def _full_ring(fabric: Fabric) -> npt.NDArray[np.uint8]:
    """Rows as a NIC fills them: all segments of a chunk."""
    headers = chunk_headers(_KEY, _ROWS * fabric.segment_bytes, fabric)
    ring = np.zeros((_ROWS, -(-(abi.GRH_BYTES + fabric.message_bytes + 1) // 64) * 64), np.uint8)
    ring[:, abi.GRH_BYTES : abi.GRH_BYTES + KV_DATA_BYTES] = headers
    ring[:, 32:36] = np.frombuffer(_SOURCE.to_bytes(4, "big"), np.uint8)
    return ring


def receive_ns(segment_bytes: int) -> float:
    """For each message, copy included."""
    fabric = Fabric(segment_bytes=segment_bytes)
    return receive_native_ns(_full_ring(fabric), _KEY, fabric, _seconds_each)


def copy_ns(segment_bytes: int) -> float:
    """For each segment: only the copy into place, which no receiver of datagrams gets around."""
    ring, chunk = np.ones((_ROWS, segment_bytes), np.uint8), np.zeros((_ROWS, segment_bytes), np.uint8)
    index = np.arange(_ROWS)

    def once() -> int:
        chunk[index] = ring
        return _ROWS

    return _seconds_each(once) * 1e9


def build_chain_ns(segment_bytes: int) -> float:
    """For each segment of a chunk that is cast the first time: headers and work requests."""
    fabric = Fabric(segment_bytes=segment_bytes)
    index = np.arange(_ROWS, dtype=np.uint64)

    def once() -> int:
        headers = chunk_headers(_KEY, _ROWS * segment_bytes, fabric)
        pieces = np.zeros((_ROWS, 3), abi.SGE)
        pieces["address"][:, 0] = headers.ctypes.data + index * KV_DATA_BYTES
        pieces["address"][:, 1] = index * segment_bytes
        requests = np.zeros(_ROWS, abi.SEND_WR)
        requests["next"] = requests.ctypes.data + (index + 1) * abi.SEND_WR.itemsize
        requests["sg_list"] = pieces.ctypes.data + index * pieces.strides[0]
        return _ROWS

    return _seconds_each(once) * 1e9


def call_ns() -> float:
    """For each call into a C library, as posting and polling are."""
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(
        ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value or 0
    )

    def once() -> int:
        for _ in range(1000):
            function(-1)
        return 1000

    return _seconds_each(once) * 1e9


def run_cpu(say: Callable[[str], None], moved: Callable[[float], None]) -> dict[str, float]:
    """CPU nanoseconds, by operation."""
    works: list[tuple[str, Callable[[], float]]] = [("a call into C", call_ns)]
    for window, batch in itertools.product((4 << 20, 256 << 10), (1, 4)):
        piece_kib = min(window // 4, READ_PIECE_BYTES_MAX) >> 10
        name = f"ask for a piece of {piece_kib} KiB of a READ, {batch} told of at once"
        works.append((name, partial(read_piece_ns, window, batch)))
    works += [
        (f"tell a window of a piece that came, {together} at once", partial(lesson_ns, together)) for together in (2, 8)
    ]
    for size in (2048, 3840):
        works.append((f"receive a message of {size} B", partial(receive_ns, size)))
        works.append((f"of which the copy, {size} B", partial(copy_ns, size)))
        works.append((f"prepare a segment of {size} B for casting, once", partial(build_chain_ns, size)))
    works.append(("send a prepared segment", partial(send_ns, 3840)))
    figures = {}
    for done, (name, measure) in enumerate(works):
        say(name)
        moved(done / len(works))
        figures[name] = measure()
    return figures


def cpu_table(figures: Mapping[str, float]) -> Table:
    """The table that ends a run."""
    table = Table(title="CPU time of the transport's own code", box=box.SIMPLE)
    table.add_column("to")
    table.add_column("ns", justify="right")
    for name, nanoseconds in figures.items():
        table.add_row(name, f"{nanoseconds:.0f}")
    return table
