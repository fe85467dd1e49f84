// What comes from the recirculation port was let in when it arrived. It is a cached segment, a GET for its next segment, the
// last LEAVE of a chunk, or the head of a FILL that egress has turned into an acknowledgement (`members` then holds the
// port that it is for; in a GET, who asks).

control Round(in headers_t h, inout metadata_t m) {
    apply {
        if (m.fabric.enabled == 0) {
            m.absorbed = 1;
        } else if (h.kvd.isValid()) {
            m.kind = PacketKind.ORBIT;
        } else {
            m.kind = PacketKind.CONTROL;
            m.op = h.kvc.op;
            m.member = h.kvc.member;
            m.me = h.kvc.members;
            if (m.op == OP_LEAVE) {
                m.now = m.now + 0x80000000;     // long over: frees the entry
            }
        }
    }
}

control Acknowledgement(inout headers_t h, inout metadata_t m) {
    PoolSource() pool_source;

    apply {
        m.egress = h.kvc.members[8:0];
        m.unicast = 1;
        h.kvc.members = 0;
        h.kvc.flags = 0;
        h.udp.checksum = 0;
        h.ethernet.dst = h.ethernet.src;
        h.ipv4.dst = h.ipv4.src;
        pool_source.apply(h, m);
    }
}
