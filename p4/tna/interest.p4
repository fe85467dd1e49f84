// Who still wants a chunk, as ../v1model/interest.p4. A Tofino register is touched once a packet and in one stage, so an
// entry lies in registers that follow each other: owner and age, then members (two halves of 32), then leader and sponsor.
// What a packet does to each is a row of a table, by what is to be done (`task`) and what the register before said.
//
// Only a JOIN makes an entry younger, and only one that is paid for (interest_budget.p4): it claims the entry again once
// half its time to live is over. From then on another key may take it, too.
//
// The first one has to decide before the others are known. That the last member has left it learns from the LEAVE itself,
// which comes round once more to free the entry. A JOIN of the same key in that microsecond is told that it joined and
// hears nothing; its reader renews the JOIN or reads reliably.

control InterestOwner(inout metadata_t m) {
    RegisterParam<tick_t>(INTEREST_TTL_TICKS)  interest_ttl;
    RegisterParam<tick_t>(INTEREST_TURN_TICKS) interest_turn;

    Register<owned_t, interest_index_t>(INTEREST, { 0, 0x80000000 }) interest_owner;

    // JOIN of who can pay: whose entry it is; takes one that is not young.
    RegisterAction<owned_t, interest_index_t, ownership_t>(interest_owner) claim = {
        void apply(inout owned_t entry, out ownership_t owner) {
            tick_t turn = interest_turn.read();
            owner = this.predicate(entry.signature == m.signature, m.now - entry.stamp < turn);
            if (!(m.now - entry.stamp < turn)) {
                entry.signature = m.signature;
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
    @hidden action do_claim() { m.owner = claim.execute(m.index); }
    @hidden action do_look()  { m.owner = look.execute(m.index); }
    @hidden action do_free()  { free.execute(m.index); }
    @hidden action nothing()  { }

    @hidden @stage(3)
    table owner {
        key = {
            m.task : ternary;
            m.over : ternary;
        }
        actions = { do_claim; do_look; do_free; nothing; }
        const default_action = nothing();
        const entries = {
            (Task.JOIN, OVER) : do_look();
            (Task.JOIN, _)    : do_claim();
            (Task.LEAVE, _)   : do_look();
            (Task.FREE, _)    : do_free();
            (Task.GET, _)     : do_look();
            (Task.SERVE, _)   : do_look();
            (Task.CAST, _)    : do_look();
            (Task.PASS, _)    : do_look();
            (Task.FILL, _)    : do_look();
        }
        size = 16;
    }

    apply {
        owner.apply();
    }
}

// The set after this packet, and whom it concerns.
control InterestSets(in headers_t h, inout metadata_t m) {
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
    @hidden action too_many()  { m.drop = DropReason.TOO_MANY_ENTRIES; }
    @hidden action nobody()    { }

    @hidden
    table sets {
        key = {
            m.task  : exact;
            m.owner : ternary;
            m.over  : ternary;
            h.kvc.flags : ternary;
        }
        actions = { joined; first; refused; left; others; too_many; nobody; }
        const default_action = nobody();
        const entries = {
            (Task.JOIN, MINE, _, _)       : joined();
            (Task.JOIN, ANOTHERS, _, _)   : refused();
            (Task.JOIN, _, OVER, _)       : too_many();
            (Task.JOIN, MINE_STALE, _, _) : joined();   // claimed again
            (Task.JOIN, _, _, _)          : first();
            (Task.LEAVE, MINE, _, _)      : left();
            (Task.GET, MINE, _, _)        : others();
            (Task.SERVE, MINE, _, _)      : others();
            (Task.CAST, MINE, _, _)       : others();
            (Task.FILL, MINE, _, FLAG_CAST_TOO &&& FLAG_CAST_TOO) : others();
        }
        size = 16;
    }

    apply {
        sets.apply();
    }
}
