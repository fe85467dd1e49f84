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
    @hidden action nothing()  { } \
    @hidden table row { \
        key = { \
            m.task  : exact; \
            m.state : exact; \
        } \
        actions = { do_count; nothing; } \
        const default_action = nothing(); \
        const entries = { (Task.GET, ChunkState.ABSENT) : do_count(); } \
        size = 1; \
    } \
    apply { \
        row.apply(); \
    } \
}

HEAT_ROW(HeatRowA, m.cell_a, m.gets_a)
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
    @hidden action do_report() { m.reported = report.execute(m.cell_a); }
    @hidden action set_gets()  { m.gets = min(m.gets_a, m.gets_b); }
    @hidden action nothing()   { }
    @hidden
    action set_missing() {
        m.missing_a = m.fabric.heat_gets |-| m.gets_a;
        m.missing_b = m.fabric.heat_gets |-| m.gets_b;
    }

    // Tables of their own and for every packet: a chain of them behind a condition would hold up all that is behind it.
    @hidden table least   { actions = { set_gets; }    const default_action = set_gets();    size = 1; }
    @hidden table missing { actions = { set_missing; } const default_action = set_missing(); size = 1; }

    @hidden @stage(8)
    table worth {
        key = {
            m.raised    : ternary;
            m.task      : ternary;
            m.state     : ternary;
            m.missing_a : ternary;
            m.missing_b : ternary;
            m.mine      : ternary;
        }
        actions = { do_report; nothing; }
        const default_action = nothing();
        const entries = {
            (1, _, _, _, _, _)                        : do_report();
            (_, Task.GET, _, _, _, 0)                 : nothing();
            (_, Task.GET, ChunkState.ABSENT, 0, 0, _) : do_report();
        }
        size = 4;
    }

    HeatRowA() row_a;
    HeatRowB() row_b;

    apply {
        row_a.apply(m);
        row_b.apply(m);
        least.apply();
        missing.apply();
        worth.apply();
        if (m.reported == NOT_RECENT) {
            d.digest_type = DIGEST_HEAT;
        }
    }
}
