// Who sent a packet, as far as the controller knows. `source` has the ports, MAC and IP addresses of nodes that were seen;
// `station` says at which port a MAC address has to be, `address` that an IP address is somebody's. A claim that
// contradicts them is refused (classification); what nobody claims is nobody's business. In ARP the claim is the sender's.

control Sources(in headers_t h, inout metadata_t m) {
    @id(0x01000a01)
    action stands_at(@id(1) port_t port) {
        m.off_station = m.port ^ port;
    }

    @id(0x01000a02)
    action stands_anywhere() {
        m.off_station = 0;
    }

    @id(0x02000007)
    table station {
        key = { h.ethernet.src : exact @name("src"); }
        actions = { stands_at; stands_anywhere; }
        default_action = stands_anywhere();
        size = ADDRESSES;
    }

    @id(0x01000a03)
    action known() {
        m.known = 1;
    }

    @id(0x01000a04)
    action unknown() {
        m.known = 0;
    }

    @id(0x02000008)
    table source {
        key = {
            m.port       : exact @name("ingress_port");
            m.sender_mac : exact @name("mac");
            m.sender_ip  : exact @name("ip");
        }
        actions = { known; unknown; }
        default_action = unknown();
        size = ADDRESSES;
    }

    @id(0x01000a05)
    action taken() {
        m.taken = 1;
    }

    @id(0x01000a06)
    action not_taken() {
        m.taken = 0;
    }

    @id(0x02000009)
    table address {
        key = { m.sender_ip : exact @name("ip"); }
        actions = { taken; not_taken; }
        default_action = not_taken();
        size = ADDRESSES;
    }

    apply {
        if (h.arp.isValid()) {
            m.sender_mac = h.arp.sender_mac;
        } else {
            m.sender_mac = h.ethernet.src;      // not in the parser: a Tofino's cannot look back over tags
        }
        station.apply();
        source.apply();
        address.apply();
    }
}
