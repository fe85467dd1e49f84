"""Types that clients see as strings."""

from __future__ import annotations

import asyncio

import finsy as fy
import pytest

from p4switch.p4info import write_p4info
from p4switch.server.sdn_strings import SdnStrings
from p4switch.server.status import Code, StatusError
from p4switch.testing import memory_switch

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
@p4runtime_translation("", string)
type bit<9> port_id_t;
@p4runtime_translation("", string)
type bit<16> vrf_id_t;
header ethernet_t { bit<48> dst; bit<48> src; bit<16> kind; }
@controller_header("packet_out")
header packet_out_t { port_id_t port; bit<7> _pad; }
@controller_header("packet_in")
header packet_in_t { port_id_t port; bit<7> _pad; }
struct headers_t { packet_in_t pin; packet_out_t pout; ethernet_t ethernet; }
struct metadata_t { vrf_id_t vrf; port_id_t port; }
parser P(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { transition select(s.ingress_port) { 255: pout; default: ethernet; } }
    state pout { packet.extract(h.pout); transition ethernet; }
    state ethernet { packet.extract(h.ethernet); transition accept; }
}
control None(inout headers_t h, inout metadata_t m) { apply { } }
control Route(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    action set_vrf(vrf_id_t vrf) { m.vrf = vrf; }
    action send(port_id_t port) { s.egress_spec = (bit<9>) port; }
    action drop() { mark_to_drop(s); }
    table vrf {
        key = { m.port: exact @name("port"); }
        actions = { set_vrf; NoAction; }
        default_action = NoAction();
    }
    table routes {
        key = { m.vrf: exact @name("vrf"); h.ethernet.dst: exact @name("dst"); }
        actions = { send; drop; }
        default_action = drop();
    }
    apply {
        if (h.pout.isValid()) {
            s.egress_spec = (bit<9>) h.pout.port;
            h.pout.setInvalid();
            return;
        }
        m.port = (port_id_t) s.ingress_port;
        vrf.apply();
        routes.apply();
    }
}
control Out(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
        if (s.egress_port == 255) {
            h.pin.setValid();
            h.pin.port = (port_id_t) s.ingress_port;
        }
    }
}
control D(packet_out packet, in headers_t h) { apply { packet.emit(h.pin); packet.emit(h.ethernet); } }
V1Switch(P(), None(), Route(), Out(), None(), D()) main;
"""


def test_digits_are_numbers_and_other_strings_keep_theirs():
    strings = SdnStrings("port_id_t", 9)
    assert strings.decode(b"7", "x") == 7
    red = strings.decode(b"red", "x")
    blue = strings.decode(b"blue", "x")
    assert len({7, red, blue}) == 3
    assert strings.decode(b"red", "x") == red
    assert [strings.encode(n) for n in (7, red, blue, 0)] == [b"7", b"red", b"blue", b"0"]


def test_refusals():
    strings = SdnStrings("flag_t", 1)
    for value, code in ((b"", Code.OUT_OF_RANGE), (b"2", Code.OUT_OF_RANGE), (b"x" * 1000, Code.OUT_OF_RANGE)):
        with pytest.raises(StatusError) as caught:
            strings.decode(value, "x")
        assert caught.value.code is code
    assert strings.decode(b"on", "x") == 1
    with pytest.raises(StatusError, match="already stands for"):
        strings.decode(b"1", "x")
    assert strings.decode(b"off", "x") == 0
    with pytest.raises(StatusError, match="RESOURCE_EXHAUSTED"):
        strings.decode(b"more", "x")


def test_a_program_with_names(tmp_path):
    program = tmp_path / "named.p4"
    program.write_text(PROGRAM)
    frame = bytes.fromhex("020000000002020000000001") + b"\x88\xb5" + bytes(46)
    with memory_switch(program, ports=3) as switch:
        p4info = tmp_path / "named.p4info.txtpb"
        write_p4info(switch.switch.p4info, p4info)

        async def session() -> list[fy.P4TableEntry]:
            async with fy.Switch("s", switch.address, fy.SwitchOptions(p4info=p4info, p4blob=program)) as client:
                vrf = fy.P4TableMatch({"port": "1"})
                route = fy.P4TableMatch({"vrf": "tenant red", "dst": 2 << 40 | 2})
                await client.insert(
                    [
                        fy.P4TableEntry("vrf", match=vrf, action=fy.P4TableAction("set_vrf", vrf="tenant red")),
                        fy.P4TableEntry("routes", match=route, action=fy.P4TableAction("send", port="3")),
                    ]
                )
                switch.send(1, frame)
                assert switch.expect(3) == frame
                await client.write([fy.P4PacketOut(frame, port="2", _pad=0)])
                assert switch.expect(2) == frame
                return [e async for e in client.read([fy.P4TableEntry("vrf"), fy.P4TableEntry("routes")])]

        vrf, route = asyncio.run(asyncio.wait_for(session(), 30))
    assert (vrf.match["port"], vrf.action.args["vrf"]) == ("1", "tenant red")
    assert (route.match["vrf"], route.action.args["port"]) == ("tenant red", "3")
