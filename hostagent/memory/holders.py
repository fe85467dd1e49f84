"""Who holds the pool's files while no agent runs: the service manager, or a keeper (`kvdaemon.file_keeper`).

A holder is asked in this order: `fetch` once, then `forget` or `keep`, then `attend`, and at last `close`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from typing import Final, Protocol

from kvdaemon import notify
from kvdaemon.file_keeper import NAMES, REFUSED, close_all, is_own, receive, send, words_of

log = logging.getLogger(__name__)

_ANSWER_S: Final = 5.0
AGAIN_S: Final = 1.0
"""Between two tries to reach a keeper that has gone: for so long a pool is not held."""


class Holder(Protocol):
    """Keeps open files by name for the agent after this one. Each method raises OSError, one line."""

    def holds(self) -> bool:
        """Whether it keeps what it is given."""

    def fetch(self) -> dict[str, int]:
        """What the agent before gave; the caller's from now on."""

    def keep(self, name: str, descriptor: int) -> None:
        """Keep a file; whoever calls closes its own descriptor when it likes."""

    def forget(self, name: str) -> None:
        """Let go of a file."""

    def attend(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on have it keep the files, whatever happens to it."""

    def close(self) -> None:
        """Leave it alone with the files."""


class ServiceManager:
    """systemd's file descriptor store, or one that speaks as it does."""

    def holds(self) -> bool:
        """See `Holder`."""
        return notify.is_listened_to()

    def fetch(self) -> dict[str, int]:
        """See `Holder`."""
        return notify.kept_files()

    def keep(self, name: str, descriptor: int) -> None:
        """See `Holder`."""
        notify.keep_file(name, descriptor)

    def forget(self, name: str) -> None:
        """See `Holder`."""
        notify.forget_file(name)

    def attend(self, loop: asyncio.AbstractEventLoop) -> None:
        """See `Holder`. It outlives every service."""

    def close(self) -> None:
        """See `Holder`."""


class Keeper:
    """A keeper at a socket. While it is away the agent holds its files itself, and gives them to the one that comes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: dict[str, int] = {}
        self._link: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._again: asyncio.TimerHandle | None = None

    def holds(self) -> bool:
        """See `Holder`. It will, if it does not now."""
        return True

    def fetch(self) -> dict[str, int]:
        """See `Holder`. Where nobody listens there is nothing."""
        for name, descriptor in notify.kept_files().items():
            # A service manager kept a pool before the keeper was configured.
            os.close(descriptor)
            notify.forget_file(name)
        try:
            self._link = self._connected()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ECONNREFUSED):
                raise
            log.warning("%s: no keeper listens there yet: until one does, the pool ends with this agent", self._path)
            return {}
        words, descriptors = self._ask("FDFETCH=1")
        names = [name for name in words.get(NAMES, "").split(":") if name]
        if len(names) != len(descriptors):
            close_all(descriptors)
            raise OSError(errno.EPROTO, f"{self._path}: {len(names)} names for {len(descriptors)} files")
        found = dict(zip(names, descriptors, strict=True))
        self._files = {name: os.dup(descriptor) for name, descriptor in found.items()}
        return found

    def keep(self, name: str, descriptor: int) -> None:
        """See `Holder`."""
        self._files[name] = os.dup(descriptor)
        if self._link is not None:
            self._ask(f"FDSTORE=1\nFDNAME={name}", {name: descriptor})

    def forget(self, name: str) -> None:
        """See `Holder`."""
        os.close(self._files.pop(name))
        if self._link is not None:
            self._ask(f"FDSTOREREMOVE=1\nFDNAME={name}")

    def attend(self, loop: asyncio.AbstractEventLoop) -> None:
        """See `Holder`."""
        self._loop = loop
        if self._link is None:
            self._lost()
        else:
            self._link.setblocking(False)
            loop.add_reader(self._link, self._hear)

    def close(self) -> None:
        """See `Holder`."""
        if self._again is not None:
            self._again.cancel()
        self._disconnect()
        close_all(list(self._files.values()))
        self._files.clear()

    def _ask(self, message: str, files: dict[str, int] | None = None) -> tuple[dict[str, str], list[int]]:
        """Before the event loop attends to it: whoever asks waits."""
        assert self._link is not None
        send(self._link, message, files)
        answer, descriptors = receive(self._link)
        words = words_of(answer)
        if not answer or REFUSED in words:
            close_all(descriptors)
            why = words.get(REFUSED, "the keeper ended the connection")
            raise OSError(errno.EBUSY, f"the pool's files are with the keeper at {self._path}: {why}")
        return words, descriptors

    def _connected(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            link.settimeout(_ANSWER_S)
            link.connect(self._path)
            if not is_own(link):
                raise OSError(errno.EPERM, f"{self._path}: a keeper of another user listens there")
        except OSError as error:
            link.close()
            raise OSError(error.errno, f"{self._path}: {error.strerror or error}") from error
        return link

    def _hear(self) -> None:
        assert self._link is not None
        try:
            answer, descriptors = receive(self._link)
        except BlockingIOError:
            return
        except OSError:
            answer, descriptors = b"", []
        close_all(descriptors)
        refusal = words_of(answer).get(REFUSED)
        if refusal is not None:
            log.warning("%s: the keeper does not take the pool: %s", self._path, refusal)
        if not answer or refusal is not None:
            self._lost()

    def _lost(self) -> None:
        """Try again later."""
        assert self._loop is not None
        if self._link is not None:
            log.warning("%s: the keeper is gone; until there is one the pool ends with this agent", self._path)
        self._disconnect()
        self._again = self._loop.call_later(AGAIN_S, self._give_again)

    def _give_again(self) -> None:
        assert self._loop is not None
        try:
            self._link = self._connected()
            self._link.setblocking(False)
            self._loop.add_reader(self._link, self._hear)
            for name, descriptor in self._files.items():
                send(self._link, f"FDSTORE=1\nFDNAME={name}", {name: descriptor})
        except OSError:
            self._disconnect()
            self._again = self._loop.call_later(AGAIN_S, self._give_again)
        else:
            log.info("%s: a keeper has the pool", self._path)

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            if self._loop is not None:
                self._loop.remove_reader(link)
            link.close()
