// Where the unicast copy of a packet goes: once more round, on by its address, back to who asked, or nowhere.

control Unicast(inout metadata_t m, inout ingress_intrinsic_metadata_for_tm_t tm) {
    @hidden
    action go_round() {
        tm.ucast_egress_port = RECIRCULATION_PORT;
        tm.qid = m.queue;
        m.flooded = 0;
    }

    @hidden
    action go_on() {
        tm.ucast_egress_port = m.egress;
    }

    @hidden
    action reply() {
        tm.ucast_egress_port = m.egress;
        m.flooded = 0;
    }

    @hidden
    action refuse() {
        m.drop = DropReason.HAIRPIN;
    }

    @hidden
    action nowhere() {
        m.flooded = 0;
    }

    @hidden action flood() { }

    @hidden @stage(7)
    table unicast {
        key = {
            m.task    : ternary;
            m.again   : ternary;
            m.forward : ternary;
            m.unicast : ternary;
            m.hairpin : ternary;
        }
        actions = { go_round; go_on; reply; refuse; nowhere; flood; }
        const default_action = nowhere();
        const entries = {
            (_, 1, _, _, _)                : go_round();
            (_, _, 1, 1, 1)                : refuse();
            (_, _, 1, 1, _)                : go_on();
            (_, _, 1, _, _)                : flood();
            (Task.ACKNOWLEDGE, _, _, _, _) : reply();
            (Task.POOL_ARP, _, _, _, _)    : reply();
        }
        size = 8;
    }

    apply {
        unicast.apply();
    }
}
