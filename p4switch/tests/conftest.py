"""Order of the suite, and how its properties look for examples."""

from __future__ import annotations

import pytest
from hypothesis import settings

# A property holds or it does not; how long an example takes is the machine's affair. The same examples in each run:
# `pytest --hypothesis-profile search` looks for others.
settings.register_profile("p4switch", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile("p4switch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that take the pytest process into another network namespace run last.

    gRPC makes threads when it likes. One that it makes meanwhile stays in that namespace, where no server of a later
    test can be reached.
    """
    items.sort(key=lambda item: item.get_closest_marker("enters_namespace") is not None)
