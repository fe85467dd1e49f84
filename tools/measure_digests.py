"""Measure how fast chunks are digested: GB/s of one core's time, each algorithm at several sizes, by turns.

python tools/measure_digests.py
"""

from __future__ import annotations

import os
import time
from itertools import product

from hostagent.tree import hashed
from kvproto.integrity import Integrity

SIZES = (256 << 10, 1 << 20, 16 << 20, 64 << 20)
ROUNDS = 7


def main() -> None:
    """Print the best of some rounds, by the thread's own CPU time: others on the machine slow only memory down."""
    content = memoryview(bytearray(os.urandom(max(SIZES))))
    best: dict[tuple[Integrity, int], float] = {}
    for _, size_bytes, algorithm in product(range(ROUNDS), SIZES, Integrity):
        began = time.thread_time()
        hashed(content[:size_bytes], algorithm)
        took_s = time.thread_time() - began
        best[algorithm, size_bytes] = min(took_s, best.get((algorithm, size_bytes), took_s))
    for (algorithm, size_bytes), took_s in sorted(best.items(), key=lambda one: (one[0][0].value, one[0][1])):
        print(f"{algorithm.value:7} {size_bytes >> 10:6} KiB {size_bytes / took_s / 1e9:6.1f} GB/s a core")


if __name__ == "__main__":
    main()
