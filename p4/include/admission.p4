// Which member is behind a port. A host cannot speak for another: the member in its datagrams is
// overwritten with the one of its port. A packet that did not just arrive but comes round again was
// admitted when it did, and carries its member along.

control Admission(inout headers_t h, inout metadata_t m, in port_t port, in bool arrived) {
    @id(0x01000201)
    action set_member(@id(1) member_t member, @id(2) members_t member_bit) {
        m.member = member;
        m.me = member_bit;
    }

    @id(0x01000202)
    action not_a_member() {
        m.me = 0;
        m.drop = DropReason.NOT_A_MEMBER;
    }

    @id(0x02000002)
    table port_member {
        key = { port : exact @name("ingress_port"); }
        actions = { set_member; not_a_member; }
        default_action = not_a_member();
        size = MEMBERS;
    }

    apply {
        if (arrived) {
            port_member.apply();
        }
        if (m.drop == DropReason.NONE && h.kvc.isValid()) {
            h.kvc.member = m.member;
            h.udp.checksum = 0;         // it covered the member that the host claimed
        }
    }
}
