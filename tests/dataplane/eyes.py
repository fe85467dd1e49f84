"""Somebody else's eyes: scapy takes apart what a switch sends, and builds what it is sent.

scapy's own IP, UDP and BTH compute the checksums and the ICRC; `kvcast.scapy` adds nothing but fields.
"""

from __future__ import annotations

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from kvcast.scapy import DETH, KvControl, KvData
from tests.dataplane.frames import CONTROL_PORT, GROUP_IP, GROUP_MAC, QKEY, ROCE_PORT, Control, Host, Segment, parse


def look(frame: bytes) -> Packet:
    """A frame as scapy sees it. Raises AssertionError where scapy would have sent other bytes for the same fields:
    lengths, checksums, ICRC; or where its fields are not those that `frames` finds."""
    packet = Ether(frame)
    again = packet.copy()
    computed = [(IP, "len"), (IP, "chksum"), (UDP, "len"), (BTH, "icrc")]
    computed += [(UDP, "chksum")] if packet[UDP].chksum else []
    for layer, name in computed:
        if layer in again:
            again[layer].delfieldval(name)
    assert bytes(again) == frame, again.show2(dump=True)
    if packet[UDP].dport == CONTROL_PORT:
        assert control_of(packet) == parse(frame).control
    return packet


def control_of(packet: Packet) -> Control:
    """The control datagram in a packet."""
    seen = packet[KvControl]
    names = ("op", "key", "segment", "segments", "count", "tag", "flags", "member", "members", "version")
    return Control(*(value if name == "key" else int(value) for name in names for value in [getattr(seen, name)]))


def control_packet(sender: Host, control: Control, holder: Host) -> bytes:
    """The frame of a control datagram as scapy builds it."""
    fields = {name: getattr(control, name) for name in Control.__dataclass_fields__}
    return bytes(_udp(sender, holder.ip, holder.mac, CONTROL_PORT, CONTROL_PORT) / KvControl(**fields))


def segment_packet(segment: Segment) -> bytes:
    """The frame in which a holder casts a segment, as scapy builds it, ICRC included."""
    header = KvData(
        segment=segment.segment,
        segments=segment.segments,
        length=segment.length if segment.length >= 0 else len(segment.payload),
        key=segment.key,
    )
    bth = BTH(opcode="UD_SEND_ONLY", migreq=1, dqpn=0xFFFFFF, psn=segment.segment)
    udp = _udp(segment.holder, GROUP_IP, GROUP_MAC, segment.src_port, ROCE_PORT)
    udp[UDP].chksum = 0
    return bytes(udp / bth / DETH(qkey=QKEY, src_qpn=segment.src_qpn) / header / segment.payload)


def _udp(sender: Host, address: bytes, mac: bytes, port: int, to: int) -> Packet:
    ip = IP(src=_dotted(sender.ip), dst=_dotted(address), flags="DF", id=0)
    return Ether(src=sender.mac, dst=mac) / ip / UDP(sport=port, dport=to)


def _dotted(address: bytes) -> str:
    return ".".join(map(str, address))
