"""One RDMA port: found by the node's address on the data network, opened, asked what it can, memory registered.

A RoCEv2 port has a GID for each address of its network interface. The one that is the node's address as an
IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2) names device, port and GID index at once, on bonds and VLANs too.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from ctypes import byref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from hostagent.transport.verbs import abi
from kvproto.limits import SEGMENT_BYTES_MAX

GID_TABLE_MAX: Final = 1024
REGISTERING_MAX: Final = 8
"""Threads. One takes 0.1 s for a GiB in pages of 4 KiB, all of them the memory's bandwidth."""
PROGRESS_S: Final = 2.0
_MAPPED: Final = bytes(10) + b"\xff\xff"
_SYSFS: Final = Path("/sys/class/infiniband")


log = logging.getLogger(__name__)


class VerbsError(Exception):
    """RDMA cannot be used, or a call of it failed; one line."""


def gid_of(address: str) -> bytes:
    """The GID of an IPv4 address."""
    return _MAPPED + socket.inet_aton(address)


@dataclass(frozen=True, slots=True)
class PortFacts:
    """What a port reports about itself."""

    device: str
    port: int
    gid_index: int
    gid: bytes
    mtu_bytes: int
    """Largest payload of a packet: 256 to 4096. RDMA's own MTU, chosen by the NIC below the interface's."""
    reads_in_flight: int
    """RDMA READs that a queue pair may have outstanding, as asker and as answerer."""
    queue_entries_max: int
    completions_max: int
    multicast: bool
    """Whether queue pairs can be attached to multicast groups."""
    groups_max: int = 1 << 16
    """To so many."""


class MemoryRegion:
    """Registered memory: pinned, and known to the NIC under its keys until `close`. Large memory has several: the key
    of a byte goes for the SEGMENT_BYTES_MAX that follow, too."""

    def __init__(
        self, library: ctypes.CDLL, regions: Sequence[Any], address: int, size_bytes: int, step_bytes: int
    ) -> None:
        self._library = library
        self._regions = list(regions)
        self.address = address
        """Address of its first byte in work requests."""
        self.size_bytes = size_bytes
        self.step_bytes = step_bytes
        """So many bytes have the same key."""
        self.local_keys = (ctypes.c_uint32 * len(regions))(*(one.contents.lkey for one in regions))
        self.local_key, self.remote_key = regions[0].contents.lkey, regions[0].contents.rkey
        """Of memory in one region."""

    def close(self) -> None:
        """Forget it. Idempotent."""
        while self._regions:
            check_status("ibv_dereg_mr", self._library.ibv_dereg_mr(self._regions.pop()))


class Domain:
    """A protection domain: queue pairs in it reach memory that is registered in it, and no other."""

    def __init__(self, library: ctypes.CDLL, context: int) -> None:
        """Raises VerbsError."""
        self._library = library
        self.pointer: int = check_pointer("ibv_alloc_pd", library.ibv_alloc_pd(context))

    def register(self, address: int, size_bytes: int, access: int, what: str, region_bytes: int = 0) -> MemoryRegion:
        """Register memory of this process. `what`: for the message, when it fails with VerbsError; `region_bytes`: in
        regions of at most so many bytes, by several threads, which the kernel pins pages for at once; 0: in one."""
        if not region_bytes or size_bytes <= region_bytes:
            return MemoryRegion(
                self._library, [self._region(address, size_bytes, access, what)], address, size_bytes, size_bytes
            )
        step_bytes = region_bytes - SEGMENT_BYTES_MAX
        sizes = {at: min(region_bytes, size_bytes - at) for at in range(0, size_bytes, step_bytes)}
        with ThreadPoolExecutor(min(REGISTERING_MAX, os.cpu_count() or 1)) as threads:
            tasks = [threads.submit(self._region, address + at, size, access, what) for at, size in sizes.items()]
            _say_progress(tasks, what)
        if error := next(filter(None, (task.exception() for task in tasks)), None):
            for task in tasks:
                if task.exception() is None:
                    check_status("ibv_dereg_mr", self._library.ibv_dereg_mr(task.result()))
            raise error
        made = [task.result() for task in tasks]
        return MemoryRegion(self._library, made, address, size_bytes, step_bytes)

    def _region(self, address: int, size_bytes: int, access: int, what: str) -> Any:
        region = self._library.ibv_reg_mr(self.pointer, address, size_bytes, access)
        if not region:
            raise _registration_error(what, size_bytes)
        return region

    def close(self) -> None:
        """Give it back; everything made in it has to be gone."""
        check_status("ibv_dealloc_pd", self._library.ibv_dealloc_pd(self.pointer))


