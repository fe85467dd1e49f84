"""docs/how-to/sglang.md as it stands: its file and its command, with a real server, on the CPU."""

from __future__ import annotations

import json
import random
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang")

from bmv2_testbed.engines.small_models import make_model
from tests.engines.followed import Running, blocks_of, on_this_machine
from tests.engines.sglang_client import engine_arguments, environment
from tests.ports import free_port
from tests.unit.hostagent.agent_harness import cluster
from tests.waiting import until

START_S = 500.0
ASK_S = 120.0
PAGE_TOKENS = 64
PROMPT_TOKENS = 512
PAGES = (PROMPT_TOKENS - 1) // PAGE_TOKENS


def on_the_cpu(model: Path) -> str:
    """What SGLang needs here besides: options of a small model without a GPU."""
    arguments = engine_arguments(model, None)
    own = {"model_path", "page_size"}
    options = {name.replace("_", "-"): value for name, value in arguments.items() if name not in own}
    return " ".join(f"--{name}" if value is True else f"--{name} {value}" for name, value in options.items())


def test_the_page_works_as_it_stands(tmp_path: Path) -> None:
    file, command = blocks_of("sglang.md", __name__)
    model = make_model(tmp_path / "model")
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def ask(path: str, question: dict[str, Any] | None = None) -> bytes:
        body = None if question is None else json.dumps(question).encode()
        request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:
            said: bytes = answer.read()
        return said

    prompt = [random.Random(1).randrange(3, 4000) for _ in range(PROMPT_TOKENS)]
    sampling = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}

    def generate() -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(ask("/generate", {"input_ids": prompt, "sampling_params": sampling}))
        return answer

    with cluster(1, pool_bytes=64 << 20) as agents:
        agent = agents.agents[0]
        (tmp_path / "hicache.json").write_text(
            on_this_machine(file, {"/run/kvcast/agent.sock": agent.config.api_socket})
        )
        here = {
            "MODEL": str(model),
            "sglang.launch_server": "sglang.launch_server --host 127.0.0.1 --port " + str(port),
        }
        command = f"{on_this_machine(command, here).strip()} {on_the_cpu(model)}"
        with Running("server", command, tmp_path, **environment()) as server:

            def says_yes(path: str, question: dict[str, Any] | None = None) -> bool:
                assert not server.ended, server.said
                try:
                    ask(path, question)
                except OSError:
                    return False
                return True

            until(lambda: says_yes("/health"), lambda: server.said, START_S)
            computed = generate()
            agents.until(lambda: len(agent.core.pool.ready_chunks()) >= PAGES)
            # It refuses while it is still busy with what it has written.
            until(lambda: says_yes("/flush_cache", {}), lambda: server.said)
            again = generate()
    assert computed["meta_info"]["cached_tokens"] == 0
    assert again["output_ids"] == computed["output_ids"]
    assert again["meta_info"]["cached_tokens_details"]["storage"] == PAGES * PAGE_TOKENS
