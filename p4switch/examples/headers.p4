// What the examples share: Ethernet, IPv4, and the blocks that have nothing to do.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> kind; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<6> dscp; bit<2> ecn; bit<16> length;
    bit<16> id; bit<3> flags; bit<13> offset;
    bit<8> ttl; bit<8> protocol; bit<16> checksum;
    bit<32> src; bit<32> dst;
}
struct headers_t { ethernet_t ethernet; ipv4_t ipv4; }

parser EthernetIp(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        packet.extract(h.ethernet);
        transition select(h.ethernet.kind) { 0x0800: ipv4; default: accept; }
    }
    state ipv4 { packet.extract(h.ipv4); transition accept; }
}

control Nothing(inout headers_t h, inout metadata_t m) { apply { } }
control NoEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }

control Checksum(inout headers_t h, inout metadata_t m) {
    apply {
        update_checksum(h.ipv4.isValid(),
            { h.ipv4.version, h.ipv4.ihl, h.ipv4.dscp, h.ipv4.ecn, h.ipv4.length, h.ipv4.id, h.ipv4.flags,
              h.ipv4.offset, h.ipv4.ttl, h.ipv4.protocol, h.ipv4.src, h.ipv4.dst },
            h.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Emit(packet_out packet, in headers_t h) { apply { packet.emit(h.ethernet); packet.emit(h.ipv4); } }
