// What a port may ask for in a second, as ../v1model/limits.p4. Segments that the orbit serves are not charged: however
// often a slot is asked for, it is cast once when it comes by.

const bit<8> METER_RED = 3;

control RequestLimit(inout metadata_t m) {
    @id(0x15000b01)
    DirectMeter(MeterType_t.PACKETS) request_meter;

    @id(0x01000b01)
    action limit_requests() {
        m.request_color = request_meter.execute();
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
    }
}

// In a stage behind the one that knows the leader, and before the one that decides.
control SegmentLimit(inout metadata_t m) {
    @id(0x15000b02)
    DirectMeter(MeterType_t.PACKETS) segment_meter;

    @id(0x01000b03)
    action limit_segments() {
        m.segment_color = segment_meter.execute();
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
    }
}
