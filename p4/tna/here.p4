// HERE, as ../v1model/here.p4.

control Here(inout metadata_t m, inout ingress_intrinsic_metadata_for_deparser_t d) {
    Register<tick_t, port_t>(PORTS, 0x80000000) here_told;

    RegisterAction<tick_t, port_t, bit<8>>(here_told) tell = {
        void apply(inout tick_t told, out bit<8> recent) {
            recent = this.predicate(m.now - told < HERE_INTERVAL_TICKS);
            if (!(m.now - told < HERE_INTERVAL_TICKS)) {
                told = m.now;
            }
        }
    };
    @hidden action do_tell() { m.seen = tell.execute(m.port); }
    @hidden action nothing() { }

    @hidden
    table here {
        key = {
            m.task  : exact;
            m.known : exact;
        }
        actions = { do_tell; nothing; }
        const default_action = nothing();
        const entries = { (Task.HERE, 0) : do_tell(); }
        size = 1;
    }

    apply {
        here.apply();
        if (m.seen == NOT_RECENT) {
            d.digest_type = DIGEST_SIGHTING;
        }
    }
}
