// A TNA program: a frame goes as many rounds as its type says and leaves through the ports of two groups.
#include <core.p4>
#include <tna.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> kind; }
struct headers_t  { ethernet_t eth; }
struct metadata_t { bit<1> again; }

parser IngressParser(packet_in packet, out headers_t h, out metadata_t m, out ingress_intrinsic_metadata_t ig) {
    state start {
        packet.extract(ig);
        packet.advance(PORT_METADATA_SIZE);
        packet.extract(h.eth);
        m.again = 0;
        transition accept;
    }
}

control Ingress(inout headers_t h, inout metadata_t m, in ingress_intrinsic_metadata_t ig,
                in ingress_intrinsic_metadata_from_parser_t prsr, inout ingress_intrinsic_metadata_for_deparser_t d,
                inout ingress_intrinsic_metadata_for_tm_t tm) {
    Register<bit<32>, bit<8>>(1, 7) passes;
    RegisterAction<bit<32>, bit<8>, bit<32>>(passes) count = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = value + 1;
            now = value;
        }
    };
    action groups(bit<16> a, bit<16> b) {
        tm.mcast_grp_a = a;
        tm.mcast_grp_b = b;
    }
    action drop() { d.drop_ctl = 1; }
    table dmac {
        key = { h.eth.dst : exact @name("dst"); }
        actions = { groups; drop; }
        default_action = drop();
        size = 16;
    }
    apply {
        bit<32> passed = count.execute(0);
        if (h.eth.kind != 0) {
            h.eth.kind = h.eth.kind - 1;
            tm.ucast_egress_port = 68;
        } else {
            h.eth.src = (bit<48>) passed;
            dmac.apply();
        }
    }
}

control IngressDeparser(packet_out packet, inout headers_t h, in metadata_t m,
                        in ingress_intrinsic_metadata_for_deparser_t d) {
    apply { packet.emit(h.eth); }
}

parser EgressParser(packet_in packet, out headers_t h, out metadata_t m, out egress_intrinsic_metadata_t eg) {
    state start {
        packet.extract(eg);
        packet.extract(h.eth);
        transition accept;
    }
}

control Egress(inout headers_t h, inout metadata_t m, in egress_intrinsic_metadata_t eg,
               in egress_intrinsic_metadata_from_parser_t prsr, inout egress_intrinsic_metadata_for_deparser_t d,
               inout egress_intrinsic_metadata_for_output_port_t oport) {
    apply { h.eth.kind = eg.egress_rid; }
}

control EgressDeparser(packet_out packet, inout headers_t h, in metadata_t m,
                       in egress_intrinsic_metadata_for_deparser_t d) {
    apply { packet.emit(h.eth); }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;
Switch(pipe) main;
