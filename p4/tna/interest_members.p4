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
    @hidden action nothing()   { } \
    @hidden @stage(4) table members { \
        key = { \
            m.task  : exact; \
            m.owner : exact; \
            m.over  : ternary; \
        } \
        actions = { do_read; do_add; do_start; do_remove; nothing; } \
        const default_action = nothing(); \
        const entries = { \
            (Task.JOIN, MINE, _)          : do_add(); \
            (Task.JOIN, NEITHER, OVER)    : nothing(); \
            (Task.JOIN, NEITHER, _)       : do_start(); \
            (Task.JOIN, MINE_STALE, OVER) : nothing(); \
            (Task.JOIN, MINE_STALE, _)    : do_add(); \
            (Task.LEAVE, MINE, _)         : do_remove(); \
            (Task.GET, MINE, _)           : do_read(); \
            (Task.SERVE, MINE, _)         : do_read(); \
            (Task.CAST, MINE, _)          : do_read(); \
            (Task.PASS, MINE, _)          : do_read(); \
            (Task.FILL, MINE, _)          : do_read(); \
        } \
        size = 16; \
    } \
    apply { \
        members.apply(); \
    } \
}

INTEREST_HALF(InterestLow, m.me[31:0], m.before[31:0])
INTEREST_HALF(InterestHigh, m.me[63:32], m.before[63:32])
