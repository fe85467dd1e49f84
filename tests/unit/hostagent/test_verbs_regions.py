"""A pool that is registered with a NIC in several regions. The contract suite reads and casts across their borders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from hostagent.config import parse
from hostagent.transport.verbs import abi, device
from hostagent.transport.verbs.device import RdmaPort, VerbsError
from kvdaemon.errors import ConfigError
from kvproto.limits import SEGMENT_BYTES_MAX
from tests.contracts.transport import fake_nic

BASE, SIZE, REGION = 1 << 40, 10_000_000, 1_000_000


def with_port(check: Callable[[fake_nic.Wire, RdmaPort], None]) -> None:
    async def run() -> None:
        wire = fake_nic.Wire(asyncio.get_running_loop())
        port = fake_nic.open_port(wire, "127.77.9.1")
        check(wire, port)
        assert not wire.regions, "everything is given back"
        port.close()

    asyncio.run(run())


def test_every_segment_lies_in_the_region_of_its_first_byte() -> None:
    def check(wire: fake_nic.Wire, port: RdmaPort) -> None:
        region = port.register(BASE, SIZE, abi.ACCESS_LOCAL_WRITE, "the pool", REGION)
        assert len(wire.regions) == len(region.local_keys) == 11
        assert max(size for _, size in wire.regions.values()) == REGION
        for at in (*range(0, SIZE - SEGMENT_BYTES_MAX, 4096), SIZE - SEGMENT_BYTES_MAX):
            key = region.local_keys[at // region.step_bytes]
            assert wire.reaches(key, BASE + at, SEGMENT_BYTES_MAX)
        region.close()

    with_port(check)


def test_progress_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(device, "PROGRESS_S", 0)
    monkeypatch.setattr(device, "REGISTERING_MAX", 1)

    def check(wire: fake_nic.Wire, port: RdmaPort) -> None:
        with wire.lock:  # which all but this thread wait for, as for a kernel that pins pages
            wait = device.wait

            def wait_and_let_go(tasks: list[object], timeout_s: float) -> object:
                found = wait(tasks, timeout_s)
                monkeypatch.setattr(device, "wait", wait)
                monkeypatch.setattr(device, "PROGRESS_S", 60)
                wire.lock.release()
                return found

            monkeypatch.setattr(device, "wait", wait_and_let_go)
            region = port.register(BASE, SIZE, abi.ACCESS_LOCAL_WRITE, "the pool", REGION)
            wire.lock.acquire()
        region.close()

    with caplog.at_level("INFO"):
        with_port(check)
    assert caplog.messages == ["the pool: 0 of 11 regions are registered"]


def test_a_region_that_is_refused_takes_the_others_with_it() -> None:
    def check(wire: fake_nic.Wire, port: RdmaPort) -> None:
        wire.nic("127.77.9.1").refuses_regions_above = REGION - 1
        with pytest.raises(
            VerbsError, match=r"cannot register the pool \(1000000 bytes\): Cannot allocate memory; raise"
        ):
            port.register(BASE, SIZE, abi.ACCESS_LOCAL_WRITE, "the pool", REGION)

    with_port(check)


def test_the_configuration() -> None:
    assert parse({"data": {"address": "10.0.0.1"}}).data.rdma_region_bytes == 1 << 30
    given = {"data": {"address": "10.0.0.1"}, "rdma": {"region_bytes": "2GiB"}}
    assert parse(given).data.rdma_region_bytes == 2 << 30
    with pytest.raises(ConfigError, match=r"rdma\.region_bytes: '1MiB' is less than 16 MiB"):
        parse(given | {"rdma": {"region_bytes": "1MiB"}})
