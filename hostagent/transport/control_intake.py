"""Takes control datagrams from a socket, decodes them, and gives those that came together to the sink at once."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from hostagent import limits
from hostagent.transport.base import ControlArrival, TransportCounters, TransportSink
from kvproto.errors import WireError
from kvproto.ids import Address, parse_address
from kvproto.wire.control import decode_control
from kvproto.wire.layouts import KV_CONTROL_BYTES

_ROOM_BYTES: Final = KV_CONTROL_BYTES + 1
"""A byte more than a message has, so that a longer datagram is seen to be longer."""


class ControlIntake:
    """See the module's docstring."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        sink: TransportSink,
        counters: TransportCounters,
        own_address: Address,
        rail: int = 0,
    ) -> None:
        """`sock`: non-blocking, of this rail; it outlives this."""
        self._rail = rail
        self._socket = sock
        self._loop = loop
        self._sink = sink
        self._counters = counters
        self._own = own_address
        loop.add_reader(sock.fileno(), self._readable)

    def close(self) -> None:
        """No more control."""
        self._loop.remove_reader(self._socket.fileno())

    def _readable(self) -> None:
        """Take what is there, up to a limit: other work gets its turn before the rest."""
        arrivals = []
        for _ in range(limits.CONTROL_BATCH_DATAGRAMS):
            try:
                datagram, (host, _) = self._socket.recvfrom(_ROOM_BYTES)
            except BlockingIOError:
                break
            except OSError:
                continue  # An ICMP error for something sent earlier is no business of the receive path.
            arrival = self._arrival(datagram, parse_address(host))
            if arrival is not None:
                arrivals.append(arrival)
        self._counters.control_received += len(arrivals)
        if arrivals:
            self._sink.controls_received(arrivals)

    def _arrival(self, datagram: bytes, source: Address) -> ControlArrival | None:
        """What came, decoded; None, and counted: it is not listened to."""
        if source == self._own:
            self._counters.drop("own_control")
            return None
        try:
            return ControlArrival(decode_control(datagram), source, self._rail)
        except WireError as error:
            self._counters.drop(f"control_{error.reason.name.lower()}")
            return None
