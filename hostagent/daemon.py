"""`kvcast-agent`: reads the configuration, runs an agent until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from hostagent.agent import Agent
from hostagent.api.server import ApiError
from hostagent.config import AgentConfig, load
from hostagent.transport.base import TransportError
from kvproto.daemon.errors import CannotRunError
from kvproto.daemon.process import log_to_stderr, run_daemon
from kvproto.daemon.readiness import ready
from kvproto.ids import format_address

NAME = "kvcast-agent"
log = logging.getLogger("hostagent")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent; returns the exit status (see `run_daemon`)."""
    return run_daemon(NAME, "The kvcast agent of this node.", load, _run, argv)


async def _run(config: AgentConfig, stop: asyncio.Event) -> None:
    log_to_stderr(config.log_level, config.node)
    agent = Agent(config)
    try:
        await agent.start()
    except (TransportError, ApiError) as error:
        raise CannotRunError(str(error)) from error
    except OSError as error:
        raise CannotRunError(error.strerror or str(error)) from error
    try:
        with ready(NAME, _facts(agent), config.ready_file):
            await stop.wait()
        log.info("stopping")
    finally:
        await agent.stop()


def _facts(agent: Agent) -> dict[str, str]:
    host, port = agent.http_address
    return {
        "node": agent.config.node,
        "http": f"{host}:{port}",
        "socket": agent.config.api_socket,
        "read": agent.facts.read_endpoint,
        "data_address": format_address(agent.facts.address),
    }


if __name__ == "__main__":
    raise SystemExit(main())
