"""Notices that the data network changed under an agent: its interface was made anew, as a restart of the machine's
network does it, its address is another one, or moved, into a bond, say. The kernel keeps sockets bound to what was.

The kernel tells of changes (`rtnetlink`); a look now and then finds what it did not tell, and tries again what failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from hostagent import limits
from hostagent.config import DataConfig
from hostagent.transport.base import TransportError
from hostagent.transport.interfaces import ask_interface, entry_of, interface_address, ipv4_beside, sending_interface
from hostagent.transport.rtnetlink import DATAGRAM_BYTES_MAX, GROUPS, Change, LinkChange, changes_of

log = logging.getLogger(__name__)

_SIOCGIFHWADDR: Final = 0x8927


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent is on its data network."""

    address: str
    """Where it is read."""
    cast_address: str
    """IPv4, for casts and control datagrams; empty: there is none."""
    interface: str = ""
    """By which it sends; empty: it is the loopback, or routes decide."""
    index: int = 0
    """The kernel's, of the interface."""
    mac: bytes = bytes(6)
    """Of the interface; zeros where there is none to speak of."""

    def is_lost_by(self, change: Change) -> bool:
        """Whether sockets bound here have to be bound again, even if all is soon as it was before."""
        if not change.lost:
            return False
        return change.index == self.index if isinstance(change, LinkChange) else change.address in self._own

    def is_concerned_by(self, change: Change) -> bool:
        """Whether it may be another after this change."""
        if isinstance(change, LinkChange):
            return change.index == self.index or change.name == self.interface
        return change.index == self.index or change.address in self._own

    @property
    def _own(self) -> tuple[str, str]:
        return self.address, self.cast_address


def place_of(config: DataConfig, was: Place | None = None) -> Place:
    """As it is now; an address that it `was` at stays as long as it is there. Raises TransportError, OSError."""
    address = interface_address(config, was.address if was is not None else "")
    interface = sending_interface(address, config.interface)
    cast_address = ipv4_beside(address, interface)
    if was is not None and bool(cast_address) != bool(was.cast_address):
        if was.cast_address:
            raise TransportError(f"{interface} has no IPv4 address any more, by which this node casts")
        cast_address = ""  # it goes on without casts
    if interface is None:
        return Place(address, cast_address)
    if entry_of(address) is None:
        raise TransportError(f"no interface has the address {address}")
    mac = ask_interface(interface, _SIOCGIFHWADDR)[2:8]
    return Place(address, cast_address, interface, socket.if_nametoindex(interface), mac)


class InterfaceWatch:
    """Of the place to which the sockets of an agent are bound."""

    def __init__(self, config: DataConfig, place: Place, moved: Callable[[Place, bool], None]) -> None:
        """`moved(place, bind)`: use this place, and unless `bind` is false bind everything to it. It may raise
        TransportError or OSError, and is called again then."""
        self.place = place
        self.trouble = ""
        """Why nothing is bound to the data network as it is now; empty: all is."""
        self._config = config
        self._moved = moved
        self._lost = False
        self._loop = asyncio.get_running_loop()
        self._soon: asyncio.TimerHandle | None = None
        self._timer = self._loop.call_later(limits.INTERFACE_LOOK_S, self._look_on)
        self._news = _opened()
        if self._news is not None:
            self._loop.add_reader(self._news, self._hear, self._news)

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()
        if self._soon is not None:
            self._soon.cancel()
        if self._news is not None:
            self._loop.remove_reader(self._news)
            self._news.close()
            self._news = None

    def _hear(self, news: socket.socket) -> None:
        try:
            changes = list(changes_of(news.recv(DATAGRAM_BYTES_MAX)))
        except BlockingIOError:
            return
        except OSError:  # ENOBUFS: some were lost
            self._lost = True
            self._look_soon()
            return
        self._lost |= any(map(self.place.is_lost_by, changes))
        if any(map(self.place.is_concerned_by, changes)):
            self._look_soon()

    def _look_soon(self) -> None:
        """Together with what else changes by the same command."""
        if self._soon is None:
            self._soon = self._loop.call_later(limits.INTERFACE_SETTLES_S, self.look)

    def _look_on(self) -> None:
        self.look()
        self._timer = self._loop.call_later(limits.INTERFACE_LOOK_S, self._look_on)

    def look(self) -> None:
        """Bind anew what has to be, as soon as that can be; say once what is wrong."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        was = self.place
        try:
            place = place_of(self._config, was)
            if place == was and not self._lost:
                return
            bind = self._lost or replace(place, mac=was.mac) != was
            self._moved(place, bind)
        except (TransportError, OSError) as error:
            self._lost = True
            reason = str(error) if isinstance(error, TransportError) else f"{was.interface}: {error.strerror}"
            if reason != self.trouble:
                self.trouble = reason
                log.warning("the data network is lost, no chunks go to or from other nodes: %s", reason)
            return
        self.place, self._lost, self.trouble = place, False, ""
        log.warning("%s", _words(was, place))


def _words(was: Place, place: Place) -> str:
    if place.address != was.address:
        return f"the data address is {place.address} on {place.interface}, no longer {was.address}: bound to it"
    if place.interface != was.interface:
        return (
            f"{place.address} is on {place.interface} now, no longer on {was.interface}: sockets are bound to it again"
        )
    if place.index != was.index:
        return f"{place.interface} was made anew: sockets are bound to it again"
    if place.mac != was.mac:
        return f"{place.interface} has the hardware address {place.mac.hex(':')} now: peers are told"
    return f"{place.interface} has {place.address} again: sockets are bound to it again"


def _opened() -> socket.socket | None:
    """What the kernel tells; None: a sandbox does not have it, and a look every second has to do."""
    news = None
    with contextlib.suppress(OSError):
        news = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
        news.bind((0, GROUPS))
        return news
    if news is not None:
        news.close()
    return None
