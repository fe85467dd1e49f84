"""Runs inside a guest (see test_transport.py): `kvcast doctor rdma` beside a NIC, and its reads into other memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from bmv2_testbed.bench.rdma.device_memory import DeviceMemoryError, HostMemory, UdmabufMemory
from bmv2_testbed.bench.rdma.device_reads import device_reads
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.guests.pair import ADDRESSES
from hostagent.config import DataConfig
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import MemoryRegion, RdmaPort

DEVICE_BYTES = 1 << 20


def test_doctor_tells_what_the_port_can(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(f"node: n1\ndata: {{address: {ADDRESSES[0]}, segment_bytes: 3840}}\npool: {{size: 1MiB}}\n")
    argv = [sys.executable, "-m", "kvcast.cli", "doctor", "rdma", "--json", "--config", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    found = {one["check"]: one for one in json.loads(done.stdout)}
    for check in ("RDMA devices", "RDMA port", "multicast of rxe0 port 1", "RDMA MTU of rxe0 port 1"):
        assert found[check]["level"] == "ok", found
    assert found["counters of losses of rxe0 port 1"]["found"] == "completer_retry_err"
    # Linux 6.1's soft-RoCE takes no dma-bufs, and Debian's kernel makes none.
    assert found["dma-buf with rxe0 port 1"]["found"] == "no"
    assert done.returncode == 0


def test_bench_says_why_there_are_no_reads_into_a_dmabuf(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(f"node: n1\ndata: {{address: {ADDRESSES[0]}}}\npool: {{size: 1MiB}}\n")
    argv = [sys.executable, "-m", "kvcast.cli", "bench", "rdma", "--gpu", "udmabuf", "--config", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "/dev/udmabuf" in done.stderr or "dma-bufs" in done.stderr


class Descriptor(HostMemory):
    """Memory behind a descriptor. Soft-RoCE (Linux 6.1) takes none, whatever it is; of one that takes dma-bufs this
    test wants a real one."""

    def register(self, port: RdmaPort) -> MemoryRegion:
        return port.register_dmabuf(self._pages.fd, 0, self.size_bytes, abi.ACCESS_LOCAL_WRITE, self.name)


class Unwritable(HostMemory):
    def register(self, port: RdmaPort) -> MemoryRegion:
        return port.register(self._pages.bytes_.ctypes.data, self.size_bytes, 0, self.name)


class Forgetful(HostMemory):
    def content(self) -> npt.NDArray[np.uint8]:
        found = super().content()
        found[4711] ^= 1
        return found


def test_reads_into_other_memory_are_compared_and_timed() -> None:
    found = device_reads(DataConfig(address=ADDRESSES[0]), HostMemory(DEVICE_BYTES))
    assert found.memory == "DRAM"
    assert found.bytes_per_s > 0
    assert found.dram_bytes_per_s > 0


@pytest.mark.parametrize(
    ("memory", "says"),
    [
        (Descriptor, "cannot register DRAM: rxe0 takes no dma-bufs; ConnectX-5 and later do"),
        (Unwritable, "a read failed: read local protection error"),
        (Forgetful, f"1 of {DEVICE_BYTES} bytes in DRAM are wrong"),
    ],
)
def test_memory_that_cannot_be_read_into_is_refused_with_the_reason(memory: type[HostMemory], says: str) -> None:
    with pytest.raises(TestbedError, match=says):
        device_reads(DataConfig(address=ADDRESSES[0]), memory(DEVICE_BYTES))


def test_a_dmabuf_of_the_kernels_is_read_into_or_refused() -> None:
    try:
        memory = UdmabufMemory(DEVICE_BYTES)
    except DeviceMemoryError as error:
        pytest.skip(f"needs a dma-buf without a GPU: {error}")
    try:
        assert device_reads(DataConfig(address=ADDRESSES[0]), memory).bytes_per_s > 0
    except TestbedError as error:
        assert "rxe0 takes no dma-bufs" in str(error)  # noqa: PT017 - either outcome is right
    memory.close()
