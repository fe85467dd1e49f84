"""The rails of a node: are they there, and which NUMA node and GPUs are near which, as the kernel's sysfs has it. And
what of the pool engines have registered with those GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hostagent.config import DataConfig
from hostagent.pool_opening import node_of
from hostagent.transport.base import TransportError
from hostagent.transport.interfaces import InterfaceFlag, interface_address, interface_flags
from kvcast.doctor.findings import Finding, Level, judged
from kvclient.client import AgentClient, AgentUnavailableError
from kvproto.units import format_bytes

_GPUS: Final = ("0x0300", "0x0302", "0x1200")
"""PCI classes: VGA and 3D controllers, and processing accelerators."""
_ROOT: Final = Path("/")


def rails(data: DataConfig, root: Path = _ROOT) -> list[Finding]:
    """Of a node with several."""
    each = data.each_rail()
    near = gpus_near([one.interface for one in each], root)
    return [_rail(f"rail {index}", one, near[one.interface], root) for index, one in enumerate(each)]


def _rail(name: str, data: DataConfig, gpus: Sequence[str], root: Path) -> Finding:
    interface, wanted = data.interface, "an address, and a carrier"
    try:
        words = [interface, interface_address(data)]
        is_up = (InterfaceFlag.UP | InterfaceFlag.RUNNING) in interface_flags(interface)
    except TransportError as error:
        return Finding(name, str(error), wanted, Level.MISSING, "data.interfaces")
    if (node := node_of(interface, root)) is not None:
        words.append(f"NUMA node {node}")
    words += [f"near GPU {gpu}" for gpu in gpus] + ([] if is_up else ["no carrier"])
    remedy = f"ip link set {interface} up, or its cable; until then the other rails carry all"
    return judged(name, ", ".join(words), wanted, is_up, Level.SLOW, remedy)


def gpus_near(interfaces: Sequence[str], root: Path = _ROOT) -> dict[str, list[str]]:
    """GPUs by PCI address, each with the interface with which it shares most PCI bridges, or the NUMA node; of several
    with the one that has the fewest."""
    nics = {name: root / "sys/class/net" / name / "device" for name in interfaces}
    near: dict[str, list[str]] = {name: [] for name in interfaces}
    for gpu in _gpus(root):
        shared = {name: _shared(gpu, nic) for name, nic in nics.items()}
        best = max(shared, key=lambda name: (shared[name], -len(near[name])))
        if shared[best] > (0, False):
            near[best].append(gpu.name)
    return near


def registered(api_socket: str, root: Path = _ROOT) -> list[Finding]:
    """Of an agent's memory, what engines have registered with the GPUs of this node; nothing where there are none."""
    if not _gpus(root):
        return []
    try:
        with AgentClient(api_socket) as client:
            figures = client.stats()
    except AgentUnavailableError:
        return []
    engines, size_bytes = int(figures.get("engines", 1)) - 1, int(figures.get("engines_registered_bytes", 0))
    if engines < 1:
        return []
    found = f"{format_bytes(size_bytes)}, {engines} connections of engines"
    remedy = "only vLLM's workers on CUDA register; a warning in their logs says why one could not"
    wanted = "the pool, by each worker on a GPU"
    return [judged("registered with GPUs", found, wanted, size_bytes > 0, Level.NOTE, remedy)]


def _gpus(root: Path) -> list[Path]:
    """PCI devices."""
    devices = sorted((root / "sys/bus/pci/devices").glob("*"))
    return [device for device in devices if _word(device / "class")[:6] in _GPUS]


def _shared(one: Path, other: Path) -> tuple[int, bool]:
    """(a measure of the PCI bridges that both devices are behind, whether they are on one NUMA node)."""
    bridges = os.path.commonpath(map(os.path.realpath, (one, other))).count(":")
    node = _word(one / "numa_node")
    return bridges, node == _word(other / "numa_node") not in ("", "-1")


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
