// Who still wants a chunk, as ../v1model/interest.p4. A Tofino register is touched once a packet and in one stage, so an
// entry lies in three registers that follow each other: owner and age, then members (two halves of 32), then leader.
// What a packet does to each is a row of a table, by what is to be done (`task`) and what the register before said.
//
// The first one has to decide before the others are known. That the last member has left it learns from the LEAVE itself,
// which comes round once more to free the entry. A JOIN of the same key in that microsecond is told that it joined and
// hears nothing; its reader renews the JOIN or reads reliably.

control InterestOwner(inout metadata_t m) {
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
    @hidden action nothing()    { }

    @hidden @stage(3)
    table owner {
        key = {
            m.task  : exact;
            m.round : exact;
        }
        actions = { do_claim; do_refresh; do_look; do_free; nothing; }
        const default_action = nothing();
        const entries = {
            (Task.JOIN, 0)  : do_claim();
            (Task.LEAVE, 0) : do_look();
            (Task.FREE, 1)  : do_free();
            (Task.GET, 0)   : do_refresh();
            (Task.GET, 1)   : do_look();
            (Task.SERVE, 0) : do_refresh();
            (Task.SERVE, 1) : do_look();
            (Task.CAST, 0)  : do_refresh();
            (Task.PASS, 1)  : do_look();
        }
        size = 16;
    }

    apply {
        owner.apply();
    }
}

// The set after this packet, and whom it concerns.
control InterestSets(inout metadata_t m) {
    @hidden
    action joined() {
        m.outcome = InterestOutcome.JOINED;
        m.interest = m.before | m.me;
        m.deliver = m.before | m.me;
        m.newcomer = m.me & ~m.before;
    }
    @hidden
    action first() {
        m.outcome = InterestOutcome.JOINED;
        m.interest = m.me;
        m.deliver = m.me;
    }
    @hidden
    action refused() {
        m.outcome = InterestOutcome.REFUSED;
        m.deliver = m.me;
    }
    @hidden
    action left() {
        m.outcome = InterestOutcome.LEFT;
        m.interest = m.before & ~m.me;
        m.deliver = m.before & ~m.me;
        m.mine = m.before & m.me;
    }
    @hidden
    action others() {
        m.interest = m.before;
        m.deliver = m.before & ~m.me;
        m.mine = m.before & m.me;
    }
    @hidden action nobody()    { }

    @hidden
    table sets {
        key = {
            m.task  : exact;
            m.owner : ternary;
        }
        actions = { joined; first; refused; left; others; nobody; }
        const default_action = nobody();
        const entries = {
            (Task.JOIN, MINE)     : joined();
            (Task.JOIN, ANOTHERS) : refused();
            (Task.JOIN, _)        : first();
            (Task.LEAVE, MINE)    : left();
            (Task.GET, MINE)      : others();
            (Task.SERVE, MINE)    : others();
            (Task.CAST, MINE)     : others();
        }
        size = 16;
    }

    apply {
        sets.apply();
    }
}
