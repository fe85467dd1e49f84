// kvcast's data plane for Tofino (TNA).
//
// Every packet takes the same way; what is done about it is decided once (`task`, classification.p4) and then looked up.
// A column is a stage of the pipeline, for what stands in it needs what stands left of it:
//
//   fabric       sources      classification  interest    interest  interest  interest  unicast   decision       drops
//   key_hash     differences                  owner       members   sets      leader    company   second_group   notice
//   chunk_cache  forwarding                   fill_check  heat      slot      due       whom_due  heat (report)  replication
//   admission                                 here                  owner     chunk               traffic        traffic
//   limits                                                          heat      store
//
//   in the task                  what it leads to
//   ORDINARY, GET, NAK           forwarding (whose answer is there already)
//   POOL_ARP                     arp_responder
//   HERE                         here -> digest
//   JOIN, LEAVE                  interest -> notice -> replication; the last LEAVE comes round once more
//   CAST                         interest -> replication
//   FILL                         chunk_store -> orbit, mirror -> acknowledgement
//   FILL, CAST_TOO               the same, and interest -> replication
//   SERVE                        chunk_store -> due; its next segment comes round, what was lost is forwarded
//   PASS, WAIT, GONE             from the recirculation port: -> orbit, replication to whom it is due
//   FREE, ACKNOWLEDGE            from there, too: frees an entry; FILL_ACK to the holder's port
//
// egress: a cast packet -> pruning,  a flooded one -> no echo -> egress_drops
//         mirrored head of a FILL -> acknowledgement -> recirculation port
//
// Controls of the same name do the same as in ../v1model/kvcast.p4, and those of ../include are the very same. The
// control plane programs the same tables; beside them multicast groups by bitmap (see replication.p4), mirror session
// 500 (the recirculation port, 86 bytes: 4 of the mirror's header, 82 of the packet), the digest lost_report_t, and the register parameters interest_ttl, heat_window and report_window.
// docs/explanation/tofino.md is the reference.

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
#include "../include/admission.p4"
#include "../include/pool_source.p4"
#include "../include/sources.p4"
#include "limits.p4"
#include "salt.p4"
#include "key_hash.p4"
#include "chunk_cache.p4"
#include "classification.p4"
#include "here.p4"
#include "fill_check.p4"
#include "interest_members.p4"
#include "interest_leader.p4"
#include "interest_budget.p4"
#include "interest.p4"
#include "due.p4"
#include "chunk_store.p4"
#include "unicast.p4"
#include "decision.p4"
#include "../include/notice.p4"
#include "replication.p4"
#include "../include/pruning.p4"
#include "../include/forwarding.p4"
#include "../include/arp_responder.p4"
#include "acknowledgement.p4"
#include "traffic.p4"
#include "drops.p4"

