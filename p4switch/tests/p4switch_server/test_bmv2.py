"""The commands with bmv2's names: their options, what p4c-bm2-ss writes, and the console on a running switch."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from p4switch.bmv2 import console, names, p4c
from p4switch.bmv2.options import translate
from p4switch.device_config import parse_device_config
from p4switch.errors import SwitchError
from p4switch.server.target import ConfigError
from p4switch.testing import TestSwitch, memory_switch

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
PROGRAM = """
#include <core.p4>
#include <v1model.p4>
header ethernet_t { bit<48> dst; bit<48> src; bit<16> kind; }
header ipv4_t { bit<64> first; bit<32> rest; bit<32> src; bit<32> dst; }
struct metadata_t { bit<9> port; }
struct headers_t { ethernet_t ethernet; ipv4_t ipv4; }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    value_set<bit<16>>(4) others;
    state start {
        p.extract(h.ethernet);
        transition select(h.ethernet.kind) { others: accept; default: ipv4; }
    }
    state ipv4 { p.extract(h.ipv4); transition accept; }
}
control V(inout headers_t h, inout metadata_t m) { apply { } }
control C(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    counter(4, CounterType.packets_and_bytes) seen;
    register<bit<32>>(4) last;
    meter(4, MeterType.packets) pace;
    direct_counter(CounterType.packets) routed;
    action drop() { mark_to_drop(s); }
    action forward(bit<48> dst, bit<9> port) { h.ethernet.dst = dst; s.egress_spec = port; routed.count(); }
    action hop(bit<9> port) { s.egress_spec = port; }
    action flood(bit<16> group) { s.mcast_grp = group; routed.count(); }
    table lpm {
        key = { h.ipv4.dst: lpm; }
        actions = { forward; flood; drop; NoAction; }
        default_action = NoAction;
        counters = routed;
    }
    table acl {
        key = { h.ipv4.src: ternary; s.ingress_port: range; h.ethernet.kind: exact; }
        actions = { drop; NoAction; }
    }
    action_selector(HashAlgorithm.crc16, 16, 8) hops;
    table spread {
        key = { h.ipv4.dst: lpm; h.ipv4.src: selector; }
        actions = { hop; drop; }
        implementation = hops;
    }
    bit<2> color;
    apply {
        s.egress_spec = 511;
        seen.count((bit<32>) s.ingress_port);
        last.write((bit<32>) s.ingress_port, h.ipv4.dst);
        pace.execute_meter((bit<32>) s.ingress_port, color);
        lpm.apply();
        spread.apply();
        acl.apply();
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h.ethernet); p.emit(h.ipv4); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""


def packet(src: str, dst: str) -> bytes:
    """An Ethernet frame for an IPv4 address."""
    addresses = b"".join(bytes(map(int, one.split("."))) for one in (src, dst))
    return bytes.fromhex("ffffffffffff0200000000010800") + bytes(12) + addresses + bytes(20)


# -- options -------------------------------------------------------------------------------------


def test_a_runners_command_line_means_what_it_means_for_bmv2():
    """The words that p4lang/tutorials' runner puts together."""
    words = ["-i", "1@s1-eth1", "-i", "2@s1-eth2", "--pcap", "/tmp/pcaps", "--nanolog", "ipc:///tmp/bm-0-log.ipc"]
    words += ["--device-id", "0", "build/basic.json", "--debugger", "--log-console", "--thrift-port", "9090"]
    words += ["--", "--grpc-server-addr", "0.0.0.0:50051", "--cpu-port", "255", "--priority-queues", "8"]
    found = translate("simple_switch_grpc", words, grpc=True)
    assert " ".join(found.arguments) == (
        "-i 1@s1-eth1 -i 2@s1-eth2 --pcap /tmp/pcaps --pcap-by-interface --device-id 0 --cpu-port 255"
        " --priority-queues 8 --trace"
        " --grpc 0.0.0.0:50051 --also-grpc 127.0.0.1:9090 build/basic.json"
    )
    assert [note.split()[1].rstrip(":") for note in found.notes] == ["--nanolog", "--debugger", "--thrift-port"]


def test_what_has_no_meaning_is_said_once():
    found = translate("simple_switch", ["--nanolog=a", "--nanolog", "b", "--log-flush", "--no-p4"], grpc=False)
    assert [note for note in found.notes if "nanolog" in note] == [
        "simple_switch: --nanolog has no effect: nobody is told of packets by nanomsg"
    ]
    assert not any("--log-flush" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "means"),
    [
        (["-Ltrace", "--log-file", "x"], ["-L", "debug", "--trace"]),
        (["-Linfo", "--log-console"], ["-L", "info"]),
        (["--log-level", "warn"], ["-L", "warning"]),
        (["--log-console"], ["--trace"]),
        ([], []),
    ],
)
def test_packets_are_traced_where_bmv2_logs_them(words: list[str], means: list[str]):
    found = translate("simple_switch_grpc", [*words, "--no-p4"], grpc=True)
    assert [a for a in found.arguments if a in ("-L", "debug", "info", "warning", "--trace")] == means


