// Refuses a FILL that the chunk does not wait for, or whose data datagram is not the segment that it names.
// Keys are compared by 32 bits: no Tofino gateway sees more of two fields at once.

control FillCheck(in headers_t h, in metadata_t m, inout DropReason drop) {
    apply {
        if (m.state != ChunkState.FILLING) {
            drop = DropReason.FILL_REFUSED;
        } else if (m.port != m.fill_port) {
            drop = DropReason.FILL_REFUSED;
        } else if (m.left == 0) {
            drop = DropReason.BEYOND_END;
        } else if (h.kvd.version != KV_VERSION || h.kvd.op != OP_DATA || h.bth.opcode != BTH_OPCODE_UD_SEND_ONLY) {
            drop = DropReason.FILL_MISMATCH;
        } else if (h.bth.qpn != QPN_MULTICAST) {
            drop = DropReason.FILL_MISMATCH;
        } else if (h.kvd.segment != h.kvc.segment) {
            drop = DropReason.FILL_MISMATCH;
        } else if (h.kvd.segments != m.segments) {
            drop = DropReason.FILL_MISMATCH;
        } else if (h.kvd.key[127:96] != h.kvc.key[127:96]) {
            drop = DropReason.FILL_MISMATCH;
        } else if (h.kvd.key[95:64] != h.kvc.key[95:64]) {
            drop = DropReason.FILL_MISMATCH;
        } else if (h.kvd.key[63:32] != h.kvc.key[63:32]) {
            drop = DropReason.FILL_MISMATCH;
        } else if (h.kvd.key[31:0] != h.kvc.key[31:0]) {
            drop = DropReason.FILL_MISMATCH;
        }
    }
}
