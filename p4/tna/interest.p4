// Who still wants a chunk, as ../v1model/interest.p4. A Tofino register is touched once a packet and in one stage, so an
// entry lies in three registers that follow each other: owner and age, then members (two halves of 32), then leader.
//
// The first one has to decide before the others are known. That the last member has left it learns from the LEAVE itself,
// which comes round once more to free the entry. A JOIN of the same key in that microsecond is told that it joined and
// hears nothing; its reader renews the JOIN or reads reliably.

control Interest(in headers_t h, inout metadata_t m) {
    RegisterParam<tick_t>(INTEREST_TTL_TICKS) interest_ttl;

    Register<owned_t, interest_index_t>(INTEREST, { 0, 0x80000000 }) interest_owner;

    // JOIN: whose entry it is; takes one that is free.
    RegisterAction<owned_t, interest_index_t, ownership_t>(interest_owner) claim = {
        void apply(inout owned_t entry, out ownership_t owner) {
            tick_t ttl = interest_ttl.read();
            owner = this.predicate(entry.signature == m.signature, m.now - entry.stamp < ttl);
            if (entry.signature == m.signature || !(m.now - entry.stamp < ttl)) {
                entry.signature = m.signature;
                entry.stamp = m.now;
            }
        }
    };
    // Data, or a GET that has just arrived: keeps it alive.
    RegisterAction<owned_t, interest_index_t, ownership_t>(interest_owner) refresh = {
        void apply(inout owned_t entry, out ownership_t owner) {
            tick_t ttl = interest_ttl.read();
            owner = this.predicate(entry.signature == m.signature, m.now - entry.stamp < ttl);
            if (entry.signature == m.signature && m.now - entry.stamp < ttl) {
                entry.stamp = m.now;
            }
        }
    };
    // Anything else.
    RegisterAction<owned_t, interest_index_t, ownership_t>(interest_owner) look = {
        void apply(inout owned_t entry, out ownership_t owner) {
            tick_t ttl = interest_ttl.read();
            owner = this.predicate(entry.signature == m.signature, m.now - entry.stamp < ttl);
        }
    };
    // The last LEAVE, on its round; `now` is a time long over.
    RegisterAction<owned_t, interest_index_t, ownership_t>(interest_owner) free = {
        void apply(inout owned_t entry) {
            if (entry.signature == m.signature) {
                entry.stamp = m.now;
            }
        }
    };
    @hidden action do_claim()   { m.owner = claim.execute(m.index); }
    @hidden action do_refresh() { m.owner = refresh.execute(m.index); }
    @hidden action do_look()    { m.owner = look.execute(m.index); }
    @hidden action do_free()    { free.execute(m.index); }

    InterestLow()    low;
    InterestHigh()   high;
    InterestLeader() leader;
    Some()           waits;
    Some()           is_in;

    apply {
        if (m.op == OP_JOIN) {
            do_claim();
        } else if (m.round == 1) {
            if (m.op == OP_LEAVE) {
                do_free();
            } else {
                do_look();
            }
        } else if (m.op == OP_LEAVE) {
            do_look();
        } else {
            do_refresh();
        }

        if (m.op == OP_JOIN) {
            if (m.owner == MINE) {
                m.operation = SetOperation.ADD;
            } else if (m.owner != ANOTHERS) {
                m.operation = SetOperation.START;
            }
        } else if (m.owner == MINE) {
            if (m.op == OP_LEAVE) {
                m.operation = SetOperation.REMOVE;
            } else {
                m.operation = SetOperation.READ;
            }
        }
        low.apply(m);
        high.apply(m);

        // The set after this packet, and whom it concerns.
        if (m.operation == SetOperation.ADD) {
            m.outcome = InterestOutcome.JOINED;
            m.interest = m.before | m.me;
            m.deliver = m.before | m.me;
            m.newcomer = m.me & ~m.before;
        } else if (m.operation == SetOperation.START) {
            m.outcome = InterestOutcome.JOINED;
            m.interest = m.me;
            m.deliver = m.me;
        } else if (m.operation == SetOperation.REMOVE) {
            m.outcome = InterestOutcome.LEFT;
            m.interest = m.before & ~m.me;
            m.deliver = m.before & ~m.me;
            m.mine = m.before & m.me;
        } else if (m.operation == SetOperation.READ) {
            m.interest = m.before;
            m.deliver = m.before & ~m.me;
            m.mine = m.before & m.me;
        } else if (m.op == OP_JOIN) {
            m.outcome = InterestOutcome.REFUSED;
            m.deliver = m.me;
        }

        // JOIN that gives a waiting member company; GET of a member of the set for all of it.
        if (m.newcomer[31:0] != 0) {
            waits.apply(m.before, m.raised);
        } else if (m.newcomer[63:32] != 0) {
            waits.apply(m.before, m.raised);
        }
        if (m.op == OP_GET && m.round == 0 && (h.kvc.flags & FLAG_ONLY_ME) == 0) {
            is_in.apply(m.mine, m.leads);
        }
        leader.apply(m);
    }
}
