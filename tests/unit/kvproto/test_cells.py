"""Which cell a prefix belongs to: shares as weights say, and after a change only what must move has moved."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvchunk.ids import ChunkKey
from kvproto.cells import Cell, Cells, home_of

ROOTS = [ChunkKey(random.Random(number).randbytes(16)) for number in range(4000)]
WEIGHTS = st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.floats(0.01, 100), min_size=1, max_size=6)


def homes(weights: Mapping[str, float]) -> list[str]:
    return [home_of(root, weights) for root in ROOTS]


@pytest.mark.parametrize(
    "weights", [{"a": 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 3.0, "b": 1.0}, {"a": 200.0, "b": 100.0, "c": 0.0}]
)
def test_a_cell_is_home_to_its_share(weights: dict[str, float]) -> None:
    found = Counter(homes(weights))
    for name, weight in weights.items():
        share = weight / sum(weights.values())
        spread = 5 * (share * (1 - share) / len(ROOTS)) ** 0.5
        assert found[name] / len(ROOTS) == pytest.approx(share, abs=spread)


@given(before=WEIGHTS, name=st.text("abcdefg", min_size=1, max_size=4), weight=st.floats(0.01, 100))
@settings(max_examples=30, deadline=None)
def test_a_cell_that_comes_grows_or_shrinks_moves_its_own_prefixes_alone(
    before: dict[str, float], name: str, weight: float
) -> None:
    after = {**before, name: weight}
    grows = weight >= before.get(name, 0.0)
    for old, new in zip(homes(before), homes(after), strict=True):
        assert old == new or (new if grows else old) == name


@given(before=WEIGHTS)
@settings(max_examples=20, deadline=None)
def test_a_cell_that_goes_leaves_all_others_where_they_are(before: dict[str, float]) -> None:
    if len(before) > 1:
        gone = min(before)
        after = {name: weight for name, weight in before.items() if name != gone}
        for old, new in zip(homes(before), homes(after), strict=True):
            assert old in (new, gone)


def test_no_more_move_than_the_share_that_was_given_away() -> None:
    """From ten cells to eleven: one in eleven, not all of them as by a remainder."""
    ten = {f"cell-{number}": 1.0 for number in range(10)}
    moved = sum(old != new for old, new in zip(homes(ten), homes({**ten, "cell-10": 1.0}), strict=True))
    assert moved / len(ROOTS) == pytest.approx(1 / 11, abs=0.025)


def test_everybody_finds_the_same_cell() -> None:
    """Agents, routers and controllers of other releases and machines: these are the answers for good."""
    weights = {"east": 2.0, "west": 1.0, "north": 0.5}
    roots = [ChunkKey(bytes([number]) * 16) for number in range(12)]
    assert [home_of(root, weights)[0] for root in roots] == list(EXPECTED)
    assert [home_of(root, dict(reversed(weights.items())))[0] for root in roots] == list(EXPECTED), "in any order"


EXPECTED = "enneenewneew"


@pytest.mark.parametrize("weights", [{}, {"a": 0.0, "b": 0.0}])
def test_some_cell_has_to_weigh_something(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no cell weighs anything"):
        home_of(ROOTS[0], weights)


def test_the_own_cell_is_not_elsewhere() -> None:
    east, west = Cell("east"), Cell("west", controllers=("w1:4800",))
    cells = Cells("east", {"east": east, "west": west})
    found = [cells.elsewhere(root) for root in ROOTS]
    assert set(found) == {None, west}
    assert Cells().elsewhere(ROOTS[0]) is None


def test_a_node_of_another_cell_is_sent_to_its_controllers() -> None:
    cells = Cells("east", {"east": Cell("east"), "west": Cell("west", controllers=("w1:4800", "w2:4800"))})
    assert cells.refusal("n1", "") == cells.refusal("n1", "east") == Cells().refusal("n1", "west") == ""
    assert cells.refusal("n1", "west").endswith("name w1:4800, w2:4800 in controller.address")
    assert cells.refusal("n1", "south").endswith("see cell in agent.yaml")
