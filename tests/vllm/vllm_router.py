"""vLLM's own router (https://github.com/vllm-project/router), as people run it in front of their servers."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.ports import free_port
from tests.vllm.vllm_suite import until


@contextlib.contextmanager
def routing(folder: Path, *words: str) -> Iterator[str]:
    """A router with these arguments, for the time of a `with` block: its URL. It reaches all its workers by then."""
    port, metrics_port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    argv = [sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port), *words]
    log = folder / f"router-{port}.log"
    with log.open("wb") as said:
        router = subprocess.Popen(argv, stdout=said, stderr=subprocess.STDOUT)
    try:
        until(lambda: _is_ready(url, router), f"the router is ready; see {log}")
        yield url
    except AssertionError as error:
        raise AssertionError(log.read_text()[-4000:]) from error
    finally:
        router.terminate()
        router.wait()


def prefill_and_decode(producer: str, consumers: Sequence[str]) -> list[str]:
    """Arguments for one server that computes prompts and others that decode, as for NIXL."""
    decoders = [word for url in consumers for word in ("--decode", url)]
    roles = ["--prefill", producer, *decoders]
    return ["--vllm-pd-disaggregation", "--kv-connector", "nixl", "--policy", "round_robin", *roles]


def _is_ready(url: str, router: subprocess.Popen[bytes]) -> bool:
    assert router.poll() is None, "the router ended"
    try:
        with urllib.request.urlopen(f"{url}/readiness", timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False