control KvcastIngress(inout headers_t h, inout metadata_t m, in ingress_intrinsic_metadata_t ig,
                      in ingress_intrinsic_metadata_from_parser_t prsr,
                      inout ingress_intrinsic_metadata_for_deparser_t d,
                      inout ingress_intrinsic_metadata_for_tm_t tm) {
    Fabric()          fabric;
    KeyHash()         key_hash;
    ChunkCache()      chunk_cache;
    Admission()       admission;
    RequestLimit()    request_limit;
    Salt()            salt;
    SegmentLimit()    segment_limit;
    Sources()         sources;
    Classification()  classification;
    Here()            here;
    Differences()     differences;
    FillCheck()       fill_check;
    InterestBudget()  interest_budget;
    InterestOwner()   interest_owner;
    InterestLow()     interest_low;
    InterestHigh()    interest_high;
    InterestSets()    interest_sets;
    InterestLeader()  interest_leader;
    InterestSponsor() interest_sponsor;
    InterestPayment() interest_payment;
    SlotOwner()       slot_owner;
    DueLow()          due_low;
    DueHigh()         due_high;
    DueAll()          due_all;
    ChunkStore()      chunk_store;
    WhomDue()         whom_due;
    Unicast()         unicast;
    Decision()        decision;
    Company()         company;
    Notice()          notice;
    Acknowledgement() acknowledgement;
    ArpResponder()    arp_responder;
    Heat()            heat;
    SecondGroup()     second_group;
    Replication()     replication;
    Forwarding()      forwarding;
    Traffic()         traffic;
    IngressDrops()    drops;

    // Each paragraph is a stage: it needs what those before it found.
    apply {
        fabric.apply(h, m);
        salt.apply(m);
        key_hash.apply(m, prsr.global_tstamp);
        chunk_cache.apply(h, m);
        if (m.round == 0) {
            admission.apply(m, m.port);
        } else {
            m.member = h.kvc.member;            // what goes round carries its sender along
            m.me = h.kvc.members;
        }
        request_limit.apply(m);
        interest_budget.apply(m);
        sources.apply(h, m);
        differences.apply(h, m);
        forwarding.apply(h, m);                 // whether it counts is known later

        if (m.unicast == 1 && m.egress == m.port) {
            m.hairpin = 1;
        }
        classification.apply(h, m, prsr.parser_err);

        interest_owner.apply(m);
        fill_check.apply(h, m);
        here.apply(m, d);
        if (m.task == Task.ACKNOWLEDGE) {
            acknowledgement.apply(h, m);
        } else if (m.task == Task.POOL_ARP) {
            arp_responder.apply(h, m);
        }

        interest_low.apply(m);
        interest_high.apply(m);

        interest_sets.apply(h, m);
        slot_owner.apply(m);

        interest_leader.apply(h, m);
        interest_sponsor.apply(m);
        due_low.apply(m);
        due_high.apply(m);
        due_all.apply(h, m);
        chunk_store.apply(h, m, d);

        segment_limit.apply(m);
        interest_payment.apply(m, d);
        company.apply(m);
        whom_due.apply(m);
        unicast.apply(m, tm);

        decision.apply(m, tm);
        second_group.apply(m);
        heat.apply(m, d);

        if (m.drop != DropReason.NONE) {
            drops.apply(m.drop, m.again, d);
        }
        traffic.apply(m);
        if (m.notice == 1) {
            notice.apply(h, m);
        }
        if (m.cast == 1) {
            replication.apply(m, tm);
        } else if (m.flooded == 1) {
            tm.mcast_grp_a = GROUP_FLOOD;
        }

        h.bridge.setValid();
        h.bridge.tag = TAG_BRIDGE;
        h.bridge.cast = m.cast;
        h.bridge.flooded = m.flooded;
        h.bridge.pad = 0;
        h.bridge.port = m.port;
        h.bridge.needed = m.needed;
        h.bridge.deliver = m.deliver;
    }
}

control KvcastEgress(inout headers_t h, inout egress_metadata_t m, in egress_intrinsic_metadata_t eg,
                     in egress_intrinsic_metadata_from_parser_t prsr,
                     inout egress_intrinsic_metadata_for_deparser_t d,
                     inout egress_intrinsic_metadata_for_output_port_t oport) {
    Pruning()     pruning;
    EgressDrops() drops;

    // A table of its own: a gateway compares with a constant, it does not subtract.
    @hidden action set_missing() { m.missing = h.bridge.needed |-| eg.pkt_length; }
    @hidden table shortness { actions = { set_missing; } const default_action = set_missing(); size = 1; }

    apply {
        if (h.mirror.isValid()) {
            if (h.kvc.op == OP_FILL) {
                h.kvc.op = OP_FILL_ACK;
            } else if (h.kvc.op == OP_LEAVE) {
                h.kvc.op = OP_CREDIT;
            }
            h.kvc.member = h.mirror.member;
            h.kvc.members = (members_t) h.mirror.port;
        } else {
            // Only egress knows how long a packet is: as it arrived at ingress.
            shortness.apply();
            if (m.missing != 0) {
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
@kvcast_cast_too
@p4switch_flood_group(FLOOD_GROUP)
Switch(pipe) main;
