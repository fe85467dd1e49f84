// Which chunks the switch holds. The controller writes an entry as `filling`, has the holder FILL it,
// and turns it into `serving` with one MODIFY when all segments are acknowledged.

control ChunkCache(in headers_t h, inout metadata_t m) {
    SegmentRange() segment_range;

    @id(0x13000301)
    direct_counter(CounterType.packets_and_bytes) chunk_heat;

    @id(0x01000301)
    action absent() {
        m.state = ChunkState.ABSENT;
        m.cached = 0;
    }

    // Segments are accepted from `port` into slots base_slot, base_slot + 1, ...
    @id(0x01000302)
    action filling(@id(1) slot_t base_slot, @id(2) bit<32> segments, @id(3) port_t port) {
        m.state = ChunkState.FILLING;
        m.cached = 0;
        m.base_slot = base_slot;
        m.segments = segments;
        m.fill_port = port;
    }

    @id(0x01000303)
    action serving(@id(1) slot_t base_slot, @id(2) bit<32> segments) {
        m.state = ChunkState.SERVING;
        m.cached = FLAG_CACHED;
        m.base_slot = base_slot;
        m.segments = segments;
    }

    // The direct counter counts control datagrams about the chunk: each JOIN and LEAVE, each segment
    // served, each FILL.
    @id(0x02000003)
    table kv_cache {
        key = { m.key : exact @name("key"); }
        actions = { absent; filling; serving; }
        default_action = absent();
        counters = chunk_heat;
        size = CHUNKS;
    }

    apply {
        kv_cache.apply();
        segment_range.apply(h, m);
    }
}
