// Marks congestion: a packet that leaves THRESHOLD others behind in the queue of its port carries the mark.
#ifndef THRESHOLD
#define THRESHOLD 4
#endif
struct metadata_t { }
#include "headers.p4"

control ToTwo(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { s.egress_spec = 2; } }
control Mark(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
        if (h.ipv4.isValid() && h.ipv4.ecn != 0 && s.deq_qdepth >= THRESHOLD) { h.ipv4.ecn = 3; }
    }
}

V1Switch(EthernetIp(), Nothing(), ToTwo(), Mark(), Checksum(), Emit()) main;
