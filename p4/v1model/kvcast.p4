// kvcast's data plane for v1model (bmv2 and p4switch).
//
//                        +-- ordinary -----------------------------------------> forwarding
// packet -> fabric -> sources -> classification
//                        +-- ARP for the pool address --> arp_responder
//                        |
//                        +-- HERE --> here -> digest
//                        |
//                        +-- control --> admission -> request_limit -> chunk_cache -> interest -> segment_limit
//                        |               JOIN, LEAVE ---> notice --------------> replication
//                        |               FILL ----------> fill_check -> chunk_store -> (FILL_ACK to its port)
//                        |               FILL, CAST_TOO -> fill_check -> interest -> chunk_store -> replication
//                        |               GET if served -> chunk_store ---------> replication
//                        |               GET, NAK -----------------------------> forwarding
//                        |
//                        +-- cast data --> admission -> interest --------------> replication
//
//                        heat -> digest          whatever is dropped -> ingress_drops
//
// egress: a clone of a GET -> next segment -> recirculate
//         a FILL that is cast, too -> FILL_ACK for its sender, data for all others
//         a cast packet -> pruning,  a flooded one -> no echo -> egress_drops
//
// * fabric: parameters of the fabric. Until a controller writes them everything is ordinary.
// * sources: whether a packet comes from where its sender is.
// * classification: ordinary, control datagram, cast data or ARP for the pool; malformed and forged ones go.
// * here: a node says where it is, to the controller.
// * admission: which member is behind the port. No member, no kvcast.
// * request_limit, segment_limit: how much a port may ask for, and what it may cause.
// * chunk_cache: is the chunk absent, being filled, or served from here.
// * interest: who is waiting for the chunk. JOIN adds, LEAVE removes, data and GET keep it alive.
// * notice: JOIN and LEAVE go no further; what they did is told to the members.
// * chunk_store: FILL is stored and acknowledged; GET of a chunk served from here becomes its data
//   datagram, and a clone of it comes round again for the next segment.
// * replication, pruning: a cast packet reaches exactly the members that it is for.
// * forwarding: everything else, by destination address, flooded where that is unknown.
// * heat: which chunks the controller should consider for the chunk store.
// * drops: whatever is dropped is counted by reason.
//
// The control plane programs: fabric (default action), port_member, egress_member, kv_cache, replicate,
// dmac, station, source, address, request_limit, segment_limit, salt (default action); multicast group 1 (all ports) and the groups that replicate names; clone session 500
// (any port); the digests heat_report_t and sighting_t. docs/reference/dataplane.md is its reference.

#include <core.p4>
#include <v1model.p4>

#include "../include/sizes.p4"
#include "../include/headers.p4"
#include "../include/drops.p4"
#include "../include/states.p4"
#include "blocks.p4"
#include "types.p4"
#include "parser.p4"
#include "checksums.p4"
#include "deparser.p4"
#include "../include/fabric.p4"
#include "../include/sources.p4"
#include "classification.p4"
#include "here.p4"
#include "../include/admission.p4"
#include "limits.p4"
#include "segment_range.p4"
#include "chunk_cache.p4"
#include "salt.p4"
#include "interest.p4"
#include "../include/pool_source.p4"
#include "../include/notice.p4"
#include "fill_check.p4"
#include "fill_ack.p4"
#include "chunk_store.p4"
#include "replication.p4"
#include "../include/pruning.p4"
#include "../include/forwarding.p4"
#include "../include/arp_responder.p4"
#include "heat.p4"
#include "drops.p4"

control KvcastIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    Fabric()         fabric;
    Sources()        sources;
    Classification() classification;
    Here()           here;
    Admission()      admission;
    RequestLimit()   request_limit;
    SegmentLimit()   segment_limit;
    ChunkCache()     chunk_cache;
    FillCheck()      fill_check;
    Interest()       interest;
    Notice()         notice;
    ChunkStore()     chunk_store;
    Replication()    replication;
    Forwarding()     forwarding;
    ArpResponder()   arp_responder;
    Heat()           heat;
    IngressDrops()   drops;

    apply {
        if (s.instance_type == INSTANCE_ARRIVED) {
            m.port = s.ingress_port;
            m.now = s.ingress_global_timestamp;
        }
        fabric.apply(h, m);
        if (s.instance_type == INSTANCE_ARRIVED) {
            sources.apply(h, m);
        }
        classification.apply(h, m, h.icrc.isValid(), s.packet_length < ETHERNET_BYTES + (bit<32>) h.ipv4.total_length);

        bool forward = false;
        if (m.kind == PacketKind.ORDINARY) {
            forward = true;
        } else if (m.kind == PacketKind.POOL_ARP) {
            arp_responder.apply(h, m);
        } else {
            if (m.drop == DropReason.NONE && m.op == OP_HERE) {
                here.apply(h, m);
            }
            // What comes round again was admitted when it arrived, and carries its member along.
            if (m.drop == DropReason.NONE && s.instance_type == INSTANCE_ARRIVED) {
                admission.apply(m, s.ingress_port);
                if (m.drop == DropReason.NONE && m.known == 0) {
                    m.drop = DropReason.FORGED_SOURCE;  // a member speaks from its own addresses
                }
                if (m.drop == DropReason.NONE && (m.op == OP_JOIN || m.op == OP_GET)) {
                    request_limit.apply(m);
                    if (m.request_color == METER_RED) {
                        m.drop = DropReason.METERED;
                    }
                }
            }
            if (m.drop == DropReason.NONE && h.kvc.isValid()) {
                h.kvc.member = m.member;    // a host cannot speak for another
                h.udp.checksum = 0;         // it covered the member that the host claimed
            }
            if (m.drop == DropReason.NONE && m.kind == PacketKind.CONTROL) {
                chunk_cache.apply(h, m);
            }
            if (m.drop == DropReason.NONE && m.op == OP_FILL) {
                fill_check.apply(h, m);
            }
            if (m.drop == DropReason.NONE && m.op != OP_NAK
                    && (m.op != OP_FILL || (h.kvc.flags & FLAG_CAST_TOO) != 0)) {
                interest.apply(h, m, s);
            }
            if (m.drop == DropReason.NONE) {
                if (m.kind == PacketKind.CAST || m.op == OP_FILL) {
                    m.charged = (bit<16>) m.leader;
                } else if (m.op == OP_GET && m.state == ChunkState.SERVING) {
                    m.charged = (bit<16>) m.member + 1;
                }
                if (m.charged != 0) {
                    segment_limit.apply(m);
                    if (m.segment_color == METER_RED) {
                        if (m.op == OP_FILL) {
                            m.interest = 0;     // stored, not cast
                        } else {
                            m.drop = DropReason.METERED;
                        }
                    }
                }
            }
            if (m.drop == DropReason.NONE) {
                if (m.kind == PacketKind.CAST) {
                    if (m.fabric.off_mark == 0) {
                        h.ipv4.dscp = 0;        // only the switch says that something is the switch's
                        m.rewritten = 1;
                    }
                    m.cast = 1;
                    m.deliver = m.interest & ~m.me;
                    if (m.deliver == 0) {
                        m.drop = DropReason.NO_INTEREST;
                    }
                } else if (m.op == OP_JOIN || m.op == OP_LEAVE) {
                    notice.apply(h, m);
                    m.cast = 1;
                } else if (m.op == OP_FILL || (m.op == OP_GET && m.state == ChunkState.SERVING)) {
                    chunk_store.apply(h, m);
                }
                heat.apply(m);
                if (m.cast == 1) {
                    replication.apply(m, s);
                } else if (m.op == OP_GET || m.op == OP_NAK) {
                    forward = true;
                }
            }
        }

        if (forward) {
            forwarding.apply(h, m);
            if (m.unicast == 1 && m.egress == m.port) {
                m.drop = DropReason.HAIRPIN;
            }
        }
        if (m.drop != DropReason.NONE) {
            drops.apply(m, s);
        } else if (m.unicast == 1) {
            s.egress_spec = m.egress;
        } else if (m.flooded == 1) {
            s.mcast_grp = GROUP_FLOOD;
        }
    }
}

control KvcastEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    Pruning()     pruning;
    FillAck()     fill_ack;
    EgressDrops() drops;

    apply {
        if (s.instance_type == INSTANCE_CLONED_AT_INGRESS) {
            h.kvc.segment = h.kvc.segment + 1;
            h.kvc.count = h.kvc.count - 1;
            recirculate_preserving_field_list(1);
        } else {
            if (m.cast == 1) {
                pruning.apply(m.deliver, s.egress_port, m.drop);
                if (m.cast_too == 1) {
                    if (s.egress_port == m.port) {
                        fill_ack.apply(h, m);
                    } else {
                        h.kvc.setInvalid();
                    }
                }
            } else if (m.flooded == 1 && s.egress_port == m.port) {
                m.drop = DropReason.FLOOD_ECHO;
            }
            if (m.drop != DropReason.NONE) {
                drops.apply(m, s);
            }
        }
    }
}

@kvcast_cast_too
@p4switch_flood_group(FLOOD_GROUP)
V1Switch(KvcastParser(), VerifyChecksums(), KvcastIngress(), KvcastEgress(), UpdateChecksums(), KvcastDeparser()) main;
