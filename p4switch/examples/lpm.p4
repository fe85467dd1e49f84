// A router: the longest prefix wins, the time to live falls, and a counter for each route.
struct metadata_t { }
#include "headers.p4"

control Route(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    direct_counter(CounterType.packets_and_bytes) by_route;
    action drop() { mark_to_drop(s); }
    action next_hop(bit<48> mac, bit<9> port) {
        s.egress_spec = port;
        h.ethernet.src = h.ethernet.dst;
        h.ethernet.dst = mac;
        h.ipv4.ttl = h.ipv4.ttl - 1;
    }
    table routes {
        key = { h.ipv4.dst: lpm @name("dst"); }
        actions = { next_hop; drop; }
        default_action = drop();
        counters = by_route;
    }
    apply {
        if (h.ipv4.isValid() && h.ipv4.ttl > 1) { routes.apply(); } else { drop(); }
    }
}

V1Switch(EthernetIp(), Nothing(), Route(), NoEgress(), Checksum(), Emit()) main;
