// The salt of the interest table's hash, as ../v1model/salt.p4. A Tofino does not multiply: four words are added to those
// of the key before the CRC (key_hash.p4), and only carries keep that from being linear.

control Salt(inout metadata_t m) {
    @noWarn("unused")
    @id(0x01000c01)
    action set_salt(@id(1) bit<32> w0, @id(2) bit<32> w1, @id(3) bit<32> w2, @id(4) bit<32> w3,
                    @id(5) bit<32> w4, @id(6) bit<32> w5, @id(7) bit<32> w6, @id(8) bit<32> w7) {
        m.salted_0 = m.key[31:0] + w0;
        m.salted_1 = m.key[63:32] + w1;
        m.salted_2 = m.key[95:64] + w2;
        m.salted_3 = m.key[127:96] + w3;
    }

    @id(0x01000c02)
    action unsalted() {
        m.salted_0 = m.key[31:0];
        m.salted_1 = m.key[63:32];
        m.salted_2 = m.key[95:64];
        m.salted_3 = m.key[127:96];
    }

    @id(0x0200000c)
    table salt {
        actions = { set_salt; unsalted; }
        default_action = unsalted();
        size = 1;
    }

    apply {
        salt.apply();
    }
}
