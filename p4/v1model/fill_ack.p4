// Turns a FILL round as its FILL_ACK: what it carries goes, its control header stays.

control FillAck(inout headers_t h, inout metadata_t m) {
    PoolSource() pool_source;

    apply {
#define DROP_BLOCK(i) h.block[i].setInvalid();
        FOR_EACH_BLOCK(DROP_BLOCK)
        h.bth.setInvalid();
        h.deth.setInvalid();
        h.kvd.setInvalid();
        h.icrc.setInvalid();
        h.kvc.op = OP_FILL_ACK;
        h.kvc.flags = 0;
        h.ethernet.dst = h.ethernet.src;
        h.ipv4.dst = h.ipv4.src;
        h.udp.dst_port = UDP_PORT_CONTROL;
        pool_source.apply(h, m);
    }
}
