"""How daemons say that they are ready: a line, a file, sd_notify(3)."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import socket
from pathlib import Path

import pytest

from kvdaemon.errors import CannotRunError
from kvdaemon.files import replace_file
from kvdaemon.notify import NOTIFY_VARIABLE, notify_ready, ready, spare_collections, tell_alive


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_whoever_asked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    name = f"kvcast-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}" if abstract else name)
        listener.settimeout(5)
        monkeypatch.setenv(NOTIFY_VARIABLE, f"@{name}" if abstract else name)
        notify_ready()
        assert listener.recv(100) == b"READY=1"


def test_nobody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NOTIFY_VARIABLE, raising=False)
    notify_ready()


def test_who_asked_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(NOTIFY_VARIABLE, str(tmp_path / "nobody"))
    with caplog.at_level(logging.WARNING):
        notify_ready()
    assert "cannot notify" in caplog.text


def test_what_the_start_made_is_not_visited_by_collections() -> None:
    gc.unfreeze()
    try:
        spare_collections()
        assert gc.get_freeze_count() > 10_000, "modules, classes and functions of this very process"
    finally:
        gc.unfreeze()


def test_the_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    (tmp_path / f".ready.{os.getpid()}").write_bytes(b"of one that was killed")
    for content in (b"7", b"8"):
        replace_file(path, content, 0o600)
        assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "none" / "ready", b"")


def test_ready_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(NOTIFY_VARIABLE, raising=False)
    path = tmp_path / "ready"
    with ready("daemon", {"http": "127.0.0.1:1", "metrics": ""}, path):
        assert json.loads(path.read_text()) == {"pid": os.getpid(), "http": "127.0.0.1:1", "metrics": ""}
        assert capsys.readouterr().out == "daemon ready http=127.0.0.1:1 metrics=off\n"
    assert not path.exists()
    with ready("daemon", {}, None):
        assert not path.exists()


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ready"
    path.mkdir()
    with (
        pytest.raises(CannotRunError, match=rf"^cannot write ready_file {path}: Is a directory$"),
        ready("x", {}, path),
    ):
        pass
    assert list(tmp_path.iterdir()) == [path]
    assert capsys.readouterr().out == ""


def test_the_watchdog_hears_that_the_loop_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_PID", raising=False)

    async def heard(listener: socket.socket, count: int) -> list[bytes]:
        loop = asyncio.get_running_loop()
        telling = asyncio.create_task(tell_alive())
        found = [await loop.sock_recv(listener, 100) for _ in range(count)]
        telling.cancel()
        return found

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        monkeypatch.setenv(NOTIFY_VARIABLE, str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "2000")
        assert asyncio.run(asyncio.wait_for(heard(listener, 3), 20)) == [b"WATCHDOG=1"] * 3
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + 1))
        asyncio.run(tell_alive())
        monkeypatch.delenv("WATCHDOG_PID")
        monkeypatch.delenv("WATCHDOG_USEC")
        asyncio.run(tell_alive())
        with pytest.raises(BlockingIOError):
            listener.recv(100)
