"""A process beside the engine of a host, as a data loader is: it holds for seconds what it leased, and forks workers
while it fetches. What lies under a lease is compared at its end: it is right, or the release says that the lease was
lost. What a child tries with its parent's client names the remedy."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from random import Random
from typing import Final

from kvchunk.sources import ChunkSource
from kvclient.client import AgentClient, AgentError, AgentUnavailableError, Fetched, LeaseLostError
from tests.soak.load import DEADLINE_S, HUNG_S, Clock, Diary, wrong_chunks
from tests.soak.worker import arguments, fetch, live

_HELD: Final = 3
"""Leases at once: whenever an agent ends, there is one."""
_REST_S: Final = (0.1, 1.5)
"""Between two turns; a lease is held for _HELD of them."""
_READS_ON_S: Final = (0.0, 6.0)
"""Under leases of an agent that has ended: the next one gives the memory to others after two seconds."""
_OWN: Final = 0.8
_CHILDREN: Final = 2
_REMEDY: Final = "forked"
"""In each thing that a child hears."""
Told = dict[str, bool]
"""Of each thing that a child tried, whether it heard the remedy."""


def told_of_child(client: AgentClient, held: list[Fetched]) -> Told:
    """In a child: use everything of the parent's."""
    key = bytes(16)
    calls: dict[str, Callable[[], object]] = {
        "fetch": lambda: client.fetch([key], deadline_s=1.0),
        "any order": lambda: client.fetch([key], deadline_s=1.0, any_order=True),
        "put": lambda: client.put(key, None, b"a child's"),
        "contains": lambda: client.contains([key]),
        **{f"check of lease {place}": one.check for place, one in enumerate(held)},
        **{f"release of lease {place}": one.release for place, one in enumerate(held)},
    }
    told: Told = {}
    for name, call in calls.items():
        try:
            call()
            told[name] = False
        except AgentUnavailableError as error:
            told[name] = _REMEDY in str(error)
    return told


def forked(child: Callable[[], Told]) -> Told | None:
    """By os.fork: what the child was told. None: it said nothing, and was ended."""
    listen, speak = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(listen)
        _speak(speak, child)
        os._exit(0)
    os.close(speak)
    try:
        return _hear(listen)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def multiprocessed(child: Callable[[], Told]) -> Told | None:
    """The same by multiprocessing, as data loaders do."""
    listen, speak = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=_speak, args=(speak, child))
    process.start()
    os.close(speak)
    try:
        return _hear(listen)
    finally:
        process.kill()
        process.join()


def _speak(speak: int, child: Callable[[], Told]) -> None:
    os.write(speak, json.dumps(child()).encode())


def _hear(listen: int) -> Told | None:
    with os.fdopen(listen, "rb") as said:
        readable, _, _ = select.select([said], [], [], HUNG_S)
        told = said.read1(select.PIPE_BUF) if readable else b""
    return json.loads(told) if told else None


FORKS: Final[dict[str, Callable[[Callable[[], Told]], Told | None]]] = {
    "os.fork": forked,
    "multiprocessing": multiprocessed,
}


class Loader:
    """Of one host."""

    def __init__(self, clock: Clock, diary: Diary, path: str) -> None:
        self._clock, self._diary, self._path = clock, diary, path
        self._random = Random(f"{clock.seed}/{diary.host}/loader")
        self._held: list[tuple[Fetched, list[bytes]]] = []
        """What is leased, oldest first, and its keys."""

    def connect(self) -> AgentClient:
        """Half of the time a client that asks the agent for its leases."""
        return AgentClient(self._path, local_reads=self._random.random() < 0.7)

    def turn(self, client: AgentClient) -> None:
        """Lease, fork in the middle of a fetch, let go of the oldest lease. Where the agent goes away, what is held is
        read for a while, as by a copy that takes long, and then let go of."""
        try:
            self._take(client)
            self._fork(self._random.choice(sorted(FORKS)), client)
            time.sleep(self._random.uniform(*_REST_S))
            if len(self._held) >= _HELD:
                self._let_go(*self._held.pop(0))
        except AgentUnavailableError:
            time.sleep(self._random.uniform(*_READS_ON_S))
            self.let_go_of_all()
            raise

    def _take(self, client: AgentClient) -> None:
        keys = self._some_keys()
        try:
            held = client.fetch(keys, deadline_s=DEADLINE_S)
        except AgentError as error:
            self._diary.tell("refused", reason=error.status.name)
            return
        if held.count:
            self._held.append((held, keys))

    def let_go_of_all(self) -> None:
        """Of what the agent has ended, too."""
        while self._held:
            with contextlib.suppress(LeaseLostError):
                self._let_go(*self._held.pop(0))

    def _some_keys(self) -> list[bytes]:
        """Mostly of what this host has put, which is here; the newest is on its way into the pool."""
        random, now_s = self._random, time.monotonic()
        prefix = random.choice(self._clock.window(now_s))
        if random.random() < _OWN:
            prefix = self._clock.prefix(max(0, self._clock.epoch(now_s) - random.randrange(2)), self._diary.host)
        return prefix.chunk_keys()[: random.randint(1, 4)]

    def _fork(self, how: str, client: AgentClient) -> None:
        """Children are forked while another thread fetches; what that fetch brings is compared."""
        errors: list[AgentUnavailableError] = []

        def fetch_meanwhile() -> None:
            try:
                fetch(self._diary, client, self._some_keys())
            except AgentUnavailableError as error:
                errors.append(error)

        fetching = threading.Thread(target=fetch_meanwhile)
        fetching.start()
        for _ in range(_CHILDREN):
            told = FORKS[how](lambda: told_of_child(client, [held for held, _ in self._held]))
            untold = ["everything"] if told is None else [name for name, heard in told.items() if not heard]
            self._diary.tell("forked", how=how, untold=untold)
        fetching.join()
        if errors:
            raise errors[0]

    def _let_go(self, held: Fetched, keys: list[bytes]) -> None:
        """By leaving a `with`, or by hand: both compare first."""
        way = "local" if set(held.sources) == {ChunkSource.LOCAL} else "agent"
        chunks, wrong = held.count, 0
        try:
            if self._random.random() < 0.5:
                with held:
                    wrong = wrong_chunks(keys[: held.count], held.views)
            else:
                wrong = wrong_chunks(keys[: held.count], held.views)
                held.release()
        except LeaseLostError:
            self._diary.tell("leased", way=way, chunks=chunks, wrong=wrong, lost=True)
            raise
        self._diary.tell("leased", way=way, chunks=chunks, wrong=wrong, lost=False)


def main() -> int:
    """Entry point: one loader."""
    args = arguments(__doc__)
    # Python warns of forks beside threads: this is what is tried here.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    with args.out.open("ab", buffering=0) as out:
        diary = Diary(out, args.host, "loader")
        loader = Loader(Clock(args.began, args.seed, args.hosts), diary, args.socket)
        live(diary, loader.connect, loader.turn, loader.let_go_of_all)
    return 0


if __name__ == "__main__":
    sys.exit(main())
