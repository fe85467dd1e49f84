"""Layers of kvcast's datagrams for scapy, to look at captures and to build packets by hand. Needs scapy 2.5 or newer,
which kvcast does not install (its licence is GPL-2.0-only); nothing else in kvcast imports this module.

    >>> from scapy.all import rdpcap, sniff
    >>> import kvcast.scapy
    >>> rdpcap("casts.pcap")[0].show()
    >>> sniff(filter="udp port 4793", prn=lambda packet: packet.summary())

A control datagram is UDP to port 4793 / `KvControl`; a FILL has `BTH / DETH / KvData` behind it. A segment is UDP to
port 4791 / `BTH / DETH / KvData`, where BTH, its ICRC included, is scapy's own (`scapy.contrib.roce`). Fields are those
of p4/include/headers.p4 (docs/reference/wire.md); names of operations and flags come from there, too.
"""

from __future__ import annotations

from scapy import fields
from scapy.contrib.roce import BTH
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_layers

from kvproto.wire import layouts

OPERATIONS = {value: name[3:] for name, value in vars(layouts).items() if name.startswith("OP_")}
_FLAG_NAMES = {value: name[5:] for name, value in vars(layouts).items() if name.startswith("FLAG_")}
FLAGS = [_FLAG_NAMES.get(1 << bit, f"BIT{bit}") for bit in range(8)]
"""By bit."""


class _KeyField(fields.StrFixedLenField):
    """A chunk's key, shown as `kvcast ls` does: 32 hexadecimal digits."""

    def i2repr(self, pkt: Packet | None, x: bytes) -> str:
        return x.hex()


class KvControl(Packet):
    """`kv_control_t`: 40 bytes."""

    name = "kvcast control"
    fields_desc = [  # noqa: RUF012  as scapy wants it
        fields.ByteField("version", layouts.KV_VERSION),
        fields.ByteEnumField("op", layouts.OP_JOIN, OPERATIONS),
        fields.FlagsField("flags", 0, 8, FLAGS),
        fields.ByteField("member", 0),
        fields.ShortField("count", 0),
        fields.ShortField("tag", 0),
        fields.IntField("segment", 0),
        fields.IntField("segments", 1),
        _KeyField("key", bytes(16), 16),
        fields.XLongField("members", 0),
    ]

    def mysummary(self) -> str:
        """For `packet.summary()`."""
        return str(self.sprintf("kvcast %op% ")) + f"{self.key.hex()} {self.segment}+{self.count}/{self.segments}"


class DETH(Packet):
    """`deth_t`, InfiniBand's datagram header: 8 bytes. scapy has none."""

    name = "DETH"
    fields_desc = [fields.XIntField("qkey", 0), fields.XByteField("reserved", 0), fields.X3BytesField("src_qpn", 0)]  # noqa: RUF012  as above


class KvData(Packet):
    """`kv_data_t`: 32 bytes, the segment's bytes behind it."""

    name = "kvcast segment"
    fields_desc = [  # noqa: RUF012  as scapy wants it
        fields.ByteField("version", layouts.KV_VERSION),
        fields.ByteEnumField("op", layouts.OP_DATA, OPERATIONS),
        fields.XByteField("flags", 0),
        fields.BitField("reserved", 0, 8),
        fields.IntField("segment", 0),
        fields.IntField("segments", 1),
        fields.IntField("length", 0),
        _KeyField("key", bytes(16), 16),
    ]

    def mysummary(self) -> str:
        """For `packet.summary()`."""
        return f"kvcast segment {self.key.hex()} {self.segment}/{self.segments}"


bind_layers(UDP, KvControl, dport=layouts.UDP_PORT_CONTROL)
bind_layers(KvControl, BTH, op=layouts.OP_FILL)
bind_layers(BTH, DETH, opcode=layouts.BTH_OPCODE_UD_SEND_ONLY)
bind_layers(DETH, KvData)
