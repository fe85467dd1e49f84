"""Following the controller that leads, whichever that is at the moment: a thread that reads its increments."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import grpc

from kvcast.operator import Channels
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
