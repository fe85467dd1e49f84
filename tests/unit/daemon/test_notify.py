"""Messages to the service manager, and the files that it keeps for the next start."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvdaemon.notify import NOTIFY_VARIABLE, forget_file, is_listened_to, keep_file, kept_files

START = """
import json, os, sys
for place, descriptor in enumerate(map(int, sys.argv[1].split(","))):
    os.dup2(descriptor, 3 + place, inheritable=True)
os.environ.update(json.loads(sys.argv[2]))
if os.environ["LISTEN_PID"] == "self":
    os.environ["LISTEN_PID"] = str(os.getpid())
from kvdaemon.notify import kept_files
kept = kept_files()
print(json.dumps({
    "kept": {name: os.pread(descriptor, 10, 0).decode() for name, descriptor in kept.items()},
    "inherited": [name for name, descriptor in kept.items() if os.get_inheritable(descriptor)],
    "left": sorted(name for name in os.environ if name.startswith("LISTEN_")),
    "again": kept_files(),
}))
"""


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(5)
        monkeypatch.setenv(NOTIFY_VARIABLE, str(tmp_path / "notify"))
        yield made


def test_a_file_is_handed_over(listener: socket.socket, tmp_path: Path) -> None:
    assert is_listened_to()
    with (tmp_path / "file").open("wb+") as file:
        file.write(b"content")
        file.flush()
        keep_file("pool", file.fileno())
    message, descriptors, _, _ = socket.recv_fds(listener, 100, 2)
    assert message == b"FDSTORE=1\nFDNAME=pool"
    (descriptor,) = descriptors
    assert os.pread(descriptor, 10, 0) == b"content"
    os.close(descriptor)
    forget_file("pool")
    assert listener.recv(100) == b"FDSTOREREMOVE=1\nFDNAME=pool"


def start(tmp_path: Path, **variables: str) -> dict[str, object]:
    """What a process started with these variables, and two files from 3 on, finds."""
    descriptors = []
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        descriptors.append(os.open(tmp_path / name, os.O_RDONLY))
    # They may be 3 and 4 here already: high numbers do not get in each other's way.
    high = [os.dup2(descriptor, 100 + place) for place, descriptor in enumerate(descriptors)]
    try:
        words = [",".join(map(str, high)), json.dumps(variables)]
        argv = [sys.executable, "-c", START, *words]
        done = subprocess.run(argv, pass_fds=high, capture_output=True, text=True, check=True)
    finally:
        for descriptor in {*descriptors, *high}:
            os.close(descriptor)
    found: dict[str, object] = json.loads(done.stdout)
    assert found["left"] == []
    assert found["inherited"] == []
    assert found["again"] == {}
    return found


def test_files_come_back_by_name(tmp_path: Path) -> None:
    found = start(tmp_path, LISTEN_PID="self", LISTEN_FDS="2", LISTEN_FDNAMES="pool:index")
    assert found["kept"] == {"pool": "one", "index": "two"}


def test_of_two_files_of_one_name_the_later_counts(tmp_path: Path) -> None:
    assert start(tmp_path, LISTEN_PID="self", LISTEN_FDS="2", LISTEN_FDNAMES="pool:pool")["kept"] == {"pool": "two"}


@pytest.mark.parametrize("variables", [{"LISTEN_PID": "1"}, {"LISTEN_FDS": "many"}], ids=["another's", "nonsense"])
def test_what_is_not_for_this_process_is_left_alone(tmp_path: Path, variables: dict[str, str]) -> None:
    told = {"LISTEN_PID": "self", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "pool:index", **variables}
    assert start(tmp_path, **told)["kept"] == {}


def test_without_a_service_manager_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NOTIFY_VARIABLE, raising=False)
    assert not is_listened_to()
    assert kept_files() == {}
    keep_file("pool", 0)
