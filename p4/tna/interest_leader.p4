// The leader of an interest entry: 1 + the member that last sent a GET for everybody, 0 = nobody.

control InterestLeader(in headers_t h, inout metadata_t m) {
    Register<bit<16>, interest_index_t>(INTEREST, 0) interest_leader;

    RegisterAction<bit<16>, interest_index_t, bit<16>>(interest_leader) read = {
        void apply(inout bit<16> leader, out bit<16> now) {
            now = leader;
        }
    };
    RegisterAction<bit<16>, interest_index_t, bit<16>>(interest_leader) lead = {
        void apply(inout bit<16> leader) {
            leader = (bit<16>) m.member + 1;
        }
    };
    RegisterAction<bit<16>, interest_index_t, bit<16>>(interest_leader) forget = {
        void apply(inout bit<16> leader) {
            leader = 0;
        }
    };
    RegisterAction<bit<16>, interest_index_t, bit<16>>(interest_leader) resign = {
        void apply(inout bit<16> leader, out bit<16> now) {
            if (leader == (bit<16>) m.member + 1) {
                leader = 0;
            }
            now = leader;
        }
    };
    @hidden action do_read()   { m.leader = read.execute(m.index); }
    @hidden action do_lead()   { lead.execute(m.index); }
    @hidden action do_charge() { m.charged = read.execute(m.index); }
    @hidden action do_forget() { forget.execute(m.index); }
    @hidden action do_resign() { m.leader = resign.execute(m.index); }

    @hidden action nothing()   { }

    @hidden
    table leader {
        key = {
            m.task      : ternary;
            m.owner     : ternary;
            m.round     : ternary;
            h.kvc.flags : ternary;
            m.mine      : ternary;
        }
        actions = { do_read; do_charge; do_lead; do_forget; do_resign; nothing; }
        const default_action = nothing();
        const entries = {
            (Task.JOIN, MINE, _, _, _)     : do_read();
            (Task.CAST, MINE, _, _, _)     : do_charge();
            (Task.JOIN, MINE_STALE, _, _, _) : do_read();
            (Task.JOIN, NEITHER, _, _, _)    : do_forget();
            (Task.LEAVE, MINE, _, _, _)    : do_resign();
            (Task.FILL, MINE, _, FLAG_CAST_TOO &&& FLAG_CAST_TOO, _) : do_charge();
            // GET of a member of the set for all of it, as it arrives.
            (_, _, 1, _, _)                                   : nothing();
            (_, _, _, FLAG_ONLY_ME &&& FLAG_ONLY_ME, _)       : nothing();
            (_, _, _, _, 0)                                   : nothing();
            (Task.GET, MINE, _, _, _)      : do_lead();
            (Task.SERVE, MINE, _, _, _)    : do_lead();
        }
        size = 16;
    }

    apply {
        leader.apply();
    }
}
