// Where the key of a packet leads in the hashed registers, and the time in ticks. Each result has a table of its own: a
// register index must be a plain field, and an action has one hash output.

control KeyHash(inout metadata_t m, in bit<48> arrival_ns) {
    Hash<interest_index_t>(HashAlgorithm_t.CRC16) index_hash;
    Hash<signature_t>(HashAlgorithm_t.CRC32)      signature_hash;
    Hash<heat_index_t>(HashAlgorithm_t.CRC32)     cell_a_hash;
    Hash<heat_index_t>(HashAlgorithm_t.CRC16)     cell_b_hash;

    @hidden action set_index()     { m.index = index_hash.get({ m.salted_3, m.salted_2, m.salted_1, m.salted_0 }); }
    @hidden action set_signature() { m.signature = signature_hash.get({ m.key }); }
    @hidden action set_cell_a()    { m.cell_a = cell_a_hash.get({ m.key }); }
    @hidden action set_cell_b()    { m.cell_b = cell_b_hash.get({ m.key }); }
    @hidden action set_now()       { m.now = arrival_ns[47:16]; }

    @hidden table interest_index     { actions = { set_index; }     const default_action = set_index();     size = 1; }
    @hidden table interest_signature { actions = { set_signature; } const default_action = set_signature(); size = 1; }
    @hidden table heat_cell_a        { actions = { set_cell_a; }    const default_action = set_cell_a();    size = 1; }
    @hidden table heat_cell_b        { actions = { set_cell_b; }    const default_action = set_cell_b();    size = 1; }
    @hidden table clock              { actions = { set_now; }       const default_action = set_now();       size = 1; }

    apply {
        interest_index.apply();
        interest_signature.apply();
        heat_cell_a.apply();
        heat_cell_b.apply();
        clock.apply();
    }
}
