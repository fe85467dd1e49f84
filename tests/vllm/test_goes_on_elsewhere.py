"""The example: an engine is killed in the middle of an answer, and the answer goes on at another node."""

from __future__ import annotations

import os
import random
import runpy
import signal
from collections.abc import Callable
from pathlib import Path

from bmv2_testbed.engines.launcher import Launcher
from tests.vllm.pd_servers import arguments, complete, metric, ready
from tests.vllm.vllm_suite import CHUNK_TOKENS, random_tokens, until

Answer = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "go_on_elsewhere.py"))["Answer"]

PROMPT_CHUNKS = 3
MAX_TOKENS = 600
KILLED_AFTER = 4 * CHUNK_TOKENS
"""Tokens of the answer that its reader has."""


def kill_engine(log: Path) -> None:
    """Of the server that writes this log: all processes that were started by the one that serves HTTP."""
    writers = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "fd/1").resolve() == log.resolve():
                writers[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
    engines = [pid for pid, parent in writers.items() if parent in writers]
    assert engines
    for pid in engines:
        os.kill(pid, signal.SIGKILL)


def test_an_answer_goes_on_where_its_engine_was_killed(
    launcher: Launcher, folder: Path, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    prompt = random_tokens(random.Random(34), PROMPT_CHUNKS * CHUNK_TOKENS + 5)
    servers = [arguments(models(), one) for one in agent_sockets[:2]]
    with ready(launcher, folder, servers) as urls:
        _, second = urls
        is_alive = True
        whole = complete(second, prompt, MAX_TOKENS, kv_transfer_params={"kvcast.no_save": True})
        loaded_before = metric(second, "hit_tokens")
        answer = Answer(prompt, MAX_TOKENS, urls)
        for _ in answer:
            if len(answer.tokens) >= KILLED_AFTER and is_alive:
                kill_engine(folder / "server0.log")
                is_alive = False
        assert answer.given_by == urls
        assert tuple(answer.tokens) == whole
        until(lambda: metric(second, "hit_tokens") > loaded_before, "the second server has counted what it loaded")
        loaded = metric(second, "hit_tokens") - loaded_before
        assert loaded >= PROMPT_CHUNKS * CHUNK_TOKENS + KILLED_AFTER - 2 * CHUNK_TOKENS, "prompt and answer, by chunks"
