// Tells the controller which chunks are worth a place in the switch, as ../v1model/heat.p4.

// A segment of a chunk that is served here does not circulate any more.
struct lost_report_t {
    chunk_key_t key;
    segment_t   segment;
}

struct window_t {
    tick_t  start;
    bit<32> gets;
}

#define HEAT_ROW(Name, CELL, GETS) \
control Name(inout metadata_t m) { \
    RegisterParam<tick_t>(HEAT_WINDOW_TICKS) heat_window; \
    Register<window_t, heat_index_t>(HEAT_CELLS, { 0x80000000, 0 }) heat_gets; \
    RegisterAction<window_t, heat_index_t, bit<32>>(heat_gets) count = { \
        void apply(inout window_t window, out bit<32> gets) { \
            if (m.now - window.start < heat_window.read()) { \
                window.gets = window.gets + 1; \
            } else { \
                window.start = m.now; \
                window.gets = 1; \
            } \
            gets = window.gets; \
        } \
    }; \
    @hidden action do_count() { GETS = count.execute(CELL); } \
    apply { \
        do_count(); \
    } \
}

HEAT_ROW(HeatRowA, m.cell_a, m.gets)
HEAT_ROW(HeatRowB, m.cell_b, m.gets_b)

control Heat(inout metadata_t m, inout ingress_intrinsic_metadata_for_deparser_t d) {
    RegisterParam<tick_t>(HEAT_WINDOW_TICKS) report_window;
    Register<tick_t, heat_index_t>(HEAT_CELLS, 0x80000000) heat_reported;

    RegisterAction<tick_t, heat_index_t, bit<8>>(heat_reported) report = {
        void apply(inout tick_t reported, out bit<8> recent) {
            tick_t window = report_window.read();
            recent = this.predicate(m.now - reported < window);
            if (!(m.now - reported < window)) {
                reported = m.now;
            }
        }
    };
    @hidden action do_report()  { m.reported = report.execute(m.cell_a); }
    @hidden action set_gets()   { m.gets = min(m.gets, m.gets_b); }
    @hidden action set_missing() { m.gets_missing = m.fabric.heat_gets |-| m.gets; }

    HeatRowA() row_a;
    HeatRowB() row_b;

    apply {
        if (m.op == OP_GET && m.state == ChunkState.ABSENT) {
            row_a.apply(m);
            row_b.apply(m);
            set_gets();
            set_missing();
        }
        if (m.raised == 1 || m.gets_missing == 0) {
            do_report();
            if (m.reported != RECENT) {
                d.digest_type = DIGEST_HEAT;
            }
        }
    }
}
