"""Health pages, the log and the switch's deadlines of the running controller."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controlplane.config import parse
from controlplane.daemon import Controller
from tests.contracts.switch_target.memory_target import MemorySwitch, MemoryTarget
from tests.unit.controlplane.fake_agent import DEADLINE_S, agents
from tests.unit.controlplane.test_daemon import PREFIX, QUICK, controller, eventually, run, started
from tests.unit.controlplane.test_with_p4switch import V1MODEL, running


async def page(one: Controller, path: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{one.metrics_address}{path}", timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    return await asyncio.to_thread(get)


class Freezer:
    """Between a controller and its switch: passes bytes on until it is frozen, as a switch that hangs does."""

    def __init__(self, address: str) -> None:
        self._target = address.rpartition(":")
        self.running = asyncio.Event()
        self.running.set()
        self.address = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Freezer]:
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection(self._target[0], int(self._target[2]))
            both = [asyncio.create_task(self._pass(reader, back)), asyncio.create_task(self._pass(there, writer))]
            tasks.update(both)
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for one in (writer, back):
                one.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        try:
            yield self
        finally:
            self.running.set()
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while some := await reader.read(1 << 16):
                await self.running.wait()
                writer.write(some)
                await writer.drain()


def test_a_leader_is_ready_and_a_standby_is_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "controlplane")

    async def steps() -> None:
        switch = MemorySwitch()
        async with controller(switch) as leader, agents(leader.grpc_address, PREFIX) as (agent,):
            await agent.until(lambda: agent.switch.present, "the switch")
            assert await page(leader, "/readyz") == (200, "ok\n")
            standby = Controller(parse(QUICK, Path()), MemoryTarget(switch, election_id=5))
            await standby.start()
            try:
                assert await page(standby, "/livez") == (200, "ok\n")
                assert await page(standby, "/readyz") == (503, f"{standby.standby_words()}\n")
                assert json.loads((await page(standby, "/healthz"))[1])["status"] == "standby"
            finally:
                await standby.stop()

    run(steps())
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert "this controller leads: it is the switch's primary" in said
    assert "this controller is on standby: another one is the switch's primary" in said
    assert "node n1 is attached: index 0, no member" in said
    assert "node n1 was seen on the data network: index 0, member 0 at switch port 1" in said
    assert any(line.startswith("the switch is programmed: epoch ") for line in said)


def test_a_switch_that_hangs_is_noticed_and_one_that_goes_on_is_taken_back() -> None:
    async def steps() -> None:
        with running(V1MODEL) as switch:
            async with Freezer(switch.address).serving() as between:
                target = {"address": between.address, "reconcile_ms": 50, "reconnect_ms": 20, "answer_ms": 300}
                settings = QUICK | {"switch": {"target": "p4switch", **target}, "fabric": {"segment_bytes": 256}}
                one = Controller(parse(settings, Path()))
                await one.start()
                try:
                    await eventually(lambda: not one.health().missing, "ready")
                    between.running.clear()
                    await eventually(lambda: one.health().missing, "the switch hangs")
                    status, why = await page(one, "/readyz")
                    assert status == 503
                    assert between.address in why
                    assert json.loads((await page(one, "/healthz"))[1])["status"] == "degraded"
                    between.running.set()
                    await eventually(lambda: not one.health().missing, "ready again")
                finally:
                    await one.stop()

    run(steps())


def test_metrics_have_the_build_and_no_second_series() -> None:
    async def steps() -> None:
        async with controller() as one:
            _, text = await page(one, "/metrics")
            assert 'kvcast_build_info{component="controller"' in text
            assert "_created" not in text

    run(steps())


def test_the_log_is_json_on_request_and_signals_change_its_level(tmp_path: Path) -> None:
    process = started(tmp_path, "listen: 127.0.0.1:0\nmetrics: ''\nlog_format: json\nlog_level: warning\n")
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        for number, level in ((signal.SIGUSR1, "debug"), (signal.SIGUSR2, "warning")):
            process.send_signal(number)
            while "level is" not in (line := json.loads(process.stderr.readline()))["message"]:
                pass
            assert line["message"] == f"the log's level is {level} now"
            assert line.keys() == {"time", "level", "logger", "message"}
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
