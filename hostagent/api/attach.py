"""How an engine comes to its node's agent: connect, be greeted, get the pool's memory file. Standard library only."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from hostagent.api import messages
from hostagent.api.messages import Kind, Status

ANSWER_TIMEOUT_S = 30.0
"""How long an agent may owe an answer before it is given up, unless the engine says otherwise."""
CONNECT_TIMEOUT_S = 5.0


class AgentUnavailableError(Exception):
    """There is no agent, or it went away; all leases are void, their views must not be used any more."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A connection that has been greeted. Whoever gets it closes socket and descriptor."""

    sock: socket.socket
    memory: int
    """Descriptor of the pool's memory file."""
    pool_bytes: int
    incarnation: int


def attach(path: str) -> Attached:
    """Connect to the agent at `path`. Raises AgentUnavailableError, one line that names the remedy."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    descriptors: list[int] = []
    try:
        sock.settimeout(CONNECT_TIMEOUT_S)
        try:
            sock.connect(path)
            size = messages.HEADER.size + messages.WELCOME.size
            received, descriptors, _, _ = socket.recv_fds(sock, size, 1, socket.MSG_WAITALL)
        except OSError as error:
            reason = error.strerror or "no answer"
            raise AgentUnavailableError(
                f"no agent at {path}: {reason}; is kvcast-agent running on this node?"
            ) from error
        if len(received) != size or len(descriptors) != 1:
            raise AgentUnavailableError(f"what listens at {path} is not a kvcast-agent")
        pool_bytes, incarnation = _greeted(path, received)
        sock.settimeout(None)
        return Attached(sock, descriptors[0], pool_bytes, incarnation)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        sock.close()
        raise


def _greeted(path: str, received: bytes) -> tuple[int, int]:
    """(pool bytes, incarnation) of a WELCOME."""
    (frame,) = messages.FrameReader().feed(received)
    if frame.kind != Kind.WELCOME:
        status = Status(frame.status).name.lower() if frame.status in set(Status) else "unknown"
        raise AgentUnavailableError(f"the agent at {path} refused the connection: {status}")
    version, pool_bytes, incarnation = messages.WELCOME.unpack(frame.body)
    if version != messages.VERSION:
        raise AgentUnavailableError(
            f"the agent at {path} speaks version {version}, this client {messages.VERSION}: update the older"
        )
    return pool_bytes, incarnation
