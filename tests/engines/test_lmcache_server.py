"""LMCache's multi-process server with the pool as its second level, under LMCache's own benchmark of servers;
docs/how-to/lmcache.md as it stands.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmcache")

from tests.engines.followed import Running, blocks_of, on_this_machine, said
from tests.engines.lmcache_server import START_S, Server, environment, is_healthy, plugin
from tests.ports import free_port
from tests.unit.hostagent.agent_harness import cluster
from tests.waiting import until

CHUNK_TOKENS = 64
REQUEST_TOKENS = 256
REQUESTS = 3
QUIET = {"LMCACHE_DISABLE_BANNER": "1", "OMP_NUM_THREADS": "1"}
ON_CPUS = "--supported-transfer-mode auto"
SHAPE = "(2,64,16,2,32):bfloat16:4"
"""Keys and values, 64 blocks of 16 tokens, 2 heads of 32, 4 layers."""


def bench(port: int, url: str, requests: int) -> dict[str, Any]:
    """LMCache's benchmark of a server: registers a cache, stores, looks up, retrieves and compares checksums. Its
    report."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "lmcache.cli.main", "bench", "server", "--mode", "cpu", "--format", "json"),
            *("--rpc-url", f"tcp://127.0.0.1:{port}", "--url", url, "--kvcache-shape-spec", SHAPE),
            *("--num-tokens", str(REQUEST_TOKENS), "--end", str(requests), "--interval", "0.1"),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment(),
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    report, _ = json.JSONDecoder().raw_decode(run.stdout[run.stdout.index("{") :])
    metrics: dict[str, Any] = report["metrics"]
    return metrics


def test_lmcaches_benchmark_of_servers(tmp_path: Path) -> None:
    """It compares checksums of what it stored and retrieved; all of it is in the pool as well."""
    with cluster(1, pool_bytes=64 << 20) as agents:
        agent = agents.agents[0]
        server = Server(tmp_path / "server.log", plugin(agent.config.api_socket), chunk_tokens=CHUNK_TOKENS)
        try:
            server.await_up()
            results = bench(server.port, server.url, REQUESTS)["results"]
            assert (results["checksum_ok"], results["checksum_fail"]) == (REQUESTS, 0), results
            chunks = REQUESTS * REQUEST_TOKENS // CHUNK_TOKENS
            agents.until(lambda: len(agent.core.pool.ready_chunks()) >= chunks)
        finally:
            server.close()


def test_the_page_works_as_it_stands(tmp_path: Path) -> None:
    """Its server, with ports and a size of this machine, and then its check of the second level."""
    start, check = blocks_of("lmcache.md", __name__)
    port, http_port = free_port(), free_port()
    url, here = f"http://127.0.0.1:{http_port}", f"--host 127.0.0.1 --port {port} --http-host 127.0.0.1"
    with cluster(1, pool_bytes=256 << 20) as agents:
        agent = agents.agents[0]
        socket = {"/run/kvcast/agent.sock": agent.config.api_socket}
        changes = {
            "lmcache server": f"lmcache server {here} --http-port {http_port}",
            "--l1-size-gb 20": f"--l1-size-gb 0.25 {ON_CPUS} --shm-name kvcast-{os.getpid()}-{port}",
        }
        with Running("server", on_this_machine(start, socket | changes), tmp_path, **QUIET) as server:

            def is_up() -> bool:
                assert not server.ended, server.said
                return is_healthy(url)

            until(is_up, lambda: server.said, START_S)
            results = bench(port, url, REQUESTS)["results"]
            assert (results["checksum_ok"], results["checksum_fail"]) == (REQUESTS, 0), results
            agents.until(lambda: len(agent.core.pool.ready_chunks()) >= REQUESTS)
        assert "verif" in said(on_this_machine(check, socket), tmp_path, **QUIET).lower()
