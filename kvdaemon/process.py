"""A daemon as a process: its command line, its log, the signals that end it, its exit status."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TypeVar

from kvdaemon.errors import CannotRunError, ConfigError
from kvdaemon.notify import tell_alive
from kvdaemon.streams import say, take_any_text
from kvproto import __version__
from kvproto.printable import printable
from p4switch.doorkeeper import raise_descriptors_limit

log = logging.getLogger(__name__)

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
    """Read the configuration (`load`, which raises ConfigError) and run until SIGTERM or SIGINT sets the event (or the
    terminal is closed in which a person started it).

    `run` raises CannotRunError. Returns the exit status; 0: stopped as asked; 1: cannot run here, or cannot go on;
    2: wrong usage or configuration. 1 and 2 with one line on standard error.
    """
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration (YAML)")
    parser.add_argument("--check", action="store_true", help="only check the configuration")
    parser.add_argument("--version", action="version", version=f"{name} {__version__}")
    take_any_text()
    args = parser.parse_args(argv)
    try:
        config = load(args.config)
        if args.check:
            say(f"{args.config}: good")
            return 0
        raise_descriptors_limit()
        with contextlib.suppress(KeyboardInterrupt):  # Before or after the loop has its handlers.
            asyncio.run(_until_stopped(run, config))
    except (ConfigError, CannotRunError) as error:
        print(printable(f"{name}: {error}"), file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_CANNOT_RUN
    return 0


def is_in_terminal() -> bool:
    """Whether a person started this process, and ends it by closing the terminal."""
    try:
        return os.isatty(0)
    except OSError:
        return False


def _terminal_closed(stop: asyncio.Event) -> None:
    log.info("the terminal is closed (SIGHUP)")
    stop.set()


def _hung_up(_stop: asyncio.Event) -> None:
    """Sent to services by hand or by logrotate, who mean to have something read again. Ending would be taken for a
    clean end, after which nobody starts a service again."""
    log.warning("SIGHUP changes nothing: the configuration is read at the start (restart for that), logs go to stderr")


async def _until_stopped(run: Callable[[Config, asyncio.Event], Coroutine[None, None, None]], config: Config) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        loop.add_signal_handler(signal.SIGHUP, _terminal_closed if is_in_terminal() else _hung_up, stop)
    alive = asyncio.create_task(tell_alive())
    try:
        await run(config, stop)
    finally:
        alive.cancel()
