"""The rails of a node: are they there, and which NUMA node and GPUs are near which, as the kernel's sysfs has it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hostagent.memory.numa import node_of

from hostagent.config import DataConfig
from hostagent.transport.base import TransportError
from hostagent.transport.interfaces import InterfaceFlag, interface_address, interface_flags
from kvcast.doctor.findings import Finding, Level, judged

_DISPLAYS: Final = ("0x0300", "0x0302", "0x1200")
"""PCI classes of GPUs: VGA and 3D controllers, and processing accelerators."""
_ROOT: Final = Path("/")


def rails(data: DataConfig, root: Path = _ROOT) -> list[Finding]:
    """Of a node with several."""
    each = [one.interface for one in data.each_rail()]
    near = gpus_near(each, root)
    return [_rail(index, one, near[one.interface], root) for index, one in enumerate(data.each_rail())]


def _rail(index: int, data: DataConfig, gpus: Sequence[str], root: Path) -> Finding:
    name, wanted, interface = f"rail {index}", "an address, up, near GPUs of its own", data.interface
    try:
        address, flags = interface_address(data), interface_flags(interface)
    except TransportError as error:
        return Finding(name, str(error), wanted, Level.MISSING, "data.interfaces")
    node = node_of(interface, root)
    words = [f"{interface}, {address}"]
    if node is not None:
        words.append(f"NUMA node {node}")
    if gpus:
        words.append(f"near GPU {', '.join(gpus)}")
    is_up = (InterfaceFlag.UP | InterfaceFlag.RUNNING) in flags
    found = ", ".join(words if is_up else [*words, "no carrier"])
    remedy = f"ip link set {interface} up, or its cable; until then the other rails carry all"
    return judged(name, found, wanted, is_up, Level.SLOW, remedy)


def gpus_near(interfaces: Sequence[str], root: Path = _ROOT) -> dict[str, list[str]]:
    """GPUs of this machine by PCI address, each with that interface with which it shares most PCI bridges; on its NUMA
    node, if none. With several as near as that: with the one that has the fewest."""
    places = {name: _place(root / "sys/class/net" / name / "device") for name in interfaces}
    near: dict[str, list[str]] = {name: [] for name in interfaces}
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _word(device / "class")[:6] not in _DISPLAYS:
            continue
        gpu = _place(device)
        shared = {name: _shared(gpu, place) for name, place in places.items()}
        best = max(shared, key=lambda name: (shared[name], -len(near[name])), default=None)
        if best is not None and shared[best] > (0, False):
            near[best].append(device.name)
    return near


def _place(device: Path) -> tuple[list[str], str]:
    """(PCI bridges and the device below them, its NUMA node)."""
    path = os.path.realpath(device)
    steps = [step for step in path.split("/") if ":" in step] if device.exists() else []
    return steps, _word(device / "numa_node")


def _shared(one: tuple[list[str], str], other: tuple[list[str], str]) -> tuple[int, bool]:
    """(PCI bridges that both are behind, whether they are on one NUMA node)."""
    pairs = zip(one[0], other[0], strict=False)
    count = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return count, one[1] == other[1] not in ("", "-1")


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
