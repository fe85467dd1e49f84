// Who pays for the entries of the interest table, as ../v1model/interest.p4: the member that claimed an entry is its
// sponsor, until it leaves; then who joins next is. A member pays for INTEREST_OF_PORT entries in a window of
// interest_ttl, so at most twice as many that live are one member's.
//
// Whether a member can pay has to be known before the owner's register, and whether it claims is known behind it. So the
// head of a JOIN that claims, and of a LEAVE of a sponsor, comes round once more to change the budget. In the microsecond
// between a member may claim some entries too many: as many as it sends JOINs in that time.

struct budget_t {
    tick_t  since;                  // when the window began
    bit<32> used;                   // entries paid for since then
}

control InterestBudget(inout metadata_t m) {
    RegisterParam<tick_t>(INTEREST_TTL_TICKS) budget_window;

    Register<budget_t, member_t>(MEMBERS, { 0x80000000, 0 }) interest_budget;

    RegisterAction<budget_t, member_t, ownership_t>(interest_budget) look = {
        void apply(inout budget_t budget, out ownership_t over) {
            tick_t window = budget_window.read();
            over = this.predicate(m.now - budget.since < window, budget.used >= INTEREST_OF_PORT);
        }
    };
    RegisterAction<budget_t, member_t, ownership_t>(interest_budget) charge = {
        void apply(inout budget_t budget) {
            if (m.now - budget.since < budget_window.read()) {
                budget.used = budget.used + 1;
            } else {
                budget.since = m.now;
                budget.used = 1;
            }
        }
    };
    RegisterAction<budget_t, member_t, ownership_t>(interest_budget) credit = {
        void apply(inout budget_t budget) {
            budget.used = budget.used |-| 1;
        }
    };
    @hidden action do_look()   { m.over = look.execute(m.member); }
    @hidden action do_charge() { charge.execute(m.member); }
    @hidden action do_credit() { credit.execute(m.member); }
    @hidden action nothing()   { }

    @hidden
    table budget {
        key = {
            m.op    : exact;
            m.round : exact;
        }
        actions = { do_look; do_charge; do_credit; nothing; }
        const default_action = nothing();
        const entries = {
            (OP_JOIN, 0)   : do_look();
            (OP_JOIN, 1)   : do_charge();
            (OP_CREDIT, 1) : do_credit();
        }
        size = 4;
    }

    apply {
        budget.apply();
    }
}

// The sponsor of each entry: 1 + the member, 0 = nobody.
control InterestSponsor(inout metadata_t m) {
    Register<bit<16>, interest_index_t>(INTEREST, 0) interest_sponsor;

    RegisterAction<bit<16>, interest_index_t, ownership_t>(interest_sponsor) claim = {
        void apply(inout bit<16> sponsor) {
            sponsor = (bit<16>) m.member + 1;
        }
    };
    RegisterAction<bit<16>, interest_index_t, ownership_t>(interest_sponsor) adopt = {
        void apply(inout bit<16> sponsor, out ownership_t changes) {
            changes = this.predicate(sponsor == 0);
            if (sponsor == 0) {
                sponsor = (bit<16>) m.member + 1;
            }
        }
    };
    RegisterAction<bit<16>, interest_index_t, ownership_t>(interest_sponsor) leave = {
        void apply(inout bit<16> sponsor, out ownership_t changes) {
            changes = this.predicate(sponsor == (bit<16>) m.member + 1);
            if (sponsor == (bit<16>) m.member + 1) {
                sponsor = 0;
            }
        }
    };
    @hidden action do_claim() { claim.execute(m.index); m.payment = CHANGES; }
    @hidden action do_adopt() { m.payment = adopt.execute(m.index); }
    @hidden action do_leave() { m.payment = leave.execute(m.index); }
    @hidden action nothing()  { }

    @hidden
    table sponsor {
        key = {
            m.task  : exact;
            m.owner : ternary;
            m.over  : ternary;
        }
        actions = { do_claim; do_adopt; do_leave; nothing; }
        const default_action = nothing();
        const entries = {
            (Task.JOIN, _, OVER)       : nothing();
            (Task.JOIN, MINE, _)       : do_adopt();
            (Task.JOIN, NEITHER, _)    : do_claim();
            (Task.JOIN, MINE_STALE, _) : do_claim();
            (Task.LEAVE, MINE, _)      : do_leave();
        }
        size = 8;
    }

    apply {
        sponsor.apply();
    }
}

// Sends the head of what changed a payment round.
control InterestPayment(inout metadata_t m, inout ingress_intrinsic_metadata_for_deparser_t d) {
    @hidden
    action send_head() {
        d.mirror_type = MIRROR_HEAD;
        m.mirror_tag = TAG_MIRROR;
        m.mirror_session = SESSION_HEAD;
    }

    apply {
        if (m.payment == CHANGES) {
            send_head();
        }
    }
}
