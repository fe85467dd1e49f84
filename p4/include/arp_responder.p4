// Answers ARP for the pool address, so a holder's FILL needs no static neighbour.

control ArpResponder(inout headers_t h, inout metadata_t m) {
    apply {
        h.arp.operation = ARP_REPLY;
        h.arp.target_mac = h.arp.sender_mac;
        h.arp.target_ip = h.arp.sender_ip;
        h.arp.sender_mac = m.fabric.pool_mac;
        h.arp.sender_ip = m.fabric.pool_ip;
        h.ethernet.dst = h.ethernet.src;
        h.ethernet.src = m.fabric.pool_mac;
        m.egress = m.port;
        m.unicast = 1;
    }
}
