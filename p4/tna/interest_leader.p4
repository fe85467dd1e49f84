// The leader of an interest entry: 1 + the member that last sent a GET for everybody, 0 = nobody.

control InterestLeader(in headers_t h, inout metadata_t m) {
    Register<member_t, interest_index_t>(INTEREST, 0) interest_leader;

    RegisterAction<member_t, interest_index_t, member_t>(interest_leader) read = {
        void apply(inout member_t leader, out member_t now) {
            now = leader;
        }
    };
    RegisterAction<member_t, interest_index_t, member_t>(interest_leader) lead = {
        void apply(inout member_t leader) {
            leader = m.leader_mark;
        }
    };
    RegisterAction<member_t, interest_index_t, member_t>(interest_leader) forget = {
        void apply(inout member_t leader) {
            leader = 0;
        }
    };
    RegisterAction<member_t, interest_index_t, member_t>(interest_leader) resign = {
        void apply(inout member_t leader, out member_t now) {
            if (leader == m.leader_mark) {
                leader = 0;
            }
            now = leader;
        }
    };
    @hidden action do_read()   { m.leader = read.execute(m.index); }
    @hidden action do_lead()   { lead.execute(m.index); }
    @hidden action do_forget() { forget.execute(m.index); }
    @hidden action do_resign() { m.leader = resign.execute(m.index); }

    apply {
        if (m.operation == SetOperation.ADD) {
            do_read();
        } else if (m.operation == SetOperation.START) {
            do_forget();
        } else if (m.operation == SetOperation.REMOVE) {
            do_resign();
        } else if (m.leads == 1) {
            do_lead();
        }
    }
}
