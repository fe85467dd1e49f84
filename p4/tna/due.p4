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
    apply { \
        if (m.due_operation == DueOperation.WANT) { \
            do_want(); \
        } else if (m.due_operation == DueOperation.SETTLE) { \
            do_settle(); \
        } \
    } \
}

DUE_HALF(DueLow, m.me[31:0], m.due[31:0])
DUE_HALF(DueHigh, m.me[63:32], m.due[63:32])
