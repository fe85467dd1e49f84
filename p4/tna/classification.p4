// Says what is to be done about a packet, once for all stages behind: everything that refuses it by its headers, its port
// or what kv_cache knows of its chunk is decided here. A chain of conditions would cost a stage each; these are rows of
// ternary tables, read from the top, that find in one stage what ../v1model/classification.p4 and segment_range.p4 do.

control Classification(inout headers_t h, inout metadata_t m, in bit<16> fault) {
    @hidden
    action refuse(DropReason reason) {
        m.task = Task.REFUSED;
        m.drop = reason;
    }

    // A host cannot speak for another.
    @hidden
    action attribute() {
        h.kvc.member = m.member;
        h.udp.checksum = 0;             // it covered the member that the host claimed
    }

    @hidden
    action take(Task task) {
        attribute();
        m.task = task;
        m.drop = DropReason.NONE;
    }

    // Goes on to the holder. `members` was the sender, if the GET comes from a round.
    @hidden
    action pass_on(Task task) {
        attribute();
        m.task = task;
        m.drop = DropReason.NONE;
        m.forward = 1;
        h.kvc.members = 0;
    }

    @hidden
    action stay_ordinary() {
        m.task = Task.ORDINARY;
        m.drop = DropReason.NONE;
        m.forward = 1;
    }

    // A cached segment comes by. It goes on, unless its chunk was evicted.
    @hidden
    action come_by(Task task, OrbitEvent event, bit<1> again) {
        m.task = task;
        m.drop = DropReason.NONE;
        m.event = event;
        m.again = again;
        m.needed = DATA_FRAME_BYTES;
        h.ipv4.dscp = m.fabric.from_switch_dscp;    // from now on it is the switch's
        m.checksum = 1;
    }

    @hidden
    action cast() {
        m.task = Task.CAST;
        m.drop = DropReason.NONE;
        m.needed = DATA_FRAME_BYTES;
    }

    // Only the switch says that something is the switch's.
    @hidden
    action cast_unmarked() {
        cast();
        h.ipv4.dscp = 0;
        m.checksum = 1;
    }

    // HERE ends here.
    @hidden
    action announce() {
        m.task = Task.HERE;
        m.drop = DropReason.HERE;
    }

    // The head of a FILL, on its round, goes to the holder's port.
    @hidden
    action acknowledge() {
        m.task = Task.ACKNOWLEDGE;
        m.drop = DropReason.NONE;
        m.checksum = 1;
    }

    // The head of a JOIN or LEAVE, on its round: it has changed what its sender pays for.
    @hidden
    action account() {
        m.task = Task.GONE;
        m.drop = DropReason.NONE;
    }

    // The last LEAVE, on its round, frees the entry: `now` becomes a time that is long over.
    @hidden
    action free() {
        m.task = Task.FREE;
        m.drop = DropReason.NONE;
        m.now = m.now + 0x80000000;
    }

    // To the control port.
    @hidden
    table control_datagrams {
        key = {
            h.kvc.isValid()      : ternary;
            m.round              : ternary;
            h.kvc.version        : ternary;
            h.kvc.op             : ternary;
            h.udp.length         : ternary;
            h.ipv4.total_length  : ternary;
            h.kvd.isValid()      : ternary;
            fault                : ternary;
            m.drop               : ternary;     // of the port
            m.state              : ternary;
            m.left               : ternary;
            h.kvc.count          : ternary;
            m.known              : ternary;
        }
        actions = { refuse; take; pass_on; free; account; acknowledge; announce; }
        const default_action = refuse(DropReason.BAD_VERSION);
        const entries = {
#define CONTROL_BYTES CONTROL_UDP_BYTES, CONTROL_UDP_BYTES + IPV4_BYTES
#define FILL_BYTES    FILL_UDP_BYTES, FILL_UDP_BYTES + IPV4_BYTES
#define STRANGER      DropReason.NOT_A_MEMBER
            // kvc, round, version, op, lengths,                      data, fault,           port,     state, left, count, known
            (false, _, _, _, _, _, _, _, _, _, _, _, _)                                                  : refuse(DropReason.TRUNCATED);

            (_, 1, KV_VERSION, OP_LEAVE,    _, _,          _,    _,               _,        _, _, _, _)  : free();
            (_, 1, KV_VERSION, OP_JOIN,     _, _,          _,    _,               _,        _, _, _, _)  : account();
            (_, 1, KV_VERSION, OP_CREDIT,   _, _,          _,    _,               _,        _, _, _, _)  : account();
            (_, 1, KV_VERSION, OP_FILL_ACK, _, _,          _,    _,               _,        _, _, _, _)  : acknowledge();

            (_, _, KV_VERSION, OP_FILL,     FILL_BYTES,    true, PARSER_ERROR_OK, STRANGER, _, _, _, _)  : refuse(DropReason.NOT_A_MEMBER);
            (_, 0, KV_VERSION, OP_FILL,     FILL_BYTES,    true, PARSER_ERROR_OK, _,        _, _, _, 0)  : refuse(DropReason.FORGED_SOURCE);
            (_, _, KV_VERSION, OP_FILL,     FILL_BYTES,    true, PARSER_ERROR_OK, _,        _, _, _, _)  : take(Task.FILL);
            (_, _, KV_VERSION, OP_FILL,     FILL_BYTES,    _,    _,               _,        _, _, _, _)  : refuse(DropReason.TRUNCATED);
            (_, _, KV_VERSION, OP_FILL,     _, _,          _,    _,               _,        _, _, _, _)  : refuse(DropReason.BAD_LENGTH);

            (_, _, KV_VERSION, OP_HERE,     CONTROL_BYTES, _,    _,               _,        _, _, _, _)  : announce();
            (_, _, KV_VERSION, OP_HERE,     _, _,          _,    _,               _,        _, _, _, _)  : refuse(DropReason.BAD_LENGTH);

            (_, _, KV_VERSION, OP_NOTICE,   _, _,          _,    _,               _,        _, _, _, _)  : refuse(DropReason.FORGED_OP);
            (_, _, KV_VERSION, OP_FILL_ACK, _, _,          _,    _,               _,        _, _, _, _)  : refuse(DropReason.FORGED_OP);

            (_, _, KV_VERSION, OP_JOIN,     CONTROL_BYTES, _,    _,               STRANGER, _, _, _, _)  : refuse(DropReason.NOT_A_MEMBER);
            (_, 0, KV_VERSION, OP_JOIN,     CONTROL_BYTES, _,    _,               _,        _, _, _, 0)  : refuse(DropReason.FORGED_SOURCE);
            (_, _, KV_VERSION, OP_JOIN,     CONTROL_BYTES, _,    _,               _,        _, _, _, _)  : take(Task.JOIN);
            (_, _, KV_VERSION, OP_JOIN,     _, _,          _,    _,               _,        _, _, _, _)  : refuse(DropReason.BAD_LENGTH);

            (_, _, KV_VERSION, OP_LEAVE,    CONTROL_BYTES, _,    _,               STRANGER, _, _, _, _)  : refuse(DropReason.NOT_A_MEMBER);
            (_, 0, KV_VERSION, OP_LEAVE,    CONTROL_BYTES, _,    _,               _,        _, _, _, 0)  : refuse(DropReason.FORGED_SOURCE);
            (_, _, KV_VERSION, OP_LEAVE,    CONTROL_BYTES, _,    _,               _,        _, _, _, _)  : take(Task.LEAVE);
            (_, _, KV_VERSION, OP_LEAVE,    _, _,          _,    _,               _,        _, _, _, _)  : refuse(DropReason.BAD_LENGTH);

            (_, _, KV_VERSION, OP_NAK,      CONTROL_BYTES, _,    _,               STRANGER, _, _, _, _)  : refuse(DropReason.NOT_A_MEMBER);
            (_, 0, KV_VERSION, OP_NAK,      CONTROL_BYTES, _,    _,               _,        _, _, _, 0)  : refuse(DropReason.FORGED_SOURCE);
            (_, _, KV_VERSION, OP_NAK,      CONTROL_BYTES, _,    _,               _,        _, _, _, _)  : pass_on(Task.NAK);
            (_, _, KV_VERSION, OP_NAK,      _, _,          _,    _,               _,        _, _, _, _)  : refuse(DropReason.BAD_LENGTH);

            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               STRANGER, _, _, _, _)  : refuse(DropReason.NOT_A_MEMBER);
            (_, 0, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _,        _, _, _, 0)  : refuse(DropReason.FORGED_SOURCE);
            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _,        _, _, 0, _)  : refuse(DropReason.BEYOND_END);
            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _,        _, 0, _, _)  : refuse(DropReason.BEYOND_END);
            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _,        _, _, 0x0080 &&& 0x0080, _)  : refuse(DropReason.GET_TOO_LARGE);
            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _,        _, _, 0x0100 &&& 0x0100, _)  : refuse(DropReason.GET_TOO_LARGE);
            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _,        _, _, 0x0200 &&& 0x0200, _)  : refuse(DropReason.GET_TOO_LARGE);
            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _,        _, _, 0x0400 &&& 0x0400, _)  : refuse(DropReason.GET_TOO_LARGE);
            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _,        _, _, 0x0800 &&& 0x0800, _)  : refuse(DropReason.GET_TOO_LARGE);
            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _,        _, _, 0x1000 &&& 0x1000, _)  : refuse(DropReason.GET_TOO_LARGE);
            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _,        _, _, 0x2000 &&& 0x2000, _)  : refuse(DropReason.GET_TOO_LARGE);
            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _,        _, _, 0x4000 &&& 0x4000, _)  : refuse(DropReason.GET_TOO_LARGE);
            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _,        _, _, 0x8000 &&& 0x8000, _)  : refuse(DropReason.GET_TOO_LARGE);
            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _, ChunkState.SERVING, _, _, _) : take(Task.SERVE);
            (_, _, KV_VERSION, OP_GET,      CONTROL_BYTES, _,    _,               _,        _, _, _, _)  : pass_on(Task.GET);
            (_, _, KV_VERSION, OP_GET,      _, _,          _,    _,               _,        _, _, _, _)  : refuse(DropReason.BAD_LENGTH);

            (_, _, KV_VERSION, _,           _, _,          _,    _,               _,        _, _, _, _)  : refuse(DropReason.UNKNOWN_OP);
        }
        size = 64;
    }

    // To RoCE's port; most of that is not for the fabric's group and none of kvcast's.
    @hidden
    table data_datagrams {
        key = {
            m.fabric.off_group  : ternary;
            m.round             : ternary;
            m.state             : ternary;
            h.bth.isValid()     : ternary;
            h.bth.opcode        : ternary;
            h.bth.qpn           : ternary;
            h.kvd.isValid()     : ternary;
            h.kvd.version       : ternary;
            h.kvd.op            : ternary;
            h.udp.length        : ternary;
            h.ipv4.total_length : ternary;
            fault               : ternary;
            m.drop              : ternary;      // of the port
            m.known             : ternary;
            m.fabric.off_mark   : ternary;
        }
        actions = { refuse; come_by; cast; cast_unmarked; stay_ordinary; }
        const default_action = stay_ordinary();
        const entries = {
#define DATA_BYTES DATA_UDP_BYTES, DATA_UDP_BYTES + IPV4_BYTES
#define UD         true, BTH_OPCODE_UD_SEND_ONLY, QPN_MULTICAST
            // group, round, state, transport, data, version, op, lengths, fault, port, known, mark
            (0, 1, ChunkState.SERVING, _, _, _, _, _, _, _, _, _, _, _, _) : come_by(Task.PASS, OrbitEvent.PASSED, 1);
            (0, 1, ChunkState.FILLING, _, _, _, _, _, _, _, _, _, _, _, _) : come_by(Task.WAIT, OrbitEvent.PASSED, 1);
            (0, 1, ChunkState.ABSENT,  _, _, _, _, _, _, _, _, _, _, _, _) : come_by(Task.GONE, OrbitEvent.LEFT, 0);

            (0, _, _, false, _, _, _, _, _, _, _, _, _, _, _)              : refuse(DropReason.TRUNCATED);
            (0, _, _, UD, false, _, _, _, _, _, _, _, _)                   : refuse(DropReason.TRUNCATED);
            (0, _, _, UD, _, KV_VERSION, OP_DATA, DATA_BYTES, PARSER_ERROR_OK, DropReason.NOT_A_MEMBER, _, _) : refuse(DropReason.NOT_A_MEMBER);
            (0, _, _, UD, _, KV_VERSION, OP_DATA, DATA_BYTES, PARSER_ERROR_OK, _, 0, _) : refuse(DropReason.FORGED_SOURCE);
            (0, _, _, UD, _, KV_VERSION, OP_DATA, DATA_BYTES, PARSER_ERROR_OK, _, _, 0) : cast_unmarked();
            (0, _, _, UD, _, KV_VERSION, OP_DATA, DATA_BYTES, PARSER_ERROR_OK, _, _, _) : cast();
            (0, _, _, UD, _, KV_VERSION, OP_DATA, DATA_BYTES, _, _, _, _)  : refuse(DropReason.TRUNCATED);
            (0, _, _, UD, _, KV_VERSION, OP_DATA, _, _, _, _, _, _)        : refuse(DropReason.BAD_LENGTH);
            (0, _, _, UD, _, KV_VERSION, _, _, _, _, _, _, _)              : refuse(DropReason.UNKNOWN_OP);
            (0, _, _, _, _, _, _, _, _, _, _, _, _, _, _)                  : refuse(DropReason.BAD_VERSION);
        }
        size = 16;
    }

    // What the parser does not look into.
    @hidden
    table odd_packets {
        key = {
            m.buried             : ternary;
            h.ipv4.isValid()     : ternary;
            m.fabric.off_group   : ternary;
            m.fabric.off_pool_ip : ternary;
            h.udp.isValid()      : ternary;
            h.udp.dst_port       : ternary;
        }
        actions = { refuse; stay_ordinary; }
        const default_action = stay_ordinary();
        const entries = {
            (1, _, _, _, _, _)                   : refuse(DropReason.NOT_PLAIN);
            (_, true, 0, _, _, _)                : refuse(DropReason.NOT_PLAIN);
            (_, true, _, 0, _, _)                : refuse(DropReason.NOT_PLAIN);
            (_, _, _, _, true, UDP_PORT_CONTROL) : refuse(DropReason.NOT_PLAIN);
            (_, _, _, _, true, UDP_PORT_ROCE)    : refuse(DropReason.NOT_PLAIN);
        }
        size = 8;
    }

    // A program that was not configured is a layer-2 switch; what goes round there is nobody's.
    @hidden
    action answer_arp() {
        m.task = Task.POOL_ARP;
        m.drop = DropReason.NONE;
    }

    @hidden
    action forget() {
        m.task = Task.GONE;
        m.drop = DropReason.NONE;
    }

    apply {
        if (m.fabric.enabled == 1) {
            if (m.round == 0 && m.off_station != 0 && !(h.kvc.isValid() && h.kvc.op == OP_HERE)) {
                refuse(DropReason.FORGED_SOURCE);       // a node that moved says HERE first
            } else if (m.request_color == METER_RED) {
                refuse(DropReason.METERED);
            } else if (h.arp.isValid()) {
                if (m.taken == 1 && m.known == 0) {
                    refuse(DropReason.FORGED_ARP);
                } else if (m.odd == 0 && h.arp.operation == ARP_REQUEST) {
                    if (m.fabric.off_pool == 0) {
                        answer_arp();
                    } else {
                        stay_ordinary();
                    }
                } else {
                    stay_ordinary();
                }
            } else if (m.odd == 1) {
                odd_packets.apply();
            } else if (h.udp.isValid() && h.udp.dst_port == UDP_PORT_CONTROL) {
                control_datagrams.apply();
            } else if (h.udp.isValid() && h.udp.dst_port == UDP_PORT_ROCE) {
                data_datagrams.apply();
            } else {
                stay_ordinary();
            }
        } else if (m.round == 1) {
            forget();
        } else {
            stay_ordinary();
        }
    }
}
