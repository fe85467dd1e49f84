// kvcast's data plane for Tofino (TNA).
//
//                        +-- ordinary -----------------------------------------> forwarding
// packet -> fabric -> classification
//             |          +-- ARP for the pool address --> arp_responder
//             |          |
//             |          +-- control --> admission -> chunk_cache -> interest
//             |          |               JOIN, LEAVE ---> notice --------------> replication
//             |          |               FILL ----------> chunk_store -> orbit, mirror -> acknowledgement
//             |          |               GET if served -> chunk_store -> (absorbed, next segment -> orbit)
//             |          |               GET, NAK -----------------------------> forwarding
//             |          |
//             |          +-- cast data --> admission -> interest --------------> replication
//             |
//             +-- from the recirculation port
//                        +-- cached data --> chunk_cache -> interest -> chunk_store -> orbit, replication
//                        +-- GET of the next segment, as above
//                        +-- last LEAVE -> interest (frees the entry)
//                        +-- acknowledgement -> (FILL_ACK to the holder's port)
//
//                        heat -> digest          whatever is dropped -> ingress_drops
//
// egress: a cast packet -> pruning,  a flooded one -> no echo -> egress_drops
//         mirrored head of a FILL -> acknowledgement -> recirculation port
//
// Controls of the same name do the same as in ../v1model/kvcast.p4, and those of ../include are the very same. The
// control plane programs the same tables; beside them multicast groups by bitmap (see replication.p4), mirror session
// 500 (the recirculation port, 86 bytes: 4 of the mirror's header, 82 of the packet), the digests heat_report_t and lost_report_t, and the register parameters
// interest_ttl, heat_window and report_window. docs/targets.md is the reference.

#include <core.p4>
#include <tna.p4>

#include "sizes.p4"
#include "../include/headers.p4"
#include "../include/drops.p4"
#include "../include/states.p4"
#include "types.p4"
#include "heat.p4"
#include "parser.p4"
#include "deparser.p4"
#include "../include/fabric.p4"
#include "../include/classification.p4"
#include "../include/admission.p4"
#include "../include/pool_source.p4"
#include "../include/segment_range.p4"
#include "key_hash.p4"
#include "round.p4"
#include "some.p4"
#include "chunk_cache.p4"
#include "interest_members.p4"
#include "interest_leader.p4"
#include "interest.p4"
#include "../include/notice.p4"
#include "../include/fill_check.p4"
#include "due.p4"
#include "chunk_store.p4"
#include "replication.p4"
#include "../include/pruning.p4"
#include "../include/forwarding.p4"
#include "../include/arp_responder.p4"
#include "traffic.p4"
#include "drops.p4"

