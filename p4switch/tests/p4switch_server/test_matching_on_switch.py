"""Match kinds, meters, value sets, wide registers and the modes of Write, on the whole switch."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import finsy as fy
import grpc
import pytest
from finsy.p4entity import P4ValueSetMember

from p4switch.device_config import ProgramSource
from p4switch.p4info import write_p4info
from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.testing import TestSwitch, memory_switch

PROGRAM = Path(__file__).with_name("matching.p4")


def probe(kind: int = 1, address: int = 0, port: int = 0) -> bytes:
    return kind.to_bytes(2, "big") + address.to_bytes(4, "big") + port.to_bytes(2, "big") + bytes(2) + bytes(50)


class Session:
    """A switch with the program, and finsy connected to it; `asked` runs finsy's coroutines."""

    def __init__(self, switch: TestSwitch, client: fy.Switch, loop: asyncio.AbstractEventLoop) -> None:
        self.switch = switch
        self.client = client
        self._loop = loop

    def asked(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, 20))

    def insert(self, *entities: Any) -> None:
        self.asked(self.client.insert(list(entities)))

    def modify(self, *entities: Any) -> None:
        self.asked(self.client.modify(list(entities)))

    def delete(self, *entities: Any) -> None:
        self.asked(self.client.delete(list(entities)))

    def read(self, entity: Any) -> list[Any]:
        async def collect() -> list[Any]:
            return [e async for e in self.client.read([entity])]

        return self.asked(collect())

    def answer(self, **fields: int) -> tuple[int, int]:
        """What the program writes into a probe: color and rule."""
        self.switch.send(1, probe(**fields))
        frame = self.switch.expect(1)
        return frame[8], frame[9]

    def rule(self, **fields: int) -> int:
        return self.answer(**fields)[1]


@pytest.fixture
def session(tmp_path):
    with memory_switch(PROGRAM, ports=2) as switch:
        p4info = tmp_path / "program.p4info.txtpb"
        write_p4info(switch.switch.p4info, p4info)
        loop = asyncio.new_event_loop()
        client = fy.Switch("s", switch.address, fy.SwitchOptions(p4info=p4info, p4blob=PROGRAM))
        try:
            loop.run_until_complete(asyncio.wait_for(client.__aenter__(), 20))
            yield Session(switch, client, loop)
            loop.run_until_complete(asyncio.wait_for(client.__aexit__(None, None, None), 20))
        finally:
            loop.close()


def rule(number: int, match: dict[str, Any], **more: Any) -> fy.P4TableEntry:
    return fy.P4TableEntry(
        "rules", match=fy.P4TableMatch(match), action=fy.P4TableAction("rule", number=number), **more
    )


def test_longest_prefix_wins(session):
    session.insert(
        rule(8, {"address": "10.0.0.0/8", "port": 0}),
        rule(24, {"address": "10.1.2.0/24", "port": 0}),
        rule(32, {"address": "10.1.2.3", "port": 0}),
        rule(1, {"port": 0}),
    )
    addresses = {0x0A010203: 32, 0x0A010204: 24, 0x0A020000: 8, 0x0B000000: 1}
    assert {a: session.rule(address=a) for a in addresses} == addresses
    session.delete(rule(24, {"address": "10.1.2.0/24", "port": 0}))
    assert session.rule(address=0x0A010204) == 8


def test_ranges_optionals_and_priorities_of_source_entries(session):
    assert session.rule(port=150) == 77
    assert session.rule(port=300, address=0x0A000001) == 78
    assert session.rule(port=300, address=0x0B000001) == 99
    entries = session.read(fy.P4TableEntry("ranges"))
    assert sorted(e.priority for e in entries) == [1, 2]
    assert all(e.is_const for e in entries)
    with pytest.raises(fy.P4ClientError, match="PERMISSION_DENIED"):
        session.insert(
            fy.P4TableEntry(
                "ranges",
                match=fy.P4TableMatch({"port": (1, 2)}),
                priority=9,
                action=fy.P4TableAction("plain", number=1),
            )
        )


