"""Clients in a process that is forked: they stay the parent's.

A child inherits a client's socket, its table of leases and locks that another thread of the parent may hold. If both
used them, each would read the other's answers and end the other's leases. So a child lets go of them at once, and every
call in it raises and names the remedy. Connecting anew in secret would not do: the leases, pins and reservations that
the caller holds are the parent's all the same, and each worker of a data loader would take a connection that nobody
asked for. Standard library only.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, ParamSpec, Protocol, TypeVar

from kvclient.attach import AgentUnavailableError

REMEDY: Final = (
    "this process was forked from the one that connected to the agent: connect in the process that uses the pool (after"
    " fork), or have processes spawned: multiprocessing.set_start_method('spawn')"
)

P = ParamSpec("P")
T = TypeVar("T")


class Forkable(Protocol):
    """Something that belongs to the process that made it."""

    def process_forked(self) -> None:
        """This is the child: let go of what is the parent's, without a word to the agent, and take no lock that was
        there before."""


_watched: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()


def watch(one: Forkable) -> None:
    """Tell it in each child that is forked from now on."""
    _watched.add(one)


def _tell_child() -> None:
    for one in list(_watched):
        one.process_forked()


os.register_at_fork(after_in_child=_tell_child)


class Threads(ThreadPoolExecutor):
    """Threads of a connector. A child has none of them: what is submitted there would never run, so `submit` raises."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, thread_name_prefix=name)
        self._process = os.getpid()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See ThreadPoolExecutor. Raises AgentUnavailableError in a process that was forked since."""
        if os.getpid() != self._process:
            raise AgentUnavailableError(REMEDY)
        return super().submit(fn, *args, **kwargs)
