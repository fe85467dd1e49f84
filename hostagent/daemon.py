"""`kvcast-agent`: reads the configuration, runs an agent until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from hostagent.agent import Agent
from hostagent.api.server import ApiError
from hostagent.config import AgentConfig, load
from hostagent.transport.base import TransportError
from hostagent.transport.endpoints import host_port_of
from kvcodec.shipped import NotShippedError
from kvdaemon.errors import CannotRunError
from kvdaemon.log import change_level_by_signals, log_to_stderr
from kvdaemon.notify import ready
from kvdaemon.process import run_daemon

NAME = "kvcast-agent"
log = logging.getLogger("hostagent")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent; returns the exit status (see `run_daemon`)."""
    return run_daemon(NAME, "The kvcast agent of this node.", load, _run, argv)


async def _run(config: AgentConfig, stop: asyncio.Event) -> None:
    log_to_stderr(config.log_level, config.node, config.log_format)
    change_level_by_signals(asyncio.get_running_loop(), config.log_level)
    agent = Agent(config)
    try:
        if not await _started(agent, stop):
            log.info("stopping before it had started")
            return
    except (TransportError, ApiError, NotShippedError) as error:
        raise CannotRunError(str(error)) from error
    except OSError as error:
        raise CannotRunError(error.strerror or str(error)) from error
    try:
        with ready(NAME, _facts(agent), config.ready_file):
            await stop.wait()
        log.info("stopping")
    finally:
        await agent.stop()


async def _started(agent: Agent, stop: asyncio.Event) -> bool:
    """Start; False: it was told to stop before that was done. Raises what `Agent.start` does."""
    starting, told = asyncio.ensure_future(agent.start()), asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return False
    starting.result()
    return True


def _facts(agent: Agent) -> dict[str, str]:
    host, port = agent.http_address
    return {
        "node": agent.config.node,
        "http": f"{host}:{port}",
        "socket": agent.config.api_socket,
        "read": agent.facts.read_endpoint,
        "data_address": host_port_of(agent.facts.read_endpoint)[0],
    }