def test_initial_entries_can_be_changed_unless_they_are_const(session):
    def seeded(port: int, number: int) -> fy.P4TableEntry:
        return fy.P4TableEntry(
            "seeded", match=fy.P4TableMatch({"port": port}), action=fy.P4TableAction("plain", number=number)
        )

    assert (session.rule(port=7), session.rule(port=8), session.rule(port=9)) == (7, 8, 99)
    session.modify(seeded(8, 80))
    assert session.rule(port=8) == 80
    session.delete(seeded(8, 0))
    assert session.rule(port=8) == 99
    for refused in (session.modify, session.delete):
        with pytest.raises(fy.P4ClientError, match="PERMISSION_DENIED"):
            refused(seeded(7, 1))
    session.modify(fy.P4TableEntry("seeded", is_default_action=True, action=fy.P4TableAction("plain", number=5)))
    assert session.rule(port=9) == 5
    session.modify(fy.P4TableEntry("seeded", is_default_action=True))
    assert session.rule(port=9) == 99


def test_value_sets(session):
    session.switch.send(1, probe(kind=5))
    assert session.switch.take_all(settled_after=1) == {}
    members = [P4ValueSetMember(5), P4ValueSetMember(6)]
    session.modify(fy.P4ValueSetEntry("kinds", members=members))
    assert session.rule(kind=5, port=9) == 99
    assert session.rule(kind=6, port=9) == 99
    (entry,) = session.read(fy.P4ValueSetEntry("kinds", members=[]))
    assert len(entry.members) == 2
    session.modify(fy.P4ValueSetEntry("kinds", members=[]))
    session.switch.send(1, probe(kind=5))
    assert session.switch.take_all(settled_after=4) == {}


def test_wide_registers(session):
    session.answer(address=0x01020304)
    (block,) = session.read(fy.P4RegisterEntry("blocks", index=0))
    assert block.data == 0x01020304 << 200
    value = (1 << 2047) | 5
    session.modify(fy.P4RegisterEntry("blocks", index=7, data=value))
    blocks = session.read(fy.P4RegisterEntry("blocks"))
    assert [b.data for b in blocks] == [0x01020304 << 200, 0, 0, 0, 0, 0, 0, value]
    assert [f.data for f in session.read(fy.P4RegisterEntry("flags"))] == [0, 0, 0, 1, 0, 0, 0, 0]


def test_meters_color_packets(session):
    assert [session.answer()[0] for _ in range(4)] == [0] * 4
    config = fy.P4MeterConfig(cir=1, cburst=2, pir=1, pburst=3)
    session.modify(fy.P4MeterEntry("limit", index=1, config=config))
    colors = [session.answer()[0] for _ in range(5)]
    assert colors == [0, 0, 1, 2, 2]
    (entry,) = session.read(fy.P4MeterEntry("limit", index=1))
    assert entry.config == config
    session.modify(fy.P4MeterEntry("limit", index=1))
    assert session.answer()[0] == 0


def test_direct_resources_live_with_their_entry(session):
    config = fy.P4MeterConfig(cir=1000, cburst=2, pir=2000, pburst=3)
    entry = rule(1, {"port": 0}, meter_config=config, counter_data=fy.P4CounterData(packet_count=10))
    session.insert(entry)
    session.answer()
    query = fy.P4TableEntry(
        "rules", counter_data=fy.P4CounterData(), meter_config=fy.P4MeterConfig(cir=0, cburst=0, pir=0, pburst=0)
    )
    (found,) = session.read(query)
    assert (found.counter_data.packet_count, found.meter_config) == (11, config)
    session.delete(entry)
    session.insert(rule(1, {"port": 0}))
    (found,) = session.read(query)
    assert (found.counter_data.packet_count, found.meter_config) == (0, None)


