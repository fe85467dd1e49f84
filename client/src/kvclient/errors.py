"""What an agent refuses, as exceptions. Standard library only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kvclient.attach import AgentUnavailableError
from kvclient.messages import Frame, Status


class AgentError(Exception):
    """The agent refused a request; `status` says why."""

    def __init__(self, status: Status, doing: str) -> None:
        super().__init__(f"the agent refused to {doing}: {status.name.lower().replace('_', ' ')}")
        self.status = status


class PoolFullError(AgentError):
    """No room in the node's pool, nothing may be evicted, or the chunk is larger than the pool or the write region."""


def expect(answer: Frame, doing: str) -> Frame:
    """The answer, which says that it is done. Raises AgentError or PoolFullError."""
    if answer.status == Status.OK:
        return answer
    status = Status(answer.status)
    if status in (Status.POOL_FULL, Status.TOO_LARGE):
        raise PoolFullError(status, doing)
    raise AgentError(status, doing)


def client_was_closed() -> AgentUnavailableError:
    """By another thread, between an answer and its use."""
    return AgentUnavailableError("the client was closed")


@contextlib.contextmanager
def while_open() -> Iterator[None]:
    """Another thread may have closed the client between an answer and this. Raises AgentUnavailableError then."""
    try:
        yield
    except ValueError as error:
        raise client_was_closed() from error