def test_one_option_may_name_several_interfaces():
    found = translate("simple_switch_grpc", ["-i", "2@veth2", "3@veth4", "--no-p4"], grpc=True)
    assert found.arguments[:5] == ("-i", "2@veth2", "-i", "3@veth4", "--no-p4")


def test_pcap_needs_no_folder():
    assert translate("simple_switch", ["--pcap", "-i", "1@a", "p.json"], grpc=False).arguments[:3] == (
        "--pcap",
        ".",
        "--pcap-by-interface",
    )


@pytest.mark.parametrize(
    ("words", "names_it"),
    [
        (["--no-such"], "--no-such: neither"),
        (["a.json", "b.json"], "a.json and b.json"),
        (["--load-modules", "x.so"], "externs come with the program"),
        (["-Lloud"], "-L loud: one of trace, debug"),
        (["--thrift-port", "none"], "--thrift-port none"),
        (["--device-id"], "--device-id needs a value"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(words: list[str], names_it: str):
    with pytest.raises(SwitchError, match=re.escape(names_it)):
        translate("simple_switch_grpc", words, grpc=True)


# -- P4DeviceConfig ------------------------------------------------------------------------------


def wrapped(device_data: bytes, extras: bytes = b"") -> bytes:
    """As protobuf writes a P4DeviceConfig with reassign set."""
    length = bytearray()
    rest = len(device_data)
    while rest >= 0x80:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    return (
        b"\x08\x01" + (b"\x12" + bytes([len(extras)]) + extras) * bool(extras) + b"\x1a" + bytes(length) + device_data
    )


def test_the_wrapping_of_bmv2s_controllers_is_taken_off():
    envelope = json.dumps({"files": {"a.p4": "x" * 300}}).encode()
    assert parse_device_config(wrapped(envelope)) == parse_device_config(envelope)
    assert parse_device_config(wrapped(envelope, extras=b"\x0a\x01k")) == parse_device_config(envelope)


@pytest.mark.parametrize(
    "broken", [b"\x1a\x05abc", b"\x1a", b"\x08", b"\x12\xff", b"\x08\x01\x22\x01a", b"\x1a" + b"\xff" * 40]
)
def test_a_broken_wrapping_is_an_error(broken: bytes):
    with pytest.raises(ConfigError, match=r"p4_device_config is (binary|empty)"):
        parse_device_config(broken)


# -- the compiler --------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """PROGRAM in two files of two folders."""
    (tmp_path / "common").mkdir()
    (tmp_path / "src").mkdir()
    head, body = PROGRAM.split("struct metadata_t", 1)
    (tmp_path / "common" / "headers.p4").write_text(head)
    file = tmp_path / "src" / "router.p4"
    file.write_text(f'#include "headers.p4"\nstruct metadata_t{body}')
    return file


def test_the_json_holds_all_that_the_program_is_made_of(program: Path, tmp_path: Path):
    output, info = tmp_path / "build.json", tmp_path / "p4info.txtpb"
    words = ["--p4v", "16", "--Wdisable=unused", "-I", str(tmp_path / "common"), "--p4runtime-files", str(info)]
    assert p4c.main([*words, "-o", str(output), str(program)]) == 0
    assert "I.lpm" in info.read_text()
    envelope = json.loads(output.read_text())
    assert sorted(envelope["files"]) == ["common/headers.p4", "src/router.p4"]
    program.unlink()
    with memory_switch(ports=1) as switch:
        switch.switch.load(parse_device_config(output.read_bytes()))
        assert [t.preamble.name for t in switch.switch.p4info.tables] == ["I.lpm", "I.acl", "I.spread"]


def test_the_driver_writes_into_a_folder(program: Path, tmp_path: Path):
    words = ["--target", "bmv2", "--arch", "v1model", "--std", "p4-16", "-I", str(tmp_path / "common")]
    assert p4c.main_of_driver([*words, "-o", str(tmp_path / "out"), str(program)]) == 0
    assert json.loads((tmp_path / "out" / "router.json").read_text())["main"] == "src/router.p4"


def test_the_driver_compiles_what_it_preprocessed(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["--target", "bmv2", "-I", str(tmp_path / "common"), "-o", str(tmp_path / "out"), str(program)]
    assert p4c.main_of_driver(["-E", *words]) == 0
    expanded = tmp_path / "out" / "router.p4i"
    expanded.write_text(
        expanded.read_text().replace("table lpm", "table longest").replace("lpm.apply", "longest.apply")
    )
    info = tmp_path / "out" / "p4info.txtpb"
    assert p4c.main_of_driver(["-e", "--p4runtime-files", str(info), *words]) == 0
    assert "I.longest" in info.read_text()
    assert json.loads((tmp_path / "out" / "router.json").read_text())["main"] == "router.p4i"
    assert p4c.main(["-E", "-I", str(tmp_path / "common"), str(program)]) == 0
    assert "header ethernet_t {" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--p4v", "14"], "P4_14 is not supported"),
        (["--arch", "psa"], "--arch psa"),
        (["--frobnicate"], "--frobnicate: p4switch has no such option"),
    ],
)
def test_the_compiler_says_what_it_cannot_do(
    words: list[str], says: str, program: Path, capsys: pytest.CaptureFixture[str]
):
    assert p4c.main([*words, str(program)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_errors_of_the_program_name_its_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    wrong = tmp_path / "wrong.p4"
    wrong.write_text("#include <core.p4>\n#include <v1model.p4>\nheader h_t { bit<8> a }\n")
    assert p4c.main([str(wrong)]) == 1
    assert "wrong.p4:3:" in capsys.readouterr().err


# -- commands in a folder ------------------------------------------------------------------------


def test_a_folder_of_commands_runs_a_switch(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Compiler, switch and console by their names alone, whatever PYTHONPATH says."""
    commands = tmp_path / "bin of bmv2"
    assert names.write([str(commands)]) == 0
    assert "simple_switch_grpc" in capsys.readouterr().out
    surroundings = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path / "nowhere")}

    def run(*words: str, typed: str = "") -> str:
        done = subprocess.run(
            words, env=surroundings, cwd=tmp_path, input=typed, text=True, capture_output=True, check=True
        )
        return done.stdout

    run("p4c-bm2-ss", "-I", "common", "-o", "router.json", str(program))
    words = ["simple_switch_grpc", "--device-id", "7", "--log-file", "log", "router.json"]
    words += ["--", "--grpc-server-addr", f"unix:{tmp_path}/grpc", "--cpu-port", "255"]
    surroundings["NOTIFY_SOCKET"] = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as up:
        up.bind(surroundings["NOTIFY_SOCKET"])
        up.settimeout(60)
        with subprocess.Popen(words, env=surroundings, cwd=tmp_path) as switch:
            try:
                assert up.recv(99) == b"READY=1"
                assert Path(f"/proc/{switch.pid}/comm").read_text() == "simple_switch_g\n"
                typed = "table_add lpm forward 10.0.1.0/24 => 08:00:00:00:01:01 2\ntable_dump lpm\n"
                out = run("simple_switch_CLI", "--grpc", f"unix:{tmp_path}/grpc", typed=typed)
            finally:
                switch.terminate()
    assert "Entry has been added with handle 0" in out
    assert "Action entry: I.forward - 080000000101, 0002" in out
    assert "listening on unix:" in (tmp_path / "log.txt").read_text()


# -- the console ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestSwitch]:
    with memory_switch(PROGRAM, ports=4, device_id=3) as switch:
        yield switch


@pytest.fixture
def typed(router: TestSwitch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Types lines into a console of the router; gives what it prints, without its prompt."""

    def converse(*lines: str) -> list[str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert console.main(["--grpc", router.address]) == 0
        out = capsys.readouterr().out.replace(console.PROMPT, "")
        return out.splitlines()[1:-1]

    yield converse
    converse("table_clear lpm", "table_clear acl", "table_reset_default lpm")


def test_routes_are_added_modified_and_deleted(typed, router: TestSwitch):
    frame = packet("10.0.0.1", "10.0.1.9")
    assert typed("table_add lpm forward 10.0.1.0/24 => 08:00:00:00:01:01 2  # a comment") == [
        "Entry has been added with handle 0"
    ]
    router.send(1, frame)
    assert router.expect(2)[:6] == bytes.fromhex("080000000101")
    assert typed("table_modify I.lpm forward 0 08:00:00:00:01:01 3", "table_num_entries lpm") == ["1"]
    router.send(1, frame)
    router.expect(3)
    assert typed("table_delete lpm 0", "table_num_entries lpm") == ["0"]


def test_handles_stay_in_the_next_console(typed):
    route = "table_add lpm forward 10.{}.0.0/16 => 0 1"
    typed(*(route.format(n) for n in range(3)), "table_delete lpm 1")
    assert typed("table_dump_entry lpm 2")[3] == "* h.ipv4.dst          : LPM       0a020000/16"
    assert typed(route.format(9), "table_dump_entry lpm 0x1")[:2] == [
        "Entry has been added with handle 1",
        "**********",
    ]
    assert typed("table_delete lpm 7") == ["Error: Invalid table operation (BAD_HANDLE): I.lpm has no entry 7"]


def test_ternary_and_range_keys_have_a_priority_that_is_highest_at_0(typed, router: TestSwitch):
    typed(
        "table_add lpm forward 0.0.0.0/0 => 1 2",
        "table_add acl drop 10.0.0.0&&&255.0.0.0 1->2 0x800 => 5",
        "table_add acl NoAction 10.0.0.1&&&255.255.255.255 0->511 0x800 => 1",
    )
    router.send(1, packet("10.0.0.1", "1.2.3.4"))  # the second entry comes before the first
    router.expect(2)
    before = router.switch.runtime.stats().processed
    router.send(1, packet("10.0.0.2", "1.2.3.4"))
    assert router.take_all(settled_after=before + 1) == {}
    assert "Priority: 5" in typed("table_dump acl")


def test_a_default_action_is_set_and_reset(typed):
    assert "Action entry: I.flood - 0007" in typed("table_set_default lpm flood 7", "table_dump lpm")
    assert "Action entry: NoAction - " in typed("table_reset_default lpm", "table_dump lpm")


def test_groups_copy_packets(typed, router: TestSwitch):
    typed(
        "mc_mgrp_create 9",
        "mc_node_create 1 2 3",
        "mc_node_create 2 4",
        "mc_node_associate 9 0",
        "mc_node_associate 9 1",
        "table_set_default lpm flood 9",
    )
    router.send(1, packet("1.1.1.1", "2.2.2.2"))
    for port in (2, 3, 4):
        router.expect(port)
    assert typed("mc_dump") == ["mgrp(9) -> (rid 1, port 2), (rid 1, port 3), (rid 2, port 4)"]
    assert typed("mc_mgrp_destroy 9", "mc_dump") == []


def test_members_and_groups_of_a_profile(typed, router: TestSwitch):
    """Handles begin at 0, as scripts for bmv2 expect; a table's name stands for its profile."""
    assert typed("act_prof_create_member hops hop 2", "act_prof_create_member spread I.hop 3") == [
        "Member has been created with handle 0",
        "Member has been created with handle 1",
    ]
    assert typed(
        "act_prof_create_group hops",
        "act_prof_add_member_to_group hops 0 0",
        "act_prof_add_member_to_group hops 1 0",
        "act_prof_remove_member_from_group hops 0 0",
        "act_prof_dump_group hops 0",
        "table_indirect_add_with_group spread 10.0.0.0/8 => 0",
        "table_indirect_add spread 11.0.0.0/8 => 0",
        "table_dump spread",
    )[1:6] == [
        "Dumping group 0",
        "Members: [1]",
        "Entry has been added with handle 0",
        "Entry has been added with handle 1",
        "==========",
    ]
    router.send(1, packet("1.1.1.1", "10.0.0.1"))
    router.expect(3)
    router.send(1, packet("1.1.1.1", "11.0.0.1"))
    router.expect(2)
    assert "Action entry: group 0" in typed("act_prof_modify_member hops hop 1 => 4", "table_dump spread")
    router.send(1, packet("1.1.1.1", "10.0.0.1"))
    router.expect(4)
    typed("table_clear spread", "act_prof_delete_group hops 0", "act_prof_delete_member hops 0")
    assert typed("act_prof_dump hops")[1:4] == ["MEMBERS", "Dumping member 1", "I.hop - 0004"]
    assert typed("act_prof_delete_member hops 1", "act_prof_dump hops")[:3] == ["==========", "MEMBERS", "=========="]


def test_values_of_a_parser_value_set(typed, router: TestSwitch):
    arp = bytes.fromhex("ffffffffffff0200000000010806")  # too short for the IPv4 header that else follows
    typed("table_set_default lpm forward 1 2", "pvs_add others 0x806", "pvs_add others 0x88cc")
    errors = router.switch.runtime.stats().parser_errors
    router.send(1, arp)
    assert typed("pvs_get others", "pvs_remove others 0x806", "pvs_get others") == [
        "EXACT     0806",
        "EXACT     88cc",
        "EXACT     88cc",
    ]
    assert router.switch.runtime.stats().parser_errors == errors
    assert typed("pvs_clear others", "pvs_get others", "show_pvs")[0].startswith("P.others")


def test_an_entry_is_found_by_its_key(typed):
    typed("table_add acl drop 10.0.0.0&&&255.0.0.0 1->2 0x800 => 5")
    assert typed("table_dump_entry_from_key acl 10.0.0.0&&&255.0.0.0 1->2 0x800 5")[1] == "Dumping entry 0x0"
    assert [line.split()[0] for line in typed("table_show_actions acl")] == ["I.drop", "NoAction"]
    assert "does not support" in typed("table_set_timeout acl 0 500")[0]


def test_clone_sessions(typed):
    assert typed("mirroring_add 5 2", "mirroring_add 5 3", "mirroring_get 5", "mirroring_delete 5") == [
        "session 5: ports 3"
    ]


def test_counters_registers_and_meters(typed, router: TestSwitch):
    typed("counter_reset seen", "counter_reset routed", "register_reset last", "table_add lpm forward 9.0.0.0/8 => 1 4")
    router.send(2, packet("1.1.1.1", "9.2.2.2"))
    router.expect(4)
    assert typed("counter_read seen 2", "counter_read I.routed 0", "register_read last 2") == [
        f"seen[2]= ({len(packet('1.1.1.1', '9.2.2.2'))} bytes, 1 packets)",
        "I.routed[0]= (54 bytes, 1 packets)",
        f"I.last[2]= {0x09020202}",
    ]
    assert typed("register_write last 1 7", "register_read last") == [f"I.last= 0, 7, {0x09020202}, 0"]
    assert typed("counter_write seen 1 5 600", "counter_read seen 1") == ["seen[1]= (600 bytes, 5 packets)"]
    assert typed("meter_set_rates pace 1 0.0001:5 0.001:9", "meter_get_rates pace 1") == [
        "0: info rate = 0.0001, burst size = 5",
        "1: info rate = 0.001, burst size = 9",
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("table_add no forward 1/8 => 1 2", "Invalid table name (no): there are I.lpm, I.acl, I.spread"),
        ("table_add lpm no 1/8 =>", "Invalid action name (no)"),
        ("table_add lpm forward 10.0.0.1 => 1 2", "write VALUE/LENGTH, not 10.0.0.1"),
        ("table_add lpm forward 10.0.0.0/8 => 1", "action I.forward needs 2 parameters, not 1"),
        ("table_add lpm forward 10.0.0.0/8 => 1 99999", "0x01869f does not fit bit<9>"),
        ("table_add acl drop 1&&&1 0->1 2 =>", "table I.acl needs a priority"),
        ("table_add lpm forward x/8 => 1 2", "'x' is no number and no address"),
        ("counter_read seen 99", "99"),
        ("set_crc16_parameters a b", "set_crc16_parameters: P4Runtime has no such request: name crc16_custom's"),
        ("set_queue_rate 10 2", "start the switch with --port-option PORT:rate=10mbit"),
        ("no_such_command", "not one of this console's commands (see help)"),
        ("table_indirect_add spread 1.0.0.0/8 => 7", "no member 8"),
        ("act_prof_remove_member_from_group hops 0 5", "no group 6"),
        ("pvs_remove others 0x99", "others has no value 0x99"),
        ("table_dump_entry_from_key lpm 1.0.0.0/8", "I.lpm has no entry with this key"),
        ("table_delete lpm", "usage: table_delete TABLE HANDLE"),
    ],
)
def test_the_console_says_what_is_wrong_and_goes_on(typed, line: str, says: str):
    first, *rest = typed(line, "table_num_entries lpm")
    assert first.startswith("Error: ") and says in first
    assert rest == ["0"]


def test_where_no_switch_is_the_console_says_so(capsys: pytest.CaptureFixture[str]):
    assert console.main(["--grpc", "unix:/nonexistent/socket"]) == 1
    assert "no switch answers at unix:/nonexistent/socket" in capsys.readouterr().err


def test_tools_of_bmv2_are_told_from_those_of_p4switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert names.tool_of_bmv2("simple_switch_grpc") is None
    theirs = tmp_path / "simple_switch_grpc"
    theirs.write_bytes(b"\x7fELF")
    theirs.chmod(0o755)
    assert names.tool_of_bmv2("simple_switch_grpc") == str(theirs)
    names.write([str(tmp_path)])
    assert names.tool_of_bmv2("simple_switch_grpc") is None