def test_an_atomic_batch_is_seen_whole_or_not_at_all(session):
    """Two entries are swapped again and again, atomically, under traffic: a packet never meets both or neither."""
    session.insert(rule(2, {"address": "10.0.0.0/31", "port": 0}))
    info = session.switch.switch.p4info
    table = next(t for t in info.tables if t.preamble.alias == "rules")
    action = next(a for a in info.actions if a.preamble.alias == "rule")

    def update(kind: Any, prefix: int, number: int) -> p4r.Update:
        change = p4r.Update(type=kind)
        entry = change.entity.table_entry
        entry.table_id = table.preamble.id
        address = entry.match.add(field_id=1).lpm
        address.value, address.prefix_len = bytes([10, 0, 0, 0 if prefix < 32 else 1]), prefix
        entry.match.add(field_id=2).exact.value = b"\0"
        entry.action.action.action_id = action.preamble.id
        entry.action.action.params.add(param_id=1, value=bytes([number]))
        return change

    insert, delete = p4r.Update.INSERT, p4r.Update.DELETE
    there = [update(delete, 31, 2), update(insert, 32, 1)]
    back = [update(delete, 32, 1), update(insert, 31, 2)]
    stop = threading.Event()

    def swap() -> None:
        election_id = session.client.election_id
        with grpc.insecure_channel(session.switch.address) as channel:
            write = channel.unary_unary(
                "/p4.v1.P4Runtime/Write", lambda m: m.SerializeToString(), p4r.WriteResponse.FromString
            )
            while not stop.is_set():
                for updates in (there, back):
                    request = p4r.WriteRequest(device_id=1, updates=updates, atomicity="DATAPLANE_ATOMIC")
                    request.election_id.low = election_id
                    write(request, timeout=10)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        seen = {session.rule(address=0x0A000001, port=0) for _ in range(400)}
    finally:
        stop.set()
        swapper.join(timeout=10)
    assert seen <= {1, 2}, "a packet met the table between two updates of one batch"


def test_a_program_is_replaced_under_traffic(session):
    """No packet is lost by the switch, none is processed by half of each program."""
    session.insert(rule(1, {"port": 0}))
    source = PROGRAM.read_text().replace("default_action = plain(99)", "default_action = plain(100)")
    stop = threading.Event()

    def replace() -> None:
        programs = [ProgramSource(main="a.p4", files={"a.p4": source}), ProgramSource(path=PROGRAM)]
        for n in range(6):
            session.switch.switch.load(programs[n % 2])
        stop.set()

    replacer = threading.Thread(target=replace)
    replacer.start()
    answers = set()
    while not stop.is_set():
        answers.add(session.rule(port=9))
    replacer.join()
    assert answers <= {99, 100}


def test_reconcile_keeps_what_was_written_and_takes_the_new_program(session):
    session.insert(rule(4, {"port": 0}, counter_data=fy.P4CounterData(packet_count=10)))
    session.modify(
        fy.P4RegisterEntry("blocks", index=7, data=1 << 2047),
        fy.P4ValueSetEntry("kinds", members=[P4ValueSetMember(5)]),
        fy.P4MeterEntry("limit", index=1, config=fy.P4MeterConfig(cir=1, cburst=1, pir=1, pburst=1)),
        fy.P4TableEntry("seeded", match=fy.P4TableMatch({"port": 8}), action=fy.P4TableAction("plain", number=80)),
    )
    source = PROGRAM.read_text().replace("default_action = plain(99)", "default_action = plain(100)")
    request = p4r.SetForwardingPipelineConfigRequest(device_id=1, action="RECONCILE_AND_COMMIT")
    request.election_id.low = session.client.election_id
    request.config.p4_device_config = source.encode()
    with grpc.insecure_channel(session.switch.address) as channel:
        method = "/p4.v1.P4Runtime/SetForwardingPipelineConfig"
        reply = p4r.SetForwardingPipelineConfigResponse.FromString
        channel.unary_unary(method, lambda m: m.SerializeToString(), reply)(request, timeout=30)
    assert session.rule(port=9) == 100, "the new program"
    assert session.rule(port=8) == 80
    assert session.answer(kind=5, port=0) == (2, 4), "value set, entry and meter"
    query = fy.P4TableEntry("rules", counter_data=fy.P4CounterData())
    (found,) = session.read(query)
    assert found.counter_data.packet_count == 11
    (block,) = session.read(fy.P4RegisterEntry("blocks", index=7))
    assert block.data == 1 << 2047
