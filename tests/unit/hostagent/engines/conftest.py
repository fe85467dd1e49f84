"""What tests of engines' parts share: an agent that is really there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.hostagent.agent_harness import MIB, Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One agent with a pool of 1 MiB."""
    made = Cluster(tmp_path)
    made.add(pool_bytes=MIB)
    yield made
    made.close()
