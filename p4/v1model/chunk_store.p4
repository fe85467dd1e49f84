// The bytes of cached chunks. A slot keeps one data datagram: its payload, its headers from BTH on, its
// ICRC, and of the headers before them what the ICRC covers and differs from holder to holder (source
// address and port). A slot also says whose it is, so whatever the tables say, a segment is served
// only if it was filled for that very key and index since the switch started.

control ChunkStore(inout headers_t h, inout metadata_t m) {
    @id(0x16000501) register<bit<160>>(SLOTS)               slot_owner;     // segment ++ key
    @id(0x16000502) register<bit<416>>(SLOTS)               slot_transport; // BTH ++ DETH ++ data header
    @id(0x16000503) register<ipv4_address_t>(SLOTS)         slot_src_ip;
    @id(0x16000504) register<bit<16>>(SLOTS)                slot_src_port;
    @id(0x16000505) register<bit<32>>(SLOTS)                slot_icrc;
    @id(0x16000506) register<bit<2048>>(SLOTS * SEGMENT_BLOCKS) slot_block; // slot * SEGMENT_BLOCKS + block

    FillAck() fill_ack;

    // Stores the data datagram that a FILL carries.
    @hidden
    action store(in slot_t slot) {
        slot_owner.write(slot, h.kvd.segment ++ h.kvd.key);
        slot_transport.write(slot,
            h.bth.opcode ++ h.bth.solicited_event ++ h.bth.mig_request ++ h.bth.pad_count ++ h.bth.transport_version
            ++ h.bth.partition_key ++ h.bth.resv8a ++ h.bth.qpn ++ h.bth.ack_request ++ h.bth.resv7 ++ h.bth.psn
            ++ h.deth.qkey ++ h.deth.reserved ++ h.deth.src_qpn
            ++ h.kvd.version ++ h.kvd.op ++ h.kvd.flags ++ h.kvd.reserved ++ h.kvd.segment ++ h.kvd.segments
            ++ h.kvd.length ++ h.kvd.key);
        slot_src_ip.write(slot, h.ipv4.src);
        slot_src_port.write(slot, h.udp.src_port);
        slot_icrc.write(slot, h.icrc.value);
#define STORE_BLOCK(i) slot_block.write(slot * SEGMENT_BLOCKS + i, h.block[i].bits);
        FOR_EACH_BLOCK(STORE_BLOCK)
    }

    // Makes the holder's data datagram of a FILL. Egress takes its control header off, or turns the sender's copy round.
    @hidden
    action cast_too() {
        h.ethernet.dst = m.fabric.group_mac;
        h.ipv4.dst = m.fabric.group_ip;
        h.ipv4.total_length = DATA_UDP_BYTES + IPV4_BYTES;
        h.ipv4.identification = 0;
        h.ipv4.flags = IP_DONT_FRAGMENT;
        h.udp.dst_port = UDP_PORT_ROCE;
        h.udp.length = DATA_UDP_BYTES;
        m.deliver = (m.interest & ~m.me) | m.me;
        m.cast = 1;
        m.cast_too = 1;
        m.rewritten = 1;
    }

    // Turns a GET into the data datagram that the slot keeps.
    @hidden
    action serve(in slot_t slot) {
        h.image.setValid();
        slot_transport.read(h.image.bits, slot);
        slot_src_ip.read(h.ipv4.src, slot);
        slot_src_port.read(h.udp.src_port, slot);
        h.icrc.setValid();
        slot_icrc.read(h.icrc.value, slot);
#define LOAD_BLOCK(i) h.block[i].setValid(); slot_block.read(h.block[i].bits, slot * SEGMENT_BLOCKS + i);
        FOR_EACH_BLOCK(LOAD_BLOCK)
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
        h.kvc.setInvalid();
        m.rewritten = 1;
        m.cast = 1;
    }

    apply {
        if (m.op == OP_FILL) {
            store(m.base_slot + h.kvd.segment);
            if ((h.kvc.flags & FLAG_CAST_TOO) == 0) {
                fill_ack.apply(h, m);
                m.egress = m.port;
                m.unicast = 1;
            } else {
                if (m.fabric.off_mark == 0) {
                    h.ipv4.dscp = 0;        // as of a cast
                }
                cast_too();
            }
        } else {
            slot_t slot = m.base_slot + h.kvc.segment;
            bit<160> owner;
            slot_owner.read(owner, slot);
            if (owner == h.kvc.segment ++ h.kvc.key) {
                m.deliver = m.me;
                if ((h.kvc.flags & FLAG_ONLY_ME) == 0) {
                    m.deliver = m.deliver | m.interest;
                }
                // The clone becomes the GET of the next segment (see egress) and starts over.
                if (h.kvc.count > 1 && h.kvc.segment + 1 < m.segments) {
                    clone_preserving_field_list(CloneType.I2E, SESSION_NEXT_SEGMENT, 1);
                }
                serve(slot);
            }
        }
    }
}
