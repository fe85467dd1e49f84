// The members of interest entries, 32 of them: what one stateful ALU holds. Every operation says what they were before.
// A macro, for a register action sees fields of the packet and its metadata, not a control's parameters.

#define INTEREST_HALF(Name, ME, BEFORE) \
control Name(inout metadata_t m) { \
    Register<bit<32>, interest_index_t>(INTEREST, 0) interest_members; \
    RegisterAction<bit<32>, interest_index_t, bit<32>>(interest_members) read = { \
        void apply(inout bit<32> members, out bit<32> was) { \
            was = members; \
        } \
    }; \
    RegisterAction<bit<32>, interest_index_t, bit<32>>(interest_members) add = { \
        void apply(inout bit<32> members, out bit<32> was) { \
            was = members; \
            members = members | ME; \
        } \
    }; \
    RegisterAction<bit<32>, interest_index_t, bit<32>>(interest_members) start = { \
        void apply(inout bit<32> members) { \
            members = ME; \
        } \
    }; \
    RegisterAction<bit<32>, interest_index_t, bit<32>>(interest_members) remove = { \
        void apply(inout bit<32> members, out bit<32> was) { \
            was = members; \
            members = members & ~ME; \
        } \
    }; \
    @hidden action do_read()   { BEFORE = read.execute(m.index); } \
    @hidden action do_add()    { BEFORE = add.execute(m.index); } \
    @hidden action do_start()  { start.execute(m.index); } \
    @hidden action do_remove() { BEFORE = remove.execute(m.index); } \
    apply { \
        if (m.operation == SetOperation.READ) { \
            do_read(); \
        } else if (m.operation == SetOperation.ADD) { \
            do_add(); \
        } else if (m.operation == SetOperation.START) { \
            do_start(); \
        } else if (m.operation == SetOperation.REMOVE) { \
            do_remove(); \
        } \
    } \
}

INTEREST_HALF(InterestLow, m.me[31:0], m.before[31:0])
INTEREST_HALF(InterestHigh, m.me[63:32], m.before[63:32])
