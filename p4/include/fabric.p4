// Fabric parameters. Until a controller has set them the program is an ordinary switch: every
// datagram, kvcast's too, is forwarded by destination address, and a JOIN reaches the holder, which
// answers that there is no kvcast switch.

control Fabric(in headers_t h, inout metadata_t m) {
    @id(0x01000101)
    action plain() {
        m.fabric.enabled = 0;
    }

    @id(0x01000102)
    action set_fabric(@id(1) mac_address_t group_mac, @id(2) ipv4_address_t group_ip,
                      @id(3) mac_address_t pool_mac, @id(4) ipv4_address_t pool_ip,
                      @id(5) bit<6> from_switch_dscp, @id(6) time_us_t interest_ttl_us,
                      @id(7) time_us_t heat_window_us, @id(8) bit<32> heat_gets) {
        m.fabric.enabled = 1;
        m.fabric.group_mac = group_mac;
        m.fabric.group_ip = group_ip;
        m.fabric.pool_mac = pool_mac;
        m.fabric.pool_ip = pool_ip;
        m.fabric.from_switch_dscp = from_switch_dscp;
        m.fabric.interest_ttl_us = interest_ttl_us;
        m.fabric.heat_window_us = heat_window_us;
        m.fabric.heat_gets = heat_gets;
        // A Tofino gateway compares 44 bits: not two addresses, but whether their difference is none.
        m.fabric.off_group = h.ipv4.dst ^ group_ip;
        m.fabric.off_pool_ip = h.ipv4.dst ^ pool_ip;
        m.fabric.off_pool = h.arp.target_ip ^ pool_ip;
        m.fabric.off_mark = h.ipv4.dscp ^ from_switch_dscp;
    }

    // No key: the controller modifies the default action.
    @id(0x02000001)
    table fabric {
        actions = { plain; set_fabric; }
        default_action = plain();
        size = 1;
    }

    apply {
        fabric.apply();
    }
}
