// Emits what is valid, in wire order, and sends reports and copies on their way.

control KvcastIngressDeparser(packet_out packet, inout headers_t h, in metadata_t m,
                              in ingress_intrinsic_metadata_for_deparser_t d) {
    Checksum() ipv4_checksum;
    Mirror() head;
    @name("heat_report_t") Digest<heat_report_t>() heat_report;
    @name("lost_report_t") Digest<lost_report_t>() lost_report;
    @name("sighting_t") Digest<sighting_t>() sighting;

    apply {
        // Only where this program changed the header: a switch of layer 2 forwards what it gets.
        if (m.checksum == 1) {
            h.ipv4.checksum = ipv4_checksum.update({
                h.ipv4.version, h.ipv4.ihl, h.ipv4.dscp, h.ipv4.ecn, h.ipv4.total_length, h.ipv4.identification,
                h.ipv4.flags, h.ipv4.fragment_offset, h.ipv4.ttl, h.ipv4.protocol, h.ipv4.src, h.ipv4.dst });
        }
        if (d.mirror_type == MIRROR_HEAD) {
            head.emit<mirror_t>(m.mirror_session, { m.mirror_tag, m.member, m.mirror_port });
        }
        if (d.digest_type == DIGEST_HEAT) {
            heat_report.pack({ m.key, m.interest, m.gets });
        }
        if (d.digest_type == DIGEST_LOST) {
            lost_report.pack({ m.key, h.kvc.segment });
        }
        if (d.digest_type == DIGEST_SIGHTING) {
            sighting.pack({ m.key, h.ethernet.src, h.ipv4.src, m.port });
        }
        packet.emit(h.bridge);
        packet.emit(h.ethernet);
        packet.emit(h.vlan);
        packet.emit(h.arp);
        packet.emit(h.ipv4);
        packet.emit(h.option);
        packet.emit(h.udp);
        packet.emit(h.kvc);
        packet.emit(h.bth);
        packet.emit(h.deth);
        packet.emit(h.kvd);
    }
}

control KvcastEgressDeparser(packet_out packet, inout headers_t h, in egress_metadata_t m,
                             in egress_intrinsic_metadata_for_deparser_t d) {
    apply {
        packet.emit(h.ethernet);
        packet.emit(h.ipv4);
        packet.emit(h.udp);
        packet.emit(h.kvc);
    }
}
