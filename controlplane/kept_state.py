"""Keeps operators' state outside this process, for a start at which no agent knows it: in etcd or Kubernetes, where
elections are held there, and in a file.

What agents keep (`core.operator_state`) is the same state; of several the highest revision counts.

The list of expelled nodes in a file: operators edit it, or `kvcast expel` does, and the controller follows it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from controlplane.core.election import Hold
from controlplane.core.read_access import ExpulsionError, checked
from controlplane.election.contract import StatePlace, StoreUnavailableError
from controlplane.state_document import StateError, document_of, state_in
from kvdaemon.files import replace_file
from kvproto.rpc import control_pb2 as rpc

LOG = logging.getLogger(__name__)

AGAIN_S = 1.0
ANSWER_S = 5.0
FILE_NAME = "operator-state.json"


class KeptState:
    """Owns which revision is where. The leader writes, after it has read what its predecessor had."""

    def __init__(
        self,
        path: Path | None,
        shared: StatePlace | None,
        state: Callable[[], rpc.OperatorState],
        hold: Callable[[], Hold | None],
    ) -> None:
        """`state()`: as it is now; `hold()`: of this controller, if it leads by a lease."""
        self._path = path
        self._shared = shared
        self._state = state
        self._hold = hold
        self._revision = 0
        """As it was seen last."""
        self._filed = self._saved = 0
        """The revision that the file has, and the store."""
        self._restored_epoch = 0
        """The leadership in which the store was read."""
        self._filing: asyncio.Future[None] | None = None
        """A thread that writes the file."""
        self._news = asyncio.Event()
        self._complaints: dict[str, str] = {}

    @property
    def lasts(self) -> bool:
        """What is set survives the end of all controllers and agents."""
        return self._path is not None or self._shared is not None

    def look(self, revision: int) -> None:
        """The core has this revision now."""
        if revision != self._revision:
            self._revision = revision
            self._news.set()

    # -- what was kept

    def filed(self) -> rpc.OperatorState | None:
        """What the file says; None: nothing that can be used, and the log says why."""
        if self._path is None:
            return None
        try:
            state = state_in(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            LOG.warning("state %s cannot be read: %s", self._path, error.strerror)
            return None
        except StateError as error:
            LOG.warning("state %s is not taken: %s; it will be written anew", self._path, error)
            return None
        self._filed = state.revision
        return state

    async def restored(self, epoch: int) -> tuple[rpc.OperatorState | None, str]:
        """What the store has, at the beginning of a leadership, and where; asks until it answers."""
        if self._shared is None:
            return None, ""
        place = self._shared.place
        while True:
            try:
                async with asyncio.timeout(ANSWER_S):
                    content = await self._shared.load()
                state = None if content is None else state_in(content)
                break
            except (StoreUnavailableError, TimeoutError) as error:
                self._complain(place, f"operators' state cannot be read: {error or 'it does not answer'}")
            except StateError as error:
                self._complain(place, f"operators' state there is not taken: {error}; it will be written anew")
                state = None
                break
            await asyncio.sleep(AGAIN_S)
        self._saved = 0 if state is None else state.revision
        self._restored_epoch = max(self._restored_epoch, epoch)
        self._news.set()
        return state, place

    # -- keeping it

    async def run(self) -> None:
        """Write down what changes, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            if not await self._write():
                await asyncio.sleep(AGAIN_S)
                self._news.set()

    async def close(self) -> None:
        """Write down what is not yet, whatever `run` was doing when it was cancelled, and end connections."""
        await self._write()
        if self._shared is not None:
            await self._shared.close()

    async def _write(self) -> bool:
        """Returns whether all that can be written now is."""
        state = self._state()
        done = True
        if self._path is not None and state.revision and state.revision != self._filed:
            try:
                await self._file(self._path, state)
            except OSError as error:
                done = False
                self._complain(str(self._path), f"operators' state cannot be written: {error.strerror}")
        hold = self._hold()
        if self._shared is None or hold is None or hold.epoch != self._restored_epoch or state.revision == self._saved:
            return done
        return await self._save(self._shared, state, hold) and done

    async def _file(self, path: Path, state: rpc.OperatorState) -> None:
        if self._filing is not None:
            # Whoever waited for it was cancelled, but not its thread: what that writes must not come after this.
            await asyncio.wait([self._filing])
        self._filing = asyncio.ensure_future(asyncio.to_thread(replace_lasting, path, document_of(state)))
        await asyncio.shield(self._filing)
        self._filing = None
        self._filed = state.revision

    async def _save(self, shared: StatePlace, state: rpc.OperatorState, hold: Hold) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                await shared.save(document_of(state), hold)
        except (StoreUnavailableError, TimeoutError) as error:
            self._complain(shared.place, f"operators' state cannot be written: {error or 'it does not answer'}")
            return False
        self._saved = state.revision
        self._complaints.pop(shared.place, None)
        return True

    def _complain(self, place: str, problem: str) -> None:
        """Say once what goes on."""
        if self._complaints.get(place) != problem:
            self._complaints[place] = problem
            LOG.warning("%s: %s", place, problem)


def replace_lasting(path: Path, content: bytes) -> None:
    """Write a file that is there whole after a power cut, or not at all. Raises OSError."""
    replace_file(path, content, 0o600)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


_HEAD = "# Nodes that are put out of the cluster, one name a line. `kvcast expel` writes this file.\n"


class ExpelledFile:
    """One file, which need not be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: frozenset[str] = frozenset()
        """What it said when it was read last, or written."""
        self._seen: tuple[int, int, int] | None = None
        """Inode, size and time of what was read last."""

    def read(self) -> frozenset[str]:
        """What it says now. Raises ExpulsionError: it cannot be read, or says what cannot be."""
        self._seen = self._look()
        if self._seen is None:
            self.names = frozenset()
            return self.names
        try:
            self.names = names_in(self.path.read_text(encoding="utf-8"))
            return self.names
        except (OSError, UnicodeDecodeError) as error:
            raise ExpulsionError(f"cannot read {self.path}: {_reason(error)}") from error
        except ExpulsionError as error:
            raise ExpulsionError(f"{self.path}: {error}") from error

    def changed(self) -> bool:
        """Whether there is another file than the one that was read last."""
        return self._look() != self._seen

    def write(self, names: frozenset[str]) -> None:
        """Replace it as a whole. Raises ExpulsionError."""
        try:
            replace_file(self.path, file_of(names).encode(), 0o600)
        except OSError as error:
            raise ExpulsionError(f"cannot write {self.path}: {_reason(error)}") from error
        self.names = names
        self._seen = self._look()

    def _look(self) -> tuple[int, int, int] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns


def names_in(text: str) -> frozenset[str]:
    """The nodes that a file names: one a line, `#` begins a comment. Raises ExpulsionError."""
    return checked(name for line in text.splitlines() if (name := line.partition("#")[0].strip()))


def file_of(names: Iterable[str]) -> str:
    """What goes into the file."""
    return _HEAD + "".join(f"{name}\n" for name in sorted(names))


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is no UTF-8 text"
