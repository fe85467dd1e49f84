// Which member is behind a port. A host cannot speak for another: the member in its datagrams is
// overwritten with the one of its port.

control Admission(inout headers_t h, inout metadata_t m, in standard_metadata_t s) {
    @id(0x01000201)
    action set_member(@id(1) member_t member, @id(2) members_t member_bit) {
        m.member = member;
        m.me = member_bit;
    }

    @id(0x01000202)
    action not_a_member() {
        m.me = 0;
    }

    @id(0x02000002)
    table port_member {
        key = { s.ingress_port : exact @name("ingress_port"); }
        actions = { set_member; not_a_member; }
        default_action = not_a_member();
        size = MEMBERS;
    }

    apply {
        // A recirculated GET was admitted when it arrived and carries its member along.
        if (s.instance_type == INSTANCE_ARRIVED) {
            port_member.apply();
        }
        if (m.me == 0) {
            m.drop = DropReason.NOT_A_MEMBER;
        } else if (h.kvc.isValid()) {
            h.kvc.member = m.member;
            h.udp.checksum = 0;         // it covered the member that the host claimed
        }
    }
}
