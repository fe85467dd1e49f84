"""What of the pool a device copies by itself: registered in the background, used when ready, given up before it goes.

The driver is simulated; everything else is real: an agent's pool and write region, and copies that wait."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bmv2_testbed.client import Testbed
from kvclient.client import AgentClient
from tests.vllm.vllm_suite import assert_nothing_left

if TYPE_CHECKING:
    from kvclient.engines.pinned import RegisteredMemory

SLICE_BYTES = 16 << 20
log = logging.getLogger("test")


class SimulatedDriver:
    """Remembers; refuses from a call on."""

    def __init__(self, refuses_from: int = 1 << 30) -> None:
        self.registered: dict[int, tuple[int, bool]] = {}
        self.calls = 0
        self._refuses_from = refuses_from

    def register(self, address: int, size_bytes: int, *, read_only: bool) -> str:
        self.calls += 1
        if self.calls > self._refuses_from:
            return "no more"
        self.registered[address] = size_bytes, read_only
        return ""

    def unregister(self, address: int) -> None:
        del self.registered[address]


def connected(driver: SimulatedDriver, agent_socket: str) -> tuple[RegisteredMemory, AgentClient]:
    from kvclient.engines.pinned import RegisteredMemory, connecting

    memory = RegisteredMemory(driver, log, SLICE_BYTES)
    return memory, connecting(memory)(agent_socket)


def test_all_that_is_mapped_is_registered_as_long_as_it_is(agent_sockets: list[str]) -> None:
    driver = SimulatedDriver()
    memory, client = connected(driver, agent_sockets[0])
    memory.join()
    mapped = client.mapped()
    assert memory.registered_bytes == sum(map(len, mapped))
    with AgentClient(agent_sockets[0]) as other:
        assert other.stats()["engines_registered_bytes"] == memory.registered_bytes == client.registered_bytes
    assert {read_only for _, read_only in driver.registered.values()} == {True, False}, "the pool, the write region"
    assert len(driver.registered) == sum(-(-len(view) // SLICE_BYTES) for view in mapped)
    start = np.frombuffer(mapped[0], dtype=np.uint8).ctypes.data
    for first, size, expected in (
        (0, SLICE_BYTES, True),
        (SLICE_BYTES - 1, 2, False),
        (SLICE_BYTES, 4096, True),
        (len(mapped[0]) - 4096, 4096, True),
    ):
        with memory.use(start + first, size) as is_registered:
            assert is_registered == expected, (first, size)
    del mapped
    client.close()
    assert not driver.registered
    with memory.use(start, 4096) as is_registered:
        assert not is_registered
    with connected(driver, agent_sockets[0])[1]:
        pass
    assert not driver.registered, "also when it goes before all is registered"


def test_nothing_is_given_up_under_a_copy(agent_sockets: list[str]) -> None:
    driver = SimulatedDriver()
    memory, client = connected(driver, agent_sockets[0])
    memory.join()
    start = min(driver.registered)
    closing = threading.Thread(target=client.close)
    with memory.use(start, 4096) as is_registered:
        assert is_registered
        closing.start()
        with memory.use(start, 4096) as late:
            assert driver.registered, "the copy before is not over"
            assert late in (True, False)
    closing.join()
    assert not driver.registered


def test_what_a_driver_refuses_is_said_and_the_rest_is_used(
    agent_sockets: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    driver = SimulatedDriver(refuses_from=2)
    memory, client = connected(driver, agent_sockets[0])
    memory.join()
    assert memory.registered_bytes == 2 * SLICE_BYTES
    assert memory.problem == "no more"
    assert "are not registered with the device (no more)" in caplog.text
    client.close()
    assert not driver.registered


def test_nothing_is_left_behind(testbed: Testbed) -> None:
    assert_nothing_left(testbed)
