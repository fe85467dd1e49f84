"""TNA programs as a controller and the command line see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import finsy as fy
import pytest

from p4switch.admin import answer
from p4switch.cli import main
from p4switch.compiler import compile_to_ir
from p4switch.errors import SwitchError
from p4switch.p4info import p4info_of
from p4switch.ports import Memory, PortSpec
from p4switch.proto import p4info_pb2 as p4i
from p4switch.recirculation import Recirculation, parse_recirculation
from p4switch.testing import TestSwitch, memory_switch
from p4switch_server.control_session import ControlSession
from p4switch_tna.tna_bench import ROUND, frame, program

PROGRAM = program(
    """tm.ucast_egress_port = 1; seen.count(h.d.a); t.apply(); unseen.apply(); h.d.d = act.execute(h.d.a);
       dprsr.digest_type = 1; dprsr.mirror_type = 1;""",
    top="""struct owned_t { bit<32> owner; bit<32> stamp; }
           struct told_t { bit<8> a; bit<16> c; }
           header tag_t { bit<8> tag; }""",
    locals="""@id(0x12000042) Counter<bit<64>, bit<8>>(4, CounterType_t.PACKETS_AND_BYTES) seen;
              RegisterParam<bit<32>>(5) step;
              Register<owned_t, bit<8>>(4, { 1, 2 }) owners;
              RegisterAction<owned_t, bit<8>, bit<32>>(owners) act = {
                  void apply(inout owned_t v, out bit<32> r) { v.stamp = v.stamp + step.read(); r = v.stamp; }
              };
              @id(0x01000042) action mark(@id(1) bit<8> b) { h.d.b = b; }
              @id(0x02000042) table t { key = { h.d.a : exact @name("a"); } actions = { mark; NoAction; }
                                        default_action = NoAction(); size = 8; }
              @hidden action hidden_one() { h.d.c = h.d.c; }
              @hidden table unseen { actions = { hidden_one; } const default_action = hidden_one(); size = 1; }""",
    deparser_locals='@name("told") Digest<told_t>() digest; Mirror() copy;',
    deparser="""if (dprsr.digest_type == 1) { digest.pack({ h.d.a, h.d.c }); }
                if (dprsr.mirror_type == 1) { copy.emit<tag_t>(9, { 0xEE }); }""",
)


@pytest.fixture
def switch() -> Iterator[TestSwitch]:
    with memory_switch(PROGRAM, ports=4) as running:
        yield running


@pytest.fixture
def control(switch: TestSwitch) -> Iterator[ControlSession]:
    session = ControlSession(switch.address, fy.SwitchOptions(), ("told",))
    try:
        yield session
    finally:
        session.close()


def info(tmp_path: Path) -> p4i.P4Info:
    path = tmp_path / "program.p4"
    path.write_text(PROGRAM)
    return p4info_of(compile_to_ir(path)[0])


def test_p4info(tmp_path: Path) -> None:
    found = info(tmp_path)
    assert found.pkg_info.arch == "tna"
    assert [(t.preamble.name, t.preamble.alias, t.preamble.id) for t in found.tables] == [("I.t", "t", 0x02000042)]
    assert {a.preamble.name for a in found.actions} == {"I.mark", "NoAction"}
    (counter,) = found.counters
    assert (counter.preamble.name, counter.preamble.id, counter.size) == ("I.seen", 0x12000042, 4)
    assert counter.spec.unit == p4i.CounterSpec.BOTH
    shown = {r.preamble.name: (r.size, r.type_spec.WhichOneof("type_spec")) for r in found.registers}
    assert shown == {"I.step": (1, "bitstring"), "I.owners": (4, "struct")}
    assert [m.name for m in found.type_info.structs["owned_t"].members] == ["owner", "stamp"]
    (digest,) = found.digests
    assert (digest.preamble.name, digest.type_spec.struct.name) == ("ID.told", "told_t")


def test_registers_parameters_tables_and_counters(switch: TestSwitch, control: ControlSession) -> None:
    (owner,) = control.read(fy.P4RegisterEntry("owners", index=3))
    assert owner.data == {"owner": 1, "stamp": 2}
    control.modify(
        [
            fy.P4RegisterEntry("owners", index=3, data={"owner": 7, "stamp": 100}),
            fy.P4RegisterEntry("step", index=0, data=11),
        ]
    )
    control.insert([fy.P4TableEntry("t", match=fy.P4TableMatch({"a": 3}), action=fy.P4TableAction("mark", b=0x77))])
    switch.send(2, frame(3))
    assert switch.expect(1) == frame(3, 0x77, d=111)
    (owner,) = control.read(fy.P4RegisterEntry("owners", index=3))
    assert owner.data == {"owner": 7, "stamp": 111}
    (cell,) = control.read(fy.P4CounterEntry("seen", index=3))
    assert (cell.data.packet_count, cell.data.byte_count) == (1, len(frame()) + 4)


def test_mirror_sessions_and_digests(switch: TestSwitch, control: ControlSession) -> None:
    control.insert(
        [
            fy.P4CloneSessionEntry(9, replicas=((3, 0),), packet_length_bytes=6),
            fy.P4DigestEntry("told", max_list_size=1),
        ]
    )
    switch.send(2, frame(1, c=0x1234))
    assert switch.expect(3) == b"\xee" + frame(1, c=0x1234)[:5]
    assert control.next_digest(10.0, "told") == {"a": 1, "c": 0x1234}


def test_a_recirculation_port_is_inside_the_switch(switch: TestSwitch) -> None:
    with pytest.raises(SwitchError, match="port 68 is a recirculation port"):
        switch.switch.add_port(PortSpec(ROUND, Memory()))
    with (
        pytest.raises(SwitchError, match="port 68 is attached"),
        memory_switch(PROGRAM, ports=[1, ROUND]),
    ):
        pass
    with memory_switch(PROGRAM, ports=[1, ROUND], recirculation=Recirculation(ports=(70,))):
        pass


def test_exclusions_by_the_admin_socket(switch: TestSwitch) -> None:
    def ask(**request: object) -> dict[str, object]:
        return answer(switch.switch, json.dumps({"op": "set_exclusion"} | request).encode())

    assert ask(id=3, ports=[1, 2]) == {"ok": True}
    assert ask(id=512, ports=[])["error"] == "no exclusion id 512: they go from 0 to 511"
    assert ask(id=3, ports=[512])["error"] == "no port 512: numbers go from 0 to 511"
    assert "takes a number" in str(ask(id=3)["error"])


# ------------------------------------------------------------------ the command line


@pytest.mark.parametrize(("asked", "status"), [("auto", 0), ("tna", 0), ("v1model", 1)])
def test_the_architecture_may_be_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: str, status: int
) -> None:
    path = tmp_path / "program.p4"
    path.write_text(PROGRAM)
    assert main([str(path), "--arch", asked, "--check"]) == status
    assert ("this program is for tna, and v1model is asked for" in capsys.readouterr().err) == (status == 1)


def test_unsupported_programs_end_with_status_2(tmp_path: Path) -> None:
    path = tmp_path / "program.p4"
    path.write_text(program(locals="Resubmit() r;"))
    assert main([str(path), "--check"]) == 2


def test_recirculation_flags() -> None:
    assert parse_recirculation(None, None, None) == Recirculation()
    assert parse_recirculation([68, 196], "10gbit", "64k") == Recirculation((68, 196), 10**10, 65536)
    for wrong in (([511], None, None), ([1, 1], None, None), ([1, 2, 3, 4, 5], None, None), (None, "fast", None)):
        with pytest.raises(SwitchError):
            parse_recirculation(*wrong)