def _say_progress(tasks: Sequence[Future[Any]], what: str) -> None:
    """Until all are done."""
    while left := wait(tasks, PROGRESS_S).not_done:
        log.info("%s: %d of %d regions are registered", what, len(tasks) - len(left), len(tasks))


class RdmaPort:
    """An open port with a protection domain."""

    def __init__(self, library: ctypes.CDLL, context: int, facts: PortFacts) -> None:
        self.library = library
        self.context = context
        self.facts = facts
        operations = abi.Context.from_address(context)
        self.poll_cq = abi.PollCq(operations.poll_cq)
        self.request_notify = abi.RequestNotify(operations.req_notify_cq)
        self.post_send = abi.Post(operations.post_send)
        self.post_recv = abi.Post(operations.post_recv)
        self.domain = Domain(library, context)

    @classmethod
    def open(cls, address: str, device: str = "") -> Self:
        """The port with this IPv4 address; `device`: only of this name. Raises VerbsError."""
        library = _library()
        seen: list[str] = []
        refused: list[str] = []
        for name, context in _devices(library, device, refused):
            with ExitStack() as undo:
                undo.callback(library.ibv_close_device, context)
                facts = _find_port(library, name, context, address)
                if facts is not None:
                    port = cls(library, context, facts)
                    undo.pop_all()
                    return port
            seen.append(name)
        if seen:
            raise VerbsError(
                f"no active RoCEv2 port of {', '.join(seen)} has the address {address};"
                " `rdma link` shows which interface belongs to which device"
            )
        if refused:
            raise VerbsError("; ".join(refused))
        what = f"no RDMA device {device}" if device else "no RDMA device"
        raise VerbsError(f"{what} on this machine; is the NIC's driver loaded (ibv_devices)?")

    def register(self, address: int, size_bytes: int, access: int, what: str, region_bytes: int = 0) -> MemoryRegion:
        """See `Domain.register`."""
        return self.domain.register(address, size_bytes, access, what, region_bytes)

    def new_domain(self) -> Domain:
        """One more, with nothing in it. Raises VerbsError."""
        return Domain(self.library, self.context)

    def qkey_violations(self) -> int | None:
        """UD packets that the port dropped for a wrong Q_Key since it came up (32 bits, wraps); None: not counted."""
        attr = _port_attr(self.library, self.context, self.facts.port)
        return attr.qkey_viol_cntr if attr is not None else None

    @property
    def counter_directories(self) -> tuple[Path, Path]:
        """Where its driver's counters are: the port's, or the whole device's."""
        device = _SYSFS / self.facts.device
        return device / "ports" / str(self.facts.port) / "hw_counters", device / "hw_counters"

    def hardware_counter(self, name: str) -> int | None:
        """A counter of the driver; None where the port has none of that name."""
        path = self.counter_directories[0] / name
        try:
            return int(path.read_text())
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Close the device; everything made on it has to be gone."""
        self.domain.close()
        check_status("ibv_close_device", self.library.ibv_close_device(self.context))


# ---------------------------------------------------------------------- errors


def check_pointer(call: str, result: Any) -> Any:
    """What a call returned, unless that is NULL."""
    if not result:
        code = ctypes.get_errno()
        raise VerbsError(f"{call} failed: {os.strerror(code)}")
    return result


def check_status(call: str, result: int) -> None:
    """Verbs return 0 or an error number, some -1 and errno."""
    if result:
        code = ctypes.get_errno() if result < 0 else result
        raise VerbsError(f"{call} failed: {os.strerror(code)}")


def _registration_error(what: str, size_bytes: int) -> VerbsError:
    code = ctypes.get_errno()
    remedy = ""
    if code in (errno.ENOMEM, errno.EPERM):
        remedy = "; raise the limit of locked memory (ulimit -l unlimited, LimitMEMLOCK=infinity in the unit)"
    return VerbsError(f"cannot register {what} ({size_bytes} bytes): {os.strerror(code)}{remedy}")


# ---------------------------------------------------------------------- finding


def _library() -> ctypes.CDLL:
    try:
        return abi.load()
    except OSError as error:
        raise VerbsError(
            f"{abi.LIBRARY} cannot be loaded: install Debian's libibverbs1 and ibverbs-providers"
        ) from error
    except AttributeError as error:
        raise VerbsError(f"{abi.LIBRARY} is older than rdma-core 34: {error}") from error


def _devices(library: ctypes.CDLL, wanted: str, refused: list[str]) -> Iterator[tuple[str, int]]:
    """Devices by name, opened; whoever takes one closes it. Those that cannot be opened go to `refused`."""
    count = ctypes.c_int()
    devices = library.ibv_get_device_list(byref(count))
    if not devices:
        return
    try:
        for device in (ctypes.c_void_p * count.value).from_address(devices):
            name: str = library.ibv_get_device_name(device).decode()
            if wanted and name != wanted:
                continue
            context = library.ibv_open_device(device)
            if context:
                yield name, context
            else:
                code = ctypes.get_errno()
                refused.append(f"cannot open RDMA device {name} (/dev/infiniband): {os.strerror(code)}")
    finally:
        library.ibv_free_device_list(devices)


def device_names() -> list[str]:
    """Names of the RDMA devices of this machine; empty without the library, too."""
    try:
        library = _library()
    except VerbsError:
        return []
    count = ctypes.c_int()
    devices = library.ibv_get_device_list(byref(count))
    if not devices:
        return []
    names = [
        library.ibv_get_device_name(each).decode() for each in (ctypes.c_void_p * count.value).from_address(devices)
    ]
    library.ibv_free_device_list(devices)
    return names


def _find_port(library: ctypes.CDLL, name: str, context: int, address: str) -> PortFacts | None:
    table = (abi.GidEntry * GID_TABLE_MAX)()
    count = library._ibv_query_gid_table(context, table, GID_TABLE_MAX, 0, ctypes.sizeof(abi.GidEntry))
    wanted = gid_of(address)
    for entry in table[: max(0, count)]:
        if entry.gid_type != abi.GID_TYPE_ROCE_V2 or bytes(entry.gid) != wanted:
            continue
        port = _port_attr(library, context, entry.port_num)
        if port is None or port.state != abi.PORT_ACTIVE or port.link_layer != abi.LINK_LAYER_ETHERNET:
            continue
        device = abi.DeviceAttr()
        check_status("ibv_query_device", library.ibv_query_device(context, byref(device)))
        return PortFacts(
            device=name,
            port=entry.port_num,
            gid_index=entry.gid_index,
            gid=wanted,
            mtu_bytes=abi.MTU_BYTES[port.active_mtu],
            reads_in_flight=max(1, min(device.max_qp_rd_atom, device.max_qp_init_rd_atom, 255)),
            queue_entries_max=device.max_qp_wr,
            completions_max=device.max_cqe,
            multicast=device.max_mcast_grp > 0 and device.max_mcast_qp_attach > 0,
            groups_max=device.max_mcast_grp,
        )
    return None


def _port_attr(library: ctypes.CDLL, context: int, port: int) -> abi.PortAttr | None:
    attr = abi.PortAttr()
    return attr if library.ibv_query_port(context, port, byref(attr)) == 0 else None
