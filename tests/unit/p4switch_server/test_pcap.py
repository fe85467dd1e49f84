"""`--pcap`: one file for each port and direction."""

from __future__ import annotations

from pathlib import Path

from scapy.utils import rdpcap

from p4switch.device_config import ProgramSource
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
    found = {path.name: [bytes(packet) for packet in rdpcap(str(path))] for path in options.pcap_dir.iterdir()}
    assert found == {"port1_in.pcap": [FRAME], "port1_out.pcap": [], "port2_in.pcap": [], "port2_out.pcap": [FRAME]}
