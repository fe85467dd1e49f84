// What a port may ask for in a second: direct meters (RFC 2698), whose rates the controller writes with the entries. A
// port or member without an entry has no limit. What is red is dropped. The architecture says what a meter is.

// JOINs and GETs as they arrive, by port.
control RequestLimit(inout metadata_t m) {
    @id(0x15000b01)
    PACKET_METER request_meter;

    @id(0x01000b01)
    action limit_requests() {
        READ_METER(request_meter, m.request_color);
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
        actions = { limit_requests; @defaultonly any_requests; }
        default_action = any_requests();
        meters = request_meter;
        size = REQUEST_LIMITS;
    }

    apply {
        request_limit.apply();
    }
}

// Segments that are cast because of a member: those of a chunk that it leads, and those that the switch serves to it. All
// segments of a fabric are of one size, so a limit of segments is one of bytes.
control SegmentLimit(inout metadata_t m) {
    @id(0x15000b02)
    PACKET_METER segment_meter;

    @id(0x01000b03)
    action limit_segments() {
        READ_METER(segment_meter, m.segment_color);
    }

    @id(0x01000b04)
    action any_segments() {
        m.segment_color = 0;
    }

    @id(0x0200000b)
    table segment_limit {
        key = { m.charged : exact @name("leader"); }
        actions = { limit_segments; @defaultonly any_segments; }
        default_action = any_segments();
        meters = segment_meter;
        size = MEMBERS;
    }

    apply {
        segment_limit.apply();
    }
}
