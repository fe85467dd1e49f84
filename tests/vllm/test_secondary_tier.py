"""kvcast below vLLM's own offloading: the second plug, in a real engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vllm_suite import PROMPTS, StartEngine, Truth, run_batches

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.client import Engine


def tiered(start: StartEngine, model: Path, agent_socket: str) -> Engine:
    return start(
        model,
        None,
        enable_prefix_caching=True,
        # A small paged cache and a small region: what comes back comes from the pool.
        num_gpu_blocks_override=40,
        max_model_len=2048,
        kv_transfer_config={
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "HostTieringSpec",
                "spec_module_path": "hostagent.engines.vllm.host_tiering",
                "cpu_bytes_to_use": 24 * 2**20,
                "block_size": 128,
                "secondary_tiers": [
                    {"type": "KvcastTier", "module_path": "hostagent.engines.vllm.tier", "socket": agent_socket}
                ],
            },
        },
    )


def delivered(testbed: Testbed, host: int) -> float:
    text = testbed.agent_metrics(host)
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("kvcast_agent_fetch_chunks_total")
    )


def test_two_engines_share_what_one_offloaded(
    truth: Truth, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str], testbed: Testbed
) -> None:
    prompts = PROMPTS[:40]
    first = tiered(start, models(), agent_sockets[0])
    assert run_batches(first, prompts) == truth(prompts)
    before = delivered(testbed, 1)
    second = tiered(start, models(), agent_sockets[1])
    assert run_batches(second, prompts) == truth(prompts)
    assert delivered(testbed, 1) - before > 20


def test_without_an_agent_it_runs_as_without_kvcast(
    truth: Truth, start: StartEngine, models: Callable[..., Path], folder: Path
) -> None:
    prompts = PROMPTS[:8]
    engine = tiered(start, models(), str(folder / "nobody.sock"))
    assert run_batches(engine, prompts) == truth(prompts)
