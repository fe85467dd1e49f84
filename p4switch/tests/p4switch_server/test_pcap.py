"""`--pcap`: one file for each port and direction."""

from __future__ import annotations

from pathlib import Path

import pytest
from scapy.utils import rdpcap

from p4switch.device_config import ProgramSource
from p4switch.errors import SwitchError
from p4switch.ports import Memory, PortSpec
from p4switch.switch import Switch, SwitchOptions

PROGRAM = Path(__file__).parent / "learning.p4"
FRAME = bytes.fromhex("ffffffffffff020000000001") + b"\x88\xb5" + bytes(46)


def test_each_port_has_a_file_for_each_direction(tmp_path):
    ports = tuple(PortSpec(number, Memory()) for number in (1, 2))
    options = SwitchOptions(
        ProgramSource(PROGRAM), ports=ports, grpc=None, flood_group=1, pcap_dir=tmp_path / "captures"
    )
    with Switch(options) as switch:
        switch.runtime.inject(1, FRAME)
    assert options.pcap_dir is not None
    found = {path.name: [bytes(packet) for packet in rdpcap(str(path))] for path in options.pcap_dir.iterdir()}
    assert found == {"port1_in.pcap": [FRAME], "port1_out.pcap": [], "port2_in.pcap": [], "port2_out.pcap": [FRAME]}


def test_a_port_that_cannot_be_recorded_is_not_attached(tmp_path):
    options = SwitchOptions(ProgramSource(PROGRAM), grpc=None, pcap_dir=tmp_path)
    with Switch(options) as switch:
        (tmp_path / "port1_out.pcap").mkdir()
        with pytest.raises(SwitchError, match="port1_out"):
            switch.add_port(PortSpec(1, Memory()))
        (tmp_path / "port1_out.pcap").rmdir()
        switch.add_port(PortSpec(1, Memory()))
        assert list(switch.stats()["ports"]) == ["1"]
