// The leader of an interest entry: 1 + the member that last sent a GET for everybody, 0 = nobody.

control InterestLeader(inout metadata_t m) {
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
