"""The agent's end of the local API: its socket, who may connect, and what a new engine is given (`connection`: frames).

The core (`hostagent.core.engines`) knows what each engine holds and makes all decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hostagent import limits
from hostagent.api.access import Peer, peer_of
from hostagent.api.connection import Answer, EngineConnection, LoneFiles, Service, TurnTaker
from hostagent.api.tenancy import Admission
from hostagent.core import events
from hostagent.core.events import EngineEvent, EngineId
from hostagent.event_loop import Listener
from hostagent.intake import Intake
from hostagent.memory.leases import LocalLeases
from kvclient import messages
from kvclient.messages import Kind, Status

log = logging.getLogger(__name__)


class ApiError(Exception):
    """The API cannot be offered; one line that names the remedy."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a new engine gets: the pool's memory, to read it, and when the agent began."""

    pool_fd: int
    pool_bytes: int
    incarnation: int
    writers: frozenset[int] = frozenset()
    """Users whose engines could write to the pool all the same."""

    def send(
        self, sock: socket.socket, region_fd: int, local: tuple[int, int] | None, lone: tuple[int, int] | None
    ) -> None:
        """Greet; `region_fd`: the engine's own write region; `local`: see `LocalLeases.open`; `lone`:
        see `LoneFiles.open`. Raises OSError."""
        body = messages.WELCOME.pack(messages.VERSION, self.pool_bytes, self.incarnation)
        offers = messages.OFFERS_LOCAL * (local is not None) | messages.OFFERS_LONE * (lone is not None)
        files = [self.pool_fd, region_fd, *(local or ()), *(lone or ())]
        socket.send_fds(sock, [messages.pack(Kind.WELCOME, 0, body, count=offers)], files)


class ApiServer:
    """Listens on a UNIX socket and serves engines."""

    def __init__(
        self,
        handle: Callable[[EngineEvent], None],
        stats: Callable[[], dict[str, float]],
        welcome: Welcome,
        regions: Intake,
        admission: Admission,
        local: LocalLeases | None = None,
        lone: LoneFiles | None = None,
    ) -> None:
        """`handle(event)`: takes engines' requests, which `answer` answers later; `stats()`: figures for engines.
        `local`: None: engines ask for every chunk; `lone`: None: and for every small one of other nodes."""
        self._handle = handle
        self._stats = stats
        self._welcome = welcome
        self._regions = regions
        self._local = local
        self._lone = lone
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._listener: Listener | None = None
        self._path = ""
        self._connections: dict[EngineId, EngineConnection] = {}
        self._connections_made = 0
        self._told_writer = False
        self._greeting: set[asyncio.Task[None]] = set()
        self._turns = TurnTaker(self._loop)

    @property
    def connections_count(self) -> int:
        """Engines that are connected."""
        return len(self._connections)

    @property
    def registered_bytes(self) -> int:
        """Of pool and write regions, what engines say they have registered with devices."""
        return sum(connection.registered_bytes for connection in self._connections.values())

    def listen(self, path: str) -> None:
        """Start. Raises ApiError when another agent is alive at the path or it cannot be made."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(os.path.abspath(path)), mode=0o755)  # /run is empty after each boot
            _clear_stale(path)
            listener.bind(path)
            self._admission.access.apply(path)
            listener.listen(limits.API_CONNECTIONS_MAX)
        except OSError as error:
            listener.close()
            raise ApiError(
                f"cannot listen at {path}: {error.strerror or error}; set api.socket to another path"
            ) from error
        except ApiError:
            listener.close()
            raise
        self._path = path
        self._listener = Listener(
            listener, self._loop, self._accept, lambda: log.warning("no descriptors left for another engine")
        )

    def close(self) -> None:
        """Stop listening and end all connections."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        for connection in list(self._connections.values()):
            connection.end()

    def answer(self, answer: Answer) -> None:
        """Send an answer of the core; an engine that has gone meanwhile gets nothing."""
        connection = self._connections.get(answer.engine)
        if connection is not None:
            connection.answer(answer)

    def _accept(self, sock: socket.socket) -> None:
        peer = peer_of(sock)
        tenant = self._admission.tenancy.tenant_of(peer)
        status = self._admission.admit(peer, tenant)
        engine = EngineId(self._connections_made + 1)
        # A fresh socket's buffer is empty: the greeting goes in whole.
        if status is Status.OK and not self._greeted(sock, engine, tenant):
            self._admission.connection_ended(peer, tenant)
            status = Status.BUSY
        if status is not Status.OK:
            with contextlib.suppress(OSError):
                sock.send(_refusal(status), socket.MSG_DONTWAIT)
            sock.close()
            return
        if peer.user in self._welcome.writers:
            self._tell_writer(peer)
        self._connections_made = engine
        connection = EngineConnection(
            sock,
            engine,
            Service(self._handle, self._stats, self._lone, self._turns),
            partial(self._connection_ended, peer, tenant),
            self._admission.tenancy.pace_of(tenant),
        )
        self._connections[engine] = connection
        self._handle(events.EngineConnected(engine, tenant))
        task = self._loop.create_task(self._adopt(sock, connection))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    def _tell_writer(self, peer: Peer) -> None:
        if not self._told_writer:
            log.warning(
                "an engine runs as user %d, who could write to a pool that is kept over restarts: give engines a user"
                " of their own, or set pool.keep: false",
                peer.user,
            )
        self._told_writer = True

    def _greeted(self, sock: socket.socket, engine: EngineId, tenant: str) -> bool:
        """Whether the engine has a region and knows of it."""
        try:
            region_fd = self._regions.open(engine)
        except OSError as error:
            log.warning("no write region for another engine: %s", error.strerror)
            return False
        try:
            local = self._local.open(engine, tenant) if self._local is not None else None
            lone = None
            if self._lone is not None and not self._admission.tenancy.pace_of(tenant).is_limited:
                lone = self._lone.open(engine)
            try:
                self._welcome.send(sock, region_fd, local, lone)
            finally:
                for descriptor in lone or ():
                    os.close(descriptor)
        except OSError as error:
            # Who has gone already wanted to know whether an agent listens, as doctor does.
            if not isinstance(error, BrokenPipeError):
                log.warning("an engine could not be greeted: %s", error.strerror)
            self._end_memory(engine)
            return False
        return True

    def _end_memory(self, engine: EngineId) -> None:
        self._regions.end(engine)
        if self._local is not None:
            self._local.end(engine)
        if self._lone is not None:
            self._lone.end(engine)

    def _connection_ended(self, peer: Peer, tenant: str, engine: EngineId) -> None:
        self._admission.connection_ended(peer, tenant)
        self._end_memory(engine)
        del self._connections[engine]
        self._handle(events.EngineDisconnected(engine))

    async def _adopt(self, sock: socket.socket, connection: EngineConnection) -> None:
        await self._loop.connect_accepted_socket(lambda: connection, sock)


def _refusal(status: Status) -> bytes:
    """A greeting without a pool."""
    return messages.pack(Kind.WELCOME, 0, messages.WELCOME.pack(messages.VERSION, 0, 0), status=status)


def _clear_stale(path: str) -> None:
    """Remove a dead agent's socket; refuse to take over a living agent's socket or any other file."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ApiError(f"{path} exists and is not a socket: set api.socket to another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError as error:
            raise ApiError(f"{path} is in use: {error.strerror}; set api.socket to another path") from error
    raise ApiError(f"another agent is listening at {path}; stop it or set api.socket to another path")
