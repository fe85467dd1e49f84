"""One engine of a soak: puts, fetches and compares until its time is over; a line of JSON for each thing it did."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from random import Random
from typing import Any, TextIO

from bmv2_testbed.content import content_of, same_content
from kvclient.client import AgentClient, AgentError, AgentUnavailableError
from tests.soak.load import CHUNK_BYTES, DEADLINE_S, Clock

_AGAIN_S = 0.2
"""An agent that is away is tried again after this."""


class Worker:
    """`host`: its number among those that put; lines go to `out`."""

    def __init__(self, socket_path: str, clock: Clock, host: int, out: TextIO) -> None:
        self._socket_path, self._clock, self._host, self._out = socket_path, clock, host, out
        self._random = Random(f"{clock.seed}/{host}")
        self._client: AgentClient | None = None
        self._put_epoch = -1

    def run(self, until_s: float) -> None:
        """Until then; what is under way is finished."""
        while time.monotonic() < until_s:
            try:
                if self._client is None:
                    self._client = AgentClient(self._socket_path)
                self._turn(self._client)
            except AgentUnavailableError as error:
                self._tell("away", reason=str(error))
                if self._client is not None:
                    self._client.close()
                    self._client = None
                time.sleep(_AGAIN_S)
        if self._client is not None:
            self._client.close()

    def _turn(self, client: AgentClient) -> None:
        now_s = time.monotonic()
        epoch = self._clock.epoch(now_s)
        if epoch != self._put_epoch:
            self._put_epoch = epoch
            self._put(client, epoch)
        else:
            self._fetch(client, now_s)

    def _put(self, client: AgentClient, epoch: int) -> None:
        parent = None
        for key in self._clock.prefix(epoch, self._host).chunk_keys():
            try:
                client.put(key, parent, content_of(key, CHUNK_BYTES))
                self._tell("put")
            except AgentError as error:
                self._tell("refused", reason=error.status.name)
                return
            parent = key

    def _fetch(self, client: AgentClient, now_s: float) -> None:
        prefix = self._random.choice(self._clock.window(now_s))
        keys = prefix.chunk_keys()
        self._tell("begun", at_s=now_s)
        try:
            with client.fetch(keys, deadline_s=DEADLINE_S) as got:
                took_s = time.monotonic() - now_s
                found = zip(keys[: got.count], got.views[: got.count], strict=True)
                wrong = sum(not same_content(view, content_of(key, CHUNK_BYTES)) for key, view in found)
                outcome, chunks = got.outcome.name, got.count
        except AgentError as error:
            took_s, outcome, chunks, wrong = time.monotonic() - now_s, error.status.name, 0, 0
        except AgentUnavailableError:
            self._tell("lost", began_s=now_s, took_s=time.monotonic() - now_s)
            raise
        self._tell("fetched", began_s=now_s, took_s=took_s, outcome=outcome, chunks=chunks, wrong=wrong)

    def _tell(self, what: str, **fields: Any) -> None:
        line = {"what": what, "host": self._host, "at_s": time.monotonic()} | fields
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


def main() -> int:
    """Entry point: one engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--out", type=Path, required=True)
    for name in ("--began", "--until"):
        parser.add_argument(name, type=float, required=True)
    for name in ("--seed", "--hosts", "--host"):
        parser.add_argument(name, type=int, required=True)
    args = parser.parse_args()
    with args.out.open("a") as out:
        Worker(args.socket, Clock(args.began, args.seed, args.hosts), args.host, out).run(args.until)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
