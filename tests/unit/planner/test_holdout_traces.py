"""The holdout set is frozen: what it says of a policy counts only as long as no trace follows from a result."""

from __future__ import annotations

import hashlib

import pytest

from planner.traces import TraceRequest, holdout
from tests.unit.value.tuning_loads import MADE

FROZEN = {
    "rollout_batches": "da42729412bcfca0",
    "voted_answers": "0cbf5776090ec158",
    "assistants": "6d86cf6181cfdb4e",
    "tool_users": "fe5f47491c8ba2a4",
    "library": "3fc429c6014e4b47",
    "templates_and_jobs": "e747e990b818faab",
    "day_of_a_cluster": "1333c2c5b2e5d70a",
    "training_beside_chats": "36549efb2a95aed6",
    "mixed_groups": "40ed76dc139a8974",
    "groups_and_library": "e3c944cd93b59738",
    "votes_tools_and_templates": "bb957a4030c2c6a5",
}


def digest(requests: list[TraceRequest]) -> str:
    told = repr([(one.arrival_ms, one.input_tokens, one.output_tokens, one.blocks) for one in requests])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", holdout.MADE)
def test_holdout_traces_stay_as_they_were(name: str) -> None:
    assert digest(holdout.MADE[name](1, 300.0)) == FROZEN[name], f"{name} changed: it belongs to the tuning set now"


def test_no_trace_is_in_both_sets() -> None:
    assert not set(holdout.MADE) & set(MADE)
    assert set(FROZEN) == set(holdout.MADE)


@pytest.mark.parametrize("name", holdout.MADE)
def test_a_block_has_one_prefix(name: str) -> None:
    above: dict[int, int] = {}
    for one in holdout.MADE[name](2, 120.0):
        for at, block in enumerate(one.blocks):
            parent = one.blocks[at - 1] if at else -1
            assert above.setdefault(block, parent) == parent, (name, block)
