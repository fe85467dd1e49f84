"""`kvcast top`: what is hot, live: nodes, the switch, and the prefixes read most.

Keys as they are pressed on a terminal.

Following the controller that leads, whichever that is at the moment: a thread that reads its increments.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import grpc
from rich.console import Console
from rich.live import Live

from kvcast.arguments import above_zero, whole
from kvcast.errors import UsageError
from kvcast.operator import (
    Channels,
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
from kvcast.top.board import Board, Wish, pressed, sizes, within
from kvcast.top.screen import screen
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc

ASK_S = 3.0
"""For a controller to say whether it leads, and between two increments."""
AGAIN_S = 0.5
"""After nobody was found."""


@dataclass(frozen=True, slots=True)
class Heard:
    """News of a controller."""

    address: str
    increment: rpc.LiveIncrement


@dataclass(frozen=True, slots=True)
class Lost:
    """There is none at the moment."""

    why: str


News: TypeAlias = Heard | Lost


class Follower:
    """Hears the controller that leads, from `start` to `close`. `bell` can be read from (`select`) when there are
    news."""

    def __init__(self, addresses: Sequence[str], channels: Channels) -> None:
        self._addresses = addresses
        self._channels = channels
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._call: grpc.Call | None = None
        self._heard_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self.bell, self._ringing = os.pipe()
        os.set_blocking(self.bell, False)
        os.set_blocking(self._ringing, False)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._closed.set()
        self._end_call()
        self._thread.join()
        os.close(self.bell)
        os.close(self._ringing)

    def take(self) -> list[News]:
        """All since the last call. To be called every second or so: a controller that says nothing any more is left."""
        if time.monotonic() - self._heard_s > ASK_S:
            self._end_call()
        with contextlib.suppress(BlockingIOError):
            os.read(self.bell, 1 << 16)
        return [self._news.get() for _ in range(self._news.qsize())]

    def _end_call(self) -> None:
        call = self._call
        if call is not None:
            call.cancel()  # type: ignore[no-untyped-call]

    def _run(self) -> None:
        while not self._closed.is_set():
            words = []
            for address in self._addresses:
                words.append(f"{address} {self._follow(address)}")
                if self._closed.is_set():
                    return
            self._tell(Lost(", ".join(words)))
            self._closed.wait(AGAIN_S)

    def _follow(self, address: str) -> str:
        """Read one controller's stream to its end; why it ended."""
        with self._channels.channel(address) as channel:
            stub = control_pb2_grpc.OperatorStub(channel)
            try:
                status = stub.Status(rpc.StatusRequest(), timeout=ASK_S)
                if self._waits_elsewhere(status):
                    return "is on standby"
                self._heard_s = time.monotonic()
                self._call = call = stub.Live(rpc.LiveRequest())
                for increment in call:
                    if self._closed.is_set() or self._waits_elsewhere(increment.status):
                        return "is on standby now"
                    self._heard_s = time.monotonic()
                    self._tell(Heard(address, increment))
            except grpc.RpcError as error:
                if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.CANCELLED:
                    return "says nothing any more"
                return "does not answer"
            finally:
                self._call = None
            return "ended its stream"

    def _waits_elsewhere(self, status: rpc.StatusReply) -> bool:
        """Another of the controllers leads. One that is the only one named is shown on standby, too."""
        return len(self._addresses) > 1 and status.switch_view.state == "standby"

    def _tell(self, news: News) -> None:
        self._news.put(news)
        with contextlib.suppress(BlockingIOError):  # it rings already
            os.write(self._ringing, b"\0")


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
