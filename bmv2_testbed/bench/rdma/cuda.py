"""A GPU's memory through the CUDA driver API (libcuda, `cuda.h`), as far as a NIC needs it: a dma-buf.

Called directly, because a node needs no CUDA toolkit and no PyTorch to run an agent. References are to NVIDIA's "CUDA
Driver API": cuMemGetHandleForAddressRange (CUDA 11.7), and to "GPUDirect RDMA" for CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from contextlib import ExitStack
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from bmv2_testbed.bench.rdma.device_memory import DeviceMemoryError
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import MemoryRegion, RdmaPort

LIBRARY: Final = "libcuda.so.1"
ERROR_INVALID_VALUE: Final = 1
ERROR_OUT_OF_MEMORY: Final = 2
ERROR_NO_DEVICE: Final = 100
ERROR_NOT_SUPPORTED: Final = 801
DMA_BUF_SUPPORTED: Final = 124
"""`CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`."""
HANDLE_DMA_BUF_FD: Final = 1
"""`CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`."""
SYNC_MEMOPS: Final = 6
"""`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`: copies wait for operations under way in this memory."""
_NAME_BYTES: Final = 100
_NO_EXPORT: Final = "NVIDIA's open kernel modules of driver 515 or newer, Linux 5.12 or newer"
_INSTALL: Final = "install NVIDIA's driver, or try without a GPU: --gpu udmabuf"

PROTOTYPES: Final[dict[str, list[Any]]] = {
    "cuInit": [c_uint],
    "cuGetErrorString": [c_int, POINTER(c_char_p)],
    "cuDeviceGetCount": [POINTER(c_int)],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDeviceGetName": [c_char_p, c_int, c_int],
    "cuDeviceGetAttribute": [POINTER(c_int), c_int, c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuDevicePrimaryCtxRelease_v2": [c_int],
    "cuCtxPushCurrent_v2": [c_void_p],
    "cuCtxPopCurrent_v2": [POINTER(c_void_p)],
    "cuCtxSynchronize": [],
    "cuMemAlloc_v2": [POINTER(c_uint64), c_size_t],
    "cuMemFree_v2": [c_uint64],
    "cuMemsetD8_v2": [c_uint64, c_ubyte, c_size_t],
    "cuMemcpyDtoH_v2": [c_void_p, c_uint64, c_size_t],
    "cuPointerSetAttribute": [c_void_p, c_int, c_uint64],
    "cuMemGetHandleForAddressRange": [c_void_p, c_uint64, c_size_t, c_int, c_uint64],
}
"""All return a CUresult."""


class Driver(Protocol):
    """libcuda: its functions by name."""

    def __getattr__(self, name: str) -> Callable[..., int]: ...


def load() -> Driver:
    """The driver's library with its prototypes set. Raises DeviceMemoryError."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise DeviceMemoryError(f"no CUDA driver here ({LIBRARY} cannot be loaded)", _INSTALL) from error
    for name, arguments in PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise DeviceMemoryError(f"the CUDA driver is too old: it has no {name}", _NO_EXPORT) from error
        function.restype = c_int
        function.argtypes = arguments
    return library


