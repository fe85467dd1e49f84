// What a port may ask for in a second: direct meters (RFC 2698), whose rates the controller writes with the entries. A
// port or member without an entry has no limit. What is red is dropped.

const bit<2> METER_RED = 2;

// JOINs and GETs as they arrive, by port.
control RequestLimit(inout metadata_t m) {
    @id(0x15000b01)
    direct_meter<bit<2>>(MeterType.packets) request_meter;

    @id(0x01000b01)
    action limit_requests() {
        request_meter.read(m.request_color);
    }

    @id(0x01000b02)
    action any_requests() {
        m.request_color = 0;
    }

    @id(0x0200000a)
    table request_limit {
        key = {
            m.port : exact @name("ingress_port");
            m.op   : exact @name("op");
        }
        actions = { limit_requests; any_requests; }
        default_action = any_requests();
        meters = request_meter;
        size = REQUEST_LIMITS;
    }

    apply {
        request_limit.apply();
        if (m.request_color == METER_RED) {
            m.drop = DropReason.METERED;
        }
    }
}

// Segments that are cast because of a member: those of a chunk that it leads, and those that the switch serves to it. All
// segments of a fabric are of one size, so a limit of segments is one of bytes.
control SegmentLimit(inout metadata_t m) {
    @id(0x15000b02)
    direct_meter<bit<2>>(MeterType.packets) segment_meter;

    @id(0x01000b03)
    action limit_segments() {
        segment_meter.read(m.segment_color);
    }

    @id(0x01000b04)
    action any_segments() {
        m.segment_color = 0;
    }

    @id(0x0200000b)
    table segment_limit {
        key = { m.charged : exact @name("leader"); }
        actions = { limit_segments; any_segments; }
        default_action = any_segments();
        meters = segment_meter;
        size = MEMBERS;
    }

    apply {
        segment_limit.apply();
        if (m.segment_color == METER_RED) {
            m.drop = DropReason.METERED;
        }
    }
}
