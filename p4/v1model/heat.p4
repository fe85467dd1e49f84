// Tells the controller which chunks are worth a place in the switch: those for which a second member
// is waiting, and those not here that were asked for heat_gets times within a window (counted by a
// sketch of two rows, the smaller count holds). At most one report per key and window; two hot chunks
// that share a cell of what was reported share that window.

control HeatRow(in bit<32> cell, in time_us_t now, in time_us_t window_us, out bit<32> gets) {
    register<time_us_t>(HEAT_CELLS) window_start;
    register<bit<32>>(HEAT_CELLS)   window_gets;

    apply {
        time_us_t start;
        window_start.read(start, cell);
        window_gets.read(gets, cell);
        if (now - start >= window_us) {
            window_start.write(cell, now);
            gets = 0;
        }
        gets = gets + 1;
        window_gets.write(cell, gets);
    }
}

control Heat(in metadata_t m) {
    @id(0x16000901) register<time_us_t>(HEAT_CELLS) heat_reported;
    HeatRow() row_a;
    HeatRow() row_b;

    apply {
        bit<32> gets = 0;
        bool hot = m.raised == 1;
        bit<32> cell_a = m.signature & (HEAT_CELLS - 1);
        bit<32> cell_b = (m.signature >> 16) & (HEAT_CELLS - 1);

        if (m.op == OP_GET && m.state == ChunkState.ABSENT) {
            bit<32> gets_a;
            bit<32> gets_b;
            row_a.apply(cell_a, m.now, m.fabric.heat_window_us, gets_a);
            row_b.apply(cell_b, m.now, m.fabric.heat_window_us, gets_b);
            gets = gets_a;
            if (gets_b < gets_a) {
                gets = gets_b;
            }
            if (gets >= m.fabric.heat_gets) {
                hot = true;
            }
        }

        if (hot) {
            time_us_t reported;
            heat_reported.read(reported, cell_a);
            if (reported == 0 || m.now - reported >= m.fabric.heat_window_us) {
                heat_reported.write(cell_a, m.now);
                digest<heat_report_t>(1, { m.key, m.interest, gets });
            }
        }
    }
}
