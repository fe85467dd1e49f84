"""What a newer vLLM has and the one here has not, and whether either has all that the connector uses."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.vllm.vllm_suite import CHUNK_TOKENS, StartEngine, Truth, assert_same, one, random_tokens, run_until_idle

TOOL = Path(__file__).parents[2] / "tools/engine_interfaces.py"
BASE = "distributed/kv_transfer/kv_connector/v1/base.py"


def check(place: Path) -> tuple[int, list[str]]:
    """(exit status, lines) of the tool."""
    done = subprocess.run([sys.executable, str(TOOL), "vllm", str(place)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def installed() -> Path:
    """The folder of vLLM's package."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def test_this_vllm_has_all_that_the_connector_uses() -> None:
    status, lines = check(installed().parent)
    assert (status, len(lines)) == (0, 1), lines


def test_what_a_vllm_lacks_is_named(tmp_path: Path) -> None:
    """Its whole package but for a module, a hook that has another name, and one that takes more."""
    changed = tmp_path / "vllm"
    changed.mkdir()
    for entry in installed().iterdir():
        if entry.name != "distributed":
            (changed / entry.name).symlink_to(entry)
    for file in (installed() / "distributed").rglob("*.py"):
        copy = changed / file.relative_to(installed())
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    (changed / "distributed/kv_events.py").unlink()
    base = changed / BASE
    text = base.read_text().replace("def take_events(self)", "def give_events(self)")
    base.write_text(text.replace("def wait_for_layer_load(self,", "def wait_for_layer_load(self, stream,"))
    status, lines = check(tmp_path)
    assert status == 1
    assert lines == [
        "events.py imports BlockRemoved from vllm.distributed.kv_events: it is not there",
        "events.py imports BlockStored from vllm.distributed.kv_events: it is not there",
        "idle.py imports KVEventBatch from vllm.distributed.kv_events: it is not there",
        "KvcastConnector.take_events: KVConnectorBase_V1 has no such method",
        "KvcastConnector.wait_for_layer_load does not take stream",
    ]


def test_an_engine_that_slept_loads_and_saves_again(
    truth: Truth, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    """With the hooks of vLLM 0.33, each called twice, as vLLM may."""
    engine = start(models(), agent_sockets[0], enable_prefix_caching=False)
    chance = random.Random(31)
    prompts = [random_tokens(chance, 3 * CHUNK_TOKENS + 5) for _ in range(2)]
    expected = truth(prompts)
    assert_same([one(engine, prompts[0]).tokens], expected[:1])
    for away in (True, True, False, False):
        run_until_idle(engine)
        engine.ask("take_cache", away=away)
    assert_same([one(engine, prompts[1]).tokens], expected[1:])
    run_until_idle(engine)
    for prompt, tokens in zip(prompts, expected, strict=True):
        again = one(engine, prompt)
        assert again.cached_tokens == 3 * CHUNK_TOKENS
        assert_same([again.tokens], [tokens])
