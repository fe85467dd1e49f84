// Refuses a GET of no segment of the chunk, and one of too many. `left` is how many segments there are from the one that the datagram names,
// of the chunk in the switch, or of the one that the sender speaks of.

control SegmentRange(in headers_t h, inout metadata_t m) {
    apply {
        if (m.state == ChunkState.SERVING || m.op == OP_FILL) {
            m.left = m.segments |-| h.kvc.segment;
        } else {
            m.left = h.kvc.segments |-| h.kvc.segment;
        }
        if (m.op == OP_GET) {
            if (h.kvc.count == 0) {
                m.drop = DropReason.BEYOND_END;
            } else if (m.left == 0) {
                m.drop = DropReason.BEYOND_END;
            } else if (h.kvc.count > GET_COUNT_MOST) {
                m.drop = DropReason.GET_TOO_LARGE;
            }
        }
    }
}
