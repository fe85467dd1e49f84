"""Memory that a NIC reads into: a GPU's through a driver that is played here, udmabuf's, and what refuses."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed.bench.rdma import cuda, device_memory
from bmv2_testbed.bench.rdma.cuda import CudaMemory
from bmv2_testbed.bench.rdma.device_memory import DeviceMemory, DeviceMemoryError, HostMemory, UdmabufMemory
from hostagent.transport.verbs import abi
from kvcast.cli import main

SIZE = 1 << 20
INVALID_CONTEXT = 201


def pointee(argument: Any, kind: Any) -> Any:
    """What a pointer of this type points to; of any other type, the argument itself."""
    return ctypes.cast(argument, kind).contents if hasattr(kind, "contents") else argument


class PlayedDriver:
    """libcuda with two GPUs whose memory is this process's. `fails`: error codes by function."""

    def __init__(self, **fails: int) -> None:
        self.fails = fails
        self.exports = 1
        self.misaligned = 0
        self.contexts: list[int] = []
        self.retained = 0
        self.memory: dict[int, mmap.mmap] = {}
        self.synchronous: set[int] = set()
        self.exported: list[tuple[int, int, int, int]] = []
        self.descriptor = -1

    def __getattr__(self, name: str) -> Any:
        if name not in cuda.PROTOTYPES:
            raise AttributeError(name)
        play = getattr(self, f"_{name.removesuffix('_v2')}")

        def call(*arguments: Any) -> int:
            assert len(arguments) == len(cuda.PROTOTYPES[name])
            code = self.fails.get(name.removesuffix("_v2"), 0)
            return code or play(*map(pointee, arguments, cuda.PROTOTYPES[name])) or 0

        return call

    def _cuInit(self, flags: int) -> None:
        assert flags == 0

    def _cuGetErrorString(self, code: int, text: Any) -> int:
        text.value = b"initialization error" if code == 3 else None
        return 0 if code == 3 else cuda.ERROR_INVALID_VALUE

    def _cuDeviceGetCount(self, count: Any) -> None:
        count.value = 2

    def _cuDeviceGet(self, device: Any, number: int) -> None:
        device.value = 70 + number

    def _cuDeviceGetName(self, name: Any, size: int, device: int) -> None:
        assert ctypes.sizeof(name) == size
        name.value = b"Played %d" % device

    def _cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> None:
        assert (attribute, device) == (124, 71)
        value.value = self.exports

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> None:
        self.retained += 1
        context.value = 1000 + device

    def _cuDevicePrimaryCtxRelease(self, _device: int) -> None:
        assert not self.contexts
        self.retained -= 1

    def _cuCtxPushCurrent(self, context: Any) -> None:
        self.contexts.append(context.value)

    def _cuCtxPopCurrent(self, context: Any) -> None:
        context.value = self.contexts.pop()

    def _cuCtxSynchronize(self) -> int:
        return 0 if self.contexts else INVALID_CONTEXT

    def _cuMemAlloc(self, address: Any, size: int) -> int:
        if not self.contexts:
            return INVALID_CONTEXT
        pages = mmap.mmap(-1, size)
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + self.misaligned
        self.memory[start] = pages
        address.value = start
        return 0

    def _cuMemFree(self, address: int) -> None:
        assert self.contexts
        del self.memory[address]

    def _cuMemsetD8(self, address: int, value: int, count: int) -> None:
        assert address in self.memory
        ctypes.memset(address, value, count)

    def _cuMemcpyDtoH(self, here: int, address: int, count: int) -> None:
        assert address in self.synchronous, "or the copy may pass the NIC's writes"
        ctypes.memmove(here, address, count)

    def _cuPointerSetAttribute(self, value: Any, attribute: int, address: int) -> None:
        assert (ctypes.cast(value, ctypes.POINTER(ctypes.c_uint)).contents.value, attribute) == (1, 6)
        self.synchronous.add(address)

    def _cuMemGetHandleForAddressRange(self, handle: Any, address: int, size: int, kind: int, flags: int) -> None:
        self.exported.append((address, size, kind, flags))
        self.descriptor = os.memfd_create("played")
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_int)).contents.value = self.descriptor

    @property
    def left_over(self) -> tuple[int, int, int]:
        return len(self.memory), len(self.contexts), self.retained


class RecordingPort:
    """What is registered with it."""

    def __init__(self) -> None:
        self.registered: list[tuple[object, ...]] = []

    def register(self, *what: object) -> str:
        self.registered.append(what)
        return "memory"

    def register_dmabuf(self, *what: object) -> str:
        self.registered.append(what)
        return "dma-buf"


