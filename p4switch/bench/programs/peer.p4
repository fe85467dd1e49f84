// What p4switch and simple_switch are compared by: no control plane needed. An L2 switch with one entry, and (-DMEMORY) a memory
// that answers each request with 4 KiB out of registers, to the port it came from.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> ether_type; }
header request_t { bit<32> slot; }
header line_t { bit<2048> bits; }
struct headers_t {
    ethernet_t ethernet;
#if defined(MEMORY)
    request_t request;
    line_t l0; line_t l1; line_t l2; line_t l3; line_t l4; line_t l5; line_t l6; line_t l7; line_t l8; line_t l9; line_t l10; line_t l11; line_t l12; line_t l13; line_t l14; line_t l15;
#endif
}
struct metadata_t { }

parser PeerParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        packet.extract(h.ethernet);
#if defined(MEMORY)
        packet.extract(h.request);
#endif
        transition accept;
    }
}

control NoVerify(inout headers_t h, inout metadata_t m) { apply { } }

control PeerIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
#if defined(MEMORY)
    register<bit<2048>>(64) line0;
    register<bit<2048>>(64) line1;
    register<bit<2048>>(64) line2;
    register<bit<2048>>(64) line3;
    register<bit<2048>>(64) line4;
    register<bit<2048>>(64) line5;
    register<bit<2048>>(64) line6;
    register<bit<2048>>(64) line7;
    register<bit<2048>>(64) line8;
    register<bit<2048>>(64) line9;
    register<bit<2048>>(64) line10;
    register<bit<2048>>(64) line11;
    register<bit<2048>>(64) line12;
    register<bit<2048>>(64) line13;
    register<bit<2048>>(64) line14;
    register<bit<2048>>(64) line15;
    apply {
        bit<32> slot = h.request.slot & 63;
        h.l0.setValid(); line0.read(h.l0.bits, slot);
        h.l1.setValid(); line1.read(h.l1.bits, slot);
        h.l2.setValid(); line2.read(h.l2.bits, slot);
        h.l3.setValid(); line3.read(h.l3.bits, slot);
        h.l4.setValid(); line4.read(h.l4.bits, slot);
        h.l5.setValid(); line5.read(h.l5.bits, slot);
        h.l6.setValid(); line6.read(h.l6.bits, slot);
        h.l7.setValid(); line7.read(h.l7.bits, slot);
        h.l8.setValid(); line8.read(h.l8.bits, slot);
        h.l9.setValid(); line9.read(h.l9.bits, slot);
        h.l10.setValid(); line10.read(h.l10.bits, slot);
        h.l11.setValid(); line11.read(h.l11.bits, slot);
        h.l12.setValid(); line12.read(h.l12.bits, slot);
        h.l13.setValid(); line13.read(h.l13.bits, slot);
        h.l14.setValid(); line14.read(h.l14.bits, slot);
        h.l15.setValid(); line15.read(h.l15.bits, slot);
        bit<48> asker = h.ethernet.src;
        h.ethernet.src = h.ethernet.dst;
        h.ethernet.dst = asker;
        s.egress_spec = s.ingress_port;
    }
#else
    action forward(bit<9> port) { s.egress_spec = port; }
    action drop() { mark_to_drop(s); }
    table dmac {
        key = { h.ethernet.dst : exact; }
        actions = { forward; drop; }
        const entries = { 0x020000000002 : forward(2); }
        const default_action = drop();
    }
    apply { dmac.apply(); }
#endif
}

control NoEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
control NoChecksum(inout headers_t h, inout metadata_t m) { apply { } }
control PeerDeparser(packet_out packet, in headers_t h) { apply { packet.emit(h); } }

V1Switch(PeerParser(), NoVerify(), PeerIngress(), NoEgress(), NoChecksum(), PeerDeparser()) main;
