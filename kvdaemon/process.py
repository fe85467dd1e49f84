"""A daemon as a process: its command line, its log, the signals that end it, its exit status."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TypeVar

from kvdaemon.errors import CannotRunError, ConfigError
from kvdaemon.readiness import tell_alive
from kvproto import __version__

Config = TypeVar("Config")

EXIT_CANNOT_RUN = 1
EXIT_USAGE = 2


def run_daemon(
    name: str,
    description: str,
    load: Callable[[Path], Config],
    run: Callable[[Config, asyncio.Event], Coroutine[None, None, None]],
    argv: Sequence[str] | None,
) -> int:
    """Read the configuration (`load`, which raises ConfigError) and run until SIGTERM or SIGINT sets the event.

    `run` raises CannotRunError. Returns the exit status; 0: stopped as asked; 1: cannot run here, or cannot go on;
    2: wrong usage or configuration. 1 and 2 with one line on standard error.
    """
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration (YAML)")
    parser.add_argument("--check", action="store_true", help="only check the configuration")
    parser.add_argument("--version", action="version", version=f"{name} {__version__}")
    args = parser.parse_args(argv)
    try:
        config = load(args.config)
        if args.check:
            print(f"{args.config}: good")
            return 0
        with contextlib.suppress(KeyboardInterrupt):  # Before or after the loop has its handlers.
            asyncio.run(_until_stopped(run, config))
    except (ConfigError, CannotRunError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_CANNOT_RUN
    return 0


async def _until_stopped(run: Callable[[Config, asyncio.Event], Coroutine[None, None, None]], config: Config) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    alive = asyncio.create_task(tell_alive())
    try:
        await run(config, stop)
    finally:
        alive.cancel()
