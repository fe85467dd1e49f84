"""The contract of `controlplane.core.switch.target.SwitchTarget`, on every implementation that this machine can run."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from controlplane.core.ids import GroupId, Slot, SwitchPort
from controlplane.core.locations import Location
from controlplane.core.switch.entries import (
    AddressEntry,
    Bitmap,
    CloneSessionEntry,
    EgressMemberEntry,
    Entry,
    FillingEntry,
    ForeignEntry,
    GroupEntry,
    PortMemberEntry,
    ReplicateByBitmapEntry,
    ReplicateToGroupEntry,
    ReplicateToPortEntry,
    Report,
    Request,
    RequestLimitEntry,
    SaltEntry,
    SegmentLimitEntry,
    ServingEntry,
    SourceEntry,
    StationEntry,
    SubscriptionEntry,
    TakenAddressEntry,
    contents,
)
from controlplane.core.switch.programmer import difference
from controlplane.core.switch.target import (
    Down,
    HeatReport,
    LostReport,
    Operation,
    Sighting,
    Standby,
    SwitchEvent,
    SwitchFacts,
    SwitchTarget,
    SwitchUnavailableError,
    Up,
    Update,
)
from controlplane.p4runtime.codec import V1ModelCodec
from controlplane.p4runtime.p4runtime_target import P4RuntimeOptions, P4RuntimeTarget
from controlplane.p4runtime.tofino import OrbitOptions, TofinoCodec
from p4switch.device_config import ProgramSource
from p4switch.testing import memory_switch
from tests.contracts.switch_target.memory_target import MemorySwitch, MemoryTarget
from tests.dataplane.frames import Host, Op, here_frame
from tests.dataplane.targets import Bmv2Target, Namespace, run, stop, wait_for
from tests.unit.controlplane.helpers import FABRIC, key

P4 = Path(__file__).resolve().parents[3] / "p4"
DEADLINE_S = 20.0


ONE, TWO = SwitchPort(1), SwitchPort(2)
ORBIT = OrbitOptions(bytes_max=64 * (256 + 102), segment_bytes=256)
PLACES = [Location(port, bytes([2, 0x4B, 0x56, 0, 0, port]), bytes([10, 75, 0, port])) for port in (ONE, TWO)]
SOURCES: list[Entry] = [SourceEntry(place.port, place.mac, place.ip) for place in PLACES]
_COMMON_KINDS: list[Entry] = [
    SubscriptionEntry(Report.HEAT),
    SubscriptionEntry(Report.SIGHTING),
    *SOURCES,
    StationEntry(PLACES[0].mac, ONE),
    TakenAddressEntry(PLACES[0].ip),
    GroupEntry(GroupId(0x103), (ONE, TWO)),
    PortMemberEntry(ONE, 0),
    PortMemberEntry(TWO, 63),
    EgressMemberEntry(ONE, 0),
    EgressMemberEntry(TWO, 63),
    RequestLimitEntry(TWO, Request.JOIN, 4096, 1024),
    RequestLimitEntry(TWO, Request.GET, 740_000, 74_000),
    SegmentLimitEntry(63, 5_926_000, 592_600),
    AddressEntry(bytes([2, 0x4B, 0x56, 0, 0, 1]), ONE),
    ReplicateToGroupEntry((1 << 63) | 1, GroupId(0x103)),
    SaltEntry(bytes(range(32))),
    FABRIC.entry,
    FillingEntry(key("a"), Slot(0), 8, ONE),
    ServingEntry(key("b"), Slot(8), 8),
]
V1MODEL_KINDS: list[Entry] = [CloneSessionEntry(500, ONE), *_COMMON_KINDS, ReplicateToPortEntry(1, ONE)]
TOFINO_KINDS: list[Entry] = [
    SubscriptionEntry(Report.LOSS),
    CloneSessionEntry(500, ORBIT.recirculation_port, 86, 1),
    *_COMMON_KINDS,
    ReplicateByBitmapEntry(Bitmap.TWO),
]


class Bench(Protocol):
    """One kind of switch, and what a test can do to it."""

    facts: SwitchFacts
    every_kind: list[Entry]
    """One entry at least of each kind that its program has."""

    def target(self, election_id: int = 10) -> SwitchTarget: ...
    def reload(self) -> bool:
        """Start the program afresh: nothing is left of what was written. True if that ends sessions."""

    def make_hot(self) -> None:
        """Have members 0 and 1 (ports 1 and 2) wait for chunk `hot`."""

    def say_here(self) -> None:
        """Have the node at port 1 say HERE with the key `me`."""


class OrbitBench(Bench, Protocol):
    """A switch whose cached segments circulate."""

    def ask_for_what_is_lost(self) -> None:
        """Have member 0 (port 1) ask for segment 3 of chunk `hot`, which does not circulate."""


class MemoryBench:
    def __init__(self, recirculation_port: SwitchPort | None = None) -> None:
        self.switch = MemorySwitch(recirculation_port=recirculation_port)
        self.facts = self.switch.facts
        self.every_kind = V1MODEL_KINDS if recirculation_port is None else TOFINO_KINDS

    def target(self, election_id: int = 10) -> SwitchTarget:
        return MemoryTarget(self.switch, election_id)

    def reload(self) -> bool:
        self.switch.reload()
        return False

    def make_hot(self) -> None:
        self.switch.report(key("hot"), 0b11)

    def say_here(self) -> None:
        self.switch.here(key("me"), PLACES[0])

    def ask_for_what_is_lost(self) -> None:
        self.switch.lose(key("hot"), 3)


class P4SwitchBench:
    """p4switch with ports in memory and the real program."""

    program = P4 / "v1model" / "kvcast.p4"
    defines: Mapping[str, str] = {"SLOTS": "64", "SEGMENT_BYTES": "256", "INTEREST": "256", "HEAT_CELLS": "256"}
    codec = V1ModelCodec()

    def __init__(self, close: contextlib.ExitStack) -> None:
        self.facts = SwitchFacts(64, 256, asks_to_flood=True, casts_fills=True)
        self.every_kind = V1MODEL_KINDS
        self._switch = close.enter_context(memory_switch(self.program, ports=3, defines=self.defines))

    def target(self, election_id: int = 10) -> SwitchTarget:
        options = P4RuntimeOptions(self._switch.address, election_id=election_id, reconnect_s=0.01)
        return P4RuntimeTarget(options, self.codec)

    def reload(self) -> bool:
        self._switch.switch.load(ProgramSource(self.program, defines=self.defines))
        return False

    def make_hot(self) -> None:
        for port in (1, 2):
            self._switch.send(port, _join(port))

    def say_here(self) -> None:
        self._switch.send(1, here_frame(Host(1), key("me")))


class TnaBench(P4SwitchBench):
    """p4switch with the program for Tofino, its recirculation port inside."""

    program = P4 / "tna" / "kvcast.p4"
    defines: Mapping[str, str] = {"SLOTS": "256", "SEGMENT_BYTES": "256", "INTEREST": "4096", "HEAT_CELLS": "1024"}
    codec = TofinoCodec(ORBIT)

    def __init__(self, close: contextlib.ExitStack) -> None:
        super().__init__(close)
        self.facts = SwitchFacts(64, 256, ORBIT.recirculation_port, asks_to_flood=True, casts_fills=True)
        self.every_kind = TOFINO_KINDS

    def ask_for_what_is_lost(self) -> None:
        self._switch.send(1, _control(Op.JOIN, 1))
        self._switch.send(1, _control(Op.GET, 1, segment=3, count=1))


class Bmv2Bench:
    """simple_switch_grpc between veth pairs in a namespace, the program as p4c compiles it."""

    def __init__(self, compiled: Path, folder: Path, close: contextlib.ExitStack) -> None:
        self._p4info, self._program = compiled / "kvcast.p4info.txtpb", compiled / "kvcast.json"
        self.facts = SwitchFacts(64, 256, asks_to_flood=True, casts_fills=True)
        self.every_kind = V1MODEL_KINDS
        self._folder = folder
        self._namespace = Namespace((1, 2, 3))
        close.callback(self._namespace.close)
        close.callback(lambda: stop(self._process))
        self._start()

    def target(self, election_id: int = 10) -> SwitchTarget:
        address = f"unix:{self._folder}/p4runtime.sock"
        options = P4RuntimeOptions(address, 1, election_id, self._p4info, self._program, reconnect_s=0.05)
        return P4RuntimeTarget(options, V1ModelCodec())

    def reload(self) -> bool:
        stop(self._process)
        self._start()
        return True

    def make_hot(self) -> None:
        for port in (1, 2):
            self._namespace.sockets[port].send(_join(port))

    def say_here(self) -> None:
        self._namespace.sockets[1].send(here_frame(Host(1), key("me")))

    def _start(self) -> None:
        listener, log = self._folder / "p4runtime.sock", self._folder / "bmv2.log"
        listener.unlink(missing_ok=True)
        interfaces = [word for port in (1, 2, 3) for word in ("-i", f"{port}@s{port}")]
        command = ["ip", "netns", "exec", self._namespace.name]
        command += ["simple_switch_grpc", "--no-p4", "-L", "off", "--device-id", "1", *interfaces]
        command += ["--", "--grpc-server-addr", f"unix:{listener}"]
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        wait_for(listener, self._process, log)


@pytest.fixture(scope="session")
def compiled_by_p4c(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the program for bmv2."""
    missing = Bmv2Target.missing()
    if missing is not None:
        pytest.skip(f"bmv2: {missing.reason}")
    folder = tmp_path_factory.mktemp("p4c")
    defines = ["-DSLOTS=64", "-DSEGMENT_BYTES=256", "-DINTEREST=256", "-DHEAT_CELLS=256"]
    files = ["--p4runtime-files", f"{folder}/kvcast.p4info.txtpb", "-o", f"{folder}/kvcast.json"]
    run("p4c-bm2-ss", "--arch", "v1model", *defines, *files, str(P4SwitchBench.program))
    return folder


