"""Host memory that a device copies from and to by itself: the agent's pool and this engine's write region, registered.

Registering a large pool takes seconds, so a thread does it slice by slice, and copies use what is ready. What is not
(yet), or cannot be, goes through a staging buffer.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import torch

from kvclient.client import AgentClient, AgentUnavailableError

SLICE_BYTES: Final = 1 << 30
"""Of one registration. A copy that crosses the end of one goes through staging: a driver takes it as an error."""
READ_ONLY: Final = 8
"""cudaHostRegisterReadOnly (CUDA Runtime API, Memory Management)."""


class Registrar(Protocol):
    """What a device's driver does with memory of this process."""

    def register(self, address: int, size_bytes: int, *, read_only: bool) -> str:
        """Empty, or why it is not registered."""
        ...

    def unregister(self, address: int) -> None:
        """No copy uses it any more."""
        ...


class CudaRegistrar:
    """CUDA's runtime, as torch has it loaded."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._runtime: Any = torch.cuda.cudart()

    def register(self, address: int, size_bytes: int, *, read_only: bool) -> str:
        """See Registrar."""
        with torch.cuda.device(self._device):
            error = self._runtime.cudaHostRegister(address, size_bytes, READ_ONLY if read_only else 0)
        return "" if int(error) == 0 else f"cudaHostRegister: {error}"

    def unregister(self, address: int) -> None:
        """See Registrar."""
        with torch.cuda.device(self._device):
            self._runtime.cudaHostUnregister(address)


@dataclass(slots=True)
class _Area:
    """One mapping."""

    address: int
    size_bytes: int
    read_only: bool
    ready: list[tuple[int, int]] = field(default_factory=list)
    """(address, end) of registered slices, ascending."""


class RegisteredMemory:
    """The mappings of one agent's client. Thread-safe."""

    def __init__(self, registrar: Registrar, log: logging.Logger, slice_bytes: int = SLICE_BYTES) -> None:
        self._registrar = registrar
        self._log = log
        self._slice_bytes = slice_bytes
        self._lock = threading.Condition()
        self._areas: list[_Area] = []
        self._users_count = 0
        self._is_ending = False
        self._thread: threading.Thread | None = None
        self.problem = ""
        """Why some of it is not registered."""

    @property
    def registered_bytes(self) -> int:
        """So far."""
        with self._lock:
            return sum(end - start for area in self._areas for start, end in area.ready)

    def begin(self, views: list[memoryview], told: Callable[[int], None]) -> None:
        """Register these mappings in the background; those of before were given up with `end`. Keeps no view. `told`:
        learns how many bytes are registered in the end."""
        areas = []
        for view in views:
            array = np.frombuffer(view, dtype=np.uint8)
            areas.append(_Area(array.ctypes.data, array.nbytes, view.readonly))
        with self._lock:
            self._lock.wait_for(lambda: not self._areas)  # those of a client that is being closed at this moment
            self._areas = areas
        self.problem, self._is_ending = "", False
        self._thread = threading.Thread(target=self._register, args=(told,), name="kvcast-register", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until all that can be registered is."""
        if self._thread is not None:
            self._thread.join()

    def end(self) -> None:
        """Before the mappings go: waits for the copies that use them. Idempotent."""
        with self._lock:
            self._is_ending = True
        self.join()
        with self._lock:
            self._lock.wait_for(lambda: not self._users_count)
            areas, self._areas = self._areas, []
            self._lock.notify_all()
        for start, _ in (slice_ for area in areas for slice_ in area.ready):
            self._registrar.unregister(start)

    @contextmanager
    def use(self, address: int, size_bytes: int) -> Iterator[bool]:
        """Whether these bytes are registered, in one slice; if so they stay it meanwhile."""
        with self._lock:
            there = not self._is_ending and any(
                start <= address and address + size_bytes <= end for area in self._areas for start, end in area.ready
            )
            self._users_count += there
        try:
            yield there
        finally:
            if there:
                with self._lock:
                    self._users_count -= 1
                    self._lock.notify_all()

    def _register(self, told: Callable[[int], None]) -> None:
        for area in self._areas:
            for start in range(area.address, area.address + area.size_bytes, self._slice_bytes):
                if self._is_ending:
                    return
                end = min(start + self._slice_bytes, area.address + area.size_bytes)
                problem = self._registrar.register(start, end - start, read_only=area.read_only)
                if problem:
                    self.problem = problem
                    self._log.warning(
                        "kvcast: %d bytes of the pool are not registered with the device (%s): copies of them take "
                        "one more pass",
                        area.address + area.size_bytes - start,
                        problem,
                    )
                    break
                with self._lock:
                    area.ready.append((start, end))
        self._log.info("kvcast: %d bytes of the pool are registered with the device", self.registered_bytes)
        told(self.registered_bytes)


def connecting(memory: RegisteredMemory) -> Callable[..., AgentClient]:
    """As AgentClient, with whatever a client maps registered for as long as it does."""

    def connect(socket_path: str, **terms: Any) -> AgentClient:
        client = AgentClient(socket_path, **terms)

        def tell(registered_bytes: int) -> None:
            client.registered_bytes = registered_bytes
            with contextlib.suppress(AgentUnavailableError):  # whoever uses this client sees it, too
                client.stats()

        memory.begin(client.mapped(), tell)
        client.before_unmapping(memory.end)
        return client

    return connect
