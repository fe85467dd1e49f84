// Whether anybody gets the packet, from the sets that it concerns.

control Decision(inout metadata_t m, inout ingress_intrinsic_metadata_for_tm_t tm) {
    @hidden action cast()        { m.cast = 1; }
    @hidden action cast_cached() { m.cast = 1; m.event = OrbitEvent.CAST; }
    @hidden action tell()        { m.notice = 1; m.cast = 1; m.checksum = 1; }
    @hidden action refuse(DropReason reason) { m.drop = reason; }
    @hidden
    action end_entry() {
        m.drop = DropReason.LAST_LEFT;
        m.again = 1;
        tm.ucast_egress_port = RECIRCULATION_PORT;
        tm.qid = QUEUE_CONTROL;
    }
    @hidden action nothing()     { }

    @hidden
    table decision {
        key = {
            m.task    : ternary;
            m.mine    : ternary;
            m.deliver : ternary;
            m.segment_color : ternary;
        }
        actions = { cast; cast_cached; tell; refuse; end_entry; nothing; }
        const default_action = nothing();
        const entries = {
            (Task.JOIN, _, 0, _)  : nothing();          // it took too many entries
            (Task.JOIN, _, _, _)  : tell();
            (Task.LEAVE, 0, _, _) : refuse(DropReason.NO_INTEREST);
            (Task.LEAVE, _, 0, _) : end_entry();
            (Task.LEAVE, _, _, _) : tell();
            (Task.CAST, _, 0, _)  : refuse(DropReason.NO_INTEREST);
            (Task.CAST, _, _, METER_RED) : refuse(DropReason.METERED);
            (Task.CAST, _, _, _)  : cast();
            // It is in the orbit already, and acknowledged: what may not be cast is stored only.
            (Task.FILL, _, 0, _)  : nothing();
            (Task.FILL, _, _, METER_RED) : nothing();
            (Task.FILL, _, _, _)  : cast();
            (Task.PASS, _, 0, _)  : nothing();
            (Task.PASS, _, _, _)  : cast_cached();
            (Task.GET, 0, _, _)   : refuse(DropReason.NOT_JOINED);
            (Task.SERVE, 0, _, _) : refuse(DropReason.NOT_JOINED);
        }
        size = 16;
    }

    apply {
        decision.apply();
    }
}

// Whether a JOIN gives a waiting member company: worth a report.
control Company(inout metadata_t m) {
    @hidden action raise()   { m.raised = 1; }
    @hidden action nothing() { }

    @hidden @stage(7)
    table company {
        key = {
            m.newcomer : ternary;
            m.before   : ternary;
        }
        actions = { raise; nothing; }
        const default_action = raise();
        const entries = {
            (0, _) : nothing();
            (_, 0) : nothing();
        }
        size = 2;
    }

    apply {
        company.apply();
    }
}
