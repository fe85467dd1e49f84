"""The holdout set is frozen: what it says of a policy counts only as long as no trace follows from a result."""

from __future__ import annotations

import hashlib

import pytest

from planner.traces import TraceRequest, holdout, tuning

FROZEN = {
    "growing_groups": "d774a4ddbcec9924",
    "waves_of_groups": "34a2a83dadde0676",
    "tool_loops": "2fa6e600da88f139",
    "shifting_tenants": "8fab9ca46355ef32",
    "long_documents": "0a5bc9c5c62cff2f",
    "flash_crowds": "656f39da4b1cdd1c",
    "drifting_days": "6a9b6ed21a3dad3a",
    "retries": "af23eb14d61a19ae",
    "editors": "14d50e351f94c1e2",
    "everything": "30ca96fa17a30efb",
}


def digest(requests: list[TraceRequest]) -> str:
    told = repr([(one.arrival_ms, one.input_tokens, one.output_tokens, one.blocks) for one in requests])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", holdout.MADE)
def test_holdout_traces_stay_as_they_were(name: str) -> None:
    assert digest(holdout.MADE[name](1, 300.0)) == FROZEN[name], f"{name} changed: it belongs to the tuning set now"


def test_no_trace_is_in_both_sets() -> None:
    assert not set(holdout.MADE) & set(tuning.MADE)
    assert set(FROZEN) == set(holdout.MADE)


@pytest.mark.parametrize("name", holdout.MADE)
def test_a_block_has_one_prefix(name: str) -> None:
    above: dict[int, int] = {}
    for one in holdout.MADE[name](2, 120.0):
        for at, block in enumerate(one.blocks):
            parent = one.blocks[at - 1] if at else -1
            assert above.setdefault(block, parent) == parent, (name, block)
