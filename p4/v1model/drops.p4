// Drops a packet and counts why. One counter at ingress, one at egress, both indexed by DropReason.

control IngressDrops(in metadata_t m, inout standard_metadata_t s) {
    @id(0x12000001)
    counter(DROP_REASONS, CounterType.packets) ingress_drops;

    apply {
        ingress_drops.count((bit<32>) (bit<8>) m.drop);
        mark_to_drop(s);
    }
}

control EgressDrops(in metadata_t m, inout standard_metadata_t s) {
    @id(0x12000002)
    counter(DROP_REASONS, CounterType.packets) egress_drops;

    apply {
        egress_drops.count((bit<32>) (bit<8>) m.drop);
        mark_to_drop(s);
    }
}
