"""Heat reports: what the controller hears of, and how often."""

from __future__ import annotations

import pytest

from tests.dataplane.bench import HEAT_GETS, Bench, mask

REPORT_LIMIT_S = 5.0


def sharing_one_cell(bench: Bench, row: int) -> tuple[bytes, bytes]:
    """Two keys with the same cell in one row of the sketch and different cells in the other."""
    seen: dict[int, bytes] = {}
    for _ in range(1 << 12):
        key = bench.any_key()
        other = seen.setdefault(bench.heat_cells(key)[row], key)
        if bench.heat_cells(other)[1 - row] != bench.heat_cells(key)[1 - row] and bench.claim(other, key):
            return other, key
    raise AssertionError("no two keys share a cell")


def reports(bench: Bench) -> list[dict[str, int]]:
    """Reports up to now: the switch sends them in order, so one that is forced closes the list."""
    closing = bench.key()
    bench.join(7, closing)
    bench.join(8, closing)
    found: list[dict[str, int]] = []
    while True:
        digest = bench.target.control.next_digest(REPORT_LIMIT_S, "heat_report_t")
        assert digest is not None, "the closing report never came"
        if digest["key"] == int.from_bytes(closing, "big"):
            return found
        found.append(digest)


def test_second_member_is_reported_once_a_window(bench: Bench) -> None:
    key = bench.key()
    bench.join(2, key)
    assert reports(bench) == []
    bench.join(3, key)
    assert reports(bench) == [{"key": int.from_bytes(key, "big"), "members": mask(2, 3), "gets": 0}]
    bench.join(4, key)
    bench.join(5, key)
    assert reports(bench) == [], "the window is not over"
    bench.fabric(window_us=1)
    bench.join(6, key)
    assert [report["members"] for report in reports(bench)] == [mask(2, 3, 4, 5, 6)]


def test_renewed_join_is_no_news(bench: Bench) -> None:
    key = bench.key()
    bench.fabric(window_us=1)
    bench.join(2, key)
    bench.join(2, key)
    assert reports(bench) == []


def test_kth_get_of_an_absent_chunk_is_reported_once_a_window(bench: Bench) -> None:
    key = bench.key()
    for _ in range(HEAT_GETS - 1):
        bench.ask(2, bench.get(key, 0))
    assert reports(bench) == []
    bench.ask(3, bench.get(key, 0))
    assert reports(bench) == [{"key": int.from_bytes(key, "big"), "members": mask(3), "gets": HEAT_GETS}]
    for _ in range(3 * HEAT_GETS):
        bench.ask(2, bench.get(key, 0))
    assert reports(bench) == []


@pytest.mark.parametrize("row", [0, 1])
def test_gets_of_a_chunk_that_shares_one_cell_do_not_count(bench: Bench, row: int) -> None:
    """The smaller count of the two rows holds."""
    one, other = sharing_one_cell(bench, row)
    for _ in range(HEAT_GETS - 1):
        bench.ask(2, bench.get(one, 0))
    bench.ask(2, bench.get(other, 0))
    assert reports(bench) == []
    bench.ask(2, bench.get(one, 0))
    assert [report["gets"] for report in reports(bench)] == [HEAT_GETS]


def test_gets_of_a_past_window_do_not_count(bench: Bench) -> None:
    key = bench.key()
    bench.fabric(window_us=1)
    for _ in range(2 * HEAT_GETS):
        bench.ask(2, bench.get(key, 0))
    assert reports(bench) == []


def test_chunk_that_is_here_or_on_its_way_is_not_reported_for_gets(bench: Bench) -> None:
    filling, serving = bench.key(), bench.key()
    bench.insert(bench.chunk(filling, "filling", base_slot=0, segments=8, port=1))
    bench.cache(bench.segments(serving), base_slot=8)
    for key in (filling, serving):
        for segment in range(8):
            bench.ask(2, bench.get(key, segment))
    assert reports(bench) == []
