"""GET of a cached segment out of kvcast.p4, on bmv2 and on p4switch, one after the other: the same program, entries,
interfaces and traffic.

Both are programmed over P4Runtime by the controller's own code and filled by the holder's datagrams; both must answer
with the same bytes. Segments have 256 bytes: bmv2 cannot lengthen a packet by more than 512.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bmv2_testbed.bench.switch_traffic import (
    FROM_SWITCH_DSCP,
    GROUP_MAC,
    HEAT_GETS,
    POOL_IP,
    POOL_MAC,
    SEGMENTS,
    TTL_US,
    ChunkTraffic,
    Host,
)
from bmv2_testbed.spec import Target
from bmv2_testbed.switches import program_of
from controlplane.core.ids import Member, Slot, SwitchPort
from controlplane.core.switch.entries import (
    AddressEntry,
    EgressMemberEntry,
    Entry,
    FabricEntry,
    FillingEntry,
    PortMemberEntry,
    ReplicateToPortEntry,
    ServingEntry,
    SourceEntry,
)
from controlplane.core.switch.target import Operation, SwitchEvent, Up, Update
from controlplane.p4runtime.codec import V1ModelCodec
from controlplane.p4runtime.p4runtime_target import P4RuntimeOptions, P4RuntimeTarget
from p4switch.bench.packets import Measurement
from p4switch.bench.peer import COMPILER, compared, process_cpu_ns, run_tool
from p4switch.bench.wire import Wire, flow, namespace, switch_thread_cpu_ns
from p4switch.bmv2.names import tool_of_bmv2
from p4switch.device_config import ProgramSource
from p4switch.errors import SwitchError
from p4switch.ports import Interface, PortSpec
from p4switch.switch import Switch, SwitchOptions

PEER = "simple_switch_grpc"
SEGMENT_BYTES = 256
_ASKER, _HOLDER = Host(1), Host(2)
_SIZES = {"SEGMENT_BYTES": str(SEGMENT_BYTES), "SLOTS": "256"}
_READY_SECONDS_MAX = 30.0
_RECONNECT_SECONDS = 0.1
"""bmv2 does not say when it listens: only a connection attempt shows it."""
_ANSWER_SECONDS_MAX = 15.0
_ANY_PROTOCOL = 3


def run_get_comparison() -> Iterator[Measurement]:
    """Both switches; nothing, with one line, where bmv2 is not installed.

    Raises:
        SwitchError: there are no rights to make a namespace, a switch cannot be programmed, or the two differ.
    """
    missing = [name for name in (COMPILER, PEER) if tool_of_bmv2(name) is None]
    if missing:
        print(f"GET on simple_switch is left out: {' and '.join(missing)} not on PATH", flush=True)
        return
    wire, traffic = Wire(), ChunkTraffic(_HOLDER, SEGMENT_BYTES)
    join, get = traffic.join(_ASKER), traffic.get(_ASKER, 0)
    with tempfile.TemporaryDirectory() as scratch, namespace():
        folder = Path(scratch)
        with _simple_switch(folder) as (options, process):
            asyncio.run(_fill(options, traffic))
            _exchange(_ASKER, join)
            expected = _exchange(_ASKER, get)
            theirs = flow(wire, get, _ASKER.port, lambda: process_cpu_ns(process))
        with _p4switch(folder) as options:
            asyncio.run(_fill(options, traffic))
            _exchange(_ASKER, join)
            if _exchange(_ASKER, get) != expected:
                raise SwitchError(f"p4switch and {PEER} answer a GET with different bytes")
            ours = flow(wire, get, _ASKER.port, switch_thread_cpu_ns)
        yield from compared(f"GET of {SEGMENT_BYTES} B", theirs, ours)


@contextmanager
def _simple_switch(folder: Path) -> Iterator[tuple[P4RuntimeOptions, int]]:
    """How to reach it, and its process id."""
    p4info, program, listener = folder / "kvcast.p4info.txtpb", folder / "kvcast.json", folder / "bmv2.sock"
    defines = [f"-D{name}={value}" for name, value in _SIZES.items()]
    files = ["--p4runtime-files", str(p4info), "-o", str(program), str(program_of(Target.P4SWITCH))]
    run_tool([COMPILER, "--arch", "v1model", *defines, *files])
    interfaces = [word for host in (_ASKER, _HOLDER) for word in ("-i", f"{host.port}@sw{host.port}")]
    command = [PEER, "--no-p4", "--log-level", "off", "--device-id", "1", *interfaces]
    command += ["--", "--grpc-server-addr", f"unix:{listener}"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            options = P4RuntimeOptions(
                f"unix:{listener}", p4info=p4info, program=program, reconnect_s=_RECONNECT_SECONDS
            )
            yield options, process.pid
        finally:
            process.terminate()


@contextmanager
def _p4switch(folder: Path) -> Iterator[P4RuntimeOptions]:
    ports = tuple(PortSpec(host.port, Interface(f"sw{host.port}")) for host in (_ASKER, _HOLDER))
    source = ProgramSource(program_of(Target.P4SWITCH), defines=_SIZES)
    with Switch(SwitchOptions(program=source, ports=ports, grpc=f"unix:{folder}/p4switch.sock")) as switch:
        yield P4RuntimeOptions(switch.address)


async def _fill(options: P4RuntimeOptions, traffic: ChunkTraffic) -> None:
    """The switch serves the chunk from now on."""
    target, events = P4RuntimeTarget(options, V1ModelCodec()), asyncio.Queue[SwitchEvent]()
    session = asyncio.create_task(target.run(events.put_nowait))
    try:
        async with asyncio.timeout(_READY_SECONDS_MAX):
            while not isinstance(await events.get(), Up):
                pass
            filling = FillingEntry(traffic.key, Slot(0), SEGMENTS, SwitchPort(_HOLDER.port))
            await _write(target, Operation.INSERT, *_attachment(traffic), filling)
            for segment in range(SEGMENTS):
                await asyncio.to_thread(_exchange, _HOLDER, traffic.fill(segment))
            await _write(target, Operation.MODIFY, ServingEntry(traffic.key, Slot(0), SEGMENTS))
    except TimeoutError as error:
        raise SwitchError(f"switch {target.address} cannot be programmed or filled") from error
    finally:
        session.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await session


def _attachment(traffic: ChunkTraffic) -> list[Entry]:
    """What the controller writes for the fabric and its two members."""
    fabric = FabricEntry(
        group_mac=GROUP_MAC.to_bytes(6, "big"),
        group_ip=traffic.fabric.group.to_bytes(4, "big"),
        pool_mac=POOL_MAC.to_bytes(6, "big"),
        pool_ip=POOL_IP.to_bytes(4, "big"),
        from_switch_dscp=FROM_SWITCH_DSCP,
        interest_ttl_us=TTL_US,
        heat_window_us=TTL_US,
        heat_gets=HEAT_GETS,
    )
    entries: list[Entry] = [fabric]
    for host in (_ASKER, _HOLDER):
        port, member = SwitchPort(host.port), Member(host.member)
        entries += [
            PortMemberEntry(port, member),
            EgressMemberEntry(port, member),
            AddressEntry(host.mac.to_bytes(6, "big"), port),
            SourceEntry(port, host.mac.to_bytes(6, "big"), host.ip.to_bytes(4, "big")),
            ReplicateToPortEntry(host.bit, port),
        ]
    return entries


async def _write(target: P4RuntimeTarget, operation: Operation, *entries: Entry) -> None:
    refused = await target.write([Update(operation, entry) for entry in entries])
    if refused:
        raise SwitchError(f"switch {target.address} refuses an entry: {next(iter(refused.values()))}")


def _exchange(host: Host, frame: bytes) -> bytes:
    """What comes back to a host for its frame. Raises SwitchError when nothing does."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ANY_PROTOCOL)) as end:
        end.bind((f"h{host.port}", 0))
        end.settimeout(_ANSWER_SECONDS_MAX)
        end.send(frame)
        try:
            while True:
                received, (_, _, kind, *_) = end.recvfrom(1 << 14)
                if kind != socket.PACKET_OUTGOING:
                    return received
        except TimeoutError as error:
            raise SwitchError(f"the switch does not answer the host at port {host.port}") from error
