"""Workers of a plan end with it, however it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
DEADLINE_MS = 30_000
PLAN = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
from planner import plan

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context, initializer=plan._begin, initargs=(os.getpid(), [], [])) as pool:
        print(*{pool.submit(os.getpid).result()} | set(pool._processes), flush=True)
        sys.stdin.read()
"""


def test_a_plan_that_is_killed_leaves_no_workers(tmp_path: Path) -> None:
    script = tmp_path / "plan_and_wait.py"
    script.write_text(PLAN)
    started = subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    with started:
        assert started.stdout is not None
        workers = [os.pidfd_open(int(one)) for one in started.stdout.readline().split()]
        assert workers
        started.send_signal(signal.SIGKILL)
        for worker in workers:
            ended = select.poll()
            ended.register(worker, select.POLLIN)
            assert ended.poll(DEADLINE_MS), "it has not ended"
            os.close(worker)
