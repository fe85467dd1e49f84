// Parses what kvcast looks at. Whatever fails to parse keeps its bytes as payload, so ordinary
// traffic is forwarded untouched; a kvcast datagram cut short is found by its missing header.

parser KvcastParser(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        packet.extract(h.ethernet);
        transition select(h.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_ARP:  parse_arp;
            default:        accept;
        }
    }
    state parse_arp {
        packet.extract(h.arp);
        transition accept;
    }
    state parse_ipv4 {
        packet.extract(h.ipv4);
        transition select(h.ipv4.version, h.ipv4.ihl, h.ipv4.flags, h.ipv4.fragment_offset, h.ipv4.protocol) {
            (4, 5, 0 &&& 1, 0, IP_PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }
    state parse_udp {
        packet.extract(h.udp);
        transition select(h.udp.dst_port) {
            UDP_PORT_CONTROL: parse_control;
            UDP_PORT_ROCE:    parse_bth;
            default:          accept;
        }
    }
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
    state parse_bth {
        packet.extract(h.bth);
        transition select(h.bth.opcode, h.bth.qpn) {
            (BTH_OPCODE_UD_SEND_ONLY, QPN_MULTICAST): parse_data;
            default: accept;
        }
    }
    state parse_data {
        packet.extract(h.deth);
        packet.extract(h.kvd);
        transition accept;
    }
}
