"""`kvcast-agent`: reads the configuration, runs an agent until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hostagent.agent import Agent
from hostagent.api.server import ApiError
from hostagent.config import AgentConfig, ConfigError, load
from hostagent.http import HttpError
from hostagent.transport.base import TransportError
from kvproto import __version__
from kvproto.ids import format_address
from kvproto.readiness import notify_ready, write_ready_file

log = logging.getLogger("hostagent")

EXIT_CANNOT_RUN = 1
EXIT_USAGE = 2


class CannotRunError(Exception):
    """The agent cannot run as configured; one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent. 0: stopped as asked; 1: cannot run here; 2: wrong usage or configuration."""
    parser = argparse.ArgumentParser(prog="kvcast-agent", description="The kvcast agent of this node.")
    parser.add_argument("--config", required=True, metavar="FILE", help="configuration (YAML)")
    parser.add_argument("--check", action="store_true", help="only check the configuration")
    parser.add_argument("--version", action="version", version=f"kvcast-agent {__version__}")
    args = parser.parse_args(argv)
    try:
        config = load(args.config)
    except ConfigError as error:
        print(f"kvcast-agent: {error}", file=sys.stderr)
        return EXIT_USAGE
    if args.check:
        print(f"{args.config}: good")
        return 0
    logging.basicConfig(
        level=config.log_level.upper(), format=f"%(asctime)s {config.node} %(levelname)s %(name)s: %(message)s"
    )
    try:
        asyncio.run(_run(config))
    except (CannotRunError, TransportError, ApiError, HttpError) as error:
        print(f"kvcast-agent: {error}", file=sys.stderr)
        return EXIT_CANNOT_RUN
    except OSError as error:
        print(f"kvcast-agent: {error.strerror or error}", file=sys.stderr)
        return EXIT_CANNOT_RUN
    return 0


async def _run(config: AgentConfig) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    agent = Agent(config)
    await agent.start()
    try:
        _tell_ready(agent)
        await stop.wait()
        log.info("stopping")
    finally:
        await agent.stop()
        if config.ready_file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(config.ready_file)


def _tell_ready(agent: Agent) -> None:
    config = agent.config
    facts = {
        "node": config.node,
        "pid": os.getpid(),
        "http": f"{agent.http_address[0]}:{agent.http_address[1]}",
        "socket": config.api_socket,
        "data_address": format_address(agent.facts.address),
        "read": agent.facts.read_endpoint,
    }
    if config.ready_file:
        try:
            write_ready_file(Path(config.ready_file), facts)
        except OSError as error:
            raise CannotRunError(f"cannot write ready_file {config.ready_file}: {error.strerror}") from error
    line = " ".join(f"{name}={facts[name]}" for name in ("node", "http", "socket", "read"))
    print(f"kvcast-agent ready {line}", flush=True)
    notify_ready()


if __name__ == "__main__":
    raise SystemExit(main())
