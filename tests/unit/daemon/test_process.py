"""A daemon as a process: what ends it, its exit status, the one line for what cannot be."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvdaemon.errors import CannotRunError, ConfigError
from kvdaemon.process import run_daemon


def load(path: Path) -> str:
    text = path.read_text()
    if text == "bad":
        raise ConfigError(f"{path}: bad")
    return text


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "daemon.yaml"
    path.write_text("good")
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_runs_until_it_is_told_to_stop(config: Path, number: signal.Signals) -> None:
    ran: list[str] = []

    async def run(text: str, stop: asyncio.Event) -> None:
        ran.append(text)
        os.kill(os.getpid(), number)
        await stop.wait()

    assert run_daemon("daemon", "", load, run, ["--config", str(config)]) == 0
    assert ran == ["good"]


@pytest.fixture
def hangups() -> Iterator[None]:
    """A hangup has its ordinary meaning here and in what is started, also where the tests run under nohup(1)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("in_terminal", [False, True])
def test_a_hangup_ends_only_what_a_person_runs_in_a_terminal(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, in_terminal: bool
) -> None:
    monkeypatch.setattr("kvdaemon.process.is_in_terminal", lambda: in_terminal)
    ends: list[bool] = []

    async def run(text: str, stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        while not caplog.messages:
            await asyncio.sleep(0)
        ends.append(stop.is_set())
        stop.set()

    with caplog.at_level("INFO"):
        assert run_daemon("daemon", "", load, run, ["--config", str(config)]) == 0
    assert ends == [in_terminal]
    assert "SIGHUP" in caplog.messages[0]


def test_nohup_is_honoured(config: Path) -> None:
    async def run(text: str, stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_daemon("daemon", "", load, run, ["--config", str(config)]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_cannot_be_is_one_line_and_a_status(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def run(text: str, stop: asyncio.Event) -> None:
        raise CannotRunError("cannot listen")

    words = ["--config", str(config)]
    assert run_daemon("daemon", "", load, run, [*words, "--check"]) == 0
    assert capsys.readouterr() == (f"{config}: good\n", "")
    assert run_daemon("daemon", "", load, run, words) == 1
    assert capsys.readouterr() == ("", "daemon: cannot listen\n")
    config.write_text("bad")
    for more in ([], ["--check"]):
        assert run_daemon("daemon", "", load, run, [*words, *more]) == 2
        assert capsys.readouterr() == ("", f"daemon: {config}: bad\n")
    with pytest.raises(SystemExit, match=r"^2$"):
        run_daemon("daemon", "", load, run, [])


def test_a_bug_is_not_taken_for_a_reason(config: Path) -> None:
    async def run(text: str, stop: asyncio.Event) -> None:
        raise OSError("nobody expected this")

    with pytest.raises(OSError, match="nobody expected this"):
        run_daemon("daemon", "", load, run, ["--config", str(config)])
