"""Notices that the data interface was made anew, as a restart of the machine's network does it: the same name and
address, and nothing that sockets were told of it before. The kernel keeps them bound to the one that is gone."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from hostagent import limits
from hostagent.transport.base import TransportError
from hostagent.transport.interfaces import entry_of

log = logging.getLogger(__name__)


class InterfaceWatch:
    """Of one interface and the address on it."""

    def __init__(self, interface: str, address: str, made_anew: Callable[[], None]) -> None:
        """`made_anew`: bind again. It may raise TransportError, and is called again then."""
        self._interface = interface
        self._address = address
        self._made_anew = made_anew
        self._bound = self._index()
        self._told = ""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limits.INTERFACE_LOOK_S, self._look_on, loop)

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self.look()
        self._timer = loop.call_later(limits.INTERFACE_LOOK_S, self._look_on, loop)

    def look(self) -> None:
        """Bind anew once the interface is there again; say what is wrong once."""
        index = self._index()
        if index == self._bound:
            return
        if not index or entry_of(self._address) is None:
            self._tell(f"{self._interface} with {self._address} is gone: this node sends and receives no casts")
            return
        try:
            self._made_anew()
        except (TransportError, OSError) as error:
            self._tell(f"{self._interface} was made anew: {error}")
            return
        self._bound, self._told = index, ""
        log.warning("%s was made anew: sockets are bound to it again", self._interface)

    def _index(self) -> int:
        """0: there is none of that name."""
        try:
            return socket.if_nametoindex(self._interface)
        except OSError:
            return 0

    def _tell(self, what: str) -> None:
        if what != self._told:
            self._told = what
            log.warning("%s", what)
