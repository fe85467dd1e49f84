"""kvcast below vLLM's own offloading: the second plug, in a real engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.engine_client import Engine
from tests.vllm.vllm_suite import PROMPTS, StartEngine, Truth, assert_same, run_batches, until

REGION_BYTES = 4 * 2**20


def tiered(start: StartEngine, model: Path, agent_socket: str) -> Engine:
    return start(
        model,
        None,
        enable_prefix_caching=True,
        # A small paged cache and a small region: what comes back comes from the pool.
        num_gpu_blocks_override=64,
        max_model_len=1024,
        kv_transfer_config={
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "HostTieringSpec",
                "spec_module_path": "kvclient.engines.vllm.host_tiering",
                "cpu_bytes_to_use": REGION_BYTES,
                "block_size": 64,
                "secondary_tiers": [
                    {
                        "type": "KvcastTier",
                        "module_path": "kvclient.engines.vllm.tier",
                        "socket": agent_socket,
                        "lookup_timeout_s": 300,
                        "load_deadline_s": 300,
                    }
                ],
            },
        },
    )


def figure(testbed: Testbed, host: int, name: str) -> float:
    """The sum of an agent's metric over labels that begin so."""
    lines = testbed.agent_metrics(host).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"kvcast_agent_{name}"))


def from_others(testbed: Testbed, host: int) -> float:
    """Chunks that a node's engines got from other nodes."""
    return sum(figure(testbed, host, f'fetch_chunks_total{{source="{name}"') for name in ("holder", "cast", "switch"))


def test_two_engines_share_what_one_offloaded(
    truth: Truth, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str], testbed: Testbed
) -> None:
    prompts = PROMPTS[:40]
    put = figure(testbed, 0, 'puts_total{outcome="reserved"')
    known = testbed.agent_health(1)["directory_chunks"]
    first = tiered(start, models(), agent_sockets[0])
    assert_same(run_batches(first, prompts), truth(prompts))
    put = figure(testbed, 0, 'puts_total{outcome="reserved"') - put
    assert put > 40
    until(lambda: testbed.agent_health(1)["directory_chunks"] - known >= put, "the other agent hears of all chunks")
    before = from_others(testbed, 1)
    second = tiered(start, models(), agent_sockets[1])
    assert_same(run_batches(second, prompts), truth(prompts))
    assert from_others(testbed, 1) - before > 20


def test_without_an_agent_it_runs_as_without_kvcast(
    truth: Truth, start: StartEngine, models: Callable[..., Path], folder: Path
) -> None:
    prompts = PROMPTS[:8]
    engine = tiered(start, models(), str(folder / "nobody.sock"))
    assert_same(run_batches(engine, prompts), truth(prompts))
