// Longest prefix, with a checksum that is updated and verified.
#include <core.p4>
#include <v1model.p4>

header ipv4_t {
    bit<8>  version_ihl;
    bit<8>  tos;
    bit<16> length;
    bit<32> id_frag;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

struct headers_t {
    ipv4_t ip;
}

struct metadata_t {
}

parser P(packet_in pkt, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        pkt.extract(h.ip);
        transition accept;
    }
}

control V(inout headers_t h, inout metadata_t m) {
    apply {
        verify_checksum(true, { h.ip.version_ihl, h.ip.tos, h.ip.length, h.ip.id_frag, h.ip.ttl, h.ip.protocol,
                                h.ip.src, h.ip.dst }, h.ip.checksum, HashAlgorithm.csum16);
    }
}

control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    action route(bit<9> port) {
        s.egress_spec = port;
        h.ip.ttl = h.ip.ttl - 1;
    }
    action drop() {
        mark_to_drop(s);
    }
    table routes {
        key = { h.ip.dst : lpm; }
        actions = { route; drop; }
        const default_action = drop();
    }
    apply {
        if (s.checksum_error == 1 || h.ip.ttl == 0) {
            drop();
        } else {
            routes.apply();
        }
    }
}

control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
    }
}

control C(inout headers_t h, inout metadata_t m) {
    apply {
        update_checksum(h.ip.isValid(), { h.ip.version_ihl, h.ip.tos, h.ip.length, h.ip.id_frag, h.ip.ttl, h.ip.protocol,
                                          h.ip.src, h.ip.dst }, h.ip.checksum, HashAlgorithm.csum16);
    }
}

control D(packet_out pkt, in headers_t h) {
    apply {
        pkt.emit(h);
    }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;
