"""Virtual clock and event heap."""

import heapq
from collections.abc import Callable


class Engine:
    """Runs callbacks in order of virtual time; equal times in order of scheduling."""

    __slots__ = ("_heap", "_serial", "now_ns")

    def __init__(self) -> None:
        self.now_ns = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0

    def at(self, at_ns: int, action: Callable[[], None]) -> None:
        """Run `action` at a virtual time (not before now)."""
        self._serial += 1
        heapq.heappush(self._heap, (max(at_ns, self.now_ns), self._serial, action))

    def run(self, until_ns: int, stop: Callable[[], bool]) -> None:
        """Run until that time, or until `stop` is true (asked after every event)."""
        while self._heap and self._heap[0][0] <= until_ns:
            self.now_ns, _, action = heapq.heappop(self._heap)
            action()
            if stop():
                return
        self.now_ns = max(self.now_ns, until_ns)
