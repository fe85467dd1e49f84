// A switch that tells its controller where it has seen an address that it does not know yet.
struct metadata_t { }
#include "headers.p4"

struct seen_t { bit<48> address; bit<9> port; }

control Learn(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    action tell() { digest<seen_t>(1, { h.ethernet.src, s.ingress_port }); }
    action known() { }
    action forward(bit<9> port) { s.egress_spec = port; }
    action flood() { s.mcast_grp = 1; }
    table smac {
        key = { h.ethernet.src: exact @name("src"); }
        actions = { tell; known; }
        default_action = tell();
    }
    table dmac {
        key = { h.ethernet.dst: exact @name("dst"); }
        actions = { forward; flood; }
        default_action = flood();
    }
    apply { smac.apply(); dmac.apply(); }
}
control NotBack(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply { if (s.egress_port == s.ingress_port) { mark_to_drop(s); } }
}

@p4switch_flood_group(1)
V1Switch(EthernetIp(), Nothing(), Learn(), NotBack(), Nothing(), Emit()) main;