def _join(port: int) -> bytes:
    return _control(Op.JOIN, port)


def _control(op: Op, port: int, segment: int = 0, count: int = 0) -> bytes:
    """A control datagram about chunk `hot` of 8 segments from a node to the third one."""
    control = struct.pack("!BBBBHHII16sQ", 1, op, 0, 0, count, 0, segment, 8, key("hot"), 0)
    udp = struct.pack("!HHHH", 4793, 4793, 8 + len(control), 0) + control
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, 17, 0)
    ip = header + bytes([10, 75, 0, port, 10, 75, 0, 3])
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + ip[12:]
    return bytes([2, 0x4B, 0x56, 0, 0, 3, 2, 0x4B, 0x56, 0, 0, port, 8, 0]) + ip + udp


@pytest.fixture(
    params=[
        "memory",
        "memory-tofino",
        "p4switch",
        "tna",
        pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.root]),
    ],
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with contextlib.ExitStack() as close:
        if request.param == "memory":
            yield MemoryBench()
        elif request.param == "memory-tofino":
            yield MemoryBench(ORBIT.recirculation_port)
        elif request.param == "p4switch":
            yield P4SwitchBench(close)
        elif request.param == "tna":
            yield TnaBench(close)
        else:
            yield Bmv2Bench(request.getfixturevalue("compiled_by_p4c"), tmp_path, close)


