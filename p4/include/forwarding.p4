// Layer 2 forwarding. What is unknown, broadcast or multicast is flooded, so everything that is not
// kvcast's works before and without a controller.

control Forwarding(in headers_t h, inout metadata_t m) {
    @id(0x01000801)
    action forward(@id(1) port_t port) {
        m.egress = port;
        m.unicast = 1;
    }

    @id(0x01000802)
    action flood() {
        m.flooded = 1;
    }

    @id(0x02000005)
    table dmac {
        key = { h.ethernet.dst : exact @name("dst"); }
        actions = { forward; flood; }
        default_action = flood();
        size = ADDRESSES;
    }

    apply {
        dmac.apply();
    }
}
