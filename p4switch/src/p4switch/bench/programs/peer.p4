// What p4switch and simple_switch are compared by: no control plane needed. An L2 switch with one entry, and (-DMEMORY) a memory
// that fills 4 KiB of each frame from registers and sends it back where it came from. (bmv2 cannot make a frame grow by more than
// 512 bytes, so requests are as long as answers.)
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
        packet.extract(h.l0);
        packet.extract(h.l1);
        packet.extract(h.l2);
        packet.extract(h.l3);
        packet.extract(h.l4);
        packet.extract(h.l5);
        packet.extract(h.l6);
        packet.extract(h.l7);
        packet.extract(h.l8);
        packet.extract(h.l9);
        packet.extract(h.l10);
        packet.extract(h.l11);
        packet.extract(h.l12);
        packet.extract(h.l13);
        packet.extract(h.l14);
        packet.extract(h.l15);
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
        line0.read(h.l0.bits, slot);
        line1.read(h.l1.bits, slot);
        line2.read(h.l2.bits, slot);
        line3.read(h.l3.bits, slot);
        line4.read(h.l4.bits, slot);
        line5.read(h.l5.bits, slot);
        line6.read(h.l6.bits, slot);
        line7.read(h.l7.bits, slot);
        line8.read(h.l8.bits, slot);
        line9.read(h.l9.bits, slot);
        line10.read(h.l10.bits, slot);
        line11.read(h.l11.bits, slot);
        line12.read(h.l12.bits, slot);
        line13.read(h.l13.bits, slot);
        line14.read(h.l14.bits, slot);
        line15.read(h.l15.bits, slot);
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
