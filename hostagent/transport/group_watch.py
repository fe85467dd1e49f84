"""Sees frames that come to a multicast group although this host is not in it, to tell whether a network floods; and has
the kernel drop what a socket is not for."""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import Final

_ETH_P_IP: Final = 0x0800
_SO_ATTACH_FILTER: Final = 26
_SOL_PACKET: Final = 263
_PACKET_ADD_MEMBERSHIP: Final = 1
_MEMBERSHIP: Final = struct.Struct("=iHH8s")
"""struct packet_mreq of Linux, include/uapi/linux/if_packet.h, of kind 0: multicast."""
_INSTRUCTION: Final = struct.Struct("=HBBI")
"""struct sock_filter, include/uapi/linux/filter.h."""
_LOAD_WORD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
_SOURCE, _DESTINATION = 12, 16
"""Where an IPv4 header has them (RFC 791)."""
_UDP_BYTES: Final = 8


def watching_socket(interface: str, group: str) -> socket.socket:
    """Takes IPv4 packets to the group, and nothing else. The NIC lets them pass, and no IGMP report asks for them.

    Raises OSError where this process may not look at frames.
    """
    packed = socket.inet_aton(group)
    mac = b"\x01\x00\x5e" + bytes([packed[1] & 0x7F]) + packed[2:]  # RFC 1112
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
    try:
        take_only(sock, _DESTINATION, packed)
        sock.bind((interface, _ETH_P_IP))
        joined = _MEMBERSHIP.pack(socket.if_nametoindex(interface), 0, len(mac), mac)
        sock.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, joined)
    except OSError:
        sock.close()
        raise
    return sock


def take_only(sock: socket.socket, offset: int, word: bytes) -> None:
    """From now on the socket takes nothing but what has these four bytes there: from the IP header on for a packet
    socket, from the UDP header on for one of UDP. Raises OSError."""
    only = (
        (_LOAD_WORD, 0, 0, offset),
        (_EQUALS, 0, 1, int.from_bytes(word, "big")),
        (_RETURN, 0, 0, 0xFFFF),
        (_RETURN, 0, 0, 0),
    )
    program = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*one) for one in only))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(only), ctypes.addressof(program)))


def datagram_of(packet: bytes) -> tuple[bytes, str]:
    """Payload and source address of a UDP packet from such a socket."""
    return packet[4 * (packet[0] & 0xF) + _UDP_BYTES :], socket.inet_ntoa(packet[_SOURCE : _SOURCE + 4])
