// Whether a set has members. By halves: a gateway compares 44 bits.

control Some(in members_t set, out bit<1> some) {
    apply {
        some = 1;
        if (set[31:0] == 0) {
            if (set[63:32] == 0) {
                some = 0;
            }
        }
    }
}
