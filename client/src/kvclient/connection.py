"""Requests and answers of one client over its socket. Thread-safe; standard library only.

Any thread sends. Of those that wait for answers one reads for all: no thread of its own, no hand-over when alone.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections import deque
from typing import TypeVar

from kvclient import forks, messages, request_encoding
from kvclient.attach import ANSWER_TIMEOUT_S, AgentUnavailableError, LeaseLostError
from kvclient.messages import Frame, Kind, MalformedFrameError
from kvclient.request_encoding import Message, Request

T = TypeVar("T")


class Connection:
    """To one agent, greeted."""

    def __init__(self, path: str, sock: socket.socket, answer_timeout_s: float) -> None:
        """The agent is given up when it owes an answer for `answer_timeout_s`, or for as long as `wait` says."""
        self.path = path
        self.answer_timeout_s = answer_timeout_s
        self._sock = sock
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(ANSWER_TIMEOUT_S), 0))
        self._readable = select.poll()
        self._readable.register(self._sock, select.POLLIN)
        self._ended = select.poll()
        self._ended.register(self._sock, 0)
        self._ended_lock = threading.Lock()
        """A poll object takes one thread at a time."""
        self._lock = threading.Condition()
        self._send_lock = threading.Lock()
        self._frames = messages.FrameReader()
        self._answers: dict[int, deque[Frame]] = {}
        """Answers that have come, by request that waits for any."""
        self._reading = False
        self._request = 0
        self._broken: str | None = None
        forks.watch(self)

    def process_forked(self) -> None:
        """See `kvclient.forks`. Closing the child's descriptor leaves the parent's session as it is; shutting it down
        would not."""
        self._broken = forks.REMEDY
        self._lock, self._send_lock, self._ended_lock = threading.Condition(), threading.Lock(), threading.Lock()
        self._sock.close()

    def close(self) -> None:
        """Whoever waits is told so."""
        with self._lock:
            self._broken = "the client was closed"
            self._lock.notify_all()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def is_up(self) -> bool:
        """Whether the agent has the connection at this moment; one system call of this process."""
        if self._broken is not None:
            return False
        with self._ended_lock:
            try:
                return not self._ended.poll(0)
            except (OSError, ValueError):
                return False

    # ------------------------------------------------------------------ requests

    def notify(self, message: Message) -> None:
        """Send what is not answered. Raises AgentUnavailableError."""
        self._send(message, is_answered=False)

    def start(self, message: Message) -> int:
        """Send what is answered; the number of the request, for which to `wait`. Raises AgentUnavailableError."""
        return self._send(message, is_answered=True)

    def _send(self, message: Message, *, is_answered: bool) -> int:
        with self._lock:
            if self._broken is not None:
                raise AgentUnavailableError(self._broken)
            self._request = self._request % 0xFFFF_FFFF + 1
            request = self._request
            if is_answered:
                self._answers[request] = deque()
        try:
            with self._send_lock:
                self._sock.sendall(message.frame(request))
        except OSError as error:
            raise self._break(f"the agent at {self.path} went away: {error.strerror}") from error
        return request

    def abort(self, lease: int) -> None:
        """Tell the agent of a reservation that ends; one that went away has none."""
        with contextlib.suppress(AgentUnavailableError):
            self.notify(request_encoding.give_back(Kind.ABORT, lease))

    def release(self, lease: int) -> None:
        """Give a lease back. Raises LeaseLostError when it had ended before: an agent that ends it ends the
        connection first, which then takes no word of this."""
        try:
            self.notify(request_encoding.give_back(Kind.RELEASE, lease))
        except AgentUnavailableError as error:
            raise LeaseLostError from error

    # ------------------------------------------------------------------ answers

    def ask(self, request: Request[T]) -> T:
        """What the agent answers. Raises AgentError, AgentUnavailableError."""
        started = self.start(request.message)
        return request.read(self.wait(started, time.monotonic() + request.deadline_s + self.answer_timeout_s))

    def wait_for(self, request: int) -> Frame:
        """As `wait`, for as long as an agent may owe an answer."""
        return self.wait(request, time.monotonic() + self.answer_timeout_s)

    def wait(self, request: int, give_up_s: float) -> Frame:
        """The next answer to a request (all but parts of a fetch that streams are its only or last one).

        Raises AgentUnavailableError when the agent is gone, or has not answered by `give_up_s` (time.monotonic).
        """
        with self._lock:
            while True:
                answer = self._take(request)
                if answer is not None:
                    return answer
                if self._broken is not None:
                    del self._answers[request]
                    raise AgentUnavailableError(self._broken)
                if not self._reading:
                    self._reading = True
                    break
                self._lock.wait(max(0.0, give_up_s - time.monotonic()))
                if time.monotonic() >= give_up_s and not self._answers[request]:
                    self._broken = f"the agent at {self.path} does not answer"
                    self._lock.notify_all()
        try:
            return self._read_until(request, give_up_s)
        except BaseException:
            with self._lock:
                self._answers.pop(request, None)
            raise
        finally:
            with self._lock:
                self._reading = False
                self._lock.notify_all()

    def _take(self, request: int) -> Frame | None:
        """With the lock held: an answer that has come."""
        answers = self._answers[request]
        if not answers:
            return None
        answer = answers.popleft()
        if answer.kind != Kind.FETCH_PART:
            del self._answers[request]
        return answer

    def _read_until(self, request: int, give_up_s: float) -> Frame:
        while True:
            try:
                if not self._readable.poll(max(0.0, give_up_s - time.monotonic()) * 1000):
                    raise self._break(f"the agent at {self.path} does not answer")
                received = self._sock.recv(65536)
                frames = self._frames.feed(received)
            except (OSError, MalformedFrameError) as error:
                raise self._break(f"the agent at {self.path} went away: {error}") from error
            if not received:
                raise self._break(f"the agent at {self.path} closed the connection")
            with self._lock:
                for frame in frames:
                    waiting = self._answers.get(frame.request)
                    if waiting is not None:
                        waiting.append(frame)
                answer = self._take(request)
                if len(frames) > 1 or answer is None:
                    self._lock.notify_all()
            if answer is not None:
                return answer

    def _break(self, reason: str) -> AgentUnavailableError:
        with self._lock:
            if self._broken is None:
                self._broken = reason
            self._lock.notify_all()
            return AgentUnavailableError(self._broken)
