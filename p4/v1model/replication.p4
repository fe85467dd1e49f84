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
