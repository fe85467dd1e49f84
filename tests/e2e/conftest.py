"""Testbeds for end-to-end tests: real switch, controller, agents, in namespaces of their own."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from bmv2_testbed.client import Testbed
from bmv2_testbed.content import Prefix
from bmv2_testbed.network.namespaces import can_unshare
from bmv2_testbed.network.wired import have_mininet
from bmv2_testbed.spec import host_name
from tests.e2e.traffic import await_traffic

MIDWAY_DEADLINE_S = 20.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs namespaces where there are none, and say why."""
    reason = _why_no_namespaces()
    if reason is None:
        return
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_namespaces() -> str | None:
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if not can_unshare():
        return "this machine does not allow namespaces (CAP_SYS_ADMIN)"
    if not have_mininet():
        return "needs the Debian package mininet (make system)"
    return None


@pytest.fixture
def midway() -> Callable[[Testbed, Prefix, int], Callable[[float], None]]:
    """Gives, for a testbed, a prefix and a host that reads, a function that waits until a share of it has arrived."""

    def prepare(testbed: Testbed, prefix: Prefix, host: int) -> Callable[[float], None]:
        name = host_name(host)
        before = testbed.counters()[name].rx_bytes

        def wait_for(share: float) -> None:
            wanted = before + int(share * prefix.size_bytes)
            await_traffic(testbed, name, received_bytes=wanted, timeout_s=MIDWAY_DEADLINE_S)

        return wait_for

    return prepare