@pytest.fixture(params=["memory-tofino", "tna"])
def orbit_bench(request: pytest.FixtureRequest) -> Iterator[OrbitBench]:
    """Those whose segments circulate."""
    with contextlib.ExitStack() as close:
        yield MemoryBench(ORBIT.recirculation_port) if request.param == "memory-tofino" else TnaBench(close)


class Session:
    """A target that runs, and what it told."""

    def __init__(self, target: SwitchTarget) -> None:
        self.target = target
        self._events: asyncio.Queue[SwitchEvent] = asyncio.Queue()
        self._run = asyncio.create_task(target.run(self._events.put_nowait))

    async def event(self) -> SwitchEvent:
        return await asyncio.wait_for(self._events.get(), DEADLINE_S)

    async def end(self) -> None:
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)

    async def write(self, operation: Operation, *entries: Entry) -> dict[int, str]:
        return await self.target.write([Update(operation, entry) for entry in entries])


@contextlib.asynccontextmanager
async def session(bench: Bench, election_id: int = 10) -> AsyncIterator[Session]:
    one = Session(bench.target(election_id))
    try:
        yield one
    finally:
        await one.end()


def scenario(steps: Callable[[Bench], Coroutine[None, None, None]]) -> Callable[[Bench], None]:
    """Run a coroutine as a test."""

    def test(bench: Bench) -> None:
        asyncio.run(asyncio.wait_for(steps(bench), 3 * DEADLINE_S))

    test.__name__, test.__doc__ = steps.__name__, steps.__doc__
    return test


