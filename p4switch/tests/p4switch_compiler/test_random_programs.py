"""Random programs do in C and in the runtime what the plain machine says, packet by packet, registers included."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from p4switch.compiler import compile_program
from p4switch.ir import types as irt
from p4switch.ir.program import MatchKind, Table, TableKey
from p4switch.runtime import Pipeline, Program, Status, Switch, SwitchConfig
from p4switch.values import ActionCall, Replica
from p4switch_compiler import ir_machine, random_programs

PACKETS = 60
ENTRIES = 12
PORTS = 10
SESSIONS = {7: [(8, 1), (9, 2)]}
GROUPS = {1: [(1, 10), (2, 20)], 2: [(3, 1)], 3: [(4, 4), (4, 5), (5, 6)]}


def random_match(random: Random, key: TableKey) -> tuple[int, int]:
    width = irt.width_of(key.type)
    value = random.getrandbits(min(width, 3))
    if key.match is MatchKind.LPM:
        prefix = random.randrange(width + 1)
        value = random.choice((0, random.getrandbits(width)))
        return value >> (width - prefix) << (width - prefix), prefix
    if key.match is MatchKind.TERNARY:
        mask = random.choice((0, 1, 3, (1 << width) - 1)) & ((1 << width) - 1)
        return value & mask, mask
    if key.match is MatchKind.RANGE:
        return value, value + random.randrange(min(3, (1 << width) - value))
    if key.match is MatchKind.OPTIONAL:
        return random.choice(((value, 1), (0, 0)))
    return value, 0


def fill(random: Random, table: Table, pipeline: Pipeline, machine: ir_machine.Machine) -> list[ir_machine.Entry]:
    """Insert the same entries into both; what the runtime refuses as a duplicate is left out."""
    kept: list[ir_machine.Entry] = []
    for priority in range(1, ENTRIES + 1):
        keys = tuple(random_match(random, k) for k in table.keys)
        action = machine.program.actions[random.choice(table.actions).action]
        call = ActionCall(action.index, tuple(random.getrandbits(irt.width_of(p.type)) for p in action.parameters))
        batch = pipeline.batch()
        batch.insert(table.index, keys, call, priority)
        status = batch.commit()[0].status
        assert status in (Status.OK, Status.EXISTS)
        if status is Status.OK:
            kept.append(ir_machine.Entry(keys, call, priority))
    return kept


def random_frame(random: Random) -> bytes:
    kind, count = random.choice((0, 1, 1, 2, 2, 3, 4, 5, 6, 7, random.getrandbits(8))), random.getrandbits(3)
    return bytes([kind, count]) + random.randbytes(random.choice((0, 1, 13, 14, 23, 40, 60, 60, 90)))


def compare(seed: int, directory: Path) -> int:
    """One program and its packets; gives how many packets had one defined meaning."""
    random = Random(seed)
    source = directory / f"random{seed}.p4"
    source.write_text(random_programs.Generator(seed).program())
    compiled = compile_program(source)
    said = f"seed {seed}, {source}"
    with Switch(SwitchConfig(virtual_clock=True)) as switch:
        pipeline = switch.prepare(Program.load(compiled.shared_object_path))
        switch.commit(pipeline)
        for port in range(PORTS):
            switch.add_memory(port)
        batch = pipeline.batch()
        for group, replicas in GROUPS.items():
            batch.set_multicast_group(group, [Replica(port, rid) for port, rid in replicas])
        for session, replicas in SESSIONS.items():
            batch.set_clone_session(session, [Replica(port, rid) for port, rid in replicas])
        batch.commit()
        entries: dict[int, list[ir_machine.Entry]] = {}
        machine = ir_machine.Machine(compiled.ir, entries, GROUPS, SESSIONS)
        for table in compiled.ir.tables:
            entries[table.index] = fill(random, table, pipeline, machine)
        for number in range(PACKETS):
            frame, port = random_frame(random), random.randrange(PORTS)
            try:
                wanted = machine.run(port, frame)
            except ir_machine.Unspecified:
                return number
            switch.inject(port, frame)
            while switch.step():
                pass
            got = switch.collect()
            assert sorted(got) == sorted(wanted), f"{said}, packet {number} {frame.hex()} from port {port}"
        for register, cells in zip(compiled.ir.registers, machine.registers, strict=True):
            assert list(pipeline.registers(register.index, 0, register.size)) == cells, f"{said}, {register.name}"
        for counter, counts in zip(compiled.ir.counters, machine.counts, strict=True):
            assert [c.packets for c in pipeline.counters(counter.index, 0, counter.size)] == counts, said
    return PACKETS


def test_random_programs(tmp_path: Path) -> None:
    done = [compare(seed, tmp_path) for seed in range(8)]
    assert sum(done) > 0.7 * PACKETS * len(done), done


@pytest.mark.long
def test_many_random_programs(tmp_path: Path) -> None:
    done = [compare(seed, tmp_path) for seed in range(1000, 1150)]
    assert sum(done) > 0.7 * PACKETS * len(done)
