"""Codecs of the two programs: which program each is for, and entities of what only one of them has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import finsy
import pytest
from finsy.proto import p4r

from controlplane.core.ids import Slot, SwitchPort
from controlplane.core.switch.entries import Bitmap, FillingEntry, ReplicateByBitmapEntry, ServingEntry
from controlplane.core.switch.target import Operation, SwitchFacts, Update
from controlplane.p4runtime import ticks
from controlplane.p4runtime.codec import UnsuitableProgramError, V1ModelCodec
from controlplane.p4runtime.tofino import OrbitOptions, TofinoCodec
from tests.unit.controlplane.helpers import FABRIC, key

ROOT = Path(__file__).resolve().parents[3]
ORBIT = TofinoCodec(OrbitOptions(bytes_max=100 * 4198, segment_bytes=4096))


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, finsy.P4Schema]:
    """What each program says of itself, and a program that is somebody else's."""
    folder = tmp_path_factory.mktemp("p4info")
    programs = {name: ROOT / "p4" / name / "kvcast.p4" for name in ("v1model", "tna")}
    programs["other"] = ROOT / "p4switch" / "tests" / "stf" / "l2.p4"
    found = {"none": finsy.P4Schema()}
    for name, program in programs.items():
        described = folder / f"{name}.p4info.txtpb"
        subprocess.run(
            [sys.executable, "-m", "p4switch", str(program), "--p4info", str(described)], cwd=ROOT, check=True
        )
        found[name] = finsy.P4Schema(described)
    older = folder / "older.p4info.txtpb"
    lines = (folder / "v1model.p4info.txtpb").read_text().splitlines(keepends=True)
    older.write_text("".join(line for line in lines if "kvcast_cast_too" not in line))
    found["older"] = finsy.P4Schema(older)
    return found


def test_each_knows_the_sizes_of_its_program(schemas: dict[str, finsy.P4Schema]) -> None:
    assert V1ModelCodec().facts(schemas["v1model"]) == SwitchFacts(16384, 4096, asks_to_flood=True, casts_fills=True)
    assert ORBIT.facts(schemas["tna"]) == SwitchFacts(100, 4096, SwitchPort(68), asks_to_flood=True, casts_fills=True)
    older = V1ModelCodec().facts(schemas["older"])
    assert not older.casts_fills, "a program from before there was CAST_TOO"
    roomy = TofinoCodec(OrbitOptions(bytes_max=1 << 40, segment_bytes=4096))
    assert roomy.facts(schemas["tna"]).slots == 65536, "what the program has"


@pytest.mark.parametrize(
    ("codec", "program", "problem"),
    [
        (V1ModelCodec(), "none", "it runs no program: name one in switch.p4info and switch.program"),
        (V1ModelCodec(), "other", "it does not run the kvcast program: "),
        (V1ModelCodec(), "tna", "it runs the program for Tofino: set switch.target to tofino"),
        (ORBIT, "none", "it runs no program: name one in switch.p4info and switch.program"),
        (ORBIT, "other", "it does not run the program for Tofino: set switch.target to p4switch or bmv2"),
        (ORBIT, "v1model", "it does not run the program for Tofino: set switch.target to p4switch or bmv2"),
    ],
)
def test_another_program_is_refused_in_one_line(
    schemas: dict[str, finsy.P4Schema], codec: V1ModelCodec, program: str, problem: str
) -> None:
    with pytest.raises(UnsuitableProgramError) as caught:
        codec.facts(schemas[program])
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)


def test_times_to_live_are_registers_too(schemas: dict[str, finsy.P4Schema]) -> None:
    entities = ORBIT.encode(Update(Operation.INSERT, FABRIC.entry), schemas["tna"])
    *registers, default = entities
    assert {one.register_id.rpartition(".")[2]: one.data for one in registers} == {
        "interest_ttl": ticks.of_us(2_000_000),
        "interest_turn": ticks.of_us(2_000_000) // 2,
        "budget_window": ticks.of_us(2_000_000),
        "heat_window": ticks.of_us(1_000_000),
        "report_window": ticks.of_us(1_000_000),
    }
    assert len(registers) == 6, "two rows of the sketch have a window each"
    assert ORBIT.decode([default, *registers]) == [FABRIC.entry]
    registers[0].data += 15_000
    (found,) = ORBIT.decode([default, *registers])
    assert found != FABRIC.entry, "what takes effect is what the registers say"


def test_without_registers_for_them_times_are_the_programs_own(schemas: dict[str, finsy.P4Schema]) -> None:
    """p4c's own P4Info has no register parameters."""
    p4info = schemas["tna"].p4info
    kept = [one for one in p4info.registers if not one.preamble.name.endswith(("_ttl", "_turn", "_window"))]
    bare = type(p4info)()
    bare.CopyFrom(p4info)
    del bare.registers[:]
    bare.registers.extend(kept)
    schema = finsy.P4Schema(bare)
    assert ORBIT.facts(schema) == ORBIT.facts(schemas["tna"])
    entities = ORBIT.encode(Update(Operation.INSERT, FABRIC.entry), schema)
    assert len(entities) == 1
    assert ORBIT.decode(entities) == [FABRIC.entry]
    bare.registers.extend(one for one in p4info.registers if one.preamble.alias == "interest_ttl")
    with pytest.raises(
        UnsuitableProgramError, match="no register parameter budget_window, heat_window, interest_turn, report_window"
    ):
        ORBIT.facts(finsy.P4Schema(bare))


def test_a_new_chunk_is_as_cold_as_it_is_new(schemas: dict[str, finsy.P4Schema]) -> None:
    filling = FillingEntry(key("a"), Slot(24), 8, SwitchPort(1))
    heat, entry = ORBIT.encode(Update(Operation.INSERT, filling), schemas["tna"])
    assert (heat.counter_id, heat.index, heat.packet_count) == ("chunk_heat", 24, 0)
    assert ORBIT.decode([entry]) == [filling]
    for again in (filling, ServingEntry(key("a"), Slot(24), 8)):
        assert len(ORBIT.encode(Update(Operation.MODIFY, again), schemas["tna"])) == 1


def test_the_default_of_replicate_is_only_ever_modified(schemas: dict[str, finsy.P4Schema]) -> None:
    wanted = ReplicateByBitmapEntry(Bitmap.TWO)
    (there,) = ORBIT.encode(Update(Operation.INSERT, wanted), schemas["tna"])
    (gone,) = ORBIT.encode(Update(Operation.DELETE, wanted), schemas["tna"])
    for one in (there, gone):
        assert one.encode_update(schemas["tna"]).type == p4r.Update.MODIFY
    assert ORBIT.decode([there]) == [wanted]
    assert ORBIT.decode([gone]) == []
