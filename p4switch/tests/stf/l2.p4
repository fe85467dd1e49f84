// Exact forwarding with flooding by a multicast group, pruned at the ingress port.
#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

struct headers_t {
    ethernet_t eth;
}

struct metadata_t {
}

parser P(packet_in pkt, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        pkt.extract(h.eth);
        transition accept;
    }
}

control V(inout headers_t h, inout metadata_t m) {
    apply {
    }
}

control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    action forward(bit<9> port) {
        s.egress_spec = port;
    }
    action flood() {
        s.mcast_grp = 1;
    }
    table dmac {
        key = { h.eth.dst : exact; }
        actions = { forward; flood; }
        default_action = flood();
        size = 1024;
    }
    apply {
        dmac.apply();
    }
}

control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
        if (s.egress_port == s.ingress_port) {
            mark_to_drop(s);
        }
    }
}

control C(inout headers_t h, inout metadata_t m) {
    apply {
    }
}

control D(packet_out pkt, in headers_t h) {
    apply {
        pkt.emit(h.eth);
    }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;
