"""Guests for the tests of the RDMA transport: skipped with one line where QEMU, packages or the image are missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bmv2_testbed import client
from bmv2_testbed.client import Testbed
from bmv2_testbed.guests import image, pair
from bmv2_testbed.guests.machine import Guest
from bmv2_testbed.spec import TestbedSpec, Wiring
from kvproto.wire.rdma import rdma_segment_bytes_max
from tests.roce.rdma_pair import Nics

SOCKETS_HOST = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All or nothing."""
    reason = image.why_not_ready()
    if reason:
        for item in items:
            if item.get_closest_marker("roce"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """One guest with two nodes, fresh for each test: what one does to its kernel is nothing to the next."""
    with pair.running(tmp_path_factory.mktemp("pair")) as guest:
        yield guest


@pytest.fixture
def nics(monkeypatch: pytest.MonkeyPatch) -> Nics:
    return Nics(monkeypatch)


@pytest.fixture(scope="session")
def testbed() -> Iterator[Testbed]:
    """Switch and controller here, agents in three guests: h0 and h1 with RDMA, h2 with sockets."""
    spec = TestbedSpec(
        wiring=Wiring.GUESTS,
        hosts=3,
        segment_bytes=rdma_segment_bytes_max(4096),
        pool_bytes=16 << 20,
        slots=4096,
        rate_bit_s=20_000_000,
        socket_hosts=(SOCKETS_HOST,),
        # Only tests decide what lies where.
        controller_settings={"policy": {"admission": False}, "push": {"enabled": False}},
    )
    with client.running(spec) as running:
        yield running
