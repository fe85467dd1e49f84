// The head of a FILL that egress has turned into an acknowledgement goes to the port that its `members` name.

control Acknowledgement(inout headers_t h, inout metadata_t m) {
    PoolSource() pool_source;

    apply {
        m.egress = h.kvc.members[8:0];
        m.unicast = 1;
        h.kvc.members = 0;
        h.kvc.flags = 0;
        h.ethernet.dst = h.ethernet.src;
        h.ipv4.dst = h.ipv4.src;
        h.udp.checksum = 0;             // it covered the FILL
        pool_source.apply(h, m);
    }
}
