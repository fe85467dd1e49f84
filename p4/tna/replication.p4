// Sends a cast packet to the members in `deliver`. Up to 16 members the set itself is the group: its id is that of the
// group that the controller made for that very set. Up to 30 it is two groups, for members 0 to 14 and 16 to 30 (halves
// of a word: no bit has to move; 15 and 31 are nobody). Beyond that a set that the table does not name goes to the group of
// all ports, of which egress prunes the copies for ports outside the set. The controller chooses by the default action.
//
// A packet of the orbit needs its unicast copy for the recirculation port, so to_port is only for others.

control Replication(inout metadata_t m, inout ingress_intrinsic_metadata_for_tm_t tm) {
    @id(0x01000601)
    action to_group(@id(1) group_t group) {
        tm.mcast_grp_a = group;
    }

    @id(0x01000602)
    action to_port(@id(1) port_t port) {
        tm.ucast_egress_port = port;
    }

    @id(0x01000603)
    action to_bitmap() {
        tm.mcast_grp_a = m.deliver[15:0];
    }

    @id(0x01000604)
    action to_two_bitmaps() {
        tm.mcast_grp_a = m.deliver[15:0];
        tm.mcast_grp_b = m.second_group;
    }

    @id(0x02000004)
    table replicate {
        key = { m.deliver : exact @name("members"); }
        actions = { to_group; to_port; to_bitmap; to_two_bitmaps; }
        default_action = to_group(GROUP_FLOOD);
        size = REPLICATION_GROUPS;
    }

    apply {
        replicate.apply();
    }
}

// The second of two groups, for whoever will be among its members: none for an empty set.
control SecondGroup(inout metadata_t m) {
    @hidden action set_second_group() { m.second_group = m.deliver[31:16] | 0x8000; }

    apply {
        if (m.deliver[31:16] != 0) {
            set_second_group();
        }
    }
}
