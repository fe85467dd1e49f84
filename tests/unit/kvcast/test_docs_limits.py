"""The page of limits says what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import controlplane.core.limits
import hostagent.limits
import kvproto.limits
from hostagent.pool.catalog import CONNECTION_SHARE
from kvclient.catalog import LEASES
from kvclient.messages import KEYS_MAX
from kvdaemon.http import STREAMS_MAX, STREAMS_PER_ADDRESS_MAX

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "limits.md").read_text()
README = (ROOT / "README.md").read_text()


def row(words: str) -> str:
    """The value in the table's row that begins so."""
    (found,) = [line.split("|")[2] for line in PAGE.splitlines() if line.startswith(f"| {words}")]
    return found


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("nodes per switch", [kvproto.limits.MEMBERS_MAX]),
        ("nodes that a controller remembers", [controlplane.core.limits.NODES_MAX]),
        ("chunk |", [hostagent.limits.CHUNK_BYTES_MAX >> 30, 2, 20]),
        ("prefix", [controlplane.core.limits.PREFIX_CHUNKS_MAX]),
        ("chunks in one fetch", [KEYS_MAX]),
        ("chunks that a reader has joined at once", [kvproto.limits.JOINED_MAX]),
        (
            "engines per agent",
            [hostagent.limits.API_CONNECTIONS_MAX, hostagent.limits.API_REQUESTS_IN_FLIGHT_MAX],
        ),
        ("leased by an engine without asking", [1, round(1 / CONNECTION_SHARE), LEASES]),
        ("streams of the live page", [STREAMS_MAX, STREAMS_PER_ADDRESS_MAX]),
        (
            "chunks that engines say they",
            [hostagent.limits.CLAIMS_PER_ENGINE_MAX, controlplane.core.limits.CLAIMS_PER_NODE_MAX],
        ),
        ("chunks whose fetches outlive", [hostagent.limits.PAST_FETCHES_MAX]),
        ("pool", [hostagent.limits.POOL_BYTES_MIN >> 20, hostagent.limits.POOL_BYTES_MAX >> 40]),
    ],
)
def test_a_limit_is_that_of_the_code(words: str, numbers: list[int]) -> None:
    found = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", row(words))]
    assert found[: len(numbers)] == numbers


def test_the_readme_says_the_same() -> None:
    assert f"* **Nodes**: {kvproto.limits.MEMBERS_MAX} per switch" in README
    (nodes,) = re.findall(r"One controller manages (about \d+) nodes", README)
    assert row("nodes per controller").strip().startswith(nodes)
    assert kvproto.limits.CHUNK_SEGMENTS_MAX == 1 << 20
