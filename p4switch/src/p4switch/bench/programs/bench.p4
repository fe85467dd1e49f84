// Three small programs of one source, to measure the switch by: an L2 switch that floods what it does not know (default), a
// router with a table of prefixes (-DROUTE), and an L2 switch behind a list of ternary rules (-DRULES).
#include <core.p4>
#include <v1model.p4>

const bit<16> GROUP_ALL = 1;

header ethernet_t { bit<48> dst; bit<48> src; bit<16> ether_type; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<8> dscp_ecn; bit<16> total_length; bit<16> identification; bit<3> flags; bit<13> offset;
    bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> src; bit<32> dst;
}
header ports_t { bit<16> src; bit<16> dst; }
struct headers_t { ethernet_t ethernet; ipv4_t ipv4; ports_t ports; }
struct metadata_t { }

parser BenchParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        packet.extract(h.ethernet);
#if defined(ROUTE) || defined(RULES)
        transition select(h.ethernet.ether_type) { 0x0800: ipv4; default: accept; }
#else
        transition accept;
#endif
    }
    state ipv4 {
        packet.extract(h.ipv4);
        transition select(h.ipv4.protocol) { 6: ports; 17: ports; default: accept; }
    }
    state ports { packet.extract(h.ports); transition accept; }
}

control NoVerify(inout headers_t h, inout metadata_t m) { apply { } }

control BenchIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    action forward(bit<9> port) { s.egress_spec = port; }
    action flood() { s.mcast_grp = GROUP_ALL; }
    action drop() { mark_to_drop(s); }
    action route(bit<48> mac, bit<9> port) {
        h.ethernet.src = h.ethernet.dst;
        h.ethernet.dst = mac;
        h.ipv4.ttl = h.ipv4.ttl - 1;
        s.egress_spec = port;
    }
    table dmac {
        key = { h.ethernet.dst : exact; }
        actions = { forward; flood; }
        default_action = flood();
        size = 1048576;
    }
    table routes {
        key = { h.ipv4.dst : lpm; }
        actions = { route; drop; }
        default_action = drop();
        size = 1048576;
    }
    table rules {
        key = { h.ipv4.src : ternary; h.ipv4.dst : ternary; h.ipv4.protocol : ternary; h.ports.src : ternary; h.ports.dst : ternary; }
        actions = { NoAction; drop; }
        default_action = NoAction();
        size = 16384;
    }
    apply {
#if defined(ROUTE)
        if (h.ipv4.isValid()) routes.apply();
#elif defined(RULES)
        if (h.ports.isValid()) rules.apply();
        if (s.egress_spec != 511) dmac.apply();
#else
        dmac.apply();
#endif
    }
}

control BenchEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply { if (s.egress_rid != 0 && s.egress_port == s.ingress_port) mark_to_drop(s); }
}

control BenchChecksum(inout headers_t h, inout metadata_t m) {
    apply {
#if defined(ROUTE)
        update_checksum(h.ipv4.isValid(), { h.ipv4.version, h.ipv4.ihl, h.ipv4.dscp_ecn, h.ipv4.total_length, h.ipv4.identification,
            h.ipv4.flags, h.ipv4.offset, h.ipv4.ttl, h.ipv4.protocol, h.ipv4.src, h.ipv4.dst }, h.ipv4.checksum, HashAlgorithm.csum16);
#endif
    }
}

control BenchDeparser(packet_out packet, in headers_t h) { apply { packet.emit(h); } }

V1Switch(BenchParser(), NoVerify(), BenchIngress(), BenchEgress(), BenchChecksum(), BenchDeparser()) main;
