"""What the doctor says of rails, on a machine that is made of files: two sockets, four GPUs, two NICs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostagent.config import DataConfig
from hostagent.transport.interfaces import InterfaceFlag
from kvcast.doctor import rail_checks
from kvcast.doctor.findings import Level
from kvcast.doctor.rail_checks import gpus_near, rails


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    def device(place: str, kind: str, numa: int, interface: str = "") -> None:
        folder = tmp_path / "sys/devices" / place
        folder.mkdir(parents=True)
        (folder / "class").write_text(f"{kind}\n")
        (folder / "numa_node").write_text(f"{numa}\n")
        listed = tmp_path / "sys/bus/pci/devices" / folder.name
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.symlink_to(folder)
        if interface:
            net = tmp_path / "sys/class/net" / interface
            net.mkdir(parents=True)
            (net / "device").symlink_to(folder)

    device("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0", "0x020000", 0, "eth1")
    device("pci0000:10/0000:10:01.0/0000:11:01.0/0000:13:00.0", "0x030200", 0)
    device("pci0000:20/0000:20:01.0/0000:21:00.0", "0x030200", 0)
    device("pci0000:90/0000:90:01.0/0000:91:00.0/0000:92:00.0", "0x020000", 1, "eth2")
    device("pci0000:90/0000:90:01.0/0000:91:01.0/0000:93:00.0", "0x030200", 1)
    device("pci0000:a0/0000:a0:01.0/0000:a1:00.0", "0x010802", 1)
    (tmp_path / "sys/devices/system/node").mkdir(parents=True)
    (tmp_path / "sys/devices/system/node/has_memory").write_text("0-1\n")
    return tmp_path


def test_gpus_go_with_the_nic_behind_the_same_bridges(machine: Path) -> None:
    near = {"eth1": ["0000:13:00.0", "0000:21:00.0"], "eth2": ["0000:93:00.0"]}
    assert gpus_near(["eth1", "eth2"], machine) == near
    assert gpus_near(["nosuch"], machine) == {"nosuch": []}


def test_what_is_said(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rail_checks, "interface_address", lambda data: f"10.0.{data.interface[-1]}.1")
    monkeypatch.setattr(rail_checks, "interface_flags", lambda name: InterfaceFlag(0x41 if name == "eth1" else 0x1))
    found = rails(DataConfig(interface="eth1", rails=("eth2",)), machine)
    assert [(one.check, one.found, one.level) for one in found] == [
        ("rail 0", "eth1, 10.0.1.1, NUMA node 0, near GPU 0000:13:00.0, near GPU 0000:21:00.0", Level.OK),
        ("rail 1", "eth2, 10.0.2.1, NUMA node 1, near GPU 0000:93:00.0, no carrier", Level.SLOW),
    ]


def test_a_rail_that_is_not_there() -> None:
    found = rails(DataConfig(interface="lo", rails=("nosuch0",)))
    assert found[0].found.startswith("lo, 127.0.0.1")
    assert found[1].found.startswith("there is no interface nosuch0; set data.interface to one of ")
