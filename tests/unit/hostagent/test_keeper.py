"""`kvcast keeper`: where no service manager keeps an agent's pool, it does."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostagent.memory.holders import Keeper
from kvclient.client import AgentClient, PutOutcome
from kvdaemon.file_keeper import FILES_MAX, MESSAGE_BYTES_MAX, receive, send
from tests.unit.hostagent.agent_harness import key
from tests.unit.hostagent.service_manager import DEADLINE_S, ROOT, ServiceManager
from tests.unit.hostagent.test_pool_keeping import configure, content, until_taken_over

CHUNKS = 20


class Process:
    """A daemon, ready when it says so on standard output."""

    def __init__(self, *argv: str) -> None:
        self._argv = [sys.executable, "-m", *argv]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], DEADLINE_S)
        if not readable or " ready" not in self._process.stdout.readline():
            raise AssertionError(f"it is not ready: {self.end()}")

    def until_says(self, words: str) -> None:
        """Wait until this is in its log."""
        assert self._process is not None
        assert self._process.stderr is not None
        while words not in (line := self._process.stderr.readline()):
            assert line, f"it ended without {words!r}"

    def end(self, number: signal.Signals = signal.SIGKILL) -> str:
        """Its log."""
        assert self._process is not None
        self._process.send_signal(number)
        _, log = self._process.communicate(timeout=DEADLINE_S)
        self._process = None
        return log

    def close(self) -> None:
        if self._process is not None:
            self.end()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvcast-") as made:
        yield Path(made)


@pytest.fixture
def keeper(folder: Path) -> Iterator[Process]:
    made = Process("kvcast.cli", "keeper", "--socket", str(folder / "keeper.sock"))
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def agent(folder: Path) -> Iterator[Process]:
    config = configure(folder, f"{{size: 16MiB, keeper: {folder}/keeper.sock}}")
    made = Process("hostagent", "--config", str(config))
    try:
        yield made
    finally:
        made.close()


def fill(folder: Path) -> None:
    with AgentClient(folder / "agent.sock") as client:
        for number in range(CHUNKS):
            assert client.put(key(number), None, content(number)) is PutOutcome.STORED


def found(folder: Path) -> int:
    """How many chunks are served, all right."""
    with AgentClient(folder / "agent.sock") as client:
        until_taken_over(client)
        with client.fetch([key(number) for number in range(CHUNKS)], deadline_s=5) as got:
            assert [bytes(view) for view in got.views] == [content(number) for number in range(got.count)]
            return got.count


def test_a_pool_outlives_its_agent(folder: Path, keeper: Process, agent: Process) -> None:
    agent.start()
    fill(folder)
    for end in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        agent.end(end)
        agent.start()
        assert found(folder) == CHUNKS
    assert f"the pool of the agent before is taken over: {CHUNKS} chunks" in agent.end()


def test_a_keeper_that_starts_again_is_given_the_pool_again(folder: Path, keeper: Process, agent: Process) -> None:
    agent.start()
    fill(folder)
    for end in (signal.SIGKILL, signal.SIGTERM):
        keeper.end(end)
        agent.until_says("the keeper is gone")
        keeper.start()
        agent.until_says("a keeper has the pool")
        keeper.until_says("keeps kvcast-index")
        agent.end()
        agent.start()
        assert found(folder) == CHUNKS


def test_a_keeper_that_comes_later_is_given_the_pool(folder: Path, keeper: Process, agent: Process) -> None:
    keeper.end(signal.SIGTERM)
    agent.start()
    fill(folder)
    keeper.start()
    keeper.until_says("keeps kvcast-index")
    agent.end()
    agent.start()
    assert found(folder) == CHUNKS


def test_two_agents_never_have_one_pool(folder: Path, keeper: Process, agent: Process) -> None:
    agent.start()
    fill(folder)
    second = folder / "second"
    second.mkdir()
    other = Process("hostagent", "--config", str(configure(second, f"{{size: 16MiB, keeper: {folder}/keeper.sock}}")))
    with pytest.raises(AssertionError, match="another process has them"):
        other.start()
    other.close()
    assert found(folder) == CHUNKS


def test_a_pool_of_another_size_is_given_back(folder: Path, keeper: Process, agent: Process) -> None:
    agent.start()
    fill(folder)
    agent.end()
    configure(folder, f"{{size: 8MiB, keeper: {folder}/keeper.sock}}")
    agent.start()
    assert found(folder) == 0
    assert "it has 16 MiB, pool.size is 8 MiB" in agent.end()
    log = keeper.end(signal.SIGTERM)
    assert log.count("keeps kvcast-pool of 16777216 bytes") == 1
    assert log.count("keeps kvcast-pool of 8388608 bytes") == 1
    assert not (folder / "keeper.sock").exists()


def test_a_service_manager_lets_go_of_the_pool_where_a_keeper_is_to_have_it(folder: Path, keeper: Process) -> None:
    manager = ServiceManager(folder, configure(folder))
    try:
        manager.start()
        assert sorted(manager.store) == ["kvcast-index", "kvcast-pool"]
        manager.end()
        configure(folder, f"{{size: 16MiB, keeper: {folder}/keeper.sock}}")
        manager.start()
        assert manager.store == {}
    finally:
        manager.close()


def connected(folder: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.settimeout(DEADLINE_S)
    link.connect(str(folder / "keeper.sock"))
    return link


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (b"nonsense", b"REFUSED=a file needs a name"),
        (b"FDSTORE=1\nFDNAME=a", b"REFUSED=0 files came, not one"),
        (b"FDSTORE=1\nFDNAME=a:b", b"REFUSED=a file needs a name"),
        (b"FDNAME=a", b"REFUSED=nothing that is known was asked"),
        (b"\xff\xfe", b"REFUSED=a file needs a name"),
        (b"FDFETCH=1", b"FDNAMES="),
        (b"x" * (MESSAGE_BYTES_MAX + 1), b""),
    ],
)
def test_what_makes_no_sense_is_refused_and_the_keeper_goes_on(
    folder: Path, keeper: Process, message: bytes, answer: bytes
) -> None:
    with connected(folder) as link:
        link.send(message)
        assert receive(link)[0] == answer
    with connected(folder) as link:
        send(link, "FDFETCH=1")
        assert receive(link)[0] == b"FDNAMES="


def test_it_keeps_so_many_files_and_no_more(folder: Path, keeper: Process) -> None:
    with connected(folder) as link, (folder / "file").open("w+") as file:
        for number in range(FILES_MAX + 1):
            send(link, f"FDSTORE=1\nFDNAME=f{number}", {"": file.fileno()})
            kept = receive(link)[0] == b"DONE=1"
            assert kept is (number < FILES_MAX)
        send(link, "FDSTORE=1\nFDNAME=f0", {"": file.fileno()})
        assert receive(link)[0] == b"DONE=1", "one of the same name takes no room"


def test_two_keepers_at_one_place_are_one_too_many(folder: Path, keeper: Process) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "kvcast.cli", "keeper", "--socket", str(folder / "keeper.sock")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (second.returncode, second.stderr) == (
        1,
        f"kvcast keeper: {folder}/keeper.sock: another keeper listens there\n",
    )
    with connected(folder) as link:
        send(link, "FDFETCH=1")
        assert receive(link)[0] == b"FDNAMES="


STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid(4751); os.setuid(4751)
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    link.connect(sys.argv[1])
    link.send(b"FDFETCH=1")
    print(link.recv(100))
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize(("mode", "said"), [(0o600, "Permission denied"), (0o666, "b''")], ids=["as it is", "opened"])
def test_a_process_of_another_user_gets_nothing(folder: Path, keeper: Process, mode: int, said: str) -> None:
    folder.chmod(0o755)
    (folder / "keeper.sock").chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, str(folder / "keeper.sock")], capture_output=True, text=True, check=True
    )
    # It hangs up, before or after it was asked.
    assert done.stdout.strip() in (said, *(("Connection reset by peer", "Broken pipe") if mode == 0o666 else ()))


def test_an_agent_takes_no_pool_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as foreign:
        foreign.bind(str(folder / "keeper.sock"))
        foreign.listen()
        monkeypatch.setattr(os, "geteuid", lambda: 4750)
        monkeypatch.setattr("kvdaemon.file_keeper._CREDENTIALS", Credentials(4751))
        with pytest.raises(OSError, match="a keeper of another user listens there"):
            Keeper(str(folder / "keeper.sock")).fetch()


class Credentials:
    """As the kernel would say them of a process of this user."""

    size = 12

    def __init__(self, user: int) -> None:
        self._user = user

    def unpack(self, _: bytes) -> tuple[int, int, int]:
        return 1, self._user, 1
