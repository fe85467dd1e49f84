"""The rate that the kernel says a data link has."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostagent.config import DataConfig
from hostagent.transport.link_rate import UNKNOWN_BIT_S, link_rate_bit_s

GBIT = 1_000_000_000


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """As on a host with one NIC of 25 Gbit/s behind which an RDMA device of 100 Gbit/s lies."""
    interface = tmp_path / "net" / "eth1"
    port = interface / "device" / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (interface / "speed").write_text("25000\n")
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    return tmp_path


def test_sockets_have_the_interfaces_rate(sys: Path) -> None:
    assert link_rate_bit_s(DataConfig(transport="sockets", interface="eth1"), sys) == 25 * GBIT


@pytest.mark.parametrize("transport", ["auto", "verbs"])
def test_rdma_has_its_ports_rate(sys: Path, transport: str) -> None:
    assert link_rate_bit_s(DataConfig(transport=transport, interface="eth1"), sys) == 100 * GBIT


@pytest.mark.parametrize("speed", ["-1\n", "", "unknown"])
def test_a_kernel_that_does_not_say(sys: Path, speed: str) -> None:
    (sys / "net" / "eth1" / "speed").write_text(speed)
    assert link_rate_bit_s(DataConfig(transport="sockets", interface="eth1"), sys) == UNKNOWN_BIT_S


def test_an_address_without_an_interface(sys: Path) -> None:
    assert link_rate_bit_s(DataConfig(transport="sockets", address="127.0.0.1"), sys) == UNKNOWN_BIT_S
    assert link_rate_bit_s(DataConfig(transport="sockets", address="192.0.2.1"), sys) == UNKNOWN_BIT_S
