// What the controller reads to know how warm a chunk is and how much circulates: control datagrams about a chunk, by the
// chunk's first slot, and packets and bytes by what happened to them at the orbit. What circulates now is what entered
// less what left; a loss shows as a chunk whose PASSED is too low, and as LOST when somebody asks.

control Traffic(in metadata_t m) {
    @id(0x12000301)
    Counter<bit<64>, slot_index_t>(SLOTS, CounterType_t.PACKETS) chunk_heat;

    @id(0x12000003)
    Counter<bit<64>, bit<8>>(8, CounterType_t.PACKETS_AND_BYTES) orbit;

    @hidden action count()   { chunk_heat.count(m.first_slot); }
    @hidden action nothing() { }

    // In a stage where no other register needs the memory.
    @hidden @stage(8)
    table heat {
        key = {
            m.state : ternary;
            m.task  : ternary;
        }
        actions = { count; nothing; }
        const default_action = nothing();
        const entries = {
            (ChunkState.ABSENT, _) : nothing();
            (_, Task.JOIN)         : count();
            (_, Task.LEAVE)        : count();
            (_, Task.GET)          : count();
            (_, Task.SERVE)        : count();
            (_, Task.NAK)          : count();
            (_, Task.FILL)         : count();
        }
        size = 8;
    }

    apply {
        orbit.count((bit<8>) m.event);
        heat.apply();
    }
}
