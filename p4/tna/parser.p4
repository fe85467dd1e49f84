// Parses what kvcast looks at, as ../v1model/parser.p4 does. A FILL is parsed up to the payload of its data datagram;
// payload never enters the pipeline.

parser KvcastIngressParser(packet_in packet, out headers_t h, out metadata_t m, out ingress_intrinsic_metadata_t ig) {
    state start {
        packet.extract(ig);
        packet.advance(PORT_METADATA_SIZE);
        m.fabric = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
        m.task = Task.ORDINARY;
        m.drop = DropReason.NONE;
        m.forward = 0;
        m.port = ig.ingress_port;
        m.round = 0;
        m.member = 0;
        m.me = 0;
        m.now = 0;
        m.sender_mac = 0;
        m.sender_ip = 0;
        m.off_station = 0;
        m.known = 0;
        m.taken = 0;
        m.odd = 0;
        m.buried = 0;
        m.op = 0;
        m.request_color = 0;
        m.segment_color = 0;
        m.charged = 0;
        m.key = 0;
        m.state = ChunkState.ABSENT;
        m.cached = 0;
        m.segment = 0;
        m.first_slot = 0;
        m.left = 0;
        m.off_port = 0;
        m.off_segment = 0;
        m.off_segments = 0;
        m.off_key = 0;
        m.signature = 0;
        m.index = 0;
        m.owner = 0;
        m.before = 0;
        m.mine = 0;
        m.newcomer = 0;
        m.outcome = InterestOutcome.NONE;
        m.interest = 0;
        m.leader = 0;
        m.raised = 0;
        m.notice = 0;
        m.slot = 0;
        m.circulates = 0;
        m.due = 0;
        m.due_all = 0;
        m.event = OrbitEvent.NONE;
        m.again = 0;
        m.queue = 0;
        m.needed = 0;
        m.cell_a = 0;
        m.cell_b = 0;
        m.gets_a = 0;
        m.gets_b = 0;
        m.gets = 0;
        m.missing_a = 0;
        m.missing_b = 0;
        m.reported = 0;
        m.seen = 0;
        m.deliver = 0;
        m.cast = 0;
        m.second_group = 0;
        m.egress = 0;
        m.unicast = 0;
        m.hairpin = 0;
        m.flooded = 0;
        m.rewritten = 0;
        m.checksum = 0;
        m.mirror_tag = 0;
        m.mirror_port = 0;
        m.mirror_session = 0;
        transition select(ig.ingress_port) {
            RECIRCULATION_PORT: parse_round;
            default:            parse_ethernet;
        }
    }
    state parse_round {
        m.round = 1;
        transition parse_ethernet;
    }
#include "../include/parser_states.p4"
    state parse_control {
        packet.extract(h.kvc);
        m.op = h.kvc.op;
        m.key = h.kvc.key;
        m.segment = h.kvc.segment[15:0];
        transition select(h.kvc.version, h.kvc.op) {
            (KV_VERSION, OP_FILL): parse_fill;
            default:               accept;
        }
    }
    state parse_fill {
        packet.extract(h.bth);
        packet.extract(h.deth);
        packet.extract(h.kvd);
        transition accept;
    }
    state parse_data {
        packet.extract(h.deth);
        packet.extract(h.kvd);
        m.key = h.kvd.key;
        m.segment = h.kvd.segment[15:0];
        transition accept;
    }
}

parser KvcastEgressParser(packet_in packet, out headers_t h, out egress_metadata_t m, out egress_intrinsic_metadata_t eg) {
    state start {
        packet.extract(eg);
        m.drop = DropReason.NONE;
        m.deliver = 0;
        m.missing = 0;
        transition select(packet.lookahead<bit<8>>()) {
            TAG_MIRROR: parse_mirror;
            default:    parse_bridge;
        }
    }
    state parse_bridge {
        packet.extract(h.bridge);
        m.deliver = h.bridge.deliver;
        transition accept;
    }
    // A FILL, cut behind its control header.
    state parse_mirror {
        packet.extract(h.mirror);
        packet.extract(h.ethernet);
        packet.extract(h.ipv4);
        packet.extract(h.udp);
        packet.extract(h.kvc);
        transition accept;
    }
}
