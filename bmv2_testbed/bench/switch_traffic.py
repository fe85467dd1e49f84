"""What hosts at the ports of a kvcast switch send, for benchmarks of the switch by itself."""

from __future__ import annotations

from dataclasses import dataclass

from kvchunk.ids import ChunkKey
from kvproto.ids import Address
from kvproto.wire import layouts
from kvproto.wire.control import Control, Op
from kvproto.wire.data import ChunkFraming, Fabric

SEGMENTS = 8
"""Of the benchmark's chunk."""
GROUP_MAC = 0x01_00_5E_4B_56_01
POOL_MAC = 0x02_4B_56_00_FF_FE
POOL_IP = 0x0A_4B_FF_FE
FROM_SWITCH_DSCP = 0x2A
TTL_US = 60_000_000
"""For interest and for the heat window: longer than any measurement."""
HEAT_GETS = 4
_SOURCE_PORT = 0xC000


@dataclass(frozen=True, slots=True)
class Host:
    """The host at a port; members are numbered from 0."""

    port: int

    @property
    def mac(self) -> int:
        return 0x02_4B_56_00_00_00 + self.port

    @property
    def ip(self) -> int:
        return 0x0A_4B_00_00 + self.port

    @property
    def member(self) -> int:
        return self.port - 1

    @property
    def bit(self) -> int:
        return 1 << self.member


class ChunkTraffic:
    """Frames about one chunk of SEGMENTS segments that ``holder`` has."""

    def __init__(self, holder: Host, segment_bytes: int) -> None:
        self.holder = holder
        self.fabric = Fabric(segment_bytes=segment_bytes)
        self.key = ChunkKey(bytes(range(16)))
        self.data = bytes(range(256)) * (SEGMENTS * segment_bytes // 256)
        self._framing = ChunkFraming(self.key, memoryview(self.data), self.fabric, Address(holder.ip), _SOURCE_PORT)

    def fill(self, segment: int) -> bytes:
        """The holder fills the switch with a segment."""
        fill = Control(Op.FILL, self.key, SEGMENTS, segment).encode() + self._framing.datagram(segment)
        return _udp_frame(self.holder, POOL_MAC, POOL_IP, layouts.UDP_PORT_CONTROL, fill, _SOURCE_PORT)

    def cast(self) -> bytes:
        """The holder casts the first segment to the fabric's group."""
        datagram = self._framing.datagram(0)
        return _udp_frame(self.holder, GROUP_MAC, self.fabric.group, layouts.UDP_PORT_ROCE, datagram, _SOURCE_PORT)

    def get(self, asker: Host, first: int, count: int = 1) -> bytes:
        """``asker`` wants ``count`` segments from ``first`` on."""
        return self._control(asker, Control(Op.GET, self.key, SEGMENTS, first, count))

    def join(self, member: Host) -> bytes:
        """``member`` wants the chunk."""
        return self._control(member, Control(Op.JOIN, self.key, SEGMENTS))

    def _control(self, sender: Host, control: Control) -> bytes:
        port = layouts.UDP_PORT_CONTROL
        return _udp_frame(sender, self.holder.mac, self.holder.ip, port, control.encode(), port)


def _udp_frame(sender: Host, dst_mac: int, dst_ip: int, dst_port: int, payload: bytes, src_port: int) -> bytes:
    ethernet = layouts.Ethernet(dst_mac, sender.mac, 0x0800).pack()
    ipv4 = layouts.Ipv4(
        version=4, ihl=5, total_length=28 + len(payload), flags=2, ttl=64, protocol=17, src=sender.ip, dst=dst_ip
    ).pack()
    udp = src_port.to_bytes(2, "big") + dst_port.to_bytes(2, "big") + (8 + len(payload)).to_bytes(2, "big") + b"\0\0"
    return ethernet + ipv4 + udp + payload
