"""Real vLLM engines with small random models, agents, controller and switch of a testbed on loopback.

`make test-vllm` makes the environment for it. Elsewhere everything here is skipped. Engines are processes; an engine
with other settings costs seconds, so tests share them where they can.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed import client
from bmv2_testbed.engines.client import Engine, engine_arguments, running
from bmv2_testbed.engines.small_models import make_model
from bmv2_testbed.spec import Target, TestbedSpec, Wiring

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from vllm_suite import StartEngine, Truth  # noqa: E402 - lies beside the tests

POOL_BYTES = 512 * 2**20


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
def models(folder: Path) -> Callable[..., Path]:
    """A small model by kind, made once."""

    def get(kind: str = "llama", **changes: Any) -> Path:
        path = folder / "-".join(["model", kind, *(f"{name}{value}" for name, value in sorted(changes.items()))])
        return path if path.exists() else make_model(path, kind, **changes)

    return get


@pytest.fixture(scope="session")
def testbed() -> Iterator[client.Testbed]:
    """Two nodes, a controller and a switch."""
    spec = TestbedSpec(
        target=Target.P4SWITCH,
        wiring=Wiring.DATAGRAMS,
        hosts=2,
        pool_bytes=POOL_BYTES,
        controller_settings={"policy": {"admission": False}},
    )
    with client.running(spec) as made:
        yield made


@pytest.fixture(scope="session")
def agent_sockets(testbed: client.Testbed) -> list[str]:
    return [str(testbed.directory / f"h{host}.sock") for host in range(2)]


@pytest.fixture(scope="session")
def plain(folder: Path, models: Callable[..., Path]) -> Iterator[Engine]:
    """An engine without kvcast: what it says is the truth."""
    with running(engine_arguments(models(), None, enable_prefix_caching=False), folder, "plain") as engine:
        yield engine


@pytest.fixture(scope="module")
def start(folder: Path) -> Iterator[StartEngine]:
    """Start engines that live until the module's end."""
    with ExitStack() as stack:
        counter = iter(range(1000))

        def begin(model: Path, agent_socket: str | None, **more: Any) -> Engine:
            arguments = engine_arguments(model, agent_socket, **more)
            return stack.enter_context(running(arguments, folder, f"engine{next(counter)}"))

        yield begin


@pytest.fixture(scope="session")
def truth(plain: Engine) -> Truth:
    return Truth(plain)
