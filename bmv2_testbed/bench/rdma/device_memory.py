"""Memory that a NIC may be asked to read into: the seam, this machine's own, and a dma-buf that needs no GPU."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import MemoryRegion, RdmaPort

UDMABUF: Final = Path("/dev/udmabuf")
_UDMABUF_CREATE: Final = 0x4018_7542
"""`_IOW('u', 0x42, struct udmabuf_create)`, linux/udmabuf.h: memfd and flags (32 bits), offset and size (64 bits)."""
_UDMABUF_FLAGS_CLOEXEC: Final = 1
_DMA_BUF_IOCTL_SYNC: Final = 0x4008_6200
"""`_IOW('b', 0, struct dma_buf_sync)`: flags (64 bits); linux/dma-buf.h."""
_SYNC_READ, _SYNC_END = 1, 1 << 2


class DeviceMemoryError(Exception):
    """There is no such memory here; the message is one line, and `remedy` says what would help."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.remedy = remedy


class DeviceMemory(Protocol):
    """`size_bytes` of memory somewhere; `name` is for people. Only a NIC writes to it."""

    name: str
    size_bytes: int

    def register(self, port: RdmaPort) -> MemoryRegion:
        """For the NIC to write to. Raises VerbsError."""
        ...

    def clear(self) -> None:
        """Zeros; they are there when this returns."""
        ...

    def content(self) -> npt.NDArray[np.uint8]:
        """A copy of its content, shape (size_bytes,)."""
        ...

    def close(self) -> None:
        """Give it back; no longer registered by then."""
        ...


class _Pages:
    """Pages of this machine in a file without a name."""

    def __init__(self, size_bytes: int, flags: int = 0) -> None:
        self.size_bytes = size_bytes
        self.fd = os.memfd_create("kvcast-bench", os.MFD_CLOEXEC | flags)
        try:
            os.ftruncate(self.fd, size_bytes)
            self.bytes_: npt.NDArray[np.uint8] = np.frombuffer(mmap.mmap(self.fd, size_bytes), np.uint8)
        except BaseException:
            os.close(self.fd)
            raise

    def close(self) -> None:
        os.close(self.fd)


class HostMemory:
    """DRAM, as the pool's: what other memory is compared with."""

    def __init__(self, size_bytes: int) -> None:
        self.name = "DRAM"
        self.size_bytes = size_bytes
        self._pages = _Pages(size_bytes)

    def register(self, port: RdmaPort) -> MemoryRegion:
        """See `DeviceMemory`."""
        return port.register(self._pages.bytes_.ctypes.data, self.size_bytes, abi.ACCESS_LOCAL_WRITE, self.name)

    def clear(self) -> None:
        """See `DeviceMemory`."""
        self._pages.bytes_[:] = 0

    def content(self) -> npt.NDArray[np.uint8]:
        """See `DeviceMemory`."""
        return self._pages.bytes_.copy()

    def close(self) -> None:
        """See `DeviceMemory`."""
        self._pages.close()


class UdmabufMemory:
    """Pages of this machine that the kernel hands out as a dma-buf, as a GPU's driver does with its memory."""

    def __init__(self, size_bytes: int) -> None:
        """Raises DeviceMemoryError."""
        self.name = "udmabuf"
        self.size_bytes = size_bytes
        self._pages = _Pages(size_bytes, os.MFD_ALLOW_SEALING)
        try:
            # The kernel wants to be sure that the pages stay.
            fcntl.fcntl(self._pages.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            self._descriptor = _udmabuf(self._pages.fd, size_bytes)
        except BaseException:
            self._pages.close()
            raise

    def register(self, port: RdmaPort) -> MemoryRegion:
        """See `DeviceMemory`."""
        return port.register_dmabuf(self._descriptor, 0, self.size_bytes, abi.ACCESS_LOCAL_WRITE, self.name)

    def clear(self) -> None:
        """See `DeviceMemory`."""
        self._pages.bytes_[:] = 0

    def content(self) -> npt.NDArray[np.uint8]:
        """See `DeviceMemory`."""
        self._sync(_SYNC_READ)
        copy = self._pages.bytes_.copy()
        self._sync(_SYNC_READ | _SYNC_END)
        return copy

    def close(self) -> None:
        """See `DeviceMemory`."""
        os.close(self._descriptor)
        self._pages.close()

    def _sync(self, flags: int) -> None:
        fcntl.ioctl(self._descriptor, _DMA_BUF_IOCTL_SYNC, struct.pack("=Q", flags))


def _udmabuf(memory: int, size_bytes: int) -> int:
    request = struct.pack("=IIQQ", memory, _UDMABUF_FLAGS_CLOEXEC, 0, size_bytes)
    try:
        with UDMABUF.open("r+b", 0) as maker:
            # Only with a buffer that could be written to does ioctl return what the kernel does.
            descriptor: int = fcntl.ioctl(maker, _UDMABUF_CREATE, bytearray(request))
            return descriptor
    except OSError as error:
        why, remedy = _refused(error)
        raise DeviceMemoryError(f"{UDMABUF}: {why}", remedy) from error


def _refused(error: OSError) -> tuple[str, str]:
    if isinstance(error, FileNotFoundError):
        return "there is none", "a kernel with CONFIG_UDMABUF"
    if isinstance(error, PermissionError):
        return "it may not be opened", "run it as root, or in the group of that file"
    if error.errno == errno.EINVAL:
        return "it makes no dma-buf of this size", "raise its limits (/sys/module/udmabuf/parameters)"
    return os.strerror(error.errno or 0), "see dmesg"