class CudaMemory:
    """Memory of one GPU, exported as a dma-buf. Made and used in one thread: CUDA contexts belong to threads."""

    def __init__(self, driver: Driver, number: int, size_bytes: int) -> None:
        """`number`: of the GPU, from 0, as CUDA_VISIBLE_DEVICES leaves them. Raises DeviceMemoryError."""
        self.size_bytes = size_bytes
        self._driver = driver
        with ExitStack() as undo:
            device = self._device(number)
            self.name = f"GPU {number} ({self._device_name(device)})"
            self._check_export(device)
            self._enter_context(device, undo)
            self._allocate(undo)
            self._descriptor = self._export()
            undo.callback(os.close, self._descriptor)
            self._closing = undo.pop_all()

    def register(self, port: RdmaPort) -> MemoryRegion:
        """See `DeviceMemory`."""
        return port.register_dmabuf(self._descriptor, 0, self.size_bytes, abi.ACCESS_LOCAL_WRITE, self.name)

    def clear(self) -> None:
        """See `DeviceMemory`."""
        self._call("cuMemsetD8_v2", self._address, 0, self.size_bytes)
        self._call("cuCtxSynchronize")

    def content(self) -> npt.NDArray[np.uint8]:
        """See `DeviceMemory`."""
        copy = np.empty(self.size_bytes, np.uint8)
        self._call("cuMemcpyDtoH_v2", copy.ctypes.data, self._address, self.size_bytes)
        return copy

    def close(self) -> None:
        """See `DeviceMemory`."""
        self._closing.close()

    # ------------------------------------------------------------------ inside

    def _device(self, number: int) -> int:
        code = self._driver.cuInit(0)
        if code == ERROR_NO_DEVICE:
            raise DeviceMemoryError("no GPU here", "try without one: --gpu udmabuf")
        self._check("cuInit", code)
        count, device = c_int(), c_int()
        self._call("cuDeviceGetCount", byref(count))
        if not 0 <= number < count.value:
            raise DeviceMemoryError(f"no GPU {number}: there are {count.value}", "nvidia-smi -L shows them")
        self._call("cuDeviceGet", byref(device), number)
        return device.value

    def _device_name(self, device: int) -> str:
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._call("cuDeviceGetName", name, _NAME_BYTES, device)
        return name.value.decode(errors="replace")

    def _check_export(self, device: int) -> None:
        supported = c_int()
        code = self._driver.cuDeviceGetAttribute(byref(supported), DMA_BUF_SUPPORTED, device)
        # Drivers before 11.7 do not know the attribute.
        if code != ERROR_INVALID_VALUE:
            self._check("cuDeviceGetAttribute", code)
        if not supported.value:
            raise DeviceMemoryError(f"the driver of {self.name} exports no dma-bufs", _NO_EXPORT)

    def _enter_context(self, device: int, undo: ExitStack) -> None:
        context = c_void_p()
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        undo.callback(self._call, "cuDevicePrimaryCtxRelease_v2", device)
        self._call("cuCtxPushCurrent_v2", context)
        undo.callback(self._call, "cuCtxPopCurrent_v2", byref(c_void_p()))

    def _allocate(self, undo: ExitStack) -> None:
        address = c_uint64()
        code = self._driver.cuMemAlloc_v2(byref(address), self.size_bytes)
        if code == ERROR_OUT_OF_MEMORY:
            raise DeviceMemoryError(
                f"{self.name} has less than {self.size_bytes} bytes of free memory", "nvidia-smi shows who has"
            )
        self._check("cuMemAlloc", code)
        self._address = address.value
        undo.callback(self._call, "cuMemFree_v2", self._address)
        self._call("cuPointerSetAttribute", byref(c_uint(1)), SYNC_MEMOPS, self._address)

    def _export(self) -> int:
        if self._address % mmap.PAGESIZE:
            raise DeviceMemoryError(f"memory of {self.name} does not begin at a page", "report it with its driver")
        descriptor = c_int(-1)
        code = self._driver.cuMemGetHandleForAddressRange(
            byref(descriptor), self._address, self.size_bytes, HANDLE_DMA_BUF_FD, 0
        )
        if code == ERROR_NOT_SUPPORTED:
            raise DeviceMemoryError(f"the driver of {self.name} exports no dma-buf of its memory", _NO_EXPORT)
        self._check("cuMemGetHandleForAddressRange", code)
        return descriptor.value

    def _call(self, function: str, *arguments: object) -> None:
        self._check(function, getattr(self._driver, function)(*arguments))

    def _check(self, function: str, code: int) -> None:
        if code:
            said = c_char_p()
            self._driver.cuGetErrorString(code, byref(said))
            why = said.value.decode() if said.value else "an error it has no name for"
            raise DeviceMemoryError(f"{function.partition('_')[0]} failed: {why} ({code})", "see dmesg and nvidia-smi")
