"""One engine of a soak: puts, fetches and compares until it is stopped; a line of JSON for each thing it did."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from bmv2_testbed.content import content_of
from kvclient.client import AgentClient, AgentError, AgentUnavailableError
from tests.soak.load import CHUNK_BYTES, DEADLINE_S, Clock, Diary, until_stopped, wrong_chunks

_AGAIN_S = 0.2
"""An agent that is away is tried again after this."""


def live(
    diary: Diary,
    connect: Callable[[], AgentClient],
    turn: Callable[[AgentClient], None],
    end: Callable[[], None] = lambda: None,
) -> None:
    """Connect, and take one turn after the other until SIGTERM, then `end()`; anew whenever the agent goes away."""
    goes_on = until_stopped()
    while goes_on():
        try:
            with connect() as client:
                while goes_on():
                    turn(client)
                end()
        except AgentUnavailableError as error:
            diary.tell("away", reason=str(error))
            time.sleep(_AGAIN_S)


def fetch(diary: Diary, client: AgentClient, keys: list[bytes]) -> None:
    """Fetch them and compare every byte."""
    began_s = time.monotonic()
    diary.tell("begun", at_s=began_s)
    try:
        with client.fetch(keys, deadline_s=DEADLINE_S) as got:
            took_s = time.monotonic() - began_s
            wrong = wrong_chunks(keys[: got.count], got.views)
            outcome, chunks = got.outcome.name, got.count
    except AgentError as error:
        took_s, outcome, chunks, wrong = time.monotonic() - began_s, error.status.name, 0, 0
    except AgentUnavailableError:
        diary.tell("lost", began_s=began_s, took_s=time.monotonic() - began_s)
        raise
    diary.tell("fetched", began_s=began_s, took_s=took_s, outcome=outcome, chunks=chunks, wrong=wrong)


class Worker:
    """An engine of a host that puts."""

    def __init__(self, clock: Clock, diary: Diary) -> None:
        self._clock, self._diary = clock, diary
        self._random = Random(f"{clock.seed}/{diary.host}")
        self._put_epoch = -1

    def turn(self, client: AgentClient) -> None:
        """The prefix of this epoch, if it is not there yet; else a fetch."""
        now_s = time.monotonic()
        epoch = self._clock.epoch(now_s)
        if epoch != self._put_epoch:
            self._put_epoch = epoch
            self._put(client, epoch)
        else:
            fetch(self._diary, client, self._random.choice(self._clock.window(now_s)).chunk_keys())

    def _put(self, client: AgentClient, epoch: int) -> None:
        parent, label = None, self._clock.label(epoch, self._diary.host)
        for key in self._clock.prefix(epoch, self._diary.host).chunk_keys():
            try:
                client.put(key, parent, content_of(key, CHUNK_BYTES), namespace=label)
                self._diary.tell("put")
            except AgentError as error:
                self._diary.tell("refused", reason=error.status.name)
                return
            parent = key


def arguments(description: str | None) -> argparse.Namespace:
    """Of a process that works on a host."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--began", type=float, required=True)
    for name in ("--seed", "--hosts", "--host"):
        parser.add_argument(name, type=int, required=True)
    return parser.parse_args()


def main() -> int:
    """Entry point: one engine."""
    args = arguments(__doc__)
    with args.out.open("ab", buffering=0) as out:
        diary = Diary(out, args.host, "engine")
        worker = Worker(Clock(args.began, args.seed, args.hosts), diary)
        live(diary, lambda: AgentClient(args.socket), worker.turn)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
