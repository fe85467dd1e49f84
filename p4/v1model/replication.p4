// Sends a cast packet to the members in `deliver`: by unicast to one, by an exact group to the sets
// that the controller has written, else to the group of everybody, of which egress drops the copies
// for ports outside the set.

control Replication(inout metadata_t m, inout standard_metadata_t s) {
    @id(0x01000601)
    action to_group(@id(1) group_t group) {
        s.mcast_grp = group;
    }

    @id(0x01000602)
    action to_port(@id(1) port_t port) {
        s.egress_spec = port;
    }

    @id(0x02000004)
    table replicate {
        key = { m.deliver : exact @name("members"); }
        actions = { to_group; to_port; }
        default_action = to_group(GROUP_FLOOD);
        size = REPLICATION_GROUPS;
    }

    apply {
        replicate.apply();
    }
}

control Pruning(inout metadata_t m, inout standard_metadata_t s) {
    members_t receiver = 0;

    @id(0x01000701)
    action set_receiver(@id(1) members_t member_bit) {
        receiver = member_bit;
    }

    @id(0x01000702)
    action no_receiver() {
        receiver = 0;
    }

    @id(0x02000006)
    table egress_member {
        key = { s.egress_port : exact @name("egress_port"); }
        actions = { set_receiver; no_receiver; }
        default_action = no_receiver();
        size = MEMBERS;
    }

    apply {
        egress_member.apply();
        if ((receiver & m.deliver) == 0) {
            m.drop = DropReason.NOT_INTERESTED;
        }
    }
}
