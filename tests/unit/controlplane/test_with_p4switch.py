"""The controller, the real switch program in p4switch, and an agent that really sends FILL: a chunk gets into the
switch and comes out of it byte for byte, also after the program was loaded again and the controller restarted."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controlplane.config import parse
from controlplane.core.switch.chunk_states import ChunkState
from controlplane.daemon import Controller
from kvproto.rpc import control_pb2 as rpc
from p4switch.device_config import ProgramSource
from p4switch.recirculation import Recirculation
from p4switch.testing import TestSwitch, memory_switch
from tests.dataplane.frames import ROCE_PORT, Control, Flag, Host, Op, Segment, control_frame, here_frame
from tests.dataplane.frames import parse as parse_frame
from tests.unit.controlplane.fake_agent import CABLES, FakeAgent, agents
from tests.unit.controlplane.helpers import key, record
from tests.unit.controlplane.test_daemon import run

P4 = Path(__file__).resolve().parents[3] / "p4"
SEGMENTS = 4
CHUNK = record("a", size=SEGMENTS * 256)


def segment(number: int) -> Segment:
    return Segment(Host(1), key("a"), number, SEGMENTS, bytes([65 + number]) * 256)


@dataclass(frozen=True, slots=True)
class Kind:
    """A program, how it is built, and what the controller is told of it."""

    source: ProgramSource
    flood_group: int | None
    settings: Mapping[str, object]


V1MODEL = Kind(
    ProgramSource(
        P4 / "v1model" / "kvcast.p4",
        defines={"SLOTS": "64", "SEGMENT_BYTES": "256", "INTEREST": "256", "HEAT_CELLS": "256"},
    ),
    1,
    {"target": "p4switch"},
)
TNA_DEFINES = {"SLOTS": "64", "SEGMENT_BYTES": "256", "INTEREST": "4096", "HEAT_CELLS": "1024"}
TNA_SETTINGS = {"target": "tofino", "orbit_bytes": 64 * 358}
TNA = Kind(
    # Nothing is taken for lost, however slow this machine is.
    ProgramSource(P4 / "tna" / "kvcast.p4", defines=TNA_DEFINES | {"ORBIT_LOST_TICKS": "0x40000000"}),
    0x8000,
    TNA_SETTINGS,
)


@dataclass(slots=True)
class RunningSwitch:
    """A switch of one kind."""

    kind: Kind
    ports: TestSwitch

    @property
    def address(self) -> str:
        return self.ports.address

    def send(self, port: int, frame: bytes) -> None:
        self.ports.send(port, frame)

    def expect(self, port: int) -> bytes:
        return self.ports.expect(port)

    def load_again(self) -> None:
        self.ports.switch.load(self.kind.source)


@contextlib.contextmanager
def running(kind: Kind, **options: Any) -> Iterator[RunningSwitch]:
    source, flood_group = kind.source, kind.flood_group
    with memory_switch(source.path, ports=3, defines=source.defines, flood_group=flood_group, **options) as one:
        yield RunningSwitch(kind, one)


@pytest.fixture(params=[V1MODEL, TNA], ids=["v1model", "tna"])
def switch(request: pytest.FixtureRequest) -> Iterator[RunningSwitch]:
    with running(request.param) as one:
        yield one


@contextlib.asynccontextmanager
async def controller(switch: RunningSwitch) -> AsyncIterator[Controller]:
    target = {"address": switch.address, "reconcile_ms": 50, "reconnect_ms": 20, **switch.kind.settings}
    settings = {
        "membership": {"heartbeat_ms": 10_000},
        "fabric": {"segment_bytes": 256},
        "policy": {"price_fills": False},
    }
    config = parse({"listen": "127.0.0.1:0", "metrics": "", "switch": target} | settings, Path())
    one = Controller(config)
    await one.start()
    CABLES[one.grpc_address] = lambda said, here: switch.send(
        said.switch_port, here_frame(Host(said.switch_port), here)
    )
    try:
        yield one
    finally:
        CABLES.pop(one.grpc_address)
        await one.stop()


class Filler:
    """Does Fill tasks as an agent does: segment by segment, until each is acknowledged."""

    def __init__(self, agent: FakeAgent, switch: RunningSwitch) -> None:
        self._agent, self._switch = agent, switch
        agent.work = self.work
        self.filled = 0

    def work(self, task: rpc.Task) -> rpc.TaskResult:
        assert task.fill.segments == SEGMENTS
        for number in range(SEGMENTS):
            self._switch.send(1, segment(number).fill_frame())
            while (answer := parse_frame(self._switch.expect(1)).control).op != Op.FILL_ACK:
                pass
            assert answer.segment == number
        self.filled += 1
        return rpc.TaskResult(task=task.task, status=rpc.TaskResult.DONE, done=SEGMENTS)


def join(switch: RunningSwitch, port: int) -> None:
    switch.send(port, control_frame(Host(port), Control(Op.JOIN, key("a"), segments=SEGMENTS), Host(1)))


def get(switch: RunningSwitch, port: int) -> list[bytes]:
    """Payloads of the chunk as the switch serves them to one member alone; checks that it is the switch."""
    flags = int(Flag.ONLY_ME)
    join(switch, port)
    switch.send(port, control_frame(Host(port), Control(Op.GET, key("a"), 0, SEGMENTS, SEGMENTS, flags=flags), Host(1)))
    frames: list[bytes] = []
    while len(frames) < SEGMENTS:
        frame = switch.expect(port)
        if parse_frame(frame).dst_port == ROCE_PORT:
            frames.append(frame)
    return sorted(frames, key=lambda frame: parse_frame(frame).segment)  # what circulates comes in any order


async def make_hot_and_wait(switch: RunningSwitch, reader: FakeAgent) -> None:
    await reader.until(lambda: reader.switch.present and key("a") in reader.entries, "the switch and the chunk")
    await reader.until(lambda: members(reader) == 3, "members")
    join(switch, 2)
    join(switch, 3)
    await reader.until(lambda: reader.entries[key("a")].served, "the chunk served")


def members(agent: FakeAgent) -> int:
    """How many nodes the switch has seen where they should be, as far as an agent knows."""
    return sum(node.HasField("member") for node in agent.nodes.values())


def same_udp(frame: bytes, number: int) -> bool:
    """From the UDP header to the ICRC, and the source address that the ICRC covers."""
    sent = segment(number).frame()
    return frame[34:] == sent[34:] and frame[26:34] == sent[26:34]


def test_a_hot_chunk_goes_in_and_comes_out_unchanged(switch: RunningSwitch) -> None:
    async def steps() -> None:
        async with controller(switch) as one, agents(one.grpc_address, [CHUNK], [], []) as (holder, reader, _):
            filler = Filler(holder, switch)
            await make_hot_and_wait(switch, reader)
            assert filler.filled == 1
            frames = get(switch, 2)
            assert all(same_udp(frame, number) for number, frame in enumerate(frames))

    run(steps())


def test_the_program_is_loaded_again_in_mid_service(switch: RunningSwitch) -> None:
    async def steps() -> None:
        async with controller(switch) as one, agents(one.grpc_address, [CHUNK], [], []) as (holder, reader, _):
            filler = Filler(holder, switch)
            await make_hot_and_wait(switch, reader)
            epoch = reader.switch.epoch
            await asyncio.to_thread(switch.load_again)
            await reader.until(lambda: reader.switch.epoch > epoch, "a new epoch")
            await holder.until(lambda: filler.filled == 2, "a second fill")
            await reader.until(lambda: reader.entries[key("a")].served, "the chunk served again")
            await _until_serving(one)
            assert all(same_udp(frame, number) for number, frame in enumerate(get(switch, 2)))

    run(steps())


def test_a_new_controller_takes_the_chunk_over(switch: RunningSwitch) -> None:
    async def steps() -> None:
        async with controller(switch) as old, agents(old.grpc_address, [CHUNK], [], []) as (holder, reader, _):
            Filler(holder, switch)
            await make_hot_and_wait(switch, reader)
        assert all(same_udp(frame, number) for number, frame in enumerate(get(switch, 2))), (
            "served without a controller"
        )
        async with controller(switch) as new, agents(new.grpc_address, [CHUNK], [], []) as (holder, reader, _):
            filler = Filler(holder, switch)
            await reader.until(lambda: key("a") in reader.entries and reader.entries[key("a")].served, "taken over")
            assert filler.filled == 0
            assert all(same_udp(frame, number) for number, frame in enumerate(get(switch, 3)))
            assert new.core.switch_cache.decisions["adopted"] == 1

    run(steps())


def test_what_the_recirculation_queue_loses_is_filled_in_again_and_given_up_where_it_never_fits() -> None:
    """Two frames may wait there and four shall circulate."""

    def ask(switch: RunningSwitch, segment: int) -> None:
        join(switch, 2)
        switch.send(2, control_frame(Host(2), Control(Op.GET, key("a"), segment, SEGMENTS, 1), Host(1)))

    async def steps(switch: RunningSwitch) -> None:
        async with controller(switch) as one, agents(one.grpc_address, [CHUNK], [], []) as (holder, reader, _):
            Filler(holder, switch)
            await make_hot_and_wait(switch, reader)
            cache = one.core.switch_cache
            async with asyncio.timeout(30):
                while cache.decisions["refilled"] + cache.decisions["lost_again"] < 2:
                    for number in range(SEGMENTS):
                        ask(switch, number)
                    await asyncio.sleep(0.02)
            assert cache.decisions["refilled"] >= 1
            assert one.core.accounting.decisions["segments_lost"] >= 2

    kind = Kind(ProgramSource(TNA.source.path, defines=TNA_DEFINES), TNA.flood_group, TNA_SETTINGS)
    narrow = Recirculation(rate_bits=10_000_000, queue_bytes=800)
    with running(kind, recirculation=narrow) as switch:
        run(steps(switch))


@pytest.mark.parametrize("asks", [True, False], ids=["program that asks for it", "program that does not"])
def test_what_nobody_knows_is_flooded_by_a_switch_without_flags(asks: bool, tmp_path: Path) -> None:
    """To all ports where the switch does it by itself, else to those of nodes; before a controller and with one."""
    unknown = bytes.fromhex("ffffffffffff024b560000010806") + bytes(46)

    async def steps(switch: RunningSwitch) -> None:
        if asks:
            switch.send(1, unknown)
            assert [switch.expect(port) for port in (2, 3)] == [unknown] * 2
        async with controller(switch) as one, agents(one.grpc_address, [CHUNK], []) as (holder, _):
            await holder.until(lambda: members(holder) == 2, "members")
            switch.send(1, unknown)
            assert switch.expect(2) == unknown
            if asks:
                assert switch.expect(3) == unknown, "port 3 is no node's"
        switch.send(1, unknown)
        assert switch.expect(2) == unknown, "the controller has gone"

    program = V1MODEL.source.path
    if not asks:
        shutil.copytree(P4, tmp_path / "p4")
        program = tmp_path / "p4" / "v1model" / "kvcast.p4"
        asking = program.read_text()
        program.write_text(asking.replace("@p4switch_flood_group(FLOOD_GROUP)", ""))
        assert program.read_text() != asking
    kind = Kind(ProgramSource(program, defines=V1MODEL.source.defines), None, V1MODEL.settings)
    with running(kind) as switch:
        run(steps(switch))


async def _until_serving(one: Controller) -> None:
    async with asyncio.timeout(15):
        while one.core.switch_cache.state(key("a")) is not ChunkState.SERVING:
            await asyncio.sleep(0.005)