control KvcastIngress(inout headers_t h, inout metadata_t m, in ingress_intrinsic_metadata_t ig,
                      in ingress_intrinsic_metadata_from_parser_t prsr,
                      inout ingress_intrinsic_metadata_for_deparser_t d,
                      inout ingress_intrinsic_metadata_for_tm_t tm) {
    Fabric()          fabric;
    Classification()  classification;
    Round()           round;
    Acknowledgement() acknowledgement;
    Admission()       admission;
    KeyHash()         key_hash;
    ChunkCache()      chunk_cache;
    SegmentRange()    segment_range;
    Interest()        interest;
    Notice()          notice;
    ChunkStore()      chunk_store;
    Replication()     replication;
    Forwarding()      forwarding;
    ArpResponder()    arp_responder;
    Heat()            heat;
    Traffic()         traffic;
    IngressDrops()    drops;
    Some()            anybody;
    Some()            left;

    apply {
        bool forward = false;
        bit<1> wanted;
        bit<1> was_in;

        fabric.apply(m);
        key_hash.apply(m, prsr.global_tstamp);
        chunk_cache.apply(m);
        if (m.round == 1) {
            round.apply(h, m);
        } else {
            classification.apply(h, m, h.kvd.isValid() && prsr.parser_err == PARSER_ERROR_OK,
                                 prsr.parser_err != PARSER_ERROR_OK);
        }

        if (m.kind == PacketKind.ORDINARY) {
            forward = m.absorbed == 0;
        } else if (m.kind == PacketKind.POOL_ARP) {
            arp_responder.apply(h, m);
        } else if (m.round == 1 && m.op == OP_FILL_ACK) {
            acknowledgement.apply(h, m);
        } else {
            if (m.drop == DropReason.NONE && m.kind != PacketKind.ORBIT) {
                admission.apply(h, m, m.port, m.round == 0);
            }
            m.slot = m.first_slot + m.segment;
            if (m.drop == DropReason.NONE && m.kind == PacketKind.CONTROL && m.op != OP_FILL) {
                segment_range.apply(h, m);
            }
            if (m.drop == DropReason.NONE && m.op != OP_FILL && m.op != OP_NAK) {
                interest.apply(h, m);
            }
            if (m.drop == DropReason.NONE) {
                chunk_store.apply(h, m, d);
            }
            anybody.apply(m.deliver, wanted);
            if (m.drop == DropReason.NONE) {
                if (m.kind == PacketKind.ORBIT) {
                    m.cast = wanted;
                    if (wanted == 1) {
                        m.event = OrbitEvent.CAST;
                    }
                } else if (m.kind == PacketKind.CAST) {
                    m.cast = wanted;
                    if (wanted == 0) {
                        m.drop = DropReason.NO_INTEREST;
                    }
                } else if (m.op == OP_LEAVE && m.round == 1) {
                    m.absorbed = 1;
                } else if (m.op == OP_LEAVE) {
                    left.apply(m.mine, was_in);
                    if (was_in == 0) {
                        m.drop = DropReason.NO_INTEREST;
                    } else if (wanted == 0) {
                        m.drop = DropReason.LAST_LEFT;
                        m.again = 1;
                    } else {
                        notice.apply(h, m);
                    }
                } else if (m.op == OP_JOIN) {
                    notice.apply(h, m);
                } else if (m.op == OP_GET || m.op == OP_NAK) {
                    if (m.absorbed == 0) {
                        forward = true;
                        if (m.round == 1) {
                            h.kvc.members = 0;  // as it arrived
                        }
                    }
                }
                heat.apply(m, d);
                if (m.cast == 1) {
                    replication.apply(m, tm);
                }
            }
            traffic.apply(m);
        }

        if (forward) {
            forwarding.apply(h, m);
        }
        if (m.drop != DropReason.NONE) {
            drops.apply(m.drop, m.again, d);
        }
        if (m.again == 1) {
            tm.ucast_egress_port = RECIRCULATION_PORT;
            if (m.kind == PacketKind.CONTROL && m.event != OrbitEvent.ENTERED) {
                tm.qid = QUEUE_CONTROL;
            }
        } else if (m.unicast == 1) {
            tm.ucast_egress_port = m.egress;
        } else if (m.flooded == 1) {
            tm.mcast_grp_a = GROUP_FLOOD;
        }

        h.bridge.setValid();
        h.bridge.tag = TAG_BRIDGE;
        h.bridge.cast = m.cast;
        h.bridge.flooded = m.flooded;
        h.bridge.pad = 0;
        h.bridge.port = m.port;
        h.bridge.deliver = m.deliver;
        h.bridge.needed = 0;
        if (m.kind == PacketKind.ORBIT || m.kind == PacketKind.CAST) {
            h.bridge.needed = DATA_FRAME_BYTES;
        } else if (m.event == OrbitEvent.ENTERED) {
            h.bridge.needed = FILL_FRAME_BYTES;
            h.kvc.setInvalid();                 // what goes on is the data datagram
        }
    }
}

control KvcastEgress(inout headers_t h, inout egress_metadata_t m, in egress_intrinsic_metadata_t eg,
                     in egress_intrinsic_metadata_from_parser_t prsr,
                     inout egress_intrinsic_metadata_for_deparser_t d,
                     inout egress_intrinsic_metadata_for_output_port_t oport) {
    Pruning()     pruning;
    EgressDrops() drops;

    apply {
        if (h.mirror.isValid()) {
            h.kvc.op = OP_FILL_ACK;
            h.kvc.member = h.mirror.member;
            h.kvc.members = (members_t) h.mirror.port;
        } else {
            // Only egress knows how long a packet is: as it arrived at ingress.
            bit<16> missing = h.bridge.needed |-| eg.pkt_length;
            if (missing != 0) {
                m.drop = DropReason.TRUNCATED;
            } else if (eg.egress_port == RECIRCULATION_PORT) {
                // on its round, cast or not
            } else if (h.bridge.cast == 1) {
                pruning.apply(m.deliver, eg.egress_port, m.drop);
            } else if (h.bridge.flooded == 1 && eg.egress_port == h.bridge.port) {
                m.drop = DropReason.FLOOD_ECHO;
            }
            if (m.drop != DropReason.NONE) {
                drops.apply(m.drop, d);
            }
        }
    }
}

Pipeline(KvcastIngressParser(), KvcastIngress(), KvcastIngressDeparser(),
         KvcastEgressParser(), KvcastEgress(), KvcastEgressDeparser()) pipe;
Switch(pipe) main;
