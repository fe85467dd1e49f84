// Refuses a FILL that the chunk does not wait for, or whose data datagram is not the segment that it names.

control FillCheck(in headers_t h, inout metadata_t m) {
    apply {
        if (m.state != ChunkState.FILLING) {
            m.drop = DropReason.FILL_REFUSED;
        } else if (m.port != m.fill_port) {
            m.drop = DropReason.FILL_REFUSED;
        } else if (m.left == 0) {
            m.drop = DropReason.BEYOND_END;
        } else if (h.kvd.version != KV_VERSION || h.kvd.op != OP_DATA || h.bth.opcode != BTH_OPCODE_UD_SEND_ONLY ||
                   h.bth.qpn != QPN_MULTICAST || h.kvd.segment != h.kvc.segment || h.kvd.segments != m.segments ||
                   h.kvd.key != h.kvc.key) {
            m.drop = DropReason.FILL_MISMATCH;
        }
    }
}
