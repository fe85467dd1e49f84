"""p4net (PyPI) starts p4switch as bmv2: its compiler, hosts, P4Runtime client and register commands.

Needs root, and a Python with `pip install p4net` where P4NET_PYTHON says.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from p4switch.bmv2 import names

PYTHON = os.environ.get("P4NET_PYTHON", "")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON, reason="no P4NET_PYTHON=python with p4net"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
@controller_header("packet_in") header in_t { bit<9> port; bit<7> pad; }
header ethernet_t { bit<48> dst; bit<48> src; bit<16> kind; }
struct metadata_t { }
struct headers_t { in_t packet_in; ethernet_t ethernet; }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start { p.extract(h.ethernet); transition accept; }
}
control V(inout headers_t h, inout metadata_t m) { apply { } }
control C(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    register<bit<32>>(4) last;
    counter(4, CounterType.packets) seen;
    action to(bit<9> port) { s.egress_spec = port; }
    action flood() { s.mcast_grp = 7; }
    action tell() { s.egress_spec = 255; h.packet_in.setValid(); h.packet_in.port = s.ingress_port; }
    table l2 { key = { h.ethernet.dst: exact; } actions = { to; flood; tell; } default_action = tell; }
    apply {
        l2.apply();
        seen.count((bit<32>) s.ingress_port);
        last.write((bit<32>) s.ingress_port, (bit<32>) h.ethernet.kind);
    }
}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""

SCRIPT = """
from pathlib import Path
from p4net import Network
from p4net.topo import Topology

topology = Topology()
switch = topology.add_switch("s1", p4_src=Path("l2.p4"), cpu_port=255)
for n in (1, 2):
    host = topology.add_host(f"h{n}", ip=f"10.0.0.{n}/24", mac=f"00:00:00:00:00:0{n}")
    topology.add_link(host, switch, port_b=n)
with Network(topology) as net:
    client = net.switch("s1").client
    client.add_multicast_group(7, [1, 2])
    client.insert_table_entry("I.l2", {"h.ethernet.dst": "ff:ff:ff:ff:ff:ff"}, "I.flood")
    for n in (1, 2):
        client.insert_table_entry("I.l2", {"h.ethernet.dst": f"00:00:00:00:00:0{n}"}, "I.to", {"port": n})
    print("pings", sorted(net.pingall().values()))
    print("entries", len(client.list_table_entries("I.l2")))
    client.write_register("I.last", 3, 77)
    print("registers", client.read_register("I.last", 3), client.read_register("I.last", 1) in (0x800, 0x806))
    print("counted", client.read_counter("I.seen", 1).packet_count > 0)
"""


def test_p4net_runs_a_network(tmp_path: Path):
    (tmp_path / "l2.p4").write_text(PROGRAM)
    names.write([str(tmp_path / "bin")])
    surroundings = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    # Namespaces of its own: p4net's interfaces, named namespaces and ports are fixed, and end with them.
    alone = "ip link set lo up && mount -t sysfs sysfs /sys && mkdir -p /run/netns && mount -t tmpfs none /run/netns"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
         f'{alone} && exec "$0" -c "$1"', PYTHON, SCRIPT],
        cwd=tmp_path, env=surroundings, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["pings [True, True]", "entries 3", "registers 77 True", "counted True"]
