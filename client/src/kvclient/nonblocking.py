"""Requests and answers of one client that may not wait for its socket. One thread only; standard library only."""

from __future__ import annotations

import contextlib
import select
import socket
from collections import deque

from kvclient import forks, messages, request_encoding
from kvclient.attach import AgentUnavailableError, LeaseLostError
from kvclient.messages import Frame, Kind, MalformedFrameError
from kvclient.request_encoding import Message

RECEIVE_BYTES = 1 << 16


class NonBlockingConnection:
    """To one agent, greeted. What cannot be sent at once waits for `flush`."""

    def __init__(self, path: str, sock: socket.socket) -> None:
        self._path = path
        self._sock = sock
        self._sock.setblocking(False)
        self._ended = select.poll()
        self._ended.register(self._sock, 0)
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._frames = messages.FrameReader()
        self._unsent: deque[memoryview] = deque()
        self._number = 0
        self._broken = ""
        forks.watch(self)

    def process_forked(self) -> None:
        """See `kvclient.forks`."""
        self._broken = forks.REMEDY
        self._unsent.clear()
        self._sock.close()

    def close(self) -> None:
        """Gives everything back, leases too. Idempotent."""
        self._broken = self._broken or "the client was closed"
        self._sock.close()

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    @property
    def has_unsent(self) -> bool:
        """`flush` when there is room in the socket."""
        return bool(self._unsent)

    def is_up(self) -> bool:
        """Whether the agent has the connection at this moment; one system call of this process."""
        return not self._broken and not self._ended.poll(0)

    def check(self) -> None:
        """Raises AgentUnavailableError once the agent is gone."""
        if self._broken:
            raise AgentUnavailableError(self._broken)

    def broken(self, what: str) -> AgentUnavailableError:
        """The agent is of no further use, and all calls raise this."""
        self._broken = f"the agent at {self._path} {what}"
        return AgentUnavailableError(self._broken)

    def send(self, message: Message) -> int:
        """Send a message, or keep it for `flush`; its number. Raises AgentUnavailableError."""
        self.check()
        self._number = self._number % 0xFFFF_FFFF + 1
        self._unsent.append(memoryview(message.frame(self._number)))
        self.flush()
        return self._number

    def give_back(self, kind: Kind, lease: int) -> None:
        """Tell the agent of a lease that nobody used; one that went away holds no leases."""
        with contextlib.suppress(AgentUnavailableError):
            self.send(request_encoding.give_back(kind, lease))

    def release(self, lease: int) -> None:
        """Give a lease back. Raises LeaseLostError when it had ended before: see `Connection.release`."""
        try:
            self.send(request_encoding.give_back(Kind.RELEASE, lease))
        except AgentUnavailableError as error:
            raise LeaseLostError from error
        if self._unsent and not self.is_up():
            raise LeaseLostError

    def flush(self) -> None:
        """Send as much of what is unsent as the socket takes. Raises AgentUnavailableError."""
        try:
            while self._unsent:
                frame = self._unsent[0]
                sent = self._sock.send(frame)
                if sent == len(frame):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = frame[sent:]
        except BlockingIOError:
            pass
        except OSError as error:
            raise self.broken(f"went away: {error.strerror}") from error

    def receive(self) -> list[Frame]:
        """Frames that have come. Raises AgentUnavailableError."""
        try:
            if self._unsent:
                self.flush()
            # Reuse the same memory: allocating and freeing as much each time costs more than the system call.
            count = self._sock.recv_into(self._received)
            if not count:
                raise self.broken("closed the connection")
            return self._frames.feed(bytes(self._received[:count]))
        except BlockingIOError:
            return []
        except (OSError, MalformedFrameError) as error:
            raise self.broken(f"went away: {error}") from error
