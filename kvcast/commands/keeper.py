"""`kvcast keeper`: keeps an agent's pool while the agent is away."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from kvcast.errors import UsageError
from kvdaemon.errors import CannotRunError
from kvdaemon.file_keeper import FileKeeper
from kvdaemon.log import log_to_stderr
from kvdaemon.notify import ready
from kvproto.printable import printable

SOCKET_BYTES_MAX = 100
EPILOG = """\
For places without systemd, which keeps the files of a service itself. The agent names it: pool.keeper in agent.yaml.
It serves one agent, which has to run as the same user.

  kvcast keeper --socket /run/kvcast-keeper/keeper.sock
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast keeper`."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--socket", type=Path, required=True, metavar="PATH", help="where the agent finds it (no engine may reach it)"
    )


def run(args: argparse.Namespace) -> int:
    """Keep files until SIGTERM or SIGINT."""
    if len(bytes(args.socket)) > SOCKET_BYTES_MAX:
        raise UsageError(f"--socket: more than {SOCKET_BYTES_MAX} bytes (the kernel's limit for sockets is 107)")
    log_to_stderr("info", "keeper", "text")
    try:
        asyncio.run(_keep(args.socket))
    except CannotRunError as error:
        print(printable(f"kvcast keeper: {error}"), file=sys.stderr)
        return 1
    return 0


async def _keep(path: Path) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    keeper = FileKeeper(path)
    try:
        with ready("kvcast keeper", {"socket": str(path)}, None):
            await stop.wait()
    finally:
        keeper.close()
