// Who still wants a chunk. An entry is found by a hash of the key and owned by a second one, so two
// chunks with the same index are told apart; when both hashes collide a receiver gets a packet too
// many and drops it by its full key. An entry that neither JOIN, GET nor data has touched for
// interest_ttl_us is free. An entry also remembers its leader, the member that last sent a GET for
// everybody, so that a newcomer knows at once whom it follows.

control Interest(in headers_t h, inout metadata_t m, in standard_metadata_t s) {
    @id(0x16000401) register<signature_t>(INTEREST) interest_signature;
    @id(0x16000402) register<members_t>(INTEREST)   interest_members;
    @id(0x16000403) register<time_us_t>(INTEREST)   interest_last_seen;
    @id(0x16000404) register<member_t>(INTEREST)    interest_leader;

    apply {
        bit<32> index;
        hash(index, HashAlgorithm.crc16, 32w0, { m.key }, (bit<32>) INTEREST);
        hash(m.signature, HashAlgorithm.crc32, 32w0, { m.key }, 64w0x100000000);

        @atomic {
            signature_t owner;
            members_t before;
            time_us_t last_seen;
            member_t leader;
            interest_signature.read(owner, index);
            interest_members.read(before, index);
            interest_last_seen.read(last_seen, index);
            interest_leader.read(leader, index);

            bool live = before != 0 && m.now < last_seen + m.fabric.interest_ttl_us;
            bool mine = live && owner == m.signature;

            if (m.op == OP_JOIN) {
                m.outcome = InterestOutcome.REFUSED;
                m.deliver = m.me;
                if (mine || !live) {
                    if (!mine) {
                        before = 0;
                        leader = 0;
                        interest_signature.write(index, m.signature);
                        interest_leader.write(index, leader);
                    }
                    m.outcome = InterestOutcome.JOINED;
                    m.interest = before | m.me;
                    m.deliver = m.interest;
                    m.leader = leader;
                    if (before != 0 && m.interest != before) {
                        m.raised = 1;
                    }
                    interest_members.write(index, m.interest);
                    interest_last_seen.write(index, m.now);
                }
            } else if (m.op == OP_LEAVE) {
                if (!mine || (before & m.me) == 0) {
                    m.drop = DropReason.NO_INTEREST;
                } else {
                    m.outcome = InterestOutcome.LEFT;
                    m.interest = before & ~m.me;
                    m.deliver = m.interest;
                    if (m.interest == 0) {
                        m.drop = DropReason.LAST_LEFT;
                    }
                    if (leader == m.member + 1) {
                        leader = 0;
                        interest_leader.write(index, leader);
                    }
                    m.leader = leader;
                    interest_members.write(index, m.interest);
                }
            } else if (mine) {
                m.interest = before;
                m.leader = leader;
                if (s.instance_type == INSTANCE_ARRIVED) {
                    interest_last_seen.write(index, m.now);
                    if (m.op == OP_GET && (h.kvc.flags & FLAG_ONLY_ME) == 0 && (before & m.me) != 0) {
                        interest_leader.write(index, m.member + 1);
                    }
                }
            }
        }
        if (m.op == OP_GET && (m.interest & m.me) == 0) {
            m.drop = DropReason.NOT_JOINED;
        }
    }
}
