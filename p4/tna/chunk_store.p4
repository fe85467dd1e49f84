// Cached chunks circulate. The registers of a Tofino give back some hundred bytes a pass, so a segment is not kept in
// registers but stays a packet: its data datagram goes out of the recirculation port, waits in the buffer of the switch,
// comes in again, and so on. A GET marks who wants the segment (due.p4); when it comes by it is cast to them, and goes on.
//
// A slot is a place in the orbit. It knows whose it is and when its segment last came by, so a FILL of what circulates
// adds no second copy, and a GET of what was lost on its round goes to the holder at once, with a report to the
// controller, which has the chunk filled again.

control SlotOwner(inout metadata_t m) {
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
    @hidden action nothing()  { }

    @hidden @stage(5)
    table owner {
        key = { m.task : exact; }
        actions = { do_pass; do_look; do_enter; nothing; }
        const default_action = nothing();
        const entries = {
            Task.PASS  : do_pass();
            Task.WAIT  : do_pass();
            Task.SERVE : do_look();
            Task.FILL  : do_enter();
        }
        size = 4;
    }

    apply {
        owner.apply();
    }
}

// What becomes of a FILL, and of a GET of a chunk that is served here.
control ChunkStore(inout headers_t h, inout metadata_t m, inout ingress_intrinsic_metadata_for_deparser_t d) {
    // Cut to its control header and sent round, to become the acknowledgement.
    @hidden
    action acknowledge() {
        d.mirror_type = MIRROR_HEAD;
        m.mirror_tag = TAG_MIRROR;
        m.mirror_port = (bit<16>) m.port;
        m.mirror_session = SESSION_HEAD;
    }

    // The data datagram of a FILL, as it will circulate and be cast. The mark of the switch it gets when it comes by:
    // what is cast of it now is the holder's.
    @hidden
    action become_data() {
        acknowledge();
        m.needed = FILL_FRAME_BYTES;
        m.checksum = 1;
        h.kvc.setInvalid();
        h.ethernet.dst = m.fabric.group_mac;
        h.ethernet.src = m.fabric.pool_mac;
        h.ipv4.dst = m.fabric.group_ip;
        h.ipv4.dscp = 0;
        h.ipv4.ecn = 0;
        h.ipv4.total_length = DATA_UDP_BYTES + IPV4_BYTES;
        h.ipv4.identification = 0;
        h.ipv4.flags = IP_DONT_FRAGMENT;
        h.ipv4.ttl = 64;
        h.udp.dst_port = UDP_PORT_ROCE;
        h.udp.length = DATA_UDP_BYTES;
    }

    @hidden
    action enter_orbit() {
        become_data();
        m.event = OrbitEvent.ENTERED;
        m.again = 1;
    }

    // It circulates already; its readers wait for it all the same.
    @hidden
    action repeat_and_cast() {
        become_data();
        m.event = OrbitEvent.REPEATED;
    }

    @hidden
    action repeat() {
        acknowledge();
        m.event = OrbitEvent.REPEATED;
    }

    // It comes by in a moment.
    @hidden
    action wait() {
        m.event = OrbitEvent.WANTED;
    }

    // So does the next one: the GET goes round to ask for it, with its sender along.
    @hidden
    action wait_and_go_on() {
        m.event = OrbitEvent.WANTED;
        m.again = 1;
        m.queue = QUEUE_CONTROL;
        h.kvc.segment = h.kvc.segment + 1;
        h.kvc.count = h.kvc.count - 1;
        h.kvc.members = m.me;
    }

    @hidden
    action lose() {
        m.event = OrbitEvent.LOST;
        m.forward = 1;
        h.kvc.members = 0;
        d.digest_type = DIGEST_LOST;
    }

    @hidden action nothing() { }

    @hidden
    table outcome {
        key = {
            m.task       : exact;
            m.circulates : ternary;
            h.kvc.count  : ternary;
            m.left       : ternary;
            m.mine       : ternary;
            h.kvc.flags  : ternary;
        }
        actions = { enter_orbit; repeat; repeat_and_cast; wait; wait_and_go_on; lose; nothing; }
        const default_action = nothing();
        const entries = {
            (Task.FILL, MINE, _, _, _, FLAG_CAST_TOO &&& FLAG_CAST_TOO) : repeat_and_cast();
            (Task.FILL, MINE, _, _, _, _)  : repeat();
            (Task.FILL, _, _, _, _, _)     : enter_orbit();
            (Task.SERVE, _, _, _, 0, _)    : nothing(); // of who has not joined: refused (decision.p4)
            (Task.SERVE, MINE, 1, _, _, _) : wait();
            (Task.SERVE, MINE, _, 1, _, _) : wait();
            (Task.SERVE, MINE, _, _, _, _) : wait_and_go_on();
            (Task.SERVE, _, _, _, _, _)    : lose();
        }
        size = 8;
    }

    apply {
        outcome.apply();
    }
}