def test_a_gpus_memory_is_exported_registered_and_copied_back() -> None:
    driver, port = PlayedDriver(), RecordingPort()
    memory: DeviceMemory = CudaMemory(driver, 1, SIZE)
    assert memory.name == "GPU 1 (Played 71)"
    ((address, size, kind, flags),) = driver.exported
    assert (size, kind, flags) == (SIZE, 1, 0)
    assert memory.register(port) == "dma-buf"  # type: ignore[arg-type, comparison-overlap]
    assert port.registered == [(driver.descriptor, 0, SIZE, abi.ACCESS_LOCAL_WRITE, memory.name)]
    ctypes.memset(address, 0x5A, SIZE)
    assert memory.content().tobytes() == b"\x5a" * SIZE
    memory.clear()
    assert not memory.content().any()
    memory.close()
    assert driver.left_over == (0, 0, 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(driver.descriptor)


REFUSALS: list[tuple[dict[str, int], int, str]] = [
    ({"cuInit": 100}, 1, "no GPU here"),
    ({"cuInit": 3}, 1, r"cuInit failed: initialization error \(3\)"),
    ({"cuInit": 803}, 1, r"cuInit failed: an error it has no name for \(803\)"),
    ({}, 2, "no GPU 2: there are 2"),
    ({"cuDeviceGetAttribute": 1}, 1, r"the driver of GPU 1 \(Played 71\) exports no dma-bufs"),
    ({"cuCtxPushCurrent": 3}, 1, "cuCtxPushCurrent failed"),
    ({"cuMemAlloc": 2}, 1, f"has less than {SIZE} bytes of free memory"),
    ({"cuPointerSetAttribute": 3}, 1, "cuPointerSetAttribute failed"),
    ({"cuMemGetHandleForAddressRange": 801}, 1, "exports no dma-buf of its memory"),
    ({"cuMemGetHandleForAddressRange": 3}, 1, "cuMemGetHandleForAddressRange failed"),
]


@pytest.mark.parametrize(("fails", "number", "says"), REFUSALS)
def test_what_refuses_is_said_and_nothing_is_left(fails: dict[str, int], number: int, says: str) -> None:
    driver = PlayedDriver(**fails)
    with pytest.raises(DeviceMemoryError, match=says) as refused:
        CudaMemory(driver, number, SIZE)
    assert refused.value.remedy
    assert driver.left_over == (0, 0, 0)


def test_a_gpu_without_export_and_memory_between_pages_are_refused() -> None:
    driver = PlayedDriver()
    driver.exports = 0
    with pytest.raises(DeviceMemoryError, match="exports no dma-bufs"):
        CudaMemory(driver, 1, SIZE)
    driver = PlayedDriver()
    driver.misaligned = 512
    with pytest.raises(DeviceMemoryError, match="does not begin at a page"):
        CudaMemory(driver, 1, SIZE)
    assert driver.left_over == (0, 0, 0)


def test_a_machine_without_a_driver_and_one_with_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "LIBRARY", "libkvcast-none.so")
    with pytest.raises(DeviceMemoryError, match="no CUDA driver here"):
        cuda.load()
    monkeypatch.setattr(cuda, "LIBRARY", "libc.so.6")
    with pytest.raises(DeviceMemoryError, match="the CUDA driver is too old: it has no cuInit"):
        cuda.load()


def test_drams_memory_is_registered_where_it_is() -> None:
    memory, port = HostMemory(SIZE), RecordingPort()
    memory.register(port)  # type: ignore[arg-type]
    ((address, size, access, name),) = port.registered
    assert (size, access, name) == (SIZE, abi.ACCESS_LOCAL_WRITE, "DRAM")
    assert isinstance(address, int)
    ctypes.memset(address, 7, SIZE)
    assert memory.content().tobytes() == b"\x07" * SIZE
    memory.clear()
    assert not memory.content().any()
    memory.close()


@pytest.mark.skipif(not os.access(device_memory.UDMABUF, os.R_OK | os.W_OK), reason="needs /dev/udmabuf")
def test_pages_as_a_dmabuf() -> None:
    memory, port = UdmabufMemory(SIZE), RecordingPort()
    memory.register(port)  # type: ignore[arg-type]
    (descriptor, *rest) = port.registered[0]
    assert rest == [0, SIZE, abi.ACCESS_LOCAL_WRITE, "udmabuf"]
    assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dmabuf")
    with mmap.mmap(descriptor, SIZE) as through:  # type: ignore[arg-type]
        through[:3] = b"abc"
    assert memory.content()[:3].tobytes() == b"abc"
    memory.clear()
    assert not memory.content().any()
    memory.close()


def test_what_refuses_a_udmabuf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device_memory, "UDMABUF", tmp_path / "udmabuf")
    open_before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DeviceMemoryError, match="udmabuf: there is none"):
        UdmabufMemory(SIZE)
    (tmp_path / "udmabuf").touch()
    with pytest.raises(DeviceMemoryError, match="udmabuf: Inappropriate ioctl"):
        UdmabufMemory(SIZE)
    assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a GPU")
def test_one_line_says_that_there_is_no_driver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("node: n1\ndata: {address: 127.77.2.1}\npool: {size: 1MiB}\n")
    assert main(["bench", "rdma", "--gpu", "--config", str(path)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "no CUDA driver here" in said or "no GPU here" in said
