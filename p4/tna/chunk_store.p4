// Cached chunks circulate. The registers of a Tofino give back some hundred bytes a pass, so a segment is not kept in
// registers but stays a packet: its data datagram goes out of the recirculation port, waits in the buffer of the switch,
// comes in again, and so on. A GET marks who wants the segment (`due`); when it comes by it is cast to them, and goes on.
//
// A slot is a place in the orbit. It knows whose it is and when its segment last came by, so a FILL of what circulates
// adds no second copy, and a GET of what was lost on its round goes to the holder at once, with a report to the
// controller, which has the chunk filled again.

control ChunkStore(inout headers_t h, inout metadata_t m, inout ingress_intrinsic_metadata_for_deparser_t d) {
    Register<owned_t, slot_index_t>(SLOTS, { 0, 0x80000000 }) slot_owner;

    // A segment comes by.
    RegisterAction<owned_t, slot_index_t, ownership_t>(slot_owner) pass = {
        void apply(inout owned_t slot) {
            slot.signature = m.signature;
            slot.stamp = m.now;
        }
    };
    // GET: does it circulate.
    RegisterAction<owned_t, slot_index_t, ownership_t>(slot_owner) look = {
        void apply(inout owned_t slot, out ownership_t circulates) {
            circulates = this.predicate(slot.signature == m.signature, m.now - slot.stamp < ORBIT_LOST_TICKS);
        }
    };
    // FILL: enters, unless it circulates already.
    RegisterAction<owned_t, slot_index_t, ownership_t>(slot_owner) enter = {
        void apply(inout owned_t slot, out ownership_t circulates) {
            circulates = this.predicate(slot.signature == m.signature, m.now - slot.stamp < ORBIT_LOST_TICKS);
            if (slot.signature != m.signature || !(m.now - slot.stamp < ORBIT_LOST_TICKS)) {
                slot.signature = m.signature;
                slot.stamp = m.now;
            }
        }
    };
    @hidden action do_pass()  { pass.execute(m.slot); }
    @hidden action do_look()  { m.circulates = look.execute(m.slot); }
    @hidden action do_enter() { m.circulates = enter.execute(m.slot); }

    Register<bit<8>, slot_index_t>(SLOTS, 0) slot_due_all;

    RegisterAction<bit<8>, slot_index_t, bit<8>>(slot_due_all) want_all = {
        void apply(inout bit<8> all) {
            all = 1;
        }
    };
    RegisterAction<bit<8>, slot_index_t, bit<8>>(slot_due_all) settle_all = {
        void apply(inout bit<8> all, out bit<8> was) {
            was = all;
            all = 0;
        }
    };
    @hidden action do_want_all()   { want_all.execute(m.slot); }
    @hidden action do_settle_all() { m.due_all = settle_all.execute(m.slot); }

    FillCheck() check;
    DueLow()    low;
    DueHigh()   high;

    // The data datagram of a FILL, as it will circulate and be cast.
    @hidden
    action enter_orbit() {
        h.ethernet.dst = m.fabric.group_mac;
        h.ethernet.src = m.fabric.pool_mac;
        h.ipv4.dst = m.fabric.group_ip;
        h.ipv4.dscp = m.fabric.from_switch_dscp;
        h.ipv4.ecn = 0;
        h.ipv4.total_length = DATA_UDP_BYTES + IPV4_BYTES;
        h.ipv4.identification = 0;
        h.ipv4.flags = IP_DONT_FRAGMENT;
        h.ipv4.ttl = 64;
        h.udp.dst_port = UDP_PORT_ROCE;
        h.udp.length = DATA_UDP_BYTES;
        m.rewritten = 1;
        m.again = 1;
    }

    @hidden
    action next_segment() {
        h.kvc.segment = h.kvc.segment + 1;
        h.kvc.count = h.kvc.count - 1;
        h.kvc.members = m.me;
        m.again = 1;
    }

    apply {
        if (m.kind == PacketKind.ORBIT) {
            if (m.state == ChunkState.ABSENT) {
                m.event = OrbitEvent.LEFT;
                m.absorbed = 1;
                m.deliver = 0;
            } else {
                m.event = OrbitEvent.PASSED;
                m.again = 1;
                do_pass();
                if (m.state == ChunkState.SERVING) {
                    m.due_operation = DueOperation.SETTLE;
                }
            }
        } else if (m.op == OP_FILL) {
            check.apply(h, m);
            if (m.drop == DropReason.NONE) {
                do_enter();
                d.mirror_type = MIRROR_ACKNOWLEDGE;
                m.mirror_tag = TAG_MIRROR;
                m.mirror_port = (bit<16>) m.port;
                m.mirror_session = SESSION_ACKNOWLEDGE;
                if (m.circulates == MINE) {
                    m.event = OrbitEvent.REPEATED;
                    m.absorbed = 1;
                } else {
                    m.event = OrbitEvent.ENTERED;
                    m.due_operation = DueOperation.SETTLE;
                    enter_orbit();
                }
            }
        } else if (m.op == OP_GET && m.state == ChunkState.SERVING) {
            do_look();
            if (m.circulates == MINE) {
                m.event = OrbitEvent.WANTED;
                m.due_operation = DueOperation.WANT;
                m.absorbed = 1;
            } else {
                m.event = OrbitEvent.LOST;
                d.digest_type = DIGEST_LOST;
            }
        }

        low.apply(m);
        high.apply(m);
        if (m.due_operation == DueOperation.SETTLE) {
            do_settle_all();
        } else if (m.due_operation == DueOperation.WANT) {
            if ((h.kvc.flags & FLAG_ONLY_ME) == 0) {
                do_want_all();
            }
            if (h.kvc.count > 1) {
                if (m.left > 1) {
                    next_segment();
                }
            }
        }

        // Whom what comes by is for.
        if (m.event == OrbitEvent.PASSED) {
            if (m.due_all == 1) {
                m.deliver = m.due | m.before;
            } else {
                m.deliver = m.due;
            }
        }
    }
}
