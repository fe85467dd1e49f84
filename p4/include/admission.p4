// Which member is behind a port: whatever a datagram from there says, it speaks for that one.

control Admission(inout metadata_t m, in port_t port) {
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
        port_member.apply();
    }
}
