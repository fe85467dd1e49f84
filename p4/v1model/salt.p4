// Where the interest of a chunk lies. The controller salts the hash and changes the salt with the epoch, so nobody can
// compute which chunks share an entry. A CRC with a salt in front would not do: two keys that collide under one salt collide
// under all. This is Thorup's pair-multiply-shift: any two keys collide under 1 of 65536 salts.

control Salt(inout metadata_t m) {
    @id(0x01000c01)
    action set_salt(@id(1) bit<32> w0, @id(2) bit<32> w1, @id(3) bit<32> w2, @id(4) bit<32> w3,
                    @id(5) bit<32> w4, @id(6) bit<32> w5, @id(7) bit<32> w6, @id(8) bit<32> w7) {
        m.hashed = ((w0 ++ w1) + (bit<64>) m.key[63:32]) * ((w2 ++ w3) + (bit<64>) m.key[31:0])
            + ((w4 ++ w5) + (bit<64>) m.key[127:96]) * ((w6 ++ w7) + (bit<64>) m.key[95:64]);
    }

    @id(0x01000c02)
    action unsalted() {
        m.hashed = m.key[127:64] ^ m.key[63:0];
    }

    // No key: the controller modifies the default action.
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