@scenario
async def test_up_tells_the_sizes_of_the_program(bench: Bench) -> None:
    async with session(bench) as one:
        assert await one.event() == Up(bench.facts)
        assert await one.target.read() == {}


@scenario
async def test_what_is_written_is_read(bench: Bench) -> None:
    async with session(bench) as one:
        await one.event()
        assert await one.write(Operation.INSERT, *bench.every_kind) == {}
        assert await one.target.read() == contents(*bench.every_kind)
        changed = [
            ServingEntry(key("a"), Slot(0), 8),
            GroupEntry(GroupId(0x103), (TWO,)),
            ReplicateToGroupEntry((1 << 63) | 1, GroupId(0x104)),
            replace(FABRIC.entry, interest_ttl_us=750_000, heat_window_us=20_000),
        ]
        assert await one.write(Operation.MODIFY, *changed) == {}
        expected = contents(*bench.every_kind) | contents(*changed)
        assert await one.target.read() == expected
        assert difference(await one.target.read(), expected) == []
        assert await one.write(Operation.DELETE, *reversed(expected.values())) == {}
        assert await one.target.read() == {}


@scenario
async def test_a_refused_update_does_not_hinder_the_others(bench: Bench) -> None:
    async with session(bench) as one:
        await one.event()
        entry = ServingEntry(key("a"), Slot(0), 8)
        refused = await one.target.write(
            [
                Update(Operation.INSERT, entry),
                Update(Operation.INSERT, FillingEntry(key("a"), Slot(8), 8, ONE)),
                Update(Operation.INSERT, AddressEntry(bytes(6), ONE)),
                Update(Operation.MODIFY, ServingEntry(key("never"), Slot(0), 8)),
                Update(Operation.DELETE, PortMemberEntry(ONE, 0)),
                Update(Operation.INSERT, PortMemberEntry(TWO, 1)),
            ]
        )
        assert set(refused) == {1, 3, 4}
        assert "ALREADY_EXISTS" in refused[1]
        assert "NOT_FOUND" in refused[3]
        assert await one.target.read() == contents(entry, AddressEntry(bytes(6), ONE), PortMemberEntry(TWO, 1))


@scenario
async def test_without_a_session_calls_fail_at_once(bench: Bench) -> None:
    target = bench.target()
    with pytest.raises(SwitchUnavailableError):
        await target.read()
    async with session(bench) as one:
        await one.event()
        target = one.target
    with pytest.raises(SwitchUnavailableError):
        await target.write([Update(Operation.INSERT, FABRIC.entry)])
    with pytest.raises(SwitchUnavailableError):
        await target.counters()


@scenario
async def test_a_standby_takes_over_when_the_primary_goes(bench: Bench) -> None:
    async with session(bench, election_id=5) as second, contextlib.AsyncExitStack() as stack:
        assert await second.event() == Up(bench.facts)
        await second.write(Operation.INSERT, FABRIC.entry)
        first = await stack.enter_async_context(session(bench, election_id=9))
        assert await first.event() == Up(bench.facts)
        assert isinstance(await second.event(), Down)
        assert await second.event() == Standby()
        with pytest.raises(SwitchUnavailableError):
            await second.write(Operation.DELETE, FABRIC.entry)
        assert await first.target.read() == contents(FABRIC.entry), "what the other one wrote stays"
        await stack.aclose()
        assert await second.event() == Up(bench.facts)
        assert await second.target.read() == contents(FABRIC.entry)


