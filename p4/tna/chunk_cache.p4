// Which chunks the switch holds, as ../v1model/chunk_cache.p4. What circulates looks itself up too, on every round, so
// traffic is counted by the chunk's first slot and by control datagrams only, not at the table. Slot, and segments from
// this one on, come out of the same lookup: a subtraction behind it would cost a stage.

control ChunkCache(in headers_t h, inout metadata_t m) {
    @id(0x01000301)
    action absent() {
        m.state = ChunkState.ABSENT;
        m.cached = 0;
        m.left = h.kvc.segments |-| h.kvc.segment;
    }

    @id(0x01000302)
    action filling(@id(1) slot_t base_slot, @id(2) bit<32> segments, @id(3) port_t port) {
        m.state = ChunkState.FILLING;
        m.cached = 0;
        m.first_slot = base_slot[15:0];
        m.slot = base_slot[15:0] + m.segment;
        m.left = segments |-| h.kvc.segment;
        m.off_port = m.port ^ port;
        m.off_segments = h.kvd.segments ^ segments;
    }

    @id(0x01000303)
    action serving(@id(1) slot_t base_slot, @id(2) bit<32> segments) {
        m.state = ChunkState.SERVING;
        m.cached = FLAG_CACHED;
        m.first_slot = base_slot[15:0];
        m.slot = base_slot[15:0] + m.segment;
        m.left = segments |-| h.kvc.segment;
    }

    @id(0x02000003)
    table kv_cache {
        key = { m.key : exact @name("key"); }
        actions = { absent; filling; serving; }
        default_action = absent();
        size = CHUNKS;
    }

    apply {
        kv_cache.apply();
    }
}
