"""Processes that fill a disk tier until they kill themselves, kill -9, in the middle of a write. Run by test_disk_kill.

Each line on standard input is one: [folder, seed, pages of the disk, number of the system call that is its last]. The
answer to it, once it is dead, is [wait status, what it said]: what is stored and what went, each line before anything
that follows from it. All are forks of one process, which has imported what they need.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tests.unit.hostagent.disk_harness import PAGE, Bench

SPEAKING = threading.Lock()
"""Held while the event loop says what it has decided: death waits for the end of a sentence."""


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def die_at(last_call: int, chance: random.Random) -> None:
    """Make the last write of this process a torn one."""
    calls = 0
    pwrite = os.pwrite

    def counted(fd: int, view: Any, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls < last_call:
            return pwrite(fd, view, offset)
        with SPEAKING:
            torn = chance.randrange(len(view) + 1)
            if torn % PAGE == 0 or len(view) < PAGE:
                pwrite(fd, view[:torn], offset)
            else:
                # The slab takes whole pages only; a page is torn by writing its old bytes behind the new ones.
                whole = torn // PAGE * PAGE
                pwrite(fd, view[:whole], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("alive after kill -9")

    os.pwrite = counted


async def main(folder: Path, seed: int, pages: int, last_call: int) -> None:
    chance = random.Random(seed)
    bench = Bench(folder, disk_pages=pages, pool_pages=1024, direct=bool(seed % 2))
    await bench.store.open()
    for chunk in bench.store.take_changes()[0]:
        say("found", int.from_bytes(chunk.key, "big"), chunk.size_bytes)
    die_at(last_call, chance)
    number = seed * 1_000_000
    loop = asyncio.get_running_loop()
    while True:
        number += 1
        size = chance.choice((1, PAGE, 3 * PAGE + 5, 16 * PAGE, 300 * PAGE))
        chunk = bench.put(number, size)
        done: asyncio.Future[bool] = loop.create_future()
        with SPEAKING:
            if not bench.store.save(chunk, done.set_result):
                raise AssertionError("refused")
            for gone in bench.store.take_changes()[1]:
                say("gone", int.from_bytes(gone, "big"))
        if not await done:
            raise AssertionError("a write failed")
        with SPEAKING:
            bench.store.take_changes()
            say("stored", number, size)
        bench.dram.drop(chunk.key)
        if chance.random() < 0.1:
            with SPEAKING:
                victim = chance.choice(bench.store.stored_chunks())
                bench.store.drop(victim.key)
                bench.store.take_changes()
                say("gone", int.from_bytes(victim.key, "big"))


def live(folder: str, seed: int, pages: int, last_call: int) -> tuple[int, str]:
    """(wait status, what was said) of a child."""
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(said, 1)
        try:
            asyncio.run(main(Path(folder), seed, pages, last_call))
        finally:
            os._exit(1)
    os.close(said)
    with open(heard, encoding="ascii") as lines:
        words = lines.read()
    return os.waitpid(child, 0)[1], words


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(live(*json.loads(line))), flush=True)
