"""What the whole suite needs, and its order."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tools import native_build

# A property holds or it does not; how long an example takes is the machine's affair. The same examples in each run:
# `pytest --hypothesis-profile search` looks for others.
settings.register_profile("kvcast", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile("kvcast")


def pytest_configure(config: pytest.Config) -> None:
    """What the checkout has in C is built from the sources that lie beside it: once, by whoever starts the others."""
    if not hasattr(config, "workerinput") and not os.environ.get("KVCAST_NATIVE_DIR"):
        try:
            native_build.refresh()
        except native_build.BuildError as error:
            raise pytest.UsageError(str(error)) from error


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that take the pytest process into another network namespace run last.

    gRPC makes threads when it likes. One that it makes meanwhile stays in that namespace, where no server of a later
    test can be reached.
    """
    items.sort(key=lambda item: item.get_closest_marker("enters_namespace") is not None)