@scenario
async def test_a_reloaded_program_has_nothing_of_ours(bench: Bench) -> None:
    async with session(bench) as one:
        await one.event()
        await one.write(Operation.INSERT, *bench.every_kind)
        if bench.reload():
            assert isinstance(await one.event(), Down)
            assert await one.event() == Up(bench.facts)
        assert await one.target.read() == {}
        assert await one.write(Operation.INSERT, *bench.every_kind) == {}
        assert await one.target.read() == contents(*bench.every_kind)


@scenario
async def test_two_waiting_members_make_a_heat_report(bench: Bench) -> None:
    async with session(bench) as one:
        await one.event()
        members = [
            PortMemberEntry(ONE, 0),
            PortMemberEntry(TWO, 1),
            EgressMemberEntry(ONE, 0),
            EgressMemberEntry(TWO, 1),
        ]
        await one.write(Operation.INSERT, SubscriptionEntry(Report.HEAT), *SOURCES, *members, FABRIC.entry)
        bench.make_hot()
        assert await one.event() == HeatReport(key("hot"), 0b11, 0)


@scenario
async def test_a_node_that_is_not_known_where_it_is_is_reported(bench: Bench) -> None:
    async with session(bench) as one:
        await one.event()
        await one.write(Operation.INSERT, SubscriptionEntry(Report.SIGHTING), FABRIC.entry)
        bench.say_here()
        assert await one.event() == Sighting(key("me"), PLACES[0])


@scenario
async def test_foreign_entries_about_addresses_can_be_deleted(bench: Bench) -> None:
    async with session(bench) as one:
        await one.event()
        place = PLACES[0]
        entries = [SOURCES[0], StationEntry(place.mac, ONE), TakenAddressEntry(place.ip)]
        assert await one.write(Operation.INSERT, *entries) == {}
        foreign = [ForeignEntry(*entry.identity) for entry in entries]
        assert await one.write(Operation.DELETE, *foreign) == {}
        assert await one.target.read() == {}


@scenario
async def test_counters_say_what_was_dropped(bench: Bench) -> None:
    async with session(bench) as one:
        await one.event()
        await one.write(Operation.INSERT, FABRIC.entry, ServingEntry(key("b"), Slot(8), 8))
        counters = await one.target.counters()
        assert counters.drops == {}


def test_what_is_lost_is_reported(orbit_bench: OrbitBench) -> None:
    """A GET of a chunk that the switch shall serve and of which nothing circulates."""

    async def steps() -> None:
        async with session(orbit_bench) as one:
            await one.event()
            reports = [SubscriptionEntry(Report.HEAT), SubscriptionEntry(Report.LOSS)]
            await one.write(Operation.INSERT, *reports, SOURCES[0], PortMemberEntry(ONE, 0), FABRIC.entry)
            await one.write(Operation.INSERT, ServingEntry(key("hot"), Slot(8), 8))
            orbit_bench.ask_for_what_is_lost()
            assert await one.event() == LostReport(key("hot"), 3)
            counters = await one.target.counters()
            assert counters.orbit is not None
            assert counters.orbit.circulating_packets == 0

    asyncio.run(asyncio.wait_for(steps(), 3 * DEADLINE_S))


def test_what_a_stranger_wrote_is_shown_as_foreign() -> None:
    """P4Runtime only: the decoders meet entries that the encoders never make."""
    import finsy

    codec = V1ModelCodec()
    entry = finsy.P4TableEntry(
        "port_member",
        match=finsy.P4TableMatch(ingress_port=3),
        action=finsy.P4TableAction("set_member", member=1, member_bit=7),
    )
    assert codec.decode([entry]) == [ForeignEntry("port_member", 3)]
    entry = finsy.P4TableEntry("kv_cache", match=finsy.P4TableMatch(key=5), action=finsy.P4TableAction("absent"))
    assert codec.decode([entry]) == [ForeignEntry("kv_cache", (5).to_bytes(16, "big"))]
    session = finsy.P4CloneSessionEntry(500, replicas=((1, 1), (2, 1)))
    assert codec.decode([session]) == [ForeignEntry("clone_session", 500)]
