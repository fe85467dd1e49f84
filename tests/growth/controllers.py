"""Controllers as processes of their own, which a test can stop, and their pages."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.ports import free_port
from tests.waiting import until

DEADLINE_S = 120.0
"""Of what has to happen, on a machine that does much else."""


class ControllerProcess:
    """`kvcast-controller`, with a port that it keeps."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        self.name = name
        grpc_port, self._metrics_port = free_port(), free_port()
        self.address = f"127.0.0.1:{grpc_port}"
        self._log = folder / f"{name}.log"
        self._config = folder / f"{name}.yaml"
        listens = {"listen": self.address, "metrics": f"127.0.0.1:{self._metrics_port}"}
        election = {"election": {"name": name, **settings.get("election", {})}}
        self._config.write_text(yaml.safe_dump({**settings, **listens, **election}))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "controlplane", "--config", str(self._config)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(lambda: self.ready() is not None, f"{self.name} answers")

    def stand_still(self) -> None:
        self._running.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """In order, as an operator would."""
        if self._process is not None:
            self.wake()
            self._process.terminate()
            assert self._process.wait(DEADLINE_S) == 0, self.log()
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def log(self) -> str:
        return self._log.read_text()

    # -- its pages

    def ready(self) -> str | None:
        """What /readyz says; None: it does not answer."""
        said = self._page("/readyz")
        return None if said is None else said.strip()

    def health(self) -> Any:
        return json.loads(self._page("/healthz") or "null")

    def metric(self, name: str) -> float:
        """One value, by its name with labels."""
        page = self._page("/metrics") or ""
        found = re.search(rf"^kvcast_controller_{re.escape(name)} (\S+)$", page, re.MULTILINE)
        assert found is not None, f"no {name}"
        return float(found[1])

    def _page(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}{path}", timeout=1) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()
        except OSError:
            return None

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process


@contextlib.contextmanager
def controllers(folder: Path, *settings: Mapping[str, Any]) -> Iterator[list[ControllerProcess]]:
    """Started in this order, c1 first: it leads when the others come."""
    made = [ControllerProcess(folder, f"c{number}", one) for number, one in enumerate(settings, 1)]
    try:
        for one in made:
            one.start()
            until(lambda: made[0].ready() == "ok", "c1 leads")
        yield made
    finally:
        for one in made:
            one.kill()
