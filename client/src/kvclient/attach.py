"""How an engine comes to its node's agent: connect, be greeted, get its memory files. Standard library only."""

from __future__ import annotations

import grp
import os
import socket
import stat
from dataclasses import dataclass
from types import TracebackType

from kvclient import messages
from kvclient.messages import Kind, Status

ANSWER_TIMEOUT_S = 30.0
"""How long an agent may owe an answer before the client gives it up, unless the engine says otherwise."""
CONNECT_TIMEOUT_S = 5.0
FILES_MAX = 6
"""That come with the greeting."""


_REFUSALS: dict[int, str] = {
    Status.BUSY: "it has as many connections as it takes; use one client a process, and end engines that hang",
    Status.FORBIDDEN: "this user is not among its api.users, or not in its api.group; see the agent's configuration",
}


class AgentUnavailableError(Exception):
    """There is no agent, or it went away; all leases are void, their views must not be used any more."""


class LeaseLostError(AgentUnavailableError):
    """The agent does not hold a lease any more. What was copied from its views may be other bytes: drop the copy."""

    def __init__(self) -> None:
        super().__init__(
            "these chunks are not leased any more (the agent went away, or this client was closed, or it is the client"
            " of the process that forked this one): drop what was copied from them, and fetch or compute it again"
        )


@dataclass(frozen=True, slots=True)
class Attached:
    """A connection that has been greeted. Leaving its `with` closes the descriptors (what is mapped stays mapped), and
    after an error the socket."""

    sock: socket.socket
    memory: int
    """Descriptor of the pool's memory file, to be read only."""
    region: int
    """Descriptor of this connection's write region."""
    local: tuple[int, int] | None
    """Descriptors of the catalog and of this connection's table of leases; None: the agent offers none."""
    lone: tuple[int, int] | None
    """Descriptors of a socket for lone gets and of this connection's landing; None: the agent serves none."""
    pool_bytes: int
    incarnation: int

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close_files()
        if kind is not None:
            self.sock.close()

    def close_files(self) -> None:
        """The descriptors: what is mapped stays mapped."""
        for descriptor in (self.memory, self.region, *(self.local or ()), *(self.lone or ())):
            os.close(descriptor)


def attach(path: str) -> Attached:
    """Connect to the agent at `path`. Raises AgentUnavailableError, one line that names the remedy."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    descriptors: list[int] = []
    try:
        sock.settimeout(CONNECT_TIMEOUT_S)
        try:
            sock.connect(path)
            size = messages.HEADER.size + messages.WELCOME.size
            received, descriptors, _, _ = socket.recv_fds(sock, size, FILES_MAX, socket.MSG_WAITALL)
        except PermissionError as error:
            raise AgentUnavailableError(f"no access to the agent at {path}: {who_may(path)}") from error
        except OSError as error:
            reason = error.strerror or "no answer"
            raise AgentUnavailableError(
                f"no agent at {path}: {reason}; is kvcast-agent running on this node?"
            ) from error
        if len(received) != size:
            raise AgentUnavailableError(f"what listens at {path} is not a kvcast-agent")
        pool_bytes, incarnation, offers = _greeted(path, received)
        has_local, has_lone = bool(offers & messages.OFFERS_LOCAL), bool(offers & messages.OFFERS_LONE)
        if len(descriptors) != 2 + 2 * has_local + 2 * has_lone:
            raise AgentUnavailableError(f"what listens at {path} is not a kvcast-agent")
        sock.settimeout(None)
        memory, region, *offered = descriptors
        local = (offered[0], offered[1]) if has_local else None
        lone = (offered[-2], offered[-1]) if has_lone else None
        return Attached(sock, memory, region, local, lone, pool_bytes, incarnation)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        sock.close()
        raise


def who_may(path: str) -> str:
    """What a user who may not open the agent's socket can do about it."""
    try:
        found = os.stat(path)
    except OSError:
        return f"this user may not enter {os.path.dirname(path) or '.'}"
    if found.st_gid == 0 or not found.st_mode & stat.S_IWGRP:
        return "permission denied; name a group of engines' users in the agent's configuration (api.group, api.mode)"
    try:
        group = grp.getgrgid(found.st_gid).gr_name
    except KeyError:
        group = str(found.st_gid)
    return f"permission denied; join the group that may, {group} (usermod -aG {group} USER, then log in again)"


def _greeted(path: str, received: bytes) -> tuple[int, int, int]:
    """(pool bytes, incarnation, what is offered) of a WELCOME."""
    try:
        frames = messages.FrameReader().feed(received)
    except messages.MalformedFrameError:
        frames = []
    if len(frames) != 1 or frames[0].kind != Kind.WELCOME or len(frames[0].body) != messages.WELCOME.size:
        raise AgentUnavailableError(f"what listens at {path} is not a kvcast-agent")
    (frame,) = frames
    version, pool_bytes, incarnation = messages.WELCOME.unpack(frame.body)
    if frame.status != Status.OK:
        raise AgentUnavailableError(f"the agent at {path} refused the connection: {_REFUSALS.get(frame.status, '?')}")
    if version != messages.VERSION:
        raise AgentUnavailableError(
            f"the agent at {path} speaks version {version}, this client {messages.VERSION}: update the older"
        )
    return pool_bytes, incarnation, frame.count
