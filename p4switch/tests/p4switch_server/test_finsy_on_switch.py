"""finsy, unchanged, against the whole switch: compiler, native runtime, server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import finsy as fy
import pytest

from p4switch.errors import SwitchError
from p4switch.p4info import write_p4info
from p4switch.ports import Memory, PortSpec
from p4switch.testing import TestSwitch, memory_switch

PROGRAM = Path(__file__).with_name("learning.p4")


def frame(dst: int, src: int, payload: bytes = b"payload") -> bytes:
    return dst.to_bytes(6, "big") + src.to_bytes(6, "big") + b"\x88\xb5" + payload.ljust(46, b"\0")


@pytest.fixture
def switch():
    with memory_switch(PROGRAM, ports=4, flood_group=1) as switch:
        yield switch


def run(
    switch: TestSwitch, tmp_path: Path, scenario: Callable[[fy.Switch], Coroutine[Any, Any, Any]], **options: Any
) -> Any:
    p4info = tmp_path / "program.p4info.txtpb"
    write_p4info(switch.switch.p4info, p4info)

    async def session() -> Any:
        chosen = fy.SwitchOptions(p4info=p4info, p4blob=PROGRAM, **options)
        async with fy.Switch("s", switch.address, chosen) as client:
            return await scenario(client)

    return asyncio.run(asyncio.wait_for(session(), 30))


def forward(dst: int, port: int, **more: Any) -> fy.P4TableEntry:
    return fy.P4TableEntry(
        "dmac", match=fy.P4TableMatch({"dst": dst}), action=fy.P4TableAction("forward", port=port), **more
    )


def test_floods_without_a_controller(switch):
    switch.send(1, frame(0xFFFFFFFFFFFF, 1))
    assert sorted(switch.take_all(settled_after=1)) == [2, 3, 4]


def test_a_program_names_the_group_that_floods():
    named = PROGRAM.read_text().replace("V1Switch(", "@p4switch_flood_group(1)\nV1Switch(")
    with memory_switch(named, ports=4) as switch:
        switch.send(1, frame(0xFFFFFFFFFFFF, 1))
        assert sorted(switch.take_all(settled_after=1)) == [2, 3, 4]
    with memory_switch(named, ports=4, flood_group=0) as switch:
        switch.send(1, frame(0xFFFFFFFFFFFF, 1))
        assert switch.take_all(settled_after=1) == {}
        assert switch.switch.stats()["switch"]["no_group"] == 1
    with memory_switch(PROGRAM, ports=4) as switch:
        switch.send(1, frame(0xFFFFFFFFFFFF, 1))
        assert switch.take_all(settled_after=1) == {}, "a program that names none has none"


@pytest.mark.parametrize("group", ["0", "65536", "ALL", "1, 2", ""])
def test_a_flood_group_that_is_none_is_refused(group):
    wrong = PROGRAM.read_text().replace("V1Switch(", f"@p4switch_flood_group({group})\nV1Switch(")
    with pytest.raises(SwitchError, match="write the number of a group, 1 to 65535"), memory_switch(wrong):
        pass


def test_ports_that_come_and_go_are_flooded_to_as_they_are(switch):
    switch.switch.remove_port(3)
    switch.send(1, frame(9, 1))
    assert sorted(switch.take_all(settled_after=1)) == [2, 4]
    switch.switch.add_port(PortSpec(3, Memory()))
    switch.switch.add_port(PortSpec(7, Memory()))
    switch.send(1, frame(9, 1))
    assert sorted(switch.take_all(settled_after=2)) == [2, 3, 4, 7]


def test_entries_forward_and_count(switch, tmp_path):
    async def scenario(client: fy.Switch) -> list[fy.P4TableEntry]:
        await client.insert([forward(2, 2), forward(3, 3)])
        for dst in (2, 2, 3):
            switch.send(1, frame(dst, 1))
            assert switch.expect(dst) == frame(dst, 1)
        await client.modify([forward(3, 4)])
        switch.send(1, frame(3, 1))
        assert switch.expect(4) == frame(3, 1)
        await client.delete([forward(2, 2)])
        return [e async for e in client.read([fy.P4TableEntry("dmac", counter_data=fy.P4CounterData())])]

    (entry,) = run(switch, tmp_path, scenario)
    assert entry.match["dst"] == 3
    assert entry.counter_data.packet_count == 2
    assert entry.counter_data.byte_count == 2 * len(frame(3, 1))


def test_multicast_groups_replace_the_flood_and_give_it_back(switch, tmp_path):
    async def scenario(client: fy.Switch) -> None:
        group = fy.P4MulticastGroupEntry(1, replicas=((3, 1), (4, 2)))
        await client.insert([group])
        switch.send(1, frame(9, 1))
        assert sorted(switch.take_all(settled_after=1)) == [3, 4]
        (entry,) = [e async for e in client.read([fy.P4MulticastGroupEntry()])]
        assert [(r.port, r.instance) for r in entry.replicas] == [(3, 1), (4, 2)]
        await client.delete([group])
        switch.send(1, frame(9, 1))
        assert sorted(switch.take_all(settled_after=2)) == [2, 3, 4]

    run(switch, tmp_path, scenario)


def test_registers_and_counters_can_be_read_and_written(switch, tmp_path):
    async def scenario(client: fy.Switch) -> tuple[Any, Any]:
        switch.send(2, frame(9, 0xABCDEF))
        switch.take_all(settled_after=1)
        (last,) = [e async for e in client.read([fy.P4RegisterEntry("last_source", index=2)])]
        await client.modify([fy.P4RegisterEntry("last_source", index=3, data=0x42)])
        (written,) = [e async for e in client.read([fy.P4RegisterEntry("last_source", index=3)])]
        (count,) = [e async for e in client.read([fy.P4CounterEntry("arrived", index=2)])]
        assert count.data.packet_count == 1
        return last.data, written.data

    assert run(switch, tmp_path, scenario) == (0xABCDEF, 0x42)


def test_digests_arrive(switch, tmp_path):
    async def scenario(client: fy.Switch) -> list[Any]:
        await client.insert(
            [fy.P4DigestEntry("learn_t", max_list_size=2, max_timeout_ns=int(10e9), ack_timeout_ns=int(10e9))]
        )
        for source in (1, 1, 2):
            switch.send(3, frame(9, source))
        async for digest in client.read_digests("learn_t"):
            await client.write([digest.ack()])
            return [(d["source"], d["port"]) for d in digest]
        raise AssertionError("no digest")

    assert run(switch, tmp_path, scenario) == [(1, 3), (2, 3)]


def test_packets_go_in_and_out(switch, tmp_path):
    async def scenario(client: fy.Switch) -> tuple[bytes, int]:
        await client.write([fy.P4PacketOut(b"0123456789abcd", port=2, _pad=0)])
        assert switch.expect(2) == b"0123456789abcd"
        to_cpu = fy.P4TableEntry("dmac", match=fy.P4TableMatch({"dst": 7}), action=fy.P4TableAction("punt"))
        await client.insert([to_cpu])
        switch.send(4, frame(7, 1))
        async for packet in client.read_packets():
            return packet.payload, packet["port"]
        raise AssertionError("no packet")

    assert run(switch, tmp_path, scenario) == (frame(7, 1), 4)


def test_clones_go_to_their_session(switch, tmp_path):
    async def scenario(client: fy.Switch) -> None:
        await client.insert([fy.P4CloneSessionEntry(5, replicas=((4, 1),), packet_length_bytes=20), forward(2, 2)])
        mirror = fy.P4TableEntry(
            "mirror",
            match=fy.P4TableMatch({"source": (1, 0xFF)}),
            priority=10,
            action=fy.P4TableAction("copy", session=5),
        )
        await client.insert([mirror])
        switch.send(1, frame(2, 1))
        assert switch.expect(2) == frame(2, 1)
        assert switch.expect(4) == frame(2, 1)[:20]

    run(switch, tmp_path, scenario)


def test_a_selector_spreads_over_its_members(switch, tmp_path):
    async def scenario(client: fy.Switch) -> None:
        members = [
            fy.P4ActionProfileMember("paths", member_id=n, action=fy.P4TableAction("via", port=n + 2)) for n in (1, 2)
        ]
        await client.insert(members)
        group = fy.P4ActionProfileGroup(
            "paths", group_id=1, max_size=4, members=(fy.P4Member(1, weight=1), fy.P4Member(2, weight=1))
        )
        await client.insert([group])
        await client.insert(
            [fy.P4TableEntry("route", match=fy.P4TableMatch({"kind": 0x88B6}), action=fy.P4IndirectAction(group_id=1))]
        )
        for source in range(64):
            switch.send(1, frame(9, source).replace(b"\x88\xb5", b"\x88\xb6"))
        out = switch.take_all(settled_after=64)
        assert sum(map(len, out.values())) == 64
        assert sorted(out) == [3, 4], "both members are used"
        await client.delete([fy.P4TableEntry("route", match=fy.P4TableMatch({"kind": 0x88B6}))])
        await client.delete([group])
        await client.delete(members)

    run(switch, tmp_path, scenario)


def test_idle_entries_are_reported(switch, tmp_path):
    async def scenario(client: fy.Switch) -> str:
        entry = fy.P4TableEntry(
            "mirror",
            match=fy.P4TableMatch({"source": (1, 0xFF)}),
            priority=1,
            action=fy.P4TableAction("copy", session=9),
            idle_timeout_ns=20_000_000,
            metadata=b"mine",
        )
        await client.insert([entry])
        async for notification in client.read_idle_timeouts():
            return notification[0].metadata
        raise AssertionError("no notification")

    assert run(switch, tmp_path, scenario) == b"mine"


def test_a_pipeline_pushed_by_finsy_starts_empty(tmp_path, switch):
    async def fill(client: fy.Switch) -> None:
        await client.insert([forward(2, 2)])

    async def count(client: fy.Switch) -> int:
        return len([e async for e in client.read([fy.P4TableEntry("dmac")])])

    run(switch, tmp_path, fill)
    assert run(switch, tmp_path, count) == 1, "the same configuration is not pushed again"
    assert run(switch, tmp_path, count, p4force=True) == 0, "a pushed one clears the tables"


def test_errors_name_the_update(switch, tmp_path):
    async def scenario(client: fy.Switch) -> fy.P4ClientError:
        await client.insert([forward(2, 2)])
        with pytest.raises(fy.P4ClientError) as caught:
            await client.insert([forward(3, 3), forward(2, 2)])
        return caught.value

    error = run(switch, tmp_path, scenario)
    assert list(error.details) == [1]
    assert error.details[1].canonical_code == fy.GRPCStatusCode.ALREADY_EXISTS


def test_translated_types_are_numbers_of_both_widths(tmp_path):
    program = PROGRAM.with_name("annotated.p4")
    with memory_switch(program, ports=1) as switch:
        p4info = tmp_path / "program.p4info.txtpb"
        write_p4info(switch.switch.p4info, p4info)

        def entry(port: int) -> fy.P4TableEntry:
            match = {"vlan": 3, "m.seen": 1, "h.tags[0].$valid$": 0}
            action = fy.P4TableAction("left.set_port", port=port, vlan=9)
            return fy.P4TableEntry("left.the_colors", match=fy.P4TableMatch(match), priority=1, action=action)

        async def session() -> list[int]:
            async with fy.Switch("s", switch.address, fy.SwitchOptions(p4info=p4info, p4blob=program)) as client:
                await client.insert([entry(300)])
                with pytest.raises(fy.P4ClientError, match="OUT_OF_RANGE"):
                    await client.modify([entry(600)])
                return [e.action.args["port"] async for e in client.read([fy.P4TableEntry("left.the_colors")])]

        assert asyncio.run(asyncio.wait_for(session(), 30)) == [300]


def test_members_whose_watch_port_is_gone_are_passed_over(switch, tmp_path):
    async def scenario(client: fy.Switch) -> None:
        await client.insert(
            [fy.P4ActionProfileMember("paths", member_id=n, action=fy.P4TableAction("via", port=n)) for n in (3, 4)]
        )
        members = (fy.P4Member(3, weight=(1, 3)), fy.P4Member(4, weight=(1, 4)))
        await client.insert([fy.P4ActionProfileGroup("paths", group_id=1, max_size=4, members=members)])
        action = fy.P4IndirectAction(group_id=1)
        await client.insert([fy.P4TableEntry("route", match=fy.P4TableMatch({"kind": 0x88B6}), action=action)])

        sent = 0

        def spread() -> dict[int, int]:
            """Frames out by port, of 32 different flows."""
            nonlocal sent
            for source in range(32):
                switch.send(1, frame(9, source).replace(b"\x88\xb5", b"\x88\xb6"))
            sent += 32
            return {port: len(frames) for port, frames in switch.take_all(settled_after=sent).items()}

        assert set(spread()) == {3, 4}
        switch.switch.remove_port(4)
        assert spread() == {3: 32}
        switch.switch.add_port(PortSpec(4, Memory()))
        assert set(spread()) == {3, 4}

    run(switch, tmp_path, scenario)
