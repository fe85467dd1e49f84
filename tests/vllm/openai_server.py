"""vLLM's OpenAI server as it is, from its own command line: what `vllm serve` runs.

    python -m tests.vllm.openai_server --model FOLDER --port 8000 ...

`vllm serve` itself asks the packages that are installed for more than vLLM's build for CPUs brings.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bmv2_testbed.engines.engine_client import START_S, STOP_S, last_reason
from bmv2_testbed.engines.launcher import LaunchedProcess, Launcher
from bmv2_testbed.errors import TestbedError
from tests.ports import free_port

POLL_S = 0.1
HEALTH_TIMEOUT_S = 5.0
PROGRAM = "tests.vllm.openai_server"


def server_argv(arguments: Mapping[str, Any], port: int) -> list[str]:
    """Command line of a server: flags for what is true, JSON for what is no text or number."""
    argv = ["--host", "127.0.0.1", "--port", str(port)]
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            argv.append(flag if value else f"--no-{name.replace('_', '-')}")
        else:
            argv += [flag, json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return argv


@contextlib.contextmanager
def serving(
    launcher: Launcher,
    servers: Sequence[Mapping[str, Any]],
    folder: Path,
    name: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[list[str]]:
    """Servers with these arguments for the time of a `with` block: their URLs. They start at the same time.

    A server's engine is a process of its own, as it is for everybody; its worker is part of it.
    Their logs are `folder/name0.log` and so on. Raises TestbedError with a server's words.
    """
    started: list[_Server] = []
    try:
        for number, arguments in enumerate(servers):
            port, log_path = free_port(), folder / f"{name}{number}.log"
            process = launcher.start(server_argv(arguments, port), log_path, environment or {}, program=PROGRAM)
            started.append(_Server(f"http://127.0.0.1:{port}", process, log_path))
        give_up_s = time.monotonic() + START_S
        for server in started:
            server.await_up(give_up_s)
        yield [server.url for server in started]
    finally:
        for server in started:
            server.process.terminate()
        for server in started:
            if not server.process.wait(STOP_S):
                server.process.kill()
            server.process.close()


@dataclass(frozen=True, slots=True)
class _Server:
    url: str
    process: LaunchedProcess
    log: Path

    def await_up(self, give_up_s: float) -> None:
        while not is_healthy(self.url):
            said = self.log.read_text(errors="replace") if self.log.exists() else ""
            if not self.process.is_running:
                raise TestbedError(f"the server did not start: {last_reason(said)}")
            if time.monotonic() > give_up_s:
                raise TestbedError(f"the server was not ready after {START_S:.0f} s: {last_reason(said)}")
            time.sleep(POLL_S)


def is_healthy(url: str) -> bool:
    """Whether a server takes requests."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=HEALTH_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal ends it."""

    from vllm.entrypoints.launchers.api_server.entry import run_server
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    args = make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
    validate_parsed_serve_args(args)
    asyncio.run(run_server(args))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
