// Who wants the segment of a slot: 32 members, as in interest_members.p4.

#define DUE_HALF(Name, ME, DUE) \
control Name(inout metadata_t m) { \
    Register<bit<32>, slot_index_t>(SLOTS, 0) slot_due; \
    RegisterAction<bit<32>, slot_index_t, bit<32>>(slot_due) want = { \
        void apply(inout bit<32> members) { \
            members = members | ME; \
        } \
    }; \
    RegisterAction<bit<32>, slot_index_t, bit<32>>(slot_due) settle = { \
        void apply(inout bit<32> members, out bit<32> was) { \
            was = members; \
            members = 0; \
        } \
    }; \
    @hidden action do_want()   { want.execute(m.slot); } \
    @hidden action do_settle() { DUE = settle.execute(m.slot); } \
    @hidden action nothing()   { } \
    @hidden @stage(6) table due { \
        key = { \
            m.task       : exact; \
            m.circulates : ternary; \
            m.mine       : ternary; \
        } \
        actions = { do_want; do_settle; nothing; } \
        const default_action = nothing(); \
        const entries = { \
            (Task.SERVE, MINE, 0) : nothing(); \
            (Task.SERVE, MINE, _) : do_want(); \
            (Task.PASS, _, _)     : do_settle(); \
            (Task.FILL, MINE, _)  : nothing(); \
            (Task.FILL, _, _)     : do_settle(); \
        } \
        size = 8; \
    } \
    apply { \
        due.apply(); \
    } \
}

DUE_HALF(DueLow, m.me[31:0], m.due[31:0])
DUE_HALF(DueHigh, m.me[63:32], m.due[63:32])

// Whether one of them asked for everybody who is interested.
control DueAll(in headers_t h, inout metadata_t m) {
    Register<bit<8>, slot_index_t>(SLOTS, 0) slot_due_all;

    RegisterAction<bit<8>, slot_index_t, bit<8>>(slot_due_all) want = {
        void apply(inout bit<8> all) {
            all = 1;
        }
    };
    RegisterAction<bit<8>, slot_index_t, bit<8>>(slot_due_all) settle = {
        void apply(inout bit<8> all, out bit<8> was) {
            was = all;
            all = 0;
        }
    };
    @hidden action do_want()   { want.execute(m.slot); }
    @hidden action do_settle() { m.due_all = settle.execute(m.slot); }
    @hidden action nothing()   { }

    @hidden
    table due_all {
        key = {
            m.task       : exact;
            m.circulates : ternary;
            h.kvc.flags  : ternary;
            m.mine       : ternary;
        }
        actions = { do_want; do_settle; nothing; }
        const default_action = nothing();
        const entries = {
            (Task.SERVE, MINE, FLAG_ONLY_ME &&& FLAG_ONLY_ME, _) : nothing();
            (Task.SERVE, MINE, _, 0) : nothing();
            (Task.SERVE, MINE, _, _) : do_want();
            (Task.PASS, _, _, _)     : do_settle();
            (Task.FILL, MINE, _, _)  : nothing();
            (Task.FILL, _, _, _)     : do_settle();
        }
        size = 8;
    }

    apply {
        due_all.apply();
    }
}

// A cached segment comes by: it is for who asked, and for all of the set if one of them asked for everybody.
control WhomDue(inout metadata_t m) {
    @hidden action these()   { m.deliver = m.due; }
    @hidden action all()     { m.deliver = m.due | m.before; }
    @hidden action nothing() { }

    @hidden
    table whom {
        key = {
            m.task    : exact;
            m.owner   : ternary;
            m.due_all : ternary;
        }
        actions = { these; all; nothing; }
        const default_action = nothing();
        const entries = {
            (Task.PASS, MINE, 1) : all();
            (Task.PASS, _, _)    : these();
        }
        size = 2;
    }

    apply {
        whom.apply();
    }
}
