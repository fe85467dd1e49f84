"""What the directory hears of a node's copies is what the node has, whatever comes, goes and comes back meanwhile."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hostagent import limits
from hostagent.core import effects
from hostagent.core.options import CoreOptions
from hostagent.core.reports import Reports
from hostagent.pool.chunks import Chunk
from tests.digests import hashed
from tests.unit.hostagent.core_harness import PAGE, key
from tests.unit.hostagent.node_harness import make_node

PAGES = 8
MS = 1_000_000


class Node:
    """A pool whose changes are told to a directory."""

    def __init__(self) -> None:
        node = make_node(CoreOptions(PAGES * PAGE, PAGE), self.hear)
        self.alarms, self.clock, self.pool = node.alarms, node.clock, node.pool
        self.reports = Reports(node, list, list)
        self.directory: set[int] = set()
        node.fabric.connected = True
        self.reports.snapshot(1)

    def hear(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.Announce):
            self.directory |= {int.from_bytes(chunk.key, "big") for chunk in effect.added}
            self.directory -= {int.from_bytes(gone, "big") for gone in effect.removed}

    def come(self, number: int, *, by_fetch: bool) -> None:
        if self.pool.find(key(number)) is not None:
            return
        chunk = self.pool.reserve(key(number), None, PAGE)
        assert isinstance(chunk, Chunk)
        self.pool.commit(chunk, hashed(number))
        if by_fetch:
            self.reports.fetched_copy(key(number))
        self.reports.pool_changed()

    def go(self, number: int) -> None:
        self.pool.drop(key(number))
        self.reports.pool_changed()

    def wait(self, time_ns: int) -> None:
        self.clock.now_ns += time_ns
        self.alarms.ring()


STEPS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["put", "fetch", "over", "go", "wait"])), max_size=40)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(STEPS)
def test_the_directory_knows_what_is_here_when_all_fetches_are_over(steps: list[tuple[int, str]]) -> None:
    node = Node()
    for number, step in steps:
        match step:
            case "put" | "fetch":
                node.come(number, by_fetch=step == "fetch")
            case "over":
                node.reports.fetch_over([key(number)])
            case "go":
                node.go(number)
            case "wait":
                node.wait(int(limits.ANNOUNCE_DELAY_S * 1e9))
    node.reports.fetch_over([key(number) for number in range(3)])
    node.wait(int(limits.ANNOUNCE_DELAY_S * 1e9))
    here = {int.from_bytes(chunk.key, "big") for chunk in node.pool.ready_chunks()}
    assert node.directory == here


def test_a_copy_that_came_back_by_a_fetch_and_went_is_not_in_the_directory() -> None:
    node = Node()
    node.come(1, by_fetch=False)
    node.wait(100 * MS)
    assert node.directory == {1}
    node.go(1)
    node.come(1, by_fetch=True)
    node.wait(100 * MS)
    assert node.directory == set(), "while it is being fetched everybody asks the one holder"
    node.reports.fetch_over([key(1)])
    node.go(1)
    node.wait(100 * MS)
    assert node.directory == set()
