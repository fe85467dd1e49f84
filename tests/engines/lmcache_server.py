"""Starts LMCache's multi-process server with the pool as its second level, as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.engines.pool import stop
from tests.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).parents[2]
START_S = 300.0
ASK_S = 5.0


SHIPPED = {"module_path": "kvclient.engines.lmcache.second_level", "class_name": "KvcastL2"}


def plugin(socket: str, loaded: Mapping[str, str] = SHIPPED, **settings: Any) -> dict[str, Any]:
    """LMCache's configuration of kvcast as a second level; `loaded`: which class it is."""
    return {
        "type": "plugin",
        **loaded,
        "adapter_params": {"socket": socket, "weights_digest": "w", "load_deadline_s": 5, **settings},
    }


def environment() -> dict[str, str]:
    """Of LMCache's processes."""
    made = os.environ | {"LMCACHE_DISABLE_BANNER": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    made.pop("PYTHONDONTWRITEBYTECODE", None)
    return made


def is_healthy(url: str) -> bool:
    """Whether a server says so."""
    try:
        with urllib.request.urlopen(f"{url}/healthcheck", timeout=ASK_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Server:
    """One server. Starting takes seconds of processor time: start several before awaiting the first."""

    def __init__(self, log: Path, second_level: dict[str, Any], *, chunk_tokens: int) -> None:
        self.port, self._http_port = free_port(), free_port()
        self._log = log
        with open(log, "wb") as said:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "lmcache.cli.main", "server", "--host", "127.0.0.1"),
                    *("--port", str(self.port), "--http-host", "127.0.0.1", "--http-port", str(self._http_port)),
                    *("--l1-size-gb", "0.25", "--eviction-policy", "LRU", "--chunk-size", str(chunk_tokens)),
                    *(
                        "--disable-observability",
                        "--supported-transfer-mode",
                        "auto",
                        "--shm-name",
                        f"kvcast-{os.getpid()}-{self.port}",
                    ),
                    *("--l2-adapter", json.dumps(second_level)),
                ],
                stdout=said,
                stderr=subprocess.STDOUT,
                env=environment(),
                cwd=log.parent,
            )

    @property
    def url(self) -> str:
        """Of its HTTP pages."""
        return f"http://127.0.0.1:{self._http_port}"

    @property
    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-3000:]

    def await_up(self) -> Self:
        """Wait until it says that it is healthy."""
        until(self._is_healthy, lambda: self.said, START_S)
        return self

    def _is_healthy(self) -> bool:
        assert self._process.poll() is None, self.said
        return is_healthy(self.url)

    def close(self) -> None:
        """End it."""
        stop(self._process)
