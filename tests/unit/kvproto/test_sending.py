"""What a holder notes of one chunk, against a table of all its segments."""

import random

import pytest

from kvproto.session.sending import Sending
from kvproto.session.timing import ANSWERED

SEGMENTS = 40


class Table:
    """The same, one entry a segment."""

    def __init__(self) -> None:
        self.queued = [False] * SEGMENTS
        self.left: list[tuple[int, int] | None] = [None] * SEGMENTS
        """When and for which member each segment left last."""

    def is_wanted(self, segment: int, member: int, since_ns: int) -> bool:
        left = self.left[segment]
        return not self.queued[segment] and (left is None or left[0] <= since_ns or left[1] == member)


@pytest.mark.parametrize("seed", range(8))
def test_a_chunk_remembers_what_a_table_would(seed: int) -> None:
    rng = random.Random(seed)
    sending, table = Sending(SEGMENTS, 0), Table()
    now_ns, queue = ANSWERED.ceiling_ns, list[tuple[int, int, int]]()
    answers = 0
    for _ in range(600):
        now_ns += rng.randrange(ANSWERED.ceiling_ns // 6)
        first = rng.randrange(SEGMENTS)
        count, member = rng.randint(1, SEGMENTS - first), rng.randrange(3)
        since_ns = now_ns - rng.randint(0, ANSWERED.ceiling_ns)
        runs = sending.wanted(first, count, member, since_ns)
        asked = {segment for start, length in runs for segment in range(start, start + length)}
        assert asked == {s for s in range(first, first + count) if table.is_wanted(s, member, since_ns)}
        assert all(start + length not in asked for start, length in runs), "two runs that are one"
        answers += count - len(asked)
        for start, length in runs:
            sending.queue(start, length)
            table.queued[start : start + length] = [True] * length
            queue.append((start, length, member))
        while queue and rng.random() < 0.6:
            start, length, member = queue.pop(0)
            sending.leave(start, length, member, now_ns)
            table.queued[start : start + length] = [False] * length
            table.left[start : start + length] = [(now_ns, member)] * length
            if rng.random() < 0.5:
                sending.on_way -= length
        assert sending.waiting == sum(table.queued)
        assert sending.busy == bool(sending.waiting or sending.on_way)
    assert answers, "nothing was answered already"
