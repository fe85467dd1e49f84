"""Real vLLM engines with small random models, agents, controller and switch of a testbed on loopback.

`make test-vllm` makes the environment for it. Elsewhere everything here is skipped. Engines are processes, forked from
one that has imported vLLM; the tests share them where they can.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed import client
from bmv2_testbed.engines.engine_client import Engine, engine_arguments, running
from bmv2_testbed.engines.launcher import ONE_THREAD, Launcher, launching
from bmv2_testbed.spec import Target, TestbedSpec
from tests.vllm.model_kinds import make_model
from tests.vllm.vllm_suite import BLOCK_TOKENS, CHUNK_TOKENS, PATIENT, SMALL, StartEngine, Truth, await_names

HERE = Path(__file__).parent
HOSTS = 3
POOL_BYTES = 128 * 2**20


WARN_AT_IMPORT = ("torch", "transformers", "vllm")
"""What these say of themselves is no failure of ours."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marks = [pytest.mark.filterwarnings(f"default:::{name}.*") for name in WARN_AT_IMPORT]
    if importlib.util.find_spec("vllm") is None:
        marks = [pytest.mark.skip(reason="no vLLM in this environment: make test-vllm has one")]
    for item in items:
        if HERE in item.path.parents:
            for mark in marks:
                item.add_marker(mark)


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvcast-vllm-") as made:
        yield Path(made)


@pytest.fixture(scope="session")
def launcher(folder: Path) -> Iterator[Launcher]:
    with launching(folder, ONE_THREAD) as made:
        yield made


@pytest.fixture(scope="session")
def models(folder: Path) -> Callable[..., Path]:
    """A small model by kind, made once."""

    def get(kind: str = "llama") -> Path:
        path = folder / f"model-{kind}"
        return path if path.exists() else make_model(path, kind, **(SMALL if kind == "llama" else {}))

    return get


@pytest.fixture(scope="session")
def testbed() -> Iterator[client.Testbed]:
    """Three nodes, a controller and a switch."""
    spec = TestbedSpec(
        target=Target.P4SWITCH,
        hosts=HOSTS,
        pool_bytes=POOL_BYTES,
        # Chunks move when an engine asks for them, and only then.
        controller_settings={"policy": {"admission": False}, "push": {"enabled": False}},
    )
    with client.running(spec) as made:
        yield made


@pytest.fixture(scope="session")
def agent_sockets(testbed: client.Testbed) -> list[str]:
    return [str(testbed.directory / f"h{host}.sock") for host in range(HOSTS)]


def starter(stack: ExitStack, launcher: Launcher, folder: Path, label: str) -> StartEngine:
    """Starts engines that live as long as `stack`; `settings` given replace patient ones. They know the names of their
    chunks, unless the test asks for some that may not."""
    counter = iter(range(1000))

    def begin(
        model: Path,
        agent_socket: str | None,
        *,
        environment: dict[str, str] | None = None,
        is_named: bool = True,
        **more: Any,
    ) -> Engine:
        settings = {**PATIENT, **more.pop("settings", {})}
        made = {"block_size": BLOCK_TOKENS, "max_model_len": 4096, **more}
        arguments = engine_arguments(model, agent_socket, chunk_tokens=CHUNK_TOKENS, settings=settings, **made)
        engine = stack.enter_context(running(launcher, arguments, folder, f"{label}{next(counter)}", environment))
        if is_named and agent_socket is not None:
            await_names(engine)
        return engine

    return begin


@pytest.fixture(scope="session")
def start_shared(launcher: Launcher, folder: Path) -> Iterator[StartEngine]:
    """Start engines that live until the end."""
    with ExitStack() as stack:
        yield starter(stack, launcher, folder, "shared")


@pytest.fixture
def start(launcher: Launcher, folder: Path, request: pytest.FixtureRequest) -> Iterator[StartEngine]:
    """Start engines that live as long as the test."""
    with ExitStack() as stack:
        yield starter(stack, launcher, folder, f"{request.node.originalname}-")


@pytest.fixture(scope="session")
def plain(start_shared: StartEngine, models: Callable[..., Path]) -> Engine:
    """An engine without kvcast: what it says is the truth."""
    return start_shared(models(), None, enable_prefix_caching=False)


@pytest.fixture(scope="session")
def truth(plain: Engine) -> Truth:
    return Truth(plain)


@pytest.fixture(scope="session")
def events_endpoint(folder: Path) -> str:
    """One that the engine binds: a TCP address of one interface it would connect to."""
    return f"ipc://{folder}/events.sock"


@pytest.fixture(scope="session")
def first(start_shared: StartEngine, models: Callable[..., Path], agent_sockets: list[str]) -> Engine:
    """On the first node, without a prefix cache of its own."""
    return start_shared(models(), agent_sockets[0], enable_prefix_caching=False)


@pytest.fixture(scope="session")
def second(
    start_shared: StartEngine, models: Callable[..., Path], agent_sockets: list[str], events_endpoint: str
) -> Engine:
    """On the second node, with a prefix cache; computes prompts in pieces and tells routers what it sees."""
    return start_shared(
        models(),
        agent_sockets[1],
        enable_prefix_caching=True,
        max_num_batched_tokens=256,
        settings={"events_sweep_s": 0.1, "events_medium": "kvcast"},
        kv_events_config={"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events_endpoint},
    )
