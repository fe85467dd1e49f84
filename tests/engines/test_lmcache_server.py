"""LMCache's multi-process server with the pool as its second level, under LMCache's own benchmark of servers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmcache")

from tests.engines.lmcache_server import Server, environment, plugin
from tests.unit.hostagent.agent_harness import cluster

CHUNK_TOKENS = 64
REQUEST_TOKENS = 256
REQUESTS = 3
SHAPE = "(2,64,16,2,32):bfloat16:4"
"""Keys and values, 64 blocks of 16 tokens, 2 heads of 32, 4 layers."""


def bench(server: Server, requests: int) -> dict[str, Any]:
    """LMCache's benchmark: registers a cache, stores, looks up, retrieves and compares checksums. Its report."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "lmcache.cli.main", "bench", "server", "--mode", "cpu", "--format", "json"),
            *("--rpc-url", f"tcp://127.0.0.1:{server.port}", "--url", server.url, "--kvcache-shape-spec", SHAPE),
            *("--num-tokens", str(REQUEST_TOKENS), "--end", str(requests), "--interval", "0.1"),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment(),
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:] + server.said
    report, _ = json.JSONDecoder().raw_decode(run.stdout[run.stdout.index("{") :])
    metrics: dict[str, Any] = report["metrics"]
    return metrics


def test_lmcaches_benchmark_of_servers(tmp_path: Path) -> None:
    """It compares checksums of what it stored and retrieved; all of it is in the pool as well."""
    with cluster(1, pool_bytes=64 << 20) as agents:
        agent = agents.agents[0]
        server = Server(tmp_path / "server.log", plugin(agent.config.api_socket), chunk_tokens=CHUNK_TOKENS)
        try:
            results = bench(server.await_up(), REQUESTS)["results"]
            assert (results["checksum_ok"], results["checksum_fail"]) == (REQUESTS, 0), results
            chunks = REQUESTS * REQUEST_TOKENS // CHUNK_TOKENS
            agents.until(lambda: len(agent.core.pool.ready_chunks()) >= chunks)
        finally:
            server.close()
