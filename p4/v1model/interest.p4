// Who still wants a chunk. An entry is found by a salted hash of the key and owned by a second one, so two
// chunks with the same index are told apart; when both hashes collide a receiver gets a packet too
// many and drops it by its full key. An entry that neither JOIN, GET nor data has touched for
// interest_ttl_us is free. An entry also remembers its leader, the member that last sent a GET for
// everybody, so that a newcomer knows at once whom it follows.
//
// One member has paid for an entry that is kept alive: its sponsor, who touched it first. A member pays for
// INTEREST_OF_PORT entries in a window of interest_ttl_us. Each window starts at zero, and an entry that lives into the
// next one is paid for again. So nothing has to be given back for entries that expire or are taken over, no count can
// leak, and at most twice INTEREST_OF_PORT entries live that one member has paid for.

control Interest(in headers_t h, inout metadata_t m, in standard_metadata_t s) {
    @id(0x16000401) register<signature_t>(INTEREST) interest_signature;
    @id(0x16000402) register<members_t>(INTEREST)   interest_members;
    @id(0x16000403) register<time_us_t>(INTEREST)   interest_last_seen;
    @id(0x16000404) register<member_t>(INTEREST)    interest_leader;
    @id(0x16000405) register<member_t>(INTEREST)    interest_sponsor;   // 1 + member, 0 = nobody
    @id(0x16000406) register<time_us_t>(MEMBERS)    budget_since;       // when the member's window began
    @id(0x16000407) register<bit<16>>(MEMBERS)      budget_used;        // entries that it has paid for since then

    Salt() salt;

    apply {
        bit<32> index;
        salt.apply(m);
        index = (bit<32>) m.hashed[63:48] & (INTEREST - 1);
        hash(m.signature, HashAlgorithm.crc32, 32w0, { m.key }, 64w0x100000000);

        @atomic {
            signature_t owner;
            members_t before;
            time_us_t last_seen;
            member_t leader;
            member_t sponsor;
            interest_signature.read(owner, index);
            interest_members.read(before, index);
            interest_last_seen.read(last_seen, index);
            interest_leader.read(leader, index);
            interest_sponsor.read(sponsor, index);

            bool live = before != 0 && m.now < last_seen + m.fabric.interest_ttl_us;
            bool mine = live && owner == m.signature;
            bool joins = m.op == OP_JOIN && (mine || !live);
            bool arrived = s.instance_type == INSTANCE_ARRIVED;

            bool paid = false;          // in the window of the sponsor that is not over
            time_us_t since;
            bit<16> used;
            if (mine && sponsor != 0) {
                budget_since.read(since, (bit<32>) sponsor - 1);
                paid = last_seen >= since && m.now < since + m.fabric.interest_ttl_us;
            }

            member_t payer = 0;
            if (joins || (m.op == OP_GET && mine && arrived && (before & m.me) != 0)) {
                payer = m.member + 1;
            } else if ((m.kind == PacketKind.CAST || m.op == OP_FILL) && mine) {
                payer = sponsor;
            }
            bool kept = paid && payer != 0;
            if (payer != 0 && !paid) {
                budget_since.read(since, (bit<32>) payer - 1);
                budget_used.read(used, (bit<32>) payer - 1);
                if (m.now >= since + m.fabric.interest_ttl_us) {
                    used = 0;
                    budget_since.write((bit<32>) payer - 1, m.now);
                }
                if (used < INTEREST_OF_PORT) {
                    kept = true;
                    interest_sponsor.write(index, payer);
                    budget_used.write((bit<32>) payer - 1, used + 1);
                }
            }
            if (kept) {
                interest_last_seen.write(index, m.now);
            }

            if (joins && !kept && !mine) {
                m.drop = DropReason.TOO_MANY_ENTRIES;
            } else if (m.op == OP_JOIN) {
                m.outcome = InterestOutcome.REFUSED;
                m.deliver = m.me;
                if (joins) {
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
                    if (sponsor == m.member + 1) {
                        interest_sponsor.write(index, 0);   // who of the others touches it next pays
                        if (paid) {
                            budget_used.read(used, (bit<32>) m.member);
                            budget_used.write((bit<32>) m.member, used |-| 1);
                        }
                    }
                    m.leader = leader;
                    interest_members.write(index, m.interest);
                }
            } else if (mine) {
                m.interest = before;
                m.leader = leader;
                if (arrived && m.op == OP_GET && (h.kvc.flags & FLAG_ONLY_ME) == 0 && (before & m.me) != 0) {
                    interest_leader.write(index, m.member + 1);
                }
            }
        }
        if (m.op == OP_GET && (m.interest & m.me) == 0) {
            m.drop = DropReason.NOT_JOINED;
        }
    }
}
