// A JOIN or LEAVE becomes the NOTICE of what it did, addressed to the fabric's group so that every
// member's kernel takes it: to all members after a JOIN, to those that remain after a LEAVE, to the
// joiner alone when there was no room. `deliver` is that set already.

control Notice(inout headers_t h, inout metadata_t m) {
    PoolSource() pool_source;

    apply {
        h.kvc.flags = (bit<8>) m.outcome | m.cached;
        h.kvc.op = OP_NOTICE;
        h.kvc.count = (bit<16>) m.leader;
        h.kvc.members = m.interest;
        pool_source.apply(h, m);
        h.ethernet.dst = m.fabric.group_mac;
        h.ipv4.dst = m.fabric.group_ip;
    }
}
