"""vLLM with LMCache inside it (`LMCacheConnectorV1`), the pool as LMCache's remote backend, on two nodes.

`tests.engines.in_process_engine` simulates the one part that LMCache has for accelerators alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

pytest.importorskip("vllm")
pytest.importorskip("lmcache")

from bmv2_testbed import client
from bmv2_testbed.engines.engine_client import Engine, engine_arguments, running
from bmv2_testbed.engines.launcher import ONE_THREAD, Launcher, launching
from bmv2_testbed.engines.small_models import make_model
from tests.engines import pool
from tests.engines.followed import blocks_of, on_this_machine
from tests.engines.pool import agent_socket, keys_in_pool
from tests.engines.test_chain_lmcache import await_chunks, prompt

CHUNK_TOKENS = 64
PROMPT_TOKENS = 1024
SHAPE = {"num_key_value_heads": 8, "head_dim": 64}
CONNECTOR = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
SEED = {"PYTHONHASHSEED": "0"}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvcast-in-process-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return make_model(folder / "model", **SHAPE)


@pytest.fixture(scope="module")
def testbed() -> Iterator[client.Testbed]:
    with pool.running(2, 256 * 2**20) as made:
        yield made


@pytest.fixture(scope="module")
def launcher(folder: Path) -> Iterator[Launcher]:
    with launching(folder, {**ONE_THREAD, **SEED}) as made:
        yield made


@contextmanager
def engine(launcher: Launcher, model: Path, folder: Path, name: str, socket: str) -> Iterator[Engine]:
    """With the page's configuration of LMCache, on this machine's agent."""
    (text,) = blocks_of("lmcache.md", "test_chain_in_process")
    text = on_this_machine(text, {"/run/kvcast/agent.sock": socket, "chunk_size: 256": f"chunk_size: {CHUNK_TOKENS}"})
    made = folder / f"{name}.yaml"
    made.write_text(yaml.safe_dump({**yaml.safe_load(text), "max_local_cpu_size": 0.1}))
    environment = {"LMCACHE_CONFIG_FILE": str(made)}
    arguments = engine_arguments(model, None, block_size=32, max_num_seqs=2)
    arguments["kv_transfer_config"] = CONNECTOR
    program = "tests.engines.in_process_engine"
    with running(launcher, arguments, folder, name, environment, program=program) as one:
        yield one


def test_another_nodes_engine_finds_what_the_first_has_stored(
    launcher: Launcher, model: Path, folder: Path, testbed: client.Testbed
) -> None:
    tokens = prompt(1)
    with ExitStack() as stack:
        alone = stack.enter_context(
            running(launcher, engine_arguments(model, None, block_size=32, max_num_seqs=2), folder, "alone")
        )
        first = stack.enter_context(engine(launcher, model, folder, "first", agent_socket(testbed, 0)))
        second = stack.enter_context(engine(launcher, model, folder, "second", agent_socket(testbed, 1)))
        (expected,) = alone.generate([tokens])
        (computed,) = first.generate([tokens])
        assert (computed.tokens, computed.cached_tokens) == (expected.tokens, 0)
        await_chunks(testbed, PROMPT_TOKENS // CHUNK_TOKENS)
        (found,) = second.generate([tokens])
        assert (found.tokens, found.cached_tokens) == (expected.tokens, PROMPT_TOKENS - 1)
        (other,) = second.generate([prompt(2)])
        assert other.cached_tokens == 0
    assert len(keys_in_pool(testbed)) >= 2 * (PROMPT_TOKENS // CHUNK_TOKENS) - 1
