// Egress: drops the copies of a cast packet for ports outside the set that it is for. The set is looked at by
// halves: a Tofino gateway compares 44 bits.

control Pruning(in members_t deliver, in port_t port, inout DropReason drop) {
    members_t wanted = 0;       // who is behind this port, of those that it is for

    @id(0x01000701)
    action set_receiver(@id(1) members_t member_bit) {
        wanted = deliver & member_bit;
    }

    @id(0x01000702)
    action no_receiver() {
        wanted = 0;
    }

    @id(0x02000006)
    table egress_member {
        key = { port : exact @name("egress_port"); }
        actions = { set_receiver; no_receiver; }
        default_action = no_receiver();
        size = MEMBERS;
    }

    apply {
        egress_member.apply();
        if (wanted[31:0] == 0) {
            if (wanted[63:32] == 0) {
                drop = DropReason.NOT_INTERESTED;
            }
        }
    }
}
