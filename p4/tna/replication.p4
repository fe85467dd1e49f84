// Sends a cast packet to the members in `deliver`. By default the set itself is the group: where an agent fabric has
// at most 16 members, the id of the group that the controller made for that very set; up to 30, the ids of two groups,
// for members 0 to 14 and 15 to 29. Beyond that a set that the table does not name goes to the group of all ports,
// of which egress prunes the copies for ports outside the set. The controller chooses by the default action.
//
// A packet of the orbit needs its unicast copy for the recirculation port, so to_port is only for others.

control Replication(inout metadata_t m, inout ingress_intrinsic_metadata_for_tm_t tm) {
    @id(0x01000601)
    action to_group(@id(1) group_t group) {
        tm.mcast_grp_a = group;
    }

    @id(0x01000602)
    action to_port(@id(1) port_t port) {
        m.egress = port;
        m.unicast = 1;
    }

    @id(0x01000603)
    action to_bitmap() {
        tm.mcast_grp_a = m.deliver[15:0];
    }

    @id(0x01000604)
    action to_two_bitmaps() {
        tm.mcast_grp_a = 1w0 ++ m.deliver[14:0];
        m.second_group = 1w1 ++ m.deliver[29:15];
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
        // GROUP_FLOOD is also the id of an empty second set.
        if (m.second_group != 0 && m.second_group != GROUP_FLOOD) {
            tm.mcast_grp_b = m.second_group;
        }
    }
}
