"""Keeps open files for a daemon that is started again, where no service manager does: what `kvcast keeper` runs.

One UNIX socket of whole messages (SOCK_SEQPACKET), in the words of sd_pid_notify_with_fds(3); each has an answer:

    FDFETCH=1                           -> FDNAMES=NAME:NAME, with the files
    FDSTORE=1 FDNAME=NAME, with a file  -> DONE=1; a file of that name gives way
    FDSTOREREMOVE=1 FDNAME=NAME         -> DONE=1

or REFUSED=WORDS. The files belong to one process at a time: to whoever asked first, until its connection ends. What it
gave stays. Only processes of the keeper's own user, and of root, are served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kvdaemon.errors import CannotRunError

log = logging.getLogger(__name__)

FILES_MAX: Final = 8
MESSAGE_BYTES_MAX: Final = 1024
NAMES: Final = "FDNAMES"
REFUSED: Final = "REFUSED"
_NAME_BYTES_MAX: Final = 64
_CONNECTIONS_MAX: Final = 8
_CREDENTIALS: Final = struct.Struct("3I")


def words_of(message: bytes) -> dict[str, str]:
    """The assignments of a message; a line that is none is left out."""
    lines = message.decode(errors="replace").splitlines()
    return {key: value for key, found, value in (line.partition("=") for line in lines) if found}


def send(to: socket.socket, message: str, files: Mapping[str, int] | None = None) -> None:
    """One message, with open files. Raises OSError."""
    rights = array("i", (files or {}).values())
    to.sendmsg([message.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else [])


def receive(from_: socket.socket) -> tuple[bytes, list[int]]:
    """One message and the files that came with it, which are the caller's; no bytes: the peer has gone. Raises OSError,
    EMSGSIZE for more than a message may have."""
    content, descriptors, flags, _ = socket.recv_fds(from_, MESSAGE_BYTES_MAX, FILES_MAX, socket.MSG_CMSG_CLOEXEC)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(descriptors)
        raise OSError(90, "the message is too long")
    return content, descriptors


def close_all(descriptors: list[int]) -> None:
    """Close files."""
    for descriptor in descriptors:
        os.close(descriptor)


def is_own(peer: socket.socket) -> bool:
    """Whether the process at the other end is of this user, or root's (SO_PEERCRED, unix(7)). Raises OSError."""
    _, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return user in (0, os.geteuid())


class FileKeeper:
    """Listens at `path` until it is closed."""

    def __init__(self, path: Path) -> None:
        """Raises CannotRunError."""
        self._path = path
        self._files: dict[str, int] = {}
        self._owner: socket.socket | None = None
        self._peers: set[socket.socket] = set()
        self._loop = asyncio.get_running_loop()
        self._listener = _listening(path)
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """End all connections, and let go of the files."""
        for peer in tuple(self._peers):
            self._leave(peer)
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._path.unlink(missing_ok=True)
        close_all(list(self._files.values()))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            peer, _ = self._listener.accept()
            if len(self._peers) >= _CONNECTIONS_MAX or not is_own(peer):
                peer.close()
                return
            peer.setblocking(False)
            self._peers.add(peer)
            self._loop.add_reader(peer, self._hear, peer)

    def _leave(self, peer: socket.socket) -> None:
        self._loop.remove_reader(peer)
        self._peers.discard(peer)
        if peer is self._owner:
            self._owner = None
        peer.close()

    def _hear(self, peer: socket.socket) -> None:
        try:
            content, descriptors = receive(peer)
            if not content:
                raise ConnectionResetError
            try:
                answer, files = self._answer(peer, words_of(content), descriptors)
            finally:
                close_all(descriptors)
            send(peer, answer, files)
        except BlockingIOError:
            return
        except OSError as error:
            if not isinstance(error, ConnectionError):
                log.warning("a connection is ended: %s", error.strerror or error)
            self._leave(peer)

    def _answer(
        self, peer: socket.socket, words: Mapping[str, str], given: list[int]
    ) -> tuple[str, Mapping[str, int] | None]:
        """What to say to a message, and the files to send with it. `given` are closed afterwards."""
        if self._owner not in (None, peer):
            return f"{REFUSED}=another process has them", None
        self._owner = peer
        name = words.get("FDNAME", "")
        if "FDFETCH" in words:
            return f"{NAMES}={':'.join(self._files)}", self._files
        if not name.isprintable() or ":" in name or not 0 < len(name.encode()) <= _NAME_BYTES_MAX:
            return f"{REFUSED}=a file needs a name", None
        if "FDSTORE" in words:
            if len(given) != 1:
                return f"{REFUSED}={len(given)} files came, not one", None
            if name not in self._files and len(self._files) == FILES_MAX:
                return f"{REFUSED}={FILES_MAX} files are kept", None
            self._forget(name)
            self._files[name] = os.dup(given[0])
            log.info("keeps %s of %d bytes", name, os.fstat(given[0]).st_size)
        elif "FDSTOREREMOVE" in words:
            self._forget(name)
        else:
            return f"{REFUSED}=nothing that is known was asked", None
        return "DONE=1", None

    def _forget(self, name: str) -> None:
        descriptor = self._files.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)


def _listening(path: Path) -> socket.socket:
    """At a path where nobody listens, for this user alone."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise CannotRunError(f"{path}: another keeper listens there")
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_CONNECTIONS_MAX)
    except OSError as error:
        listener.close()
        raise CannotRunError(f"{path}: {error.strerror or error}") from error
    except BaseException:
        listener.close()
        raise
    return listener
