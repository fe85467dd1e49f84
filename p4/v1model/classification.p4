// Says what a packet is, and refuses kvcast datagrams that are not well formed before anything
// looks at their contents. How much of the packet there is, the architecture knows: `fill_complete` says that
// a FILL has all its headers, `cut_short` that a packet is shorter than its IPv4 header says.

control Classification(in headers_t h, inout metadata_t m, in bool fill_complete, in bool cut_short) {
    apply {
        if (m.fabric.enabled == 1) {
            if (m.off_station != 0 && !(h.kvc.isValid() && h.kvc.op == OP_HERE)) {
                // A node that moved says HERE first.
                m.kind = PacketKind.REFUSED;
                m.drop = DropReason.FORGED_SOURCE;
            } else if (h.arp.isValid()) {
                if (m.taken == 1 && m.known == 0) {
                    m.kind = PacketKind.REFUSED;
                    m.drop = DropReason.FORGED_ARP;
                } else if (m.odd == 0 && h.arp.operation == ARP_REQUEST && m.fabric.off_pool == 0) {
                    m.kind = PacketKind.POOL_ARP;
                }
            } else if (m.odd == 1) {
                if (m.buried == 1 || (h.ipv4.isValid() && (m.fabric.off_group == 0 || m.fabric.off_pool_ip == 0))
                        || (h.udp.isValid() && (h.udp.dst_port == UDP_PORT_CONTROL || h.udp.dst_port == UDP_PORT_ROCE))) {
                    m.kind = PacketKind.REFUSED;
                    m.drop = DropReason.NOT_PLAIN;
                }
            } else if (h.udp.isValid() && h.udp.dst_port == UDP_PORT_CONTROL) {
                m.kind = PacketKind.CONTROL;
                if (!h.kvc.isValid()) {
                    m.drop = DropReason.TRUNCATED;
                } else if (h.kvc.version != KV_VERSION) {
                    m.drop = DropReason.BAD_VERSION;
                } else if (h.kvc.op == OP_FILL) {
                    if (h.udp.length != FILL_UDP_BYTES || h.ipv4.total_length != FILL_UDP_BYTES + IPV4_BYTES) {
                        m.drop = DropReason.BAD_LENGTH;
                    } else if (!fill_complete) {
                        m.drop = DropReason.TRUNCATED;
                    }
                } else if (h.kvc.op == OP_NOTICE || h.kvc.op == OP_FILL_ACK) {
                    m.drop = DropReason.FORGED_OP;
                } else if (h.kvc.op != OP_JOIN && h.kvc.op != OP_LEAVE && h.kvc.op != OP_GET && h.kvc.op != OP_NAK
                        && h.kvc.op != OP_HERE) {
                    m.drop = DropReason.UNKNOWN_OP;
                } else if (h.udp.length != CONTROL_UDP_BYTES || h.ipv4.total_length != CONTROL_UDP_BYTES + IPV4_BYTES) {
                    m.drop = DropReason.BAD_LENGTH;
                }
                m.op = h.kvc.op;
                m.key = h.kvc.key;
            } else if (h.udp.isValid() && h.udp.dst_port == UDP_PORT_ROCE) {
                if (m.fabric.off_group == 0) {
                    m.kind = PacketKind.CAST;
                    if (!h.bth.isValid()) {
                        m.drop = DropReason.TRUNCATED;
                    } else if (h.bth.opcode != BTH_OPCODE_UD_SEND_ONLY || h.bth.qpn != QPN_MULTICAST) {
                        m.drop = DropReason.BAD_VERSION;
                    } else if (!h.kvd.isValid()) {
                        m.drop = DropReason.TRUNCATED;
                    } else if (h.kvd.version != KV_VERSION) {
                        m.drop = DropReason.BAD_VERSION;
                    } else if (h.kvd.op != OP_DATA) {
                        m.drop = DropReason.UNKNOWN_OP;
                    } else if (h.udp.length != DATA_UDP_BYTES || h.ipv4.total_length != DATA_UDP_BYTES + IPV4_BYTES) {
                        m.drop = DropReason.BAD_LENGTH;
                    } else if (cut_short) {
                        m.drop = DropReason.TRUNCATED;
                    }
                    m.key = h.kvd.key;
                }
            }
        }
    }
}
