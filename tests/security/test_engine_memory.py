"""An engine against the memory that it shares with the agent and the other engines of its node."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from hostagent.memory.pool_memory import PoolMemory
from kvclient import messages
from kvclient.attach import Attached, attach
from kvclient.client import AgentClient, PutOutcome, Status
from kvclient.messages import Frame, Kind
from tests.security.agent_under_attack import AttackedAgent, attacked_agent
from tests.unit.hostagent.agent_harness import MIB, key

pytestmark = pytest.mark.security

_FALLOC_KEEP_SIZE, _FALLOC_PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)
REFUSED = r"not permitted|Permission denied|Bad file descriptor|Invalid argument"
STRANGER = 12_345
"""A user of no name."""


@pytest.fixture(scope="module")
def agent() -> Iterator[AttackedAgent]:
    with attacked_agent() as made:
        yield made


class LyingEngine:
    """Speaks the local protocol by itself."""

    def __init__(self, path: str) -> None:
        self.attached: Attached = attach(path)
        self.attached.sock.settimeout(20)
        self.region = mmap.mmap(self.attached.region, os.fstat(self.attached.region).st_size)
        self._frames = messages.FrameReader()

    def ask(self, kind: Kind, body: bytes) -> Frame:
        self.attached.sock.sendall(messages.pack(kind, 1, body))
        while not (frames := self._frames.feed(self.attached.sock.recv(65536))):
            pass
        return frames[0]

    def reserve(self, number: int, size_bytes: int) -> int:
        """A lease of room for a chunk."""
        answer = self.ask(Kind.RESERVE, messages.RESERVE.pack(key(number), messages.NO_KEY, size_bytes, 0))
        assert answer.status == Status.OK
        lease: int = messages.LEASE.unpack(answer.body)[0]
        return lease

    def commit(self, lease: int, offset: int) -> Frame:
        return self.ask(Kind.COMMIT, messages.COMMIT.pack(lease, offset))

    def close(self) -> None:
        self.region.close()
        os.close(self.attached.memory)
        os.close(self.attached.region)
        self.attached.sock.close()


@pytest.fixture
def liar(agent: AttackedAgent) -> Iterator[LyingEngine]:
    made = LyingEngine(agent.socket)
    yield made
    made.close()


def punch(fd: int, offset: int, size_bytes: int) -> int:
    """fallocate(2); its errno."""
    mode = _FALLOC_PUNCH_HOLE | _FALLOC_KEEP_SIZE
    args = ctypes.c_int64(offset), ctypes.c_int64(size_bytes)
    return ctypes.get_errno() if _libc.fallocate(fd, mode, *args) else 0


def assert_cannot_change(fd: int, size_bytes: int) -> None:
    """Every way to write to a file or to change its size."""
    with pytest.raises(OSError, match=REFUSED):
        mmap.mmap(fd, size_bytes)
    with pytest.raises(OSError, match=REFUSED):
        os.pwrite(fd, b"evil", 0)
    for size in (0, size_bytes // 2, 2 * size_bytes):
        with pytest.raises(OSError, match=REFUSED):
            os.ftruncate(fd, size)
    assert punch(fd, 0, mmap.PAGESIZE) != 0
    read_only = mmap.mmap(fd, size_bytes, prot=mmap.PROT_READ)
    address = ctypes.c_void_p(int(np.frombuffer(read_only, np.uint8).ctypes.data))
    assert _libc.mprotect(address, ctypes.c_size_t(size_bytes), mmap.PROT_READ | mmap.PROT_WRITE) != 0
    read_only.close()


def test_an_engine_cannot_write_to_the_pool_nor_shrink_it(agent: AttackedAgent, liar: LyingEngine) -> None:
    honest = random.Random(1).randbytes(300_000)
    with AgentClient(agent.socket) as client:
        assert client.put(key(1), None, honest) is PutOutcome.STORED
        assert_cannot_change(liar.attached.memory, liar.attached.pool_bytes)
        # As root, too: the file is sealed, and that it is opened again does not matter.
        again = os.open(f"/proc/self/fd/{liar.attached.memory}", os.O_RDONLY)
        assert_cannot_change(again, liar.attached.pool_bytes)
        os.close(again)
        with client.fetch([key(1)], deadline_s=5) as got:
            assert got.views[0] == honest


def test_a_write_region_cannot_be_shrunk_under_the_agent(agent: AttackedAgent, liar: LyingEngine) -> None:
    for size in (0, mmap.PAGESIZE, len(liar.region) * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(liar.attached.region, size)
    lease = liar.reserve(2, 4 * MIB)
    assert punch(liar.attached.region, 0, len(liar.region)) == 0, "holes are allowed, and full of zeros"
    assert liar.commit(lease, 0).status == Status.OK
    with AgentClient(agent.socket) as client, client.fetch([key(2)], deadline_s=5) as got:
        assert got.views[0] == bytes(4 * MIB)
        client.drop([key(2)])


@pytest.mark.parametrize("offset", [1 << 63, (1 << 64) - 1, 16 * MIB, 16 * MIB - 4096, 16 * MIB - 999_999])
def test_a_commit_from_outside_the_region_is_refused(agent: AttackedAgent, liar: LyingEngine, offset: int) -> None:
    lease = liar.reserve(3, MIB)
    assert liar.commit(lease, offset).status == Status.MALFORMED
    with AgentClient(agent.socket) as client:
        assert client.put(key(3), None, b"honest") is PutOutcome.STORED, "the liar's room is given back"
        assert client.drop([key(3)]) == [True]


def test_bytes_that_change_after_the_commit_change_nothing(agent: AttackedAgent, liar: LyingEngine) -> None:
    size_bytes, stop = 4 * MIB, threading.Event()

    def scribble() -> None:
        chooser = random.Random(4)
        while not stop.is_set():
            at = chooser.randrange(size_bytes - 4096)
            liar.region[at : at + 4096] = chooser.randbytes(4096)

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        with AgentClient(agent.socket) as client:
            for number in range(100, 104):
                lease = liar.reserve(number, size_bytes)
                assert liar.commit(lease, 0).status == Status.OK
                with client.fetch([key(number)], deadline_s=5) as got:
                    first = bytes(got.views[0])
                    assert all(got.views[0] == first for _ in range(20)), "what is published stays as it is"
                client.drop([key(number)])
    finally:
        stop.set()
        writer.join()


def test_an_engine_that_is_killed_in_a_commit_leaves_nothing(agent: AttackedAgent) -> None:
    with AgentClient(agent.socket) as client:
        for number in range(200, 210):
            liar = LyingEngine(agent.socket)
            lease = liar.reserve(number, 4 * MIB)
            liar.attached.sock.sendall(messages.pack(Kind.COMMIT, 2, messages.COMMIT.pack(lease, 0)))
            liar.close()
            while client.stats()["pool_bytes{filling}"]:
                pass
        client.drop([key(number) for number in range(200, 210)])


_REOPEN = """
import os, sys
for flags in (os.O_RDWR, os.O_WRONLY):
    try:
        os.open(f"/proc/self/fd/{sys.argv[1]}", flags)
    except PermissionError:
        continue
    sys.exit("opened")
"""


@pytest.mark.root
def test_a_pool_that_is_kept_cannot_be_opened_again_to_write() -> None:
    memory = PoolMemory(MIB, prefault=False, handed_on=True)
    try:
        with pytest.raises(OSError, match=REFUSED):
            mmap.mmap(memory.readers_fd, MIB)
        python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or "python3"
        fd = memory.readers_fd
        tried = subprocess.run([python, "-c", _REOPEN, str(fd)], user=STRANGER, pass_fds=[fd], cwd="/", check=False)
        assert tried.returncode == 0
    finally:
        memory.close()
