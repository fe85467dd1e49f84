// Emits what is valid, in wire order. A packet has either the typed transport headers or their image.

control KvcastDeparser(packet_out packet, in headers_t h) {
    apply {
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
        packet.emit(h.image);
        packet.emit(h.block);
        packet.emit(h.icrc);
    }
}
