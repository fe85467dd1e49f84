// A switch that forwards by destination address and floods what it does not know.
struct metadata_t { }
#include "headers.p4"

control Forward(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    action forward(bit<9> port) { s.egress_spec = port; }
    action flood() { s.mcast_grp = 1; }
    table dmac {
        key = { h.ethernet.dst: exact @name("dst"); }
        actions = { forward; flood; }
        default_action = flood();
    }
    apply { dmac.apply(); }
}
control NotBack(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply { if (s.egress_port == s.ingress_port) { mark_to_drop(s); } }
}

@p4switch_flood_group(1)
V1Switch(EthernetIp(), Nothing(), Forward(), NotBack(), Nothing(), Emit()) main;
