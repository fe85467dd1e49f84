"""`kvcast top`: what is hot, live: nodes, the switch, and the prefixes read most.

Keys as they are pressed on a terminal.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping
from typing import Final

import grpc
from rich.console import Console
from rich.live import Live

from kvcast.arguments import above_zero, whole
from kvcast.operator import (
    add_common,
    channels_given,
    chunk_object,
    console,
    controller,
    fields_of,
    find_controller,
    print_json,
    status_object,
)
from kvcast.terminal import UsageError
from kvcast.top.board import Board, Wish, pressed, sizes, within
from kvcast.top.follow import Follower, Heard
from kvcast.top.screen import screen
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc

_NAMED: Final = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "pageup",
    b"\x1b[6~": "pagedown",
    b"\x1b[H": "home",
    b"\x1b[1~": "home",
    b"\x1bOH": "home",
    b"\x1b": "escape",
    b"\t": "tab",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
}
"""Sequences of xterm, as all terminals in use send them; the rest are single characters."""
_INTRODUCERS: Final = (b"\x1b[", b"\x1bO")
"""Of a sequence; without it the first byte is the key Escape."""
_LONGEST: Final = max(map(len, _NAMED))


@contextlib.contextmanager
def one_by_one(descriptor: int) -> Iterator[None]:
    """The terminal gives each key at once and does not show it; afterwards it is as before."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def read(descriptor: int) -> list[str]:
    """Keys that were pressed: characters, or names such as `up`. Raises EOFError: the terminal has gone."""
    typed = os.read(descriptor, 1024)
    if not typed:
        raise EOFError
    return names_of(typed)


def names_of(typed: bytes) -> list[str]:
    """The keys in what a terminal sent; a sequence that nothing is known of is no key."""
    keys: list[str] = []
    while typed:
        size = next((size for size in range(_LONGEST, 0, -1) if typed[:size] in _NAMED), 0)
        if size > 1 or (size == 1 and typed[:2] not in _INTRODUCERS):
            keys.append(_NAMED[typed[:size]])
        elif size == 1:
            # It ends with a letter or a tilde (ECMA-48, 5.4).
            size = next((at + 1 for at in range(2, len(typed)) if 0x40 <= typed[at] <= 0x7E), len(typed))
        else:
            character = typed.decode("utf-8", "replace")[0]
            size = 1 if character == "\ufffd" else len(character.encode())
            keys.append(character)
        typed = typed[size:]
    return keys


ROWS_MAX = 1000
_TICK_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast top`."""
    parser.add_argument(
        "--interval", type=above_zero, default=1.0, metavar="S", help="seconds between two looks (default 1)"
    )
    parser.add_argument("--limit", type=whole(1), default=10, help="chunks and prefixes of one look (default 10)")
    parser.add_argument("--once", action="store_true", help="look once, then end")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Show until interrupted; once where the output is no terminal."""
    out = console()
    live = not args.once and not args.json and sys.stdout.isatty() and sys.stdin.isatty()
    board = Board()
    with controller(args) as stub:
        board.heard("", _first_look(stub))
        if args.json:
            print_json(_object(board, stub.Top(rpc.TopRequest(limit=args.limit)), args.limit))
            return 0
    if not live:
        out.print(screen(board, Wish(), out.width, None, args.limit))
        return 0
    return _show(out, board, _follower(args), args.interval)


def _first_look(stub: control_pb2_grpc.OperatorStub) -> rpc.LiveIncrement:
    call = stub.Live(rpc.LiveRequest())
    try:
        return next(iter(call))
    except grpc.RpcError as error:
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNIMPLEMENTED:
            stub.Status(rpc.StatusRequest())  # refused in the same way where no controller is
            raise UsageError("this controller is of an older release, which top cannot follow: upgrade it") from error
        raise
    finally:
        call.cancel()  # type: ignore[no-untyped-call]


def _show(out: Console, board: Board, follower: Follower, interval_s: float) -> int:
    """Until `q` or an interrupt."""
    wish = Wish()
    keyboard = sys.stdin.fileno()
    with (
        one_by_one(keyboard),
        Live(console=out, screen=True, auto_refresh=False) as live,
    ):
        follower.start()
        try:
            while not wish.quitting:
                live.update(screen(board, wish, out.width, out.height, ROWS_MAX), refresh=True)
                drawn_s = time.monotonic()
                while True:
                    # News may wait for the next look; keys do not.
                    left_s = drawn_s + interval_s - time.monotonic()
                    ready, _, _ = select.select([keyboard, follower.bell], [], [], max(0.0, min(left_s, _TICK_S)))
                    _take(board, follower)
                    if keyboard in ready:
                        for key in read(keyboard):
                            wish = within(pressed(wish, key), board)
                        break
                    if left_s <= 0:
                        break
        except (KeyboardInterrupt, EOFError):
            return 0
        finally:
            follower.close()
    return 0


def _follower(args: argparse.Namespace) -> Follower:
    return Follower(find_controller(args.controller).each(), channels_given(args))


def _take(board: Board, follower: Follower) -> None:
    for news in follower.take():
        if isinstance(news, Heard):
            board.heard(news.address, news.increment)
        else:
            board.lost(news.why)


def _object(board: Board, reply: rpc.TopReply, limit: int) -> Mapping[str, object]:
    """For --json."""
    return {
        "chunks": [chunk_object(chunk) for chunk in reply.chunks],
        "status": status_object(reply.status),
        "prefixes": [_prefix_object(prefix) for prefix in board.prefixes("reads/s")[:limit]],
    }


def _prefix_object(prefix: rpc.PrefixView) -> Mapping[str, object]:
    said = fields_of(prefix)
    said |= {"served": prefix.delivered.switch_chunks, "missed_chunks": prefix.delivered.missed_chunks}
    return said | {"bytes": sizes(prefix.delivered)}
