"""A stranger who opens connections and says nothing: as many as it may to each port, others for those that end."""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import socket
import time
from collections import Counter, deque
from typing import Final

from kvdaemon.notify import notify
from tests.soak.load import until_stopped

EACH_MAX: Final = 300
"""Of one port at once: beyond what any port leaves to one address (128, 96, 8)."""
_CONNECT_S: Final = 5.0


class Silence:
    """Connections by address of who listens."""

    def __init__(self, addresses: list[str]) -> None:
        self._open: dict[str, deque[socket.socket]] = {address: deque() for address in addresses}
        self.opened: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """Nobody listened: a daemon was away."""
        self.ended: Counter[str] = Counter()

    def open_one(self) -> None:
        """To whoever has the fewest."""
        address = min(self._open, key=lambda one: self.opened[one] + self.refused[one])
        host, _, port = address.rpartition(":")
        try:
            made = socket.create_connection((host, int(port)), _CONNECT_S)
        except OSError:
            self.refused[address] += 1
            return
        self.opened[address] += 1
        made.setblocking(False)
        connections = self._open[address]
        connections.append(made)
        if len(connections) > EACH_MAX:
            connections.popleft().close()

    def drop_ended(self) -> None:
        """Of those that the other side has ended nothing is left."""
        for address, connections in self._open.items():
            for one in [one for one in connections if _has_ended(one)]:
                connections.remove(one)
                one.close()
                self.ended[address] += 1

    def close(self) -> None:
        """Let go of all."""
        for connections in self._open.values():
            while connections:
                connections.pop().close()


def _has_ended(one: socket.socket) -> bool:
    poll = select.poll()
    poll.register(one, select.POLLIN)
    if not poll.poll(0):
        return False
    with contextlib.suppress(BlockingIOError):
        try:
            return not one.recv(65536)
        except ConnectionError:
            return True
    return False


def main() -> int:
    """Entry point: until SIGTERM; then how many there were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, required=True, help="connections to each port in a second")
    parser.add_argument("addresses", nargs="+")
    args = parser.parse_args()
    silence = Silence(args.addresses)
    every_s = 1 / args.rate / len(args.addresses)
    goes_on = until_stopped()
    looked_s = time.monotonic()
    notify("READY=1")
    while goes_on():
        began_s = time.monotonic()
        silence.open_one()
        if began_s - looked_s > 1.0:
            silence.drop_ended()
            looked_s = began_s
        time.sleep(max(0.0, every_s - (time.monotonic() - began_s)))
    print(json.dumps({"opened": silence.opened, "ended": silence.ended, "refused": silence.refused}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
