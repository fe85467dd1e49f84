"""kill -9 at any point of a process that writes: nothing wrong is ever served, and what it had stored is there."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bmv2_testbed.processes import child_environment
from hostagent.disk.store import LoadOutcome
from tests.unit.hostagent.disk_harness import Bench, content, play

PAGES = 1200
LIVES = 3
"""Times that a store is killed and taken up again."""
FIRST_NUMBER = 1_000_000
"""Chunks of one life are numbered from seed * FIRST_NUMBER + 1, as in disk_victim."""


@pytest.fixture(scope="module")
def victims() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.unit.hostagent.disk_victim"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env=child_environment(),
    ) as process:
        yield process


def live_and_die(
    victims: subprocess.Popen[str], folder: Path, seed: int, last_call: int
) -> tuple[dict[int, int], set[int]]:
    """(sizes of the chunks that were stored when it died, keys that it had given up) of one life."""
    assert victims.stdin is not None
    assert victims.stdout is not None
    victims.stdin.write(json.dumps([str(folder), seed, PAGES, last_call]) + "\n")
    victims.stdin.flush()
    status, said = json.loads(victims.stdout.readline())
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    stored: dict[int, int] = {}
    gone: set[int] = set()
    for line in said.splitlines():
        what, number, *size = line.split()
        if what == "gone":
            stored.pop(int(number), None)
            gone.add(int(number))
        else:
            stored[int(number)] = int(size[0])
    return stored, gone


@pytest.mark.parametrize("seed", range(6))
def test_kill_9_at_any_write(victims: subprocess.Popen[str], tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for life in range(LIVES):
        last_call = chance.randrange(1, 60)
        name = 10 * seed + life + 1
        stored, gone = live_and_die(victims, tmp_path, name, last_call)

        async def look(stored: dict[int, int] = stored, gone: set[int] = gone, base: int = name * FIRST_NUMBER) -> None:
            bench = Bench(tmp_path, disk_pages=PAGES, pool_pages=512)
            await bench.store.open()
            found = {int.from_bytes(chunk.key, "big"): chunk.size_bytes for chunk in bench.store.stored_chunks()}
            for number, size in found.items():
                outcome, text = await bench.load(number, size)
                assert outcome is LoadOutcome.DAMAGED or (outcome, text) == (LoadOutcome.DONE, content(number, size))
                if number in stored:
                    assert outcome is LoadOutcome.DONE, f"chunk {number} was stored and is damaged"
            assert stored.keys() <= found.keys(), "the warm part survives"
            # What it was about to forget may be there still, and the chunk that it did not live to tell of.
            in_flight = max([base, *(number for number in (*stored, *gone) if number > base)]) + 1
            assert found.keys() - stored.keys() <= gone | {in_flight}
            assert bench.store.counters.damaged_records <= 1, "one torn record at most"
            await bench.close()

        play(look)
