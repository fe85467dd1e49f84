// Refuses a FILL that the chunk does not wait for, or whose data datagram is not the segment that it names. What has to be
// equal was subtracted before, bit by bit: a table compares with constants.

control Differences(in headers_t h, inout metadata_t m) {
    @hidden
    action compare() {
        m.off_key = h.kvd.key ^ h.kvc.key;
        m.off_segment = h.kvd.segment ^ h.kvc.segment;
    }

    apply {
        if (h.kvc.isValid() && h.kvd.isValid()) {
            compare();
        }
    }
}

control FillCheck(in headers_t h, inout metadata_t m) {
    @hidden
    action refuse(DropReason reason) {
        m.task = Task.REFUSED;
        m.drop = reason;
    }

    @hidden action nothing() { }

    @hidden
    table fill_check {
        key = {
            m.task         : ternary;
            m.state        : ternary;
            m.off_port     : ternary;
            m.left         : ternary;
            h.bth.opcode   : ternary;
            h.bth.qpn      : ternary;
            h.kvd.version  : ternary;
            h.kvd.op       : ternary;
            m.off_segment  : ternary;
            m.off_segments : ternary;
            m.off_key      : ternary;
        }
        actions = { refuse; nothing; }
        const default_action = nothing();
        const entries = {
            (Task.FILL, ChunkState.FILLING, 0, 0, _, _, _, _, _, _, _) : refuse(DropReason.BEYOND_END);
            (Task.FILL, ChunkState.FILLING, 0, _, BTH_OPCODE_UD_SEND_ONLY, QPN_MULTICAST, KV_VERSION, OP_DATA, 0, 0, 0) : nothing();
            (Task.FILL, ChunkState.FILLING, 0, _, _, _, _, _, _, _, _) : refuse(DropReason.FILL_MISMATCH);
            (Task.FILL, _, _, _, _, _, _, _, _, _, _)                  : refuse(DropReason.FILL_REFUSED);
        }
        size = 4;
    }

    apply {
        fill_check.apply();
    }
}
