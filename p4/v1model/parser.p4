// Parses what kvcast looks at. Whatever fails to parse keeps its bytes as payload, so ordinary
// traffic is forwarded untouched; a kvcast datagram cut short is found by its missing header.

parser KvcastParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        transition parse_ethernet;
    }
#include "../include/parser_states.p4"
    state parse_control {
        packet.extract(h.kvc);
        transition select(h.kvc.version, h.kvc.op) {
            (KV_VERSION, OP_FILL): parse_fill;
            default:               accept;
        }
    }
    state parse_fill {
        packet.extract(h.bth);
        packet.extract(h.deth);
        packet.extract(h.kvd);
#define EXTRACT_BLOCK(i) packet.extract(h.block[i]);
        FOR_EACH_BLOCK(EXTRACT_BLOCK)
        packet.extract(h.icrc);
        transition accept;
    }
    state parse_data {
        packet.extract(h.deth);
        packet.extract(h.kvd);
        transition accept;
    }
}
