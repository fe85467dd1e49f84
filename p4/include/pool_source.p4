// Makes a control datagram leave from the pool address, from and to the control port, with nothing
// behind its header.

control PoolSource(inout headers_t h, inout metadata_t m) {
    apply {
        h.ethernet.src = m.fabric.pool_mac;
        h.ipv4.src = m.fabric.pool_ip;
        h.ipv4.total_length = CONTROL_UDP_BYTES + IPV4_BYTES;
        h.ipv4.identification = 0;
        h.ipv4.ttl = 64;
        h.udp.src_port = UDP_PORT_CONTROL;
        h.udp.length = CONTROL_UDP_BYTES;
        m.rewritten = 1;
    }
}
