// Drops a packet and counts why. One counter at ingress, one at egress, both indexed by DropReason.

// A packet that goes `again` has been dropped for everybody but the switch: the last LEAVE comes round once more.
control IngressDrops(in DropReason drop, in bit<1> again, inout ingress_intrinsic_metadata_for_deparser_t d) {
    @id(0x12000001)
    Counter<bit<64>, bit<8>>(DROP_REASONS, CounterType_t.PACKETS) ingress_drops;

    apply {
        ingress_drops.count((bit<8>) drop);
        if (again == 0) {
            d.drop_ctl = 1;
        }
    }
}

control EgressDrops(in DropReason drop, inout egress_intrinsic_metadata_for_deparser_t d) {
    @id(0x12000002)
    Counter<bit<64>, bit<8>>(DROP_REASONS, CounterType_t.PACKETS) egress_drops;

    apply {
        egress_drops.count((bit<8>) drop);
        d.drop_ctl = 1;
    }
}
